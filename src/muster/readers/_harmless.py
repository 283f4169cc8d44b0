"""Lines that stand in the logs of jobs that ended well are no reason why others failed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from muster.core.state import LogEnd, State
from muster.failures.signs import shape_of
from muster.readers._read import stopped
from muster.readers.base import JobLog, Why

FEWEST = 2  # jobs that ended well and print a line, and at least half of all that did


def without_harmless(logs: Sequence[JobLog]) -> list[JobLog]:
    """Every job by the first of its reasons that most jobs which ended well do not print too. One that has no
    other is one whose log just stops."""
    well = [log for log in logs if log.outcome.good]
    counts = Counter(shape for log in well for shape in log.shapes)
    harmless = {shape for shape, count in counts.items() if count >= FEWEST and 2 * count >= len(well)}
    return [_without(log, log.why, harmless) if log.why and harmless else log for log in logs]


def _without(log: JobLog, why: Why, harmless: set[str]) -> JobLog:
    kept = tuple(each for each in why.signs if shape_of(each.text, each.host) not in harmless)
    if len(kept) == len(why.signs):
        return log
    log = replace(log, why=replace(why, signs=kept))
    if why.signs[:1] == kept[:1] or log.outcome is State.UNREADABLE:
        return log
    if not kept:
        return stopped(log)
    first = kept[0]
    outcome: LogEnd = State.TIMEOUT if first.weight in ("external", "limit") else State.FAILED
    failed = tuple((each.host, each.failure) for each in kept if each.host and each.weight == first.weight)
    return replace(log, outcome=outcome, reason=first.text, failure=first.failure, failed=failed)
