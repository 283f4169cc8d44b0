"""MLPerf's logs: `:::MLLOG {"time_ms": 17158, "key": "block_stop", "metadata": {"samples_count": 1536}}`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping as Dict

from muster.readers._frame import Frame
from muster.readers.base import APART, LogWindow, Reading, Series, number

FORMAT = "MLPerf"
HINTS = (":::MLLOG",)

_OPENS = ("block_start", "epoch_start", "eval_stop")  # from here on it trains, and nothing else
_CLOSES = ("block_stop", "epoch_stop", "eval_start")
_WORK = ("submission_benchmark", "global_batch_size", "gradient_accumulation_steps")
_SAMPLES_AS_EPOCHS = ("bert",)  # benchmarks whose `epoch_num` counts samples
_MOST = 10_000  # figures that are kept
COVERED = 0.1  # of a training's time is in its windows at least, or these are something else
UNITLESS = "its throughput may be of samples, tokens or anything: no times of its own tell"
GUESSED = "its samples are `train_samples` an epoch, whatever that counts: no second figure confirms them"


class Reader:
    """A window from each start of training to the next evaluation, or the end of the block or epoch.

    Its samples are those of `samples_count`, or of epochs of `train_samples`.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.closed = False
        self.series = Series()
        self.told: dict[str, object] = {}  # global_batch_size, train_samples, submission_benchmark, ...
        self.opened: tuple[float, str, Dict[str, object]] | None = None  # seconds, key, metadata
        self.done = 0.0  # samples
        self.throughputs: list[float] = []
        self.spent = 0.0  # seconds of the windows, and of evaluations
        self.evaluated = 0.0
        self.evaluating: float | None = None
        self.opened_at = self.closed_at = 0.0  # the first window begins, the last one ends
        self.guessed = False  # samples are those that an epoch should have
        self.begun: float | None = None  # seconds since 1970; and the last event
        self.last = 0.0
        self.ended = False

    def line(self, text: str) -> None:
        """Read a line with one of the HINTS."""
        try:
            event = json.loads(text.partition(":::MLLOG")[2])
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict) or (time := number(event.get("time_ms"))) is None:
            return
        key, value, about = event.get("key"), event.get("value"), event.get("metadata")
        about = about if isinstance(about, dict) else {}
        if key == "run_start":
            self.begun, self.ended = self.begun or time / 1000, False
        self.last = time / 1000
        if key == "run_stop":
            self.ended = about.get("status") != "aborted"
            if self.ended:
                self.frame.finish()
        if key == "tracked_stats" and isinstance(value, dict):
            if (rate := number(value.get("throughput"))) and len(self.throughputs) < _MOST:
                self.throughputs.append(rate)
            return
        if key == "eval_start":
            self.evaluating = time / 1000
        elif key == "eval_stop" and self.evaluating is not None:
            self.evaluated += time / 1000 - self.evaluating
            self.evaluating = None
        if key in _OPENS:
            self.opened = time / 1000, str(key), about
        elif key in _CLOSES:
            self._close(time / 1000, about)
        elif isinstance(key, str) and (number(value) is not None or isinstance(value, str)):
            self.told[key] = value

    def readings(self) -> list[Reading]:
        """Return one reading, where the run began."""
        if not self.begun and not self.series.total:
            return []
        batch = self._batch()
        series, own = self.series if self.series.total else None, self._own()
        notes: tuple[str, ...] = ()
        whole = self.closed_at - self.opened_at - self.evaluated
        if series and self.spent < COVERED * whole:
            note = f"its blocks and epochs have {self.spent:.3g} s of {whole:.4g}: not what it trained"
            series, notes = None, (note,)
        elif series and self.guessed and not own:
            notes = (GUESSED,)
        elif own and not series:
            notes = (UNITLESS,)
        return [
            Reading(
                format=FORMAT,
                series=series,
                sure=False,
                batch=batch,
                reported=self.throughputs[-1] / self._counted() if own and series else None,
                own=own,
                steps=round(self.done / batch) if batch and self.done else None,
                span=(self.begun, self.last) if self.begun else None,
                ended=self.ended,
                loss=number(self.told.get("train_loss")),
                workload=str(self.told.get("submission_benchmark", "")),
                recipe=" ".join(str(self.told.get(name, "")) for name in _WORK) if batch else "",
                complete=True,
                notes=notes,
            )
        ]

    def _own(self) -> float | None:
        """Return the tool's own samples/s; of tokens, where it gives the tokens of a sequence and that fits
        better. Where it is these windows' samples over the whole run, evaluations and all, it confirms them.
        """
        if not self.throughputs:
            return None
        own, figures = statistics.median(self.throughputs), self.series.measured()
        run = self.last - self.begun if self.begun and self.ended else 0.0
        if figures and run > 0 and abs(own * run / self.done - 1) < APART:
            return figures.rate
        return own / self._counted()

    def _counted(self) -> float:
        """Return what the tool's throughput counts of a sample: its tokens, where that fits better, or 1."""
        own, figures = statistics.median(self.throughputs), self.series.measured()
        length = number(self.told.get("max_sequence_length"))
        tokens = figures and length and abs(own / length / figures.rate - 1) < APART
        return length if tokens and length else 1.0

    def _batch(self) -> float | None:
        return number(self.told.get("global_batch_size")) or None

    def _close(self, time: float, about: Dict[str, object]) -> None:
        if self.opened is None:
            return
        (started, key, before), self.opened = self.opened, None
        samples = self._samples(key, before, about)
        if samples is None or samples <= 0:
            return
        steps = max(1, round(samples / (self._batch() or samples)))
        self.done += samples
        self.spent += time - started
        self.opened_at, self.closed_at = self.opened_at or started, time
        self.series.add(LogWindow(steps, 0, samples, time - started))
        self.frame.progress(round(self.done))

    def _samples(self, key: str, before: Dict[str, object], now: Dict[str, object]) -> float | None:
        """Return the samples from one event to the other."""
        epochs = self.told.get("submission_benchmark") in _SAMPLES_AS_EPOCHS
        named = "epoch_num" if epochs else "samples_count"
        first, last = number(before.get(named)), number(now.get(named))
        if first is not None and last is not None:
            return last - first
        first, last = number(before.get("epoch_num")), number(now.get("epoch_num"))
        whole = number(self.told.get("train_samples"))
        if first is None or last is None or whole is None:
            return None
        self.guessed = True
        return whole * (last - first or (key == "epoch_start"))  # whose end has the same number
