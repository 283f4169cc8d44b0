"""A fleet whose pace drifts, while nothing says when its jobs ran: said, and nobody accused of it."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from simulate import Noise, Planted, SimulatedFleet, hunt

from muster.judging import Observation, Topology, judge_state, localise
from muster.judging.logs import judge as judge_logs

HOSTS = tuple(f"n{i:02d}" for i in range(64))
PLACE = Topology(HOSTS)


def test_nobody_is_accused_of_drift() -> None:
    """20 fleets of 64 with a pace of its own for every wave, 2 % apart; a host that is 30 % slow is named."""
    for seed in range(10):
        assert not judge_state(hunt(SimulatedFleet(PLACE, seed=seed, drift=0.02), 6).state).accused
        bad = Planted("card", (HOSTS[6 * seed],), 0.3)
        found = judge_state(hunt(SimulatedFleet(PLACE, (bad,), seed=seed, drift=0.02), 6).state)
        assert [each.subject for each in found.accused] == [bad.where]


def at_paces(paces: tuple[float, ...], *, timed: bool) -> list[Observation]:
    """A job of each host alone at each pace, with 0.4 % of noise."""
    draw = random.Random(1)
    return [
        Observation(
            f"{host}-{wave}", (host,), pace * draw.gauss(1, 0.004), moment=f"wave{wave}" if timed else ""
        )
        for wave, pace in enumerate(paces)
        for host in HOSTS
    ]


def test_it_is_noticed_and_only_where_it_is() -> None:
    paces = (1.0, 1.06, 1.03, 1.0)
    state = localise(at_paces(paces, timed=False), PLACE)
    assert state.drifts[""] == pytest.approx(0.025, abs=0.003)  # their standard deviation is 2.5 %
    assert not judge_state(state).accused
    assert not localise(at_paces(paces, timed=True), PLACE).drifts
    assert not localise(at_paces((1.0,) * 4, timed=False), PLACE).drifts


def test_fewer_than_eight_jobs_show_no_drift() -> None:
    hosts = HOSTS[:4]
    jobs = [
        Observation(f"{host}-{wave}", (host,), pace * (1 + 0.001 * number))
        for wave, pace in enumerate((1.0, 1.06))
        for number, host in enumerate(hosts)
    ]
    assert set(localise(jobs, Topology(hosts)).drifts) == {""}
    assert not localise(jobs[1:], Topology(hosts)).drifts


@pytest.mark.parametrize("size", [4, 6])
def test_a_few_hosts_in_pairs_that_nobody_dates(size: int) -> None:
    """Two or three hosts are in every job of so few: that they explain the slow ones shows nothing."""
    place = Topology(HOSTS[:size])
    for seed in range(6):
        fleet, draw = SimulatedFleet(place, seed=seed, hiccups=0.3), random.Random(seed)
        jobs = []
        for _ in range(16):
            order = draw.sample(place.hosts, size)
            jobs += fleet.run(list(zip(order[::2], order[1::2], strict=True)))
        assert not judge_state(localise(jobs, place)).accused


def test_many_bad_hosts_or_hiccups_are_no_drift() -> None:
    alone = [(host,) for host in HOSTS]
    many = tuple(Planted("compute", (host,), 0.05 + 0.01 * number) for number, host in enumerate(HOSTS[:24]))
    for faults, hiccups in ((many, 0.0), ((), 0.05)):
        fleet = SimulatedFleet(PLACE, faults, seed=3, hiccups=hiccups, hiccup=(0.3, 0.3))
        state = localise([job for _ in range(5) for job in fleet.run(alone)], PLACE)
        assert not state.drifts
        assert len(judge_state(state).accused) == len(faults)


def test_the_notes_say_it(tmp_path: Path) -> None:
    """nanoGPT's logs, which have no times of day."""
    draw = random.Random(2)
    for wave, pace in enumerate((1.0, 1.06, 1.03, 1.0)):
        for number in range(16):
            lines = [f"SLURM_JOB_NODELIST=lx{number:02d}"]
            own = 250 * pace * draw.gauss(1, 0.003)
            lines += [f"iter {step}: loss 4.{step:03d}0, time {own:.2f}ms, mfu 15.00%" for step in range(40)]
            (tmp_path / f"{number}-{wave}.log").write_text("\n".join(lines))
    found = judge_logs(tmp_path, workload="gpt")
    assert found.summary["slow"] == 0 and any("drifts" in note and "gpt" in note for note in found.notes)


def redrawn(share: float, slower: float) -> Noise:
    """0.4 %, and this share of the jobs in groups is slower: paths through a network are drawn for each."""
    return lambda draw, size: (
        draw.gauss(0.0, 0.004) + (math.log1p(slower) if size > 1 and draw.random() < share else 0.0)
    )


@pytest.mark.parametrize(("share", "slower"), [(0.15, 0.05), (0.3, 0.05), (0.5, 0.03)])
def test_nobody_is_accused_where_each_job_draws_its_pace(share: float, slower: float) -> None:
    """The jobs of a moment are known, and slow beside others of it that are not."""
    for seed in range(3):
        fleet = SimulatedFleet(PLACE, noise=redrawn(share, slower), seed=seed, timed=True)
        assert not judge_state(hunt(fleet, 6).state).accused
        bad = Planted("card", (HOSTS[6 * seed],), 0.5)
        fleet = SimulatedFleet(PLACE, (bad,), redrawn(share, slower), seed, timed=True)
        assert [each.subject for each in judge_state(hunt(fleet, 6).state).accused] == [bad.where]
