"""The kinds of checks, and what their judges share. Pure. A check is declared with its judge, whose docstring
has what is looked at and, in a second paragraph, what happens otherwise:

    @host_check("disk.inodes", at_least=10_000)
    def inodes(case: Case) -> Finding:
        # Each host by itself: `case` has its answer, what is expected, and makes the Finding.

    @same_check("memory.total", Differ("main memory differs from most hosts"), at_least=0)
    def total(case: Case) -> Finding | int:
        # A value that is to be the same on all hosts, or a Finding where that is settled without others.

    @group_check("names.peers")
    def peers(answers: Answers, peers: Answers, context: Context) -> Judge:
        # What has to be known of all hosts first; then the judge of each.

The name is then the Check, for the family's CHECKS; the keyword arguments are its expectations. Facts that
only have to be alike are rows of a table: see `alike`.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.core.hostlist import fold_hosts
from muster.engines.base import EngineSpec, spec_of

NO_MAJORITY = ", and no value has a majority"


@dataclass(frozen=True)
class Case:
    """One check on one host: the host's answer, the expectations, and the Finding to be made."""

    check: str
    host: str
    context: Context
    answer: Mapping[str, Any] = field(default_factory=dict)

    def expect(self, key: str) -> Any:
        """Return one of the check's expectations."""
        return self.context.expect(self.check, key)

    @property
    def slots(self) -> int:
        """Ranks on the host: as given, else one for each GPU of the answer's `gpus`, else one."""
        return self.context.slots.get(self.host) or self.answer.get("gpus") or 1

    def passed(self, evidence: str = "") -> Finding:
        """Report that it is as it should be."""
        return Finding(self.check, self.host, Level.PASS, evidence=evidence)

    def not_applicable(self, why: str) -> Finding:
        """Report that the question makes no sense here: never a pass."""
        return Finding(self.check, self.host, Level.NOT_APPLICABLE, problem=why)

    def unknown(self, why: str, evidence: str = "", remedy: str | None = None) -> Finding:
        """Report that it could not be found out, and why."""
        return self.at(Level.UNKNOWN, why, evidence, remedy)

    def note(self, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """Report a fact that needs no action: it is printed with --verbose, and the host stays fit."""
        return self.at(Level.NOTE, problem, evidence, remedy)

    def warn(self, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """Report that a job may run, worse than it could. `problem` is the same text for every host that has
        it."""
        return self.at(Level.WARN, problem, evidence, remedy)

    def fail(self, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """Report that a job would break here."""
        return self.at(Level.FAIL, problem, evidence, remedy)

    def at(self, level: Level, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """Report trouble of a level that the caller chooses."""
        return Finding(self.check, self.host, level, problem, evidence, remedy)


@dataclass(frozen=True)
class Differ:
    """What it means when hosts differ in a value."""

    problem: str  # such as "another version of torch than most hosts"
    level: Level = Level.WARN
    remedy: str | None = None
    show: Callable[[Any], str] = str
    tolerance: float = 0.0  # numbers closer than this fraction count as equal
    # Why the question makes no sense where no host has the fact; one that only some have differs. Empty: a
    # fact that a host does not report is no difference.
    nowhere: str = ""


Judge = Callable[[Case], Finding]
Compare = Callable[[Answers, Answers, Context], Judge]


def words_of(judge: Callable[..., Any]) -> tuple[str, str]:
    """Return what a check looks at, and what happens otherwise: the two paragraphs of its judge's docstring.
    """
    asks, _, why = inspect.cleandoc(judge.__doc__ or "").partition("\n\n")
    return " ".join(asks.split()), " ".join(why.split())


def host_check(name: str, **expects: Any) -> Callable[[Judge], Check]:
    """Declare a question to each host by itself."""
    return lambda judge: compared(name, *words_of(judge), lambda answers, peers, context: judge, **expects)


def group_check(name: str, **expects: Any) -> Callable[[Compare], Check]:
    """Declare a question whose answer depends on the other hosts."""
    return lambda compare: compared(name, *words_of(compare), compare, **expects)


def same_check(name: str, differ: Differ, **expects: Any) -> Callable[[Callable[[Case], Any]], Check]:
    """Declare a value that is to be the same on all hosts, within `tolerance` where that is an expectation.
    """
    return lambda value: alike(name, *words_of(value), differ, value, **expects)


def compared(name: str, asks: str, why: str, compare: Compare, **expects: Any) -> Check:
    """Return the check of a judge that `compare` makes once all hosts have answered."""

    def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
        one = compare(answers, peers, context)
        return [one(Case(name, host, context, answer)) for host, answer in answers.items()]

    return Check(name, asks, why, expects, judge)


def alike(
    name: str, asks: str, why: str, differ: Differ, value: str | Callable[[Case], Any], **expects: Any
) -> Check:
    """Return a row of a table of facts that must be alike on all hosts. `value`: the answer's key, or a
    function that returns the value or, where that is settled without others, a Finding."""

    def compare(answers: Answers, peers: Answers, context: Context) -> Judge:
        cases = [Case(name, host, context, answer) for host, answer in answers.items()]
        facts = {case.host: value(case) if callable(value) else case.answer.get(value) for case in cases}
        settled = {host: fact for host, fact in facts.items() if isinstance(fact, Finding)}
        values = {host: fact for host, fact in facts.items() if host not in settled}
        if not differ.nowhere:
            values = {host: fact for host, fact in values.items() if fact is not None}
        elif not any(values.values()):
            values = {}
        tolerance = context.expect(name, "tolerance") if "tolerance" in expects else 0.0
        judged = {**settled, **differing(name, values, replace(differ, tolerance=tolerance))}
        reason = differ.nowhere or "the kernel does not report this"
        return lambda case: judged.get(case.host) or case.not_applicable(reason)

    return compared(name, asks, why, compare, **expects)


def judge_each(checks: Iterable[Check], answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Judge every check by its own judge."""
    return [finding for check in checks if check.judge for finding in check.judge(answers, peers, context)]


def absent(case: Case) -> Finding:
    """Return the finding for a host without a second answer. `stays` of the first one says whether it was to
    give one."""
    if case.answer.get("stays"):
        return case.unknown("the host did not answer in the second round")
    return case.not_applicable("not in the sample of hosts that check each other")


def loopback(address: str) -> bool:
    """Return whether an address (not a name) is one at which every host reaches itself."""
    return address.startswith("127.") or address == "::1"


def version_key(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: "525.60.13" -> (525, 60, 13), "12.8+x" -> (12, 8), None -> ().
    """
    match = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, match.group().split("."))) if match else ()


def differing(check: str, values: Mapping[str, Any], differ: Differ) -> dict[str, Finding]:
    """Return the Finding of each host: which hosts hold which value, and which is the majority.

    values: host -> value (None is one like any other: leave out hosts without an answer). Numbers, but not
    text, are compared within the tolerance: 3.1 and 3.10 are two versions. Hosts of the majority pass;
    without one, none does.
    """

    def shown(value: Any) -> str:
        return "not found" if value is None else differ.show(value)

    groups = _groups(values, differ.tolerance)
    tie = len(groups) > 1 and len(groups[0][1]) == len(groups[1][1])
    most = set() if tie or not groups else set(groups[0][1])
    problem = differ.problem + NO_MAJORITY if tie else differ.problem
    words = "; ".join(
        f"{shown(value)} on {fold_hosts(hosts)}" + (" (most)" if hosts[0] in most else "")
        for value, hosts in groups
    )
    return {
        host: Finding(check, host, Level.PASS, evidence=shown(value))
        if host in most
        else Finding(check, host, differ.level, problem, f"{shown(value)} here ({words})", differ.remedy)
        for host, value in values.items()
    }


def _groups(values: Mapping[str, Any], tolerance: float) -> list[tuple[Any, list[str]]]:
    """Return equal values with their hosts, the most frequent one first."""
    near: Mapping[Any, Any] = {value: value for value in values.values()}
    if values and all(isinstance(value, int | float) for value in near):
        near = _near(list(values.values()), tolerance)
    groups: dict[Any, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(near[value], []).append(host)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _near(values: list[Any], tolerance: float) -> dict[Any, Any]:
    """Return, for each number, the one that it counts as. The one with most numbers within the tolerance of
    it stands for all of these, so that no outlier at the edge draws others away from them; the rest is
    grouped from below."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    counted = Counter(ordered)

    def weight(value: Any) -> tuple[float, ...]:
        reach = tolerance * abs(value)
        held = bisect_right(ordered, value + reach) - bisect_left(ordered, value - reach)
        return held, counted[value], -abs(value - middle)

    centre = max(counted, key=weight)
    near: dict[Any, Any] = {}
    start = None
    for value in counted:  # in order, as they were counted
        if abs(value - centre) <= tolerance * abs(centre):
            near[value] = centre
        else:
            start = value if start is None or value > start + tolerance * abs(start) else start
            near[value] = start
    return near


def majority(values: Iterable[Any]) -> Any:
    """Return the most frequent value, or None where there is none, or two are as frequent."""
    counted = Counter(values).most_common(2)
    if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]


def world_size(context: Context, answers: Answers) -> int:
    """Return the planned ranks: as known, else the slots of the hosts that answered, where `gpus` of an
    answer counts its GPUs."""
    slots = (Case("", host, context, answer).slots for host, answer in answers.items())
    return context.world_size or sum(slots)


def engine(context: Context) -> EngineSpec:
    """Return the recipe's engine; without a recipe, one without properties."""
    name = (context.recipe.get("engine") or {}).get("name")
    return spec_of(name) if name else EngineSpec("")
