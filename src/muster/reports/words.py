"""Figures and outcomes in words. An unknown figure is "not measured", never 0 and never -1. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from muster.core.recipe import recipe_class
from muster.core.result import CommandRun, Flops, Result
from muster.core.state import State
from muster.core.units import counted, format_bytes, format_count, format_flops, format_number, format_seconds
from muster.reports.rundata import RunData

UNKNOWN = "not measured"


@dataclass(frozen=True)
class KeyFigure:
    """A key figure: its name, its value with a unit, and what belongs to it."""

    name: str
    value: str = UNKNOWN
    unit: str = ""
    note: str = ""

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value != UNKNOWN


@dataclass(frozen=True)
class Headline:
    """The outcome: a mark, a tone (good, bad, calm), a sentence, and facts below it."""

    mark: str
    tone: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()


def number(value: float | None, digits: int = 4) -> str:
    """A number to `digits` significant digits, with thousands separated."""
    return UNKNOWN if value is None or not math.isfinite(value) else format_number(value, digits)


def percent(share: float | None) -> str:
    """A share as per cent."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.1f}"


def seconds(value: float | None) -> str:
    """A duration."""
    return UNKNOWN if value is None or not math.isfinite(value) else format_seconds(value)


def size(value: float | None) -> str:
    """Bytes, or not measured."""
    return UNKNOWN if value is None or not math.isfinite(value) else format_bytes(value)


def moment(time: float | None) -> str:
    """A Unix time in UTC: the same words wherever the report is made."""
    try:
        return datetime.fromtimestamp(time or math.nan, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 -> '0–2, 5'."""
    parts: list[list[int]] = []
    for each in sorted(set(numbers)):
        if parts and each == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], each]
        else:
            parts.append([each])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"


def interval(right: float, questions: int) -> str:
    """Wilson's 95 % interval of a share that was counted in so many questions."""
    if questions < 1 or not 0 <= right <= 1:
        return ""
    z = 1.96
    middle = (right + z * z / (2 * questions)) / (1 + z * z / questions)
    half = (
        z * math.sqrt(right * (1 - right) / questions + z * z / (4 * questions**2)) / (1 + z * z / questions)
    )
    return f"95 % interval {100 * max(0.0, middle - half):.1f}–{100 * min(1.0, middle + half):.1f} %"


def headline(data: RunData) -> Headline:
    """How the run ended, in a sentence; for a failure what, where, on which host, and the hint."""
    figures = data.figures
    failure = figures.failure if figures else None
    steps = (
        counted(figures.steps, "optimizer step")
        if figures and figures.steps
        else "no finished optimizer step"
    )
    if figures and figures.fabric:
        steps = counted(len(set(figures.fabric.seconds) - {"rendezvous"}), "measurement")
    state = data.state
    if state.good and figures and figures.caveats:
        return Headline(state.mark, "calm", f"The run {figures.outcome}")
    if state.good and figures:
        took = format_seconds(figures.seconds.total)
        return Headline(state.mark, state.tone, f"The run {state.words}: {steps} in {took}")
    title = f"The run {state.words} after {steps}"
    if state is State.RUNNING:
        return Headline(state.mark, state.tone, f"The run {state.words}: {steps} so far")
    if state is State.ELSEWHERE:
        what = "its controller is on another machine: from here it is unknown whether the run still goes on"
        return Headline(state.mark, state.tone, title, (("why", what),))
    if state is State.INTERRUPTED:
        facts = (("what", "there is no result, and its controller no longer runs"),)
        hint = (("hint", f"`muster resume {data.id}` continues from the last checkpoint, if there is one"),)
        return Headline(state.mark, state.tone, title, facts + hint)
    if failure is None:
        return Headline(state.mark, state.tone, title)
    told: list[tuple[str, str | None]] = [("where", failure.where), ("host", failure.host)]
    if state is State.FAILED:
        title = f"Failed: {shortened(failure.what)}"
        told.append(("after", steps))
    if failure.what not in title:
        told.insert(0, ("what", failure.what))
    at = failure.evidence.place if failure.evidence else None
    told += [("at", at), ("hint", failure.hint), ("known as", failure.id)]
    return Headline(state.mark, state.tone, title, tuple((name, value) for name, value in told if value))


def shortened(text: str, most: int = 110) -> str:
    """The first line of a text; of a long one its first part, or its first words."""
    line = " ".join((text.strip().splitlines() or [""])[0].split())
    if len(line) <= most:
        return line
    head = line[:most]
    for end in (". ", ": ", "; ", ", ", " "):
        cut = head.rfind(end)
        if cut > most // 4:
            return head[:cut] + ("" if end in (". ", ": ") else " …")
    return head + "…"


def unknown(groups: Sequence[tuple[str, Sequence[KeyFigure]]]) -> list[str]:
    """Names of the figures that were not measured, with their groups."""
    found = []
    for name, figures in groups:
        names = [figure.name for figure in figures if not figure.known]
        found += [f"{name}: {', '.join(names)}"] if names else []
    return found


def subject(data: RunData) -> str:
    """What ran on what, in a line."""
    figures = data.figures
    if figures is None:
        return "Nothing is known about this run yet."
    hosts = counted(len(figures.hosts), "host")
    if figures.command:
        line = shlex.join(figures.command.command)
        return f"{line}, on {counted(figures.world_size, 'rank')} of {hosts}"
    parameters = f" ({format_count(figures.parameters)} parameters)" if figures.parameters else ""
    return (
        f"{figures.workload}, {figures.model}{parameters}, {figures.engine} in {figures.precision}, "
        f"on {counted(figures.world_size, 'rank')} of {hosts}, global batch {figures.global_batch:,}"
    )


def _of_command(figures: Result, run: CommandRun) -> list[tuple[str, list[KeyFigure]]]:
    """The figures of a command of the user's, as it tells them."""
    told = f"as {run.told_by} tells" if run.told_by else ""
    loss = f"{figures.loss_final:.4f}" if figures.loss_final is not None else UNKNOWN
    code = [KeyFigure("Code", run.code.digest[:16], note=run.code.folder)] if run.code else []
    return [
        (
            "Run",
            [
                KeyFigure("Duration", seconds(figures.seconds.total), note=f"from {moment(figures.started)}"),
                KeyFigure("Steps", f"{figures.steps:,}", note=told) if run.told_by else KeyFigure("Steps"),
                *code,
            ],
        ),
        (
            "Speed",
            [
                KeyFigure("Throughput", number(run.rate), f"{run.unit}/s" if run.rate else ""),
                KeyFigure("Step", seconds(run.step_seconds)),
                KeyFigure("Loss", loss),
            ],
        ),
    ]


def key_figures(data: RunData) -> list[tuple[str, list[KeyFigure]]]:
    """The figures in groups: the run, its speed, what it learned, what it needed."""
    figures = data.figures
    if figures is None:
        return []
    if figures.command:
        return _of_command(figures, figures.command)
    return [
        ("Run", _run(data, figures)),
        ("Speed", _speed(figures)),
        ("Learning", _learning(data, figures)),
        ("Memory (largest of all ranks)", _memory(figures)),
        *([("Planned before the run", _planned(figures))] if figures.planned else []),
    ]


def _run(data: RunData, figures: Result) -> list[KeyFigure]:
    planned = data.folder.started[0].total_steps if 0 in data.folder.started else None
    done = (
        "none skipped"
        if not figures.skipped_steps
        else f"{figures.skipped_steps:,} skipped by the loss scaler"
    )
    if planned is not None and planned != figures.steps:
        done = f"of {planned:,} planned; {done}"
    epochs = f"{number(figures.epochs, 3)} epochs" if figures.epochs is not None else ""
    return [
        KeyFigure("Steps", f"{figures.steps:,}", note=done if figures.steps else ""),
        KeyFigure("Samples", f"{figures.samples:,}", note=epochs),
        KeyFigure("Duration", seconds(figures.seconds.total), note=f"from {moment(figures.started)}"),
        KeyFigure("Attempt", str(figures.attempt), note="the first" if figures.attempt == 1 else "resumed"),
    ]


def _speed(figures: Result) -> list[KeyFigure]:
    found = figures.throughput
    names = ("Throughput", "Real tokens", "Step time, median", "Step time, 95th percentile")
    if found is None:
        return [KeyFigure(name) for name in names] + _utilization(figures.flops)
    windows = counted(found.windows, "window")
    spread = f"spread {UNKNOWN}: {windows}"
    if found.variation is not None and math.isfinite(found.variation):
        spread = f"± {100 * found.variation:.1f} % over {windows}"
    padded = found.padded_tokens_per_second
    if padded > found.tokens_per_second:
        share = f"{100 * (1 - found.tokens_per_second / padded):.0f} % is padding"
        padding = f"{number(padded)} with padding; {share}"
    else:
        padding = "no padding" if padded > 0 else ""
    loading = found.data_share
    getting = f"; {100 * loading:.1f} % of it getting batches" if loading is not None else ""
    tokens = number(found.tokens_per_second) if padded > 0 else UNKNOWN  # images of which no tokens are made
    return [
        KeyFigure(names[0], number(found.samples_per_second), "samples/s", spread),
        KeyFigure(names[1], tokens, "tokens/s", padding),
        KeyFigure(
            names[2],
            seconds(found.step_seconds_median),
            note=f"over {counted(found.measured_steps, 'measured step')}{getting}",
        ),
        KeyFigure(names[3], seconds(found.step_seconds_p95), note="of the slowest rank"),
        *(
            KeyFigure(
                each.name[:1].upper() + each.name[1:],
                number(each.samples_per_second),
                "samples/s",
                f"if there were this phase alone; {percent(each.share)} % of a step",
            )
            for each in figures.phases
        ),
        *_utilization(figures.flops),
    ]


def _utilization(flops: Flops | None) -> list[KeyFigure]:
    """Model FLOP/s per device and its share of the peak; the hardware's where it computes more."""
    names = ("Model FLOPs, per device", "MFU")
    if flops is None:
        return [KeyFigure(name) for name in names]
    value, _, unit = format_flops(flops.model_per_second).partition(" ")
    if flops.mfu is None or flops.peak is None:
        return [KeyFigure(names[0], value, unit), KeyFigure(names[1], note="the device's peak is unknown")]
    peak = f"of {format_flops(flops.peak)}: {flops.peak_source}"
    found = [KeyFigure(names[0], value, unit), KeyFigure(names[1], percent(flops.mfu), "%", peak)]
    if flops.hardware_per_second > flops.model_per_second:
        done = f"{format_flops(flops.hardware_per_second)} including recomputation by gradient checkpointing"
        found.append(KeyFigure("HFU", percent(flops.hfu), "%", done))
    return found


def _learning(data: RunData, figures: Result) -> list[KeyFigure]:
    once = figures.loss_first in (None, figures.loss_final)  # a single window
    first = "" if once else f"{number(figures.loss_first)} at the start"
    held = data.folder.evaluated[-1].step if data.folder.evaluated else None
    quality = figures.quality
    kind = recipe_class(figures.workload)
    metric = quality.metric if quality else kind.metric
    exact, same = KeyFigure(metric[:1].upper() + metric[1:]), KeyFigure("Same rows from the database")
    if quality is not None:
        asked = f"of {counted(quality.questions, 'question' if metric == 'exact match' else 'sample')}"
        right = round(quality.exact_match * quality.questions)
        exact = KeyFigure(
            exact.name,
            percent(quality.exact_match),
            "%",
            f"{right:,} {asked}; {interval(quality.exact_match, quality.questions)}",
        )
        if quality.execution_match is not None:
            scored = quality.scored or quality.questions
            rows = round(quality.execution_match * scored)
            told = f"{rows:,} of {counted(scored, 'question')}; {interval(quality.execution_match, scored)}"
            same = KeyFigure(same.name, percent(quality.execution_match), "%", told)
    learned = [exact, same] if metric == "exact match" else [exact]
    if kind.metric == "perplexity" or (quality is None and figures.perplexity is not None):
        learned = [
            KeyFigure("Held-out perplexity", number(figures.perplexity), note="exp of the held-out loss")
        ]
    if figures.figures and quality is None:
        learned = []
    learned += [
        KeyFigure(
            each.called[:1].upper() + each.called[1:] + (", held out" if each.held_out is not None else ""),
            number(each.final if each.held_out is None else each.held_out),
            note=f"{each.course} in training" if each.course else "",
        )
        for each in figures.figures
    ]
    return [
        KeyFigure("Training loss, last", number(figures.loss_final), note=first),
        KeyFigure(
            "Held-out loss, last",
            number(figures.evaluation_loss),
            note=f"at step {held:,}" if held is not None else "",
        ),
        *learned,
    ]


def _planned(figures: Result) -> list[KeyFigure]:
    """What the plan had said, and how far from it the measured figure is."""
    plan = figures.planned
    assert plan is not None
    how = "" if plan.traced else "by closed form; "
    shown = [KeyFigure("Memory of a rank", size(plan.memory), note=how + _apart(figures.memory_beside_plan))]
    if plan.samples_per_second is not None:
        note = _apart(figures.speed_beside_plan)
        shown.append(KeyFigure("Throughput", number(plan.samples_per_second), "samples/s", note))
    return shown


def _apart(beside: float | None) -> str:
    return "not measured" if beside is None else f"measured {100 * beside:+.1f} %"


def _memory(figures: Result) -> list[KeyFigure]:
    memory = figures.memory
    hosts = [each.memory_used_peak for each in figures.hosts if each.memory_used_peak is not None]
    return [
        KeyFigure("GPU, allocator's peak", size(memory.allocator_peak)),
        KeyFigure("GPU, in use by all programs", size(memory.device_peak)),
        KeyFigure("Process of a rank, peak", size(memory.resident_peak)),
        KeyFigure("Host, in use by all programs", size(max(hosts, default=None))),
    ]
