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
from tests.unit.judging import FAIL, NA, NOTE, PASS, UNKNOWN, WARN, judged, probed, transport

GIB = 1 << 30
LIMITS: dict[str, Any] = {
    "root": False,
    "open_files": [1024, 524288],
    "processes": [96343, 96343],
    "locked_memory": [8 << 20, 8 << 20],
    "map_count": 65530,
    "pids": None,
    "memory": None,
    "cores": 2,
    "affinity": 2,
    "quota": None,
    "infiniband": 0,
    "gpus": 0,
}


def limits(check: str, slots: int = 1, **changes: Any) -> Any:
    context = {
        key: changes.pop(key) for key in ("launcher", "recipe", "world_size", "one_machine") if key in changes
    }
    return judged("limits", {"n1": {**LIMITS, **changes}}, slots={"n1": slots}, **context)[check, "n1"]


def test_a_plain_container_is_fine() -> None:
    found = judged("limits", {"n1": LIMITS, "n2": LIMITS})
    assert {each.level for each in found.values()} == {PASS, NA}
    assert found["locked_memory", "n1"].level == NA


@pytest.mark.parametrize(("ranks", "level"), [(128, PASS), (129, FAIL), (257, FAIL)])
def test_open_files_are_512_and_4_per_rank(ranks: int, level: object) -> None:
    found = limits("open_files", world_size=ranks)
    assert found.level == level
    assert f"{ranks} ranks need {512 + 4 * ranks}" in found.evidence


def test_a_lowered_limit_names_both_figures_and_what_to_paste() -> None:
    found = limits("open_files", open_files=[64, 64])
    assert (found.level, found.evidence) == (FAIL, "64 (hard limit 64), and 1 ranks need 516")
    assert "limits.d" in found.remedy
    assert "LimitNOFILE" in limits("open_files", open_files=[64, 64], launcher="slurm").remedy


@pytest.mark.parametrize(
    ("check", "changes", "slots", "level"),
    [
        ("open_files", {"open_files": [-1, -1]}, 999, PASS),
        ("open_files", {"open_files": None}, 1, UNKNOWN),
        ("processes", {"processes": [500, 500]}, 1, FAIL),
        ("processes", {"processes": [-1, -1]}, 8, PASS),
        ("processes", {"processes": [500, 500], "root": True, "unbound": True}, 8, PASS),
        ("processes", {"processes": [500, 500], "root": True, "unbound": False}, 8, FAIL),
        ("cgroup_processes", {"pids": [100, 5]}, 1, FAIL),
        ("cgroup_processes", {"pids": [5000, 100]}, 8, PASS),
        ("locked_memory", {"infiniband": 2, "gpus": 1}, 1, FAIL),
        ("locked_memory", {"infiniband": 2}, 1, NA),
        ("locked_memory", {"infiniband": 2, "gpus": 1, "recipe": {"launch": {"device": "cpu"}}}, 1, NA),
        ("locked_memory", {"infiniband": 2, "gpus": 1, "may_lock": True}, 1, PASS),
        ("locked_memory", {"infiniband": 2, "gpus": 1, "locked_memory": [-1, -1]}, 1, PASS),
        ("locked_memory", {"infiniband": 2, "gpus": 1, "locked_memory": [64 * GIB, -1]}, 1, WARN),
        ("locked_memory", {"infiniband": 2, "recipe": {"env": {"NCCL_IB_DISABLE": "1"}}}, 1, NA),
        ("map_count", {"map_count": 30000}, 1, WARN),
        ("map_count", {"map_count": None}, 1, UNKNOWN),
        ("memory", {"memory": [GIB, 0]}, 2, FAIL),
        ("memory", {"memory": [8 * GIB, GIB]}, 8, PASS),
        ("cores", {"affinity": 1}, 2, WARN),
        ("cores", {"quota": 1.5}, 2, WARN),
        ("cores", {"quota": 1.5, "one_machine": True}, 2, PASS),
        ("cores", {"affinity": None, "cores": None}, 1, UNKNOWN),
    ],
)
def test_limits(check: str, changes: dict[str, Any], slots: int, level: object) -> None:
    assert limits(check, slots, **changes).level == level


@pytest.mark.parametrize(
    "names", [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]
)
def test_the_lowest_memory_limit_counts_whatever_is_used_beside_it(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice has less left, and the scope inside it a limit that the ranks reach first. Of processes, what
    is left counts."""
    slice_, old = "/sys/fs/cgroup/{}job.slice", names[0] == "memory.limit_in_bytes"
    files = {
        "/proc/self/cgroup": "4:memory:/job.slice/own\n3:pids:/job.slice/own" if old else "0::/job.slice/own"
    }
    memory, pids = (slice_.format(f"{name}/" if old else "") for name in ("memory", "pids"))
    for folder, limit, used in ((memory + "/own", 4, 1), (memory, 100, 99)):
        files[f"{folder}/{names[0]}"], files[f"{folder}/{names[1]}"] = str(limit * GIB), str(used * GIB)
    for folder, limit, used in ((pids + "/own", 400, 1), (pids, 1000, 990)):
        files[f"{folder}/pids.max"], files[f"{folder}/pids.current"] = str(limit), str(used)
    monkeypatch.setattr("tests.unit.judging.text", files.get)
    answer = probed("limits")
    assert (answer["memory"], answer["pids"]) == ([4 * GIB, GIB], [1000, 990])
    found = limits("memory", 8, memory=answer["memory"])
    assert (found.level, found.evidence) == (FAIL, "4.3 GB, and 8 ranks need 8.6 GB")


@pytest.mark.parametrize(
    ("offset", "error", "level"),
    [(0.1, 0.02, PASS), (-0.7, 0.3, PASS), (-0.7, 0.1, WARN), (8, 0.1, FAIL), (9, 6, WARN), (3600, 1, FAIL)],
)
def test_a_clock_counts_by_what_is_certain(offset: float, error: float, level: object) -> None:
    connection = {"n1": transport(clock_offset=offset, clock_error=error)}
    found = judged("machine", {"n1": {}}, transport=connection)["skew", "n1"]
    assert found.level == level
    assert ("ahead" if offset > 0 else "behind") in found.evidence


def test_an_unknown_clock_is_not_a_right_one() -> None:
    assert judged("machine", {"n1": {}}, transport={"n1": transport()})["skew", "n1"].level == UNKNOWN
    assert judged("machine", {"n1": {}})["skew", "n1"].level == UNKNOWN


def test_login_noise_is_quoted() -> None:
    said = {"n1": transport(noise=("Welcome to n1!", "quota: 3%")), "n2": transport()}
    found = judged("machine", {"n1": {}, "n2": {}}, transport=said)
    assert (found["noise", "n1"].level, found["noise", "n2"].level) == (WARN, PASS)
    assert "'Welcome to n1!'" in found["noise", "n1"].evidence
    assert (
        judged("machine", {"n1": {}}, transport=said, expects={"login.noise": {"allowed": 2}})[
            "noise", "n1"
        ].level
        == PASS
    )


def folder(**changes: Any) -> dict[str, Any]:
    healthy = {"path": "/data", "use": "data", "kind": "ext4", "free": 50 * GIB, "inodes": 10**6}
    return {**healthy, "writable": True, "read_only": False, **changes}


@pytest.mark.parametrize(
    ("check", "changes", "level"),
    [
        ("space", {}, PASS),
        ("space", {"free": 100 << 20}, FAIL),
        ("space", {"free": None}, UNKNOWN),
        ("inodes", {"inodes": 12}, FAIL),
        ("inodes", {"inodes": None}, NA),
        ("writable", {"writable": False, "read_only": True}, FAIL),
        ("writable", {"writable": False}, FAIL),
        ("writable", {"error": "Stale file handle"}, FAIL),
        ("kernel_cache", {"use": "kernels"}, PASS),
        ("kernel_cache", {"use": "kernels", "kind": "nfs4"}, WARN),
        ("kernel_cache", {"use": "kernels", "kind": None}, UNKNOWN),
    ],
)
def test_disk(check: str, changes: dict[str, Any], level: object) -> None:
    answers = {"n1": {"folders": [folder(**changes)]}, "n2": {"folders": [folder(use="kernels"), folder()]}}
    found = judged("disk", answers)
    assert found[check, "n1"].level == level
    assert found[check, "n2"].level == PASS


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
    small = folder(free=30 * GIB)
    found = judged("disk", {"n1": {"folders": [small]}}, recipe=recipe)["space", "n1"]
    assert found.level == FAIL and "/data" in found.evidence
    temporary = judged("disk", {"n1": {"folders": [{**small, "use": "temporary"}]}}, recipe=recipe)[
        "space", "n1"
    ]
    assert temporary.level == PASS
    assert checkpoint_bytes({"model": {"name": "someone/else"}}) is None


def test_kernel_caches_may_be_shared_where_the_recipe_moves_them_or_one_host_has_them() -> None:
    shared = {"folders": [folder(use="kernels", kind="nfs")]}
    env = {"TRITON_CACHE_DIR": "/tmp/a", "TORCH_EXTENSIONS_DIR": "/tmp/b"}
    moved = judged("disk", {"n1": shared, "n2": shared}, recipe={"env": env})
    assert moved["kernel_cache", "n1"].level == PASS
    assert judged("disk", {"n1": shared})["kernel_cache", "n1"].level == PASS


MEMORY: dict[str, Any] = {
    "MemTotal": 64 * GIB,
    "MemAvailable": 60 * GIB,
    "shm": [64 << 20, 64 << 20],
    "stale": 0,
    "gpus": 0,
    "oom_kills": 0,
    "huge_pages": "madvise",
}


@pytest.mark.parametrize(
    ("check", "changes", "context", "level"),
    [
        ("shm", {}, {}, PASS),  # Docker's 64 MiB are enough for ranks on CPUs
        ("shm", {}, {"slots": {"n1": 8}}, WARN),
        ("shm", {"gpus": 8}, {}, WARN),
        ("shm", {"gpus": 8, "shm": [8 * GIB, 8 * GIB]}, {}, PASS),
        ("shm", {"gpus": 8}, {"gpus_expected": False, "slots": {"n1": 1}}, PASS),
        ("shm", {}, {"recipe": {"train": {"workers": 2}}}, WARN),
        # Each rank has data loader processes of its own.
        ("shm", {"shm": [GIB, GIB]}, {"slots": {"n1": 4}, "recipe": {"train": {"workers": 1}}}, WARN),
        ("shm", {"shm": [GIB, GIB]}, {"slots": {"n1": 3}, "recipe": {"train": {"workers": 1}}}, PASS),
        ("shm", {"shm": None}, {}, UNKNOWN),
        ("available", {"MemAvailable": 2 * GIB}, {}, WARN),
        ("total", {"MemTotal": None}, {}, UNKNOWN),
        ("total", {}, {"expects": {"memory.total": {"at_least": 100 * GIB}}}, FAIL),
        ("oom_kills", {"oom_kills": 5000}, {}, NOTE),
        ("oom_kills", {"oom_kills": None}, {}, UNKNOWN),
        ("huge_pages", {"huge_pages": None}, {}, NA),
    ],
)
def test_memory(check: str, changes: dict[str, Any], context: dict[str, Any], level: object) -> None:
    assert judged("machine", {"n1": {**MEMORY, **changes}}, **context)[check, "n1"].level == level


def test_stale_nccl_files_are_the_reason_that_is_given() -> None:
    full = {**MEMORY, "gpus": 4, "shm": [0, 8 * GIB], "stale": 12}
    assert "nccl-*" in (judged("machine", {"n1": full})["shm", "n1"].remedy or "")


MACHINE = {**MEMORY, "os": "debian 12", "kernel": "6.1.0", "cpu": "64 x EPYC", "numa": 2, "smt": "1"}


@pytest.mark.parametrize(
    ("check", "key", "value", "shown", "level"),
    [
        ("os", "os", "ubuntu 24.04", "ubuntu 24.04", WARN),
        ("kernel", "kernel", "5.15", "5.15", WARN),
        ("cpu", "cpu", "8 x Xeon", "8 x Xeon", WARN),
        ("numa", "numa", 8, "8", WARN),
        ("hyperthreading", "smt", "0", "off", WARN),
        ("total", "MemTotal", 32 * GIB, "34.4 GB", WARN),
        ("huge_pages", "huge_pages", "never", "never", NOTE),
    ],
)
def test_a_host_of_another_kind_is_named(
    check: str, key: str, value: object, shown: str, level: object
) -> None:
    found = judged("machine", {"n1": MACHINE, "n2": {**MACHINE, key: value}, "n3": MACHINE})
    assert [found[check, host].level for host in ("n1", "n2", "n3")] == [PASS, level, PASS]
    assert found[check, "n2"].evidence.startswith(f"{shown} here (")
    assert "n[1,3] (most)" in found[check, "n2"].evidence


def test_a_few_bytes_of_memory_are_no_difference() -> None:
    found = judged("machine", {"n1": MEMORY, "n2": {**MEMORY, "MemTotal": 64 * GIB - (300 << 20)}})
    assert (found["total", "n1"].level, found["total", "n2"].level) == (PASS, PASS)


def test_what_a_kernel_does_not_tell_is_no_difference() -> None:
    found = judged("machine", {"n1": MACHINE, "n2": {**MACHINE, "smt": None}})
    assert (found["hyperthreading", "n1"].level, found["hyperthreading", "n2"].level) == (PASS, NA)
    assert found["hyperthreading", "n1"].evidence == "on"


def test_uptime_is_asked_by_profiles_alone() -> None:
    fresh = {"n1": {"uptime": 30.0}}
    assert judged("machine", fresh)["since_boot", "n1"].level == PASS
    wanted = {"uptime.since_boot": {"at_least": 600}}
    assert judged("machine", fresh, expects=wanted)["since_boot", "n1"].level == NOTE
    old = {"uptime.since_boot": {"at_most": 10}}
    assert judged("machine", fresh, expects=old)["since_boot", "n1"].level == NOTE
    assert judged("machine", {"n1": {"uptime": None}})["since_boot", "n1"].level == UNKNOWN


@pytest.mark.parametrize(
    ("counts", "level"),
    [
        ({}, NA),
        ({"performance": 64}, PASS),
        ({"performance": 63, "powersave": 1}, WARN),
        ({"unknown": 4}, UNKNOWN),
    ],
)
def test_governor(counts: dict[str, int], level: object) -> None:
    assert judged("machine", {"n1": {"governors": counts}})["policy", "n1"].level == level


def test_leftovers_are_named_by_pid() -> None:
    one = {"pid": 77, "job": True, "args": "python -m muster.worker"}
    answers = {
        "n1": {"processes": [one, {**one, "pid": 8}], "port": 29500, "taken": True, "proc": True},
        "n2": {"processes": [], "port": 29500, "taken": False, "proc": True},
        "n3": {"processes": [], "port": 29500, "taken": False, "proc": False},
    }
    found = judged("leftovers", answers)
    assert [found["processes", host].level for host in answers] == [WARN, PASS, UNKNOWN]
    assert "pid 8, 77" in found["processes", "n1"].evidence
    assert [found["port", host].level for host in answers] == [WARN, PASS, PASS]
    given = judged("leftovers", answers, recipe={"launch": {"port": 29500}})
    assert (given["port", "n1"].level, given["port", "n2"].level) == (FAIL, PASS)


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
