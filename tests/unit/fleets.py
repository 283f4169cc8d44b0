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


def named(judgement: Judgement) -> set[tuple[str, ...]]:
    """Whom it accuses."""
    return {each.subject for each in judgement.accused}


def verdicts(jobs: Sequence[Observation], place: Topology = PLAIN) -> dict[str, Verdict]:
    """A verdict of each host."""
    return {each.subject[0]: each for each in judge(jobs, place).hosts}


def conditions(judgement: Judgement) -> dict[str, str]:
    """Host -> condition, of those that are not fit."""
    return {each.subject[0]: each.condition for each in judgement.hosts if each.condition != "fit"}
