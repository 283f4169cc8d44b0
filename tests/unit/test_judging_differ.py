"""Hosts that differ for good: a healthy one is not accused for it, a bad one is found all the same."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest

from muster.judging import Judgement, Observation, Topology, judge
from muster.judging.readings import Readings, _beyond_noise, reach

NOISE = 0.003  # of a job


def judged(own: Mapping[str, float], seed: int, jobs: int = 3, noise: float = NOISE) -> Judgement:
    """Run jobs alone on hosts that are slower by their own shares."""
    draw = random.Random(seed)
    observations = [
        Observation(f"{job}-{host}", (host,), 2.5 * (1 + slower) * math.exp(draw.gauss(0, noise)), work="w")
        for job in range(jobs)
        for host, slower in own.items()
    ]
    return judge(observations, Topology.of(list(own), {}))


def hosts(count: int, deviation: float, seed: int) -> dict[str, float]:
    draw = random.Random(1000 + seed)
    return {f"n{number:02d}": draw.gauss(0, deviation) for number in range(count)}


@pytest.mark.parametrize(("count", "deviation"), [(8, 0.01), (8, 0.02), (12, 0.01), (24, 0.01), (64, 0.02)])
def test_healthy_hosts_that_differ_are_seldom_accused(count: int, deviation: float) -> None:
    """Of 8 hosts that differ by 1 % one was, in every fifth fleet: the deviation came from the few that
    happened to be alike."""
    accused = [bool(judged(hosts(count, deviation, seed), seed).accused) for seed in range(25)]
    assert sum(accused) <= 2


@pytest.mark.parametrize("deviation", [0.0, 0.002, 0.01])
def test_a_host_that_is_far_slower_than_they_differ_is_found(deviation: float) -> None:
    for seed in range(10):
        own = hosts(12, deviation, seed) | {"n03": 0.15}
        found = judged(own, seed)
        assert "n03" in {host for each in found.accused for host in each.hosts}


@pytest.mark.parametrize("slow", [3, 4])
def test_half_of_the_hosts_may_be_slow_by_unlike_shares(slow: int) -> None:
    """They are behind a gap: the others show what healthy hosts differ by."""
    own = hosts(8, 0.002, 7) | {f"n{number:02d}": 0.08 + 0.06 * number for number in range(slow)}
    accused = {host for each in judged(own, 7).accused for host in each.hosts}
    assert accused == {f"n{number:02d}" for number in range(slow)}


def test_a_slower_host_is_compared_with_the_median_of_hosts_that_differ() -> None:
    own = {f"n{number:02d}": 0.01 * number for number in range(12)}  # the fastest two are not the fleet
    verdicts = {each.hosts[0]: each for each in judged(own, 3).hosts}
    assert all(each.condition in ("fit", "differs") for each in verdicts.values())
    slower = verdicts["n11"].slower
    assert slower is None or slower == pytest.approx(0.11 - 0.055, abs=0.01)


@pytest.mark.parametrize(("freedom", "quantile"), [(7, 8.1), (11, 6.16), (30, 4.64), (1e9, 4.0)])
def test_few_hosts_show_their_deviation_badly(freedom: float, quantile: float) -> None:
    """Student's quantiles of 1 in 31,574, from tables."""
    rows = Readings(spread={"w": 0.01}, freedom={"w": freedom})
    assert reach(rows, "w") / 0.01 == pytest.approx(quantile, rel=0.03)


@pytest.mark.parametrize(("count", "jobs", "most"), [(5, 4, 2), (8, 3, 2), (12, 3, 2), (20, 2, 6)])
def test_noise_of_jobs_is_no_difference_between_hosts(count: int, jobs: int, most: int) -> None:
    """Jobs differ by 3 %, hosts do not: one that is 12 % slower passed in up to every fifth fleet, since what
    noise makes of a host's jobs was taken for what healthy hosts differ by."""
    own = hosts(count, 0.0, 0)
    conditions = [judged(own | {"n03": 0.12}, seed, jobs, 0.03).hosts[3].condition for seed in range(60)]
    assert sum(each in ("fit", "differs") for each in conditions) <= most
    assert sum(bool(judged(own, seed, jobs, 0.03).accused) for seed in range(60)) <= 1


@pytest.mark.parametrize(
    ("scale", "noise", "hosts", "least", "most"),
    [
        (0.01, 0.0005, 8, 0.009, 0.012),  # it is theirs
        (0.02, 0.002, 12, 0.018, 0.023),
        (0.004, 0.0005, 64, 0.0037, 0.0042),
        (0.015, 0.015, 5, 0.0, 0.006),  # as much as noise makes
        (0.024, 0.015, 5, 0.0, 0.008),  # more, but as five hosts may show it by chance
        (0.024, 0.015, 64, 0.015, 0.021),  # 64 do not: sqrt(0.024^2 - 0.015^2) is left
    ],
)
def test_what_hosts_differ_by_beyond_the_noise_of_their_jobs(
    scale: float, noise: float, hosts: int, least: float, most: float
) -> None:
    assert least <= _beyond_noise(scale, hosts - 1, noise, 1.5 * hosts) <= most


@pytest.mark.parametrize("seed", [3, 15, 25])
def test_a_host_that_is_as_slow_as_counts_is_not_fit(seed: int) -> None:
    """Its two jobs are 9.0 % slower, where 7.4 % counts: it was "fit", at most 13.5 % slower."""
    found = judged(hosts(20, 0.0, 0) | {"n03": 0.09}, seed, 2, 0.03).hosts[3]
    assert found.condition in ("unknown", "probably fit")


@pytest.mark.parametrize(
    ("count", "older", "slower"), [(12, 4, 0.2), (16, 5, 0.3), (20, 6, 0.15), (20, 5, 0.18)]
)
def test_nothing_must_be_bad_where_it_may_be_other_hardware(count: int, older: int, slower: float) -> None:
    """Each host alone, and in one pair: two older ones that were together are no accusation."""
    questions = 0
    for seed in range(8):
        draw = random.Random(seed)
        names = list(hosts(count, 0.0, seed))
        old = set(draw.sample(names, older))
        order = draw.sample(names, count)
        jobs = [(name,) for name in names] + list(zip(order[::2], order[1::2], strict=True))
        times = [(1 + slower * (not old.isdisjoint(job))) * math.exp(draw.gauss(0, 0.006)) for job in jobs]
        found = judge(
            [
                Observation(" ".join(job), job, time, work=f"batch {len(job)}")
                for job, time in zip(jobs, times, strict=True)
            ],
            Topology.of(names, {}),
        )
        assert not found.one_of, seed
        questions += any("other hardware?" in each.reason for each in found.hosts)
    assert questions > 0
