"""Fleets whose noise is not what one would like: tails, drift, hosts that differ, racks, throttling."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulate import NOISES, Planted, SimulatedFleet, hunt

from muster.judging import Judgement, Observation, Settings, Topology, judge, judge_state
from muster.judging.faults import Kind
from muster.judging.noise import learn

HOSTS = tuple(f"n{i:02d}" for i in range(64))
SWITCHED = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[8 * k : 8 * k + 8]) for k in range(8)))


def found(noise: str, *faults: Planted, most: int = 6, seed: int = 0) -> Judgement:
    fleet = SimulatedFleet(SWITCHED, faults, seed=seed, timed=True, **NOISES[noise])
    return judge_state(hunt(fleet, most).state)


def named(judgement: Judgement) -> set[tuple[str, ...]]:
    return {each.subject for each in judgement.accused}


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_healthy_hosts_are_left_alone(noise: str) -> None:
    """10 fleets of 64: at most one host is accused in all of them (0.16 %)."""
    assert sum(len(named(found(noise, seed=seed))) for seed in range(10)) <= 1


@pytest.mark.parametrize("noise", sorted(NOISES))
@pytest.mark.parametrize(
    ("kind", "where", "by", "waves"),
    [("compute", ("n20",), 0.05, 3), ("card", ("n20",), 0.05, 3), ("link", ("n20", "n21"), 0.05, 4)],
)
def test_what_is_5_per_cent_slow_is_named(
    noise: str, kind: Kind, where: tuple[str, ...], by: float, waves: int
) -> None:
    right = sum(
        named(found(noise, Planted(kind, where, by), most=waves, seed=s)) == {where} for s in range(6)
    )
    assert right >= 5


def test_a_rack_that_is_slow_in_compute_is_not_its_switch() -> None:
    """Eight hosts behind one switch are slow, alone too: they are named, once some of them ran alone."""
    slow = tuple(Planted("compute", (host,), 0.05) for host in HOSTS[24:32])
    for seed in range(3):
        fleet = SimulatedFleet(SWITCHED, slow, seed=seed, timed=True)
        early = judge_state(hunt(fleet, 1).state)
        assert not early.switches and not early.accused  # it may be either
        verdicts = found("Gaussian", *slow, seed=seed)
        assert named(verdicts) == {(host,) for host in HOSTS[24:32]}
        assert {each.kind for each in verdicts.accused} == {"compute"}


def test_a_switch_is_named_only_after_its_hosts_ran_alone() -> None:
    fleet = SimulatedFleet(SWITCHED, (Planted("switch", ("leaf3",), 0.05),), seed=1, timed=True)
    search = hunt(fleet, 4)
    assert named(judge_state(search.state)) == {("leaf3",)}
    groups = [each for each in search.observations if len(each.hosts) > 1]
    assert not judge(groups, SWITCHED).switches
    uplink = SimulatedFleet(SWITCHED, (Planted("uplink", ("leaf3",), 0.05),), seed=1, timed=True)
    pairs = [each for each in hunt(uplink, 4).observations if len(each.hosts) > 1]
    assert named(judge(pairs, SWITCHED)) == {("leaf3",)}  # pairs behind it are good: it cannot be its hosts


def test_slow_in_half_of_its_jobs() -> None:
    """Named in most fleets within eight waves, and nobody else ever (benchmarks/localise.py: 92 %)."""
    right = 0
    for seed in range(20):
        verdicts = found("Gaussian", Planted("card", ("n30",), 0.05, chance=0.5), most=8, seed=seed)
        assert named(verdicts) <= {("n30",)}
        right += verdicts.hosts[30].bad
    assert right >= 15


def jobs_alone(own: dict[str, float], runs: int, noise: float = 0.0011, work: str = "") -> list[Observation]:
    draw = random.Random(3)
    return [
        Observation(f"{work}{run}{host}", (host,), (1 + own[host]) * (1 + draw.gauss(0, noise)), work=work)
        for run in range(runs)
        for host in HOSTS
    ]


def test_hosts_that_differ_no_more_than_their_fleet() -> None:
    """Hosts differ by 0.4 % for good, jobs by 0.11 %: one that is 1.1 % slower is a part of that, however
    often it runs; one that is 4 % slower is not."""
    draw = random.Random(8)
    own = {host: draw.gauss(0, 0.004) for host in HOSTS} | {"n10": 0.011, "n40": 0.04}
    for runs in (2, 3, 6):
        verdicts = judge(jobs_alone(own, runs), Topology(HOSTS))
        assert named(verdicts) == {("n40",)}
        differs = verdicts.hosts[10]
        assert differs.condition == "differs"
        assert differs.slower == pytest.approx(0.011, abs=0.003) and "differ by" in differs.reason


def test_the_same_slowness_where_hosts_are_alike() -> None:
    own = dict.fromkeys(HOSTS, 0.0) | {"n10": 0.013}
    assert named(judge(jobs_alone(own, 3), Topology(HOSTS))) == {("n10",)}


def test_a_throttled_processor_shows_in_the_heavy_work_only() -> None:
    """50 % slow in one work and normal in another: slow; and the bound of the others is of every work."""
    heavy = dict.fromkeys(HOSTS, 0.0) | {"n10": 0.5, "n11": 0.008}
    jobs = jobs_alone(heavy, 2, work="heavy") + jobs_alone(dict.fromkeys(HOSTS, 0.0), 2, work="light")
    verdicts = judge(jobs, Topology(HOSTS))
    assert named(verdicts) == {("n10",)}
    assert verdicts.hosts[10].slower == pytest.approx(0.5, abs=0.02)
    bound = verdicts.hosts[11].at_most
    assert bound is not None and bound >= 0.008


@pytest.mark.parametrize("spread", [0.001, 0.004])
def test_no_host_was_slower_than_its_bound(spread: float) -> None:
    """Alone, in any work: at_most is above the mean of what was measured."""
    draw = random.Random(5)
    works = {name: {host: abs(draw.gauss(0, spread)) for host in HOSTS} for name in ("small", "large")}
    jobs = [each for name, own in works.items() for each in jobs_alone(own, 1, work=name)]
    verdicts = judge(jobs, Topology(HOSTS))
    for name in works:
        base = next(each.seconds for key, each in verdicts.baselines.items() if key.work == name)
        for job in (each for each in jobs if each.work == name):
            verdict = verdicts.hosts[HOSTS.index(job.hosts[0])]
            if verdict.at_most is not None and job.seconds is not None:
                assert job.seconds / base - 1 <= verdict.at_most + 1e-9


def test_what_was_looked_at() -> None:
    """Compute where a host ran alone or trained in a group, its card and links where it ran in a group; what
    only exchanges tells nothing of compute."""
    alone = jobs_alone(dict.fromkeys(HOSTS, 0.0), 1)
    draw = random.Random(4)
    pairs = [
        Observation(f"p{i}{w}", (HOSTS[i], HOSTS[(i + 1) % 64]), 1 + draw.gauss(0, 0.003), work="pairs")
        for w in (0, 1)
        for i in range(w, 64, 2)
    ]
    exchanges = [Observation(e.job, e.hosts, e.seconds, work="fabric", exchanges=True) for e in pairs]

    def looked(jobs: list[Observation]) -> dict[str, tuple[str, int]]:
        verdict = judge(jobs, Topology(HOSTS)).hosts[5]
        return {each.name: (each.condition, each.jobs) for each in verdict.subjects}

    assert looked(alone) == {"compute": ("fit", 1)}
    assert looked(pairs) == {"compute": ("fit", 2), "card": ("fit", 2), "links": ("fit", 2)}
    assert looked(exchanges) == {"compute": ("unknown", 0), "card": ("fit", 2), "links": ("fit", 2)}
    assert looked([*alone, *exchanges])["compute"] == ("fit", 1)


def test_a_doubt_says_what_would_settle_it() -> None:
    jobs = jobs_alone(dict.fromkeys(HOSTS, 0.0), 1, noise=0.003)
    jobs[7] = Observation("x", ("n07",), 1.03)
    verdict = judge(jobs, Topology(HOSTS)).hosts[7]
    assert verdict.condition in ("probably fit", "unknown") and 0.02 < verdict.confidence < 0.98
    assert "n07" in verdict.settle
    again = [Observation(f"y{n}", ("n07",), 1.0) for n in range(2)]
    assert judge([*jobs, *again], Topology(HOSTS)).hosts[7].condition == "fit"


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


def test_what_counts_as_slow_can_be_asked_for() -> None:
    own = dict.fromkeys(HOSTS, 0.0) | {"n10": 0.03}
    jobs = jobs_alone(own, 2)
    assert named(judge(jobs, Topology(HOSTS), Settings(slow=0.02))) == {("n10",)}
    assert not judge(jobs, Topology(HOSTS), Settings(slow=0.05)).accused


def test_a_figure_that_its_own_steps_do_not_agree_on_weighs_less() -> None:
    """A job whose own figure is known to 10 % is no witness against its host."""
    jobs = jobs_alone(dict.fromkeys(HOSTS, 0.0), 2, noise=0.003)
    slow = [Observation(f"x{n}", ("n07",), 1.08) for n in range(2)]
    assert named(judge([*jobs, *slow], Topology(HOSTS))) != set()
    loose = [replace(each, spread=0.1) for each in slow]
    assert not judge([*jobs, *loose], Topology(HOSTS)).accused


def test_a_switch_that_slows_most_jobs_of_a_moment_is_no_drift() -> None:
    """Twelve hosts behind three leaves: from the fourth wave on, most jobs ask about the suspect uplink."""
    hosts = HOSTS[:12]
    fleet = Topology(hosts, tuple((f"leaf{k}", hosts[4 * k : 4 * k + 4]) for k in range(3)))
    for seed in range(3):
        slow = SimulatedFleet(
            fleet, (Planted("uplink", ("leaf1",), 0.2),), noise=0.001, seed=seed, timed=True
        )
        for waves in (3, 5, 7):
            assert named(judge_state(hunt(slow, waves).state)) == {("leaf1",)}


def test_two_that_always_ran_together() -> None:
    """Three slow jobs, and nothing that tells the two apart: one of them is bad, and that is said."""
    jobs = jobs_alone(dict.fromkeys(HOSTS, 0.0), 1, noise=0.003)
    draw = random.Random(4)
    for again in range(3):
        for i in range(0, 64, 2):
            slow = 0.05 if i == 20 else 0.0
            seconds = (1 + slow) * (1 + draw.gauss(0, 0.003))
            jobs.append(Observation(f"p{again}{i}", (HOSTS[i], HOSTS[i + 1]), seconds, work="pairs"))
    found = judge(jobs, Topology(HOSTS))
    assert not found.accused
    assert found.one_of == (("n20", "n21"),)
    assert judge(jobs[:64], Topology(HOSTS)).one_of == ()
    parted = [Observation(f"x{n}", ("n20", HOSTS[30 + n]), 1.0, work="pairs") for n in range(2)]
    settled = judge([*jobs, *parted], Topology(HOSTS))
    assert settled.one_of in ((), (("n20", "n21"),))
    assert settled.hosts[20].condition != "slow"


def test_where_many_are_slow_each_is_less_of_a_surprise() -> None:
    """Thirty of 64 hosts are 8 to 20 % slow alone, in one job each: named (were they all slow by the same:
    other hardware). One such host alone is not."""
    slow = HOSTS[:30]
    own = dict.fromkeys(HOSTS, 0.0) | {host: 0.08 + 0.004 * number for number, host in enumerate(slow)}
    assert named(judge(jobs_alone(own, 1, noise=0.003), Topology(HOSTS))) == {(host,) for host in slow}
    one = dict.fromkeys(HOSTS, 0.0) | {"n05": 0.1}
    assert not judge(jobs_alone(one, 1, noise=0.003), Topology(HOSTS)).accused


@pytest.mark.parametrize(
    ("alone", "groups", "says"),
    [
        (0.2, None, "alone"), (0.2, 0.0, "alone but not in groups"), (0.2, 0.2, "alone and in groups"),
        (0.0, 0.2, "in groups but not alone"), (None, 0.2, "in groups of hosts"),
    ],
)  # fmt: skip
def test_the_reason_says_where_it_shows(alone: float | None, groups: float | None, says: str) -> None:
    jobs = []
    if alone is not None:
        jobs += jobs_alone(dict.fromkeys(HOSTS, 0.0) | {"n05": alone}, 2, noise=0.003)
    draw = random.Random(4)
    for again in range(2 if groups is not None else 0):
        for i in range(again, 64, 2):
            pair = (HOSTS[i], HOSTS[(i + 1) % 64])
            seconds = (1 + (groups or 0.0) * ("n05" in pair)) * (1 + draw.gauss(0, 0.003))
            jobs.append(Observation(f"p{again}{i}", pair, seconds))
    verdict = judge(jobs, Topology(HOSTS)).hosts[5]
    assert verdict.condition == "slow"
    assert verdict.reason.split(", ", 1)[1].partition(":")[0] == says


@pytest.mark.parametrize("others", [0, 2, 6])
@pytest.mark.parametrize("by", [0.3, 2.0])
def test_a_host_that_is_in_most_jobs_is_not_what_is_normal(others: int, by: float) -> None:
    """Ten pairs with one slow host, and a few without it: never "fit" for it, nor bad for the others."""
    draw = random.Random(1)
    pairs = [("n00", HOSTS[k]) for k in range(1, 11)] + [
        (HOSTS[20 + 2 * k], HOSTS[21 + 2 * k]) for k in range(others)
    ]
    jobs = [
        Observation("-".join(pair), pair, (1 + by * ("n00" in pair)) * (1 + draw.gauss(0, 0.002)))
        for pair in pairs
    ]
    found = judge(jobs, Topology(HOSTS))
    assert found.hosts[0].condition == ("slow" if others >= 4 else "unknown")
    assert not any(each.bad for each in (*found.hosts[1:], *found.links))
    assert others >= 4 or all(each.condition == "unknown" for each in found.hosts)


def test_one_host_that_ran_alone_more_often_than_all_others() -> None:
    draw = random.Random(1)
    times = [("n00", 1.5)] * 12 + [(host, 1.0) for host in HOSTS[1:7]]
    jobs = [Observation(f"{n}{h}", (h,), s * (1 + draw.gauss(0, 0.002))) for n, (h, s) in enumerate(times)]
    assert named(judge(jobs, Topology(HOSTS[:8]))) == {("n00",)}


@pytest.mark.parametrize("seed", [59, 96])
def test_drift_that_looks_like_slow_racks(seed: int) -> None:
    """Fleets that drift by 2 % from wave to wave, in which several racks look slow without their moments."""
    fleet = SimulatedFleet(SWITCHED, seed=seed + 1_000_000, timed=True, **NOISES["drift of 2 %"])
    assert not judge_state(hunt(fleet, 6).state).accused
