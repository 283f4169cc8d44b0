"""What an agent says of its host: what its own processes used, and what others did."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent import sampler
from muster.agent.gpu import SLOWED, Nvml
from muster.agent.proc import tree
from muster.agent.sampler import Sampler, cpu_times
from muster.core.batch import Batch
from muster.core.job import Job, Placement
from muster.results.fold import host_reports
from muster.store import events
from tests.support import wait_until

# Uses a second of a core, says so, and waits.
BURN = "import time\nwhile time.process_time() < 1.0: pass\nprint(flush=True)\ntime.sleep(60)"


JOB = Job("j", "ssh", (Placement("a", "a", 1, 0),), Batch(1, 1, 1), "fp32", "cpu", {})


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_what_a_host_s_own_processes_used_is_told_apart(burner: subprocess.Popen[str]) -> None:
    before, all_before = tree()[1], cpu_times()
    assert burner.stdout is not None and burner.stdout.readline()
    pids, after = tree()
    assert {os.getpid(), burner.pid} <= pids and os.getppid() not in pids
    assert after - before > 0.5
    all_after = cpu_times()
    assert all_before and all_after and all_after[2] - all_before[2] > 0.5
    burner.kill()
    burner.wait()
    ended, total = tree()
    assert burner.pid not in ended and total >= after - 0.05  # what a child used stays its parent's


def test_what_processes_used_is_what_is_left_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that looks at each tick counted 0.9 of a core; the processor was idle for half of the time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    clock = iter([50.0, 60.0])
    monkeypatch.setattr(sampler, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    stat = tmp_path / "stat"
    zero, none = "0 0 0 0 0 0 0 0 0 0", "900 0 0 100 0 0 0 0 0 0"
    stat.write_text(f"cpu  {none}\ncpu0 {zero}\ncpu1 {zero}\ncpu3 {zero}\nintr 5 0\n")
    before = cpu_times(str(stat))
    own = "800 50 50 450 50 20 30 100 0 0"  # user nice system idle iowait irq softirq steal
    stat.write_text(f"cpu  {none}\ncpu0 {own}\ncpu1 {none}\ncpu3 {zero[:-2]}\nintr 5 0\n")
    after = cpu_times(str(stat))
    assert before and after
    idle, clocks, busy, stolen = map(float.__sub__, after, before)
    assert (idle, clocks, stolen) == pytest.approx((5.0, 20.0, 1.0))
    assert busy == pytest.approx(20.0 - 5.0 - 0.5 - 1.0)
    assert cpu_times(str(tmp_path / "none")) is None


def test_samples_are_events_and_become_a_report() -> None:
    sampler = Sampler(0.2)
    sampler.start()
    assert wait_until(lambda: len(sampler.samples) > 2, 20)
    told = [events.Hardware.model_validate({**sample, "host": "a"}) for sample in list(sampler.samples)]
    assert all(each.cpu_busy is not None and each.cpu_own is not None for each in told)
    (report,) = host_reports(JOB, {"a": {"cores": 2}}, {"a": told}, None)
    assert report.cpu_use[0][1:] == (0.0, 0.0) and report.stolen is not None
    assert [each[0] for each in report.cpu_use] == [each.time for each in told]
    assert (report.slowed, report.strangers) == (None, None)


def test_a_long_run_keeps_a_few_points() -> None:
    told = [
        events.Hardware(time=float(n), host="a", cpu_busy=2.0, cpu_own=1.5, cpu_stolen=0.2, gpus=[gpu])
        for n, gpu in enumerate([{"slowed": 0, "strangers": 0}, {"slowed": 0x40, "strangers": 2}] * 50)
    ]
    (report,) = host_reports(JOB, {"a": {"cores": 2}}, {"a": told}, None)
    assert len(report.cpu_use) <= 21 and report.cpu_use[-1] == pytest.approx((99.0, 198.0, 148.5))
    assert report.stolen == pytest.approx(0.1) and (report.slowed, report.strangers) == (0.5, 2)


def test_a_driver_that_is_not_there_says_nothing() -> None:
    assert SLOWED == 0xE8
    nvml = Nvml()
    if nvml.lib is None:
        assert nvml.sample(nvml.handles(), {os.getpid()}) == []
    else:
        assert all(each["slowed"] is not None for each in nvml.sample(nvml.handles(), {os.getpid()}))


@pytest.mark.parametrize(("on_gpu", "strangers"), [({1, 2}, 0), ({1, 9}, 1), ({8, 9}, None), (set(), None)])
def test_strangers_on_a_gpu(on_gpu: set[int], strangers: int | None) -> None:
    """Where the driver knows our own processes by their numbers, others are strangers."""

    def listed(handle: Any, count: Any, found: Any) -> int:
        count._obj.value = len(on_gpu)
        for place, pid in enumerate(sorted(on_gpu)):
            found[place].pid = pid
        return 0

    nvml = Nvml()
    nvml.lib = SimpleNamespace(nvmlDeviceGetComputeRunningProcesses_v3=listed)
    assert nvml.strangers(None, {1, 2, 3}) == strangers
    nvml.lib = SimpleNamespace()
    assert nvml.strangers(None, {1, 2, 3}) is None
