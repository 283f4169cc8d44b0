"""Verdicts per host from logs that other tools wrote."""

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

from muster.core.errors import JobError, UsageError
from muster.core.hostlist import fold_hosts
from muster.core.inventory import parse_hosts
from muster.core.state import State
from muster.core.units import counted, format_number, parse_rate
from muster.judging import Baseline, JobClass, Settings
from muster.judging.document import JobEntry, Judged, Peers, Verdict
from muster.judging.grouping import with_presumed_works, without_lone_guesses
from muster.judging.joblogs import judged
from muster.readers._lines import OF_A_DEVICE
from muster.readers._read import read_blocks, without_harmless
from muster.readers._user import PLACES, Expression, UserFormat
from muster.readers.base import JobLog
from muster.store.atomic import csv_text, write_text
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
    FIELD=NAME, for tables; `host_pattern`: an expression with groups `host`, `work` or `job`, searched for
    in paths; `slow`: the smallest slowdown that counts; `baseline`: what
    `--json` wrote of another fleet, for hosts that have too few peers here, and for a fleet that is
    slower as a whole; `at_least`: a speed that every job must reach, such as 800samples/s; `workload`: what
    was trained, for logs that do not say it; `hardware`: NAME=HOSTS, for each kind that differs, whose jobs
    are compared with each other alone. Raises UsageError for bad input, and where no log can be read.
    """
    if not 0 < slow < 1:
        raise UsageError(f"must be between 0 and 1 (a share of the step time), not {slow:g}", where="--slow")
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
    """The jobs of all files, in their order. Many files are read by a process per core."""
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
    """The jobs of one file, or of all files of an archive."""
    if not file.archive:
        return read_blocks(file.shown, blocks_of(file), user, named)
    return [job for path, text in members_of(file) for job in read_blocks(path, text, user, named)]


def load_baselines(path: Path) -> dict[JobClass, Baseline]:
    """What is normal, from a document of `muster judge --json`. Raises UsageError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        peers = [Peers.model_validate(each) for each in document["peers"]]
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError):
        raise UsageError(
            "is not the output of muster judge --json", where=str(path), hint="muster judge DIR --json > FILE"
        ) from None
    return {
        JobClass(each.work, each.hosts): Baseline(each.step_seconds, each.deviation, each.jobs, stored=True)
        for each in peers
        if each.step_seconds > 0
    }


def save_csv(document: Judged, path: Path) -> None:
    """A row per job: the columns of the benchmark whose results these are, and what else is known.

    Raises JobError where it cannot be written.
    """
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
    try:
        write_text(path, csv_text(COLUMNS, rows))
    except OSError as error:
        raise JobError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _figure(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _hardware_of(given: Sequence[str]) -> dict[str, str]:
    """Host -> its kind, from NAME=HOSTS. Raises UsageError."""
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
        """The job's figure. None: it succeeded not, or its log does not tell."""
        value: float | None = getattr(job, self.figure)
        if self.figure == "tokens_per_second" and OF_A_DEVICE in job.notes:
            return None
        count = job.divisor(self.per)
        return value / count if job.outcome.good and value and count else None


def held(document: Judged, bound: Bound) -> Judged:
    """The document, with what each job misses, and the hosts `below` that are to blame. Raises UsageError
    where no job tells the figure."""
    speeds = {job.job: bound.reached(job) for job in document.jobs}
    if all(speed is None for speed in speeds.values()):
        raise UsageError(f"no log tells {bound.unit}", where="--at-least")
    silent = sum(speeds[job.job] is None for job in document.jobs if job.outcome.good)
    note = f"{counted(silent, 'job')} could not be held against {bound.words}: the logs tell no {bound.unit}"
    jobs = [
        replace(job, misses=(f"{format_number(speed)} {bound.unit} is below {bound.words}",))
        if (speed := speeds[job.job]) is not None and speed < bound.value
        else job
        for job in document.jobs
    ]
    why = _to_blame(jobs, document.hosts)
    hosts = [
        _also_missed(each, jobs) if each.bad else below(each, why[each.host]) if each.host in why else each
        for each in document.hosts
    ]
    return document.model_copy(
        update={
            "at_least": bound.words,
            "jobs": jobs,
            "hosts": hosts,
            "notes": [*document.notes, *([note] if silent else [])],
        }
    )


def _to_blame(jobs: list[JobEntry], hosts: list[Verdict]) -> dict[str, str]:
    """Host -> why: it was alone in a job that missed; or its group missed, it reached it in no other job, and
    none of the group is known to be bad."""
    well = {host for job in jobs if job.outcome.good and not job.misses for host in job.hosts}
    missed = [job for job in jobs if job.misses]
    why = {job.hosts[0]: f"{job.misses[0]} alone ({job.job})" for job in missed if len(job.hosts) == 1}
    bad = why.keys() | {each.hosts[0] for each in hosts if each.bad}
    for job in missed:
        if len(job.hosts) > 1 and not bad & set(job.hosts):
            words = f"{job.misses[0]} in {fold_hosts(job.hosts)} ({job.job}); no job shows which host it is"
            why |= {host: words for host in job.hosts if host not in well}
    return why


def _also_missed(verdict: Verdict, jobs: Sequence[JobEntry]) -> Verdict:
    """The verdict of a host that is bad anyway, with what its jobs missed."""
    missed = [job for job in jobs if job.misses and verdict.host in job.hosts]
    if not missed:
        return verdict
    more = f" and {counted(len(missed) - 1, 'more job')}" if len(missed) > 1 else ""
    reason = f"{verdict.reason}; {missed[0].misses[0]} ({missed[0].job}{more})"
    return verdict.model_copy(update={"reason": reason})


def below(verdict: Verdict, why: str) -> Verdict:
    """The verdict of a host that misses a threshold."""
    return verdict.model_copy(update={"condition": "below", "reason": why, "confidence": 1.0, "settle": ""})
