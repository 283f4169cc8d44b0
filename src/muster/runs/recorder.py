"""Write down what hosts send while a job runs: events, logs, TensorBoard; and fold events as they arrive."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from muster.core.job import Job
from muster.core.printable import scrubbed, scrubbed_data
from muster.core.result import Pace
from muster.readers._live import Live
from muster.readers._user import UserFormat
from muster.results.fold import EventFold, fold
from muster.results.stragglers import Stragglers
from muster.store import events
from muster.store.logfiles import BrokenFile, blocks
from muster.store.runfolder import RunFolder

# ----------------------------------------------------------------------------------------------------
# TensorBoard files on the control side, written from the events.


NO_BOARD = "no TensorBoard files are written: tensorboardX is not installed where muster runs"


def _summary_writer(folder: Path) -> Any:
    """Return a TensorBoard writer that does not import torch: tensorboardX imports it wherever it is
    installed, which costs seconds, and does not need it. So torch is hidden during the import. None:
    tensorboardX is not installed."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    finally:
        if hidden:
            del sys.modules["torch"]
    return SummaryWriter(logdir=str(folder), flush_secs=5)


BETWEEN = 0.1  # seconds between two samples of hardware, whosesoever


class TensorBoardWriter:
    """One writer for the whole run; without tensorboardX it writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.writer = _summary_writer(folder)
        self.sampled: dict[str | None, float] = {}  # host -> the time of its last sample here

    def add(self, event: events.Event) -> None:
        """Write an event's scalars, by step; samples of hardware by their time, and of many hosts fewer."""
        if self.writer is None:
            return
        if isinstance(event, events.Hardware):
            last = self.sampled.get(event.host)
            if last is not None and event.time < last + BETWEEN * len(self.sampled):
                return
            self.sampled[event.host] = event.time
        scalars: dict[str, float | None] = {}
        step = getattr(event, "step", None) or 0
        if isinstance(event, events.Log):
            scalars = {
                "train/loss": event.loss,
                "train/learning_rate": event.learning_rate,
                "train/gradient_norm": event.gradient_norm,
                **{f"train/{name}": value for name, value in event.figures.items()},
            }
        elif isinstance(event, events.Evaluated):
            scalars = {"held_out/loss": event.loss, "held_out/perplexity": event.perplexity}
            scalars |= {f"held_out/{name}": value for name, value in event.figures.items()}
        elif isinstance(event, events.Attention):
            for end, values in (("max", event.largest), ("min", event.smallest)):  # under Mistral's names
                for layer, value in zip(event.layers, values, strict=False):
                    scalars[f"activations/{layer.replace('.', '_')}_attention_weight_{end}"] = value
        elif isinstance(event, events.Window) and event.seconds > 0:
            scalars[f"samples_per_second/rank{event.rank}"] = event.samples / event.seconds
            scalars[f"tokens_per_second/rank{event.rank}"] = event.tokens / event.seconds
        elif isinstance(event, events.Hardware):
            step = int(event.time)
            scalars[f"cpu_percent/{event.host}"] = event.cpu_percent
            scalars[f"memory_used/{event.host}"] = event.memory_used
        for name, value in scalars.items():
            if value is not None:
                self.writer.add_scalar(name, value, step, event.time)

    def close(self) -> None:
        """Write what is buffered."""
        if self.writer is not None:
            self.writer.close()


# ----------------------------------------------------------------------------------------------------
# Events and logs, folded as they come.

ATTEMPT = "=== muster: attempt "  # begins what an attempt prints
_TAIL = 1 << 16  # bytes of a rank's log
FLUSH = 0.3  # seconds that lines of logs may wait for others before they are written
EVERY = 2.0  # seconds between two looks at what a command's output comes to

Watcher = Callable[[events.Event], None]


def machine_id() -> str:
    """Return this machine's id as hosts' facts have it; empty where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Follower:
    """Reads a command's progress out of its output: that of one rank, the first that prints steps.

    The first and the last rank, and the output of the first and the last host are read: tools report on one
    of these.
    """

    def __init__(self, job: Job, user: UserFormat) -> None:
        places = job.placements
        ends: set[tuple[str, int | None]] = {(place.host, None) for place in (places[0], places[-1])}
        ends |= {(places[0].host, 0), (places[-1].host, job.world_size - 1)}
        self.streams = {each: Live(user) for each in sorted(ends, key=str)}
        self.reported = 0.0
        self.step = 0

    @property
    def steps(self) -> int:
        """The last step that a line states."""
        return max(stream.steps for stream in self.streams.values())

    def lines(self, host: str, rank: int | None, lines: list[str]) -> events.Progress | None:
        """Read lines. Return the progress since, every EVERY seconds at most."""
        stream = self.streams.get((host, rank))
        if stream is None:
            return None
        stream.lines(lines)
        if not stream.steps:
            return None
        if len(self.streams) > 1:
            self.streams = {(host, rank): stream}
        if stream.steps == self.step or time.monotonic() - self.reported < EVERY:
            return None
        return self.now()

    def now(self) -> events.Progress | None:
        """Return the whole progress; None: no line stated a step."""
        reports = (stream.seen(time.time()) for stream in self.streams.values())
        progress = next((each for each in reports if each), None)
        if progress is not None:
            self.reported, self.step = time.monotonic(), progress.step
        return progress


class Recorder:
    """The only writer of the run folder while a job runs. A context manager."""

    def __init__(
        self,
        run: RunFolder,
        attempt: int,
        watch: Watcher,
        scrub: Callable[[str], str] = scrubbed,
        follow: Follower | None = None,
        stragglers: Stragglers | None = None,
    ) -> None:
        self.follow = follow
        self.stragglers = stragglers
        self.scrub = scrub  # takes secrets out of a line
        self.run = run
        self.attempt = attempt
        self.watch = watch
        self.folded: EventFold = fold(events.read_events(run.events))
        self.board = TensorBoardWriter(run.tensorboard)
        self._events = _open_after_whole_lines(run.events)
        self._logs: dict[tuple[str, int | None], IO[str]] = {}
        self._unwritten: set[tuple[str, int | None]] = set()
        self._written = 0.0  # when logs were written last
        self._begins: dict[Path, int] = {}  # where this attempt's lines begin in a log
        self._beside: str | None = None  # the first host that is this machine
        self._spent = 0.0  # processor seconds of this process that were told
        if self.board.writer is None and NO_BOARD not in self.folded.noted:
            self.say(events.Noted, text=NO_BOARD)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        for close in (self._events.close, *(file.close for file in self._logs.values()), self.board.close):
            with suppress(OSError):  # a full disk: what could not be written was said when it was to be
                close()
        self._unwritten.clear()

    def record(self, event: events.Event) -> None:
        """Append an event with the time of its arrival, then show it."""
        event = event.model_copy(update={"heard": time.time()})
        self._events.write(events.to_line(event) + "\n")
        self._events.flush()
        self.folded.add(event)
        self.board.add(event)
        try:
            self.watch(event)
        except OSError:  # the terminal or the pipe that showed it is gone; the job is not
            self.watch = lambda event: None
        if self.stragglers is not None and (pace := self.stragglers.add(event)) is not None:
            self._paced(pace)

    def say(self, kind: Callable[..., events.Event], **fields: Any) -> None:
        """Record an event of the controller's own: of this time and this attempt."""
        self.record(kind(time=time.time(), attempt=self.attempt, **fields))

    def _paced(self, pace: Pace) -> None:
        self.say(events.Paced, step=self.stragglers.steps if self.stragglers else None, found=pace)

    def event(self, host: str, line: str) -> None:
        """Record a rank's own line, with its host's name."""
        try:
            if "\\" in line or self.scrub(line) != line:  # in its texts: a mask must not cut an escape
                line = json.dumps(scrubbed_data(json.loads(line), self.scrub))
            event = events.parse_event(line)
        except (ValueError, RecursionError) as error:
            self.log(host, None, [f"muster: an event that cannot be read ({error}): {line[:500]}"])
            return
        self.record(event.model_copy(update={"host": host}))

    def hardware(self, host: str, sample: dict[str, Any]) -> None:
        """Record a sample of a host. On this machine, what this process used is added as the run's."""
        machine = self.folded.facts.get(host, {}).get("machine")
        if self._beside is None and machine and machine == machine_id():
            self._beside = host
        if host == self._beside and sample.get("cpu_own") is not None:
            now = time.process_time()
            sample = {**sample, "cpu_own": sample["cpu_own"] + now - self._spent}
            self._spent = now
        self.record(events.Hardware.model_validate({**sample, "host": host, "attempt": self.attempt}))

    def begin_logs(self, hosts: list[str]) -> None:
        """Mark in every host's log where this attempt begins."""
        for host in hosts:
            self.log(host, None, [self._mark])

    def rank_words(self, host: str, rank: int) -> str:
        """Return the end of what a rank printed in this attempt."""
        self.write_logs()
        path = self.run.rank_log(host, rank)
        if path not in self._begins or not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(self._begins[path], file.seek(0, 2) - _TAIL))
            return file.read().decode("utf-8", "replace")

    def lines_of(self, host: str, rank: int | None) -> Iterator[list[str]]:
        """Yield what a rank, or a host's command itself, printed in this attempt, some lines at a time."""
        self.write_logs()
        path = self.run.host_log(host) if rank is None else self.run.rank_log(host, rank)
        if path not in self._begins:
            return
        with path.open("rb") as file:
            first = 1 + sum(line.count(b"\n") for line in _chunks(file, self._begins[path]))
            with suppress(BrokenFile):
                yield from blocks(file, first)

    @property
    def _mark(self) -> str:
        return f"{ATTEMPT}{self.attempt} ==="

    def log(self, host: str, rank: int | None, lines: list[str]) -> None:
        """Record lines that a rank printed, or that the agent sent about a host."""
        file = self._logs.get((host, rank))
        if file is None:
            path = self.run.host_log(host) if rank is None else self.run.rank_log(host, rank)
            file = self._logs[host, rank] = path.open("a", encoding="utf-8", errors="backslashreplace")
            if rank is not None and file.tell():  # what an earlier attempt printed ends here
                file.write(f"{self._mark}\n")
            self._begins[path] = file.tell()
        file.write("".join(f"{self.scrub(line)}\n" for line in lines))
        self._unwritten.add((host, rank))
        self.write_logs(FLUSH)
        if self.follow is not None and (progress := self.follow.lines(host, rank, lines)) is not None:
            self.record(progress.model_copy(update={"attempt": self.attempt}))

    def write_logs(self, after: float = 0.0) -> None:
        """Write buffered logs to the files, `after` so many seconds since the last time: a line from each of
        a thousand hosts would be a thousand writes."""
        if time.monotonic() >= self._written + after:
            self._written = time.monotonic()
            while self._unwritten:
                self._logs[self._unwritten.pop()].flush()

    def last_progress(self) -> None:
        """Record a command's progress, and who held it up, at the job's end."""
        self.write_logs()
        if self.follow is not None and (progress := self.follow.now()) is not None:
            self.record(progress.model_copy(update={"attempt": self.attempt}))
        if self.stragglers is not None and (pace := self.stragglers.pace()) is not None:
            self._paced(pace)


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file."""
    while size > 0 and (chunk := file.read(min(size, _TAIL))):
        size -= len(chunk)
        yield chunk


def _open_after_whole_lines(path: Path) -> IO[str]:
    """Open a file for appending. A last line that was cut short (a controller killed in mid-write) gets its
    end."""
    torn = False
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"
    opened = path.open("a", encoding="utf-8")
    if torn:
        opened.write("\n")
    return opened
