"""From jobs in logs to observations, and from verdicts to the document. Pure."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from muster.core.hostlist import fold_hosts, natural
from muster.core.state import State
from muster.core.units import counted
from muster.failures.table import blame_of, is_hardware, known_failures
from muster.judging import (
    Baseline,
    JobClass,
    Judgement,
    Observation,
    Posterior,
    Settings,
    Topology,
    document,
    judge_posterior,
    localise,
)
from muster.judging.baseline import settle
from muster.judging.course import LEAST
from muster.judging.grouping import PRESUMED, SIZED, by_job, notes_of
from muster.judging.healthy import healthy_baselines
from muster.judging.readings import smallest
from muster.judging.stalls import usual_paces
from muster.readers.base import APART, JobLog

# Why nothing is known of a host that no observation is of.
AS_MOST = "its jobs ended like most jobs of the same work, so they do not show how the host is"
MANY = 8  # jobs, of which some should share a host
WENT_ON = 30.0, 300.0  # seconds without progress, within which a short and a long job are not called hung
FASTER = 1.2, 6.0  # times, and deviations, by which a job is too fast to be of its peers' work
DRIFTED = 3.0  # standard errors by which a whole fleet differs from its baseline, at least
ALONE = "it is not known what its jobs trained (--workload NAME says it), so they are compared with no others"
UNPLACED = "it is not known on which hosts its jobs ran, so they are no evidence"
# Of a job, and of a host, whose rates are of whole runs, start-up and all.
OF_OTHER_LENGTH = (
    "its rate is that of a whole run, start-up and all, and of another number of steps than most: compared "
    "only with runs of as many"
)
OF_OTHER_COURSE = (
    "the steps of its work change as it runs, and it made another number of them than most: compared only "
    "with jobs of as many"
)
LENGTHS = "the rates of its jobs depend on how many steps they made, and no other hosts made as many in a run"
SILENT = "the logs of its jobs have neither step times nor a failure"


@dataclass(frozen=True)
class _Job:
    """A log, and its observation; None: it has none."""

    log: JobLog
    observation: Observation | None


def judged(
    source: str,
    logs: Sequence[JobLog],
    settings: Settings,
    stored: Mapping[JobClass, Baseline],
    switches: Mapping[str, Sequence[str]] | None = None,
    hardware: Mapping[str, str] | None = None,
) -> document.Judged:
    """Return the document of all logs. `switches`: the hosts behind each, where that is known; `hardware`: of
    each host, where the user gives it. None: there is no way to give it."""
    files = _measured_alike(by_job(logs))
    shared = shared_ends([log for log in files if not log.speaker])
    jobs = _at_usual_paces(_with_errors([_job(log, shared, hardware or {}) for log in files]))
    observations = [each.observation for each in jobs if each.observation is not None]
    hosts = sorted({host for log in files for host in log.hosts}, key=natural)
    posterior = localise(observations, Topology.of(hosts, switches or {}), settings, stored)
    verdict, least = judge_posterior(posterior), _least(posterior)
    works = iter([each.work for each in posterior.observations])
    jobs = [
        replace(job, log=replace(job.log, work=next(works))) if job.observation is not None else job
        for job in jobs
    ]
    silent = _silent(jobs, shared, verdict)
    measured = [replace(job.observation, work=job.log.work) for job in jobs if job.observation is not None]
    peers = _peers(jobs, healthy_baselines(posterior, measured))
    return document.Judged(
        source=source,
        slow=settings.slow,
        hosts=[
            each.model_copy(update={"reason": silent.get(each.hosts[0]) or each.reason})
            for each in verdict.hosts
        ],
        links=list(verdict.links),
        switches=[
            each.model_copy(update={"hosts": list((switches or {})[each.switch or ""])})
            for each in verdict.switches
        ],
        one_of=[list(each) for each in verdict.one_of],
        drifted=_drifted(peers, _peers(jobs, stored), settings),
        peers=[
            each.model_copy(
                update={"least": least.get(key), "side_by_side": verdict.baselines[key].sigma}
            )
            for key, each in sorted(peers.items())
        ],
        jobs=[_entry(each, verdict) for each in jobs],
        notes=[
            *notes_of(files),
            *shared.notes(),
            *_notes(jobs),
            *_too_fast(jobs, verdict, askable=hardware is not None),
            *_apart(verdict, stored),
            *_alike(verdict, askable=hardware is not None),
            *_drifting(posterior, least),
            *_spells(posterior),
        ],
    )


def _least(posterior: Posterior) -> dict[JobClass, float]:
    """Return what a job must be slower by, at least, to count as slow."""
    rows: dict[JobClass, list[int]] = {}
    for row, kind in enumerate(posterior.case.readings.kind):
        rows.setdefault(kind, []).append(row)
    return {
        kind: math.expm1(min([smallest(posterior.case.readings, [row], posterior.settings) for row in own]))
        for kind, own in rows.items()
    }


def work_of(log: JobLog) -> str:
    """Return what a job is compared by: jobs of the same work on as many hosts should take the same time.

    What was trained with its settings, ranks of a host, samples of a step; and whether only the tool's own
    figure is available, which includes the warm-up.
    """
    parts = [log.workload or log.format or "unknown"]
    if log.settings:
        parts.append(hashlib.sha256(log.settings.encode()).hexdigest()[:8])
    if log.world_size and log.hosts:
        parts.append(f"{log.world_size / len(log.hosts):g} ranks a host")
    if log.batch:
        parts.append(f"batch {log.batch:g}")
    if log.measured is None and log.reported:
        parts.append("as reported")
    if log.alone:
        parts.append(f"only {log.job}")
    return ", ".join(parts)


def _job(log: JobLog, shared: SharedEnds, hardware: Mapping[str, str]) -> _Job:
    if log.outcome is not State.UNREADABLE:
        kinds = sorted({hardware[host] for host in log.hosts if host in hardware})
        work = ", ".join([work_of(log), *([f"on {' and '.join(kinds)}"] if kinds else [])])
        log = replace(log, work=work)
    return _Job(log, None if log.speaker else observation_of(log, log.work, shared))


def _measured_alike(logs: Sequence[JobLog]) -> list[JobLog]:
    """Return the jobs of a work by the same measure: by the tool's own figures, where it has step times of
    less than half of them. A slow job can be long enough for these where its peers are not. Such a figure
    has start-up in it, which weighs the more the fewer steps there were: of another number of steps than is
    usual, as after a resume, it is of another work. So is a job of steps that grow as it runs."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, log in enumerate(logs):
        if log.reported and log.outcome.good:
            key = log.workload, log.format, log.settings, log.batch, len(log.hosts)
            kinds.setdefault(key, []).append(index)
    alike = list(logs)
    for members in kinds.values():
        if 2 * sum(logs[index].measured is not None for index in members) < len(members):
            for index in members:
                alike[index] = replace(logs[index], measured=None)
        whole = [index for index in members if alike[index].measured is None and logs[index].steps]
        for index in _of_other_length(logs, whole):
            alike[index] = _as_long_as_it(alike[index], OF_OTHER_LENGTH)
    courses: dict[tuple[object, ...], list[int]] = {}
    for index, log in enumerate(alike):
        if log.outcome.good and log.steps and log.measured and log.measured.halves:
            courses.setdefault((work_of(log), len(log.hosts)), []).append(index)
    for members in courses.values():
        halves = [each.halves for index in members if (each := alike[index].measured) and each.halves]
        grows = statistics.median([abs(math.log(second / first)) for first, second in halves])
        if grows > LEAST:  # so much do the means of jobs differ by their lengths
            for index in _of_other_length(alike, members, LEAST / 2 / grows):
                alike[index] = _as_long_as_it(alike[index], OF_OTHER_COURSE)
    return alike


def _of_other_length(logs: Sequence[JobLog], members: Sequence[int], most: float = SIZED) -> list[int]:
    """Return those of another number of steps than is usual for them, by more than this share of it."""
    usual = statistics.median([logs[index].steps or 0 for index in members] or [0])
    return [index for index in members if abs((logs[index].steps or 0) - usual) > most * usual]


def _as_long_as_it(log: JobLog, note: str) -> JobLog:
    """Return the job as of a work of its own, of so many steps."""
    return replace(log, settings=f"{log.settings}; {log.steps} steps", notes=(*log.notes, note))


def _with_errors(jobs: Sequence[_Job]) -> list[_Job]:
    """Return jobs with the error of their pace by their own windows, beyond what is usual for their work:
    where steps differ alike in all jobs, as with batches of unlike lengths, that is no property of one of
    them."""
    errors: dict[JobClass, list[float]] = {}
    for job in jobs:
        if (error := _error_of(job)) is not None:
            errors.setdefault(_class_of(job), []).append(error)
    made = []
    for job in jobs:
        if job.observation is not None and (error := _error_of(job)) is not None:
            beyond = error**2 - statistics.median(errors[_class_of(job)]) ** 2
            spread = math.sqrt(max(0.0, beyond))
            job = replace(job, observation=replace(job.observation, spread=spread))
        made.append(job)
    return made


def _at_usual_paces(jobs: Sequence[_Job]) -> list[_Job]:
    """Return jobs with the pace of their usual steps, where jobs stall on any hosts."""
    usual = iter(usual_paces([each.observation for each in jobs if each.observation is not None]))
    return [replace(job, observation=next(usual)) if job.observation is not None else job for job in jobs]


def _lost_in_stalls(jobs: Sequence[_Job]) -> dict[str, float]:
    """Return, by work whose jobs are compared by their usual steps, the largest share of a job's time that
    the others took."""
    most: dict[str, float] = {}
    for job in jobs:
        seconds, pace = job.observation.seconds if job.observation else None, job.log.pace
        if seconds and pace and seconds != pace:
            most[job.log.work] = max(1.0 - seconds / pace, most.get(job.log.work, 0.0))
    return most


def _error_of(job: _Job) -> float | None:
    """Return the error by its windows, where there is no other."""
    settled = job.observation is None or job.observation.seconds is None or job.log.spread is not None
    return None if settled or job.log.measured is None else job.log.measured.error


def _class_of(job: _Job) -> JobClass:
    return JobClass(job.log.work, len(set(job.log.hosts)))


def _silent(jobs: Sequence[_Job], shared: SharedEnds, verdict: Judgement) -> dict[str, str]:
    """Return why nothing is known of each host without an observation, or without one that can be compared.
    """
    observed = {host for job in jobs if job.observation for host in job.observation.hosts}
    compared = {host for job in jobs if job.observation and not job.log.alone for host in job.log.hosts}
    reasons = {
        host: ALONE
        for each in verdict.hosts
        for host in each.hosts
        if each.condition == "unknown" and host in observed - compared
    }
    lengths = dict.fromkeys(observed, True)
    for job in jobs:
        for host in job.log.hosts if job.observation else ():
            lengths[host] &= not {OF_OTHER_LENGTH, OF_OTHER_COURSE}.isdisjoint(job.log.notes)
    reasons |= {
        each.host: LENGTHS
        for each in verdict.hosts
        if each.condition == "unknown" and not each.evidence and lengths.get(each.host)
    }
    for job in jobs:
        for host in job.log.hosts:
            if host not in observed:
                why = AS_MOST if shared.of(job.log) else UNPLACED if job.log.unplaced else SILENT
                reasons[host] = max(
                    why, reasons.get(host, why), key=(SILENT, ALONE, LENGTHS, UNPLACED, AS_MOST).index
                )
    return reasons


def observation_of(log: JobLog, work: str, shared: SharedEnds | None = None) -> Observation | None:
    """Return the log's observation of its hosts; None: it has none. `shared`: ways to end that are the
    work's."""
    hosts = tuple(dict.fromkeys(log.hosts))
    if not hosts or log.unplaced or log.outcome is State.UNREADABLE:
        return None
    if log.outcome.good or _cut(log, shared):
        seconds = log.pace
        if seconds is None or not 0 < seconds < math.inf:
            return None
        return Observation(
            log.job, hosts, seconds, work=work, computing=log.computing, moment=log.moment, began=log.started,
            ended=log.ended, exchanges=log.exchanges, spread=log.spread,
            halves=log.measured.halves if log.measured else None,
        )  # fmt: skip
    if shared and shared.of(log):
        return None
    broken = is_hardware(log.failure, log.reason)
    return Observation(
        log.job, hosts, None, log.outcome, work, culprits=culprits_of(log), hardware=broken,
        stops=log.stops, began=log.started, ended=log.ended,
    )  # fmt: skip


def _cut(log: JobLog, shared: SharedEnds | None) -> bool:
    """Return whether a job was cut off that did its work until then: its log just stops like those of its
    peers, or it was ended from outside while it went on. Its pace is as good as that of one that ended."""
    if log.outcome is not State.TIMEOUT or log.measured is None:
        return False
    window = log.measured.seconds / log.measured.windows
    hung = max(3 * window, min(0.2 * log.measured.seconds, WENT_ON[1]), WENT_ON[0])
    went_on = log.quiet is not None and log.quiet <= hung
    return went_on or (shared is not None and shared.of(log))


def _peers(jobs: Sequence[_Job], baselines: Mapping[JobClass, Baseline]) -> dict[JobClass, document.Peers]:
    """Return what is normal for whole steps."""
    logs = {JobClass(each.log.work, len(each.log.hosts)): each.log for each in jobs}
    return {
        key: document.Peers(
            work=key.work,
            hosts=key.size,
            jobs=each.count,
            step_seconds=each.seconds,
            deviation=each.sigma,
            samples_per_second=_samples(logs.get(key), each.seconds),
            tokens_per_second=1 / each.seconds if key in logs and logs[key].unit == "tokens" else None,
            stored=each.stored,
        )
        for key, each in baselines.items()
        if key.part == "step"
    }


def _drifted(
    now: Mapping[JobClass, document.Peers], before: Mapping[JobClass, document.Peers], settings: Settings
) -> list[document.Drift]:
    """Return works in which all hosts together differ from the baseline, by more than what counts as slow in
    one host and more than chance: the standard error of a median is 1.25 times that of a mean."""
    drifts = []
    for key in now.keys() & before.keys():
        if not now[key].stored:
            slower = now[key].step_seconds / before[key].step_seconds - 1
            own = settle(now[key].deviation, now[key].jobs, ())  # of few jobs it can be small by chance
            errors = [
                sigma / math.sqrt(max(1, each.jobs))
                for sigma, each in ((own, now[key]), (before[key].deviation, before[key]))
            ]
            within = 1.25 * math.hypot(*errors)
            if abs(math.log1p(slower)) > max(math.log1p(settings.slow), DRIFTED * within):
                drifts.append(
                    document.Drift(slower=slower, within=within, now=now[key], baseline=before[key])
                )
    return sorted(drifts, key=lambda each: -each.slower)


def _apart(verdict: Judgement, stored: Mapping[JobClass, Baseline]) -> list[str]:
    """Return notes where a baseline is of no use."""
    if not stored or verdict.baselines.keys() & stored.keys():
        return []
    return ["nothing was compared with the baseline: it has no jobs of the same work on as many hosts"]


def _drifting(posterior: Posterior, least: Mapping[JobClass, float]) -> list[str]:
    """Return notes on works whose jobs are slow at times on any hosts."""
    dated = {each.work for each in posterior.observations if each.moment or each.began != each.ended}
    notes = []
    for work, deviation in posterior.drifts.items():
        slow = max([by for key, by in least.items() if key.work == work])
        if slow <= posterior.settings.slow * 1.001:
            continue  # no less would count without it
        what = (
            f"jobs{f' of {work}' if work else ''} are slow at times, whoever runs them (standard deviation "
            f"{deviation:.1%})"
        )
        notes.append(
            f"{what}, also next to others that are not: no host is accused of less than {slow:.0%}"
            if work in dated
            else f"{what}, and the logs do not say when they ran: the fleet's pace drifts, so no host is "
            f"accused of less than {slow:.0%}; time stamps in the logs would show more"
        )
    return notes


def _spells(posterior: Posterior) -> list[str]:
    """Return notes on switches behind which all was slow for a while."""
    slower: dict[int, float] = {}
    for spell in posterior.spells:
        most = max(posterior.case.readings.value[row] for row in spell.rows)
        slower[spell.switch] = max(math.expm1(most), slower.get(spell.switch, 0.0))
    switches = posterior.topology.switches
    return [
        f"all jobs behind {switches[switch][0]} were slow for a while, by up to {most:.0%}, and good at "
        "other times: no evidence against its hosts"
        for switch, most in slower.items()
    ]


def _alike(verdict: Judgement, *, askable: bool) -> list[str]:
    """Return notes on hosts that are slower than the others by the same factor."""
    how = "; --hardware NAME=HOSTS says that they are of another" if askable else ""
    return [
        f"{each.words} {fold_hosts(each.hosts)} are compared with each other only; if their hardware is "
        f"that of the others, they are slow{how}"
        for each in verdict.alike
    ]


def _entry(job: _Job, verdict: Judgement) -> document.JobEntry:
    log, observation = job.log, job.observation
    base = verdict.baselines.get(_class_of(job))
    other = f"another log of the same job as {log.speaker}, which is used instead" if log.speaker else ""
    return document.JobEntry.of(
        log,
        reported=log.reported if log.unit == "samples" or log.measured else None,
        slower=observation.seconds / base.seconds - 1
        if observation and observation.seconds and base
        else None,
        judged=observation is not None,
        notes=(*log.notes, *(note for note in (log.alone, log.unplaced, other) if note)),
    )


def _notes(jobs: Sequence[_Job]) -> list[str]:
    """Return notes on what makes these figures doubtful."""
    notes, logs = [], [each.log for each in jobs if not each.log.speaker]
    read = [each.log for each in jobs if each.observation and each.log.hosts_from not in ("", "muster")]
    host_sets = [set(log.hosts) for log in read]
    if doubted := [log for log in logs if log.contradicted]:
        notes.append(
            f"{counted(len(doubted), 'job')} with a rate that is more than {APART * 100:g} % from what the "
            f"tool itself says of the same steps: --json has both figures, in the notes of {doubted[0].job}"
        )
    if alone := [log for log in logs if log.alone]:
        notes.append(
            f"the logs of {counted(len(alone), 'job')} do not say what was trained: compared with no others; "
            "--workload NAME names the training of all of these"
        )
    if presumed := sum(PRESUMED in log.notes for log in logs):
        notes.append(
            f"the logs of {counted(presumed, 'job')} do not say what was trained: compared with those that "
            "are alike in all else (format, path, batch, steps, memory); --workload NAME names it"
        )
    lost = _lost_in_stalls(jobs)
    notes += [
        f"jobs of {work} lose up to {share:.0%} of their time in steps that stall, whoever runs them: they "
        "are compared by their usual steps"
        for work, share in lost.items()
    ]
    if stalled := [log for log in logs if log.work not in lost and log.measured and log.measured.stalls]:
        worst = max(stalled, key=lambda log: _stalled(log)[0])
        notes.append(
            f"{counted(len(stalled), 'job')} whose pace is not sure, since a few steps took much longer than "
            f"the others: {_stalled(worst)[1]}"
        )
    if unplaced := [log for log in logs if log.unplaced and log.outcome is not State.UNREADABLE]:
        notes.append(
            f"the logs of {counted(len(unplaced), 'job')} do not name the hosts: no evidence for or against "
            "any (a hostfile or SLURM_JOB_NODELIST in the log, or --host-pattern, names them)"
        )
    if len(host_sets) >= MANY and len({host for hosts in host_sets for host in hosts}) == sum(
        map(len, host_sets)
    ):
        notes.append(f"no host is in two of the {len(host_sets)} jobs: were the hosts read rightly?")
    return notes


def _too_fast(jobs: Sequence[_Job], verdict: Judgement, *, askable: bool) -> list[str]:
    """Return notes on jobs that took much less time than their peers: nothing makes a host so fast."""
    fast: list[tuple[float, JobLog]] = []
    for job in jobs:
        seconds = job.observation.seconds if job.observation else None
        base = verdict.baselines.get(_class_of(job))
        if seconds and base:
            by = base.seconds / seconds
            if math.log(by) > max(math.log(FASTER[0]), FASTER[1] * base.sigma):
                fast.append((by, job.log))
    if not fast:
        return []
    by, log = max(fast, key=lambda each: each[0])
    how = "; --hardware NAME=HOSTS says that hosts are of another" if askable else ""
    return [
        f"{counted(len(fast), 'job')} much faster than the others of the same work: {log.job} on "
        f"{fold_hosts(log.hosts)}, {by:.3g} times as fast. Was it the same work on the same hardware?{how}"
    ]


def _stalled(log: JobLog) -> tuple[float, str]:
    """Return the share of the time that its stalls took, and the same in words."""
    assert log.measured is not None and log.measured.stalls is not None
    stalls, whole = log.measured.stalls, log.measured.seconds
    words = f"{stalls.windows} of {log.measured.windows} windows took {stalls.seconds:.3g} of {whole:.3g} s"
    return stalls.seconds / whole, f"{words} in {log.job}"


def _samples(log: JobLog | None, seconds: float) -> float | None:
    """Return the samples per second of jobs like this one that take so long; None: the samples of a step are
    not known."""
    if log is None or log.unit == "samples":
        return (log.batch if log and log.batch else 1.0) / seconds
    return None


# ----------------------------------------------------------------------------------------------------
# Failures caused by the workload rather than by a host: those that at least half of its jobs share.

FEWEST = 4  # jobs of a work, and hosts that speak of themselves, that share a way to end
# Who says it, before what is said: "rank 3: ", "[rank3]: ".
_RANK = re.compile(r"\[?(?:rank|task) ?[0-9]+\]?")
_BRACKETS = re.compile(r"(?:\[[^\]]*\] ?)+")  # when, how bad, where in the code, with which command


class Way(NamedTuple):
    """What was trained, as far as that is known, and how it ended, without the numbers in it."""

    family: str
    how: str


@dataclass(frozen=True)
class SharedEnds:
    """Ways to end that are the work's. `counts`: of how many jobs; `sizes`: on how many hosts (None: on any
    number)."""

    counts: Mapping[Way, int] = field(default_factory=dict)
    sizes: frozenset[tuple[Way, int | None]] = frozenset()

    def of(self, log: JobLog) -> bool:
        """Return whether the job ended in one of them."""
        if log.outcome in (State.SUCCEEDED, State.UNREADABLE) or certain(log):
            return False
        way = _way(log)
        return (way, None) in self.sizes or (way, len(log.hosts)) in self.sizes

    def notes(self) -> list[str]:
        """Return notes for people."""
        return [
            f"{count} jobs of {family or 'one workload'} fail the same way ({how}): no evidence against "
            f"their hosts"
            for (family, how), count in sorted(self.counts.items())
        ]


@dataclass
class _Tally:
    """Jobs, the hosts that may be to blame for them, and those that may be to blame for all of them."""

    jobs: int = 0
    hosts: set[str] = field(default_factory=set)
    common: set[str] = field(default_factory=set)

    def add(self, hosts: Sequence[str]) -> None:
        self.common = self.common & set(hosts) if self.jobs else set(hosts)
        self.jobs += 1
        self.hosts.update(hosts)


def culprits_of(log: JobLog) -> tuple[str, ...]:
    """Return the hosts that the job itself holds responsible for how it ended; none, where it names none."""
    if blame_of(log.failure) != "host":
        return ()
    own = tuple(host for host, failure in log.failed if blame_of(failure) == "host" and host in log.hosts)
    return own or (tuple(log.hosts) if len(log.hosts) == 1 else ())


def certain(log: JobLog) -> bool:
    """Return whether the way it ended is a fact about a host, however many jobs end so: the host cannot be
    reached, or its hardware is broken. All else can have one cause for many hosts: a full shared disk, an
    environment without a module, a changed key, a name server, a program that asks for too many GPUs."""
    entry = known_failures().get(log.failure or "")
    return entry is not None and (not entry.shared or is_hardware(entry.id, log.reason))


def shared_ends(logs: Sequence[JobLog]) -> SharedEnds:
    """Return ways to end that at least half of the jobs of a work share, or all of it on so many hosts."""
    total: dict[tuple[str, int | None], _Tally] = {}
    ended: dict[tuple[Way, int | None], _Tally] = {}
    own: set[Way] = set()
    for log in logs:
        if log.outcome is State.UNREADABLE:
            continue
        for size in (None, len(log.hosts)):
            for name in _counted_as(log):
                total.setdefault((name, size), _Tally()).add(log.hosts)
            if not log.outcome.good and not certain(log):
                ended.setdefault((_way(log), size), _Tally()).add(culprits_of(log) or log.hosts)
        if blame_of(log.failure) == "host":
            own.add(_way(log))
    sizes = frozenset(
        (way, size)
        for (way, size), mine in ended.items()
        if _is_shared(mine, total[way.family, size], size, own=way in own)
    )
    counts: Counter[Way] = Counter()
    for way, size in sizes:
        if size is None or (way, None) not in sizes:
            counts[way] += ended[way, size].jobs
    return SharedEnds(counts, sizes)


def _is_shared(mine: _Tally, total: _Tally, size: int | None, *, own: bool) -> bool:
    """Return whether enough jobs end so, and no few hosts explain it. `own`: their hosts report it of
    themselves."""
    enough = 2 * mine.jobs >= total.jobs if size is None else mine.jobs == total.jobs
    if total.jobs < FEWEST or not enough:
        return False
    if len(mine.common) == 1 and len(total.hosts) > 1:
        return False  # one host was in all of them: rather it than the work
    if own and len(mine.hosts) < FEWEST:
        return False
    return not mine.hosts or 2 * len(mine.hosts) >= len(total.hosts)


def how_ended(job: document.JobEntry) -> str:
    """Return the failure's name, or else the job's own words, up to the first colon, without numbers."""
    text = job.reason or ""
    while True:
        who, colon, what = text.partition(": ")
        if not colon or not (who in job.hosts or who in job.failed_hosts or _RANK.fullmatch(who)):
            break
        text = what
    kind = re.sub(r"[0-9]+", "N", _BRACKETS.sub("", text, count=1) or text).partition(":")[0][:80]
    return job.failure or kind or job.outcome


def _way(log: JobLog) -> Way:
    family = log.entry or log.workload or (log.format or "").partition(", ")[0]
    return Way(family, how_ended(log))


def _counted_as(log: JobLog) -> set[str]:
    """Return what a job counts for. A log that ended too early to show what was trained, or even its format,
    counts for all that it can have been."""
    formats = (log.format or "").split(", ")
    return {name for name in (log.entry, log.workload, *formats) if name} | {""}
