"""From a file's lines to the jobs in it. Pure: the caller opens the file and gives its lines."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from muster.core.state import LogEnd, State
from muster.core.units import counted
from muster.failures.sign import Sign, shape_of, shortened
from muster.failures.signs import NEAR
from muster.failures.table import id_of
from muster.failures.wording import is_exception, is_loud, outside_asides
from muster.readers import _counters as counters
from muster.readers._feed import CLOSE, LineFeed
from muster.readers._frame import Frame, own_stamp, uncoloured
from muster.readers._lines import STEPS_ONLY
from muster.readers._paths import folder_of, hosts_of_path, is_slurm, split_hosts
from muster.readers._user import Expression, UserFormat
from muster.readers.base import APART, NOWHERE, EndOfLog, JobLog, MeasuredWindows, Onward, Reading, Unit
from muster.store.logfiles import BrokenFile, Lines

UNKNOWN_WORK = "the log does not say what it trained (no command, no settings): compared with no other job"
NO_FORMAT = "no known log format was recognised; --line REGEX can say how its lines are read"
COUNTS_ONLY = "its lines count steps in no known format, and have no time stamps: nothing can be measured"
BY_STAMPS = (
    "its lines count steps in no known format; --line with a group `step` reads them by their time stamps"
)
LATE = "a process crashed after the training had ended"
COARSE = 100.0  # seconds of a window from where on whole ones do for its own pace
BETWEEN = (
    "by their time stamps its steps make {whole:,.5g} samples/s, where the latencies that it prints come to "
    "{tool:,.5g}: these leave out what is between steps"
)
ALIKE = 0.1  # share by which two formats' counts of the same steps differ at most: lines come every so many
FROM_USER = {"table", "own lines"}  # formats
MOST_RANKS = 8  # of a host, where nothing says how many hosts there are
# What is kept to explain a failure: shapes of signs, and signs of each; lines at the end.
TOLD, LAST = 5, 5
AT_END = 1  # lines at a log's end in which a program says why it ends
RECENT = 1000  # lines at the end of a log that no reader knows, in which it says why it ended
STAMPED = 10_000  # lines at the beginning and at the end, in which time stamps are looked for
# Tables, documents and programs: what they say of failures, as results of earlier jobs do, is no job's end.
_NO_LOG = re.compile(r"\.(?:csv|tsv|json|md|rst|html?|ya?ml|toml|ini|cfg|py|ipynb|sh)$", re.IGNORECASE)


def read_blocks(
    path: str,
    blocks: Iterable[Sequence[str]],
    user: UserFormat | None = None,
    named: Expression | None = None,
    *,
    brief: bool = False,
) -> list[JobLog]:
    """Return the jobs of a file; one that no reader can read is a job whose outcome is `unreadable`.

    `blocks`: its lines, some at a time; they may raise BrokenFile. `path`: as it is shown, and from which
    hosts are taken where the log does not name them; `named`: an expression for that, with groups of PLACES;
    `brief`: only how the jobs ended counts. Raises nothing, whatever the lines contain.
    """
    whole = _Whole(blocks)
    rest: Iterator[Sequence[str]] | None = iter(whole)
    feed, jobs = LineFeed(Frame(user=user), brief=brief), list[JobLog]()
    while rest is not None:
        rest = feed.take(rest)
        frame, readings, started = feed.frame, feed.readings(), len(jobs)
        if counters.overrules(map(frame.bare, feed.backwards())):
            frame.signs.overrule()
        raised = feed.raised()
        name = f"{path}#{len(jobs) + 1}" if jobs else path
        if readings or (frame.begun and not whole.broken):
            parts = [[each] for each in readings if each.part] or [readings]
            jobs += [_job(name, frame, each, whole.broken, named, raised) for each in parts]
        elif not jobs:
            jobs.append(_with_hosts(_unread(path, feed, whole), frame, named))
        late = _late(feed)
        jobs[started:] = [
            replace(
                each,
                shapes=frozenset(frame.signs.shapes),
                why=late or (_after(feed) if each.over else _why(feed, raised, bool(each.format))),
            )
            if each.outcome.good
            else replace(each, why=_why(feed, raised, bool(each.format)))
            for each in jobs[started:]
        ]
        if faults := feed.faults():  # which the processes of a pool say nowhere else
            jobs[started:] = [replace(each, notes=(*each.notes, *faults)) for each in jobs[started:]]
        feed = feed.again() if rest is not None else feed
    span = whole.span(feed) if len(jobs) == 1 else None
    jobs = [replace(job, started=span[0], ended=span[1]) if span and not job.started else job for job in jobs]
    return [replace(job, digest=whole.digest) for job in jobs]


def _unread(path: str, feed: LineFeed, whole: _Whole) -> JobLog:
    """Return the job of a log that no reader knows: one that failed, or whose end is not known."""
    frame = feed.frame
    decisive, last = frame.signs.decisive(), frame.signs.last
    recent = decisive and (
        frame.signs.stands(decisive)
        or any(last in uncoloured(line) for line in islice(feed.backwards(), RECENT))
    )
    if (
        whole.broken is None and decisive and recent and not _NO_LOG.search(path)
    ):  # it failed before anything that could be recognised
        return _ended(JobLog(job=path, outcome=State.FAILED), frame, decisive)
    lines = (uncoloured(line) for line in islice(feed.backwards(), RECENT))
    short = counters.stops_short(lines) if feed.brief and not (whole.broken or decisive) else None
    if short:
        return stopped(JobLog(job=path, outcome=State.TIMEOUT, steps=short[0], total=short[1]))
    why = whole.broken or _unknown(path, whole.first, whole.last, frame.user)
    if why == NO_FORMAT and frame.signs.marked:
        why = COUNTS_ONLY if whole.began is None else BY_STAMPS
    notes = (f"{LATE}: {shortened(frame.signs.late)}",) if frame.signs.late else ()
    return JobLog(job=path, outcome=State.UNREADABLE, reason=why, notes=notes)


def _late(feed: LineFeed) -> EndOfLog | None:
    """Return what the program failed by after its training had ended well; None: nothing, or it went on."""
    sign = feed.frame.signs.after_the_end()
    why = _why(feed, sign) if sign else None
    if sign is None or why is None or why.onward != "no" or why.quiet is None or why.quiet > NEAR:
        return None
    return replace(why, begun=shortened(_left_open(feed, sign.number))) if sign.scheduled else why


def _brief(signs: Iterable[Sign]) -> tuple[Sign, ...]:
    return tuple(replace(each, text=shortened(each.text)) for each in signs)


def _after(feed: LineFeed) -> EndOfLog:
    """Return what else is to be said of a job whose training ended well: what ended runs before it, and where
    what was begun after it breaks off."""
    before = _brief(feed.frame.signs.before)
    begun = _left_open(feed) if feed.brief else ""
    complaint = feed.late_complaint()
    counted = feed.frame.signs.counted and not (
        feed.frame.all_left or counters.mentions_an_end(_around_the_end(feed)[0])
    )
    if not (before or begun or complaint or counted):
        return EndOfLog()
    lines = (line for line in map(uncoloured, feed.backwards()) if line.strip())
    return EndOfLog(
        program=True,
        last=tuple(shortened(line) for line in islice(lines, LAST))[::-1],
        before=before,
        begun=shortened(begun),
        complaint=complaint,
        verdict=feed.frame.signs.verdict or feed.frame.signs.relaunched,
        counted=counted,
    )


def _left_open(feed: LineFeed, before: int | None = None) -> str:
    """Return the line at which what was begun after the training's end breaks off; empty: at none. `before`:
    the number of a line, where those from it on are of others."""
    if feed.frame.signs.last_end is None or feed.frame.signs.late:
        return ""
    after, earlier = _around_the_end(feed, before)
    return feed.frame.signs.waits_after_the_end() or counters.left_open(after, earlier)


def _around_the_end(feed: LineFeed, before: int | None = None) -> tuple[list[str], list[str]]:
    """Return the lines after the training's end (up to a line's number), and those before it, the last one
    first."""
    end = feed.frame.signs.last_end or 0
    numbers = (
        block.number(place) if isinstance(block, Lines) else 0
        for block in reversed(feed.ends)
        for place in range(len(block) - 1, -1, -1)
    )
    after = list(takewhile(lambda number: number > end, islice(numbers, RECENT)))
    lines = [feed.frame.bare(line) for line in islice(feed.backwards(), len(after) + RECENT)]
    beyond = sum(number >= before for number in after) if before else 0
    return lines[beyond : len(after)], lines[len(after) :]


def _why(feed: LineFeed, raised: Sign | None, formatted: bool = False) -> EndOfLog:
    """Return what is left to explain an end by, when all lines of a job have been read. `formatted`: its
    steps are in a known format."""
    frame, signs = feed.frame, feed.frame.signs
    ends = [uncoloured(line) for line in islice(feed.backwards(), RECENT)]
    first = raised or signs.decisive()
    met = list(signs.met.values())
    if first is None and met and not frame.steps:
        first, met = met[-1], met[:-1]
    over = first in signs.met.values()
    late = feed.overtaken(first)
    sure = late is not None and signs.ended_by(late)
    if late:
        first, over = late, not sure
    alone = first is not None and (first is raised or (first.number or 0) < signs.run_begin)
    last = first.text if first and (over or (alone and first.weight == "exception")) else signs.last
    others = [each for each in signs.by_weight() if each is not first]
    # Several lines can be of one process: those of other ranks are of others.
    same = {each.rank for each in others if first and each.way == first.way and not each.points}
    lines = (line for line in ends if line.strip())
    quiet = next((number for number, line in enumerate(ends) if last and last in line), None)
    before = [frame.bare(line) for line in ends[quiet + 1 :]] if quiet is not None else []
    outside = first is not None and first.weight == "external" and not (signs.broke or signs.stands(first))
    trained = outside and counters.trained(before) and not (first and first.scheduled)
    onward: Onward = "no"
    if first is not None and not sure:
        onward = "yes" if trained else _onward(first, feed, ends, quiet, over=over, formatted=formatted)
        if onward != "yes" and first.final and not (over or first.is_echo):
            after = [frame.bare(line) for line in ends[: quiet or 0]]
            if counters.ran_again(before, after) and counters.closes(after):
                signs.before = [*signs.before, first] if first not in signs.before else signs.before
                first, others, onward = None, [], "no"
    text = list(outside_asides(map(frame.bare, reversed(ends))))
    near = (quiet or 0) + CLOSE if first and first.weight == "exit" else AT_END
    complaint = feed.late_complaint()
    begun = _around_the_end(feed, first.number)[0] if first and signs.finished else []
    another = any(map(counters.BANNER.match, begun))  # run of a script, which ended before a step
    return EndOfLog(
        signs=_brief(_few([first, *others] if first else [])),
        alike=len(same - {None, first.rank}) if first and first.rank is not None else 0,
        echoes=signs.echoes,
        program=signs.broke or signs.traceback or frame.begun,
        quiet=quiet,
        last=tuple(shortened(line) for line in islice(lines, LAST))[::-1],
        met=_brief(met[-TOLD:]),
        onward=onward,
        collectives=signs.collectives,
        before=_brief(signs.before),
        finished=(signs.finished and not (signs.asked(first) or signs.ended_after(first) or another))
        or (outside and counters.reached_last(before))
        or (first is not None and first.scheduled and counters.trained(before))
        or complaint is not None,
        loud=tuple(shortened(line) for line in islice(filter(is_loud, ends), TOLD))[::-1],
        status=signs.status,
        closed=signs.succeeded
        or (frame.all_left and not _left_open(feed))
        or trained
        or counters.closes(takewhile(lambda line: not is_exception(line), reversed(text))),
        worked=signs.marked or frame.steps > 0,
        clues=_brief(signs.clues.values()),
        complaint=None if signs.succeeded else complaint or feed.complaint(near),
        verdict=signs.verdict or signs.relaunched,
    )


def _onward(
    first: Sign, feed: LineFeed, ends: Sequence[str], quiet: int | None, *, over: bool, formatted: bool
) -> Onward:
    """Return whether a program went on after a sign. `ends`, `quiet`: the last lines, the last one first, and
    which of them is the last sign; `over`: the program says that it got over it."""
    signs = feed.frame.signs
    after = [feed.frame.bare(line) for line in reversed(ends[: quiet or 0])]
    stands = signs.stands(first)
    another = id_of(signs.last) == first.failure and counters.killed_another(first.text, ends) and not stands
    # torchrun's own word on the end counts though a process of an earlier attempt broke.
    restarted = any("worker group successfully finished" in line for line in after)
    good = not formatted and counters.ended_well(after) and not (stands and first.weight != "limit")
    if good and (restarted or not (signs.broke or signs.asked(first))):
        return "yes"
    if (another and counters.closes(ends)) or (over and counters.closes(after[::-1])):
        return "yes"
    caught = bool(first.code) and not first.uncaught and not signs.broke
    passed = over or another or (caught and counters.goes_on(after))
    passed = passed or (not (signs.broke or stands) and (signs.passed(first) or counters.works_on(after)))
    passed = passed or (signs.offhand(first) and ((quiet or 0) > NEAR or counters.seems_done(after)))
    if formatted and not over:  # then steps tell whether it went on, or that it is long ago
        passed = caught and (quiet is None or quiet > NEAR)
    return "perhaps" if passed or signs.in_a_sentence(first) else "no"


def _few(signs: Sequence[Sign]) -> Iterator[Sign]:
    """Yield the first signs of each shape: what a hundred ranks print hides nothing that is printed once."""
    counts = Counter[str]()
    for sign in signs:
        shape = shape_of(sign.text, sign.host)
        if shape in counts or len(counts) < TOLD:
            counts[shape] += 1
            if counts[shape] <= TOLD:
                yield sign


class _Whole:
    """All lines that can be read; then `broken` says why there are no more, if that is so."""

    def __init__(self, blocks: Iterable[Sequence[str]]) -> None:
        self.blocks = blocks
        self.broken: str | None = None
        self.first = ""  # line that is not blank
        self.last = ""
        self.began: float | None = None
        self.looked = 0  # lines in which no time stamp was
        self.digest = 0

    def __iter__(self) -> Iterator[Sequence[str]]:
        try:
            for block in self.blocks:
                self.first = self.first or next((line for line in block if line.strip()), "")
                self.last = next((line for line in reversed(block) if line.strip()), self.last)
                if self.began is None and self.looked < STAMPED:
                    self.began = _stamp_of(block)
                    self.looked += len(block)
                self.digest = hash((self.digest, "".join(block)))
                yield block
        except BrokenFile as error:
            self.broken = str(error)

    def span(self, last: LineFeed) -> tuple[float, float] | None:
        """Return the first and the last time stamp of its lines; None: there are none, or they go backwards.
        """
        ended = _stamp_of(last.backwards()) if self.began is not None else None
        return (
            (self.began, ended)
            if ended is not None and self.began is not None and self.began <= ended
            else None
        )


def _stamp_of(lines: Iterable[str]) -> float | None:
    """Return the first time stamp that is a line's own, of not too many."""
    return next((stamp for line in islice(lines, STAMPED) if (stamp := own_stamp(line)) is not None), None)


def _unknown(path: str, first: str, last: str, user: UserFormat) -> str:
    if not first:
        return "is empty"
    if path.lower().endswith((".csv", ".tsv")) and (user.columns or not user.lines):
        return user.lacking(first)
    if user.lines:
        return f"no --line matches a line of it; its first is {shortened(first)}"
    whole = first.lstrip()[:1] not in ("{", "[") or last.rstrip().endswith(("}", "]"))
    if path.lower().endswith(".json") and not whole:
        return "is damaged: it ends in the middle of a JSON document"
    return NO_FORMAT


def _job(
    path: str,
    frame: Frame,
    readings: Sequence[Reading],
    broken: str | None,
    named: Expression | None,
    raised: Sign | None,
) -> JobLog:
    """Return one job from all its readings, the best measured first."""
    figures = _by_stamps(ranked(readings))
    ordered = [reading for reading, _ in figures]
    best = figures[0][1] if figures else None

    def told(name: str) -> float | None:
        return next((value for each in ordered if (value := getattr(each, name)) is not None), None)

    steps, skipped, memory, total = (told(name) for name in ("steps", "skipped", "memory", "total"))
    contradicted = contradicting(figures)
    notes = [*(note for each in ordered for note in each.notes), *_doubts(best, ordered, contradicted)]
    if best and best.unit == "samples":  # of another format than those that know of steps alone
        notes = [note for note in notes if note != STEPS_ONLY]
    if contradicted and not ordered[0].sure:
        best = None
    spans = [each.span for each in ordered if each.span]
    recipes = list(dict.fromkeys(each.recipe for each in ordered if each.recipe))
    job = JobLog(
        job=f"{path}#{ordered[0].part}" if ordered and ordered[0].part else path,
        outcome=State.SUCCEEDED,
        format=", ".join(dict.fromkeys(each.format for each in ordered)) or None,
        hosts=ordered[0].hosts if ordered else (),
        world_size=frame.ranks,
        workload=frame.workload or next((each.workload for each in ordered if each.workload), ""),
        settings=frame.recipe or "; ".join(recipes),
        alone="" if frame.recipe or recipes else UNKNOWN_WORK,
        batch=told("batch") or frame.batch,
        steps=int(steps) if steps is not None else None,
        total=int(total) if total is not None else None,
        skipped_steps=int(skipped) if skipped is not None else None,
        measured=best,
        reported=told("reported") if best or not contradicted else None,
        contradicted=contradicted,
        memory=int(memory) if memory is not None else None,
        unit=best.unit if best else next((each.unit for each in ordered if not each.batch), "samples"),
        loss=told("loss"),
        content=frame.content,
        over=any(each.ended for each in ordered),
        started=spans[0][0] if spans else None,
        ended=spans[0][1] if spans else None,
        notes=tuple(dict.fromkeys(notes)),
    )
    ends = [each.ended for each in ordered if each.ended is not None]
    if broken and not any(ends):
        return _with_hosts(replace(job, outcome=State.UNREADABLE, reason=broken), frame, named)
    if not ends and best is None and not job.reported and {each.format for each in ordered} & FROM_USER:
        job = replace(
            job, outcome=State.UNREADABLE, reason="it can be read, but no step of it could be timed"
        )
        return _with_hosts(job, frame, named)
    job = _with_hosts(_outcome(job, frame, ends, raised), frame, named)
    if frame.recipe or not recipes or any(each.complete for each in ordered):
        return job
    return replace(job, settings=f"{job.settings}; in {folder_of(path, job.hosts)}")


def _doubts(
    best: MeasuredWindows | None, readings: Sequence[Reading], contradicted: float | None
) -> Iterator[str]:
    """Yield what makes a job's rate doubtful, for people."""
    if best is None:
        if any(each.reported is not None for each in readings):
            yield "no step times: the rate is the one that the tool printed, with its warm-up"
        return
    if best.skipped:
        yield f"the measured windows include {best.skipped} skipped steps"
    if best.interrupted:
        yield "the measured windows include evaluation or saving"
    if contradicted:
        both = (
            f"the measured windows give {best.rate:,.5g} {best.unit}/s, and the tool itself says "
            f"{contradicted:,.5g} of the same steps"
        )
        yield both if readings[0].sure else f"{both}: neither is taken"


def ranked(readings: Sequence[Reading]) -> list[tuple[Reading, MeasuredWindows | None]]:
    """Return each reading with its windows' figures, the best measured first."""
    return sorted(
        ((each, _measured(each)) for each in readings), key=lambda each: _worth(*each), reverse=True
    )


def _by_stamps(
    best_first: list[tuple[Reading, MeasuredWindows | None]],
) -> list[tuple[Reading, MeasuredWindows | None]]:
    """Return the same, where a format times whole steps and stamps of another one show that as many take
    longer: these include what is between steps as well, and their samples are those of the first."""
    best, figures = best_first[0] if best_first else (None, None)
    if best is None or figures is None or not best.whole or figures.unit != "samples":
        return best_first
    for place, (other, walled) in enumerate(best_first[1:], 1):
        if walled is None or walled.unit != "steps" or not (best.steps and other.steps and other.exact):
            continue
        each = figures.samples / figures.steps
        longer = replace(walled, samples=walled.samples * each, unit="samples", tokens=None)
        short = best.steps - other.steps  # lines come every so many steps
        if 0 <= short * walled.windows <= other.steps and longer.rate < (1 - APART) * figures.rate:
            note = BETWEEN.format(whole=longer.rate, tool=figures.rate)
            return [
                (replace(other, steps=best.steps, notes=(note,)), longer),
                *best_first[:place],
                *best_first[place + 1 :],
            ]
    return best_first


def _measured(reading: Reading) -> MeasuredWindows | None:
    """Return the figures of a reading's windows, in samples where the batch is known."""
    if reading.series is None:
        return None
    scaled = reading.per_step and reading.batch
    windows = (reading.series.scaled(reading.batch or 1.0) if scaled else reading.series).measured()
    unit: Unit = "samples" if scaled else reading.unit
    if windows and not reading.exact and windows.seconds < COARSE * windows.windows:
        # What is rounded looks like a usual pace.
        windows = replace(windows, error=_unrounded(windows), halves=None, stalls=None)
    return replace(windows, timed=reading.timed, unit=unit) if windows else None


def _unrounded(figures: MeasuredWindows) -> float | None:
    """Return the error of windows between whole seconds without that of rounding: each is off by up to a
    second (a variance of 1/3), and so are all together: by what one is too long the next is too short."""
    if figures.error is None:
        return None
    squares, count = (figures.error * figures.seconds) ** 2, figures.windows
    return math.sqrt(max(0.0, squares - count / 3 * count / (count - 1)) + 1 / 3) / figures.seconds


def contradicting(best_first: Sequence[tuple[Reading, MeasuredWindows | None]]) -> float | None:
    """Return the tool's own figure, or the count of another format of the same log, where that is more than
    APART of the measured rate. `best_first`: the best first."""
    best = best_first[0][1] if best_first else None
    if best is None:
        return None
    own = [each.own for each, _ in best_first if each.own]
    own += [
        other.rate for each, other in best_first[1:] if other and not each.sure and other.unit == best.unit
    ]
    usual, steps = _usual(best), best_first[0][0].steps or 0
    own += [
        best.rate * usual / theirs
        for each, other in best_first[1:]
        if usual and other and (theirs := _usual(other)) and each.exact and each.per_step
        if abs((each.steps or 0) - steps) < ALIKE * steps
    ]
    return next((each for each in own if abs(best.rate / each - 1) > APART), None)


def _usual(figures: MeasuredWindows) -> float:
    """Return the seconds of a usual step, whatever is between some; 0: not known."""
    each = figures.samples / figures.steps
    return statistics.fmean(figures.halves) * each if figures.halves and figures.timed else 0.0


def _worth(reading: Reading, figures: MeasuredWindows | None) -> tuple[bool, bool, bool, bool, float]:
    counted_well = reading.sure and figures is not None and figures.unit == "samples"
    seconds = figures.seconds if figures else 0.0
    return figures is not None, reading.whole, counted_well, reading.exact, seconds


def _outcome(job: JobLog, frame: Frame, ends: Sequence[bool], raised: Sign | None) -> JobLog:
    """Return the job with how it went. A log that simply stops did not succeed, where its format marks the
    end of a job."""
    decisive = frame.signs.decisive()
    if decisive is not None and (frame.signs.broke or (frame.signs.asked(decisive) and any(ends))):
        return _ended(job, frame, decisive)
    if any(ends) or frame.signs.late:
        if late := frame.signs.late:
            note = f"{LATE}: {shortened(late)}"
            job = replace(job, notes=(*job.notes, note))
        if job.steps and job.skipped_steps == job.steps:
            why = f"all {job.steps} steps were skipped by the loss scaler: nothing was trained"
            return replace(
                job, outcome=State.FAILED, reason=why, failure="loss_scale_too_high", measured=None
            )
        return job
    if last := decisive or raised:
        return _ended(job, frame, last)
    if not ends and frame.all_left:
        return replace(job, over=True)
    return stopped(job) if ends or not job.format else job


def stopped(job: JobLog) -> JobLog:
    """Return the job of a log that has no word of its end."""
    whole = f"{job.steps} of {job.total} steps" if job.total else counted(job.steps or 0, "step")
    where = f"after {whole}" if job.steps else "before its first step"
    if not job.steps and job.loss is not None:
        where = "after steps that it does not number"
    why = f"the log stops {where} without an error and without an end"
    return replace(job, outcome=State.TIMEOUT, reason=why, failure=None, failed=(), stops=True)


def _ended(job: JobLog, frame: Frame, sign: Sign) -> JobLog:
    outcome: LogEnd = State.TIMEOUT if sign.weight in ("external", "limit") else State.FAILED
    failed = frame.signs.by_themselves() or (((sign.host, sign.failure),) if sign.host else ())
    onward = frame.signs.onward.when if outcome is State.TIMEOUT and frame.signs.onward else None
    quiet = sign.when - onward if sign.when is not None and onward is not None else None
    return replace(
        job, outcome=outcome, reason=shortened(sign.text), failure=sign.failure, failed=failed, quiet=quiet
    )


def _with_hosts(job: JobLog, frame: Frame, named: Expression | None) -> JobLog:
    """Return the job with the hosts that the log names or else its path; a pattern of the user's goes first.
    """
    places = named.search(job.job) if named is not None else {}
    job = replace(job, group=places.get("job", ""))
    if work := places.get("work"):
        job = replace(job, workload=job.workload or work, settings=f"{job.settings}; {work}", alone="")
    if host := places.get("host"):
        return replace(job, hosts=split_hosts(host), hosts_from="pattern")
    if job.hosts:
        return replace(job, hosts_from="log")
    if frame.hosts:
        job = replace(job, hosts=frame.hosts, hosts_from="log")
    elif job.outcome is not State.UNREADABLE:
        hosts, origin = hosts_of_path(job.job)
        job = replace(job, hosts=hosts, hosts_from=origin)
    return replace(job, unplaced=_unplaced(job, frame))


def _unplaced(job: JobLog, frame: Frame) -> str:
    """Return why the hosts that are named may not be those that the job ran on."""
    count, ranks = len(set(job.hosts)), frame.ranks or 0
    if not count:
        return NOWHERE
    if frame.nodes:
        words = f"the job ran on {counted(frame.nodes, 'host')}, and {counted(count, 'host')} of it are named"
        return words if frame.nodes != count else ""
    if frame.slots or 0 < ranks <= count * MOST_RANKS:
        return ""
    if ranks:
        return f"the job had {ranks} ranks, on an unknown number of hosts"
    slurm = (
        frame.slurm or is_slurm(job.job)
    ) and job.hosts_from == "log"  # who writes, and not who takes part
    return "it is not known on how many hosts the Slurm job ran" if slurm else ""


# ----------------------------------------------------------------------------------------------------
# Lines that stand in the logs of jobs that ended well are no reason why others failed.

FEWEST = 2  # jobs that ended well and print a line, and at least half of all that did


def without_harmless(logs: Sequence[JobLog]) -> list[JobLog]:
    """Return every job with the first of its reasons that most jobs which ended well do not print too. One
    that has no other is one whose log just stops."""
    well = [log for log in logs if log.outcome.good]
    counts = Counter(shape for log in well for shape in log.shapes)
    harmless = {shape for shape, count in counts.items() if count >= FEWEST and 2 * count >= len(well)}
    return [_without(log, harmless) if harmless else log for log in logs]


def _without(log: JobLog, harmless: set[str]) -> JobLog:
    why = log.why
    kept = tuple(each for each in why.signs if shape_of(each.text, each.host) not in harmless)
    if len(kept) == len(why.signs):
        return log
    log = replace(log, why=replace(why, signs=kept))
    if why.signs[:1] == kept[:1] or log.outcome is State.UNREADABLE or log.outcome.good:
        return log
    if not kept:
        return stopped(log)
    first = kept[0]
    outcome: LogEnd = State.TIMEOUT if first.weight in ("external", "limit") else State.FAILED
    failed = tuple((each.host, each.failure) for each in kept if each.host and each.weight == first.weight)
    return replace(log, outcome=outcome, reason=first.text, failure=first.failure, failed=failed)
