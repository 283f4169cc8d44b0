"""Steps from lines: which words a tool writes, what stands where in them, and the windows between them. Pure.

What a pattern may name (all but `step` may be missing):

step, epoch, total          the step's number; with an epoch: within it, of so many
within                      the number in the epoch, where `step` is of the training and `total` can be either
last_epoch, all_steps       the number of the last epoch; steps of the whole training, in another line
time                        the time stamp of the line; without it, the first one in the line counts
seconds, ms                 of a step: the mean since the line before, or of this one (`single`);
ms_fwd, ms_bwd, ms_step     parts of it, which are added
elapsed, elapsed_ms         since a clock began, training only
clock, pace, per            the same as 1:02:03 or 1h 2m 3s, and as the mean pace since then (13.20 and it/s
                            or s/it)
samples, tokens             so far
batch, step_tokens          of one step; `sequence`: tokens of a sample
samples_per_second, tokens_per_second
skipped                     steps since the line before that the optimizer did not use
loss
memory_gib, _mib, _gb, _mb  the most that was allocated, in 2**30, 2**20, 1e9 or 1e6 bytes
host, rank, job             who writes the line, and of which job
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field, replace
from functools import cached_property

from muster.core.inventory import split_hosts
from muster.readers._frame import Frame, stamp
from muster.readers.base import (
    APART,
    NOT_FINITE,
    WARM_UP,
    LogWindow,
    Reading,
    Series,
    Unit,
    is_not_finite,
    number,
)

STEPS_ONLY = "the batch size is unknown: rates are in steps, not in samples"
OF_A_DEVICE = "tokens are those of one device"
CHANGED = "its batch changed ({sizes} samples): figures of a step are means of unlike steps"
_TEXTS = ("time", "clock", "per", "host", "rank")
_BYTES = {"memory_gib": 2.0**30, "memory_mib": 2.0**20, "memory_gb": 1e9, "memory_mb": 1e6}
_MOST_SETTINGS = 32
_MOST_BATCHES = 8
_SLACK = 2.0  # seconds by which ranks may print a step later than the first one
_A_DATE = 1e8  # seconds since 1970; less is a time of day
_LEAST = 20  # times as long as a clock's resolution is what is told from it
_COARSE = 1.0  # seconds that the time between two stamps of whole ones can be off by
_ENOUGH = 2 * _COARSE / APART  # seconds of a window by such stamps: then half of what is said to differ
_LARGEST_STEP = 10**12
_CLOCK = (1, 60, 3600, 86400)  # seconds of what a clock shows, from its end
_MOST_PLACES = 20_000  # hosts and jobs of a file
GOES_ON = "Trainer was signaled to stop but the required "  # as Lightning says after what would end it


@dataclass(frozen=True)
class LineFormat:
    """The form in which a tool writes its steps."""

    name: str
    hints: tuple[str, ...]  # one of these is in every line that says something
    step: re.Pattern[str]
    facts: tuple[re.Pattern[str], ...] = ()  # in that line, or in others after it
    stops: tuple[str, ...] = ()  # words of evaluation and saving
    # What decides how long a step takes; the first is of the model's size, without which that is not known.
    settings: tuple[re.Pattern[str], ...] = ()
    whole: bool = False  # all of that is among the settings
    ends: tuple[str, ...] = ()  # words of the end of a training that was not cut off
    tells_end: bool = False  # it always writes them
    counts_down: bool = False  # `total` is of the whole training or epoch: a log that stops before it was cut
    single: bool = False  # a step's time is its own, not the mean since the line before
    device: bool = False  # tokens are those of one device
    rough: bool = False  # what other formats say of the same steps is better
    own: re.Pattern[str] | None = None  # what of its lines no other program's has
    otherwise: str = ""  # the name where there is none of that, and neither settings nor words of an end

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of which a line has to have one."""
        return (*self.hints, *self.stops, *self.ends)


@dataclass
class _Step:
    """The figures of a step."""

    number: int
    stamp: float | None
    interrupted: bool
    told: dict[str, float] = field(default_factory=dict)
    clock: tuple[float, float] | None = None  # seconds, and how far off they may be


class Steps:
    """The steps of one job, from the lines of one rank."""

    def __init__(self, form: LineFormat, frame: Frame) -> None:
        self.form = form
        self.frame = frame
        self.series = Series()
        self.own = Series()  # the same by the tool's own rates
        self.walled = Series()  # the same by time stamps, where the tool has another time
        self.wall: LogWindow | None = None  # of these: one that is not long enough yet
        self.fine = False  # stamps have parts of seconds, though some may be whole by chance
        self.stamped = False  # a window's time is that between two stamps
        self.settings: dict[str, None] = {}
        self.size = ""
        self.unit: Unit | None = None
        self.timed = True
        self.exact = not form.rough
        self.rank: str | None = None
        self.now: _Step | None = None
        self.other = False  # the lines are another rank's
        self.last: _Step | None = None  # where the next window begins
        self.final: _Step | None = None
        self.recent: tuple[int, ...] = ()  # numbers of the last two steps
        self.stamps: tuple[float | None, ...] = ()  # theirs
        self.anew: float | None = None  # the stamp of the line before, where a later attempt seems to begin
        self.clocks = False  # stamps go back after that: they are of several clocks
        self.back = False  # a step came after a later one: of a new attempt, or of a rank that prints late
        self.total = 0  # of the whole training
        self.left = 0  # steps that the last line says are missing, of the training or of its epoch
        self.facts: dict[str, float] = {}  # what holds from step to step
        self.batches: dict[float, None] = {}  # that were told
        self.begun = self.steps = 0
        self.every = 0  # steps between the last two lines
        self.opens = True  # `last` is the first line of an attempt
        self.numbered = False  # lines say which step they are of
        self.span: tuple[float, float] | None = None
        self.skipped: int | None = None
        self.memory = 0.0
        self.loss: float | None = None
        self.diverged: int | None = None  # the step from which on the loss is not finite
        self.name = form.otherwise or form.name
        self.interrupted = False
        self.restarts = 0  # of the frame, at the last step
        self.ended = False
        self.drawn = False  # a later step was, after the words of its end

    def line(self, text: str) -> None:
        """Read a line with one of the format's words."""
        if any(word in text for word in self.form.stops):
            self._flush()  # what an evaluation tells is not of the step
            self.interrupted = True
            self.ended = self.ended and GOES_ON not in text
        if any(word in text for word in self.form.ends):
            self.ended, self.drawn = True, False
            self.name = self.form.name
            self.frame.finish()
        match = self.form.step.search(text)
        if match:
            self.name = self.form.name if self.form.own and self.form.own.search(text) else self.name
            self.begin(match.groupdict(), stamp(text))
        for place, setting in enumerate(self.form.settings):
            if (match := setting.search(text)) and len(self.settings) < _MOST_SETTINGS:
                self._flush()  # a process of the training begins
                self.interrupted, self.ended, self.frame.signs.finished = True, False, False
                self.settings.setdefault(" ".join(match[0].split()))
                self.size = self.size or (match[0] if place == 0 else "")
        for fact in self.form.facts:
            if match := fact.search(text):
                self.learn(match.groupdict())

    def begin(self, groups: Dict[str, str | None], at: float | None) -> None:
        """Begin a step; `at`: its time stamp. A second line of the same step is another rank's, or of a later
        attempt."""
        rank, step_number = groups.get("rank"), number(groups.get("step"))
        self.rank = self.rank or rank
        self.other = rank not in (None, self.rank)
        if self.other:
            return
        self.begun, self.numbered = self.begun + 1, step_number is not None
        step = self.begun if step_number is None else int(step_number)  # without numbers, each line is a step
        whole, left = int(number(groups.get("total")) or 0), 0
        if (within := number(groups.get("within"))) is not None:
            left, whole = whole - (step if step <= whole else int(within)), 0
        elif self.form.counts_down:
            left = whole - step
        if epoch := groups.get("epoch"):
            step += int(number(epoch) or 0) * whole
            whole *= int(number(groups.get("last_epoch")) or -1) + 1
        if not 0 <= step <= _LARGEST_STEP:
            return
        self._flush()
        if at is not None and self.anew is not None:
            self.clocks = self.clocks or at < self.anew
        clock = _clock(groups)
        self.anew = at if step in self.recent and self._began_anew(at) else None
        if clock and self.final and self.final.clock and clock[0] < self.final.clock[0] - _SLACK:
            self.recent = ()  # a later process, whose clock has begun again
        self.other = step in self.recent and self.anew is None
        if self.other:
            return
        self.recent, self.stamps = (*self.recent[-1:], step), (*self.stamps[-1:], at)
        before = self.final.number if self.final else step
        if self.ended and (step > before or 2 * step < before):  # a bar may be drawn once more
            once = clock is not None and not (self.drawn or (self.opens and self.back))
            self.ended, self.drawn = once and step > before, True
        self.left, self.total = left, whole if self.form.counts_down else self.total
        if step == self.total > 0:
            self.ended = True
            self.frame.finish(counted=True)
        if at is not None and at > _A_DATE:
            first, last = self.span or (at, at)
            self.span = min(first, at), max(last, at)  # of an attempt that was appended out of turn
        self.now = _Step(step, at, self.interrupted or self.frame.restarts > self.restarts)
        self.restarts = self.frame.restarts
        self.now.clock = clock
        self.interrupted = False
        self.learn(groups)
        self.frame.progress(step)

    def _began_anew(self, at: float | None) -> bool:
        """Return whether a line is of a later attempt, and not of another rank, which ends a step when all
        do: it comes later than the next step would have."""
        first, last = self.stamps if len(self.stamps) == 2 else (None, None)
        if self.clocks or at is None or first is None or last is None:
            return False
        return at - last > max(last - first, _SLACK)

    def learn(self, groups: Dict[str, str | None]) -> None:
        """Take figures of the step, or of the whole job."""
        figures = {
            name: value
            for name, text in groups.items()
            if name not in _TEXTS and (value := number(text)) is not None
        }
        if parts := [name for name in figures if name.startswith("ms")]:
            figures["seconds"] = sum(figures.pop(name) for name in parts) / 1000
        if "elapsed_ms" in figures:
            figures["elapsed"] = figures.pop("elapsed_ms") / 1000
        for name in _BYTES.keys() & figures.keys():
            self.memory = max(self.memory, figures.pop(name) * _BYTES[name])
        self.facts |= {name: figures[name] for name in ("batch", "step_tokens") if figures.get(name, 0) > 0}
        if figures.get("sequence") and self.facts.get("batch"):
            self.facts["step_tokens"] = figures["sequence"] * self.facts["batch"]
        if "batch" in self.facts and len(self.batches) < _MOST_BATCHES:
            self.batches.setdefault(self.facts["batch"])
        if "loss" in figures:
            self.loss, self.diverged = figures["loss"], None
        elif self.now is not None and not self.other and is_not_finite(groups.get("loss")):
            self.diverged = self.now.number if self.diverged is None else self.diverged
        self.total = int(figures.pop("all_steps", self.total))
        if self.now is not None and not self.other:
            self.now.told |= figures

    def readings(self) -> list[Reading]:
        """Return one reading, where there was a step."""
        self._flush()
        if self.last is None or self.final is None:
            return []
        batch = self.facts.get("batch") or (self.frame.batch if self.unit != "samples" else None)
        unit: Unit = self.unit or "steps"
        notes = [STEPS_ONLY] if unit == "steps" and not batch else []
        if self.form.device and self.series.total and not (self.frame.ranks or "step_tokens" in self.facts):
            notes.append(OF_A_DEVICE)
        if len(self.batches) > 1:
            sizes = ", ".join(f"{each:g}" for each in self.batches)
            notes.append(CHANGED.format(sizes=sizes))
        if self.diverged is not None:
            notes.append(f"{NOT_FINITE}, as at step {self.diverged:,} already")
        own = self.own.measured() if self.own.total == self.series.total and unit == "samples" else None
        if walled := self._walled():
            own = self.series.scaled(batch if batch and unit == "steps" else 1.0).measured()
        recipe = "; ".join([self.form.name, *self.settings]) if self.size else ""
        steps = self.steps + max(0, self.final.number - self.last.number) or self.last.number
        return [
            Reading(
                format=self.form.name if self.settings else self.name,
                recipe=recipe,
                complete=self.form.whole,
                own=own.rate if own else None,
                series=walled or (self.series if self.series.total else None),
                exact=self.fine if walled else self.exact and (self.fine or not self.stamped),
                per_step=unit == "steps",
                unit=unit,
                timed=self.timed,
                batch=batch,
                reported=None if self.series.total else _whole(self.final, batch),
                steps=steps,
                span=self.span,
                skipped=self.skipped,
                memory=int(self.memory) or None,
                ended=True if self.ended else False if self.form.tells_end or self._cut() else None,
                total=(self.total or None)
                if steps - self.final.number in (0, 1)
                else None,  # both of one process
                loss=self.loss if self.diverged is None else None,
                notes=tuple(notes),
            )
        ]

    def _walled(self) -> Series | None:
        """Return the windows by time stamps, where these contain more or less than the tool's own times and
        they are exact enough; None: they agree, or there are none. Steps that several ranks print do not take
        less time than each of them states."""
        self._close_wall()
        walled, own = self.walled.measured(), self.series.measured()
        if walled is None or own is None or not self.timed or self.unit == "tokens":
            return None
        unsure = 0.0 if self.fine else _COARSE / walled.seconds
        enough = unsure <= APART and 2 * walled.steps >= own.steps
        several = self.back and walled.rate > own.rate
        apart = abs(own.rate / walled.rate - 1) > APART + unsure
        return self.walled if enough and apart and not several else None

    def _cut(self) -> bool:
        """Return whether a line of a later step is missing. Lines come every so many steps, so the last one
        need not be of the last step."""
        every = self.recent[-1] - self.recent[0] if len(self.recent) > 1 else 1
        return max(self.left, self.total - self.recent[-1] if self.total else 0) >= max(1, every)

    def _flush(self) -> None:
        """Complete the step: the next one begins, or there is none."""
        last, now, self.now = self.last, self.now, None
        if now is None:
            return
        self.final = now
        now.told |= self.facts
        lost = min(max(0.0, now.told.get("skipped", 0.0)), 1e12)
        if "skipped" in now.told:
            self.skipped = (self.skipped or 0) + int(lost)
        if last is None or now.number <= last.number:  # the first one, or it began anew
            self.back = self.back or last is not None
            self.last, now.interrupted, self.opens = now, False, True
            return
        steps = now.number - last.number
        # What is counted from the start has begun again: another process lies between.
        anew = [name for name in ("samples", "tokens", "elapsed") if name in now.told]
        now.interrupted |= any(now.told[name] < last.told.get(name, 0.0) for name in anew)
        if self.opens:  # of a job that goes on from a checkpoint, what came before is not its own
            first = _first_of(last, now.number)
            first, self.opens = min(first, self.every or first), False
            used = first - int(min(last.told.get("skipped", 0.0), first))
            if self.steps == 0:
                used += steps - 1 if self.form.single else 0
                self.series.before = self.own.before = self.walled.before = used
            self.steps += first
        else:
            self.every = steps
        window = self._window(last, now, steps, int(min(lost, steps)))
        unclear = window is None and now.clock and last.clock and now.clock[0] > last.clock[0]
        at_once = window is not None and window.seconds == 0 and "seconds" not in now.told
        if unclear or at_once:  # too short to be told, as within one second: the next one has it as well
            last.interrupted |= now.interrupted
            return
        self.steps += steps
        if window is not None:
            self.series.add(window)
        self.last, now.interrupted = now, False

    def _window(self, last: _Step, now: _Step, steps: int, lost: int) -> LogWindow | None:
        """Return the window from one step to another."""
        figures = now.told
        if (since := _since(last, now, "samples")) is not None:  # includes steps that were not used
            figures["batch"] = since / steps
            self.facts.setdefault("batch", since / steps)
        if self.form.single:
            steps, lost = 1, 0
        used = steps - lost
        interrupted = now.interrupted or last.interrupted
        samples = used * figures["batch"] if "batch" in figures else None
        seconds = self._seconds(last, now, steps)
        rate, tokens_rate = figures.get("samples_per_second"), figures.get("tokens_per_second")
        if seconds is None and rate and samples is not None:  # of no used step: no time, so it is left out
            seconds = samples / rate
        if seconds is None and tokens_rate and "step_tokens" in figures and not self.form.device:
            seconds = used * figures["step_tokens"] / tokens_rate
        if seconds is None:  # the rate alone: each line counts as much as any other
            amount = rate or tokens_rate
            kind: Unit = "samples" if rate else "tokens"
            return self._add(kind, False, LogWindow(steps, lost, amount, 1.0)) if amount else None
        several = samples is None or (since is None and not self.numbered)  # of steps, that it may be of
        if rate and several:
            samples = rate * seconds
        tokens = _since(last, now, "tokens")
        if tokens is None and "step_tokens" in figures:
            tokens = used * figures["step_tokens"]
        if tokens is None and tokens_rate:
            tokens = tokens_rate * seconds * (self.frame.ranks or 1 if self.form.device else 1)
        if ("seconds" in figures or "elapsed" in figures) and not (rate and several):
            self._add_walled(last, now, lost, interrupted)
        if rate and samples and "seconds" in figures:
            self.own.add(LogWindow(steps, lost, samples, samples / rate, interrupted=interrupted))
        unit: Unit = "steps" if samples is None else "samples"
        done = float(used) if samples is None else samples
        return self._add(unit, True, LogWindow(steps, lost, done, seconds, tokens, interrupted))

    def _add_walled(self, last: _Step, now: _Step, lost: int, interrupted: bool) -> None:
        """Add steps by their stamps. Whole seconds are measured over many steps together: single ones seem to
        take none, or one more."""
        if last.stamp is None or now.stamp is None or now.stamp < last.stamp:
            return
        gap = now.number - last.number
        used = gap - min(lost, gap)
        samples = used * now.told["batch"] if "batch" in now.told else used
        self.fine = self.fine or now.stamp % 1 > 0
        window = LogWindow(gap, gap - used, samples, now.stamp - last.stamp, None, interrupted)
        if self.wall is not None and self.wall.seconds > 0 and not window.clean:
            self._close_wall()
        self.wall = self.wall.plus(window) if self.wall else window
        short = not self.fine and self.steps > WARM_UP and self.wall.seconds < _ENOUGH
        if self.wall.seconds > 0 and not (short and self.wall.clean):
            self._close_wall()

    def _close_wall(self) -> None:
        if self.wall is not None:
            self.walled.add(self.wall)
            self.wall = None

    def _add(self, unit: Unit, timed: bool, window: LogWindow) -> LogWindow | None:
        """Add a window to a series of its kind, which is that of the first window."""
        if self.unit is None:
            self.unit, self.timed = unit, timed
        return window if (unit, timed) == (self.unit, self.timed) else None

    def _seconds(self, last: _Step, now: _Step, steps: int) -> float | None:
        """Return the seconds as the tool measured them, or between two time stamps."""
        if "seconds" in now.told:
            return steps * now.told["seconds"]
        if "elapsed" in now.told and "elapsed" in last.told:
            return now.told["elapsed"] - last.told["elapsed"]
        stamps = (last.stamp, now.stamp) if last.stamp is not None and now.stamp is not None else None
        fine = stamps is not None and any(each % 1 for each in stamps)
        if now.clock and last.clock and not fine:
            self.exact = False
            passed, unsure = now.clock[0] - last.clock[0], now.clock[1] + last.clock[1]
            return passed if passed >= _LEAST * unsure else None
        if stamps is not None:
            self.stamped, self.fine = True, self.fine or fine
            return stamps[1] - stamps[0]
        return None


class PlacedSteps:
    """The steps of each job and host that the lines, or rows, of a format name."""

    def __init__(self, name: str, frame: Frame, workload: str = "", recipe: str = "") -> None:
        self.form, self.frame = LineFormat(name, (), re.compile("")), frame
        self.workload, self.recipe = workload, recipe
        self.places: dict[tuple[str, str], Steps] = {}  # by job and host
        self.last: Steps | None = None
        self.common: dict[str, str] = {}  # what was told before any step

    def begin(self, groups: Dict[str, str], at: float | None) -> None:
        """Take a line or row."""
        place = groups.get("job", "").strip(), groups.get("host", "").strip()
        if place not in self.places and len(self.places) < _MOST_PLACES:
            self.places[place] = Steps(self.form, self.frame)
            self.places[place].learn(self.common)
        if place in self.places:
            self.last = self.places[place]
            self.last.begin(groups, at)

    def learn(self, groups: Dict[str, str]) -> None:
        """Take figures of the last step; before the first one, of every job and host."""
        if self.last is None:
            self.common |= groups
        else:
            self.last.learn(groups)

    def readings(self) -> list[Reading]:
        """Return a reading for each job, on all its hosts and at the pace of the slowest; where no job is
        named, one for each host."""
        jobs: dict[str, dict[str, Reading]] = {}
        for (job, host), steps in self.places.items():
            for reading in steps.readings():
                jobs.setdefault(job or host, {})[host] = reading
        return [
            replace(
                min(hosts.values(), key=_pace),
                hosts=tuple(dict.fromkeys(host for each in hosts if each for host in split_hosts(each))),
                part=part,
                workload=self.workload,
                recipe=self.recipe,
                complete=True,
            )
            for part, hosts in jobs.items()
        ]


def _pace(reading: Reading) -> float:
    figures = reading.series.measured() if reading.series else None
    return figures.rate if figures else float("inf")


def _first_of(first: _Step, second: int) -> int:
    """Return how many steps an attempt had made at its first line, by the second one's number."""
    every = second - first.number
    if second % (every + 1) == 0 and (every + 1) % 5 == 0:  # 501, 510, 520: the first one is always printed
        return 1
    from_0 = (every > 1 and (first.number + 1) % every == 0) or (
        not first.number and first.told.get("seconds")
    )
    return min(first.number + 1 if from_0 else first.number, every)


def _since(last: _Step, now: _Step, name: str) -> float | None:
    """Return how much was added to a running total."""
    if name not in now.told or name not in last.told or now.told[name] < last.told[name]:
        return None
    return now.told[name] - last.told[name]


def _whole(only: _Step, batch: float | None) -> float | None:
    """Return the rate since a clock began, from the only line that shows it."""
    seconds = only.clock[0] if only.clock else 0.0
    return only.told.get("step", 0.0) * (batch or 1.0) / seconds if seconds else None


def _clock(groups: Dict[str, str | None]) -> tuple[float, float] | None:
    """Return the seconds of a clock of whole ones, as exactly as the mean pace since it began gives them."""
    clock, pace = groups.get("clock"), groups.get("pace")
    if not clock:
        return None
    step = number(groups.get("step"))
    parts = reversed(re.findall(r"\d+", clock))
    low = float(sum(int(part) * unit for part, unit in zip(parts, _CLOCK, strict=False)))
    high = low + 1
    value = number(pace)
    if pace and value and step:
        half = 0.5 * 10.0 ** -len(pace.partition(".")[2])
        least, most = sorted(
            (step * (value - half), step * (value + half))
            if groups.get("per") == "s/it"
            else (step / (value + half), step / max(value - half, half / 2))
        )
        if max(low, least) < min(high, most):
            low, high = max(low, least), min(high, most)
    return (low + high) / 2, (high - low) / 2
