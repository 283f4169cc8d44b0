"""Why a job's figures are no measurement: they vary, or others used its hosts meanwhile. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.benches.commands import Speed
from muster.benches.document import JobRecord
from muster.core.fabric import Spread, Sweep
from muster.core.result import HostReport
from muster.core.robust import deviation
from muster.core.units import counted

UNSTEADY = 0.15  # a figure that varies more than that is no measurement
OTHERS = 0.1  # share of the cores that other processes may use, unless
IDLE = 0.25  # this share was idle all the same
STOLEN = 0.05  # share of the cores' time that a virtual machine's own host may give to others
SLOWED = 0.05  # share of samples in which a GPU may be slowed down

_Use = Sequence[tuple[float, float, float]]  # time, core-seconds by then: of all processes, of the job's
_CoreSeconds = Sequence[tuple[float, float]]  # time, core-seconds by then: of a job, or of its controller


@dataclass(frozen=True)
class Doubts:
    """`disturbed`: by something that is not its hosts' fault, so that no host is judged by it; `slowed`: by
    something that is; `unsteady`: no all-reduce between its hosts was steady, and what else it measured
    counts."""

    disturbed: tuple[str, ...] = ()
    slowed: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Why it is no measurement; empty: it is one."""
        return (*self.disturbed, *self.slowed, *self.unsteady)


def doubts_of(
    records: Mapping[str, JobRecord], speeds: Mapping[str, Speed] | None = None
) -> dict[str, Doubts]:
    """Return the doubts of every job that succeeded. What the bench's other jobs and controllers did on the
    same machine is known, and others' work is what none of them did. `speeds`: of those that are commands."""
    own: dict[str, list[_CoreSeconds]] = defaultdict(list)  # by machine
    for record in records.values():
        if record.machine:
            own[record.machine].append(record.controller_use)
        for each in _reports(record):
            own[_machine(each)].append([(moment, used) for moment, _, used in each.cpu_use])
    return {
        job: Doubts(
            (*_unsteady(record, (speeds or {}).get(job)), *_disturbed(record, own)),
            tuple(_slowed(record)),
            tuple(_exchanges(record)),
        )
        for job, record in records.items()
        if record.measured
    }


def _reports(record: JobRecord) -> list[HostReport]:
    return record.result.hosts if record.result else []


def _machine(report: HostReport) -> str:
    """Return the machine of a host: pretend hosts, and hosts of a test, are one."""
    return str(report.facts.get("machine") or report.host)


def _unsteady(record: JobRecord, by_command: Speed | None) -> Iterable[str]:
    speed = by_command.measured if by_command else record.result.throughput if record.result else None
    if speed is not None and (speed.variation or 0.0) > UNSTEADY:
        unit = by_command.measured.unit if by_command and by_command.measured else "samples"
        yield f"{unit}/s varied by {speed.variation:.0%} over its windows"
    elif by_command is not None and by_command.measured is None:
        yield by_command.why


def steady_sweeps(record: JobRecord) -> dict[int, Sweep]:
    """Return a job's all-reduces by their size in bytes, those that were steady."""
    fabric = record.result.fabric if record.result and record.outcome.good else None
    sweeps = fabric.of("all-reduce") if fabric else []
    return {each.bytes: each for each in sweeps if varied(each.time) <= UNSTEADY}


def varied(time: Spread) -> float:
    """Return by how much repeats differ, whatever one of them took: 1.4826 times the median deviation from
    the median, which is the standard deviation where they are normal. Infinite where there are none, or one
    has no time."""
    if not time.seconds or not all(0 < each < math.inf for each in (time.median, *time.seconds)):
        return math.inf
    return deviation(time.seconds, time.median) / time.median


def _exchanges(record: JobRecord) -> Iterable[str]:
    fabric = record.result.fabric if record.result else None
    if fabric and len(_reports(record)) > 1 and fabric.of("all-reduce") and not steady_sweeps(record):
        yield f"its all-reduces varied by more than {UNSTEADY:.0%}"


def _disturbed(record: JobRecord, own: Mapping[str, Sequence[_CoreSeconds]]) -> Iterable[str]:
    seen = set()
    for each in _reports(record):
        if each.strangers:
            yield f"{counted(each.strangers, 'other process')} computed on a GPU of {each.host}"
        if _machine(each) in seen:
            continue
        seen.add(_machine(each))
        cores = each.facts.get("cores")
        others, busy = _cores_used(each.cpu_use, own[_machine(each)])
        if cores and others > OTHERS * cores and busy > (1 - IDLE) * cores:
            yield f"other processes used {others:.1f} of {cores} cores of {each.host}"
        if (each.stolen or 0.0) > STOLEN:
            yield f"the machine that {each.host} is virtual on gave {each.stolen:.0%} of its time to others"


def _cores_used(use: _Use, own: Sequence[_CoreSeconds]) -> tuple[float, float]:
    """Return the cores that processes of no job of the bench used on average, and those that all used; zeros
    where that is not known."""
    if len(use) < 2 or use[-1][0] <= use[0][0]:
        return 0.0, 0.0
    begin, end = use[0][0], use[-1][0]
    of_jobs = sum(_until(each, end) - _until(each, begin) for each in own)
    return max(0.0, use[-1][1] - of_jobs) / (end - begin), use[-1][1] / (end - begin)


def _until(use: _CoreSeconds, moment: float) -> float:
    """Return the core-seconds that a job's own processes had used by then: evenly between two samples."""
    before: tuple[float, float] | None = None
    for point in use:
        if point[0] >= moment:
            if before is None:
                return point[1]
            share = (moment - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1] if before else 0.0


def _slowed(record: JobRecord) -> Iterable[str]:
    for each in _reports(record):
        if (each.slowed or 0.0) > SLOWED:
            yield f"a GPU of {each.host} was slowed down (heat, power) in {each.slowed:.0%} of the samples"
