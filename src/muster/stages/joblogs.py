"""From jobs as their logs tell them to observations, and from verdicts to the document. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.core import judged as document
from muster.judging import Baseline, Class, Judgement, Observation, Settings, Topology, Verdict
from muster.judging import judge as judge_observations
from muster.readers.base import JobLog

# Failures that speak of a host, however many jobs meet them. Others, where most jobs of a work meet the same,
# are of the work.
OF_HOSTS = frozenset(
    ("gpu_hardware", "ssh_permission_denied", "ssh_host_key", "ssh_unreachable", "dns_unresolved", "no_gpu",
     "driver_too_old", "host_oom_killed", "slurm_oom", "disk_full", "ds_hostfile_unreachable",
     "slurm_time_or_node", "remote_module_missing", "nofile")
)  # fmt: skip
FEWEST = 4  # jobs of a work, of which half fail the same way


@dataclass(frozen=True)
class _Job:
    """A log, and what it says to a judge: nothing, where `observation` is None."""

    log: JobLog
    work: str
    observation: Observation | None


def judged(
    source: str, logs: Sequence[JobLog], settings: Settings, stored: Mapping[Class, Baseline]
) -> document.Judged:
    """The document, from all logs."""
    shared = _shared(logs)
    jobs = [_job(log, shared) for log in logs]
    observations = [each.observation for each in jobs if each.observation is not None]
    hosts = sorted({host for log in logs for host in log.hosts}, key=_natural)
    verdict = judge_observations(observations, Topology(tuple(hosts)), settings, stored)
    conditions = Counter(each.condition for each in verdict.hosts)
    outcomes = Counter(log.outcome for log in logs)
    return document.Judged(
        source=source,
        slow=settings.slow,
        summary={name: conditions[name] for name in ("fit", "slow", "failing", "unknown")},
        outcomes={name: outcomes[name] for name in ("succeeded", "failed", "timeout", "unreadable")},
        hosts=[_verdict(each) for each in verdict.hosts],
        links=[_verdict(each) for each in verdict.links],
        peers=_peers(jobs, verdict),
        jobs=[_entry(each, verdict) for each in jobs],
        notes=[
            f"{count} jobs of {work or 'a work'} end the same way ({why}): that says nothing of their hosts"
            for (work, why), count in sorted(shared.items())
        ],
    )


def work_of(log: JobLog) -> str:
    """What a job is compared by: jobs of the same work on as many hosts should take the same time.

    What was trained with its settings, ranks of a host, samples of a step; and whether the tool's own figure
    had to do, which has the warm-up in it.
    """
    parts = [log.workload or log.format or "unknown"]
    if log.recipe:
        parts.append(hashlib.sha256(log.recipe.encode()).hexdigest()[:8])
    if log.world_size and log.hosts:
        parts.append(f"{log.world_size / len(log.hosts):g} ranks a host")
    if log.batch:
        parts.append(f"batch {log.batch:g}")
    if log.measured is None and log.reported:
        parts.append("as reported")
    return ", ".join(parts)


def _job(log: JobLog, shared: Mapping[tuple[str, str], int]) -> _Job:
    work = work_of(log)
    return _Job(log, work, observation_of(log, work, shared))


def observation_of(
    log: JobLog, work: str, shared: Mapping[tuple[str, str], int] | None = None
) -> Observation | None:
    """What the log says of its hosts; None: nothing. `shared`: ways to end that are the work's."""
    hosts = tuple(dict.fromkeys(log.hosts))
    if not hosts or log.outcome == "unreadable":
        return None
    if log.outcome == "succeeded":
        seconds = (log.batch or 1.0) / log.rate if log.rate else None
        sound = seconds is not None and 0 < seconds < math.inf
        return (
            Observation(log.path, hosts, seconds, work=work, computing=log.computing, moment=log.moment)
            if sound
            else None
        )
    if shared and _why(log) in shared:
        return None
    culprits = (log.failed_host,) if log.failure in OF_HOSTS and log.failed_host in hosts else ()
    told = tuple(each for each in culprits if each)
    return Observation(log.path, hosts, None, log.outcome, work, culprits=told)


def _why(log: JobLog) -> tuple[str, str]:
    """(what was trained, how it ended), without the numbers in it."""
    kind = re.sub(r"[0-9]+", "N", log.reason or "").partition(":")[0][:80]
    return log.workload or log.format or "", log.failure or kind or log.outcome


def _shared(logs: Sequence[JobLog]) -> dict[tuple[str, str], int]:
    """Ways to end that at least half of the jobs of a work share: something is wrong with the work."""
    readable = [log for log in logs if log.outcome != "unreadable"]
    total = Counter(_why(log)[0] for log in readable)
    ended = Counter(
        _why(log) for log in readable if log.outcome != "succeeded" and log.failure not in OF_HOSTS
    )
    return {
        why: count for why, count in ended.items() if total[why[0]] >= FEWEST and 2 * count >= total[why[0]]
    }


def _peers(jobs: Sequence[_Job], verdict: Judgement) -> list[document.Peers]:
    batches = {Class(each.work, len(each.log.hosts)): each.log.batch for each in jobs}
    return [
        document.Peers(
            work=key.work,
            hosts=key.size,
            jobs=each.count,
            step_seconds=each.seconds,
            deviation=each.sigma,
            samples_per_second=(batches.get(key) or 1.0) / each.seconds,
            stored=each.stored,
        )
        for key, each in sorted(verdict.baselines.items(), key=lambda item: (item[0].work, item[0].size))
        if key.part == "step"
    ]


def _entry(job: _Job, verdict: Judgement) -> document.JobEntry:
    log, figures = job.log, job.log.measured
    base = verdict.baselines.get(Class(job.work, len(dict.fromkeys(log.hosts))))
    told = job.observation
    slower = told.seconds / base.seconds - 1 if told and told.seconds and base else None
    measured: dict[str, Any] = {}
    if figures:
        measured = {
            "measured_samples": figures.samples,
            "measured_seconds": figures.seconds,
            "windows": figures.windows,
            "variation": figures.variation,
            "tokens_per_second": figures.tokens / figures.seconds if figures.tokens else None,
        }
    return document.JobEntry(
        job=log.path,
        outcome=log.outcome,
        reason=log.reason,
        failure=log.failure,
        failed_host=log.failed_host,
        format=log.format,
        hosts=list(log.hosts),
        hosts_from=log.hosts_from,
        world_size=log.world_size,
        workload=log.workload,
        work=job.work if log.outcome != "unreadable" else "",
        steps=log.steps,
        skipped_steps=log.skipped,
        samples_per_second=log.rate,
        reported=log.reported,
        step_seconds=log.step_seconds,
        memory=log.memory,
        slower=slower,
        judged=told is not None,
        notes=list(log.notes),
        **measured,
    )


def _verdict(each: Verdict) -> document.Verdict:
    return document.Verdict(
        hosts=list(each.subject),
        condition=each.condition,
        kind=each.kind,
        slower=each.slower,
        within=each.within,
        at_most=each.at_most,
        confidence=each.confidence,
        reason=each.reason,
        evidence=[
            document.Evidence(job=one.job, peers=list(one.peers), slower=one.slower) for one in each.evidence
        ],
    )


def _natural(name: str) -> str:
    """Sorts node2 before node10."""
    return re.sub(r"[0-9]+", lambda match: match[0].zfill(20), name)
