"""A file is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from muster.store.atomic import write_json, write_text


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_text(path, "erst\n")
    write_text(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_the_file_is_as_open_as_any_other(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write_text(tmp_path / "atomic", "x")
    assert (tmp_path / "atomic").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_in_the_middle_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_kill_9_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import os, signal, sys; from pathlib import Path; from muster.store import atomic\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic.write_text(Path(sys.argv[1]), 'new')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


@pytest.mark.parametrize("data", [float("nan"), float("inf"), {1, 2}])
def test_what_is_not_json_is_refused_and_the_old_file_stays(tmp_path: Path, data: object) -> None:
    path = tmp_path / "a.json"
    write_json(path, [1])
    with pytest.raises((ValueError, TypeError)):
        write_json(path, {"x": data})
    assert json.loads(path.read_text()) == [1]


def test_a_file_on_another_disk_is_replaced_as_well() -> None:
    """What is written beside the file can take its place; what is written in /tmp could not."""
    shared, here = Path("/dev/shm"), Path(tempfile.gettempdir())
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == here.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        path = Path(folder) / "file"
        write_text(path, "one")
        write_text(path, "two")
        assert (path.read_text(), [each.name for each in path.parent.iterdir()]) == ("two", ["file"])
