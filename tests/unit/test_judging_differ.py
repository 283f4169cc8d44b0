"""Hosts that differ for good: a healthy one is not accused for it, a bad one is found all the same."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest

from muster.judging import Judgement, Observation, Topology, judge
from muster.judging.readings import Readings, reach

NOISE = 0.003  # of a job


def judged(own: Mapping[str, float], seed: int, jobs: int = 3) -> Judgement:
    """Run jobs alone on hosts that are slower by their own shares."""
    draw = random.Random(seed)
    observations = [
        Observation(f"{job}-{host}", (host,), 2.5 * (1 + slower) * math.exp(draw.gauss(0, NOISE)), work="w")
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
