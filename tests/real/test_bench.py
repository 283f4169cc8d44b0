"""`muster bench` with real jobs: one that fails, one that is too late, Ctrl-C, and going on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.benches.commands import CLOCK
from muster.benches.document import Bench
from muster.benches.folder import BenchFolder
from muster.store.queries import runs_table
from tests.support import needs_torch, wait_until
from tests.unit.benches import write_suite

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

SHORT = {
    "train": {"max_steps": 20},
    "measure": {"warmup": 4, "window": 4, "hardware_seconds": 1},
    "launch": {"threads": 1, "device": "cpu"},
    "evaluate": {"after": False},
    "checkpoint": {"model": False},
}
SUITE = {
    "warm_up": False,
    "groups": [2],
    "timeout": 200,
    "thresholds": [{"figure": "samples_per_second", "at_least": 1, "per": "slot"}],
    "jobs": [
        {"name": "well", "recipe": "digits", "set": SHORT},
        {"name": "broken", "recipe": "digits", "groups": [1], "cover": "first",
         "set": {**SHORT, "launch": {"threads": 1, "python": "/nowhere/python"}}},
        {"name": "late", "recipe": "digits", "groups": [1], "cover": "first", "timeout": 3,
         "set": {**SHORT, "train": {"max_steps": 1_000_000}}},
    ],
}  # fmt: skip


def begun(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "muster", "bench", *argv, "--json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def processes_of(mark: str) -> list[str]:
    """Living processes of the bench's jobs: agents, ranks, and `muster train`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if state not in "ZX" and f"-{mark}".encode() in known:
            found.append(entry.name)
    return found


def test_a_bench_is_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    needs_torch()
    suite, folder = write_suite(tmp_path, SUITE), BenchFolder(tmp_path / "bench-of-test")
    argv = [str(suite), "--hosts", "local:3x1", "--jobs", "2", "--output", str(folder.path)]
    first = begun(*argv)
    short = ("late-1x-001", "broken-1x-001")
    try:
        # Ctrl-C while ranks of the first job train or are about to: it is stopped on all of its hosts.
        assert wait_until(folder.schedule.exists, 60)
        folder = folder.marked()
        running = folder.next_attempt("well-2x-001")
        assert wait_until(running.events.exists, 120)
        assert len(processes_of(folder.mark)) >= 3  # muster train, and two agents at least
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=90)
    finally:
        if first.poll() is None:
            first.kill()
    found = Bench.model_validate(json.loads(out))
    assert (first.returncode, found.complete) == (3, False), err
    assert "well-2x-001" not in {job.job for job in found.jobs}
    assert f"muster bench --continue {folder.path}" in err
    assert wait_until(lambda: not processes_of(folder.mark), 10), processes_of(folder.mark)

    second = begun("--continue", str(folder.path))
    out, err = second.communicate(timeout=240)
    found = Bench.model_validate(json.loads(out))
    assert (second.returncode, found.complete) == (1, True), err
    jobs = {job.job: job for job in found.jobs}
    well = [job for job in found.jobs if job.entry == "well"]
    assert [job.outcome for job in well] == ["succeeded"] * 3, [job.reason for job in well]
    assert [job.hosts for job in well] == [("local0", "local1"), ("local1", "local2"), ("local2", "local0")]
    assert all(job.figures["samples_per_second"] > 0 and not job.misses for job in well)
    assert well[0].run == f"runs/well-2x-001-{folder.mark}.again1"
    assert [jobs[name].outcome for name in short] == ["timeout", "failed"]
    assert "not over after 3 s" in (jobs["late-1x-001"].reason or "")
    assert "/nowhere/python" in (jobs["broken-1x-001"].reason or "")
    assert not processes_of(folder.mark)

    rows = folder.table.read_text().splitlines()
    assert len(rows) == 6 and any(row.startswith('"local1,local2",') for row in rows)
    states = {row["id"]: row["status"] for row in runs_table(folder.runs)}
    assert states[running.id] == "stopped" and states[f"{running.id}.again1"] == "succeeded"
    third = begun("--continue", str(folder.path))
    out, _ = third.communicate(timeout=60)
    assert Bench.model_validate(json.loads(out)).jobs == found.jobs  # nothing was run again


# Its steps, told as nanoGPT tells them.
PACED = """
for step in range(24):
    print(f"iter {step}: loss 1.0, time 100.00ms, mfu 1.00%")
"""


def test_a_command(tmp_path: Path) -> None:
    """The user's own job on each host, by what it prints and by the clock."""
    (tmp_path / "paced.py").write_text(PACED)
    words = [sys.executable, "paced.py"]
    told = {"name": "told", "command": words, "set": {"run": {"start": "rank", "workdir": str(tmp_path)}}}
    clock = {"name": "clock", "command": ["sleep", "2.5"], "set": {"run": {"start": "host"}}}
    blind = {**clock, "name": "blind", "set": {"run": {"start": "host", "speed": "output"}}, "groups": [2]}
    suite = write_suite(tmp_path, {"groups": [1], "jobs": [told, clock, blind]})
    bench = begun(str(suite), "--hosts", "local:2x1", "--output", str(tmp_path / "bench"))
    out, err = bench.communicate(timeout=240)
    found = Bench.model_validate(json.loads(out))
    assert (bench.returncode, found.complete) == (3, True), err  # two hosts: nobody can say who is slow
    jobs = {(job.entry, job.repeat): job for job in found.jobs}
    assert all(job.outcome == "succeeded" for job in found.jobs), [job.reason for job in found.jobs]
    assert len(found.jobs) == 5
    first = jobs["told", 1]
    assert (first.measure, first.steps) == ("steps/s as nanoGPT states them", 24)
    assert first.figures["step_seconds"] == pytest.approx(0.1)
    assert jobs["clock", 1].measure == CLOCK
    assert 2.5 <= jobs["clock", 1].figures["seconds"] < 60
    assert "states no speed" in jobs["blind", 1].not_measured[0]
    assert not jobs["clock", 1].not_measured or "other processes" in jobs["clock", 1].not_measured[0]
