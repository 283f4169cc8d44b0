"""Whom a judgement of jobs accuses, and what it says of the other hosts: for the room `accused`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from muster.judging import Baseline, JobClass, Observation, Settings, Topology, Verdict, judge
from tests.golden.documents import DIGITS


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.{DIGITS}g}"


def words(of: Verdict) -> str:
    """A verdict with its evidence."""
    found = [of.condition, of.kind or "", of.reason]
    found += [
        f"{name} {figure(each)}" for name in ("slower", "within", "at_most") if (each := getattr(of, name))
    ]
    found += [f"bad {figure(of.confidence)}", f"settle {of.settle}" if of.settle else ""]
    found += [f"{each.name} {each.condition} {each.jobs} {figure(each.at_most)}" for each in of.subjects]
    found += [
        f"{each.job} with {len(each.peers)} {each.what} {figure(each.slower)} {each.work}".rstrip()
        for each in of.evidence
    ]
    return "; ".join(each for each in found if each)


def bounds(of: list[Verdict]) -> str:
    """What slowdowns are ruled out of hosts that are fit: the least and the greatest bound."""
    at_most = [each.at_most for each in of if each.at_most is not None]
    sure = [each.confidence for each in of]
    return f"at most {figure(min(at_most, default=None))} to {figure(max(at_most, default=None))}, " + (
        f"confidence {figure(min(sure))} to {figure(max(sure))}"
    )


def accused(
    jobs: list[Any], hosts: list[str], switches: Any = (), stored: Any = (), **asked: Any
) -> Iterator[str]:
    """A line for each host, link or switch that is not fit; of hosts that are fit, what was looked at."""
    place = Topology(tuple(hosts), tuple((name, tuple(behind)) for name, behind in switches))
    normal = {JobClass(work, size): Baseline(**baseline) for work, size, baseline in stored}
    seen = TypeAdapter(list[Observation]).validate_python(jobs)
    found = judge(seen, place, Settings(**asked), normal)
    fit: dict[str, list[Verdict]] = {}
    others: dict[str, list[str]] = {}
    for each in (*found.hosts, *found.links, *found.switches):
        if each.condition == "fit":
            looked = ", ".join(f"{one.name} {one.condition} in {one.jobs}" for one in each.subjects)
            fit.setdefault(looked, []).append(each)
        else:
            others.setdefault(words(each), []).append(" ".join(each.subject))
    yield from (f"{', '.join(names)}: {said}" for said, names in others.items())
    for looked, verdicts in fit.items():
        yield f"{len(verdicts)} fit: {looked}; {bounds(verdicts)}"
    yield from (f"one of {' '.join(each)}" for each in found.one_of)
    yield from (f"alike {each}" for each in found.alike)
    for key, usual in found.baselines.items():
        of_work = f"{key.work or 'work'} on {key.size}"
        yield f"{of_work}: {figure(usual.seconds)} {figure(usual.sigma)} of {usual.count}"
