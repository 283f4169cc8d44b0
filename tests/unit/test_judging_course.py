"""A host that slows down within its jobs: their halves tell, where their mean and its error hide it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from simulate import Planted, SimulatedFleet, hunt

from muster.core.errors import UsageError
from muster.core.robust import halves_of
from muster.judging import Baseline, Class, Observation, Topology, judge, judge_state
from muster.judging.baseline import FEWEST
from muster.judging.course import slow_halves
from muster.judging.document import Judged
from muster.judging.logs import judge as judge_logs

HOSTS = tuple(f"n{i:02d}" for i in range(16))
PLACE = Topology(HOSTS)


def jobs(again: int, late: float, growing: float = 0.0, seed: int = 1) -> list[Observation]:
    """So many of each host; on n05 the second half takes longer by `late`, on all by `growing`."""
    draw, made = random.Random(seed), list[Observation]()
    for job in range(again):
        for host in HOSTS:
            first = draw.gauss(1, 0.004)
            second = first * draw.gauss(1, 0.002) * (1 + growing) * (1 + late * (host == "n05"))
            mean = (first + second) / 2
            spread = abs(second - first) / (2 * mean) / 5**0.5  # of six windows
            halves = (first, second)
            made.append(Observation(f"{host}-{job}", (host,), mean, spread=spread, halves=halves))
    return made


@pytest.mark.parametrize("late", [0.05, 0.1, 0.3, 1.3, 9.0])
def test_a_host_that_slows_in_the_middle_of_its_jobs_is_named_by_how_much(late: float) -> None:
    (verdict,) = judge(jobs(3, late), PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower == pytest.approx(late, rel=0.1)


@pytest.mark.parametrize("late", [0.1, 0.3, 1.3])
def test_half_of_its_only_job_is_a_suspicion(late: float) -> None:
    found = judge(jobs(1, late), PLACE)
    assert not found.accused and not found.one_of  # which would accuse it by another name
    assert found.hosts[5].condition == "unknown" and found.hosts[5].confidence > 0.5
    assert {each.condition for each in found.hosts if each.subject != ("n05",)} == {"fit"}


def test_what_all_jobs_have_in_common_is_no_course_of_one() -> None:
    assert not judge(jobs(3, 0.0, growing=0.4), PLACE).accused
    (verdict,) = judge(jobs(3, 0.1, growing=0.4), PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower == pytest.approx(0.1, rel=0.1)


def test_few_jobs_tell_no_course_of_one() -> None:
    kind = Class("", 1)
    for count, indexes in ((FEWEST - 1, set()), (FEWEST, {0})):
        some = [replace(each, halves=(1.0, 1.0), seconds=1.0) for each in jobs(1, 0.0)[:count]]
        some[0] = replace(some[0], halves=(0.8, 1.2))
        assert set(slow_halves(some, {kind: Baseline(1.0, 0.01, count)})) == indexes


@pytest.mark.parametrize("by", [0.1, 0.3, 1.3])
def test_it_is_named_among_jobs_that_are_asked_for(by: float) -> None:
    for seed in range(4):
        bad = Planted("compute", (HOSTS[seed],), by, late=True)
        fleet = SimulatedFleet(PLACE, (bad,), seed=seed, timed=True, course=0.002)
        assert {each.subject for each in judge_state(hunt(fleet, 6).state).accused} == {bad.where}


def logs(folder: Path, late: float, again: int) -> Judged:
    """nanoGPT's, 400 steps each."""
    for number, host in enumerate(HOSTS):
        for job in range(again):
            draw = random.Random(100 * number + job)
            lines = [f"SLURM_JOB_NODELIST={host}"]
            for step in range(400):
                slower = 1 + late * (host == "n05" and step >= 200)
                took = 250 * slower * draw.gauss(1, 0.01)
                lines.append(f"iter {step}: loss 4.{step:03d}0, time {took:.2f}ms, mfu 15.00%")
            (folder / f"{host}-{job}.log").write_text("\n".join(lines))
    return judge_logs(folder, workload="gpt")


def test_from_logs(tmp_path: Path) -> None:
    found = logs(tmp_path, 0.1, 2)
    (slow,) = [each for each in found.hosts if each.condition == "slow"]
    assert slow.hosts == ["n05"] and slow.slower == pytest.approx(0.1, abs=0.01)


def test_the_halves_by_hand() -> None:
    assert halves_of([1.0, 9.0, 1.2, 5.0, 2.0, 2.2, 2.1]) == (1.2, 2.1)
    assert halves_of([1.0] * 5) is None
    with pytest.raises(UsageError):
        Observation("a", ("n00",), 1.0, halves=(1.0, 0.0))
