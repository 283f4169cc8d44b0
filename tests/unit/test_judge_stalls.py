"""Jobs in which a few steps took very long: their pace is not sure, and convicts nobody."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from muster.judging.document import Judged
from muster.judging.logs import judge
from muster.judging.verdict import below
from muster.readers.base import LogWindow, measure

HOSTS = [f"lxn{number:02d}" for number in range(1, 13)]
STALLED = "lxn06"


def nano_gpt(host: str, pace: float, stalls: tuple[float, ...], seed: int) -> str:
    """A log of nanoGPT's of 400 steps, as its print statement writes them (train.py, karpathy/nanoGPT)."""
    draw = random.Random(seed)
    lines = [f"SLURM_JOB_NODELIST={host}", "Overriding: batch_size = 12"]
    at = dict(zip((150, 300), stalls, strict=False))
    for step in range(400):
        took = 1000 * (pace * draw.gauss(1, 0.01) + at.get(step, 0.0))
        lines.append(f"iter {step}: loss 4.{step % 1000:03d}0, time {took:.2f}ms, mfu 15.00%")
    return "\n".join(lines) + "\n"


def judged(folder: Path, slower: float, stalls: tuple[float, ...]) -> Judged:
    for number, host in enumerate(HOSTS):
        own = 0.25 * (1 + slower * (host == "lxn07"))
        text = nano_gpt(host, own, stalls if host == STALLED else (), number)
        (folder / f"{host}.log").write_text(text)
    return judge(folder, workload="gpt")


@pytest.mark.parametrize("slower", [0.0, 0.08, 0.5])
def test_two_stalls_do_not_make_a_host_slow(slower: float, tmp_path: Path) -> None:
    """Neither by themselves nor beside a host that is slow: 28 s of 128."""
    found = judged(tmp_path, slower, (21.0, 7.6))
    slow = {each.hosts[0] for each in found.hosts if each.condition == "slow"}
    assert slow == ({"lxn07"} if slower > 0.1 else set())
    assert any("2 of 390 windows" in note and "lxn06.log" in note for note in found.notes)
    assert not any("much longer" in note for note in judged(tmp_path, slower, ()).notes)


def test_steps_that_differ_alike_on_all_hosts_hide_no_slow_host(tmp_path: Path) -> None:
    """Batches of unlike lengths, in one order everywhere: a step takes 0.1 to 0.5 s, on one host 4 % more."""
    lengths = [random.Random(step).uniform(0.1, 0.5) for step in range(40)]
    for number, host in enumerate(HOSTS):
        for job in range(2):
            draw = random.Random(100 * job + number)
            slower = 1 + 0.04 * (host == "lxn07")
            took = [1000 * slower * length * draw.gauss(1, 0.005) for length in lengths]
            lines = [f"iter {step}: loss 4.0, time {ms:.2f}ms, mfu 15.00%" for step, ms in enumerate(took)]
            (tmp_path / f"{host}-{job}.log").write_text("\n".join([f"SLURM_JOB_NODELIST={host}", *lines]))
    found = judge(tmp_path, workload="gpt")
    assert {each.hosts[0] for each in found.hosts if each.condition == "slow"} == {"lxn07"}


def test_the_error_of_a_pace_by_hand() -> None:
    """Four windows of one sample each: 1, 1, 1 and 5 s. Their mean is 2; the sum of squares 1 + 1 + 1 + 9."""
    windows = [LogWindow(steps=1, skipped=0, samples=1.0, seconds=each) for each in (1.0, 1.0, 1.0, 5.0)]
    found = measure(windows)
    assert found is not None and found.error == pytest.approx((4 / 3 * 12) ** 0.5 / 8)
    assert found.stalls is None  # one of four is no exception
    few = measure([*windows[:1] * 60, windows[3]])
    assert few is not None and few.stalls is not None
    assert (few.stalls.windows, few.stalls.seconds) == (1, 5.0)


def test_a_probability_is_rounded_down() -> None:
    assert [below(chance) for chance in (0.9689, 0.97, 0.1, 0.999)] == ["0.96", "0.97", "0.10", "0.99"]
