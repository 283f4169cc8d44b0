"""Versions of the ranks' interpreter: read from real folders, and compared between hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.judging import FAIL, NA, PASS, UNKNOWN, WARN, judged, probed

TORCH = """__version__ = '2.8.0+cu128'
from typing import Optional
cuda: Optional[str] = '12.8'
hip: Optional[str] = None
"""
DEEPSPEED = {"engine": {"name": "deepspeed", "offload": "optimizer"}}


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


HOST: dict[str, Any] = {
    "interpreter": "/v/bin/python",
    "python": "3.11.9",
    "packages": {
        "torch": "2.8.0",
        "transformers": "5.1",
        "accelerate": "1.10",
        "deepspeed": "0.18",
        "numpy": "2.0",
    },
    "cuda": "12.8",
    "nccl": "2.27.3",
    "driver": "570.86.15",
    "tools": {
        "c++": "/usr/bin/c++",
        "ninja": "/usr/bin/ninja",
        "nvcc": "/c/bin/nvcc",
        "nvcc_version": "12.4",
    },
}


def other(**packages: str | None) -> dict[str, Any]:
    return {**HOST, "packages": {k: v for k, v in {**HOST["packages"], **packages}.items() if v}}


def three(odd: dict[str, Any], **context: Any) -> Any:
    return judged("versions", {"n1": HOST, "n2": HOST, "n3": odd}, **context)


def test_equal_hosts_have_nothing_to_say() -> None:
    assert {each.level for each in three(HOST).values()} <= {PASS, NA}
    assert {each.level for each in three(HOST, recipe=DEEPSPEED).values()} == {PASS}


@pytest.mark.parametrize(
    ("check", "odd", "level"),
    [
        ("torch", other(torch="2.7.0"), FAIL),
        ("torch", other(torch=None), FAIL),
        ("deepspeed", other(deepspeed="0.17"), FAIL),
        ("transformers", other(transformers="4.0"), FAIL),
        ("packages", other(numpy="1.26"), WARN),
        ("packages", other(numpy=None), WARN),
        ("python", {**HOST, "python": "3.12.1"}, FAIL),
        ("python", {**HOST, "python": "3.11.2"}, PASS),
        ("cuda", {**HOST, "cuda": "none"}, FAIL),
        ("nccl", {**HOST, "nccl": "2.26"}, FAIL),
        ("driver", {**HOST, "driver": "560.35.03"}, WARN),
        ("driver", {**HOST, "driver": "470.103.01"}, FAIL),
        ("driver", {**HOST, "driver": None}, NA),
    ],
)
def test_the_odd_host_is_the_one(check: str, odd: dict[str, Any], level: object) -> None:
    found = three(odd)
    assert [found[check, host].level for host in ("n1", "n2", "n3")] == [PASS, PASS, level]


def test_a_package_that_the_recipe_does_without_may_be_missing() -> None:
    found = three(other(deepspeed=None), recipe={"engine": {"name": "ddp"}})
    assert [found["deepspeed", host].level for host in ("n1", "n2", "n3")] == [PASS, PASS, WARN]
    assert found["deepspeed", "n3"].evidence == "n[1-2] have it"
    assert three(other(deepspeed=None), recipe=DEEPSPEED)["deepspeed", "n3"].level == FAIL


def test_versions_are_not_numbers() -> None:
    found = three(other(transformers="5.10"))["transformers", "n3"]
    assert found.level == FAIL
    assert found.evidence == "5.10 here (5.1 on n[1-2] (most); 5.10 on n3)"


def test_two_hosts_that_differ_are_both_named() -> None:
    found = judged("versions", {"n1": HOST, "n2": other(torch="2.7", numpy="1.0")})
    assert {found["torch", host].level for host in ("n1", "n2")} == {FAIL}
    assert "no value has a majority" in found["torch", "n1"].problem
    assert {found["packages", host].level for host in ("n1", "n2")} == {WARN}


def test_bare_hosts_lack_nothing_until_a_recipe_needs_it() -> None:
    bare = {**HOST, "packages": {}, "cuda": None, "nccl": None, "driver": None, "tools": {}}
    found = judged("versions", {"n1": bare, "n2": bare})
    assert {each.level for each in found.values()} <= {PASS, NA}
    needed = judged("versions", {"n1": bare}, recipe={"engine": {"name": "ddp"}})
    assert (needed["torch", "n1"].level, needed["deepspeed", "n1"].level) == (WARN, NA)
    assert "muster prepare" in (needed["torch", "n1"].remedy or "")
    assert judged("versions", {"n1": bare}, recipe=DEEPSPEED)["compiler", "n1"].level == WARN


@pytest.mark.parametrize(
    ("tools", "level"),
    [
        ({"nvcc": None}, WARN),
        ({"nvcc_version": "11.8"}, FAIL),
        ({"nvcc_version": "12.9"}, PASS),
        ({"nvcc_version": "13.1", "cuda": "13.0"}, FAIL),  # DeepSpeed lists no minor versions of 13
        ({"nvcc_version": "13.0", "cuda": "13.0"}, PASS),
        ({"nvcc_version": None}, UNKNOWN),
    ],
)
def test_nvcc_must_be_a_version_that_deepspeed_takes(tools: dict[str, Any], level: object) -> None:
    cuda = tools.get("cuda", HOST["cuda"])
    answers = {"n1": {**HOST, "cuda": cuda, "tools": {**HOST["tools"], **tools}}}
    assert judged("versions", answers, recipe=DEEPSPEED)["nvcc", "n1"].level == level
    assert judged("versions", answers)["nvcc", "n1"].level == NA


@pytest.mark.parametrize(
    ("driver", "cuda", "level"),
    [
        ("525.60.13", "12.1", PASS),
        ("525.60.11", "12.1", FAIL),
        ("98.0", "12.1", FAIL),  # as text, 98 is above 525
        ("580.65.06", "13.0", PASS),
        ("570.1", "13.0", FAIL),
        ("450.80.02", "11.8", PASS),
    ],
)
def test_driver_against_cuda(driver: str, cuda: str, level: object) -> None:
    found = judged("versions", {"n1": {**HOST, "driver": driver, "cuda": cuda}})
    assert found["driver", "n1"].level == level


def test_too_old_a_python_fails() -> None:
    assert judged("versions", {"n1": {**HOST, "python": "3.7.16"}})["python", "n1"].level == FAIL


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
