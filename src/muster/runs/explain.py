"""Explain what went wrong in a run, or in any log, with the evidence, the remedy and how to continue."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import IO, Literal

from pydantic import Field

from muster.core.errors import UsageError
from muster.core.result import DecisiveLine, Failure, Result
from muster.core.section import Part
from muster.core.state import State
from muster.core.units import counted
from muster.failures.collectives import merged
from muster.failures.sign import Sign, order, shortened
from muster.failures.table import Blame, KnownFailure, Phase, Retry, Weight, find, known_failures
from muster.failures.wording import has_bare_exception, is_exception, is_report
from muster.fleet.cause import LAST_WORDS, Words
from muster.readers._feed import sign_of
from muster.readers._paths import place_of
from muster.readers._read import LATE, read_blocks, without_harmless
from muster.readers.base import NOT_FINITE, JobLog
from muster.runs.recorder import ATTEMPT
from muster.store.logfiles import BrokenFile, blocks, blocks_of, find_logs, members_of
from muster.store.runfolder import (
    DEFAULT_ROOT,
    PipelineFolder,
    RunFolder,
    find_any,
    folder_at,
    folder_of,
    from_here,
)

FEW = 50  # lines after an exception that a program may still print, having failed by it
MOST = 5  # lines and other causes that are shown
# known: an entry of the table. named: what ended it is known, and no entry of the table. unknown: it failed,
# or nothing says how it ended, or why. nothing: it ended well. going: it has not ended.
Answer = Literal["known", "named", "unknown", "nothing", "going"]
AGAIN: dict[Retry, str] = {
    "no": "no: it would fail again",
    "once": "yes, once, as it is",
    "changed": "with the remedy; as it is, it would fail again",
    "elsewhere": "without that host",
    "by cause": "as the cause allows",
}
WHO: dict[Blame, str] = {
    "host": "the host that says it",
    "peer": "another rank or host: this one waited for it",
    "work": "the program, its data or its settings",
    "setup": "what the hosts share: environment, network, settings",
    "scheduler": "the scheduler",
    "unknown": "not known",
    "nobody": "nobody",
}
_ECHO = "no line says why: those here may only follow from what failed in another rank or host"
_UNSURE = "no line that is known says why; an error in it says: {}"
_COMPLAINED = "The last error in it says: {}"
_QUIET = "no known failure is in it, and nothing says how it ended"
_PRINTED: tuple[Weight, ...] = ("exception", "symptom", "exit")  # many programs do so, and go on
_OPEN = re.compile(r"Traceback \(most recent call last\)|^\W*(?:\S+ )?File \"")
WHOLE = "the training had come to its end: what failed came after it"
ANEW = "`muster resume` starts the command anew: whether it goes on from a checkpoint is its own affair"
RETRIED = "an earlier attempt in the same log failed, and was made again"
BEGUN = "its training had ended, and the log stops in what was begun after that"
_PERHAPS = "what may be why is in it, but the program seems to have gone on after it, or says it in passing"
# Names of logs of what runs beside a training, and is ended after it.
_SIDE = re.compile(
    r"monitor|tensorboard|smi\b|dmon|dcgm|stats?\b|usage|watch|tunnel|exporter|metrics|prometheus|grafana|"
    r"jupyter|mlflow|server?\b|serving|proxy|heartbeat|rsync",
    re.IGNORECASE,
)
_LOGGED = "The program logged an exception, and no line tells another reason: {}"
_NAMED = {
    "exception": "The program raised an exception that nothing caught: {}",
    "crash": "A process crashed in native code: a signal that it brought upon itself.",
    "external": "It was ended from outside: a person, a scheduler, or a launcher after another failure.",
    "limit": "Its time was over.",
    "killed": "A process was killed.",
    "scheduler": "The scheduler ended it.",
}


class FailedJob(Part):
    """A job of a bench that did not succeed."""

    job: str
    outcome: str
    id: str | None = Field(description="in the table of failures")
    what: str
    host: str | None = Field(description="that failed by itself, where one is known")


class Explanation(Part):
    """The answer of `muster explain`."""

    schema_version: int = 1
    of: str = Field(description="the run, file or folder")
    answer: Answer
    state: str | None = Field(None, description="of a run")
    says: str = Field(description="the answer in a sentence")
    failure: Failure | None = None
    phase: Phase | None = None
    blame: Blame | None = None
    remedy: str | None = None
    retry: Retry | None = None
    check: str | None = Field(None, description="check of `muster check` that sees it before the start")
    alike: int = Field(0, description="others that ended the same way")
    echoes: int = Field(0, description="lines that only say that something had failed")
    others: list[DecisiveLine] = Field(default_factory=list, description="further lines that may be a cause")
    lines: list[str] = Field(default_factory=list, description="the most telling, where nothing is known")
    jobs: list[FailedJob] = Field(
        default_factory=list, description="of a bench: those that failed, by the commonest cause first"
    )
    command: str | None = Field(None, description="what goes on")
    notes: list[str] = Field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 where there is an answer, else 1."""
        return int(self.answer == "unknown")

    @property
    def blamed(self) -> str | None:
        """Who is to blame, for people."""
        if self.blame == "host" and not (self.failure and self.failure.host):
            return "a host, or what is set up there: no line says which"
        return WHO[self.blame] if self.blame else None


def explain(text: str, root: Path = DEFAULT_ROOT) -> Explanation:
    """Explain whatever a user names: a run as `find_any` finds it, or else a file or a folder of logs. Raises
    RunFolderError and UsageError."""
    path = folder_of(text)
    if path and path.exists() and folder_at(path) is None and not (path / "schedule.json").is_file():
        return explain_logs(path)
    return explain_run(find_any(text, root))


def explain_run(run: RunFolder | PipelineFolder) -> Explanation:
    """Explain a run's last attempt; of a pipeline, the step that did not succeed. Raises RunFolderError for
    damaged files."""
    if isinstance(run, PipelineFolder):
        steps = [each for each in run.steps if each.path.is_dir()]
        bad = [each for each in steps if not each.state().good]
        run = next(iter(bad or steps[-1:]), run.steps[0])
    result, state = run.read_result(), run.state()
    if not state.over:
        says = f"it {state.words}" if state is State.SUBMITTED else "it has not ended"
        shows = f"muster show {run.word}" + (" --follow" if state is State.RUNNING else "")
        return Explanation(of=run.id, answer="going", state=state, says=says, command=shows)
    if state.good:
        says = f"it {result.outcome}" if result and result.caveats else "it succeeded: nothing failed here"
        return Explanation(of=run.id, answer="nothing", state=state, says=says)
    logs = _last_attempt(run)
    if result is None or result.failure is None:
        return _interrupted(run, state, logs)
    failure, entry = result.failure, known_failures().get(result.failure.id or "")
    if failure.evidence is None:
        failure = with_evidence(failure, run, lambda host, rank: _attempt_of(_log_of(run, host, rank)))
    if failure.evidence and failure.evidence.file:
        at = from_here(run.path / failure.evidence.file)
        failure = failure.model_copy(update={"evidence": failure.evidence.model_copy(update={"file": at})})
    other = entry is not None and failure.host is None and entry.is_echo
    silent = (failure.hint or "").startswith(LAST_WORDS)
    shown = find(failure.evidence.text, "log") if failure.evidence and failure.evidence.text else None
    echo = shown is not None and shown.phrase.weight == "symptom" and shown.failure.is_echo
    wordless = other or (entry is None and silent and (failure.evidence is None or echo))
    explanation = Explanation(
        of=run.id,
        answer="unknown" if wordless else "known" if entry else "named",
        state=state,
        says=entry.cause if entry else _raised(failure),
        failure=failure,
        remedy=None if silent else failure.hint,
        blame=_blame_in(logs, failure) if entry is None else None,
        echoes=sum(log.why.echoes for log in logs),
        lines=_telling(logs, loud=False) if wordless else [],
        command=_way_on(run, result, entry),
        notes=[ANEW] if result.command else [],
    )
    return _with_entry(explanation, entry, failure.host)


def explain_logs(where: Path) -> Explanation:
    """Explain a log, an archive, or a folder of those. Raises UsageError where there is none."""
    jobs: list[JobLog] = []
    files = find_logs(where)
    base = where if where.is_dir() else where.parent
    for file in files:
        members = members_of(file) if file.archive else [(file.shown, blocks_of(file))]
        for path, text in members:  # folders above what was given are named after no host of the job
            read = read_blocks(path, text, brief=True)
            jobs += [replace(job, job=str(base / job.job)) for job in read]
    if all(job.outcome is State.UNREADABLE and job.reason == "is no text" for job in jobs):
        raise UsageError("is no text", where=str(where))
    if len({re.sub(r"#\d+$", "", job.job) for job in jobs}) == 1:  # the name of one log is no host's
        jobs = [replace(job, hosts=()) if job.hosts_from.startswith("guess") else job for job in jobs]
    return _with_odd_rank(_of_jobs(str(where), without_harmless(jobs)), jobs)


def explain_stream(raw: IO[bytes]) -> Explanation:
    """Explain what comes out of a pipe."""
    jobs = read_blocks("-", blocks(raw), brief=True)
    if jobs[0].reason == "is no text":
        raise UsageError("is no text", where="standard input")
    return _with_odd_rank(_of_jobs("-", jobs), jobs)


# ----------------------------------------------------------------------------------------------------
# Logs. Of several the one that explains most counts, then the one that was first.


def _of_jobs(of: str, jobs: Sequence[JobLog]) -> Explanation:
    failed = [(log, log.why.signs[0]) for log in jobs if log.why.signs and _sure(log)]
    notes = [f"{log.job}: {log.reason}" for log in jobs if (log.reason or "").startswith("cannot be read")]
    if failed and any(map(_ended_well, jobs)) and all(_is_side(log, sign) for log, sign in failed):
        rest = _of_jobs(of, [log for log in jobs if all(log is not each for each, _ in failed)])
        sides = [f"{log.job}: {sign.text}: ended from outside, and tells no step" for log, sign in failed]
        return rest.model_copy(update={"notes": [*rest.notes, *sides]})
    running = [log for log, _ in failed if log.why.status == "Running"]
    notes += [f"{log.job}: the pod runs by now (Status: Running)" for log in running]
    echoes = sum(log.why.echoes for log in jobs)
    before = [(log, sign) for log in jobs for sign in log.why.before]
    if not failed:
        nothing = _nothing(of, jobs, notes)
        retried = all(log.why.verdict for log, _ in before)
        if retried or nothing.answer != "nothing":
            seen = [*nothing.others, *_also(before)]
            seen = [each for place, each in enumerate(seen) if each not in seen[:place]]
            notes = [*nothing.notes, *([RETRIED] if before and nothing.answer == "nothing" else ())]
            return nothing.model_copy(update={"others": seen[:MOST], "notes": notes})
        failed, notes = before, [*notes, f"an earlier run in the same log; of the last one: {nothing.says}"]
    elif len(failed) == 1 and failed[0][0].why.finished:
        sign, late = failed[0][1], failed[0][0].why.complaint
        outside = sign.scheduled or sign.weight == "external"
        after = failed[0][0].over or outside or (late and late.number == sign.number)
        begun = failed[0][0].why.begun
        notes = [*notes, *([f"{BEGUN}: {begun}"] if begun else [WHOLE] if after else ())]
    ranked = sorted(failed, key=lambda each: (each[1].order, each[1].when or float("inf")))
    ranked = _cause_first(ranked)
    log, sign = ranked[0]
    entry = sign.entry or _known_of(sign)
    if sign.weight == "exit" and log.why.complaint:
        return _complained(of, log, log.why.complaint, echoes, notes, sign.host)
    if sign.weight in ("symptom", "exit") and (entry is None or entry.is_echo):
        lines = _telling([each for each, _ in ranked])
        error = _printed_error([log]) if sign.weight == "exit" else ""
        explanation = Explanation(
            of=of,
            answer="unknown",
            says=_UNSURE.format(error) if error else _ECHO,
            lines=lines,
            echoes=echoes,
            notes=notes,
            others=_also(before),
        )
        if sign.weight == "symptom" or (sign.rank is None and sign.host is None):
            return explanation
        where = None if sign.rank is None else f"rank {sign.rank}"
        first = Failure(what=sign.text, where=where, host=sign.host, evidence=_evidence(log, sign))
        says = f"{where or f'a process on {sign.host}'} ended first, and no line says why"
        says = f"{says.rpartition(', ')[0]}; {_UNSURE.format(error)}" if error else says
        return explanation.model_copy(update={"says": says, "failure": first})
    others = [
        (each, other)
        for each in [log, *(each for each, _ in ranked[1:])]
        for other in each.why.signs
        if other.way != sign.way and not (other.points and sign.weight == "exception")
        and order(other.weight) <= order("exception")
    ]
    others += [each for each in before if each[1] is not sign]
    # What is no echo of another rank.
    clues = (each for each in log.why.clues if not each.failure or each.failure != sign.failure)
    others += [(log, each) for each in (*log.why.met, *clues)]
    evidence = _evidence(log, _placed(log, sign))
    failure = Failure(
        what=sign.words,
        where=_where(evidence.rank, sign.local_rank),
        host=evidence.host,
        hint=_remedy_of(sign, entry, evidence.host) if entry else None,
        id=entry.id if entry else None,
        evidence=evidence,
    )
    explanation = Explanation(
        of=of,
        answer="known" if entry else "named",
        says=entry.cause if entry else (_LOGGED if sign.logged else _NAMED[sign.weight]).format(sign.words),
        failure=failure,
        blame=sign.blame if sign.weight == "exception" and entry is None else None,
        alike=sum(1 for _, each in ranked[1:] if each.way == sign.way) + log.why.alike,
        echoes=echoes,
        others=_also(others),
        notes=notes,
        remedy=failure.hint,
    )
    return _with_entry(explanation, entry, failure.host)


def _also(signs: Iterable[tuple[JobLog, Sign]]) -> list[DecisiveLine]:
    """Return the first lines that may be a cause as well, each once."""
    lines = (_evidence(log, sign) for log, sign in signs)
    return list({(each.file, each.line, each.text): each for each in lines}.values())[:MOST]


def _is_side(log: JobLog, sign: Sign) -> bool:
    """Return whether a log is of what runs beside a training, and tells that it was ended from outside."""
    return sign.weight == "external" and not log.why.worked and bool(_SIDE.search(Path(log.job).name))


def _cause_first(ranked: list[tuple[JobLog, Sign]]) -> list[tuple[JobLog, Sign]]:
    """Return the same, an exception that nothing caught before processes that were ended from outside, and
    those left out: launchers end the others because of it. It has to be no later, by the clocks."""
    outside = [each for each in ranked if each[1].weight == "external"]
    if not outside or ranked[0] is not outside[0]:
        return ranked
    ended = min((sign.when for _, sign in outside if sign.when is not None), default=float("inf"))
    inside = [each for each in ranked if each[1].weight != "external"]
    early = [each[1].uncaught and (each[1].when or 0.0) <= ended for each in inside]
    raised, rest = compress(inside, early), compress(inside, (not each for each in early))
    return [*raised, *rest] if any(early) else ranked


def _with_odd_rank(explanation: Explanation, jobs: Sequence[JobLog]) -> Explanation:
    """Add the rank that waited in another collective than the others, where there is no other cause."""
    whole = merged(log.why.collectives for log in jobs if log.why.collectives)
    odd, answered = whole.odd(), explanation.answer in ("known", "named")
    if odd is None or answered or explanation.failure:
        return explanation
    if explanation.says.startswith(_QUIET) and not whole.reported:
        return explanation
    entry = known_failures().get(odd.failure or "")
    where = None if odd.rank is None else f"rank {odd.rank}"
    own = [sign for log in jobs for sign in log.why.signs if sign.rank == odd.rank]
    host = next((sign.host for sign in own if where and sign.host), None)
    failure = Failure(what=odd.words, where=where, host=host, id=odd.failure)
    answer: Answer = "known" if entry else "unknown"
    says = entry.cause if entry else f"{odd.words}: what kept it is the cause, and no line says what"
    named = explanation.model_copy(update={"answer": answer, "says": says, "failure": failure})
    return _with_entry(named, entry, host)


def _sure(log: JobLog) -> bool:
    """Return whether a line is why the program ended: not one that it printed before it went on."""
    why = log.why
    if (log.outcome is State.UNREADABLE and why.quiet is None) or _went_on(log):
        return False
    sign = why.signs[0]
    printed = is_exception(sign.text) and not why.program  # by a program that may have met it and gone on
    if log.format or not (printed or sign.weight in _PRINTED):
        return True
    recent = why.quiet is not None and why.quiet <= FEW
    return recent and (why.program or printed)


def _nothing(of: str, jobs: Sequence[JobLog], notes: list[str]) -> Explanation:
    """Return the answer where no line says why anything failed. A log that stops without its format's end is
    no healthy one."""
    stopped = [
        log
        for log in jobs
        if not _went_on(log)
        and not log.why.closed
        and (
            log.outcome is State.TIMEOUT or (log.outcome is State.FAILED and log.format) or log.why.begun
        )
    ]
    empty = [log for log in jobs if log.reason == "is empty"]
    whole = [_ended_well(log) or log.why.finished for log in jobs]
    ended = ((log, well) for log, well in zip(jobs, whole, strict=True) if well or not _went_on(log))
    for log, well in ended:
        if log.why.complaint:
            return _complained(of, log, log.why.complaint, 0, [*notes, *([WHOLE] if well else ())])
    if stopped or notes or len(empty) == len(jobs):
        first = next(iter(stopped or empty or jobs))
        begun = first.why.begun
        error, reason = _printed_error([first]), first.reason or ""
        says = f"no line reports a failure; {first.job}: {f'{BEGUN}: {begun}' if begun else reason}"
        if error:
            says = f"{_UNSURE.format(error)}; {first.job}: {reason.replace('without an error and ', '')}"
        if first in stopped:
            says += ": it was killed from outside, hangs, or still runs"
        lines = _telling(stopped or jobs)
        return Explanation(of=of, answer="unknown", says=says, lines=lines, notes=notes)
    if maybe := [log for log in jobs if _may_be_why(log)]:
        others = [_evidence(log, log.why.signs[0]) for log in maybe[:MOST]]
        return Explanation(
            of=of, answer="unknown", says=_PERHAPS, others=others, lines=_telling(maybe), notes=notes
        )
    if bare := [log for log in jobs if _breaks_off(log)]:
        says = "an exception or its traceback is among its last lines, and not the whole of it"
        return Explanation(of=of, answer="unknown", says=says, lines=_telling(bare), notes=notes)
    if echoed := [log for log in jobs if not log.outcome.good and _echoes_alone(log)]:
        echoes = sum(log.why.echoes for log in echoed)
        for log in echoed:
            for sign in log.why.signs:
                if sign.entry and not sign.is_echo:
                    return _complained(of, log, sign, echoes - 1, notes, sign.host)
        return Explanation(
            of=of, answer="unknown", says=_ECHO, lines=_telling(echoed), echoes=echoes, notes=notes
        )
    begins = (LATE, NOT_FINITE)
    notes += [f"{log.job}: {note}" for log in jobs for note in log.notes if note.startswith(begins)]
    short = [log for log in jobs if log.over and (log.steps or 0) < (log.total or 0)]
    notes += [f"{log.job}: it ended itself after {log.steps:,} of {log.total:,} steps" for log in short]
    good = sum(_ended_well(log) for log in jobs)
    open_ended = [log for log in jobs if not _ended_well(log) and (log.steps or not good)]
    says = f"nothing failed here: {counted(good, 'job')} ended well"
    if open_ended:
        steps = max(log.steps or 0 for log in open_ended)
        where = f" after {counted(steps, 'step')}" if steps else ""
        where = " after its last step" if any(log.why.counted for log in open_ended) else where
        says = f"{_QUIET}{where}" + (f"; {counted(good, 'other job')} ended well" if good else "")
    if any(NOT_FINITE in note for note in notes):
        says += f"; {NOT_FINITE}: what was trained is of no use"
    answer: Answer = "unknown" if open_ended else "nothing"
    return Explanation(of=of, answer=answer, says=says, lines=_telling(open_ended), notes=notes)


def _complained(
    of: str, log: JobLog, line: Sign, echoes: int, notes: list[str], host: str | None = None
) -> Explanation:
    """Return the answer where nothing but the last program's own words say why it ended."""
    evidence = _evidence(log, replace(line, host=host))
    where = _where(evidence.rank, None)
    match = find(line.text)
    cause = match is not None and match.phrase.weight in ("cause", "symptom") and not match.failure.is_echo
    entry = match.failure if match and cause else None
    failure = Failure(
        what=line.text, where=where, host=evidence.host, id=entry.id if entry else None, evidence=evidence
    )
    explanation = Explanation(
        of=of,
        answer="known" if entry else "named",
        says=entry.cause if entry else _COMPLAINED.format(line.text),
        failure=failure,
        blame="unknown",
        echoes=echoes,
        notes=notes,
    )
    return _with_entry(explanation, entry, failure.host)


def _ended_well(log: JobLog) -> bool:
    """Return whether its format, or its last lines, say that it ended well."""
    own = log.outcome.good and (log.over or log.why.finished)
    return (own and not (log.why.begun or log.why.counted)) or log.why.closed


def _echoes_alone(log: JobLog) -> bool:
    """Return whether a log's last lines only follow from a failure elsewhere."""
    why = log.why
    if not why.signs or why.quiet is None or why.quiet > FEW or _went_on(log):
        return False
    return any(sign.is_echo for sign in why.signs)


def _may_be_why(log: JobLog) -> bool:
    """Return whether the program seems to have gone on after what else would be the cause, and not for long.
    """
    why = log.why
    if not why.signs or why.onward != "perhaps":
        return False
    if log.format:  # it has no word of its end
        return True
    if why.quiet is None:
        return False
    return why.quiet <= FEW or why.signs[0].weight not in _PRINTED


def _breaks_off(log: JobLog) -> bool:
    """Return whether an exception without a traceback, or a traceback without its end, is among a log's last
    lines."""
    why = log.why
    if why.closed or why.onward == "yes":
        return False
    open_ended = bool(why.last) and bool(_OPEN.search(why.last[-1]))
    return open_ended or (not why.program and has_bare_exception(why.last))


def _went_on(log: JobLog) -> bool:
    return log.why.onward != "no"


def _placed(log: JobLog, sign: Sign) -> Sign:
    """Return a sign with host and rank, where its line names neither: those of the only process that, by the
    launcher, ended by itself, or that the scheduler names for the same."""
    signs = log.why.signs
    nobodys = (*_PRINTED[1:], "external")  # a cancelled step names the host of its first task, if any
    if sign.host is not None or sign.rank is not None or sign.weight in nobodys or sign not in signs:
        return sign
    ends = [each for each in signs if each.way == sign.way and each.host]
    if sign.weight != "scheduler" and not (ends and sign.weight == "crash"):
        # srun says "Killed" of tasks that it ended itself
        ends = [each for each in signs if each.weight == "exit" and not each.text.endswith(": Killed")]
    hosts, ranks = ({each.host for each in ends} - {None}, {each.rank for each in ends} - {None})
    if len(hosts) > 1 or len(ranks) > 1:
        return sign
    return replace(sign, host=next(iter(hosts), None), rank=next(iter(ranks), None))


def _where(rank: int | None, local_rank: int | None) -> str | None:
    if rank is not None:
        return f"rank {rank}"
    return None if local_rank is None else f"local rank {local_rank}"


def _remedy_of(sign: Sign, entry: KnownFailure, host: str | None) -> str:
    """Return the remedy of the line's own phrase, or else of its entry."""
    match = find(sign.text)
    own = match is not None and match.failure is entry
    return (match.phrase.remedy if match and own else entry.remedy).replace("{host}", host or "HOST")


def _known_of(sign: Sign) -> KnownFailure | None:
    """Return the entry of a line about a time limit: to `judge` it is no failure."""
    match = find(sign.text) if sign.weight == "limit" else None
    return match.failure if match else None


def _evidence(log: JobLog, sign: Sign) -> DecisiveLine:
    file = re.sub(r"#\d+$", "", log.job)
    one = log.hosts[0] if len(log.hosts) == 1 else None
    rank = sign.rank if sign.rank is not None else place_of(file).rank
    return DecisiveLine(
        file=None if file == "-" else file,
        line=sign.number,
        text=sign.text,
        host=sign.host or one,
        rank=rank,
        time=sign.when,
        code=sign.code,
    )


def _printed_error(logs: Iterable[JobLog]) -> str:
    """Return the first of the last lines that speak of an error, in any words, and only of that: no sign of
    another kind says the same; empty: there is none."""
    for log in logs:
        for line in log.why.loud:
            if is_report(line) and not any(sign.text in line for sign in log.why.signs):
                return line
    return ""


def _telling(logs: Iterable[JobLog], loud: bool = True) -> list[str]:
    """Return lines that may help a person: signs of any kind, those that mention an error, then the last
    lines."""
    lines: list[str] = []
    for log in logs:
        signs = [sign.text for sign in log.why.signs[:MOST]]
        heard = [line for line in log.why.loud if not any(text in line for text in signs)]
        lines += [*signs, *(heard if loud else ()), *log.why.last]
    return list(dict.fromkeys(line for line in lines if not line.startswith(ATTEMPT)))[: 2 * MOST]


# ----------------------------------------------------------------------------------------------------
# The table's words, and the way on.


def _blame_in(logs: Iterable[JobLog], failure: Failure) -> Blame | None:
    """Return whom to blame for a run's exception without an entry, by the line of its log; None: no line of
    it is known."""
    line = failure.evidence
    if line is None or not line.code:
        return None
    signs = (each for log in logs for each in log.why.signs)
    return next((each.blame for each in signs if each.text == line.text), "unknown")


def _raised(failure: Failure) -> str:
    evidence = failure.evidence
    raised = evidence and evidence.code and shortened(failure.what) == evidence.text
    return _NAMED["exception"].format(failure.what) if raised else failure.what


def _with_entry(explanation: Explanation, failure: KnownFailure | None, host: str | None) -> Explanation:
    if failure is None:
        return explanation
    remedy = explanation.remedy or failure.remedy_on(host)
    entry = {"phase": failure.phase, "blame": failure.blame, "retry": failure.retry, "check": failure.check}
    return explanation.model_copy(update={**entry, "remedy": remedy})


def _way_on(run: RunFolder, result: Result, entry: KnownFailure | None) -> str | None:
    """Return the command that continues. A change of the recipe itself needs another run."""
    failure = result.failure
    if failure and (failure.usage or (entry and entry.blame == "work")) and result.command is None:
        argv = run.read_json(run.env).get("argv") if run.env.exists() else None
        return shlex.join(["muster", *map(str, argv[1:])]) if argv else None
    words = f"muster resume {run.word}"
    if failure is None or failure.host is None or len(result.hosts) < 2:
        return words
    leave = (entry and entry.retry == "elsewhere") or "--without" in (failure.hint or "")
    return f"{words} --without {failure.host}" if leave else words


def _interrupted(run: RunFolder, state: State, logs: Sequence[JobLog]) -> Explanation:
    if state in (State.CANCELLED, State.STOPPED, State.TIMEOUT):
        return Explanation(of=run.id, answer="named", state=state, says=f"it {state.words}")
    says = "there is no result, and its controller no longer runs: it was killed, or its machine went down"
    last = _telling(logs, loud=False)
    return Explanation(
        of=run.id, answer="named", state=state, says=says, lines=last, command=f"muster resume {run.word}"
    )


def _last_attempt(run: RunFolder) -> list[JobLog]:
    """Return every log of a run, as far as it is of the last attempt."""
    if not run.logs.is_dir() or not any(run.logs.iterdir()):
        return []
    read = [read_blocks(str(file.path), _attempt_of(file.path), brief=True) for file in find_logs(run.logs)]
    return [jobs[-1] for jobs in read if jobs]


def _attempt_of(path: Path) -> Iterator[Sequence[str]]:
    """Yield what one of a run's logs has of the last attempt."""
    if not path.is_file():
        return
    with path.open("rb") as raw:
        begin, first, place = 0, 1, 0
        for number, line in enumerate(raw, 1):
            if line.startswith(ATTEMPT.encode()):
                begin, first = place, number
            place += len(line)
        raw.seek(begin)
        with suppress(BrokenFile):
            yield from blocks(raw, first)


def with_evidence(failure: Failure, run: RunFolder, words: Words) -> Failure:
    """Return the failure with the line of its rank's or host's log that says the same. `words`: returns what
    that one printed."""
    if failure.evidence is not None or failure.host is None:
        return failure
    match = re.fullmatch(r"rank (\d+)", failure.where or "")
    rank = int(match[1]) if match else None
    for each in dict.fromkeys((rank, None)):
        sign = sign_of(words(failure.host, each))
        if sign is None or not _same(failure, sign):
            continue
        path = _log_of(run, failure.host, each)
        evidence = DecisiveLine(
            file=str(path.relative_to(run.path)),
            line=sign.number,
            text=shortened(sign.text),
            host=failure.host,
            rank=rank,
            time=sign.when,
            code=sign.code,
        )
        return failure.model_copy(update={"evidence": evidence})
    return failure


def _log_of(run: RunFolder, host: str, rank: int | None) -> Path:
    return run.host_log(host) if rank is None else run.rank_log(host, rank)


def _same(failure: Failure, sign: Sign) -> bool:
    """Return whether a line says what the failure is."""
    line, what = shortened(sign.text), shortened(failure.what)
    if what in line or line in what or (sign.weight == "killed" and "by SIGKILL" in what):
        return True
    match = find(failure.what, "log", "error")
    return sign.failure is not None and sign.failure in (failure.id, match.failure.id if match else None)
