"""Versions of the ranks' interpreter: read from real folders, and compared between hosts."""

from __future__ import annotations

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


def test_an_environment_is_read_without_starting_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own packages or those that are asked for, and the first folder on the path counts."""
    installed = {"torch": "2.8.0", "deepspeed": "0.18.1", "nvidia_nccl_cu12": "2.27.3", "Leftpad": "1.0"}
    python = environment(tmp_path / "venv", installed)
    python.unlink()
    script(python, "touch started; exit 1")
    answer = probed("versions", python=str(python))
    assert (answer["python"], answer["cuda"], answer["nccl"]) == ("3.11.9", "12.8", "2.27.3")
    assert answer["packages"] == {"torch": "2.8.0", "deepspeed": "0.18.1"}
    asked = probed("versions", python=str(python), packages=["leftpad"])
    assert asked["packages"] == {"leftpad": "1.0"}
    assert probed("versions", controller_python=str(python))["packages"]["torch"] == "2.8.0"
    assert probed("versions", controller_python="/nowhere")["interpreter"] == sys.executable
    (tmp_path / "mine" / "torch-1.26.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    assert probed("versions", python=str(python))["packages"]["torch"] == "1.26.0"
    assert not Path("started").exists()


def script(path: Path, text: str) -> str:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_cannot_be_read_from_outside_is_asked(tmp_path: Path) -> None:
    answer = probed("versions", python=script(tmp_path / "python", f'exec {sys.executable} "$@"'))
    assert answer["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert answer["packages"]["pydantic"]


def test_missing_and_broken_interpreters_fail(tmp_path: Path) -> None:
    pythons = {"n1": script(tmp_path / "python", "exit 7"), "n2": "/nowhere/python", "n3": sys.executable}
    answers = {host: probed("versions", python=python) for host, python in pythons.items()}
    found = judged("versions", answers)
    assert [found["python", host].level for host in answers] == [FAIL, FAIL, PASS]
    assert found["python", "n1"].problem != found["python", "n2"].problem
    assert found["torch", "n1"].level == found["packages", "n2"].level == UNKNOWN


def test_nvcc_is_asked_only_where_torch_has_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, toolkit = str(environment(tmp_path / "venv", {"torch": "2.8.0"})), tmp_path / "cuda"
    nvcc = script(toolkit / "bin" / "nvcc", "echo 'Cuda compilation tools, release 12.6, V12.6.85'")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    tools = probed("versions", python=python)["tools"]
    assert (tools["nvcc"], tools["nvcc_version"]) == (nvcc, "12.6")
    (toolkit / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}')
    assert probed("versions", python=python)["tools"]["nvcc_version"] == "12.4.1"
