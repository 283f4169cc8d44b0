"""From a step to what a person asks: how long, for how much, on how many hosts, and what would be faster.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from muster.core.links import between_hosts
from muster.core.units import format_seconds
from muster.planner.steptime import Calibration, Case, Step, evaluation, link_key, predict

TRIED = (2, 4, 8, 16, 32)  # times as many micro-steps per optimizer step
CaseOn = Callable[[int], "Case | None"]  # hosts -> the job on so many; None: it does not work out there


@dataclass(frozen=True)
class Length:
    """How much is trained. `samples`: of an epoch; `held_out`: evaluated after each one; `price`: of a host
    for an hour, in any currency; `most`: seconds after which training ends; None: not given. An epoch's last
    step counts as a whole one."""

    samples: int
    epochs: float = 1.0
    held_out: int = 0
    price: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Point:
    """A job on so many hosts. `epoch`, `whole`, `total`: seconds, evaluation included, of an epoch, of all
    that is to be trained, and until training ends; `cost`: None without a price."""

    hosts: int
    case: Case
    step: Step
    epoch: float
    whole: float
    total: float
    cost: float | None


@dataclass(frozen=True)
class Said:
    """The sentence, and what would make more hosts faster than one: a link's name, a number of
    micro-steps."""

    text: str
    link: str | None = None
    micro_steps: int | None = None


def point(case: Case, length: Length, calibration: Calibration | None = None) -> Point:
    """What a job takes on its machines."""
    step = predict(case, calibration)
    steps = -(-length.samples // case.batch)
    held_out = evaluation(case, length.held_out, calibration) if length.held_out else 0.0
    epoch = steps * step.seconds + held_out
    whole = length.epochs * epoch
    total = whole if length.most is None else min(whole, length.most)
    hosts = case.machines.hosts
    cost = None if length.price is None else length.price * hosts * total / 3600
    return Point(hosts, case, step, epoch, whole, total, cost)


def curve(
    case_on: CaseOn, hosts: Sequence[int], length: Length, calibration: Calibration | None = None
) -> list[Point]:
    """A job on each number of hosts on which it works out."""
    cases = ((count, case_on(count)) for count in hosts)
    return [point(case, length, calibration) for _, case in cases if case is not None]


def fastest(points: Sequence[Point]) -> Point:
    """Where most samples/s are; of equals the one with fewer hosts."""
    return max(points, key=lambda each: (each.step.samples_per_second, -each.hosts))


def say(case_on: CaseOn, hosts: int, length: Length, calibration: Calibration | None = None) -> Said:
    """`hosts` hosts against one, why, and what would change it. Raises ValueError where the job does not work
    out on one host or on `hosts`."""
    one, many = case_on(1), case_on(hosts)
    if one is None or many is None:
        raise ValueError(f"this job does not work out on 1 or on {hosts} hosts")
    alone = point(one, length, calibration)
    if hosts == 1:
        return Said(f"1 host takes {_time(alone.whole)}: {_where(alone.step)}.")
    together = point(many, length, calibration)
    head = f"{hosts} hosts take {_time(together.whole)}, 1 host {_time(alone.whole)}"
    step, link = together.step, many.machines.link
    name = _spaced(link.name) if link else "?"
    network = f"the {name} network costs {_time(step.communication)} of every {_time(step.seconds)} step"
    if together.whole < alone.whole:
        times = alone.whole / together.whole
        return Said(f"{head}: {times:.1f} times as fast, {times / hosts:.0%} of {hosts}; {network}.")
    faster = _faster_link(many, alone, length, calibration)
    more = _more_steps(many, alone, length, calibration)
    ways = [_spaced(faster)] if faster else []
    ways += [f"accumulation {more}"] if more else []
    tail = (
        f"; {' or '.join(ways)} would make {hosts} hosts faster"
        if ways
        else "; nothing tried makes them faster"
    )
    return Said(f"{head}: {network}{tail}.", faster, more)


def _faster_link(case: Case, alone: Point, length: Length, calibration: Calibration | None) -> str | None:
    """The slowest usual link with which several hosts beat one."""
    now = case.machines.link
    share = _reached(case, calibration)
    for link in between_hosts():
        if now is not None and link.stated <= now.stated:
            continue
        better = replace(link, bandwidth=min(link.bandwidth, share * link.stated))
        if point(case.over(case.machines.over(better)), length, calibration).whole < alone.whole:
            return link.name
    return None


def _reached(case: Case, calibration: Calibration | None) -> float:
    """What share of its stated speed the present link was measured to reach; 1: not measured."""
    link = case.machines.link
    known = (calibration or Calibration()).links
    name = link_key(link, case.machines.device.kind) if link is not None else ""
    if link is None or name not in known:
        return 1.0
    measured = known[name].bandwidth
    return 1.0 if measured is None else measured / link.stated


def _more_steps(case: Case, alone: Point, length: Length, calibration: Calibration | None) -> int | None:
    """The fewest times as many micro-steps with which several hosts beat one host as it is."""
    for times in TRIED:
        micro_steps = times * case.spread.micro_steps
        if point(case.accumulating(micro_steps), length, calibration).whole < alone.whole:
            return micro_steps
    return None


def _where(step: Step) -> str:
    """The largest part of a step."""
    parts = {
        "computation": step.compute, "the network": step.communication, "the optimizer": step.optimizer,
        "the bus to the host": step.transfer,
    }  # fmt: skip
    name = max(parts, key=lambda each: parts[each])
    return f"{name} is {parts[name] / step.seconds:.0%} of every {_time(step.seconds)} step"


def _time(seconds: float) -> str:
    """Seconds that are compared stay seconds up to three hours."""
    return f"{seconds:.0f} s" if 10 <= seconds < 10800 else format_seconds(seconds)


def _spaced(name: str) -> str:
    """`10Gbit` -> `10 Gbit/s`."""
    head = name.rstrip("GMkbit")
    return f"{head} {name[len(head) :]}/s" if name.endswith("bit") and head else name
