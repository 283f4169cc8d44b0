"""Hosts that are slower by the same factor: other hardware, and judged beside each other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from simulate import Planted, SimulatedFleet, hunt

from muster.judging import Observation, Topology, judge, judge_state
from muster.judging.document import Gate
from muster.judging.logs import judge as judge_logs
from tests.unit.logs import chat_log

HOSTS = tuple(f"n{i:02d}" for i in range(64))
PLACE = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[8 * k : 8 * k + 8]) for k in range(8)))
OLDER = random.Random(1).sample(HOSTS, 16)


def singles(older: dict[str, float], bad: str = "", seed: int = 1, jobs: int = 3) -> list[Observation]:
    """Jobs of each host alone, some of them slower by a share, and one 5 % slow."""
    draw = random.Random(seed)
    return [
        Observation(
            f"{host}-{job}",
            (host,),
            (1 + older.get(host, 0.0)) * (1.05 if host == bad else 1.0) * draw.gauss(1, 0.004),
        )
        for job in range(jobs)
        for host in HOSTS
    ]


@pytest.mark.parametrize("slower", [0.08, 0.5, 2.0])
def test_16_of_64_are_no_16_faults(slower: float) -> None:
    found = judge(singles(dict.fromkeys(OLDER, slower)), PLACE)
    assert not found.accused and not found.one_of
    (group,) = found.alike
    assert set(group.hosts) == set(OLDER) and group.slower == pytest.approx(slower, rel=0.05)
    conditions = {each.subject[0]: each.condition for each in found.hosts}
    assert {conditions[host] for host in OLDER} == {"probably fit"}  # nobody said that it is their hardware
    assert {conditions[host] for host in HOSTS if host not in OLDER} == {"fit"}


@pytest.mark.parametrize(
    ("kinds", "each"), [((0.08, 0.3), 12), ((0.08, 0.3), 23), ((0.08, 0.3, 0.8), 12), ((0.08, 0.3, 0.8), 15)]
)
def test_kinds_of_hardware_that_are_as_many_are_apart(kinds: tuple[float, ...], each: int) -> None:
    """So many of each beside the fastest: each is judged beside its own, also the last one that is found, and
    where most of the others are slower still."""
    draw = random.Random(5)
    hosts = draw.sample(HOSTS, 64)
    own = {hosts[each * kind + number]: by for kind, by in enumerate(kinds) for number in range(each)}
    found = judge(singles(own), PLACE)
    assert not found.accused
    of_level = {by: {host for host, level in own.items() if level == by} for by in kinds}
    assert [set(group.hosts) for group in sorted(found.alike, key=lambda group: group.slower)] == [
        *of_level.values()
    ]
    assert len({key.work for key in found.baselines}) == 1 + len(kinds)


@pytest.mark.parametrize("bad", [OLDER[3], next(host for host in HOSTS if host not in OLDER)])
def test_a_slow_host_is_named_among_those_of_its_kind(bad: str) -> None:
    """One of them is not alike any more, and is held against the others."""
    (verdict,) = judge(singles(dict.fromkeys(OLDER, 0.08), bad), PLACE).accused
    slower = 1.05 * 1.08 - 1 if bad in OLDER else 0.05
    assert verdict.subject == (bad,) and verdict.slower == pytest.approx(slower, abs=0.01)


def test_in_pairs_of_either_kind_while_jobs_are_asked_for() -> None:
    for seed in range(4):
        for faults in ((), (Planted("card", (HOSTS[7 * seed],), 0.05),)):
            fleet = SimulatedFleet(PLACE, faults, seed=seed, timed=True, older=(16, 0.08))
            found = judge_state(hunt(fleet, 6).state)
            assert {each.subject for each in found.accused} == {each.where for each in faults}
            assert sum(len(each.hosts) for each in found.alike) in (15, 16, 17)


@pytest.mark.parametrize("fast", [1, 4, 16, 24, 30])
@pytest.mark.parametrize("slower", [0.03, 0.08, 0.3])
def test_hosts_that_are_faster_make_nobody_slow(fast: int, slower: float) -> None:
    """Pairs of two fast hosts are few, and pairs at the pace of the others many: these are normal. A host of
    the others that is slower still is named, where the fast ones are a quarter or fewer."""
    for seed in (7, 11):
        fleet = SimulatedFleet(PLACE, seed=seed, timed=True, older=(64 - fast, slower))
        assert not judge_state(hunt(fleet, 6).state).accused
    if fast > 16:
        return
    slow = next(host for host, own in fleet.own.items() if own > 0)
    fault = Planted("card", (slow,), 0.1)
    again = SimulatedFleet(PLACE, (fault,), seed=11, timed=True, older=(64 - fast, slower))
    assert [each.subject for each in judge_state(hunt(again, 6).state).accused] == [(slow,)]


@pytest.mark.parametrize("bad", [HOSTS[5], "n63"])
def test_one_that_is_as_slow_as_hosts_alike_is_not_convicted(bad: str) -> None:
    """It may be of their hardware: whoever knows that is asked."""
    older = {host: 0.08 for host in OLDER if host != bad}
    found = judge(singles(older | {bad: 0.083}), PLACE)
    assert not found.accused
    unsure = {each.subject[0]: each for each in found.hosts if each.condition != "fit"}
    assert unsure.keys() == older.keys() | {bad} and "hardware" in unsure[bad].settle


def test_what_shows_in_groups_alone_is_no_hardware() -> None:
    slow = tuple(Planted("card", (host,), 0.08) for host in OLDER)
    fleet = SimulatedFleet(PLACE, slow, seed=3, timed=True)
    found = judge_state(hunt(fleet, 8).state)
    named = {each.subject[0] for each in found.accused if each.scope == "host"}
    assert named <= set(OLDER) and len(named) >= 12 and not found.alike


def test_faults_of_one_size_or_of_many_are_faults() -> None:
    """Eight of 64, or as many as one likes that are not alike; and what hosts behind one switch share."""
    few = judge(singles(dict.fromkeys(OLDER[:8], 0.08)), PLACE)
    assert {each.subject[0] for each in few.accused} == set(OLDER[:8]) and not few.alike
    unlike = {host: 0.05 + 0.02 * number for number, host in enumerate(OLDER)}
    many = judge(singles(unlike), PLACE)
    assert {each.subject[0] for each in many.accused} == set(OLDER) and not many.alike
    rack = judge(singles(dict.fromkeys(HOSTS[:8], 0.08))[:48], Topology(HOSTS[:16], (("leaf0", HOSTS[:8]),)))
    assert not rack.alike


def test_from_logs(tmp_path: Path) -> None:
    for number in range(16):
        for job in range(2):
            slower = 1.08 if number % 4 == 1 else 1.0
            pace = 0.2 * slower * (1 + 0.002 * ((7 * number + 5 * job) % 5 - 2))
            lines = chat_log([f"lx{number:02d}"], pace)
            (tmp_path / f"{number}-{job}.log").write_text("\n".join(lines) + "\n")
    found = judge_logs(tmp_path)
    assert found.summary["slow"] == 0 and found.summary["probably fit"] == 4 and found.gate is Gate.OPEN
    assert any("4 hosts alike" in note and "other hardware?" in note for note in found.notes)
    works = {job.work for job in found.jobs}
    assert len(works) == 2 and works == {each.work for each in found.peers}
    assert all(abs(job.slower or 0) < 0.02 for job in found.jobs)
