"""A verdict per host, link and switch, with its evidence. Pure and deterministic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from muster.judging.baseline import Baseline, Class
from muster.judging.explain import Explanation, Part
from muster.judging.faults import COST, OF_HOSTS, Fault, Fit, Kind
from muster.judging.localise import State, localise
from muster.judging.observation import Observation, Settings, Topology
from muster.judging.readings import FAILED, SURE, smallest

Condition = Literal["fit", "differs", "probably fit", "slow", "failing", "unknown"]
SHOWN = 6  # jobs given as evidence


@dataclass(frozen=True)
class Evidence:
    """One job that speaks for or against: with which peers, and how much slower than a healthy one it was
    (None: it failed)."""

    job: str
    peers: tuple[str, ...]
    slower: float | None


@dataclass(frozen=True)
class Subject:
    """What of a host was looked at: what it computes by itself, its card (what it exchanges with others), or
    its links (to the hosts that it exchanged with as neighbours).

    `condition`: unknown where no reading told of it; `jobs`: readings that did; `at_most`: it is no slower
    than that, in any work that ran (two deviations).
    """

    name: Literal["compute", "card", "links"]
    condition: Condition
    jobs: int = 0
    at_most: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The judgement of a host, a link (its two hosts) or a switch (its name).

    `kind`: of the fault, where it is known well enough; a host that is slow in groups, not known whether
    alone too, is of kind `host`. `slower`: share of a healthy step's time; `within`: its standard error.
    `confidence`: the probability that the condition is right (of an unknown or probably fit one: that it is
    bad). `at_most`: it is no slower than that (two deviations). `subjects`: of a host, what was looked at.
    `settle`: of what is not known, which jobs would tell.

    A host `differs` where it is slower than its peers by no more than this fleet's hosts differ among
    themselves.
    """

    scope: Literal["host", "link", "switch"]
    subject: tuple[str, ...]
    condition: Condition
    confidence: float
    kind: Kind | None = None
    slower: float | None = None
    within: float | None = None
    at_most: float | None = None
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    subjects: tuple[Subject, ...] = ()
    settle: str = ""

    @property
    def bad(self) -> bool:
        """Whether it is accused of something."""
        return self.condition in ("slow", "failing")


@dataclass(frozen=True)
class Judgement:
    """One verdict per host, in the topology's order; links and switches that are accused; the baselines."""

    hosts: tuple[Verdict, ...]
    links: tuple[Verdict, ...]
    switches: tuple[Verdict, ...]
    baselines: Mapping[Class, Baseline]

    @property
    def accused(self) -> tuple[Verdict, ...]:
        """Everything that is slow or failing."""
        return tuple(each for each in (*self.hosts, *self.links, *self.switches) if each.bad)


def judge(
    observations: Sequence[Observation],
    topology: Topology,
    settings: Settings | None = None,
    stored: Mapping[Class, Baseline] | None = None,
) -> Judgement:
    """Verdicts from whatever jobs there were. `judge_state` takes a State that is there already."""
    return judge_state(localise(observations, topology, settings, stored))


def judge_state(state: State) -> Judgement:
    """Verdicts of a State."""
    unread = _unread(state)
    hosts = tuple(_host(state, host, unread) for host in range(len(state.topology.hosts)))
    links: list[Verdict] = []
    switches: list[Verdict] = []
    for part in state.parts:
        for fault in part.faults():
            if fault.kind in OF_HOSTS:
                continue
            verdict = _shared(state, part, fault)
            if verdict is not None:
                (links if fault.kind == "link" else switches).append(verdict)
    return Judgement(hosts, tuple(links), tuple(switches), state.baselines)


def _unread(state: State) -> dict[str, list[Observation]]:
    """The jobs of each host of which there is no reading."""
    names = enumerate(state.topology.hosts)
    found: dict[str, list[Observation]] = {
        name: [] for index, name in names if not state.case.readings.of_host.get(index)
    }
    for each in state.observations if found else ():
        for host in each.hosts:
            if host in found:
                found[host].append(each)
    return found


def _nothing_known(jobs: Sequence[Observation]) -> str:
    """Why there is no reading of a host that was in these jobs."""
    if not jobs:
        return "it was in no job"
    if all(each.culprits and each.outcome != "succeeded" for each in jobs):
        guilty = list(dict.fromkeys(host for each in jobs for host in each.culprits))
        return f"its jobs failed because of {', '.join(guilty[:4])}, so they do not show how it is"
    return "its jobs cannot be compared: too few similar jobs, and no stored baseline"


def _evidence(state: State, rows: Sequence[int], but: tuple[int, ...]) -> tuple[Evidence, ...]:
    """The jobs that tell most, the slowest first; `but`: the hosts that the verdict is about. Peers are those
    of the job, also where it tells something of one host alone."""
    readings, about = state.case.readings, {state.topology.hosts[host] for host in but}
    steps = [row for row in rows if readings.most[row] != readings.least[row]] or list(rows)
    slow = sorted((r for r in steps if readings.deviations(r) > 2.5), key=lambda r: (-readings.value[r], r))
    fine = sorted((r for r in steps if readings.deviations(r) <= 2.5), key=lambda r: (readings.value[r], r))
    room = max(SHOWN // 2, SHOWN - len(slow))
    chosen = [*slow[: SHOWN - min(room, len(fine))], *fine[:room]]
    return tuple(
        Evidence(
            state.observations[readings.source[row]].job,
            tuple(host for host in state.observations[readings.source[row]].hosts if host not in about),
            None
            if readings.value[row] == FAILED and readings.sigma[row] == SURE
            else round(math.expm1(readings.value[row]), 5),
        )
        for row in chosen
    )


def _size(state: State, fit: Fit) -> tuple[Condition, float | None, float | None]:
    """Slow or failing; by what share of the time; and its standard error."""
    readings = state.case.readings
    mine = [row for row, by in fit.expects if by > 0]
    failures = [row for row in mine if readings.sigma[row] == SURE and readings.value[row] == FAILED]
    if 2 * len(failures) >= len(mine):
        return "failing", None, None
    spread = [readings.sigma[row] for row in mine if row not in failures]
    return "slow", math.expm1(fit.by), math.exp(fit.by) * max(spread) / math.sqrt(len(spread))


def _host(state: State, host: int, unread: Mapping[str, Sequence[Observation]]) -> Verdict:
    """Whether something is wrong with the host itself."""
    rows = state.case.readings.of_host.get(host, [])
    name = (state.topology.hosts[host],)
    if not rows:
        return Verdict("host", name, "unknown", 0.0, reason=_nothing_known(unread[name[0]]))
    evidence = _evidence(state, rows, (host,))
    bound = _at_most(state, rows)
    part, chance = state.part_of.get(host), state.suspicion(host)
    if part is not None and chance >= state.settings.convict:
        return _bad_host(state, part, host, evidence)
    if chance > 1.0 - state.settings.named:
        reason = f"suspected: bad with a probability of {chance:.2f}"
        return Verdict("host", name, "unknown", chance, at_most=bound, reason=reason, evidence=evidence)
    low = math.expm1(smallest(state.case.readings, rows, state.settings))
    if bound > 2 * low:
        reason = _never_good(state, rows, low)
        return Verdict("host", name, "unknown", chance, at_most=bound, reason=reason, evidence=evidence)
    groups = any(not state.case.readings.alone[row] for row in rows)
    reason = f"at most {bound:.1%} slower than its peers" + ("" if groups else "; it ran alone only")
    confidence = 1.0 - max(chance, _unseen(state, rows, low))
    return Verdict("host", name, "fit", confidence, at_most=bound, reason=reason, evidence=evidence)


def _never_good(state: State, rows: Sequence[int], low: float) -> str:
    """What is not known of a host whose jobs in groups (all its jobs, where it was in none) were all slow."""
    readings = state.case.readings
    alone = [row for row in rows if readings.alone[row]]
    good = [row for row in alone if math.expm1(readings.value[row] + 2 * readings.sigma[row]) <= 2 * low]
    if not good or len(alone) == len(rows):
        return "all its jobs were slow, but other hosts explain that"
    return "fast alone, but slow in every group, and other hosts explain that"


def _at_most(state: State, rows: Sequence[int]) -> float:
    """No slower than its best job, plus two deviations: a job runs at the pace of its slowest host. The best
    in groups, and the best alone: in a group that only exchanges, a slow processor does not show."""
    readings = state.case.readings
    found = 0.0
    for alone in (True, False):
        own = [row for row in rows if readings.alone[row] is alone]
        if own:
            found = max(found, min(readings.value[row] + 2 * readings.sigma[row] for row in own))
    return math.expm1(found)


def _unseen(state: State, rows: Sequence[int], by: float) -> float:
    """The probability that a slowdown of `by` is there all the same."""
    readings = state.case.readings
    gain = -COST["host"]
    for row in rows:
        if not readings.alone[row]:
            gain += readings.loss(row, 0.0) - readings.loss(row, math.log1p(by))
    return 1.0 / (1.0 + math.exp(min(50.0, -gain)))


def _bad_host(state: State, part: Part, host: int, evidence: tuple[Evidence, ...]) -> Verdict:
    """Slow or failing, and in what."""
    kinds: dict[Kind, float] = {}
    best: tuple[Explanation, Fit] | None = None
    for each in part.explanations:
        for fault, fit in zip(each.faults, each.fits, strict=True):
            if fault.kind in OF_HOSTS and fault.where[0] == host:
                kinds[fault.kind] = kinds.get(fault.kind, 0.0) + each.probability
                best = best or (each, fit)
    assert best is not None  # of_host is the sum over these
    total = sum(kinds.values())
    likeliest = max(sorted(kinds), key=lambda kind: kinds[kind])
    kind: Kind = likeliest if kinds[likeliest] / total >= state.settings.named else "host"
    condition, slower, within = _size(state, best[1])
    name = state.topology.hosts[host]
    what = "its jobs fail" if slower is None else f"{slower:.1%} slower than its peers"
    reason = f"{what}, {WORDS[kind]}"
    if slower is None and _told(state, name, best[1]):
        kind, reason = "host", "its jobs fail with errors that name this host"
    return Verdict("host", (name,), condition, total, kind, slower, within, None, reason, evidence)


def _told(state: State, name: str, fit: Fit) -> bool:
    """Whether the jobs that failed, or half of them, said that it is this host."""
    readings = state.case.readings
    failed = [row for row, by in fit.expects if by > 0 and readings.value[row] == FAILED]
    told = sum(name in state.observations[readings.source[row]].culprits for row in failed)
    return told > 0 and 2 * told >= len(failed)


WORDS: dict[Kind, str] = {
    "host": "in groups of hosts",
    "compute": "alone and in groups: suspect its processor, its memory or another program on it",
    "card": "in groups but not alone: suspect its network card or cable",
    "intermittent": "in only some of its jobs",
    "link": "between the two; both are fast with other hosts",
    "switch": "for all traffic through it",
    "uplink": "only for traffic that leaves it",
}


def _shared(state: State, part: Part, fault: Fault) -> Verdict | None:
    """A link or a switch that is accused; None where it is not."""
    chance = part.probability(fault)
    if chance < state.settings.named:
        return None
    fit = next(
        fit
        for each in part.explanations
        for one, fit in zip(each.faults, each.fits, strict=True)
        if one == fault
    )
    condition, slower, within = _size(state, fit)
    if fault.kind == "link":
        scope: Literal["link", "switch"] = "link"
        subject = tuple(state.topology.hosts[host] for host in fault.where)
        but = fault.where
    else:
        scope, subject, but = "switch", (state.topology.switches[fault.where[0]][0],), ()
    what = "jobs fail" if slower is None else f"{slower:.1%} slower"
    return Verdict(
        scope,
        subject,
        condition,
        chance,
        fault.kind,
        slower,
        within,
        None,
        f"{what} {WORDS[fault.kind]}",
        _evidence(state, state.case.slowed(fault), but),
    )
