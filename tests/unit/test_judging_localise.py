"""Which host, link or switch it is, found by waves of jobs on a fleet that is not there."""

from __future__ import annotations

import math
import random

import pytest
from simulate import Hunt, Planted, SimulatedFleet, hunt

from muster.judging import (
    Baseline,
    Class,
    Observation,
    Settings,
    Topology,
    judge,
    judge_state,
    localise,
    next_wave,
)
from muster.judging.faults import OF_HOSTS, Kind

HOSTS = tuple(f"n{i:02d}" for i in range(64))
TWICE = Settings(sweeps=2)
SWITCHED = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[8 * k : 8 * k + 8]) for k in range(8)))


def search(
    *faults: Planted, most: int = 6, seed: int = 0, topology: Topology = SWITCHED, **how: bool
) -> Hunt:
    return hunt(SimulatedFleet(topology, faults, seed=seed, **how), most)  # type: ignore[arg-type]


def accused(found: Hunt) -> set[tuple[str, ...]]:
    return {each.subject for each in judge_state(found.state).accused}


def test_a_healthy_fleet_is_cleared() -> None:
    for seed in range(30):
        found = search(seed=seed, most=10)
        verdicts = judge_state(found.state)
        assert not verdicts.accused
        assert {each.condition for each in verdicts.hosts} == {"fit"}
        assert found.waves < 10


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["compute", "card"])
def test_one_host_in_three_waves(kind: Kind, seed: int) -> None:
    host = HOSTS[random.Random(seed).randrange(64)]
    found = search(Planted(kind, (host,), 0.05), most=3, seed=seed)
    verdict = judge_state(found.state).hosts[HOSTS.index(host)]
    assert accused(found) == {(host,)}
    assert verdict.kind == kind
    assert verdict.slower == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("seed", range(10))
def test_waiting_times_save_the_third_wave(seed: int) -> None:
    """With them, slow compute is named, as such, in two."""
    found = search(Planted("compute", ("n20",), 0.05), most=2, seed=seed, waits=True)
    assert accused(found) == {("n20",)}
    assert judge_state(found.state).hosts[20].kind == "compute"


def test_two_that_met_are_both_named() -> None:
    """Bad neighbours, who are each other's first partner."""
    for seed in range(5):
        found = search(Planted("card", ("n20",), 0.05), Planted("compute", ("n21",), 0.07), seed=seed)
        assert accused(found) == {("n20",), ("n21",)}


def test_what_shows_alone_only_is_asked_alone() -> None:
    """Of a host that is good in groups, groups tell nothing more, however many are asked for."""
    fleet = SimulatedFleet(SWITCHED, seed=3)
    jobs = fleet.run([(HOSTS[i], HOSTS[(i + 1) % 64]) for first in (0, 1) for i in range(first, 64, 2)])
    jobs += [each for each in fleet.run([(host,) for host in HOSTS[:32]]) if each.hosts != ("n10",)]
    jobs.append(Observation("a", ("n10",), 1.025))
    state = localise(jobs, SWITCHED, TWICE)
    assert 0.01 < state.suspicion(10) < 0.98
    assert [group for group in next_wave(state) if "n10" in group] == [("n10",)]
    for again in range(2):
        jobs.append(Observation(f"b{again}", ("n10",), 1.0))
    assert next_wave(localise(jobs, SWITCHED, TWICE)) == ()


@pytest.mark.parametrize("bad", range(5))
def test_where_a_host_alone_tells_nothing_only_groups_are_asked(bad: int) -> None:
    """A workload that only exchanges: each question of a host alone would be a wave for nothing."""
    topology, five = Topology(HOSTS[:5]), HOSTS[:5]
    fleet = SimulatedFleet(topology, (Planted("card", (five[bad],), 0.25),), seed=bad)
    settings, jobs, waves = Settings(slow=0.1, alone=False, sweeps=2), list[Observation](), 0
    while groups := next_wave(localise(jobs, topology, settings)):
        assert all(len(group) > 1 for group in groups)
        jobs += fleet.run(groups)
        waves += 1
    found = judge_state(localise(jobs, topology, settings))
    assert [each.subject for each in found.accused] == [(five[bad],)]
    assert waves <= 4


def test_a_slow_job_without_a_reason_is_looked_into() -> None:
    """Chance, or what comes and goes: both are asked for until they had six jobs in groups, and no longer."""
    fleet = SimulatedFleet(SWITCHED, seed=5)
    jobs = fleet.run([(HOSTS[i], HOSTS[(i + 1) % 64]) for first in (0, 1) for i in range(first, 64, 2)])
    jobs = [each for each in jobs if each.hosts != ("n10", "n11")]
    jobs.append(Observation("slow", ("n10", "n11"), 1.06))
    waves = 0
    while groups := next_wave(localise(jobs, SWITCHED, TWICE)):
        jobs += fleet.run(groups)
        waves += 1
        assert {"n10", "n11"} <= {host for group in groups for host in group}
    of = [sum(host in each.hosts and len(each.hosts) > 1 for each in jobs) for host in ("n10", "n11")]
    assert of == [6, 6] and waves == 4


def test_asking_ends_in_large_fleets() -> None:
    hosts = tuple(f"n{i:04d}" for i in range(3000))
    found = search(Planted("card", (hosts[0],), 0.05), most=16, topology=Topology(hosts), seed=7)
    assert found.waves <= 8
    assert accused(found) == {(hosts[0],)}


def test_the_good_host_between_two_bad_ones_is_spared() -> None:
    for seed in range(5):
        found = search(Planted("card", ("n20",), 0.05), Planted("card", ("n22",), 0.05), seed=seed)
        assert accused(found) == {("n20",), ("n22",)}


@pytest.mark.parametrize("pair", [("n10", "n11"), ("n11", "n12"), ("n00", "n63")])
def test_a_link_of_the_ring(pair: tuple[str, str]) -> None:
    for seed in range(5):
        found = search(Planted("link", pair, 0.05), most=4, seed=seed)
        verdicts = judge_state(found.state)
        assert [(each.subject, each.kind) for each in verdicts.accused] == [(pair, "link")]


@pytest.mark.parametrize("kind", ["switch", "uplink"])
def test_a_switch(kind: Kind) -> None:
    for seed in range(5):
        found = search(Planted(kind, ("leaf3",), 0.05), most=4, seed=seed)
        verdicts = judge_state(found.state)
        assert [(e.switch, e.subject, e.kind) for e in verdicts.accused] == [("leaf3", ("leaf3",), kind)]


def test_a_switch_that_nobody_knows_of_is_its_hosts() -> None:
    """Without a topology the same readings mean eight bad hosts: named all the same."""
    fleet = SimulatedFleet(SWITCHED, (Planted("switch", ("leaf3",), 0.05),), seed=1)
    plain, observations = Topology(HOSTS), []
    for _ in range(6):
        observations += fleet.run(next_wave(localise(observations, plain)))
    assert {each.subject[0] for each in judge(observations, plain).accused} == set(HOSTS[24:32])


def test_what_comes_and_goes() -> None:
    """Slow in some jobs: never another host is called bad for it, and with more jobs it is mostly found."""
    named = 0
    for seed in range(20):
        fleet = SimulatedFleet(SWITCHED, (Planted("card", ("n30",), 0.08, chance=0.6),), seed=seed)
        found = judge_state(hunt(fleet, 12, Settings(sweeps=6)).state)
        assert {each.subject for each in found.hosts if each.bad} <= {("n30",)}
        named += found.hosts[30].bad
    assert named >= 10


def test_failing_host_in_a_search() -> None:
    for seed in range(5):
        found = search(Planted("compute", ("n07",), 0.0), most=3, seed=seed)
        verdicts = judge_state(found.state)
        assert [(each.subject, each.condition) for each in verdicts.accused] == [(("n07",), "failing")]


@pytest.mark.parametrize("count", [4, 5, 6, 7, 9, 16, 33])
def test_other_sizes(count: int) -> None:
    topology = Topology(HOSTS[:count])
    for seed in range(3):
        bad = HOSTS[seed % count]
        found = search(Planted("card", (bad,), 0.1), most=8, seed=seed, topology=topology)
        assert accused(found) == {(bad,)}, seed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_small_fleets(count: int) -> None:
    """Against stored baselines; without them it stops, and knows nothing."""
    topology = Topology(HOSTS[:count])
    stored = {Class("", size): Baseline(1.0, 0.004, 64) for size in (1, 2)}
    fleet = SimulatedFleet(topology, (Planted("compute", ("n00",), 0.05),), seed=3)
    observations: list[Observation] = []
    for _ in range(6):
        groups = next_wave(localise(observations, topology, stored=stored))
        observations += fleet.run(groups)
    verdicts = judge(observations, topology, stored=stored)
    assert [each.subject for each in verdicts.accused] == [("n00",)]
    assert all(each.condition == "fit" for each in verdicts.hosts[1:])
    blind = hunt(fleet, 50)
    assert blind.waves < 20
    assert {each.condition for each in judge_state(blind.state).hosts} == {"unknown"}


def test_too_few_waves_accuse_nobody() -> None:
    for seed in range(10):
        found = search(Planted("card", ("n20",), 0.05), most=1, seed=seed)
        assert accused(found) == set()
        verdict = judge_state(found.state).hosts[20]
        assert verdict.condition == "unknown"
        assert 0.2 < verdict.confidence < 0.6


def test_hiccups_and_uneven_hosts_are_not_faults() -> None:
    """One job in 100 slowed by something that does not last, and hosts that differ by 0.3 % for good."""
    wrong = 0
    for seed in range(40):
        fleet = SimulatedFleet(SWITCHED, seed=seed, spread=0.003, hiccups=0.01)
        wrong += len(judge_state(hunt(fleet, 8).state).accused)
    assert wrong <= 2  # two hiccups of one host look like one that is slow now and then


@pytest.mark.parametrize("seed", range(4))
def test_waves_are_disjoint_and_of_known_hosts(seed: int) -> None:
    faults = (
        Planted("card", ("n20",), 0.05),
        Planted("link", ("n40", "n41"), 0.05),
        Planted("uplink", ("leaf1",), 0.03),
    )
    fleet = SimulatedFleet(SWITCHED, faults, seed=seed)
    observations: list[Observation] = []
    for _ in range(6):
        groups = next_wave(localise(observations, SWITCHED))
        members = [host for group in groups for host in group]
        assert len(members) == len(set(members))
        assert set(members) <= set(HOSTS)
        observations += fleet.run(groups)


def test_first_waves_try_every_link_of_the_ring() -> None:
    plain = Topology(HOSTS[:10])
    fleet = SimulatedFleet(plain, seed=0)
    tried: set[frozenset[str]] = set()
    observations: list[Observation] = []
    for _ in range(2):
        groups = next_wave(localise(observations, plain))
        tried |= {frozenset(group) for group in groups}
        observations += fleet.run(groups)
    assert tried == {frozenset((HOSTS[i], HOSTS[(i + 1) % 10])) for i in range(10)}


def test_a_job_of_all_hosts_points_at_one() -> None:
    """What costs no run: after one job of all hosts that says what each computed it is the first suspect."""
    fleet = SimulatedFleet(SWITCHED, (Planted("compute", ("n20",), 0.05),), seed=2, waits=True)
    state = localise(fleet.run([HOSTS]), SWITCHED)
    assert (
        state.suspicion(20) == max(state.suspects.values()) > 0.005
    )  # one hint, at most 4 nats: far from enough to convict
    assert not judge_state(state).accused
    assert any("n20" in group for group in next_wave(state)[:2])


def test_a_thousand_hosts_take_no_more_waves() -> None:
    hosts = tuple(f"h{i}" for i in range(1000))
    faults = tuple(Planted("card", (hosts[i],), 0.05) for i in (3, 500, 777))
    found = search(*faults, most=6, topology=Topology(hosts))
    assert accused(found) == {(hosts[i],) for i in (3, 500, 777)}


def test_a_third_of_the_fleet_is_bad() -> None:
    """Half of all pairs are slow then; still the fast ones are what is normal: no good host is accused."""
    draw = random.Random(5)
    bad = set(draw.sample(HOSTS, 20))
    found = search(
        *(Planted("card", (host,), 0.08) for host in sorted(bad)), most=8, topology=Topology(HOSTS)
    )
    named = {host for (host, *_) in accused(found)}
    assert named <= bad
    assert len(named) >= 16


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


def test_a_hosts_own_fault_and_its_racks_count_once() -> None:
    """A host of four fails all its jobs: its card, its processor or what its rack shares, or two of these."""
    fleet = SimulatedFleet(
        Topology(("a", "b", "c", "d"), (("s0", ("a", "b")), ("s1", ("c", "d")))),
        (Planted("compute", ("a",), 0.0),),
        noise=0.004,
        seed=0,
    )
    state = hunt(fleet, 5).state
    part = state.part_of[0]
    own = [
        each.probability
        for each in part.explanations
        if any(f.kind == "rack" or (f.kind in OF_HOSTS and f.where == (0,)) for f in each.faults)
    ]
    assert any(len(each.faults) > 1 for each in part.explanations)
    assert part.of_host(0) < state.suspicion(0) <= 1.0
    assert state.suspicion(0) == pytest.approx(sum(own))
