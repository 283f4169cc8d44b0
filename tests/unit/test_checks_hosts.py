"""Judging what single hosts say of themselves: limits, clock, login, disk, memory, system, and the like."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.checks.families.disk import checkpoint_bytes
from muster.core.recipes import load_recipe
from tests.support import wait_until
from tests.unit.judging import FAIL, PASS, judged, probed

GIB = 1 << 30
LIMITS: dict[str, Any] = {
    "root": False, "open_files": [1024, 524288], "processes": [96343, 96343],
    "locked_memory": [8 << 20, 8 << 20], "map_count": 65530, "pids": None, "memory": None, "cores": 2,
    "affinity": 2, "quota": None, "infiniband": 0, "gpus": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "names", [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]
)
def test_the_lowest_memory_limit_counts_whatever_is_used_beside_it(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice has less left, and the scope inside it a limit that the ranks reach first. Of processes, what
    is left counts."""
    old = names[0] == "memory.limit_in_bytes"
    controllers = "4:memory:/job.slice/own\n3:pids:/job.slice/own" if old else "0::/job.slice/own"
    files = {"/proc/self/cgroup": controllers}
    memory, pids = (f"/sys/fs/cgroup/{f'{name}/' if old else ''}job.slice" for name in ("memory", "pids"))
    for folder, limit, used in ((memory + "/own", 4, 1), (memory, 100, 99)):
        files[f"{folder}/{names[0]}"], files[f"{folder}/{names[1]}"] = str(limit * GIB), str(used * GIB)
    for folder, limit, used in ((pids + "/own", 400, 1), (pids, 1000, 990)):
        files[f"{folder}/pids.max"], files[f"{folder}/pids.current"] = str(limit), str(used)
    monkeypatch.setattr("tests.unit.judging.text", files.get)
    answer = probed("limits")
    assert (answer["memory"], answer["pids"]) == ([4 * GIB, GIB], [1000, 990])
    found = judged("limits", {"n1": {**LIMITS, "memory": answer["memory"]}}, slots={"n1": 8})["memory", "n1"]
    assert (found.level, found.evidence) == (FAIL, "4.3 GB, and 8 ranks need 8.6 GB")


def test_the_folders_that_the_job_is_told_of_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    folders = {"work": str(tmp_path), "TMPDIR": "/tmp", "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    found = {(each["path"], each["use"]) for each in probed("disk", folders=folders)["folders"]}
    assert found >= {
        (str(tmp_path), "data"),
        ("/tmp", "temporary"),
        (str(tmp_path / "triton"), "kernels"),
    }
    assert ("/var/tmp", "temporary") not in found


def test_free_bytes_are_counted_in_the_units_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free blocks of 4 KiB, on a file system that likes to be read by the MiB; root's do not count."""
    about = SimpleNamespace(
        f_bsize=1 << 20, f_frsize=4096, f_bavail=1000, f_bfree=5000, f_files=50, f_favail=20, f_flag=0
    )
    monkeypatch.setattr(os, "statvfs", lambda path: about)
    (found, *_) = probed("disk", folders={"work": str(tmp_path)})["folders"]
    assert (found["path"], found["free"], found["inodes"]) == (str(tmp_path), 4_096_000, 20)


def test_the_disk_must_take_the_recipes_checkpoints_but_tmp_need_not() -> None:
    recipe = load_recipe("text2sql-t5-large", ["checkpoint.every=100", "checkpoint.keep=2"]).as_dict()
    need = checkpoint_bytes(recipe)
    assert need is not None and 35 * GIB < need < 40 * GIB  # 738 M parameters x (4 + 3 x 16) bytes
    assert checkpoint_bytes({"model": {"name": "someone/else"}}) is None
    small = {"path": "/data", "kind": "ext4", "free": 30 * GIB, "inodes": 10**6, "writable": True}
    for use, level in (("data", FAIL), ("temporary", PASS)):
        answer = {"folders": [{**small, "read_only": False, "use": use}]}
        found = judged("disk", {"n1": answer}, recipe=recipe)["space", "n1"]
        assert found.level == level and ("/data" in found.evidence or level == PASS)


def test_a_job_that_really_runs_and_a_port_that_is_really_held_are_found() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(1000)", "-m", "muster.worker"]
    job = subprocess.Popen(command, env={**os.environ, "MUSTER_TOKEN": "0" * 32})
    try:
        wait_until(lambda: b"muster.worker" in Path(f"/proc/{job.pid}/cmdline").read_bytes(), 10)
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            held.listen()
            port = held.getsockname()[1]
            answer = probed("leftovers", port=port)
            assert [one for one in answer["processes"] if one["pid"] == job.pid and one["job"]]
            assert answer["port"] == port and answer["taken"]
        assert not probed("leftovers", port=port)["taken"]
    finally:
        job.kill()
        job.wait()
    assert job.pid not in [one["pid"] for one in probed("leftovers")["processes"]]
