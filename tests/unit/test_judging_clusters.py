"""Group jobs in two clusters: which hosts tell them apart, and whether chance may have done it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from muster.judging.baseline import Baseline
from muster.judging.clusters import by_baseline, by_moments
from muster.judging.observation import Observation, Settings, Topology
from muster.judging.verdict import Judgement, judge

Noise = Callable[[random.Random], float]


def gauss(draw: random.Random) -> float:
    return 0.004 * draw.gauss(0, 1)


def redrawn(draw: random.Random) -> float:
    """Draw anew for each job whether it is 8 % faster: of 30 % of them."""
    return gauss(draw) - (0.08 if draw.random() < 0.3 else 0.0)


def fleet(
    seed: object,
    count: int,
    size: int,
    waves: int,
    bad: int = 0,
    by: float = 0.0,
    noise: Noise = gauss,
    hours: float = 0.0,
) -> tuple[list[str], set[str], list[Observation]]:
    """Return hosts, the bad ones, and jobs of random groups; `hours`: by how much waves differ (log)."""
    draw = random.Random(f"{seed} {count} {size}")
    hosts = [f"n{number:02d}" for number in range(count)]
    slow, made = set(draw.sample(hosts, bad)), list[Observation]()
    for wave in range(waves):
        order, pace = draw.sample(hosts, count), draw.gauss(0, hours)
        for first in range(0, count - size + 1, size):
            group = tuple(sorted(order[first : first + size]))
            seconds = math.exp(pace + noise(draw)) * (1 + by if slow.intersection(group) else 1)
            made.append(Observation(f"{wave}-{first}", group, seconds, moment=str(wave)))
    return hosts, slow, made


def accused(found: Judgement) -> set[str]:
    return {host for each in found.accused for host in each.subject}


@pytest.mark.parametrize(
    ("count", "size", "waves", "bad", "by", "hours", "least"),
    [
        (16, 8, 10, 2, 0.15, 0.0, 3),
        (8, 4, 10, 2, 0.15, 0.0, 3),
        (32, 8, 8, 3, 0.2, 0.0, 8),
        (32, 8, 6, 3, 0.05, 0.0, 4),
        (24, 4, 5, 3, 0.1, 0.0, 9),
        (16, 4, 6, 2, 0.1, 0.03, 9),
    ],
)
def test_bad_hosts_that_are_in_most_jobs(
    count: int, size: int, waves: int, bad: int, by: float, hours: float, least: int
) -> None:
    """Most jobs are slow, or waves differ by as much as hosts: bad ones are named, and nobody else."""
    named = 0
    for seed in range(10):
        hosts, slow, made = fleet(seed, count, size, waves, bad, by, hours=hours)
        found = judge(made, Topology.of(hosts, {}))
        assert accused(found) <= slow
        named += accused(found) == slow
    assert named >= least


def test_hosts_of_no_fast_job_are_not_known_to_be_fit() -> None:
    """Two fast jobs of twelve may be chance, and are no reason to call the others' hosts fit."""
    hosts = [f"n{number}" for number in range(6)]
    slow = [("n1", "n4", other) for other in ("n0", "n2", "n3", "n5")]
    slow += [("n0", "n1", "n2"), ("n3", "n4", "n5"), ("n0", "n1", "n3"), ("n2", "n4", "n5")]
    fast = [("n0", "n2", "n3"), ("n2", "n3", "n5")]
    draw = random.Random(1)
    made = [
        Observation(f"{index}", tuple(sorted(group)), math.exp(gauss(draw)) * by)
        for index, (group, by) in enumerate([*((own, 1.12) for own in slow), *((own, 1.0) for own in fast)])
    ]
    found = judge(made, Topology.of(hosts, {}))
    conditions = {each.hosts[0]: each for each in found.hosts}
    assert {name for name, each in conditions.items() if each.condition == "unknown"} == {"n1", "n4"}
    assert not found.accused and "2 of 10 jobs were" in conditions["n1"].reason
    assert (conditions["n1"].at_most or 0) > 0.12
    patient = judge(made, Topology.of(hosts, {}), Settings(slow=0.2))  # by which none of them is slow
    assert {each.condition for each in patient.hosts} == {"fit"}


def test_quiet_hours_make_nobody_slow() -> None:
    for seed in range(10):
        hosts, _, made = fleet(seed, 16, 4, 4, hours=0.03)
        assert all(each.condition == "fit" for each in judge(made, Topology.of(hosts, {})).hosts)


@pytest.mark.parametrize(("count", "size", "waves"), [(16, 8, 6), (8, 4, 6), (32, 8, 6), (104, 8, 8)])
def test_jobs_that_are_slow_on_any_hosts_accuse_nobody(count: int, size: int, waves: int) -> None:
    """Of jobs that are slow by chance, some host has only slow ones: of 20 fleets five to seven accused one,
    before slow jobs were drawn anew."""
    wrong = 0
    for seed in range(20):
        hosts, _, made = fleet(seed, count, size, waves, noise=redrawn)
        found = judge(made, Topology.of(hosts, {}))
        wrong += bool(found.accused or found.one_of)
    assert wrong <= 1


def test_one_fault_that_explains_all_slow_jobs_needs_few_of_them() -> None:
    """Three slow jobs of twelve share a host by chance once in 28 draws; that faults are rarer than noise is
    known beforehand."""
    hosts, slow, made = fleet(3, 8, 2, 3, bad=1, by=0.1)
    assert accused(judge(made, Topology.of(hosts, {}))) == slow


HOSTS = [frozenset(pair) for pair in ("ab", "cd", "ae", "bc", "ce", "de", "bd", "ac", "be", "ad")]


@pytest.mark.parametrize(
    ("slower", "good"),
    [
        ({"a"}, frozenset("bcde")),
        (set("abcd"), None),  # more than one host in three
        (set(), None),
    ],
)
def test_the_hosts_of_the_slow_cluster(slower: set[str], good: frozenset[str] | None) -> None:
    seconds = [1.1 if slower & own else 1.0 for own in HOSTS]
    halves = by_moments(seconds, HOSTS, ["now"] * len(HOSTS), Topology.of("abcde", {}))
    assert (halves.good if halves else None) == good
    if halves is not None:
        assert halves.faster == pytest.approx(math.log(1.1))
        assert [HOSTS[index] for index in halves.slow] == [own for own in HOSTS if slower & own]


def test_a_switch_counts_as_one() -> None:
    """Four of nine hosts are slow, more than one in three; their switch is one cause."""
    jobs = [frozenset(group) for group in ("efg", "ghi", "ehi", "aei", "bfg", "cgh", "dhi", "abe", "cdf")]
    seconds = [1.2 if set("abcd") & own else 1.0 for own in jobs]
    hosts = tuple("abcdefghi")
    base = Baseline(1.2, 0.005, 6)
    assert by_baseline(seconds, jobs, base, Topology.of(hosts, {"s1": "abcd", "s2": "efghi"})) is not None
    assert by_baseline(seconds, jobs, base, Topology.of(hosts, {"s1": "abc", "s2": "efghi"})) is not None
    assert by_baseline(seconds, jobs, base, Topology.of(hosts, {})) is None
    # One with fast hosts is no cause.
    assert by_baseline(seconds, jobs, base, Topology.of(hosts, {"s": "abcdefghi"})) is None


@pytest.mark.parametrize("moments", [[""] * 10, [str(index) for index in range(10)]])
def test_jobs_without_others_at_their_time_tell_nothing(moments: list[str]) -> None:
    seconds = [1.1 if "a" in own else 1.0 for own in HOSTS]
    assert by_moments(seconds, HOSTS, moments, Topology.of("abcde", {})) is None


def test_a_job_that_is_slower_than_usual_is_of_neither_cluster() -> None:
    """A hiccup of a job on good hosts does not hide what tells the others apart."""
    seconds = [1.1 if "a" in own else 1.0 for own in HOSTS]
    base, topology = Baseline(1.1, 0.005, 6), Topology.of("abcde", {})
    jobs, times = [*HOSTS, frozenset("bc")], [*seconds, 2.0]
    halves = by_baseline(times, jobs, base, topology)
    assert halves is not None and halves.good == set("bcde")
    assert len(HOSTS) not in halves.fast + halves.slow


def test_the_noise_of_slow_jobs_counts_for_fast_ones_too() -> None:
    seconds = [1.1 if "a" in own else 1.0 + 0.001 * place for place, own in enumerate(HOSTS)]
    quiet, noisy = Baseline(1.1, 0.002, 20), Baseline(1.1, 0.012, 20)
    sigmas = []
    for base in (quiet, noisy):
        halves = by_baseline(seconds, HOSTS, base, Topology.of("abcde", {}))
        assert halves is not None
        made = halves.baseline(seconds, base)
        assert made.seconds == pytest.approx(1.005, abs=0.005)
        sigmas.append(made.sigma)
    assert sigmas[0] < sigmas[1]
