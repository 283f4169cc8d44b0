"""What is normal, from a fleet with bad hosts in it."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from muster.judging.baseline import Baseline, JobClass, fleet_baselines, robust, settle

STEP = JobClass("opt", 2)


def jobs(count: int, slow: int, by: float, seed: int = 0, noise: float = 0.004) -> list[float]:
    """`slow` of `count` times are longer by a share."""
    draw = random.Random(seed)
    return [(1 + by * (i < slow)) * (1 + draw.gauss(0, noise)) for i in range(count)]


@pytest.mark.parametrize(
    ("slow", "by"),
    [*((slow, by) for slow in (0, 1, 6, 16, 20) for by in (0.05, 0.5, 5.0)), (1, 0.02), (6, 0.02)],
)
@pytest.mark.parametrize("seed", range(30))
def test_slow_jobs_do_not_move_it(slow: int, by: float, seed: int) -> None:
    """32 jobs, of which up to 20 are slow (6 by 2 %): a median of everything would be among the slow ones."""
    base = fleet_baselines({STEP: jobs(32, slow, by, seed)})[STEP]
    assert base.seconds == pytest.approx(1.0, abs=0.005)
    assert 0.002 < base.sigma < 0.008


def test_a_mean_would_hide_the_slow_host() -> None:
    """Why not a mean: one host at half speed hides itself and another."""
    times = [*jobs(62, 0, 0), 2.0, 1.05]
    far = statistics.fmean(times) + 2 * statistics.stdev(times)
    base = fleet_baselines({JobClass("opt", 1): times})[JobClass("opt", 1)]
    assert far > 1.05 > base.seconds * (1 + 5 * base.sigma)


def test_scale_is_that_of_the_noise() -> None:
    """Over many fleets, within a tenth; and never far too small for few values."""
    scales = [fleet_baselines({STEP: jobs(32, 3, 0.05, seed)})[STEP].sigma for seed in range(300)]
    assert statistics.fmean(scales) == pytest.approx(0.004, rel=0.1)
    few = [fleet_baselines({STEP: jobs(4, 0, 0, seed)})[STEP].sigma for seed in range(300)]
    assert min(few) > 0.002


def test_scale_is_seldom_far_too_small() -> None:
    """What starts from a narrow window must not stay there: of 32 values, below 0.7 of it in 1 of 20."""
    scales = [robust([math.log(t) for t in jobs(32, 0, 0, seed)])[1] for seed in range(500)]
    assert sum(scale < 0.7 * 0.004 for scale in scales) < 25
    assert sum(scale > 1.4 * 0.004 for scale in scales) < 5


def test_large_noise_is_not_taken_for_faults() -> None:
    values = [math.log(value) for value in jobs(64, 0, 0, 3, noise=0.05)]
    middle, scale, kept = robust(values)
    assert abs(middle) < 0.03
    assert scale == pytest.approx(0.05, rel=0.35)
    assert kept >= 58


def test_equal_times_have_a_floor() -> None:
    assert fleet_baselines({STEP: [1.0] * 100})[STEP].sigma == pytest.approx(0.001, rel=0.05)


def test_of_few_the_stored_one() -> None:
    stored = {STEP: Baseline(2.0, 0.003, 64)}
    assert fleet_baselines({STEP: [2.1, 2.2, 2.3]}) == {}
    assert fleet_baselines({STEP: [2.1, 2.2, 2.3]}, stored) == {STEP: Baseline(2.0, 0.003, 64, stored=True)}
    assert not fleet_baselines({STEP: [2.1, 2.2, 2.3, 2.2]}, stored)[STEP].stored


def test_classes_are_apart_and_help_each_other() -> None:
    """Their times are never mixed; the scale of the class with few values leans on the other's."""
    alone = JobClass("opt", 1)
    both = fleet_baselines({STEP: jobs(4, 0, 0), alone: [0.7 * t for t in jobs(64, 0, 0, 1)]})
    assert both[STEP].seconds == pytest.approx(1.0, abs=0.01)
    assert both[alone].seconds == pytest.approx(0.7, abs=0.01)
    assert settle(0.0, 4, [(0.0, 0.004, 64)]) == pytest.approx(0.004 * math.sqrt(8 / 12))


def test_two_of_four_that_are_slow_alike_are_not_what_is_normal() -> None:
    """The pairs of a bad host on a ring of four: the others differ by more, and are four times as fast.
    Nothing makes jobs faster."""
    middle, _, count = robust([math.log(value) for value in (0.163, 0.179, 0.640, 0.641)])
    assert count == 2 and math.exp(middle) == pytest.approx(0.17, rel=0.1)
    lucky = robust([math.log(value) for value in (0.5, 1.0, 1.001, 1.002, 1.003)])  # one alone may be chance
    assert math.exp(lucky[0]) == pytest.approx(1.0, abs=0.01)
