"""One event, however large, is a suspicion: it asks for another job, and convicts nobody."""

from __future__ import annotations

import random

import pytest
from simulate import Planted, SimulatedFleet, hunt

from muster.core.state import State
from muster.judging import Observation, Topology, judge, judge_state, localise, next_wave

HOSTS = tuple(f"n{i:02d}" for i in range(64))
PLACE = Topology(HOSTS)


def singles(jobs: int, seed: int, share: float = 0.0, bad: str = "") -> list[Observation]:
    """So many jobs of each host alone, a share of them 30 % slow, and one host 5 % slow in all of its own."""
    draw = random.Random(seed)
    return [
        Observation(
            f"{host}-{job}",
            (host,),
            draw.gauss(1, 0.004) * (1.3 if draw.random() < share else 1.0) * (1.05 if host == bad else 1.0),
        )
        for job in range(jobs)
        for host in HOSTS
    ]


@pytest.mark.parametrize("slower", [0.1, 0.3, 3.0, 50.0])
def test_one_of_five_jobs_is_a_suspicion_and_asks_for_another(slower: float) -> None:
    jobs = singles(5, 1)
    place = next(index for index, job in enumerate(jobs) if job.job == "n07-2")
    jobs[place] = Observation("n07-2", ("n07",), 1.0 + slower)
    state = localise(jobs, PLACE)
    verdict = judge_state(state).hosts[7]
    assert not judge_state(state).accused and verdict.condition in ("unknown", "probably fit")
    assert 0.01 < verdict.confidence < 0.97 and verdict.settle
    assert any("n07" in group for group in next_wave(state))
    again = judge([*jobs, Observation("again", ("n07",), 1.0 + slower)], PLACE)
    assert [each.subject for each in again.accused] == [("n07",)]  # the second says that it comes and goes


def test_one_of_a_pairs_jobs_accuses_neither_host_nor_link() -> None:
    fleet = SimulatedFleet(PLACE, seed=2)
    pairs = [tuple(HOSTS[(at + i) % 64] for i in (0, 1)) for at in range(64)]
    jobs = [job for first in (0, 1) for job in fleet.run(pairs[first::2])]
    (at,) = [index for index, job in enumerate(jobs) if job.hosts == ("n10", "n11")]
    for slower in (0.1, 1.0):
        jobs[at] = Observation("slow", ("n10", "n11"), 1.0 + slower)
        found = judge(jobs, PLACE)
        assert not found.accused and not found.one_of


def test_the_only_job_of_a_host_speaks_for_itself() -> None:
    jobs = singles(1, 3)
    jobs[7] = Observation("slow", ("n07",), 2.0)
    assert [each.subject for each in judge(jobs, PLACE).accused] == [("n07",)]


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_what_happens_to_some_jobs_once_accuses_nobody_and_hides_nobody(share: float) -> None:
    """10 fleets; the other 63 hosts are healthy."""
    for seed in range(10):
        found = judge(singles(5, seed, share, bad="n20"), PLACE)
        assert [each.subject for each in found.accused] == [("n20",)] and not found.one_of


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_nor_while_jobs_are_asked_for(share: float) -> None:
    """10 fleets of 64 in pairs and alone: one or none of the 630 healthy hosts is accused."""
    wrong = right = 0
    for seed in range(10):
        bad = Planted("card", (HOSTS[5 * seed],), 0.05)
        fleet = SimulatedFleet(PLACE, (bad,), seed=seed, timed=True, hiccups=share, hiccup=(0.3, 0.3))
        named = {each.subject for each in judge_state(hunt(fleet, 6).state).accused}
        right += bad.where in named
        wrong += len(named - {bad.where})
    assert right >= 9 and wrong <= 1


@pytest.mark.parametrize("slower", [0.1, 0.3, 1.0, 50.0])
@pytest.mark.parametrize("others", [1, 2, 4, 8])
def test_words_are_in_the_order_of_probabilities(slower: float, others: int) -> None:
    """A host of which one job was slow, or failed, and others were not."""
    jobs = singles(others + 1, 1)
    place = next(index for index, job in enumerate(jobs) if job.job == "n07-1")
    for end in (
        Observation("n07-1", ("n07",), 1.0 + slower),
        Observation("n07-1", ("n07",), None, State.FAILED),
    ):
        jobs[place] = end
        state = localise(jobs, PLACE)
        chance, condition = state.suspicion(7), judge_state(state).hosts[7].condition
        assert condition == ("unknown" if chance > 0.25 else "probably fit") or (
            condition == "fit" and chance <= 0.1
        )


@pytest.mark.parametrize("slower", [0.02, 0.03, 0.05])
def test_a_host_without_a_good_job_is_not_probably_fit(slower: float) -> None:
    jobs = singles(1, 3)[:24]
    jobs[7] = Observation("slow", ("n07",), 1.0 + slower)
    (verdict,) = (each for each in judge(jobs, Topology(HOSTS[:24])).hosts if each.hosts == ["n07"])
    assert verdict.condition in ("unknown", "slow")
