"""What holds for all verdicts from jobs that ran anyway. Whom jobs accuse, and what is said of the others,
stands in tests/golden/documents/accused.txt."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from muster.core.state import State
from muster.judging import (
    JobClass,
    Observation,
    Settings,
    Topology,
    judge,
    judge_posterior,
    localise,
    next_wave,
)
from muster.judging.noise import learn
from muster.judging.readings import Readings
from tests.unit.fleets import (
    HOSTS,
    PLAIN,
    SIXTEEN,
    jobs_alone,
)

PLACE = Topology(SIXTEEN)


def ran(name: str, *hosts: str, slower: float = 0.0, **more: Any) -> Observation:
    return Observation(name, hosts, 1.0 + slower, **more)


def died(name: str, *hosts: str, **more: Any) -> Observation:
    return Observation(name, hosts, None, State.FAILED, **more)


def one_slow(slower: float, runs: int = 5) -> list[Observation]:
    """One of n07's jobs alone takes so much longer."""
    jobs = jobs_alone(runs=runs)
    return [replace(each, seconds=1 + slower) if each.job == "1n07" else each for each in jobs]


# ---- one event is a suspicion ----------------------------------------------------------------------------


@pytest.mark.parametrize("slower", [0.1, 0.3, 3.0, 50.0])
def test_one_of_five_jobs_asks_for_another(slower: float) -> None:
    state = localise(one_slow(slower), PLAIN)
    verdict = judge_posterior(state).hosts[7]
    assert verdict.condition in ("unknown", "probably fit")
    assert 0.01 < verdict.confidence < 0.97 and "n07" in verdict.settle
    assert any("n07" in group for group in next_wave(state))
    well = judge([*one_slow(0.03, 2), *(ran(f"y{n}", "n07") for n in range(2))], PLAIN)
    assert well.hosts[7].condition == "fit"


@pytest.mark.parametrize("slower", [0.1, 0.3, 1.0, 50.0, None])
@pytest.mark.parametrize("others", [1, 2, 4, 8])
def test_words_are_in_the_order_of_probabilities(slower: float | None, others: int) -> None:
    """A host of which one job was slow, or failed, and others were not."""
    end = died("x", "n07") if slower is None else ran("x", "n07", slower=slower)
    jobs = [end if each.job == "1n07" else each for each in jobs_alone(runs=others + 1)]
    state = localise(jobs, PLAIN)
    chance, condition = state.suspicion(7), judge_posterior(state).hosts[7].condition
    assert condition == ("unknown" if chance > 0.25 else "probably fit") or (
        condition == "fit" and chance <= 0.1
    )


# ---- figures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.001, 0.004])
def test_no_host_was_slower_than_its_bound(spread: float) -> None:
    """Alone, in any work: at_most is above the mean of what was measured."""
    draw = random.Random(5)
    works = {name: {host: abs(draw.gauss(0, spread)) for host in HOSTS} for name in ("small", "large")}
    jobs = [each for name, own in works.items() for each in jobs_alone(own, 1, 0.0011, work=name)]
    found = judge(jobs, PLAIN)
    seconds = {key.work: each.seconds for key, each in found.baselines.items()}
    bounds = {each.subject[0]: each.at_most for each in found.hosts if each.at_most is not None}
    slower = [((job.seconds or 0) / seconds[job.work] - 1, bounds.get(job.hosts[0])) for job in jobs]
    assert bounds and all(by <= bound + 1e-9 for by, bound in slower if bound is not None)


def wavy(groups: Sequence[Sequence[str]], bad: set[str]) -> list[Observation]:
    """Jobs of which those with a bad host are 10 % slow, give or take 0.2 %."""
    return [
        Observation(f"{n}", tuple(group), (1.1 if bad & set(group) else 1.0) * (1 + 0.002 * math.sin(n)))
        for n, group in enumerate(groups)
    ]


ALONE = [(host,) for host in SIXTEEN]
RING = [(SIXTEEN[n], SIXTEEN[(n + 1) % 16]) for n in range(16)]


def test_a_suspect_runs_alone_beside_others_of_its_moment() -> None:
    """Enough hosts ran alone before: five run again all the same, since the moment may differ."""
    jobs = wavy([*RING, *ALONE[4:]], {"n03"})
    wave = next_wave(localise(jobs, PLACE, Settings(references=4, beside=6)))
    assert ("n03",) in wave and sum(len(group) == 1 for group in wave) == 6


@pytest.mark.parametrize(
    ("hosts", "waves", "noise", "slow", "sizes"),
    [(12, 1, 0.006, 0.08, (1, 2)), (12, 3, 0.01, 0.1, (1, 2)), (8, 2, 0.004, 0.05, (1, 2)),
     (24, 3, 0.01, 0.1, (4,)), (16, 4, 0.015, 0.2, (1,))],
)  # fmt: skip
def test_a_slowdown_is_as_sure_as_its_standard_error_says(
    hosts: int, waves: int, noise: float, slow: float, sizes: tuple[int, ...]
) -> None:
    """Of thirty fleets each; also where healthy jobs are few and their deviation has to be learned."""
    names, errors = [f"h{number:02d}" for number in range(hosts)], []
    for seed in range(30):
        drawn, jobs = random.Random(seed), []
        for wave, size in itertools.product(range(waves), sizes):
            order = drawn.sample(names, hosts)
            for group in (tuple(order[begin : begin + size]) for begin in range(0, hosts, size)):
                seconds = (1 + slow * ("h03" in group)) * math.exp(drawn.gauss(0, noise))
                jobs.append(Observation(f"{wave} {group}", group, seconds))
        for each in judge(jobs, Topology(tuple(names))).hosts:
            if each.host == "h03" and each.slower and each.within:
                errors.append((each.slower - slow) / each.within)
    assert len(errors) > 25
    assert 0.65 < math.sqrt(sum(each**2 for each in errors) / len(errors)) < 1.3


# ---- noise -----------------------------------------------------------------------------------------------


def test_tails_are_learned() -> None:
    """Of normal noise, eight deviations are hardly possible, of noise with tails they are; cost grows."""
    draw = random.Random(1)
    normal = [abs(draw.gauss(0, 1)) for _ in range(200)]
    tailed = [abs(draw.gauss(0, 1)) / (draw.gammavariate(1.5, 2.0) / 3) ** 0.5 for _ in range(200)]
    thin, thick, none = learn(normal), learn(tailed), learn(())
    assert thin.cost(4) > 6 > thick.cost(4)
    assert thin.cost(8) > 1.3 * thick.cost(8)
    for tail in (thin, thick, none):
        costs = [tail.cost(0.1 * step) for step in range(5000)]
        assert costs == sorted(costs) and costs[0] == 0.0


def test_a_reading_costs_what_the_noise_of_its_own_side_says() -> None:
    """Slow jobs have long tails here, fast ones none: five deviations below cost much more than above."""
    rows = Readings()
    rows.slow, rows.fast = learn([0.5, 1.0, 4.0, 6.0, 8.0] * 20), learn([0.3, 0.7, 1.0, 1.5] * 20)
    for value in (-0.05, 0.05):
        rows.add((0, 1), value, 0.01, 0, JobClass("w", 2))
    faster, slower = rows.loss(0, 0.0), rows.loss(1, 0.0)
    assert faster == pytest.approx(rows.fast.cost(5.0)) and slower == pytest.approx(rows.slow.cost(5.0))
    assert faster > 8.0 > 5.0 > slower
