"""Paces that change: within jobs, for a while, by stalls, or of the whole fleet."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulate import Planted, SimulatedFleet

from muster.core.robust import halves_of
from muster.judging import Baseline, JobClass, Observation, Topology, judge, judge_posterior, localise
from muster.judging.baseline import FEWEST
from muster.judging.course import slow_halves
from muster.judging.document import Judged
from muster.judging.logs import judge as judge_logs
from muster.judging.stalls import usual_paces
from tests.unit.fleets import HOSTS, PLAIN, SIXTEEN, conditions, named, verdicts

PLACE = Topology(SIXTEEN)


def nano_gpt(folder: Path, paces: Callable[[int, int], list[float]], jobs: int, hosts: int) -> Judged:
    """Judge logs of nanoGPT's, which have no times of day. `paces`: of a host and a job, ms of its steps."""
    for number, job in itertools.product(range(hosts), range(jobs)):
        lines = [f"SLURM_JOB_NODELIST=n{number:02d}", "Overriding: batch_size = 12"]
        lines += [
            f"iter {step}: loss 4.{step:03d}0, time {took:.2f}ms, mfu 15.00%"
            for step, took in enumerate(paces(number, job))
        ]
        (folder / f"n{number:02d}-{job}.log").write_text("\n".join(lines) + "\n")
    return judge_logs(folder, workload="gpt")


def slow_of(found: Judged) -> dict[str, float]:
    return {each.hosts[0]: each.slower or 0.0 for each in found.hosts if each.condition == "slow"}


# ---- a host that slows down within its jobs: their halves tell, where their mean and its error hide it -----


def in_halves(again: int, late: float, growing: float = 0.0) -> list[Observation]:
    """So many of each host; on n05 the second half takes longer by `late`, on all by `growing`."""
    draw, made = random.Random(1), list[Observation]()
    for job, host in itertools.product(range(again), SIXTEEN):
        first = draw.gauss(1, 0.004)
        second = first * draw.gauss(1, 0.002) * (1 + growing) * (1 + late * (host == "n05"))
        mean = (first + second) / 2
        spread = abs(second - first) / (2 * mean) / 5**0.5  # of six windows
        made.append(Observation(f"{host}-{job}", (host,), mean, spread=spread, halves=(first, second)))
    return made


@pytest.mark.parametrize(("late", "growing"), [(0.05, 0), (0.1, 0), (0.3, 0), (1.3, 0), (9, 0), (0.1, 0.4)])
def test_a_host_that_slows_within_its_jobs_is_named_by_how_much(late: float, growing: float) -> None:
    (verdict,) = judge(in_halves(3, late, growing), PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower == pytest.approx(late, rel=0.1)
    assert not judge(in_halves(3, 0.0, growing), PLACE).accused


@pytest.mark.parametrize("late", [0.1, 0.3, 1.3])
def test_half_of_its_only_job_is_a_suspicion(late: float) -> None:
    found = judge(in_halves(1, late), PLACE)
    assert not found.accused and not found.one_of  # which would accuse it by another name
    assert conditions(found) == {"n05": "unknown"} and found.hosts[5].confidence > 0.5


@pytest.mark.parametrize(("count", "indexes"), [(FEWEST - 1, set()), (FEWEST, {0})])
def test_few_jobs_tell_no_course_of_one(count: int, indexes: set[int]) -> None:
    some = [replace(each, halves=(1.0, 1.0), seconds=1.0) for each in in_halves(1, 0.0)[:count]]
    some[0] = replace(some[0], halves=(0.8, 1.2))
    assert set(slow_halves(some, {JobClass("", 1): Baseline(1.0, 0.01, count)})) == indexes


def test_slower_halves_in_logs(tmp_path: Path) -> None:
    def paces(number: int, job: int) -> list[float]:
        draw = random.Random(100 * number + job)
        late = 1.1 if number == 5 else 1.0
        return [250 * (late if step >= 200 else 1.0) * draw.gauss(1, 0.01) for step in range(400)]

    assert slow_of(nano_gpt(tmp_path, paces, 2, 16)) == {"n05": pytest.approx(0.1, abs=0.01)}


def test_the_halves_by_hand() -> None:
    assert halves_of([1.0, 9.0, 1.2, 5.0, 2.0, 2.2, 2.1]) == (1.2, 2.1)
    assert halves_of([1.0] * 5) is None


# ---- steps that stall whoever runs them hide no slow host; a host whose steps stall is slow ---------------


def stalling(stalls: dict[str, float], slow: str = "", unit: float = 1.0) -> list[Observation]:
    """Five of each host, of 100 steps, of which a share stalls tenfold; one host takes 5 % longer. `unit`: of
    the halves, relative to the seconds."""
    draw, made = random.Random(7), list[Observation]()
    for number, host in itertools.product(range(5), SIXTEEN):
        pace, share = draw.gauss(1, 0.004) * (1.05 if host == slow else 1.0), stalls.get(host, 0.0)
        steps = [pace * draw.gauss(1, 0.01) * (10 if draw.random() < share else 1) for _ in range(100)]
        mean, halves = statistics.fmean(steps), halves_of([step * unit for step in steps])
        error = statistics.stdev(steps) / mean / 10
        made.append(Observation(f"{host}-{number}", (host,), mean, spread=error, halves=halves))
    return made


@pytest.mark.parametrize("share", [0.004, 0.02, 0.1])
@pytest.mark.parametrize("unit", [1.0, 1 / 64])
def test_stalls_of_the_whole_fleet_hide_no_slow_host(share: float, unit: float) -> None:
    everywhere = dict.fromkeys(SIXTEEN, share)
    assert not judge(stalling(everywhere, unit=unit), PLACE).accused
    (verdict,) = judge(stalling(everywhere, "n05", unit), PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower == pytest.approx(0.05, abs=0.01)


def test_usual_paces() -> None:
    """Stalls of one host are its own; a usual pace stays one; where halves stall, the faster one counts."""
    own = stalling({"n05": 0.1})
    assert usual_paces(own) == own
    (verdict,) = judge(own, PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower is not None and verdict.slower > 0.4
    once = usual_paces(stalling(dict.fromkeys(SIXTEEN, 0.02)))
    assert usual_paces(once) == once
    made = []
    for number, host in enumerate([*SIXTEEN] * 2):
        seconds, halves = (2.5, (1.0, 3.0)) if number % 2 else (1.0, (1.0, 1.0))
        made.append(Observation(str(number), (host,), seconds, halves=halves))
    assert {(each.seconds, each.halves) for each in usual_paces(made)} == {(1.0, None)}


def test_logs_of_a_fleet_that_stalls_say_so(tmp_path: Path) -> None:
    """Two steps of a hundred take ten times as long."""

    def paces(number: int, job: int) -> list[float]:
        draw, slower = random.Random(number + 12 * job), 1.05 if number == 5 else 1.0
        return [250 * (10 if draw.random() < 0.02 else 1) * slower * draw.gauss(1, 0.01) for _ in range(200)]

    found = nano_gpt(tmp_path, paces, 2, 12)
    assert slow_of(found).keys() == {"n05"}
    assert any("usual steps" in note for note in found.notes)
    assert not any("not sure" in note for note in found.notes), found.notes
    of_slow = [each.slower for each in found.jobs if each.hosts == ["n05"]]
    assert all(slower == pytest.approx(0.05, abs=0.02) for slower in of_slow)


Turns = dict[tuple[str, int], tuple[float, float]]
ALONE = [(host,) for host in SIXTEEN] * 2
PAIRS = list(itertools.combinations(HOSTS[:4], 2)) * 2
SCATTER = {("n00", n): (0.0, 0.1) for n in range(10)}
UNSTEADY = {(host, 1): (0.0, 0.1) for host in SIXTEEN}


@pytest.mark.parametrize(
    ("groups", "changes", "wanted"),
    [
        # Two jobs alone, 55 and 18 % slower for stalls that no other host has: it is slow, or unknown.
        (ALONE, {("n05", 0): (0.55, 0.3), ("n05", 1): (0.18, 0.1)}, {"n05": ("slow", "unknown")}),
        # Windows that differ by as much on every host, with means that agree: no host is less steady.
        (ALONE, UNSTEADY | {(host, 0): (0.0, 0.1) for host in SIXTEEN}, {}),
        (ALONE, UNSTEADY, {}),
        # One of a host's two jobs is 12 % slower, known to 10 %: excused only where others are as noisy.
        (ALONE, {("n05", 1): (0.12, 0.1)}, {"n05": ("unknown",)}),
        (ALONE, UNSTEADY | {("n05", 1): (0.12, 0.1)}, {}),
        # One host of four scatters, in half of the jobs or more: it is no fitter, others are no less fit.
        ([*ALONE[:4] * 2, *[("n00",)] * 8], SCATTER, {"n00": ("unknown",)}),
        (PAIRS, SCATTER, {"n00": ("unknown",)}),
    ],
    ids=["stalls", "unsteady", "unsteady once", "noisy once", "noisy as all", "noisy alone", "noisy pairs"],
)  # fmt: skip
def test_the_noise_of_a_hosts_own_jobs(
    groups: list[tuple[str, ...]], changes: Turns, wanted: dict[str, tuple[str, ...]]
) -> None:
    turns: dict[str, int] = {}
    jobs = []
    for number, group in enumerate(groups):
        slower, spread = changes.get((group[0], turns.setdefault(group[0], 0)), (0.0, 0.0))
        turns[group[0]] += 1
        seconds = 10.0 * (1 + slower) + 0.01 * (number % 3)
        jobs.append(Observation(str(number), group, seconds, work="w", spread=spread))
    hosts = sorted({host for group in groups for host in group})
    found = conditions(judge(jobs, Topology.of(hosts, {})))
    assert found.keys() == wanted.keys()
    assert all(found[host] in each for host, each in wanted.items())


def test_a_bound_is_no_less_than_the_mean_of_the_jobs() -> None:
    """One of two was 12 % slower, and its windows say little of it: its weight is next to nothing."""
    jobs = [
        Observation(f"{turn}-{host}", (host,), 11.2 if (turn, host) == (1, "n05") else 10.0, spread=spread)
        for turn, spread in enumerate((0.0, 0.1))
        for host in SIXTEEN
    ]
    found = verdicts(jobs, PLACE)
    assert found["n05"].condition == "fit" and (found["n05"].at_most or 0) > 0.058
    assert all((found[host].at_most or 0) < 0.01 for host in SIXTEEN if host != "n05")


def test_an_unsteady_job_says_little_of_a_host_whichever_came_first() -> None:
    """One job is known to 0.2 %, the other to 10 %: the host is at most 1 % slower."""
    spreads = {"n05": (0.0, 0.1), "n06": (0.1, 0.0)}
    jobs = [
        Observation(f"{turn}-{host}", (host,), 10.0, spread=spreads.get(host, (0.0, 0.0))[turn])
        for turn, host in itertools.product((0, 1), SIXTEEN)
    ]
    found = verdicts(jobs, PLACE)
    for host in spreads:
        assert found[host].condition == "fit" and 0 < (found[host].at_most or 0) < 0.01
    assert found["n05"].at_most == pytest.approx(found["n06"].at_most)


# ---- a fleet whose pace drifts, while nothing says when its jobs ran: said, and nobody accused of it ------


def at_paces(paces: tuple[float, ...], *, timed: bool) -> list[Observation]:
    """A job of each host alone at each pace, with 0.4 % of noise."""
    draw = random.Random(1)
    return [
        Observation(
            f"{host}-{wave}", (host,), pace * draw.gauss(1, 0.004), moment=f"wave{wave}" if timed else ""
        )
        for wave, pace in enumerate(paces)
        for host in HOSTS
    ]


def test_drift_is_noticed_and_only_where_it_is() -> None:
    paces = (1.0, 1.06, 1.03, 1.0)
    state = localise(at_paces(paces, timed=False), PLAIN)
    assert state.drifts[""] == pytest.approx(0.025, abs=0.003)  # their standard deviation is 2.5 %
    assert not judge_posterior(state).accused
    assert not localise(at_paces(paces, timed=True), PLAIN).drifts
    assert not localise(at_paces((1.0,) * 4, timed=False), PLAIN).drifts


def test_fewer_than_eight_jobs_show_no_drift() -> None:
    jobs = [
        Observation(f"{host}-{pace}", (host,), pace * (1 + 0.001 * number))
        for pace in (1.0, 1.06)
        for number, host in enumerate(HOSTS[:4])
    ]
    assert set(localise(jobs, Topology(HOSTS[:4])).drifts) == {""}
    assert not localise(jobs[1:], Topology(HOSTS[:4])).drifts


@pytest.mark.parametrize("size", [4, 6])
def test_a_few_hosts_in_pairs_that_nobody_dates(size: int) -> None:
    """Two or three hosts are in every job of so few: that they explain the slow ones shows nothing."""
    place = Topology(HOSTS[:size])
    for seed in range(6):
        fleet, draw = SimulatedFleet(place, seed=seed, hiccups=0.3), random.Random(seed)
        jobs = []
        for _ in range(16):
            order = draw.sample(place.hosts, size)
            jobs += fleet.run(list(zip(order[::2], order[1::2], strict=True)))
        assert not judge_posterior(localise(jobs, place)).accused


def test_many_bad_hosts_or_hiccups_are_no_drift() -> None:
    many = tuple(Planted("compute", (host,), 0.05 + 0.01 * number) for number, host in enumerate(HOSTS[:24]))
    for faults, hiccups in ((many, 0.0), ((), 0.05)):
        fleet = SimulatedFleet(PLAIN, faults, seed=3, hiccups=hiccups, hiccup=(0.3, 0.3))
        state = localise([job for _ in range(5) for job in fleet.run([(host,) for host in HOSTS])], PLAIN)
        assert not state.drifts and len(named(judge_posterior(state))) == len(faults)


def test_a_drift_is_said(tmp_path: Path) -> None:
    draw = random.Random(2)
    found = nano_gpt(
        tmp_path, lambda _, job: [250 * (1.0, 1.06, 1.03, 1.0)[job] * draw.gauss(1, 0.003)] * 40, 4, 16
    )
    assert not slow_of(found) and any("drifts" in note and "gpt" in note for note in found.notes)


# ---- steps that change as a job runs: its mean says how many of them it made ------------------------------


@pytest.mark.parametrize(
    ("grows", "other", "slower", "condition"),
    [
        (0.4, 240, 0.0, "unknown"),  # 16 % slower: more of the late steps, which are the slow ones
        (0.4, 40, 0.0, "unknown"),
        (-0.4, 40, 0.0, "unknown"),  # fewer of the late steps, which are the fast ones
        (0.0, 240, 0.1, "slow"),  # steps are alike however many there are
    ],
)
def test_jobs_of_steps_that_grow_are_compared_with_those_of_as_many(
    grows: float, other: int, slower: float, condition: str, tmp_path: Path
) -> None:
    draw = random.Random(3)

    def paces(number: int, job: int) -> list[float]:
        last = number == 5
        steps = [1 + grows * step / 120 for step in range(other if last else 120)]
        return [100 * (1 + slower * last) * draw.gauss(1, 0.005) * each for each in steps]

    found = nano_gpt(tmp_path, paces, jobs=2, hosts=6)
    assert {each.hosts[0]: each.condition for each in found.hosts if each.condition != "fit"} == {
        "n05": condition
    }


def test_where_no_number_of_steps_is_usual_all_are_compared(tmp_path: Path) -> None:
    draw = random.Random(4)

    def paces(number: int, job: int) -> list[float]:
        return [100 * draw.gauss(1, 0.005) * (1 + 0.05 * step / 120) for step in range(80 + 15 * number)]

    found = nano_gpt(tmp_path, paces, jobs=2, hosts=6)
    assert not any(each.condition == "unknown" for each in found.hosts)
