"""Versions of the ranks' interpreter: read from real folders, and compared between hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.unit.judging import FAIL, PASS, UNKNOWN, judged, probed

TORCH = """__version__ = '2.8.0+cu128'
from typing import Optional
cuda: Optional[str] = '12.8'
hip: Optional[str] = None
"""


def environment(root: Path, packages: dict[str, str], system: str = "false") -> Path:
    """A virtual environment as far as the probe looks: pyvenv.cfg, folders' names, torch/version.py."""
    site = root / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (root / "bin").mkdir()
    python = root / "bin" / "python"
    python.symlink_to(sys.executable)
    (root / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = {system}\nversion = 3.11.9\n"
    )
    for name, version in packages.items():
        (site / f"{name}-{version}.dist-info").mkdir()
    if "torch" in packages:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(TORCH)
    return python


def test_an_environment_is_read_without_starting_it(tmp_path: Path) -> None:
    installed = {"torch": "2.8.0", "deepspeed": "0.18.1", "nvidia_nccl_cu12": "2.27.3", "Leftpad": "1.0"}
    python = environment(tmp_path / "venv", installed)
    python.unlink()
    python.write_text("#!/bin/sh\ntouch started\nexit 1\n")
    python.chmod(0o755)
    answer = probed("versions", python=str(python))
    assert answer["python"] == "3.11.9"
    assert (answer["cuda"], answer["nccl"]) == ("12.8", "2.27.3")
    assert answer["packages"] == {"torch": "2.8.0", "deepspeed": "0.18.1"}
    assert not Path("started").exists()


def test_packages_that_are_asked_for_are_told(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", {"leftpad": "1.0"})
    assert probed("versions", python=str(python), packages=["leftpad"])["packages"] == {"leftpad": "1.0"}


def test_the_first_folder_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "venv", {"numpy": "2.0.0"})
    (tmp_path / "mine" / "numpy-1.26.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    assert probed("versions", python=str(python))["packages"]["numpy"] == "1.26.0"


def test_an_interpreter_that_cannot_be_read_from_outside_is_asked(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    answer = probed("versions", python=str(script))
    assert answer["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert answer["packages"]["pydantic"]


def test_missing_and_broken_interpreters_fail(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 7\n")
    broken.chmod(0o755)
    answers = {
        "n1": probed("versions", python=str(broken)),
        "n2": probed("versions", python="/nowhere/python"),
        "n3": probed("versions", python=sys.executable),
    }
    found = judged("versions", answers)
    assert [found["python", host].level for host in answers] == [FAIL, FAIL, PASS]
    assert found["python", "n1"].problem != found["python", "n2"].problem
    assert found["torch", "n1"].level == found["packages", "n2"].level == UNKNOWN


def test_the_controllers_interpreter_is_taken_where_it_is(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", {"torch": "9.9"})
    assert probed("versions", controller_python=str(python))["packages"]["torch"] == "9.9"
    assert probed("versions", controller_python="/nowhere")["interpreter"] == sys.executable


def test_nvcc_is_asked_only_where_torch_has_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "venv", {"torch": "2.8.0"})
    toolkit = tmp_path / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "nvcc").write_text(
        "#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.85'\n"
    )
    (toolkit / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    answer = probed("versions", python=str(python))
    assert (answer["tools"]["nvcc"], answer["tools"]["nvcc_version"]) == (
        f"{toolkit}{os.sep}bin/nvcc",
        "12.6",
    )
    (toolkit / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}')
    assert probed("versions", python=str(python))["tools"]["nvcc_version"] == "12.4.1"
