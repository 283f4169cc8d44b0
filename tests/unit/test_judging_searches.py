"""Which host, link or switch it is, found by waves of jobs on fleets that are not there."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from simulate import NOISES, Noise, Planted, SimulatedFleet, by_size, hunt

from muster.judging import (
    Baseline,
    JobClass,
    Judgement,
    Observation,
    Settings,
    Topology,
    judge,
    judge_posterior,
    localise,
    next_wave,
)
from muster.judging.faults import OF_HOSTS, Kind
from muster.judging.observation import Group
from tests.unit.fleets import HOSTS, PLAIN, SWITCHED, conditions, named

TWICE = Settings(sweeps=2)
TIMED = {"timed": True}
Faults = Callable[[int], Sequence[Planted]]
WHERE: dict[Kind, tuple[str, ...]] = {
    "compute": ("n05",), "card": ("n05",), "link": ("n05", "n06"), "switch": ("leaf1",), "uplink": ("leaf1",),
}  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Fleets of some seeds with the faults that each has, and what a hunt of so many waves names."""

    faults: Sequence[Planted] | Faults = ()
    waves: int = 6
    seeds: Iterable[int] = range(3)
    place: Topology = SWITCHED
    how: dict[str, Any] = field(default_factory=dict)
    settings: Settings = Settings()  # noqa: RUF009
    kind: bool = False  # the kind of each fault, and how slow it is, are right as well
    least: int | None = None  # fleets in which all faults are named and nothing else; None: all fleets
    wrong: int = 0  # other things that are accused, in all fleets
    ends: int | None = None  # waves after which nothing is asked any more
    alike: int = 0  # hosts of other hardware, one more or less


def at(kind: Kind, first: int, step: int, by: float, **more: Any) -> Faults:
    """A fault of a host that is another one in each fleet."""
    return lambda seed: (Planted(kind, (HOSTS[first + step * seed],), by, **more),)


def card(*hosts: str, by: float = 0.05, **more: Any) -> tuple[Planted, ...]:
    return tuple(Planted("card", (host,), by, **more) for host in hosts)


def redrawn(share: float, slower: float) -> Noise:
    """0.4 %, and this share of the jobs in groups is slower: paths through a network are drawn for each."""
    return lambda draw, size: (
        draw.gauss(0.0, 0.004) + (math.log1p(slower) if size > 1 and draw.random() < share else 0.0)
    )


def sized(count: int) -> Topology:
    return Topology(tuple(f"n{i:04d}" for i in range(count)) if count > 64 else HOSTS[:count])


def leaves(hosts: int, size: int) -> Topology:
    return Topology(
        HOSTS[:hosts], tuple((f"leaf{k}", HOSTS[size * k : size * k + size]) for k in range(hosts // size))
    )


SEARCHES: dict[str, Search] = {
    "nothing": Search((), 10, range(30), ends=9),
    "nothing, where jobs have hiccups and hosts differ": Search(
        (), 8, range(40), how={"spread": 0.003, "hiccups": 0.01}, wrong=2
    ),
    "nothing, where a drift looks like slow racks": Search(
        (), seeds=(1_000_060, 1_000_097), how={**TIMED, **NOISES["drift of 2 %"]}
    ),
    "two that met": Search([*card("n20"), Planted("compute", ("n21",), 0.07)], seeds=range(5)),
    "the good host between two bad ones": Search(card("n20", "n22"), seeds=range(5)),
    "a processor, by waiting times in two waves": Search(
        [Planted("compute", ("n20",), 0.05)], 2, range(10), how={"waits": True}, kind=True
    ),
    "a host whose jobs fail": Search([Planted("compute", ("n07",), 0.0)], 3, range(5)),
    "three of a thousand": Search(
        [Planted("card", (f"n{i:04d}",), 0.05) for i in (3, 500, 777)], seeds=(0,), place=sized(1000)
    ),
    "one of three thousand, and it ends": Search(card("n0000"), 16, (7,), sized(3000), ends=8),
    "a card in half of its jobs": Search(card("n30", chance=0.5), 8, range(20), how=TIMED, least=15),
    "a card in some of its jobs": Search(
        card("n30", by=0.08, chance=0.6), 12, range(20), settings=Settings(sweeps=6), least=10
    ),
    "a switch that makes traffic a hundred times slower, among hosts that are good alone": Search(
        lambda seed: (Planted("switch", (f"leaf{seed % 8}",), 99.0),), 4, range(16), how=TIMED
    ),
    "eight processors behind one switch, not the switch": Search(
        [Planted("compute", (host,), 0.05) for host in HOSTS[24:32]], how=TIMED, kind=True
    ),
    "a host of 30 % where nobody dates a drift": Search(
        at("card", 0, 6, 0.3), seeds=range(10), place=PLAIN, how={"drift": 0.02}
    ),
    "nothing where nobody dates a drift": Search((), seeds=range(10), place=PLAIN, how={"drift": 0.02}),
    "nothing, beside older hardware": Search(
        (), seeds=range(4), how={**TIMED, "older": (16, 0.08)}, alike=16
    ),
    "a card, beside older hardware": Search(
        at("card", 0, 7, 0.05), seeds=range(4), how={**TIMED, "older": (16, 0.08)}, alike=16
    ),
    **{
        f"one {kind} in three waves": Search(
            lambda seed, kind=kind: (Planted(kind, (HOSTS[random.Random(seed).randrange(64)],), 0.05),),
            3,
            range(10),
            kind=True,
        )
        for kind in ("compute", "card")
    },
    **{
        f"the link {a}-{b}": Search([Planted("link", (a, b), 0.05)], 4, range(5), kind=True)
        for a, b in (("n10", "n11"), ("n11", "n12"), ("n00", "n63"))
    },
    **{
        f"one {kind}, {'' if how else 'un'}timed": Search(
            [Planted(kind, ("leaf3",), 0.05)], waves, range(5), how=how, kind=True
        )
        for kind in ("switch", "uplink")
        for how, waves in (({}, 4), (TIMED, 6))
    },
    **{
        f"a card of {count}": Search(
            lambda seed, count=count: card(HOSTS[seed % count], by=0.1), 8, place=sized(count)
        )
        for count in (4, 5, 6, 7, 9, 16, 33)
    },
    **{
        f"nothing in noise: {noise}": Search((), seeds=range(10), how={**TIMED, **NOISES[noise]}, wrong=1)
        for noise in NOISES
    },
    **{
        f"{kind} in noise: {noise}": Search(
            [Planted(kind, where, 0.05)], waves, range(6), how={**TIMED, **NOISES[noise]}, least=5, wrong=1
        )
        for noise in NOISES
        for kind, where, waves in (("compute", ("n20",), 3), ("card", ("n20",), 3), ("link", HOSTS[20:22], 4))
    },
    **{
        f"an uplink of three that most jobs ask about, {waves} waves": Search(
            [Planted("uplink", ("leaf1",), 0.2)], waves, place=leaves(12, 4), how={**TIMED, "noise": 0.001}
        )
        for waves in (3, 5, 7)
    },
    **{
        f"a processor that grows hot, {by}": Search(
            at("compute", 0, 1, by, late=True), seeds=range(4), place=sized(16),
            how={**TIMED, "course": 0.002},
        )
        for by in (0.1, 0.3, 1.3)
    },
    **{
        f"a card, where {share} of jobs are slow once": Search(
            at("card", 0, 5, 0.05), seeds=range(10), place=PLAIN,
            how={**TIMED, "hiccups": share, "hiccup": (0.3, 0.3)}, least=9, wrong=1,
        )
        for share in (0.01, 0.05)
    },
    **{
        f"{'a card of 50 %' if faults else 'nothing'}, where {share} of jobs draw {slower}": Search(
            faults, place=PLAIN, how={**TIMED, "noise": redrawn(share, slower)}
        )
        for share, slower in ((0.15, 0.05), (0.3, 0.05), (0.5, 0.03))
        for faults in ((), at("card", 0, 6, 0.5))
    },
    **{
        f"a card, with {word}": Search(
            at("card", 0, 5, 0.05), seeds=range(10), place=PLAIN, how={**TIMED, **how}, least=8, wrong=2
        )
        for word, how in {
            "stalls": {"stalls": (0.02, 10.0)},
            "stalls in windows of ten": {"stalls": (0.02, 10.0), "window": 10},
            "noisy pairs": {"noise": by_size(0.005, 0.02)},
        }.items()
    },
    **{
        f"{kind}, {by} slower": Search([Planted(kind, where, by)], place=leaves(32, 4), how=TIMED)
        for kind, where in WHERE.items()
        for by in (0.05, 0.5, 2.0, 20.0, 100.0)
    },
}  # fmt: skip


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_faults_are_named_and_nothing_else(search: Search) -> None:
    fleets = right = wrong = 0
    for seed in search.seeds:
        faults = search.faults(seed) if callable(search.faults) else search.faults
        fleet = SimulatedFleet(search.place, tuple(faults), seed=seed, **search.how)
        search_of = hunt(fleet, search.waves, search.settings)
        found = judge_posterior(search_of.state)
        planted = {each.where: each for each in faults}
        fleets += 1
        right += named(found) == planted.keys()
        wrong += len(named(found) - planted.keys())
        assert search.ends is None or search_of.waves <= search.ends
        assert abs(sum(len(each.hosts) for each in found.alike) - search.alike) <= bool(search.alike)
        assert planted or search.wrong or search.how or not conditions(found)
        for each in found.accused:
            fault = planted.get(each.subject)
            assert fault is None or each.condition == ("slow" if fault.by else "failing")
            if fault is not None and search.kind:
                assert each.kind == fault.kind and each.slower == pytest.approx(fault.by, abs=0.012)
    assert right >= (fleets if search.least is None else search.least) or not (faults or not search.wrong)
    assert wrong <= search.wrong


@pytest.mark.parametrize("fast", [1, 4, 16, 24, 30])
@pytest.mark.parametrize("slower", [0.03, 0.08, 0.3])
def test_hosts_that_are_faster_make_nobody_slow(fast: int, slower: float) -> None:
    """Pairs of two fast hosts are few, and pairs at the pace of the others many: these are normal. A host of
    the others that is slower still is named, where the fast ones are a quarter or fewer."""
    older = (64 - fast, slower)
    for seed in (7, 11):
        fleet = SimulatedFleet(SWITCHED, seed=seed, timed=True, older=older)
        assert not judge_posterior(hunt(fleet, 6).state).accused
    if fast <= 16:
        slow = next(host for host, own in fleet.own.items() if own > 0)
        again = SimulatedFleet(SWITCHED, card(slow, by=0.1), seed=11, timed=True, older=older)
        assert named(judge_posterior(hunt(again, 6).state)) == {(slow,)}


@pytest.mark.parametrize(
    ("bad", "waves", "least", "how"),
    [
        (random.Random(5).sample(HOSTS, 20), 8, 16, {}),
        (random.Random(1).sample(HOSTS, 16), 8, 12, {"timed": True, "seed": 3}),
    ],
)
def test_of_many_bad_ones_most_are_named(bad: list[str], waves: int, least: int, how: dict[str, Any]) -> None:
    """Half of all pairs are slow then; still the fast ones are what is normal. What shows in groups alone is
    no other hardware."""
    found = judge_posterior(hunt(SimulatedFleet(PLAIN, card(*sorted(bad), by=0.08), **how), waves).state)
    assert named(found) <= {(host,) for host in bad} and len(named(found)) >= least and not found.alike


def test_too_few_waves_accuse_nobody() -> None:
    for seed in range(10):
        state = hunt(SimulatedFleet(SWITCHED, card("n20"), seed=seed), 1).state
        verdict = judge_posterior(state).hosts[20]
        assert not judge_posterior(state).accused
        assert verdict.condition == "unknown" and 0.2 < verdict.confidence < 0.6
    rack = tuple(Planted("compute", (host,), 0.05) for host in HOSTS[24:32])
    for seed in range(3):  # it may be the switch or the hosts
        early = judge_posterior(hunt(SimulatedFleet(SWITCHED, rack, seed=seed, timed=True), 1).state)
        assert not early.switches and not early.accused


def test_a_switch_is_named_only_after_its_hosts_ran_alone() -> None:
    def groups(kind: Kind) -> Judgement:
        fleet = SimulatedFleet(SWITCHED, (Planted(kind, ("leaf3",), 0.05),), seed=1, timed=True)
        return judge([each for each in hunt(fleet, 4).observations if len(each.hosts) > 1], SWITCHED)

    assert not groups("switch").switches
    assert named(groups("uplink")) == {("leaf3",)}  # pairs behind it are good: it cannot be its hosts


def test_a_switch_that_nobody_knows_of_is_its_hosts() -> None:
    fleet, observations = SimulatedFleet(SWITCHED, (Planted("switch", ("leaf3",), 0.05),), seed=1), []
    for _ in range(6):
        observations += fleet.run(next_wave(localise(observations, PLAIN)))
    assert named(judge(observations, PLAIN)) == {(host,) for host in HOSTS[24:32]}


@dataclass
class Spelled(SimulatedFleet):
    """All jobs that touch leaf3 are 10 % slower in these waves."""

    when: tuple[int, ...] = ()

    def run(self, groups: Iterable[Group], work: str = "") -> list[Observation]:
        hit = set(HOSTS[24:32]) if self.waves + 1 in self.when else set()
        return [
            replace(each, seconds=(each.seconds or 0.0) * 1.1) if hit & set(each.hosts) else each
            for each in super().run(groups, work)
        ]


@pytest.mark.parametrize("when", [(2,), (2, 3), (5, 6), (3, 4, 5)])
@pytest.mark.parametrize("faults", [(), card(HOSTS[25])], ids=["alone", "with a card behind it"])
def test_a_switch_that_is_slow_for_a_while_is_no_fault(
    when: tuple[int, ...], faults: tuple[Planted, ...]
) -> None:
    for seed in range(3):
        state = hunt(Spelled(SWITCHED, faults, seed=seed, timed=True, when=when), 6).state
        assert named(judge_posterior(state)) == {each.where for each in faults}
        assert faults or {each.switch for each in state.spells} == {3}


def ring_but(*left_out: Group, seed: int) -> tuple[SimulatedFleet, list[Observation]]:
    """A healthy fleet, and its jobs in pairs of neighbours without these."""
    fleet = SimulatedFleet(SWITCHED, seed=seed)
    jobs = fleet.run([(HOSTS[i], HOSTS[(i + 1) % 64]) for first in (0, 1) for i in range(first, 64, 2)])
    return fleet, [each for each in jobs if each.hosts not in left_out]


def test_what_shows_alone_only_is_asked_alone() -> None:
    """Of a host that is good in groups, groups tell nothing more, however many are asked for."""
    fleet, jobs = ring_but(seed=3)
    jobs += [each for each in fleet.run([(host,) for host in HOSTS[:32]]) if each.hosts != ("n10",)]
    jobs.append(Observation("a", ("n10",), 1.025))
    state = localise(jobs, SWITCHED, TWICE)
    assert 0.01 < state.suspicion(10) < 0.98
    assert [group for group in next_wave(state) if "n10" in group] == [("n10",)]
    jobs += [Observation(f"b{again}", ("n10",), 1.0) for again in range(2)]
    assert next_wave(localise(jobs, SWITCHED, TWICE)) == ()


@pytest.mark.parametrize("bad", range(5))
def test_where_a_host_alone_tells_nothing_only_groups_are_asked(bad: int) -> None:
    """A workload that only exchanges: each question of a host alone would be a wave for nothing."""
    topology, settings = sized(5), Settings(slow=0.1, alone=False, sweeps=2)
    fleet, jobs = SimulatedFleet(topology, card(HOSTS[bad], by=0.25), seed=bad), list[Observation]()
    while groups := next_wave(localise(jobs, topology, settings)):
        assert all(len(group) > 1 for group in groups)
        jobs += fleet.run(groups)
    assert named(judge_posterior(localise(jobs, topology, settings))) == {(HOSTS[bad],)}
    assert fleet.waves <= 4


def test_a_slow_job_without_a_reason_is_looked_into() -> None:
    """Chance, or what comes and goes: both are asked for until they had six jobs in groups, and no longer."""
    suspects = ("n10", "n11")
    fleet, jobs = ring_but(suspects, seed=5)
    jobs.append(Observation("slow", suspects, 1.06))
    while groups := next_wave(localise(jobs, SWITCHED, TWICE)):
        jobs += fleet.run(groups)
        assert set(suspects) <= {host for group in groups for host in group}
    of = [sum(host in each.hosts and len(each.hosts) > 1 for each in jobs) for host in suspects]
    assert of == [6, 6] and fleet.waves == 5


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_small_fleets(count: int) -> None:
    """Against stored baselines; without them it stops, and knows nothing."""
    topology = sized(count)
    stored = {JobClass("", size): Baseline(1.0, 0.004, 64) for size in (1, 2)}
    fleet = SimulatedFleet(topology, (Planted("compute", ("n00",), 0.05),), seed=3)
    observations: list[Observation] = []
    for _ in range(6):
        observations += fleet.run(next_wave(localise(observations, topology, stored=stored)))
    assert conditions(judge(observations, topology, stored=stored)) == {"n00": "slow"}
    blind = hunt(fleet, 50)
    assert blind.waves < 20
    assert {each.condition for each in judge_posterior(blind.state).hosts} == {"unknown"}


def test_first_waves_try_every_link_of_the_ring() -> None:
    plain, tried, jobs = sized(10), set[frozenset[str]](), list[Observation]()
    fleet = SimulatedFleet(plain, seed=0)
    for _ in range(2):
        groups = next_wave(localise(jobs, plain))
        tried |= {frozenset(group) for group in groups}
        jobs += fleet.run(groups)
    assert tried == {frozenset((HOSTS[i], HOSTS[(i + 1) % 10])) for i in range(10)}
    search = hunt(SimulatedFleet(sized(16), (), seed=1, timed=True), 9, Settings(sweeps=1, beside=0))
    assert {HOSTS[0], HOSTS[15]} in [set(each.hosts) for each in search.observations]


def test_a_job_of_all_hosts_points_at_one() -> None:
    """One hint, at most 4 nats: the first suspect, and far from enough to convict."""
    fleet = SimulatedFleet(SWITCHED, (Planted("compute", ("n20",), 0.05),), seed=2, waits=True)
    state = localise(fleet.run([HOSTS]), SWITCHED)
    assert state.suspicion(20) == max(state.suspects.values()) > 0.005
    assert not judge_posterior(state).accused
    assert any("n20" in group for group in next_wave(state)[:2])


def test_a_hosts_own_fault_and_its_racks_count_once() -> None:
    """A host of four fails all its jobs: its card, its processor or what its rack shares, or two of these."""
    place = Topology(("a", "b", "c", "d"), (("s0", ("a", "b")), ("s1", ("c", "d"))))
    state = hunt(SimulatedFleet(place, (Planted("compute", ("a",), 0.0),), seed=0), 5).state
    part = state.part_of[0]
    own = [
        each.probability
        for each in part.explanations
        if any(f.kind == "rack" or (f.kind in OF_HOSTS and f.where == (0,)) for f in each.faults)
    ]
    assert any(len(each.faults) > 1 for each in part.explanations)
    assert part.of_host(0) < state.suspicion(0) <= 1.0
    assert state.suspicion(0) == pytest.approx(sum(own))
