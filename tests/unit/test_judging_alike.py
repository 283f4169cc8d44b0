"""Hosts that are slower by the same factor: other hardware, and compared with each other only."""

from __future__ import annotations

import random

import pytest

from muster.judging import Observation, Topology, judge
from muster.judging.alike import hosts_alike
from muster.judging.detrend import side_by_side
from muster.judging.observation import Settings
from muster.judging.readings import read
from tests.unit.fleets import HOSTS, SWITCHED, jobs_alone

OLDER = random.Random(1).sample(HOSTS, 16)


def singles(older: dict[str, float], bad: str = "") -> list[Observation]:
    """Jobs of each host alone, some of them slower by a share, and one 5 % slow."""
    slower = older | ({bad: (1 + older.get(bad, 0.0)) * 1.05 - 1} if bad else {})
    return jobs_alone(slower, 3)


@pytest.mark.parametrize("slower", [0.08, 0.5, 2.0])
def test_16_of_64_are_no_16_faults(slower: float) -> None:
    found = judge(singles(dict.fromkeys(OLDER, slower)), SWITCHED)
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
    found = judge(singles(own), SWITCHED)
    assert not found.accused
    of_level = {by: {host for host, level in own.items() if level == by} for by in kinds}
    assert [set(group.hosts) for group in sorted(found.alike, key=lambda group: group.slower)] == [
        *of_level.values()
    ]
    assert len({key.work for key in found.baselines}) == 1 + len(kinds)


@pytest.mark.parametrize("bad", [OLDER[3], next(host for host in HOSTS if host not in OLDER)])
def test_a_slow_host_is_named_among_those_of_its_kind(bad: str) -> None:
    """One of them is not alike any more, and is held against the others."""
    (verdict,) = judge(singles(dict.fromkeys(OLDER, 0.08), bad), SWITCHED).accused
    slower = 1.05 * 1.08 - 1 if bad in OLDER else 0.05
    assert verdict.subject == (bad,) and verdict.slower == pytest.approx(slower, abs=0.01)


@pytest.mark.parametrize("bad", [HOSTS[5], "n63"])
def test_one_that_is_as_slow_as_hosts_alike_is_not_convicted(bad: str) -> None:
    """It may be of their hardware: whoever knows that is asked."""
    older = {host: 0.08 for host in OLDER if host != bad}
    found = judge(singles(older | {bad: 0.083}), SWITCHED)
    assert not found.accused
    unsure = {each.subject[0]: each for each in found.hosts if each.condition != "fit"}
    assert unsure.keys() == older.keys() | {bad} and "hardware" in unsure[bad].settle


def test_faults_of_one_size_or_of_many_are_faults() -> None:
    """Eight of 64, or as many as one likes that are not alike; and what hosts behind one switch share."""
    few = judge(singles(dict.fromkeys(OLDER[:8], 0.08)), SWITCHED)
    assert {each.subject[0] for each in few.accused} == set(OLDER[:8]) and not few.alike
    unlike = {host: 0.05 + 0.02 * number for number, host in enumerate(OLDER)}
    many = judge(singles(unlike), SWITCHED)
    assert {each.subject[0] for each in many.accused} == set(OLDER) and not many.alike
    rack = judge(singles(dict.fromkeys(HOSTS[:8], 0.08))[:48], Topology(HOSTS[:16], (("leaf0", HOSTS[:8]),)))
    assert not rack.alike


@pytest.mark.parametrize(("strays", "groups"), [(0, 1), (2, 1), (3, 0), (6, 0)])
def test_few_may_be_nearly_as_slow(strays: int, groups: int) -> None:
    """Two hosts at 5 %, beside 16 at 8 %, are strays; with more, the 16 are not judged apart, and only
    suspected."""
    others = [host for host in HOSTS if host not in OLDER][::8][:strays]  # not behind one switch
    found = judge(singles(dict.fromkeys(OLDER, 0.08) | dict.fromkeys(others, 0.05)), SWITCHED)
    assert len(found.alike) == groups
    assert {each.subject[0] for each in found.accused} == set(others)
    unsure = {each.subject[0] for each in found.hosts if each.condition not in ("fit", "slow")}
    assert unsure == set(OLDER)


@pytest.mark.parametrize(("jobs", "forgiven"), [(3, False), (4, True)])
def test_one_of_four_jobs_in_groups_may_be_read_as_fast(jobs: int, forgiven: bool) -> None:
    """A host's second best group is its level from four of them on: one may be of a moment read wrongly."""
    draw = random.Random(3)
    older, others, made = list(OLDER), [host for host in HOSTS if host not in OLDER], list[Observation]()
    for wave in range(jobs):
        for kind in (older, others):
            half = len(kind) // 2
            for first in range(half):
                pair = (kind[first], kind[half + (first + wave) % half])
                slow = kind is older and not (older[0] in pair and wave == 0)
                made.append(
                    Observation(f"{pair}{wave}", pair, (1.08 if slow else 1.0) * draw.gauss(1, 0.004))
                )
    readings, _ = read(side_by_side(made, []), SWITCHED)
    (group,) = hosts_alike(made, readings, SWITCHED, Settings(), {})
    assert (older[0] in group.hosts) == forgiven
