"""What the judges of several families share. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from muster.checks.base import Answers, Context, Finding, Level
from muster.core.hostlist import fold_hosts
from muster.engines.base import EngineSpec, spec_of

NO_MAJORITY = ", and no value has a majority"


@dataclass(frozen=True)
class About:
    """One check on one host: makes its Finding."""

    check: str
    host: str

    def passed(self, evidence: str = "") -> Finding:
        """As it should be."""
        return Finding(self.check, self.host, Level.PASS, evidence=evidence)

    def not_applicable(self, why: str) -> Finding:
        """The question makes no sense here: never a pass."""
        return Finding(self.check, self.host, Level.NOT_APPLICABLE, problem=why)

    def unknown(self, why: str, evidence: str = "", remedy: str | None = None) -> Finding:
        """It could not be found out, and why."""
        return Finding(self.check, self.host, Level.UNKNOWN, why, evidence, remedy)

    def warn(self, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """A job may run, worse than it could. `problem` is the same text for every host that has it."""
        return Finding(self.check, self.host, Level.WARN, problem, evidence, remedy)

    def fail(self, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """A job would break here."""
        return Finding(self.check, self.host, Level.FAIL, problem, evidence, remedy)

    def at(self, level: Level, problem: str, evidence: str, remedy: str | None = None) -> Finding:
        """Trouble of a level that the caller chooses."""
        return Finding(self.check, self.host, level, problem, evidence, remedy)


def each(check: str, answers: Answers, one: Callable[[About, Mapping[str, Any]], Finding]) -> list[Finding]:
    """`one` asked about every host that answered."""
    return [one(About(check, host), answer) for host, answer in answers.items()]


def absent(about: About, answer: Mapping[str, Any]) -> Finding:
    """For a host without a second answer. `stays` of the first one says whether it was to give one."""
    if answer.get("stays"):
        return about.unknown("the host did not answer in the second round")
    return about.not_applicable("not in the sample of hosts that check each other")


def loopback(address: str) -> bool:
    """Whether an address (not a name) is one at which every host finds itself."""
    return address.startswith("127.") or address == "::1"


def number(value: Any) -> float | None:
    """A number of an answer or a profile: 98, "98", "26.562" -> float; anything else -> None. So that 98 is
    less than 228, which it is not as text."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def version_key(text: str | None) -> tuple[int, ...]:
    """The leading numbers of a version: "525.60.13" -> (525, 60, 13), "12.8+x" -> (12, 8), None -> ()."""
    found = []
    for part in (text or "").split("."):
        digits = ""
        for letter in part:
            if not letter.isdigit():
                break
            digits += letter
        if digits:
            found.append(int(digits))
        if digits != part:
            break
    return tuple(found)


@dataclass(frozen=True)
class Differ:
    """What it means when hosts differ in a value."""

    problem: str  # such as "another version of torch than most hosts"
    level: Level = Level.WARN
    remedy: str | None = None
    tolerance: float = 0.0  # numbers closer than this fraction count as equal
    show: Callable[[Any], str] = str
    missing: str = "not found"  # how a value of None reads, where None is a value like others


def differing(check: str, values: Mapping[str, Any], differ: Differ) -> list[Finding]:
    """One Finding per host: which hosts hold which value, and which is the majority.

    values: host -> value (None is one like any other: leave hosts out that could not tell). Numbers, but not
    text, are compared within the tolerance: 3.1 and 3.10 are two versions. Hosts of the majority pass;
    without one, nobody does.
    """
    groups = _groups(values, differ.tolerance)
    sizes = sorted((len(hosts) for _, hosts in groups), reverse=True)
    tie = len(sizes) > 1 and sizes[0] == sizes[1]
    words = "; ".join(
        f"{_shown(value, differ)} on {fold_hosts(hosts)}" + (" (most)" if not tie and not index else "")
        for index, (value, hosts) in enumerate(groups)
    )
    findings = []
    for index, (_, hosts) in enumerate(groups):
        for host in hosts:
            about = About(check, host)
            if index == 0 and not tie:
                findings.append(about.passed(_shown(values[host], differ)))
            else:
                problem = differ.problem + NO_MAJORITY if tie else differ.problem
                evidence = f"{_shown(values[host], differ)} here ({words})"
                findings.append(about.at(differ.level, problem, evidence, differ.remedy))
    order = {host: place for place, host in enumerate(values)}
    return sorted(findings, key=lambda finding: order[finding.host])


def _shown(value: Any, differ: Differ) -> str:
    return differ.missing if value is None else differ.show(value)


def _groups(values: Mapping[str, Any], tolerance: float) -> list[tuple[Any, list[str]]]:
    """Equal values with their hosts, the most frequent one first."""
    keys: dict[str, Any] = {host: repr(value) for host, value in values.items()}
    shown: dict[Any, Any] = {}
    if values and all(isinstance(value, (int, float)) for value in values.values()):
        near = _near(list(values.values()), tolerance)
        keys = {host: near[value] for host, value in values.items()}
        shown = {value: value for value in near.values()}
    groups: dict[Any, list[str]] = {}
    for host in values:
        groups.setdefault(keys[host], []).append(host)
        shown.setdefault(keys[host], values[host])
    ranked = sorted(groups, key=lambda key: len(groups[key]), reverse=True)
    return [(shown[key], groups[key]) for key in ranked]


def _near(values: list[Any], tolerance: float) -> dict[Any, Any]:
    """Number -> the one that it counts as. The one with most numbers within the tolerance of it stands for
    all of these, so that no outlier at the edge draws others away from them; what is left is grouped from
    below."""
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
    """The most frequent value, or None where there is none, or two are as frequent."""
    counted = Counter(values).most_common(2)
    if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]


def host_slots(context: Context, host: str, gpus: int | None) -> int:
    """Ranks on a host: as given, else one per GPU, else one."""
    return context.slots.get(host) or gpus or 1


def world_size(context: Context, answers: Answers) -> int:
    """Planned ranks: as known, else the slots of the hosts that answered, where `gpus` of an answer counts
    its GPUs."""
    if context.world_size:
        return context.world_size
    return sum(host_slots(context, host, answer.get("gpus")) for host, answer in answers.items())


def engine(context: Context) -> EngineSpec:
    """The recipe's engine; without a recipe one of which nothing is known."""
    name = (context.recipe.get("engine") or {}).get("name")
    return spec_of(name) if name else EngineSpec("")
