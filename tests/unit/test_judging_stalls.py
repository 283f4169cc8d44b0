"""Steps that stall whoever runs them hide no slow host; a host whose steps stall is slow."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path

import pytest
from simulate import Planted, SimulatedFleet, by_size, hunt

from muster.core.robust import halves_of
from muster.judging import Observation, Topology, judge, judge_state
from muster.judging.logs import judge as judge_logs
from muster.judging.stalls import usual_paces

HOSTS = tuple(f"n{i:02d}" for i in range(16))
PLACE = Topology(HOSTS)


def jobs(stalls: dict[str, float], slow: str = "", unit: float = 1.0) -> list[Observation]:
    """Five of each host, of 100 steps, of which a share stalls tenfold; one host takes 5 % longer. `unit`: of
    the halves, relative to the seconds."""
    draw, made = random.Random(7), list[Observation]()
    for number in range(5):
        for host in HOSTS:
            pace = draw.gauss(1, 0.004) * (1.05 if host == slow else 1.0)
            steps = [
                pace * draw.gauss(1, 0.01) * (10 if draw.random() < stalls.get(host, 0.0) else 1)
                for _ in range(100)
            ]
            error = statistics.stdev(steps) / statistics.fmean(steps) / 10
            halves = halves_of([step * unit for step in steps])
            made.append(
                Observation(f"{host}-{number}", (host,), statistics.fmean(steps), spread=error, halves=halves)
            )
    return made


@pytest.mark.parametrize("share", [0.004, 0.02, 0.1])
@pytest.mark.parametrize("unit", [1.0, 1 / 64])
def test_stalls_of_the_whole_fleet_hide_no_slow_host(share: float, unit: float) -> None:
    everywhere = dict.fromkeys(HOSTS, share)
    assert not judge(jobs(everywhere, unit=unit), PLACE).accused
    (verdict,) = judge(jobs(everywhere, "n05", unit), PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower == pytest.approx(0.05, abs=0.01)


def test_stalls_of_one_host_are_its_own() -> None:
    found = jobs({"n05": 0.1})
    assert usual_paces(found) == found
    (verdict,) = judge(found, PLACE).accused
    assert verdict.subject == ("n05",) and verdict.slower is not None and verdict.slower > 0.4


def test_usual_paces_stay_as_they_are() -> None:
    once = usual_paces(jobs(dict.fromkeys(HOSTS, 0.02)))
    assert usual_paces(once) == once


@pytest.mark.parametrize(
    "how",
    [
        {"stalls": (0.02, 10.0)},
        {"stalls": (0.02, 10.0), "window": 10},
        {"noise": by_size(0.005, 0.02)},
    ],
    ids=["stalls", "stalls in windows of ten", "noisy pairs"],
)
def test_a_slow_card_is_mostly_named(how: dict[str, object]) -> None:
    """Of ten fleets of 64 hosts; benchmarks/localise.py tries more."""
    place = Topology(tuple(f"h{i:02d}" for i in range(64)))
    right = 0
    for seed in range(10):
        fault = Planted("card", (place.hosts[5 * seed],), 0.05)
        accused = judge_state(
            hunt(SimulatedFleet(place, (fault,), seed=seed, timed=True, **how), 6).state
        ).accused  # type: ignore[arg-type]
        right += [each.subject for each in accused] == [fault.where]
    assert right >= 8


def test_logs_of_a_fleet_that_stalls_say_so(tmp_path: Path) -> None:
    """Logs of nanoGPT's of 200 steps; two of a hundred take ten times as long."""
    for number, host in enumerate(HOSTS[:12] * 2):
        draw = random.Random(number)
        lines = [f"SLURM_JOB_NODELIST={host}", "Overriding: batch_size = 12"]
        for step in range(200):
            slow = (10 if draw.random() < 0.02 else 1) * (1.05 if host == "n05" else 1.0)
            lines.append(f"iter {step}: loss 4.0, time {250 * slow * draw.gauss(1, 0.01):.2f}ms, mfu 15.00%")
        (tmp_path / f"{host}-{number // 12}.log").write_text("\n".join(lines) + "\n")
    found = judge_logs(tmp_path, workload="gpt")
    assert [each.hosts for each in found.hosts if each.condition == "slow"] == [["n05"]]
    assert any("usual steps" in note for note in found.notes)
    assert not any("not sure" in note for note in found.notes), found.notes
    of_slow = [each.slower for each in found.jobs if each.hosts == ["n05"]]
    assert all(slower == pytest.approx(0.05, abs=0.02) for slower in of_slow)


def test_where_halves_stall_the_faster_half_counts() -> None:
    made = []
    for number, host in enumerate([*HOSTS] * 2):
        seconds, halves = (2.5, (1.0, 3.0)) if number % 2 else (1.0, (1.0, 1.0))
        made.append(Observation(str(number), (host,), seconds, halves=halves))
    assert {(each.seconds, each.halves) for each in usual_paces(made)} == {(1.0, None)}


def test_the_noise_of_a_host_s_own_jobs_makes_it_no_fitter() -> None:
    """Two jobs alone, 55 and 18 % slower for stalls that no other host has: it is slow, or unknown."""
    hosts = [f"n{number:02d}" for number in range(16)]
    jobs = [
        Observation(f"{turn}-{host}", (host,), 10.0 + 0.01 * (number % 3), work="w", spread=0.0)
        for turn in range(2)
        for number, host in enumerate(hosts)
        if host != "n05"
    ]
    jobs += [Observation("a", ("n05",), 15.5, work="w", spread=0.3)]
    jobs += [Observation("b", ("n05",), 11.8, work="w", spread=0.1)]
    verdicts = {each.subject[0]: each.condition for each in judge(jobs, Topology.of(hosts, {})).hosts}
    assert verdicts.pop("n05") in ("slow", "unknown") and set(verdicts.values()) == {"fit"}


@pytest.mark.parametrize("spreads", [(0.1, 0.1), (0.0, 0.1)])
def test_a_work_whose_jobs_are_unsteady_on_all_hosts_has_fit_ones(spreads: tuple[float, float]) -> None:
    """Windows that differ by as much on every host, with means that agree: no host is less steady."""
    hosts = [f"n{number:02d}" for number in range(16)]
    jobs = [
        Observation(f"{turn}-{host}", (host,), 10.0 + 0.01 * (number % 3), work="w", spread=spreads[turn])
        for turn in range(2)
        for number, host in enumerate(hosts)
    ]
    verdicts = judge(jobs, Topology.of(hosts, {})).hosts
    assert {each.condition for each in verdicts} == {"fit"}


def test_an_unsteady_job_says_little_of_a_host_whichever_came_first() -> None:
    """One job is known to 0.2 %, the other to 10 %: the host is at most 1 % slower."""
    hosts = [f"n{number:02d}" for number in range(16)]
    spreads = {"n05": (0.0, 0.1), "n06": (0.1, 0.0)}
    jobs = [
        Observation(f"{turn}-{host}", (host,), 10.0, work="w", spread=spreads.get(host, (0.0, 0.0))[turn])
        for turn in range(2)
        for host in hosts
    ]
    verdicts = {each.subject[0]: each for each in judge(jobs, Topology.of(hosts, {})).hosts}
    for host in spreads:
        assert verdicts[host].condition == "fit" and 0 < (verdicts[host].at_most or 0) < 0.01
    assert verdicts["n05"].at_most == pytest.approx(verdicts["n06"].at_most)


@pytest.mark.parametrize("size", [1, 2])
def test_the_usual_noise_is_that_of_most_hosts_not_of_most_jobs(size: int) -> None:
    """One host of four scatters, and is in half of the jobs, or more: that makes it no fitter, nor others
    less fit."""
    hosts = ["n00", "n01", "n02", "n03"]
    groups = list(itertools.combinations(hosts, size)) * 2 + ([("n00",)] * 8 if size == 1 else [])
    jobs = [
        Observation(str(number), group, 10.0 + 0.01 * (number % 3), work="w", spread=0.1 * ("n00" in group))
        for number, group in enumerate(groups)
    ]
    verdicts = {each.subject[0]: each.condition for each in judge(jobs, Topology.of(hosts, {})).hosts}
    assert verdicts.pop("n00") == "unknown" and set(verdicts.values()) == {"fit"}


@pytest.mark.parametrize("common", [False, True])
def test_a_job_s_noise_excuses_it_only_where_others_are_as_noisy(common: bool) -> None:
    """One of a host's two jobs is 12 % slower, known to 10 %."""
    hosts = [f"n{number:02d}" for number in range(16)]
    jobs = [
        Observation(
            f"{turn}-{host}", (host,), 10.0 + 0.01 * (number % 3), work="w", spread=0.1 * common * turn
        )
        for turn in range(2)
        for number, host in enumerate(hosts)
        if (turn, host) != (1, "n05")
    ]
    jobs += [Observation("slower", ("n05",), 11.2, work="w", spread=0.1)]
    verdicts = {each.subject[0]: each.condition for each in judge(jobs, Topology.of(hosts, {})).hosts}
    assert verdicts.pop("n05") == ("fit" if common else "unknown") and set(verdicts.values()) == {"fit"}
