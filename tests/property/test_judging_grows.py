"""The slower something is, the surer it is accused: from 1 % to a hundred times as long."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulate import NOISES, Planted, SimulatedFleet

from muster.judging import Observation, Topology, Verdict, judge
from muster.judging.faults import Kind

HOSTS = tuple(f"n{i:02d}" for i in range(32))
FLEET = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[4 * k : 4 * k + 4]) for k in range(8)))
WHERE: dict[Kind, tuple[str, ...]] = {
    "compute": ("n05",), "card": ("n05",), "link": ("n05", "n06"), "switch": ("leaf1",), "uplink": ("leaf1",),
}  # fmt: skip
SLOWER = (0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# What a longer one may lose by the noise of the jobs that it leads to asking for, and no more.
CHANCE = 0.02


def accusation(kind: Kind, by: float, seed: int, noise: str) -> float:
    """The probability that the planted thing is bad, after the same jobs for every `by`."""
    fleet = SimulatedFleet(FLEET, (Planted(kind, WHERE[kind], by),), seed=seed, timed=True, **NOISES[noise])
    jobs = []
    for wave in range(6):
        step = 1 + wave // 2
        pairs, met = [], set[str]()
        for i in range((wave % 2) * step, 32 + (wave % 2) * step):
            a, b = HOSTS[i % 32], HOSTS[(i + step) % 32]
            if not {a, b} & met:
                met |= {a, b}
                pairs.append((a, b))
        jobs += fleet.run(pairs)
    jobs += fleet.run([(host,) for host in HOSTS])
    jobs += fleet.run([(HOSTS[i], HOSTS[(i + 1) % 32]) for i in range(1, 32, 2)])
    found = judge(jobs, FLEET)
    said: list[Verdict] = [*found.hosts, *found.links, *found.switches]
    mine = [each for each in said if each.subject == WHERE[kind]]
    return max((each.confidence for each in mine if each.condition not in ("fit", "differs")), default=0.0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(WHERE)), st.integers(0, 10**6), st.sampled_from(["Gaussian", "t3, slow side"]))
def test_accusation_grows_with_the_slowness(kind: Kind, seed: int, noise: str) -> None:
    chances = [accusation(kind, by, seed, noise) for by in SLOWER]
    for less, more in pairwise(chances):
        assert more >= less - CHANCE, list(zip(SLOWER, chances, strict=True))
    assert chances[-1] > 0.98


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans())
def test_jobs_of_one_host_only(seed: int, jobs: int, light: bool) -> None:
    """Logs of single hosts, one to three of each, perhaps with a second work in which nothing is slow."""
    draw = random.Random(seed)
    noise = [[draw.gauss(0, 0.003) for _ in HOSTS] for _ in range(2 * jobs)]

    def suspicion(by: float) -> float:
        seen = [
            Observation(
                f"{again}{host}", (host,), (1 + by * (host == "n05")) * (1 + noise[again][at]), work="heavy"
            )
            for again in range(jobs)
            for at, host in enumerate(HOSTS)
        ]
        if light:
            seen += [
                Observation(f"light{again}{host}", (host,), 1 + noise[jobs + again][at], work="light")
                for again in range(jobs)
                for at, host in enumerate(HOSTS)
            ]
        verdict = judge(seen, Topology(HOSTS)).hosts[5]
        return verdict.confidence if verdict.condition not in ("fit", "differs") else 0.0

    chances = [suspicion(by) for by in SLOWER]
    assert all(more >= less - 1e-6 for less, more in pairwise(chances)), chances
    assert chances[-1] > 0.98
