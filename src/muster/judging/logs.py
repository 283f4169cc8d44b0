"""Judge hosts by logs that other tools wrote."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.core.errors import UsageError
from muster.core.hostlist import fold_hosts
from muster.core.inventory import parse_hosts
from muster.core.state import State
from muster.core.units import counted, format_number, parse_rate
from muster.judging import Baseline, JobClass, Settings
from muster.judging.baseline import settle
from muster.judging.document import BAD, GOOD, JobEntry, Judged, Peers, Verdict
from muster.judging.grouping import with_presumed_works, without_lone_guesses
from muster.judging.joblogs import judged
from muster.readers._lines import OF_A_DEVICE
from muster.readers._read import read_blocks, without_harmless
from muster.readers._user import PLACES, Expression, UserFormat
from muster.readers.base import JobLog
from muster.store.atomic import csv_text
from muster.store.logfiles import LogFile, blocks_of, find_logs, members_of

# Of a row per job.
COLUMNS = (
    "Hostnames", "Throughput (samples/sec)", "Status", "job", "recipe", "group", "seconds", "reason",
    "memory", "spread", "slower", "steps", "skipped", "verdicts",
)  # fmt: skip
MANY, LARGE = 64, 64 << 20  # files, bytes: from there on, several processes read
Progress = Callable[[int, int], None]


def judge(
    where: Path,
    *,
    lines: Sequence[str] = (),
    columns: Sequence[str] = (),
    host_pattern: str = "",
    slow: float = Settings.slow,
    baseline: Path | None = None,
    at_least: str = "",
    workload: str = "",
    hardware: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> Judged:
    """Read every log below `where`, or in an archive of them, and judge their hosts.

    `lines`: expressions for lines of formats that no reader knows, whose groups are fields; `columns`:
    FIELD=NAME, for tables; `host_pattern`: an expression with groups `host`, `work` or `job`, searched for in
    paths; `slow`: the smallest slowdown that counts; `baseline`: the `--json` document of another fleet, for
    hosts that have too few peers here, and for a fleet that is slower as a whole; `at_least`: a speed that
    every job must reach, such as 800samples/s; `workload`: what was trained, for logs that do not name it;
    `hardware`: NAME=HOSTS, for each kind that differs, whose jobs are compared with each other alone. Raises
    UsageError for bad input, and where no log can be read.
    """
    named = Expression.of(host_pattern, PLACES, "--host-pattern") if host_pattern else None
    user = UserFormat.of(lines, columns, workload)
    bound = Bound(*parse_rate(at_least, "--at-least")) if at_least else None
    kinds = _hardware_of(hardware)
    stored = load_baselines(baseline) if baseline else {}
    files = [each for each in find_logs(where) if not baseline or each.path.resolve() != baseline.resolve()]
    logs = without_lone_guesses(without_harmless(list(read_logs(files, user, named, progress))))
    if workload:
        logs = [
            replace(log, workload=workload, settings=workload, alone="") if log.alone else log for log in logs
        ]
    logs = with_presumed_works(logs)
    if all(log.outcome is State.UNREADABLE for log in logs):
        first = f": {logs[0].job} {logs[0].reason}" if logs else ""
        raise UsageError(
            f"none of the {len(logs)} files could be read as a training log{first}",
            where=str(where),
            hint="--line and --column say how others are read; docs/judge.md lists those that are known",
        )
    if absent := kinds.keys() - {host for log in logs for host in log.hosts}:
        raise UsageError(
            f"no log is of {fold_hosts(absent)}",
            where="--hardware",
            hint="hosts are named as the logs name them: muster judge DIR --all shows them",
        )
    document = judged(str(where), logs, Settings(slow=slow), stored, hardware=kinds)
    if named and not any(named.search(log.job) for log in logs):
        note = f"--host-pattern matches none of the paths, such as {logs[0].job}"
        document = document.model_copy(update={"notes": [*document.notes, note]})
    return held(document, bound) if bound else document


def read_logs(
    files: Sequence[LogFile], user: UserFormat, named: Expression | None, progress: Progress
) -> Iterator[JobLog]:
    """Yield the jobs of all files, in their order. Many files are read by a process per core."""
    read = partial(_read, user=user, named=named)
    cores = len(os.sched_getaffinity(0))
    many = len(files) >= MANY or (len(files) > 1 and sum(each.size for each in files) > LARGE)
    if not many or cores < 2 or threading.active_count() > 1:  # forking a process with threads is not safe
        for number, file in enumerate(files, 1):
            yield from read(file)
            progress(number, len(files))
        return
    with ProcessPoolExecutor(min(cores, len(files)), mp_context=get_context("fork")) as pool:
        try:
            share = max(1, min(32, len(files) // (4 * cores)))
            for number, jobs in enumerate(pool.map(read, files, chunksize=share), 1):
                yield from jobs
                progress(number, len(files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read(file: LogFile, *, user: UserFormat, named: Expression | None) -> list[JobLog]:
    """Return the jobs of one file, or of all files of an archive."""
    if not file.archive:
        return read_blocks(file.shown, blocks_of(file), user, named)
    return [job for path, text in members_of(file) for job in read_blocks(path, text, user, named)]


def load_baselines(path: Path) -> dict[JobClass, Baseline]:
    """Return what is normal, from a document of `muster judge --json`. Raises UsageError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        peers = [Peers.model_validate(each) for each in document["peers"]]
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError):
        raise UsageError(
            "is not the output of muster judge --json", where=str(path), hint="muster judge DIR --json > FILE"
        ) from None
    baselines = {}
    for each in peers:
        if each.step_seconds > 0:
            deviation = settle(each.deviation, each.jobs, ())  # of few jobs it can be small by chance
            key = JobClass(each.work, each.hosts)
            baselines[key] = Baseline(each.step_seconds, deviation, each.jobs, stored=True)
    return baselines


def table_of(document: Judged) -> str:
    """Return a row per job as CSV: the columns of the benchmark that these results are of, and what else is
    known."""
    condition = {each.hosts[0]: each.condition for each in document.hosts}
    rows: list[list[Any]] = []
    for job in document.jobs:
        verdicts = dict.fromkeys(condition.get(host, "unknown") for host in job.hosts)
        rows.append([
            ",".join(job.hosts), _figure(job.samples_per_second, ".4f"),
            "below" if job.misses else job.outcome, job.job, job.workload, len(job.hosts) or None,
            _figure(job.measured_seconds, ".3f"), job.reason or "; ".join(job.misses) or None, job.memory,
            _figure(job.variation, ".6f"), _figure(job.slower, ".6f"), job.steps, job.skipped_steps,
            " ".join(verdicts),
        ])  # fmt: skip
    return csv_text(COLUMNS, rows)


def _figure(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _hardware_of(given: Sequence[str]) -> dict[str, str]:
    """Return each host's kind, from NAME=HOSTS. Raises UsageError."""
    kinds: dict[str, str] = {}
    for text in given:
        name, equals, hosts = (part.strip() for part in text.partition("="))
        if not (name and equals and hosts):
            raise UsageError(
                f"is NAME=HOSTS, not {text!r}", where="--hardware", hint="such as --hardware a100=node[01-16]"
            )
        for host in (each.name for each in parse_hosts(hosts).hosts):
            if kinds.setdefault(host, name) != name:
                raise UsageError(f"is {kinds[host]} and {name}", host=host, where="--hardware")
    return kinds


# ----------------------------------------------------------------------------------------------------
# A speed that jobs must reach, whatever their peers do (`muster judge --at-least`). Pure.


@dataclass(frozen=True)
class Bound:
    """`value` of the figure, divided by the number of hosts or ranks of a job as `per` says."""

    value: float
    figure: str
    per: str

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
        """Return the job's figure. None: it did not succeed, or its log does not have it."""
        value: float | None = getattr(job, self.figure)
        if self.figure == "tokens_per_second" and OF_A_DEVICE in job.notes:
            return None
        count = job.divisor(self.per)
        return value / count if job.outcome.good and value and count else None


def held(document: Judged, bound: Bound) -> Judged:
    """Return the document, with what each job misses, and what that means for hosts. Raises UsageError where
    no job states the figure."""
    speeds = {job.job: bound.reached(job) for job in document.jobs}
    if all(speed is None for speed in speeds.values()):
        of_one = any(OF_A_DEVICE in job.notes for job in document.jobs)
        hint = "the logs tell those of one device, and not of how many" if of_one else ""
        raise UsageError(f"no log states {bound.unit}", where="--at-least", hint=hint)
    silent = sum(speeds[job.job] is None for job in document.jobs if job.outcome.good)
    note = f"{counted(silent, 'job')} could not be held against {bound.words}: the logs tell no {bound.unit}"
    jobs = [
        replace(job, misses=(f"{format_number(speed)} {bound.unit} is below {bound.words}",))
        if (speed := speeds[job.job]) is not None and speed < bound.value
        else job
        for job in document.jobs
    ]
    return document.model_copy(
        update={
            "at_least": bound.words,
            "jobs": jobs,
            "hosts": blamed(document.hosts, jobs),
            "notes": [*document.notes, *([note] if silent else [])],
        }
    )


def blamed(hosts: Sequence[Verdict], jobs: Sequence[JobEntry]) -> list[Verdict]:
    """Return the verdicts of hosts with the thresholds that their jobs missed.

    A host that was alone in such a job is `below`. One that is good, or of which nothing is known, and was in
    such a group, is in doubt, unless another of the group is bad, or another job of this entry and size met
    everything. Of one that is bad anyway, the reason has what it missed.
    """
    of_host: dict[str, list[JobEntry]] = {}
    for job in jobs:
        for host in job.hosts if job.outcome.good else ():
            of_host.setdefault(host, []).append(job)
    made = []
    for each in hosts:
        missed = [job for job in of_host.get(each.host, []) if job.misses]
        alone = [job for job in missed if job.size == 1]
        if missed and each.bad:
            more = f" and {counted(len(missed) - 1, 'more job')}" if len(missed) > 1 else ""
            reason = f"{each.reason}; {missed[0].misses[0]} ({missed[0].job}{more})"
            each = each.model_copy(update={"reason": reason})
        elif alone:
            reason = f"{alone[0].job}: {alone[0].misses[0]}"
            below = {"condition": "below", "reason": reason, "confidence": 1.0, "settle": ""}
            each = each.model_copy(update=below)
        made.append(each)
    bad = {each.host for each in made if each.condition in BAD}
    return [_in_doubt(each, of_host.get(each.host, []), bad) for each in made]


def _in_doubt(verdict: Verdict, jobs: Sequence[JobEntry], bad: set[str]) -> Verdict:
    """Return a host's verdict, unknown where a group of it missed a threshold and it may be why."""
    good = verdict.condition in GOOD
    met = {(job.entry, job.size) for job in jobs if not job.misses}
    for job in jobs if good or (verdict.condition == "unknown" and not verdict.evidence) else ():
        if job.misses and (job.entry, job.size) not in met and not bad & set(job.hosts):
            why = f"its group missed a threshold, and which host caused that is unknown: {job.job}"
            chance = 1.0 - verdict.confidence if good else verdict.confidence
            doubt = {"condition": "unknown", "confidence": chance, "reason": f"{why}: {job.misses[0]}"}
            return verdict.model_copy(update=doubt)
    return verdict
