"""Verdicts per host from logs that other tools wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.core.errors import JobError, UsageError
from muster.core.judged import Judged, Peers
from muster.judging import Baseline, Class, Settings
from muster.readers._mapping import Mapping, load_mappings
from muster.readers._read import read_blocks
from muster.readers.base import JobLog
from muster.stages.atleast import Bound, held
from muster.stages.joblogs import judged
from muster.store.atomic import write_text
from muster.store.logfiles import LogFile, blocks_of, find_logs, members_of

MANY, LARGE = 64, 64 << 20  # files, bytes: from there on, several processes read
Progress = Callable[[int, int], None]
_NAMED = re.compile(r"\(\?P<host>")


def judge(
    where: Path,
    *,
    mappings: Sequence[Path] = (),
    host_pattern: str = "",
    slow: float = Settings.slow,
    baseline: Path | None = None,
    at_least: str = "",
    workload: str = "",
    progress: Progress = lambda done, total: None,
) -> Judged:
    """Read every log below `where`, or in an archive of them, and judge their hosts.

    `mappings`: files that say what is where in tables, lines and paths; `host_pattern`: an expression with
    a group `host`, searched for in paths; `slow`: the smallest slowdown that counts; `baseline`: what
    `--json` wrote of another fleet, for hosts that have too few peers here, and for a fleet that is
    slower as a whole; `at_least`: a speed that every job must reach, such as 800samples/s; `workload`: what
    was trained, for logs that do not say it. Raises UsageError for bad input, and where no log can be read.
    """
    if not 0 < slow < 1:
        raise UsageError(f"must be between 0 and 1 (a share of the step time), not {slow:g}", where="--slow")
    named = _pattern(host_pattern)
    bound = Bound.of(at_least) if at_least else None
    stored = load_baselines(baseline) if baseline else {}
    known = [each.of_workload(workload) for each in load_mappings(mappings)]
    given = {path.resolve() for path in [*mappings, *([baseline] if baseline else [])]}
    files = [each for each in find_logs(where) if each.path.resolve() not in given]
    logs = list(read_logs(files, known, named, progress))
    if workload:
        logs = [
            replace(log, workload=workload, recipe=workload, alone="") if log.alone else log for log in logs
        ]
    if all(log.outcome == "unreadable" for log in logs):
        first = f": {logs[0].path} {logs[0].reason}" if logs else ""
        raise UsageError(
            f"none of the {len(logs)} files could be read as a training log{first}",
            where=str(where),
            hint="docs/judge.md has examples of mappings"
            if mappings
            else "--mapping FILE says how other formats are read; docs/judge.md lists those that are known",
        )
    found = judged(str(where), logs, Settings(slow=slow), stored)
    if named and not any(named.search(log.path) for log in logs):
        note = f"--host-pattern matches none of the paths, such as {logs[0].path}"
        found = found.model_copy(update={"notes": [*found.notes, note]})
    return held(found, bound) if bound else found


def read_logs(
    files: Sequence[LogFile], mappings: Sequence[Mapping], named: re.Pattern[str] | None, progress: Progress
) -> Iterator[JobLog]:
    """The jobs of all files, in their order. Many files are read by a process per core."""
    read = partial(_read, mappings=tuple(mappings), named=named)
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
            for number, found in enumerate(pool.map(read, files, chunksize=share), 1):
                yield from found
                progress(number, len(files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read(file: LogFile, *, mappings: Sequence[Mapping], named: re.Pattern[str] | None) -> list[JobLog]:
    """The jobs of one file, or of all files of an archive."""
    if not file.archive:
        return read_blocks(file.shown, blocks_of(file), mappings, named)
    return [job for path, text in members_of(file) for job in read_blocks(path, text, mappings, named)]


def load_baselines(path: Path) -> dict[Class, Baseline]:
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
        Class(each.work, each.hosts): Baseline(each.step_seconds, each.deviation, each.jobs, stored=True)
        for each in peers
        if each.step_seconds > 0
    }


def save_csv(found: Judged, path: Path) -> None:
    """A row per job: the columns of the benchmark whose results these are, and what else is known.

    Raises JobError where it cannot be written.
    """
    condition = {each.hosts[0]: each.condition for each in found.hosts}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(
        ["Hostnames", "Throughput (samples/sec)", "Status", "job", "recipe", "group", "seconds", "reason",
         "memory", "spread", "slower", "steps", "skipped", "verdicts"]
    )  # fmt: skip
    for job in found.jobs:
        verdicts = dict.fromkeys(condition.get(host, "unknown") for host in job.hosts)
        values: list[Any] = [
            ",".join(job.hosts), _figure(job.samples_per_second, ".4f"), job.outcome, job.job, job.workload,
            len(job.hosts) or None, _figure(job.measured_seconds, ".3f"), job.reason, job.memory,
            _figure(job.variation, ".6f"), _figure(job.slower, ".6f"), job.steps, job.skipped_steps,
            " ".join(verdicts),
        ]  # fmt: skip
        rows.writerow(["" if value is None else value for value in values])
    try:
        write_text(path, text.getvalue())
    except OSError as error:
        raise JobError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _figure(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"is not a regular expression: {error}", where="--host-pattern") from None
    if not _NAMED.search(text):
        raise UsageError(
            "has no group `host`",
            where="--host-pattern",
            hint="such as --host-pattern '(?P<host>node[0-9]+)'",
        )
    return pattern
