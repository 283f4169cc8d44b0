"""The result of a bench: bench.json, and what each finished job leaves for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, TypeAdapter
from pydantic import dataclasses as rows

from muster.core.result import JobEntry, Result
from muster.core.section import Part
from muster.core.state import JobEnd
from muster.judging.baseline import FEWEST
from muster.judging.document import Gate, Judged


@rows.dataclass(frozen=True, kw_only=True)
class JobRecord(JobEntry):
    """A finished job, in a file of its own: it is not run again."""

    outcome: JobEnd
    run: str = Field(description="the job's run folder, relative to the bench's; its last attempt")
    started: float = Field(description="Unix time")
    ended: float = Field(description="likewise")
    cut: bool = Field(
        default=False, description="several times as long as those alike, so it was ended: its speed counts"
    )
    usage: bool = Field(
        default=False, description="bad input, or stopped by a person: not the hosts' doing"
    )
    exit_code: int | None = Field(default=None, description="of muster train; negative: ended by that signal")
    devices: dict[str, str] = Field(default_factory=dict, description="host -> what its ranks ran on")
    result: Result | None = Field(default=None, description="None: it had none")
    machine: str = Field(default="", description="on which the job's controller ran, as hosts' facts name it")
    controller_use: list[tuple[float, float]] = Field(
        default_factory=list, description="Unix time, core-seconds that the controller had used by then"
    )

    @property
    def measured(self) -> bool:
        """Whether its speed is evidence: it succeeded, or it was cut for being late and had one by then."""
        return self.outcome.good or bool(self.cut and self.result and self.result.throughput)


RECORD = TypeAdapter(JobRecord)


class CurvePoint(Part):
    """Jobs of one size."""

    hosts: int
    ranks: int
    jobs: int
    samples_per_second: float = Field(description="median of the jobs")
    variation: float | None = Field(description="coefficient of variation over the jobs; None: one alone")
    speedup: float | None = Field(
        description="against the smallest size; None: one of the two was too short to measure"
    )
    efficiency: float | None = Field(description="speedup over the ratio of the ranks")
    not_measured: list[str] = Field(
        default_factory=list, description="why this is no measurement: it has no efficiency then"
    )


class Curve(Part):
    """How an entry's throughput grows with the number of hosts."""

    entry: str
    kind: Literal["weak", "strong"] = Field(
        description="weak: a rank's batch is fixed; strong: the global one"
    )
    points: list[CurvePoint]
    notes: list[str] = Field(default_factory=list)


class Compared(Part):
    """Entries side by side, on groups of one size: medians over their jobs."""

    entry: str
    hosts: int
    jobs: int
    settings: dict[str, str] = Field(description="what the comparison is about")
    figures: dict[str, float]
    spread: float | None = Field(None, description="coefficient of variation of samples/s over the jobs")


class Comparison(Part):
    """What the entries differ in, and the result."""

    about: list[str] = Field(description="paths of the recipe that may differ")
    rows: list[Compared]
    confounded_by: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="other settings that differ: path -> entry -> value"
    )


class PublishedComparison(Part):
    """What an entry's jobs measured on so many ranks, compared with published figures of its recipe."""

    entry: str
    ranks: int
    jobs: int
    devices: list[str] = Field(description="that these jobs ran on")
    samples_per_second: float = Field(description="median of the jobs")
    memory: float | None = Field(None, description="median of the highest peaks of a rank, in bytes")
    source: str
    published_on: str
    same_device: bool = Field(description="whether all jobs ran on the device of the published figure")
    published_ranks: int = Field(description="of the published figure: the nearest to `ranks`")
    published: float = Field(description="samples per second; by number of ranks where those differ")
    published_memory: float | None = None
    ratio: float = Field(description="measured over published")


class Bench(Judged):
    """The document that `muster bench --json` prints."""

    id: str
    suite: str
    about: str = ""
    overrides: list[str] = Field(default_factory=list)
    complete: bool = Field(description="every job has ended; else `muster bench --continue` goes on")
    started: float = Field(description="Unix time")
    ended: float
    versions: dict[str, str] = Field(default_factory=dict)
    curves: list[Curve] = Field(default_factory=list)
    comparison: Comparison | None = None
    published: list[PublishedComparison] = Field(default_factory=list)

    @property
    def gate(self) -> Gate:
        """Whether the hosts may be handed over: bad where there is evidence against a host, a link, a switch,
        a job or the whole fleet; open where something was neither judged nor measured, or not all jobs have
        ended."""
        if any(not job.outcome.good for job in self.jobs):
            return Gate.BAD
        some = any(not job.warm_up for job in self.jobs)
        return Gate.OPEN if super().gate is Gate.FIT and not (self.complete and some) else super().gate

    @property
    def left(self) -> dict[str, str]:
        """What is open of each host, in words; empty: nothing. Also what none of its jobs measured."""
        counted = [job for job in self.jobs if not job.warm_up]
        short = _short(counted)
        sound = {
            (host, job.entry, job.size)
            for job in counted
            if not job.not_measured and (job.slower is not None or (job.entry, job.size) not in short)
            for host in job.hosts
        }
        unmeasured: dict[str, str] = {}
        for job in counted:
            for host in job.hosts:
                if job.outcome.good and (host, job.entry, job.size) not in sound:
                    what = "not measured" if job.not_measured else "its jobs were not compared with others'"
                    where = "1 host" if job.size == 1 else f"{job.size} hosts"
                    unmeasured.setdefault(host, f"{what} by {job.entry} on {where}")
        return {host: what or unmeasured.get(host, "") for host, what in super().left.items()}


def _short(jobs: Sequence[JobEntry]) -> set[tuple[str, int]]:
    """Return entries and sizes of which enough jobs ran to compare them with each other, and some measured
    nothing: what is left may be too few."""
    alike: dict[tuple[str, int], list[JobEntry]] = {}
    for job in jobs:
        if job.outcome.good:
            alike.setdefault((job.entry, job.size), []).append(job)
    return {
        key
        for key, own in alike.items()
        if any(job.not_measured for job in own)
        and min(len(own), len({host for job in own for host in job.hosts})) >= FEWEST
    }
