"""A speed that jobs must reach, whatever their peers do (`muster judge --at-least`). Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import get_args

from muster.core.errors import UsageError
from muster.core.hostlist import fold_hosts
from muster.core.judged import Condition, JobEntry, Judged, Verdict
from muster.core.units import counted, format_number, parse_rate

_ACCUSED = ("slow", "failing")


@dataclass(frozen=True)
class Bound:
    """`value` of the figure, divided by the number of hosts or ranks of a job as `per` says."""

    value: float
    figure: str
    per: str

    @classmethod
    def of(cls, text: str) -> Bound:
        """From what people write. Raises UsageError."""
        return cls(*parse_rate(text, "--at-least"))

    @property
    def unit(self) -> str:
        """samples/s, tokens/s/host"""
        per = {"job": "", "host": "/host", "slot": "/rank"}[self.per]
        return self.figure.replace("_per_second", "/s") + per

    @property
    def words(self) -> str:
        """800 samples/s"""
        return f"{self.value:,.10g} {self.unit}"

    def reached(self, job: JobEntry) -> float | None:
        """The job's figure. None: it succeeded not, or its log does not tell."""
        value: float | None = getattr(job, self.figure)
        count = {"job": 1, "host": len(job.hosts), "slot": job.world_size}[self.per]
        return value / count if job.outcome == "succeeded" and value and count else None


def held(found: Judged, bound: Bound) -> Judged:
    """The document, with what each job misses, and the hosts `below` that are to blame. Raises UsageError
    where no job tells the figure."""
    speeds = {job.job: bound.reached(job) for job in found.jobs}
    if all(speed is None for speed in speeds.values()):
        raise UsageError(f"no log tells {bound.unit}", where="--at-least")
    silent = sum(speeds[job.job] is None for job in found.jobs if job.outcome == "succeeded")
    note = f"{counted(silent, 'job')} could not be held against {bound.words}: the logs tell no {bound.unit}"
    jobs = [
        job.model_copy(update={"misses": [f"{format_number(speed)} {bound.unit} is below {bound.words}"]})
        if (speed := speeds[job.job]) is not None and speed < bound.value
        else job
        for job in found.jobs
    ]
    why = _to_blame(jobs, found.hosts)
    hosts = [_below(each, why.get(each.hosts[0])) for each in found.hosts]
    counts = Counter(each.condition for each in hosts)
    return found.model_copy(
        update={
            "at_least": bound.words,
            "jobs": jobs,
            "hosts": hosts,
            "summary": {name: counts[name] for name in get_args(Condition)},
            "notes": [*found.notes, *([note] if silent else [])],
        }
    )


def _to_blame(jobs: list[JobEntry], hosts: list[Verdict]) -> dict[str, str]:
    """Host -> why: it was alone in a job that missed; or its group missed, it reached it in no other job, and
    none of the group is known to be bad."""
    well = {host for job in jobs if job.outcome == "succeeded" and not job.misses for host in job.hosts}
    missed = [job for job in jobs if job.misses]
    why = {job.hosts[0]: f"{job.misses[0]} alone ({job.job})" for job in missed if len(job.hosts) == 1}
    bad = why.keys() | {each.hosts[0] for each in hosts if each.condition in _ACCUSED}
    for job in missed:
        if len(job.hosts) > 1 and not bad & set(job.hosts):
            words = f"{job.misses[0]} in {fold_hosts(job.hosts)} ({job.job}); no job shows which host it is"
            why |= {host: words for host in job.hosts if host not in well}
    return why


def _below(verdict: Verdict, why: str | None) -> Verdict:
    if why is None or verdict.condition in _ACCUSED:
        return verdict
    return verdict.model_copy(update={"condition": "below", "reason": why, "confidence": 1.0, "settle": ""})
