"""The figures of a result, each worded once, for the terminal and the pages of runs and pipelines. A figure
without a value is "not measured", never 0 and never -1. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter

from muster.core.fabric import FabricRun
from muster.core.recipe import recipe_class
from muster.core.result import AttentionExtremes, CommandRun, Flops, Quality, Result
from muster.core.units import counted, format_bytes, format_count, format_flops, format_number, format_seconds
from muster.workloads.fabric.request import COLLECTIVES

UNKNOWN = "not measured"
TERA = 1e12


@dataclass(frozen=True)
class Figure:
    """A figure: its group, its name, its value with a unit, and a note on it."""

    group: str
    name: str
    value: str = UNKNOWN
    unit: str = ""
    note: str = ""

    @property
    def measured(self) -> bool:
        """Whether there is a value."""
        return self.value != UNKNOWN

    @property
    def words(self) -> str:
        """The value with its unit and its note."""
        value = f"{self.value} {self.unit}" if self.unit and self.measured else self.value
        return f"{value} ({self.note})" if self.note else value


def figures(result: Result, planned_steps: int | None = None) -> list[Figure]:
    """List the figures of a result, including those that were not measured.

    `planned_steps`: the optimizer steps of the whole training, where they are known.
    """
    if result.fabric:
        return [*_fabric_run(result, result.fabric), *_collectives(result.fabric), *_links(result.fabric)]
    if result.command:
        return list(_command(result, result.command))
    return [
        *_run(result, planned_steps),
        *_speed(result),
        *_utilization(result.flops),
        *_learning(result),
        *_memory(result),
        *_planned(result),
    ]


def subject(result: Result) -> str:
    """Return what ran on which hosts, in a line."""
    where = f"on {counted(result.world_size, 'rank')} of {counted(len(result.hosts), 'host')}"
    if result.command:
        return f"{shlex.join(result.command.command)}, {where}"
    if result.fabric:
        kinds = sorted({device for own in result.fabric.devices.values() for device in own})
        what = f"collectives, links and matrix products over {result.fabric.backend}"
        return ", ".join((f"{result.workload}: {what}", where, *kinds))
    parameters = f" ({format_count(result.parameters)} parameters)" if result.parameters else ""
    return (
        f"{result.workload}, {result.model}{parameters}, {result.engine} in {result.precision}, {where}, "
        f"global batch {result.global_batch:,}"
    )


def grouped(listed: list[Figure], *, measured: bool = False) -> list[tuple[str, list[Figure]]]:
    """Return the figures by group; with `measured`, only those with a value."""
    kept = [each for each in listed if each.measured or not measured]
    return [(group, list(own)) for group, own in groupby(kept, attrgetter("group"))]


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits and thousands separators."""
    return UNKNOWN if value is None or not math.isfinite(value) else format_number(value, digits)


def percent(share: float | None) -> str:
    """Return a share as per cent."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.1f}"


def seconds(value: float | None) -> str:
    """Return a duration in words."""
    return UNKNOWN if value is None or not math.isfinite(value) else format_seconds(value)


def size(value: float | None) -> str:
    """Return bytes in words, or "not measured"."""
    return UNKNOWN if value is None or not math.isfinite(value) else format_bytes(value)


def loss(value: float | None) -> str:
    """Return a loss with four decimal places; a smaller one with four significant digits."""
    if value is None or not math.isfinite(value) or 0 < abs(value) < 0.001:
        return number(value)
    return f"{value:.4f}"


def moment(time: float | None) -> str:
    """Return a Unix time in UTC: the same words wherever the report is made."""
    try:
        return datetime.fromtimestamp(time or math.nan, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def gbit(rate: float) -> str:
    """Return bytes per second in the unit in which links are stated."""
    return f"{number(rate * 8 / 1e9, 3)} Gbit/s"


def tflops(rate: float) -> str:
    """Return FLOP/s in units of 10^12."""
    return f"{number(rate / TERA, 3)} TFLOP/s"


def micro(duration: float) -> str:
    """Return a latency in microseconds, or a longer duration in milliseconds."""
    if duration < 1e-3:
        return f"{number(1e6 * duration, 3)} µs"
    return f"{number(1e3 * duration, 3)} ms"


def interval(right: float, questions: int) -> str:
    """Return Wilson's 95 % interval of a share of so many questions."""
    if questions < 1 or not 0 <= right <= 1:
        return ""
    z = 1.96
    middle = (right + z * z / (2 * questions)) / (1 + z * z / questions)
    half = (
        z * math.sqrt(right * (1 - right) / questions + z * z / (4 * questions**2)) / (1 + z * z / questions)
    )
    return f"95 % interval {100 * max(0.0, middle - half):.1f}–{100 * min(1.0, middle + half):.1f} %"


# --- a training -----------------------------------------------------------------------------------------


def _run(result: Result, planned_steps: int | None) -> Iterator[Figure]:
    group, skipped = "Progress", result.skipped_steps
    done = f"{skipped:,} skipped by the loss scaler" if skipped else "none skipped"
    if planned_steps not in (None, result.steps):
        done = f"of {planned_steps:,} planned; {done}"
    epochs = f"{number(result.epochs, 3)} epochs" if result.epochs is not None else ""
    yield Figure(group, "Steps", f"{result.steps:,}", note=done if result.steps else "")
    yield Figure(group, "Samples", f"{result.samples:,}", note=epochs)
    yield from _duration(result)
    yield Figure(
        group, "Attempt", str(result.attempt), note="the first" if result.attempt == 1 else "resumed"
    )


def _duration(result: Result) -> Iterator[Figure]:
    """Yield the total time and those of its parts that were measured."""
    took = result.seconds
    parts = (("training", took.training), ("evaluation", took.evaluation), ("saving", took.saving))
    note = ", ".join(f"{name} {format_seconds(value)}" for name, value in parts if value)
    begin = f"from {moment(result.started)}"
    yield Figure("Progress", "Duration", seconds(took.total), note=f"{begin}; {note}" if note else begin)


def _speed(result: Result) -> Iterator[Figure]:
    group, speed = "Speed", result.throughput
    if speed is None:
        for name in ("Throughput", "Real tokens", "Step time, median", "Step time, 95th percentile"):
            yield Figure(group, name)
        return
    windows = counted(speed.windows, "window")
    spread = f"spread {UNKNOWN}: {windows}"
    if speed.variation is not None and math.isfinite(speed.variation):
        spread = f"± {100 * speed.variation:.1f} % over {windows}"
    yield Figure(group, "Throughput", number(speed.samples_per_second), "samples/s", spread)
    tokens, padded = speed.tokens_per_second, speed.padded_tokens_per_second
    padding = "no padding" if padded > 0 else ""
    if padded > tokens:
        padding = f"{number(padded)} with padding; {100 * (1 - tokens / padded):.0f} % is padding"
    # Of images, tokens are ViT's patches; of other models of images none are counted.
    yield Figure(group, "Real tokens", number(tokens) if padded > 0 else UNKNOWN, "tokens/s", padding)
    measured = f"over {counted(speed.measured_steps, 'measured step')}"
    if speed.data_share is not None:
        measured += f"; {100 * speed.data_share:.1f} % of it getting batches"
    yield Figure(group, "Step time, median", seconds(speed.step_seconds_median), note=measured)
    yield Figure(
        group, "Step time, 95th percentile", seconds(speed.step_seconds_p95), note="of the slowest rank"
    )
    for each in result.phases:
        note = f"if there were this phase alone; {percent(each.share)} % of a step"
        yield Figure(group, _capital(each.name), number(each.samples_per_second), "samples/s", note)


def _utilization(flops: Flops | None) -> Iterator[Figure]:
    """Yield model FLOP/s per device and its share of the peak; the hardware's where it computes more."""
    group, name = "Speed", "Model FLOPs, per device"
    if flops is None:
        yield from (Figure(group, name), Figure(group, "MFU"))
        return
    value, _, unit = format_flops(flops.model_per_second).partition(" ")
    yield Figure(group, name, value, unit)
    if flops.mfu is None or flops.peak is None:
        yield Figure(group, "MFU", "unknown", note="the device's peak is unknown")
    else:
        peak = f"of {format_flops(flops.peak)}: {flops.peak_source}"
        yield Figure(group, "MFU", percent(flops.mfu), "%", peak)
    if flops.hardware_per_second > flops.model_per_second:
        done = f"{format_flops(flops.hardware_per_second)} including recomputation by gradient checkpointing"
        yield Figure(group, "HFU", percent(flops.hfu), "%", done)


def _learning(result: Result) -> Iterator[Figure]:
    group = "Learning"
    yield _training_loss("Training loss, last window", result)
    yield Figure(group, "Held-out loss, last", loss(result.evaluation_loss))
    quality = result.quality
    kind = recipe_class(result.workload)
    if kind.metric == "perplexity" or (quality is None and result.perplexity is not None):
        yield Figure(group, "Held-out perplexity", number(result.perplexity), note="exp of the held-out loss")
    elif quality is not None or not result.figures:
        yield from _quality(quality, quality.metric if quality else kind.metric)
    for each in result.figures:
        held = ", held out" if each.held_out is not None else ""
        value = number(each.final if each.held_out is None else each.held_out)
        note = f"{each.course} in training" if each.course else ""
        yield Figure(group, _capital(each.called) + held, value, note=note)
    if result.attention:
        yield from _attention(result.attention)


def _training_loss(name: str, result: Result) -> Figure:
    """Return the last loss, with the first in the note where there are two."""
    once = result.loss_first in (None, result.loss_final)  # a single window
    note = "" if once else f"{loss(result.loss_first)} at the start"
    return Figure("Learning", name, loss(result.loss_final), note=note)


def _quality(quality: Quality | None, metric: str) -> Iterator[Figure]:
    group, name, rows = "Learning", _capital(metric), "Same rows from the database"
    if quality is None:
        yield Figure(group, name)
    else:
        asked = counted(quality.questions, "question" if metric == "exact match" else "sample")
        yield _share(group, name, quality.exact_match, quality.questions, asked)
    if quality is not None and quality.execution_match is not None:
        scored = quality.scored or quality.questions
        yield _share(group, rows, quality.execution_match, scored, counted(scored, "question"))
    elif metric == "exact match":
        yield Figure(group, rows)


def _share(group: str, name: str, share: float, questions: int, asked: str) -> Figure:
    note = f"{round(share * questions):,} of {asked}; {interval(share, questions)}"
    return Figure(group, name, percent(share), "%", note)


def _attention(attention: AttentionExtremes) -> Iterator[Figure]:
    """Yield the extremes of the whole run, and where they were."""
    for name, each in (("largest", attention.largest), ("smallest", attention.smallest)):
        if each:
            note = f"{each.layer}, step {each.step}"
            yield Figure("Learning", f"Attention logit, {name}", f"{each.logit:.4g}", note=note)
    if not attention.largest and not attention.smallest:
        yield Figure("Learning", "Attention logits", "none was finite")


def _memory(result: Result) -> Iterator[Figure]:
    group, memory = "Memory (largest of all ranks)", result.memory
    hosts = [each.memory_used_peak for each in result.hosts if each.memory_used_peak is not None]
    yield Figure(group, "GPU, allocator's peak", size(memory.allocator_peak))
    yield Figure(group, "GPU, in use by all programs", size(memory.device_peak))
    yield Figure(group, "Process of a rank, peak", size(memory.resident_peak))
    yield Figure(group, "Host, in use by all programs", size(max(hosts, default=None)))


def _planned(result: Result) -> Iterator[Figure]:
    """Yield the plan's predictions, and how far the measured figures are from them."""
    group, plan = "Planned before the run", result.planned
    if plan is None:
        return
    note = ("" if plan.traced else "by closed form; ") + _beside(result.memory_beside_plan)
    yield Figure(group, "Memory of a rank", size(plan.memory), note=note)
    if plan.samples_per_second is not None:
        speed = number(plan.samples_per_second)
        yield Figure(group, "Throughput, planned", speed, "samples/s", _beside(result.speed_beside_plan))


def _beside(difference: float | None) -> str:
    return UNKNOWN if difference is None else f"measured {100 * difference:+.1f} %"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


# --- a command of the user's ------------------------------------------------------------------------------


def _command(result: Result, run: CommandRun) -> Iterator[Figure]:
    """Yield what a user's command prints about itself, and what is seen from outside."""
    group = "Progress"
    yield Figure(group, "Started", "by torchrun" if run.start == "torchrun" else f"once per {run.start}")
    yield from _duration(result)
    if run.told_by:
        note = f"as {run.told_by} states"
        if run.last_step is not None:
            note += f"; its numbers began anew, and the last is {run.last_step:,}"
        yield Figure(group, "Steps", f"{result.steps:,}", note=note)
    else:
        yield Figure(group, "Steps")
    if run.code:
        sent = f", {format_bytes(run.code.sent)} sent" if run.code.sent else ""
        files = f"{counted(run.code.files, 'file')}, {format_bytes(run.code.bytes)}{sent}"
        yield Figure(group, "Code", run.code.digest[:16], note=f"{run.code.folder}: {files}")
    spread = f"± {100 * run.variation:.1f} %" if run.variation is not None else ""
    yield Figure("Speed", "Throughput", number(run.rate), f"{run.unit}/s" if run.rate else "", spread)
    yield Figure("Speed", "Step time", seconds(run.step_seconds))
    if run.not_finite:
        yield Figure("Learning", "Loss", "not finite", note=run.not_finite.partition(", ")[2])
    else:
        yield _training_loss("Loss", result)


# --- the fabric -------------------------------------------------------------------------------------------


def _fabric_run(result: Result, fabric: FabricRun) -> Iterator[Figure]:
    group = "Progress"
    where = f"{counted(len(result.hosts), 'host')}, {fabric.backend} on {fabric.device}"
    yield Figure(group, "Ranks", f"{result.world_size:,}", note=where)
    yield from _duration(result)
    wrong = f"{sum(each.wrong for each in fabric.values):,} wrong"
    yield Figure(group, "Values compared", f"{sum(each.elements for each in fabric.values):,}", note=wrong)
    yield Figure(group, "Attempt", str(result.attempt))


def _collectives(fabric: FabricRun) -> Iterator[Figure]:
    group = "Collectives"
    for name in dict.fromkeys((*COLLECTIVES, *(each.operation for each in fabric.sweeps))):
        best = max(fabric.of(name), key=lambda each: each.busbw, default=None)
        if best is None:
            yield Figure(group, name)
        else:
            note = f"bus bandwidth, highest, at {format_bytes(nominal(best.bytes))}"
            yield Figure(group, name, gbit(best.busbw), note=note)
    for each in fabric.latencies:
        mean = f"mean {micro(each.mean)}, " if each.mean is not None else ""
        note = f"median of {each.bytes} bytes; {mean}best {micro(each.best)}"
        yield Figure(group, f"{_capital(each.operation)} latency", micro(each.median), note=note)
    if not fabric.latencies:
        yield Figure(group, "All-reduce latency")


def nominal(size: int) -> int:
    """Return the size that was asked for: all-gather and reduce-scatter round it down to whole elements of
    each rank."""
    power = 1
    while power < size:
        power *= 2
    return power if power - size < size / 16 else size


def _links(fabric: FabricRun) -> Iterator[Figure]:
    group = "Links and matrix products"
    if not any(each.what == "pair" for each in fabric.slowest):
        yield Figure(group, "Slowest pair")
    for slow in fabric.slowest:
        rate = tflops if slow.what == "matmul" else gbit
        name = {
            "pair": "Slowest pair",
            "links": "Slowest host's links",
            "matmul": f"Slowest device, {slow.precision}",
        }[slow.what]
        of_median = f"{number(slow.ratio, 3)} of the median {rate(slow.median)}"
        yield Figure(group, name, f"{slow.name}: {rate(slow.value)}, {of_median}")
    for precision in dict.fromkeys(each.precision for each in fabric.matmul):
        rates = [each.sustained for each in fabric.matmul if each.precision == precision]
        peaks = {each.peak for each in fabric.matmul if each.precision == precision and each.peak}
        share = f"; {number(100 * min(rates) / min(peaks), 3)} % of the stated peak" if peaks else ""
        value = f"{tflops(min(rates))} to {tflops(max(rates))}"
        yield Figure(group, f"Matrix product, {precision}", value, note=f"of a device, sustained{share}")
    for product in fabric.products:
        note = f"n = {product.n:,}; {micro(product.compute)} computing, {micro(product.communication)}"
        yield Figure(group, "Product over all ranks", tflops(product.flops), note=f"{note} communication")
    if not fabric.products:
        yield Figure(group, "Product over all ranks")
    for each in fabric.beside:
        own, others = (f"{number(100 * share, 3)} %" for share in (each.computing, each.exchanging))
        words = f"{own} of its speed alone, the exchange {others}; synchronising costs {micro(each.meeting)}"
        yield Figure(group, "Computing during an exchange", words)
