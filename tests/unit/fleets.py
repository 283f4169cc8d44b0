"""What the tests of judging share: names of hosts, jobs on them, and what a judgement accuses."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from muster.judging import Judgement, Observation, Topology, Verdict, judge

HOSTS = tuple(f"n{i:02d}" for i in range(64))
PLAIN = Topology(HOSTS)
SWITCHED = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[8 * k : 8 * k + 8]) for k in range(8)))
SIXTEEN = HOSTS[:16]


def jobs_alone(
    slower: Mapping[str, float] | None = None,
    runs: int = 1,
    noise: float = 0.004,
    *,
    hosts: Sequence[str] = HOSTS,
    work: str = "",
    seed: int = 1,
) -> list[Observation]:
    """So many jobs of each host alone, of 1 s with noise; `slower`: host -> by which share."""
    draw, own = random.Random(seed), slower or {}
    return [
        Observation(f"{work}{run}{host}", (host,), (1 + own.get(host, 0.0)) * draw.gauss(1, noise), work=work)
        for run in range(runs)
        for host in hosts
    ]


def jobs_of_pairs(
    slower: Mapping[str, float] | None = None,
    waves: Sequence[int] = (0, 1),
    noise: float = 0.004,
    *,
    hosts: Sequence[str] = HOSTS,
    work: str = "",
    seed: int = 4,
) -> list[Observation]:
    """Pairs of neighbours on a ring, from the even hosts on or from the odd ones. A pair takes as long as its
    slower host."""
    draw, own = random.Random(seed), slower or {}
    made = []
    for number, first in enumerate(waves):
        for i in range(first, len(hosts), 2):
            pair = (hosts[i], hosts[(i + 1) % len(hosts)])
            seconds = (1 + max(own.get(host, 0.0) for host in pair)) * draw.gauss(1, noise)
            made.append(Observation(f"{work}p{number}{i}", pair, seconds, work=work))
    return made


def named(judgement: Judgement) -> set[tuple[str, ...]]:
    """Whom it accuses."""
    return {each.subject for each in judgement.accused}


def verdicts(jobs: Sequence[Observation], place: Topology = PLAIN) -> dict[str, Verdict]:
    """A verdict of each host."""
    return {each.subject[0]: each for each in judge(jobs, place).hosts}


def conditions(judgement: Judgement) -> dict[str, str]:
    """Host -> condition, of those that are not fit."""
    return {each.subject[0]: each.condition for each in judgement.hosts if each.condition != "fit"}
