"""What planted bugs in judging changed, and no other test saw. Expected figures are computed by hand."""

from __future__ import annotations

import math

import pytest

from muster.judging import Observation, Topology, judge
from muster.judging.baseline import Class
from muster.judging.moments import moments_of, side_by_side
from muster.judging.noise import learn
from muster.judging.readings import Readings

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
    for each in side_by_side(jobs).observations:
        assert each.seconds == pytest.approx(2**0.5, rel=1e-3)
        assert each.computing == pytest.approx((2**0.5 / 2, 2**0.5 / 4), rel=1e-3)


def test_a_reading_costs_what_the_noise_of_its_own_side_says() -> None:
    """Slow jobs have long tails here, fast ones none: five deviations below cost 12.5 nats, above much less."""
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
