"""What readers return: windows of optimizer steps, their figures, and a job's log as a whole."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal, Protocol

from pydantic import dataclasses as rows

from muster.core.result import JobEntry
from muster.core.robust import halves_of, variation
from muster.failures.collectives import Collectives
from muster.failures.sign import Sign

WARM_UP = 10  # optimizer steps that are left out, as `measure.warmup` of a recipe; at most a third of the run
HEAD = 64  # windows that are kept one by one; later ones are merged where they become many
TAIL = 512
LARGEST = 1e18  # figures above it are nonsense
# Windows stall where they take so many times as long as the usual one, are at most this share of all, and
# cost at least this share of the time.
STALL, FEW, LOST = 3.0, 0.05, 0.02
APART = 0.02  # a rate that is further from the tool's own than this is said
# A number as tools print it, to build expressions of: 192, 1,536, 1_536, 1.536000e+03. It ends before a comma
# that is not between thousands. `number` reads it.
FIGURE = r"[-+]?\d{1,18}(?:[,_]\d{3})*(?:\.\d*)?(?:[eE][-+]?\d{1,3})?"
LOSS = r"(?P<loss>[\d.eE+-]+|[-+]?(?i:nan|inf(?:inity)?)\b)"  # as tools print it, also where it diverged
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")

NOWHERE = "neither the log nor its name says on which hosts it ran"
NOT_FINITE = "the loss or its gradient is not finite at the end"  # how the note on it begins
Onward = Literal["no", "perhaps", "yes"]
Unit = Literal["samples", "steps", "tokens"]  # what a rate counts: what is known of these, in this order


@dataclass(frozen=True)
class LogWindow:
    """Consecutive steps.

    `samples` are those of the steps that the optimizer used; `interrupted`: something else was going on as
    well, such as an evaluation.
    """

    steps: int
    skipped: int
    samples: float
    seconds: float
    tokens: float | None = None
    interrupted: bool = False

    @property
    def clean(self) -> bool:
        """Whether it has only steps that were used."""
        return not self.skipped and not self.interrupted

    def plus(self, other: LogWindow) -> LogWindow:
        """Return both as one."""
        both = self.tokens is not None and other.tokens is not None
        return LogWindow(
            self.steps + other.steps,
            self.skipped + other.skipped,
            self.samples + other.samples,
            self.seconds + other.seconds,
            (self.tokens or 0) + (other.tokens or 0) if both else None,
            self.interrupted or other.interrupted,
        )


@dataclass(frozen=True)
class Stalls:
    """A few windows that took much longer than the others: their number, and their seconds."""

    windows: int
    seconds: float


@dataclass(frozen=True)
class MeasuredWindows(LogWindow):
    """The windows that a job's figures rest on, as one: a rate is their samples over their seconds. Steps
    were skipped in it, or it is `interrupted`, where there were no cleaner windows."""

    windows: int = 1
    variation: float | None = None  # coefficient of variation of samples/s over them; None: fewer than three
    timed: bool = True  # False: only rates are known, and its seconds are a weight
    unit: Unit = "samples"  # what `samples` counts
    error: float | None = None  # relative standard error of the seconds; None: fewer than three windows
    stalls: Stalls | None = None
    halves: tuple[float, float] | None = None  # seconds a sample of usual windows before and after the middle

    @property
    def rate(self) -> float:
        """Samples per second, or what `unit` says."""
        return self.samples / self.seconds


@dataclass
class Series:
    """The windows of a job in their order, however many: of a long run, neighbours are merged."""

    before: int = 0  # steps that were used before the first window
    head: list[LogWindow] = field(default_factory=list)
    tail: list[LogWindow] = field(default_factory=list)
    unclean: dict[bool, LogWindow] = field(default_factory=dict)  # by `interrupted`: those after the head
    total: int = 0

    def add(self, window: LogWindow) -> None:
        """Add the next window. Windows without time or with impossible figures are left out."""
        if not (1e-6 <= window.seconds <= LARGEST and 0 <= window.samples <= LARGEST):  # false for NaN
            return
        if window.steps <= 0 or not 0 <= window.skipped <= window.steps:
            return
        if window.tokens is not None and not 0 <= window.tokens <= LARGEST:
            window = replace(window, tokens=None)
        self.total += 1
        if len(self.head) < HEAD:
            self.head.append(window)
        elif not window.clean:
            before = self.unclean.get(window.interrupted)
            self.unclean[window.interrupted] = before.plus(window) if before else window
        else:
            self.tail.append(window)
            if len(self.tail) >= TAIL:
                pairs = zip(self.tail[::2], self.tail[1::2], strict=True)
                self.tail = [first.plus(second) for first, second in pairs]

    def scaled(self, samples: float, seconds: float = 1.0) -> Series:
        """Return it with its samples (which may be steps) and seconds in other units."""

        def of(window: LogWindow) -> LogWindow:
            return replace(window, samples=window.samples * samples, seconds=window.seconds * seconds)

        unclean = {key: of(window) for key, window in self.unclean.items()}
        return Series(self.before, [*map(of, self.head)], [*map(of, self.tail)], unclean, self.total)

    def measured(self) -> MeasuredWindows | None:
        """Return what is left after the warm-up, without skipped steps and without interruptions where that
        leaves anything. None: nothing was timed.

        The warm-up ends when WARM_UP steps were used by the optimizer (skipped ones prepare nothing), or a
        third of all, and never takes the last window.
        """
        windows = [*self.head, *self.tail, *self.unclean.values()]
        used = sum(each.steps - each.skipped for each in windows)
        least = min(WARM_UP, (self.before + used) // 3)
        passed, warm = self.before, []
        for number, each in enumerate(windows):
            if passed >= least or number == len(windows) - 1:
                warm.append(each)
            passed += each.steps - each.skipped
        for choice in (
            [each for each in warm if each.clean],
            [each for each in windows if each.clean],  # a short run: better its warm-up than skipped steps
            [each for each in warm if not each.interrupted],
            warm,
        ):
            best = measure([each for each in choice if each.samples > 0])
            if best is not None:
                return best
        return None


def measure(windows: Sequence[LogWindow]) -> MeasuredWindows | None:
    """Return the figures of these windows; None: there are none."""
    if not windows:
        return None
    rates = [each.samples / each.seconds for each in windows]
    error, stalls = _unsteady(windows)
    return MeasuredWindows(
        **vars(reduce(LogWindow.plus, windows)),
        windows=len(windows),
        variation=variation(rates, least=3),
        error=error,
        stalls=stalls,
        halves=halves_of([each.seconds / each.samples for each in windows]),
    )


def _unsteady(windows: Sequence[LogWindow]) -> tuple[float | None, Stalls | None]:
    """Return the relative standard error of the windows' seconds per sample (a ratio estimator: Cochran,
    Sampling Techniques, 1977, section 6.4), and those that stalled."""
    count = len(windows)
    if count < 3:
        return None, None
    samples, seconds = math.fsum(w.samples for w in windows), math.fsum(w.seconds for w in windows)
    pace = seconds / samples
    squares = math.fsum((each.seconds - pace * each.samples) ** 2 for each in windows)
    error = math.sqrt(count / (count - 1) * squares) / seconds
    usual = statistics.median(each.seconds / each.samples for each in windows)
    slow = [each for each in windows if each.seconds > STALL * usual * each.samples]
    lost = math.fsum(each.seconds - usual * each.samples for each in slow)
    if not slow or len(slow) > FEW * count or lost < LOST * seconds:
        return error, None
    return error, Stalls(len(slow), math.fsum(each.seconds for each in slow))


@dataclass(frozen=True)
class Reading:
    """A reader's result for a file; unknown is None."""

    format: str
    series: Series | None = None
    exact: bool = True  # its times are finer than seconds
    whole: bool = False  # its steps have everything in them, where other formats' may leave something out
    sure: bool = True  # False: what its samples are is a guess, which the tool's own figure can refute
    per_step: bool = False  # the series counts steps, not samples: the batch was not known to the reader
    timed: bool = True  # False: the series is of rates alone, each with a second of its own
    unit: Unit = "samples"  # what the series counts
    batch: float | None = None  # samples of an optimizer step, over all ranks
    reported: float | None = None  # samples/s as the tool itself says, warm-up and all
    own: float | None = None  # samples/s as the tool itself says, of the same steps as `series`
    steps: int | None = None  # attempted
    total: int | None = None  # that it was to make
    skipped: int | None = None
    memory: int | None = None  # peak of the allocator, bytes
    loss: float | None = None  # the last one
    span: tuple[float, float] | None = None  # when it ran, in seconds since 1970, where the reader knows it
    ended: bool | None = None  # None: the format does not say when a job is over
    hosts: tuple[str, ...] = ()  # where the reader itself learnt them (a column of a table)
    workload: str = ""  # where the reader knows it
    recipe: str = ""  # what decides how long a step takes, as far as the reader knows it; empty: too little
    complete: bool = False  # all of that is in `recipe`; else only logs in folders alike are compared
    part: str = ""  # which part of the file this is, where there are several
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EndOfLog:
    """What a log has to say of its end. `signs`: the lines that may be why, the decisive one first; `alike`:
    other ranks and hosts that say the same; `program`: it is plainly of a program that ran; `quiet`: lines
    after the last sign, where these are few; `last`: the last lines that are not blank; `met`: what the
    program handled, or says that it got over; `onward`: whether it went on after that sign, where no format
    tells: it may have, or it has; `collectives`: where its ranks waited; `before`:
    what ended runs before the last one in the same log; `finished`: its last training had ended by itself;
    `closed`: its last lines say that the program ended as it should; `worked`: it tells steps; `loud`: the
    last ones that speak of an error in any words; `begun`: the line at which what was begun after the end of
    its training breaks off, empty: none; `status`: of the pod, by kubectl; `clues`: what shows where to look;
    `complaint`: the line in which the last program says why it ends, in the words of a Unix program;
    `verdict`: what ran all says that it went well, whatever its attempts met; `counted`: it has told its last
    step, and no word of an end."""

    signs: tuple[Sign, ...] = ()
    alike: int = 0
    echoes: int = 0
    program: bool = False
    quiet: int | None = None
    last: tuple[str, ...] = ()
    met: tuple[Sign, ...] = ()
    onward: Onward = "no"
    collectives: Collectives | None = None
    before: tuple[Sign, ...] = ()
    finished: bool = False
    closed: bool = False
    worked: bool = False
    loud: tuple[str, ...] = ()
    begun: str = ""
    status: str = ""
    clues: tuple[Sign, ...] = ()
    complaint: Sign | None = None
    verdict: bool = False
    counted: bool = False


@rows.dataclass(frozen=True, kw_only=True)
class JobLog(JobEntry):
    """A job as its log describes it, with what the judge needs besides. The figures of the row follow from
    `measured`, and its failed hosts from `failed`."""

    failed: tuple[tuple[str, str | None], ...] = ()  # hosts that failed by themselves, and by which failure
    unplaced: str = ""  # why it is not known on which hosts it ran; empty: on `hosts`
    settings: str = ""  # the workload with all of its settings: jobs with the same can be compared
    alone: str = ""  # why no other job is known for certain to be of the same work; empty: others can be
    batch: float | None = None
    total: int | None = None  # steps that it was to make
    measured: MeasuredWindows | None = None
    contradicted: float | None = None  # what the tool says of the same steps, where that is APART of `rate`
    unit: Unit = "samples"  # of `rate`
    computing: tuple[float, ...] = ()  # seconds that each of `hosts` took for the same work of its own
    group: str = ""  # files of the same one are of one job, as --host-pattern says
    speaker: str = ""  # the log that speaks for the same job in its place
    copied: bool = False  # it is that log once more
    quiet: float | None = None  # seconds without progress before it was ended from outside
    digest: int = 0  # of its file, the same of a copy, within this process; 0: not known
    content: int = 0  # the same of the lines that readers took, without their senders
    moment: str = ""  # what has the same one was measured side by side
    exchanges: bool = False  # its step is nothing but an exchange between hosts
    spread: float | None = None  # relative standard error of its step's time, by its own windows
    # Of any outcome but succeeded; and of what failed when the training had ended. Else it says nothing.
    why: EndOfLog = EndOfLog()
    over: bool = False  # the log says that the training has ended
    stops: bool = False  # nothing says how it ended: it hung, or the log was cut
    shapes: frozenset[str] = frozenset()  # of one that succeeded: lines that are reasons elsewhere

    def __post_init__(self) -> None:
        figures, timed = self.measured, self.measured if self.measured and self.measured.timed else None
        by_tokens = figures is not None and figures.unit == "tokens"
        of_all = timed.tokens / timed.seconds if timed and timed.tokens else None
        per_step = timed is not None and (self.batch or self.unit == "steps")
        failed = tuple(host for host, _ in self.failed)
        derived = {
            "failed_host": next(iter(failed), None),
            "failed_hosts": failed,
            "samples_per_second": self.rate if self.unit == "samples" else None,
            "step_seconds": timed.seconds / timed.steps if timed and per_step else None,
            "measured_samples": timed.samples if timed and self.unit == "samples" else None,
            "measured_seconds": timed.seconds if timed else None,
            "windows": figures.windows if figures else None,
            "variation": figures.variation if figures else None,
            "tokens_per_second": figures.rate if figures and by_tokens else of_all,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def rate(self) -> float | None:
        """Samples/s (or what `unit` says): of the measured windows, or else the tool's own figure."""
        return self.measured.rate if self.measured else self.reported

    @property
    def pace(self) -> float | None:
        """Seconds of a step; of a sample or token, where the samples of a step are not known."""
        each = self.batch or 1.0 if self.unit == "samples" else 1.0
        return each / self.rate if self.rate else None


class LineReader(Protocol):
    """What a module's `Reader` returns."""

    @property
    def closed(self) -> bool:
        """Whether it needs no more lines."""

    def line(self, text: str) -> None:
        """Read a line."""

    def readings(self) -> list[Reading]:
        """Return the readings."""


def number(text: object) -> float | None:
    """Return a number that can be one of a job's figures, as text or not: 1536, 1,536, 1_536, 1.536e+03; and
    12,5 where the comma cannot be one between thousands.

    None: it is none.
    """
    if isinstance(text, str):
        if "," in text:
            text = text.strip()
            text = text.replace(",", "" if _THOUSANDS.fullmatch(text) else ".")
    elif isinstance(text, bool) or not isinstance(text, (int, float)):
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if abs(value) <= LARGEST else None  # false for NaN


def is_not_finite(text: object) -> bool:
    """Return whether a figure is nan or infinite, as text or not."""
    try:
        return not math.isfinite(float(text))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
