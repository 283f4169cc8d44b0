"""dev/install.py: ways are tried until one works."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.pages import ROOT

CPU = "https://download.pytorch.org/whl/cpu"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, for a checkout in `tmp_path` that has a virtual environment of no package, and whose pip
    has one more index."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///more")
    spec = importlib.util.spec_from_file_location("dev_install", ROOT / "dev/install.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "constraints.txt").write_text("numpy==2.4.0\ntorch==2.13.0\ntrl==1.16.0\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / "venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / "venv/bin/python")
    return module


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("works", "gpu", "last"),
    [
        ("uv:torch==2.13.0+cpu", False, "uv:torch==2.13.0+cpu"),
        ("uv:.*whl/cpu", False, f"uv:torch==2.13.0+cpu --index file:///more --index {CPU}"),
        ("uv:torch==2.13.0$", False, "uv:torch==2.13.0"),
        ("pip:torch==2.13.0$", False, "pip:torch==2.13.0"),
        ("uv:.*torch-backend", True, "uv:torch==2.13.0 --torch-backend=auto"),
        ("pip:torch==2.13.0$", True, "pip:torch==2.13.0"),
        ("nothing", False, None),
    ],
)
def test_ways_are_tried_until_one_works(
    works: str,
    gpu: bool,
    last: str | None,
    install: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`works`: an expression for the only command that succeeds."""
    record = f'echo "$words" >> {tmp_path}/calls; echo "$words" | grep -q -- "{works}"'
    shown = "s/.*--editable .\\[train,dev\\] //"
    program(tmp_path / "bin/uv", f'words="uv:$(echo "$*" | sed "{shown}")"; {record}')
    python = f'case "$*" in *config*) exit 0;; esac; words="pip:$(echo "$*" | sed "{shown}")"; {record}'
    program(tmp_path / "venv/bin/python", python)
    program(tmp_path / "bin/nvidia-smi", f"exit {0 if gpu else 9}")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert install.main(["train", "dev"]) == (0 if last else 1)
    calls = (tmp_path / "calls").read_text().splitlines()
    if last:
        assert calls[-1] == last
    else:
        assert [call[:3] for call in calls] == ["uv:"] * 3 + ["pip"] * 3


def test_without_uv_pip_installs(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv cannot be had: pip is asked for it, and then for all."""
    record = f'echo "$*" >> {tmp_path}/calls; case "$*" in *" uv") exit 1;; esac'
    program(tmp_path / "venv/bin/python", record)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert install.main(["train"]) == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "-m pip install --quiet --constraint constraints.txt uv"
    assert calls[1].startswith(
        "-m pip install --quiet --constraint constraints.txt --editable .[train] torch=="
    )


def test_an_old_python_is_refused(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert install.main(["train"]) == 1
    assert "3.10" in capsys.readouterr().err
