"""Files that belong to one job: of its ranks, its streams, or its hosts. One of them counts for it. Pure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from muster.core.state import State
from muster.failures.sign import weight_of
from muster.readers._paths import alike_parts, is_node, place_of
from muster.readers.base import NOWHERE, JobLog

PRESUMED = "the log does not say what it trained: taken for the same as those that are alike in all else"
SIZED = 0.1  # share by which the tokens and memory of one work differ at most
VARIES = 0.02  # the same of its batches, which can be of as many samples as have so many tokens


def by_job(logs: Sequence[JobLog]) -> list[JobLog]:
    """Return every log in its place, and the file that counts for its job: the slowest that was measured, or
    else the one whose failure says most. Files of the same hosts are of one job where their paths differ in
    rank or stream alone; and copies are of one."""
    logs = _joined(_named_alike(logs))
    copies = _copies(logs)
    groups: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for index, log in enumerate(logs):
        if index in copies or log.outcome is State.UNREADABLE:
            continue
        if log.group:
            groups.setdefault(((), log.group), []).append(index)
        elif log.hosts and log.hosts_from != "muster":
            groups.setdefault((log.hosts, _place(log)), []).append(index)
    speakers: dict[int, str] = {}
    for members in groups.values():
        speaker = min(members, key=lambda index: _says(logs[index]))
        speakers |= {index: logs[speaker].job for index in members if index != speaker}
    first = {index: copies.get(index, index) for index in range(len(logs))}
    return [
        replace(
            log,
            speaker=speakers.get(first[index]) or (logs[first[index]].job if index in copies else ""),
            copied=index in copies,
        )
        for index, log in enumerate(logs)
    ]


def without_lone_guesses(logs: Sequence[JobLog]) -> list[JobLog]:
    """Drop guessed hosts that are alone. Hosts come in series: a name that only a file or folder gives, and
    that differs from every other host's in more than numbers, is taken for one only where it is a node's
    name. Else any name of a model, a data set or an experiment would be."""
    named = {host for log in logs for host in log.hosts}
    series = Counter(re.sub(r"[0-9]+", "", host) for host in named)

    def of(log: JobLog) -> JobLog:
        if not log.hosts_from.startswith("guess"):
            return log
        if all(is_node(host) or series[re.sub(r"[0-9]+", "", host)] > 1 for host in log.hosts):
            return log
        return replace(log, hosts=(), hosts_from="", unplaced=NOWHERE)

    return [of(log) for log in logs]


def with_presumed_works(logs: Sequence[JobLog]) -> list[JobLog]:
    """Take logs that do not name what they trained for one work where all else is alike: the format, the path
    but for hosts and what only counts, the batch (or else the number of hosts), the ranks of a host; and the
    planned steps, tokens of a step and memory, where they are stated."""
    alike: dict[tuple[str, tuple[object, ...]], list[int]] = {}
    batches: dict[tuple[object, ...], list[float]] = {}
    usual: dict[int, float] = {}
    for index, log in enumerate(logs):
        if log.alone and log.hosts and not log.unplaced and log.rate:
            path = "/".join(alike_parts(log.job, log.hosts))
            kind = log.format, log.batch is None, (log.world_size or 0) / len(log.hosts)
            size = log.batch or len(log.hosts)
            before = batches.setdefault((path, kind), [])
            near = next((each for each in before if abs(size / each - 1) < VARIES), None)
            usual[index] = size if near is None else near
            if near is None:
                before.append(size)
            alike.setdefault((path, (*kind, usual[index])), []).append(index)
    presumed = list(logs)
    for (path, _), members in alike.items():
        for index in _of_one_size([logs[each] for each in members], members):
            log = logs[index]
            batch = usual[index] if log.batch else None
            notes = (*log.notes, PRESUMED)
            presumed[index] = replace(log, settings=f"as {path}", alone="", notes=notes, batch=batch)
    return presumed


def _of_one_size(logs: Sequence[JobLog], members: Sequence[int]) -> list[int]:
    """Return those whose steps, tokens of a step and memory are as most others' are; none, where they are of
    one host, or the most are not alike in their pace either."""
    kept = list(zip(members, logs, strict=True))
    for size in (lambda log: log.total, _step_tokens, lambda log: log.memory):
        told = [value for _, log in kept if (value := size(log))]
        usual = statistics.median(told) if told else 0.0
        kept = [each for each in kept if not usual or abs((size(each[1]) or usual) / usual - 1) < SIZED]
    paces = [log.pace or 0.0 for _, log in kept]
    usual = statistics.median(paces) if paces else 0.0
    most = 2 * sum(abs(pace - usual) < SIZED * usual for pace in paces) > len(paces)
    return [index for index, _ in kept] if most and len({log.hosts for _, log in kept}) > 1 else []


def _step_tokens(log: JobLog) -> float | None:
    figures = log.measured
    return figures.tokens / figures.steps if figures and figures.tokens else None


def notes_of(logs: Sequence[JobLog]) -> list[str]:
    """Return notes on files that do not count by themselves."""
    copied = sum(log.copied for log in logs)
    count = sum(bool(log.speaker) for log in logs) - copied
    are = "1 log is a copy of another" if copied == 1 else f"{copied} logs are copies of others"
    belong = f"{count} logs belong to other ranks or streams"
    if count == 1:
        belong = "1 log belongs to another rank or stream"
    notes = [f"{are}: each job counts once"] if copied else []
    if count:
        notes.append(f"{belong} of a job that is already counted: each job counts once, by its slowest file")
    return notes


def _copies(logs: Sequence[JobLog]) -> dict[int, int]:
    """Return, for each copy, its index and that of the original: on the same hosts, with the same lines; or
    with the same begin, end, last loss and measured windows, by lines of steps that are the same but for who
    sent them: windows of whole seconds alone are alike by chance. Logs without either can be of several jobs.
    """
    first_of: dict[tuple[object, ...], int] = {}
    copies: dict[int, int] = {}
    for index, log in enumerate(logs):
        if not log.hosts or log.unplaced or log.hosts_from == "muster" or log.outcome is State.UNREADABLE:
            continue  # of unknown hosts it counts for nothing anyway
        keys: list[tuple[object, ...]] = []
        if log.digest and (log.started is not None or log.measured):
            keys.append((log.hosts, log.digest, log.job.partition("#")[2]))
        if log.started is not None and log.measured:
            keys.append((log.hosts, log.started, log.ended, log.outcome, log.measured, log.loss, log.content))
        first = next((first_of[key] for key in keys if key in first_of), index)
        first_of.update(dict.fromkeys(keys, first))
        if first != index and _place(log) != _place(logs[first]):  # else a rank's
            copies[index] = first
    return copies


def _says(log: JobLog) -> tuple[float, ...]:
    """Return a sorting key: the least of a job's files counts for it."""
    if log.outcome.good and log.rate:
        return (0, log.measured is None, log.batch is None, log.rate / (log.batch or 1.0))
    if log.outcome.good:
        return (2,)
    return (1, log.outcome is State.TIMEOUT, weight_of(log.failure))


def _named_alike(logs: Sequence[JobLog]) -> list[JobLog]:
    """Return logs with a host's first name for its whole one (node07.cluster.local), where other logs use
    that."""
    names = {host for log in logs for host in log.hosts}
    short = {
        host: first
        for host in names
        if (first := host.partition(".")[0]) != host and first in names and not first.isdecimal()
    }

    def of(log: JobLog) -> JobLog:
        if not short.keys() & set(log.hosts):
            return log
        failed = tuple((short.get(host, host), failure) for host, failure in log.failed)
        return replace(log, hosts=tuple(short.get(host, host) for host in log.hosts), failed=failed)

    return [of(log) for log in logs]


def _joined(logs: Sequence[JobLog]) -> list[JobLog]:
    """Return logs with the hosts of all files that --host-pattern puts into one job. The same for files that
    were named after their hosts and have ranks that continue from host to host."""
    jobs: dict[str, dict[str, None]] = {}
    for log in logs:
        jobs.setdefault(log.group, {}).update(dict.fromkeys(log.hosts))
    joined = [replace(log, hosts=tuple(jobs[log.group])) if log.group else log for log in logs]
    groups: dict[str, list[tuple[int, int]]] = {}
    for index, log in enumerate(logs):
        if log.group or log.hosts_from in ("log", "muster") or len(log.hosts) != 1:
            continue
        place = place_of(log.job)
        job = _without(place.job, log.hosts[0])
        if place.rank is not None and job != place.job:
            groups.setdefault(job, []).append((place.rank, index))
    for members in groups.values():
        hosts: dict[int, set[str]] = {}
        for rank, index in members:
            hosts.setdefault(rank, set()).add(logs[index].hosts[0])
        together = tuple(dict.fromkeys(host for rank in sorted(hosts) for host in hosts[rank]))
        if len(together) > 1 and all(len(each) == 1 for each in hosts.values()):
            for _, index in members:
                joined[index] = replace(logs[index], hosts=together, unplaced="")
    return joined


def _place(log: JobLog) -> str:
    """Return its path without rank, stream and, of a job of several hosts, these."""
    place = place_of(log.job).job
    for host in log.hosts if len(log.hosts) > 1 else ():
        place = _without(place, host)
    return place


def _without(place: str, host: str) -> str:
    """Return the path without a host's name."""
    if host not in place:
        return place
    return re.sub(rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9])", "*", place)
