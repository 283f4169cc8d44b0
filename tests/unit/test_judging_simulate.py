"""The simulator that the judge is proven on does what it says: noise of the kind and size asked for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from simulate import NOISES, Planted, SimulatedFleet, resampled

from muster.judging import Observation
from tests.unit.fleets import HOSTS, PLAIN, SWITCHED

PAIRS = [HOSTS[i : i + 2] for i in range(0, 64, 2)]


def logs(jobs: Sequence[Observation]) -> list[float]:
    return [math.log(float(each.seconds or 0)) for each in jobs]


def drawn(name: str, waves: int = 200) -> list[float]:
    fleet = SimulatedFleet(PLAIN, seed=1, **NOISES[name])
    return [value for _ in range(waves) for value in logs(fleet.run([(host,) for host in HOSTS]))]


def test_the_t_noise_has_its_scale_and_its_tail() -> None:
    """Half of |t3| is below 0.765; 1.4 % is above 5, where a normal number never is."""
    for name in ("t3", "t3, slow side"):
        sizes = sorted(abs(value) / 0.004 for value in drawn(name))
        assert statistics.median(sizes) == pytest.approx(0.765, rel=0.03)
        assert sum(size > 5 for size in sizes) / len(sizes) == pytest.approx(0.0154, rel=0.15)
    assert min(drawn("t3, slow side")) >= 0
    assert sum(value < 0 for value in drawn("t3")) / 12_800 == pytest.approx(0.5, abs=0.02)


def test_a_wave_drifts_as_a_whole_and_says_which_it_was() -> None:
    fleet = SimulatedFleet(PLAIN, seed=3, timed=True, **NOISES["drift of 2 %"])
    waves = [fleet.run(PAIRS) for _ in range(400)]
    paces = [statistics.fmean(logs(wave)) for wave in waves]
    assert statistics.stdev(paces) == pytest.approx(0.02, rel=0.1)
    assert statistics.fmean(statistics.stdev(logs(wave)) for wave in waves) == pytest.approx(0.004, rel=0.05)
    assert [{each.moment for each in wave} for wave in waves[:2]] == [{"wave1"}, {"wave2"}]
    assert max(float(each.ended or 0) for each in waves[0]) == waves[1][0].began == waves[1][-1].began
    assert all(
        each.ended == each.began + 100 * each.seconds for each in waves[1] if each.seconds and each.began
    )
    raw = SimulatedFleet(PLAIN).run(PAIRS)[0]
    assert (raw.moment, raw.began, raw.ended) == ("", None, None)


def test_a_group_is_as_slow_as_its_slowest_member_and_a_fault_comes_on_top() -> None:
    fault = Planted("compute", ("n00",), 0.05)
    fleet = SimulatedFleet(PLAIN, (fault,), noise=0.0, spread=0.003, seed=5)
    alone = dict(zip(HOSTS, logs(fleet.run([(host,) for host in HOSTS])), strict=True))
    assert statistics.stdev([alone[host] for host in HOSTS[1:]]) == pytest.approx(0.003, rel=0.2)
    assert alone["n00"] == pytest.approx(fleet.own["n00"] + math.log(1.05))
    for pair, value in zip(PAIRS, logs(fleet.run(PAIRS)), strict=True):
        assert value == pytest.approx(max(alone[host] for host in pair))


def test_residuals_are_those_of_jobs_on_as_many_hosts() -> None:
    fleet = SimulatedFleet(PLAIN, noise=resampled({1: [0.01, 0.02], 2: [-0.01]}))
    assert {round(value, 9) for value in logs(fleet.run([(host,) for host in HOSTS]))} == {0.01, 0.02}
    assert {round(value, 9) for value in logs(fleet.run([*PAIRS, HOSTS[:8]]))} == {-0.01}


def test_a_fault_can_take_100_times_as_long_and_can_show_in_one_work_alone() -> None:
    faults = (Planted("card", ("n00",), 100.0), Planted("compute", ("n02",), 0.5, work="heavy"))
    fleet = SimulatedFleet(PLAIN, faults, noise=0.0)

    def seconds(*hosts: str, work: str) -> float:
        (job,) = fleet.run([hosts], work)
        assert job.work == work
        return float(job.seconds or 0)

    assert seconds("n00", "n01", work="light") == pytest.approx(101.0)
    assert seconds("n02", work="heavy") == pytest.approx(1.5)
    assert seconds("n02", work="light") == pytest.approx(1.0)


def test_the_simulator_keeps_to_its_model() -> None:
    """Alone only slow compute shows; a link only among ring neighbours; an uplink only across."""
    faults = (
        Planted("compute", ("n00",), 0.1),
        Planted("card", ("n10",), 0.2),
        Planted("link", ("n20", "n22"), 0.3),
    )
    fleet = SimulatedFleet(SWITCHED, (*faults, Planted("uplink", ("leaf4",), 0.4)), noise=0.0, waits=True)

    def slower(*hosts: str) -> float:
        return round(float(fleet.run([hosts])[0].seconds or 0) - 1, 9)

    assert (slower("n00"), slower("n00", "n01"), slower("n10"), slower("n10", "n11")) == (0.1, 0.1, 0.0, 0.2)
    assert (slower("n20", "n22"), slower("n20", "n21", "n22", "n23"), slower("n20", "n21", "n22")) == (
        0.3,
        0.0,
        0.3,
    )
    assert (slower("n32", "n33"), slower("n33", "n01"), slower("n00", "n33")) == (0.0, 0.4, 0.4)
    assert fleet.run([("n00", "n01")])[0].computing == pytest.approx((0.9, 0.8))
    noisy = SimulatedFleet(SWITCHED, noise=0.004, seed=1).run([(host,) for host in HOSTS])
    spread = math.sqrt(sum((float(each.seconds or 0) - 1) ** 2 for each in noisy) / 64)
    assert 0.003 < spread < 0.005
