"""Jobs that die by chance: how often is learned from those whose hosts have others that did not."""

from __future__ import annotations

import random

from muster.core.state import State
from muster.judging import Judgement, Observation, Topology, judge

HOSTS = tuple(f"n{i:02d}" for i in range(64))


def judged(died: dict[int, int]) -> Judgement:
    """Six jobs in pairs for each host; so many of a host's died (host -> how many)."""
    draw, left = random.Random(1), dict(died)
    jobs = []
    for wave in range(6):
        order = draw.sample(range(64), 64)
        for at in range(0, 64, 2):
            pair = order[at : at + 2]
            name, hosts = f"{wave}-{at}", tuple(HOSTS[host] for host in pair)
            if any(left.get(host) for host in pair):
                left |= {host: left[host] - 1 for host in pair if left.get(host)}
                jobs.append(Observation(name, hosts, None, State.FAILED))
            else:
                jobs.append(Observation(name, hosts, draw.gauss(1, 0.004)))
    return judge(jobs, Topology(HOSTS))


def test_two_failures_are_chance_where_many_jobs_die() -> None:
    alone = judged({7: 2})
    assert [each.subject for each in alone.accused] == [("n07",)]
    often = judged({7: 2} | dict.fromkeys(range(10, 50, 4), 1))
    assert not often.accused


def test_a_host_whose_jobs_all_fail_is_failing_all_the_same() -> None:
    often = judged({7: 6} | dict.fromkeys(range(10, 50, 4), 1))
    assert [(each.subject, each.condition) for each in often.accused] == [(("n07",), "failing")]


def test_broken_hardware_in_a_job_alone_is_enough_beside_good_ones() -> None:
    """Of hosts that ran alone and in pairs, all of which were good."""
    draw = random.Random(1)
    alone = [Observation(f"a{host}", (host,), draw.gauss(1, 0.002)) for host in HOSTS]
    pairs = [
        Observation(f"{first}{at}", (HOSTS[at], HOSTS[(at + 1) % 64]), draw.gauss(1.1, 0.002))
        for first in (0, 1)
        for at in range(first, 64, 2)
    ]
    for hardware in (True, False):
        end = Observation("x", ("n07",), None, State.FAILED, culprits=("n07",), hardware=hardware)
        found = judge([*alone, *pairs, end], Topology(HOSTS))
        assert [each.subject for each in found.accused] == ([("n07",)] if hardware else [])
