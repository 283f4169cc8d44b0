"""What hosts share because they were measured side by side is not theirs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from muster.judging import Observation, Settings, Topology, judge
from muster.judging.moments import side_by_side

HOSTS = tuple(f"n{i}" for i in range(5))


def moment(name: str, pace: float, slow: dict[str, float], draw: random.Random) -> list[Observation]:
    """Each host alone, all at once, while everything takes `pace` times as long."""
    return [
        Observation(
            f"{name}#{host}",
            (host,),
            pace * (1 + slow.get(host, 0.0)) * (1 + draw.gauss(0, 0.01)),
            work="products",
            moment=name,
        )
        for host in HOSTS
    ]


def test_by_hand() -> None:
    """Two moments of medians 2 and 4 become alike; what has no moment, or too few hosts in it, stays."""
    times = dict(zip(HOSTS, (1.0, 2.0, 2.0, 2.0, 4.0), strict=True))
    first = [Observation(f"a{host}", (host,), times[host], work="w", moment="a") for host in HOSTS]
    second = [Observation(f"b{i}", (h,), 4.0, work="w", moment="b") for i, h in enumerate(HOSTS)]
    few = [Observation(f"c{i}", (h,), 9.0, work="w", moment="c") for i, h in enumerate(HOSTS[:3])]
    lone = [Observation("d", (HOSTS[0],), 7.0, work="w"), Observation("e", (HOSTS[1],), None, "failed", "w")]
    found = side_by_side([*first, *second, *few, *lone])
    assert [each.seconds for each in found[:5]] == pytest.approx([1.5, 3, 3, 3, 6])
    assert [each.seconds for each in found[5:10]] == pytest.approx([3.0] * 5)
    assert found[10:] == [*few, *lone]


def test_what_the_hosts_of_a_job_computed() -> None:
    jobs = [
        Observation(str(pace), HOSTS, 9.0, work="w", computing=tuple(pace * s for s in (1, 1, 1, 1.2, 1)))
        for pace in (1.0, 2.0)
    ]
    jobs.append(Observation("pair", HOSTS[:2], 9.0, work="w", computing=(5.0, 6.0)))
    found = side_by_side(jobs)
    assert found[0].computing == pytest.approx(found[1].computing)
    assert found[0].computing == pytest.approx((1.5, 1.5, 1.5, 1.8, 1.5))
    assert found[2] == jobs[2]


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_host_between_slow_moments(seed: int) -> None:
    """Moments differ by more than the slow host does from its peers: it is named, and no other one."""
    draw = random.Random(seed)
    jobs = [
        each
        for number, pace in enumerate((1.0, 1.25, 0.9))
        for each in moment(f"job{number}", pace, {"n3": 0.2}, draw)
    ]
    found = judge(jobs, Topology(HOSTS), Settings(slow=0.05))
    assert [each.subject for each in found.accused] == [("n3",)]
    assert found.accused[0].slower == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_less_than_what_counts_is_not_slow(seed: int) -> None:
    """8 % where 10 % was asked for: not by chance, and yet not slow; the bound says how slow it may be."""
    draw = random.Random(seed)
    jobs = [each for n in range(3) for each in moment(f"job{n}", 1.0, {"n3": 0.08}, draw)]
    found = judge(jobs, Topology(HOSTS), Settings(slow=0.1))
    assert not found.accused
    assert judge(jobs, Topology(HOSTS), Settings(slow=0.04)).accused
    bound = next(each.at_most for each in found.hosts if each.subject == ("n3",))
    assert bound is None or bound > 0.05


def test_a_moment_that_was_slow_for_all_hides_a_fault() -> None:
    """A host with a fifth less of a processor, in three moments; in one of them there was too little for
    everybody, and it stood out less. The same in jobs of different times acquits it."""
    off = (0.247, 0.230, 0.071)
    jobs = [
        Observation(
            f"{n}{host}",
            (host,),
            1.0 + 0.002 * k + (off[n] if host == "n3" else 0.0),
            work="w",
            moment=str(n),
        )
        for n in range(3)
        for k, host in enumerate(HOSTS)
    ]
    found = judge(jobs, Topology(HOSTS), Settings(slow=0.1))
    assert [(each.subject, each.condition) for each in found.accused] == [(("n3",), "slow")]
    assert found.accused[0].slower == pytest.approx(0.24, abs=0.03)
    assert not judge([replace(each, moment="") for each in jobs], Topology(HOSTS), Settings(slow=0.1)).accused
    once = [replace(each, seconds=1.0) if each.job in ("0n3", "1n3") else each for each in jobs]
    assert not judge(once, Topology(HOSTS), Settings(slow=0.1)).accused  # slow in one moment is not enough
