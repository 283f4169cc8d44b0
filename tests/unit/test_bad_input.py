"""Bad input by the real command line: one line and a hint, exit code 2, nothing started, nothing lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def muster(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run `muster` in `folder`."""
    environ = {**os.environ, "NO_COLOR": "1", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "muster", *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=environ,
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a few things to go wrong with."""
    (tmp_path / "twice").write_text("node1 slots=2\nnode1 slots=2\n")
    (tmp_path / "one.csv").write_text("question,sql\nq,one\n")
    (tmp_path / "two.csv").write_text("question,sql\nq,one\nr,two\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious").write_text("do not touch")
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that something listens on."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


# By what this machine or its network says; what else is refused stands in tests/golden/documents/refused.txt.
CASES = {
    "an unreachable host": (
        ["train", "demo", "--hosts", "no-such-host.invalid:1"],
        "no-such-host.invalid: cannot be reached: ssh: Could not resolve hostname",
    ),
    "too little disk": (
        [
            "train",
            "demo",
            "--hosts",
            "local:1",
            "model.name=t5-small",
            "checkpoint.every=1",
            "checkpoint.keep=100000",
        ],
        "checkpoints and model need about",
    ),
    "too little text": (
        ["train", "causal-lm", "--hosts", "local:1", "data.path=one.csv", "data.field=sql"],
        "is too short: its text is at most 5 tokens, and one sequence has 256",
    ),
    "a model that is not there": (
        ["train", "text2sql-t5-small", "--hosts", "local:1", "data.path=two.csv", "env.HF_HUB_OFFLINE=1"],
        "t5-small is not in this machine's Hugging Face cache, and HF_HUB_OFFLINE is set",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_a_hint(name: str, here: Path) -> None:
    """Exit code 2; stderr ends in `error: ...` and `hint: ...`; nothing new in the folder."""
    argv, expected = CASES[name]
    before = sorted(path.relative_to(here) for path in here.rglob("*"))
    done = muster(here, *argv)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert expected in errors[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert lines[-1].startswith("hint: "), done.stderr
    after = sorted(
        path.relative_to(here) for path in here.rglob("*") if path.name != "runs" or any(path.iterdir())
    )
    assert after == before


def test_a_port_that_is_taken(here: Path, taken_port: int) -> None:
    """The agent finds out before anything starts."""
    done = muster(here, "train", "demo", "--hosts", "local:1", f"launch.port={taken_port}", "--json")
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["message"] == f"local: port {taken_port} cannot be used: Address already in use"
    assert (error["hint"].startswith("leave launch.port out"), error["id"]) == (True, "port_in_use")


def test_errors_as_json(here: Path) -> None:
    """With --json the same facts are one document on stdout."""
    done = muster(here, "train", "demo", "--hosts", "twice", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["where"] == "twice:2"
    assert "already in line 1" in error["message"]
    assert error["hint"]


def test_what_was_there_is_not_lost(here: Path) -> None:
    """A folder that is in the way stays as it is."""
    muster(here, "train", "demo", "--hosts", "local:1", "--output", "taken")
    assert (here / "taken" / "precious").read_text() == "do not touch"


@pytest.mark.parametrize("argv", [["schema", "recipe"], ["recipes"], ["--help"]])
def test_a_reader_that_leaves_is_no_error(here: Path, argv: list[str]) -> None:
    """As with `muster recipes | head -2`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "muster", *argv],
            cwd=here,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
