"""What planted bugs in judging changed, and no other test saw. Expected figures are computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from simulate import SimulatedFleet, hunt

from muster.judging import Observation, Settings, Topology, judge
from muster.judging.ask import next_wave
from muster.judging.baseline import Class
from muster.judging.detrend import Detrended, moments_of, side_by_side
from muster.judging.localise import localise
from muster.judging.noise import learn
from muster.judging.readings import Readings, read
from tests.unit.test_judging_fleets import HOSTS as FLEET
from tests.unit.test_judging_fleets import jobs_alone

HOSTS = tuple(f"n{i:02d}" for i in range(16))


def test_less_than_half_of_a_job_is_not_the_same_moment() -> None:
    """40 of 100 seconds beside the first job: another moment; 50 of 100: the same."""
    for began, alike in ((60.0, False), (50.0, True)):
        jobs = [
            Observation("a", ("n1",), 1.0, began=0.0, ended=100.0),
            Observation("b", ("n2",), 1.0, began=began, ended=began + 100.0),
        ]
        first, second = moments_of(jobs)
        assert (first == second) is alike


def test_what_hosts_computed_in_a_slow_moment_is_mended_as_their_steps_are() -> None:
    """A moment of twice the time: steps and computing of pairs become those of the usual moment, sqrt(2)."""
    jobs = [
        Observation(
            f"{pace}{n}",
            (f"n{2 * n}", f"n{2 * n + 1}"),
            pace,
            computing=(pace / 2, pace / 4),
            moment=str(pace),
        )
        for pace in (1.0, 2.0)
        for n in range(8)
    ]
    for each in side_by_side(jobs, moments_of(jobs)).observations:
        assert each.seconds == pytest.approx(2**0.5, rel=1e-3)
        assert each.computing == pytest.approx((2**0.5 / 2, 2**0.5 / 4), rel=1e-3)


def test_a_reading_costs_what_the_noise_of_its_own_side_says() -> None:
    """Slow jobs have long tails here, fast ones none: five deviations below cost much more than above."""
    rows = Readings()
    rows.slow, rows.fast = learn([0.5, 1.0, 4.0, 6.0, 8.0] * 20), learn([0.3, 0.7, 1.0, 1.5] * 20)
    for value in (-0.05, 0.05):
        rows.add((0, 1), value, 0.01, 0, Class("w", 2))
    faster, slower = rows.loss(0, 0.0), rows.loss(1, 0.0)
    assert faster == pytest.approx(rows.fast.cost(5.0)) and slower == pytest.approx(rows.slow.cost(5.0))
    assert faster > 8.0 > 5.0 > slower


def test_a_slow_rack_is_named_by_its_own_switch() -> None:
    topology = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[4 * k : 4 * k + 4]) for k in range(4)))
    rack = set(HOSTS[8:12])
    groups = [*((host,) for host in HOSTS), *zip(HOSTS[::2], HOSTS[1::2], strict=True)]
    groups += [(HOSTS[n], HOSTS[(n + 3) % 16]) for n in range(1, 16, 2)]
    jobs = [
        Observation(f"{n}", group, (1.1 if rack & set(group) else 1.0) * (1 + 0.002 * math.sin(n)))
        for n, group in enumerate(groups)
    ]
    found = judge(jobs, topology)
    assert {each.subject for each in found.accused} == {(host,) for host in rack}
    for each in found.accused:
        assert "leaf2" in each.reason and each.slower == pytest.approx(0.1, abs=0.005)


def test_what_stays_unknown_of_a_moment_is_in_the_readings_doubt() -> None:
    """sqrt(deviation^2 + 0.03^2), of steps and of what hosts computed; without a doubt the deviation."""
    jobs = tuple(
        Observation(str(n), HOSTS[2 * n : 2 * n + 2], 1 + n / 1000, computing=(1 + n / 2000, 1 - n / 2000))
        for n in range(8)
    )
    rows, bases = read(Detrended(jobs, (0.03**2, *[0.0] * 7)), Topology(HOSTS))
    for row, sigma in enumerate(rows.sigma):
        base = bases[rows.kind[row]].sigma
        assert sigma == pytest.approx(math.hypot(base, 0.03) if rows.source[row] == 0 else base)


def test_the_error_of_a_slowdown_is_that_of_a_mean() -> None:
    """A host alone 4 and 16 times: with four times the jobs, half of the standard error."""
    within = []
    for runs in (4, 16):
        jobs = [
            Observation(
                f"{run}{host}", (host,), (1.1 if host == "n03" else 1.0) * (1 + 0.004 * math.sin(7 * run + n))
            )
            for run in range(runs)
            for n, host in enumerate(HOSTS)
        ]
        verdict = judge(jobs, Topology(HOSTS)).hosts[3]
        assert verdict.condition == "slow" and verdict.slower == pytest.approx(0.1, abs=0.006)
        within.append(verdict.within or 0.0)
    assert 0.001 < within[0] < 0.004 and within[1] == pytest.approx(within[0] / 2, rel=0.2)


def test_the_link_that_closes_the_ring_is_tried() -> None:
    search = hunt(SimulatedFleet(Topology(HOSTS), (), seed=1, timed=True), 9, Settings(sweeps=1, beside=0))
    assert {HOSTS[0], HOSTS[-1]} in [set(each.hosts) for each in search.observations]


def test_a_suspect_runs_alone_beside_others_of_its_moment() -> None:
    """Enough hosts ran alone before: five run again all the same, since the moment may differ."""
    pairs = [(HOSTS[n], HOSTS[(n + 1) % 16]) for n in range(16)]
    jobs = [
        Observation(f"{n}", hosts, (1.1 if "n03" in hosts else 1.0) * (1 + 0.002 * math.sin(n)))
        for n, hosts in enumerate([*pairs, *((host,) for host in HOSTS[4:])])
    ]
    wave = next_wave(localise(jobs, Topology(HOSTS), Settings(references=4, beside=6)))
    assert ("n03",) in wave and sum(len(group) == 1 for group in wave) == 6


def test_a_host_of_one_job_is_not_said_to_differ() -> None:
    """Hosts that ran twice differ by 0.4 %; one that ran once, 1.2 % slower, may have met a slow moment."""
    draw = random.Random(8)
    own = {host: draw.gauss(0, 0.004) for host in FLEET} | {"n10": 0.012}
    twice = jobs_alone(own, 2)
    once = [each for each in twice if each.hosts != ("n10",)] + [Observation("once", ("n10",), 1.012)]
    assert judge(twice, Topology(FLEET)).hosts[10].condition == "differs"
    assert judge(once, Topology(FLEET)).hosts[10].condition != "differs"


def test_jobs_that_a_bad_partner_slowed_tell_nothing_of_a_host() -> None:
    """n03 is 10 % slow; each of its neighbours has two jobs on the ring, of which one tells of its card."""
    groups = [*((host,) for host in HOSTS), *((HOSTS[n], HOSTS[(n + 1) % 16]) for n in range(16))]
    jobs = [
        Observation(f"{n}", group, (1.1 if "n03" in group else 1.0) * (1 + 0.002 * math.sin(n)))
        for n, group in enumerate(groups)
    ]
    found = judge(jobs, Topology(HOSTS))
    assert [each.subject for each in found.accused] == [("n03",)]
    for host, count in ((2, 1), (4, 1), (8, 2)):
        (card,) = [each for each in found.hosts[host].subjects if each.name == "card"]
        assert card.jobs == count and card.at_most is not None and card.at_most < 0.02
