"""Events -> Result. Pure: the same events give the same result, now or later."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.core.job import Job
from muster.core.recipe import Recipe, recipe_from
from muster.core.result import Failure, HostReport, Memory, Quality, Result, Seconds, Status, Throughput
from muster.store import events

FEW_STEPS = 20  # measured steps below which a throughput carries a note


@dataclass
class Folder:
    """Collects events; `result` says what they come to. Later attempts replace the steps that they repeat."""

    windows: dict[int, dict[int, events.Window]] = field(default_factory=lambda: defaultdict(dict))
    logs: dict[int, events.Log] = field(default_factory=dict)
    started: dict[int, events.Started] = field(default_factory=dict)
    done: dict[int, events.Done] = field(default_factory=dict)
    answered: dict[int, events.Answered] = field(default_factory=dict)
    failed: list[events.Failed] = field(default_factory=list)  # in the order of arrival
    noted: list[str] = field(default_factory=list)
    evaluated: list[events.Evaluated] = field(default_factory=list)
    hardware: dict[str, list[events.Hardware]] = field(default_factory=lambda: defaultdict(list))
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: events.DataRead | None = None
    model_path: str | None = None
    began: float | None = None
    attempt_began: float | None = None
    last_heard: float = 0.0
    earlier_seconds: float = 0.0  # of attempts before the last one
    stepping: dict[int, float] = field(default_factory=dict)  # rank -> when its first step began
    attempt: int = 1

    def add(self, event: events.Event) -> None:
        """Take one event."""
        if not (isinstance(event, events.JobState) and event.state == "begin"):
            self.last_heard = max(self.last_heard, event.time)
        rank = event.rank if event.rank is not None else -1
        if isinstance(event, events.Window):
            self.windows[event.step][rank] = event
        elif isinstance(event, events.Log):
            self.logs[event.step] = event
        elif isinstance(event, events.Started):
            self.started[rank] = event
        elif isinstance(event, events.Done):
            self.done[rank] = event
        elif isinstance(event, events.Answered):
            self.answered[rank] = event
        elif isinstance(event, events.Phase) and event.name == "steps":
            self.stepping[rank] = event.time
        elif isinstance(event, events.Noted):
            self.noted.append(event.text)
        elif isinstance(event, events.Failed):
            self.failed.append(event)
        elif isinstance(event, events.Evaluated):
            self.evaluated.append(event)
        elif isinstance(event, events.Hardware):
            self.hardware[event.host or ""].append(event)
        elif isinstance(event, events.HostFacts):
            self.facts[event.host or ""] = event.facts
        elif isinstance(event, events.DataRead):
            self.data = event
        elif isinstance(event, events.Saved) and event.step is None:
            self.model_path = event.path
        elif isinstance(event, events.JobState) and event.state == "begin":
            self._begin(event)

    def _begin(self, event: events.JobState) -> None:
        """An attempt begins: forget what it will do again, and how the last one ended."""
        self.began = self.began or event.time
        self.attempt = event.attempt
        if self.attempt_began is not None:
            self.earlier_seconds += max(0.0, self.last_heard - self.attempt_began)
        self.attempt_began = event.time
        self.stepping.clear()
        resume = event.detail.get("resume_step") or 0
        for table in (self.windows, self.logs):
            for step in [step for step in table if step > resume]:
                del table[step]
        self.evaluated = [each for each in self.evaluated if each.step <= resume]
        self.failed.clear()
        self.noted.clear()
        self.done.clear()
        self.answered.clear()

    def ordered_windows(self) -> list[list[events.Window]]:
        """Windows in the order of steps, each with what every rank said of it."""
        return [list(self.windows[step].values()) for step in sorted(self.windows)]


def fold(stream: Iterable[events.Event]) -> Folder:
    """All events of a run."""
    folder = Folder()
    for event in stream:
        folder.add(event)
    return folder


def make_result(folder: Folder, job: Job, *, status: Status, failure: Failure | None, ended: float) -> Result:
    """What a run came to, from its events."""
    recipe = recipe_from(job.recipe)
    windows = folder.ordered_windows()
    first = folder.started.get(0)
    logs = [folder.logs[step] for step in sorted(folder.logs)]
    losses = [log.loss for log in logs if log.loss is not None]
    began = folder.began or ended
    last_step = max(folder.windows, default=0)
    notes = [*(first.notes if first else []), *folder.noted]
    skipped = sum(max(w.skipped for w in each) for each in windows)
    if skipped:
        notes.append(f"{skipped} of {last_step} steps were skipped by the loss scaler and do not count")
    if folder.data and folder.data.cut:
        notes.append(f"{folder.data.cut} samples were cut to data.max_source or data.max_target")
    speed = throughput(windows, recipe.measure.warmup, job.world_size)
    if speed and speed.measured_steps < FEW_STEPS:
        notes.append(f"the throughput rests on {speed.measured_steps} steps alone")
    if folder.attempt > 1:
        notes.append(f"this run was resumed: attempt {folder.attempt}")
    return Result(
        id=job.id,
        status=status,
        failure=failure,
        attempt=job.attempt,
        workload=recipe.workload,
        model=model_name(recipe),
        parameters=first.parameters if first else None,
        engine=engine_name(recipe),
        precision=job.precision,
        world_size=job.world_size,
        global_batch=job.batch.global_,
        started=began,
        ended=ended,
        seconds=_seconds(folder, folder.earlier_seconds + ended - (folder.attempt_began or began)),
        steps=last_step,
        skipped_steps=skipped,
        samples=sum(w.samples for each in windows for w in each),
        epochs=logs[-1].epoch if logs else None,
        loss_first=losses[0] if losses else None,
        loss_final=losses[-1] if losses else None,
        evaluation_loss=folder.evaluated[-1].loss if folder.evaluated else None,
        throughput=speed,
        memory=_memory(windows),
        quality=_quality(folder),
        hosts=_hosts(folder, job),
        versions=dict(first.versions) if first else {},
        model_path=folder.model_path,
        notes=notes,
    )


def model_name(recipe: Recipe) -> str:
    """What to call the recipe's model."""
    if recipe.model.name:
        return recipe.model.name
    kind = (recipe.model.config or {}).get("model_type", "t5")
    return f"{kind} from a configuration"


def engine_name(recipe: Recipe) -> str:
    """What to call the recipe's engine: ddp, fsdp, deepspeed ZeRO-3 + offload."""
    engine = recipe.engine
    if engine.name != "deepspeed":
        return engine.name + (" + offload" if engine.offload != "none" else "")
    if engine.config:
        return f"deepspeed with {engine.config}"
    return f"deepspeed ZeRO-{engine.zero}" + (
        f" + offload {engine.offload}" if engine.offload != "none" else ""
    )


def throughput(windows: Sequence[Sequence[events.Window]], warmup: int, world_size: int) -> Throughput | None:
    """Samples, tokens and steps per second over the windows after the warm-up.

    The warm-up is at most a third of the steps, and never the last window. A window counts
    only where every rank told of it; its time is that of the slowest rank. Skipped steps cost time and count
    for nothing else. None where nothing is left.
    """
    whole = [each for each in windows if len(each) == world_size]
    total = sum(each[0].steps for each in whole)
    skip = min(warmup, total // 3)
    measured, passed = [], 0
    for each in whole:
        if passed >= skip or each is whole[-1]:
            measured.append(each)
        passed += each[0].steps
    if not measured:
        return None
    seconds = [max(w.seconds for w in each) for each in measured]
    duration = sum(seconds)
    if duration <= 0:
        return None
    longest = max(each[0].steps for each in measured)
    even = [
        sum(w.samples for w in each) / s
        for each, s in zip(measured, seconds, strict=True)
        if s > 0 and each[0].steps == longest
    ]
    steps = sorted(s for each in measured for s in max(each, key=lambda w: w.seconds).step_seconds)
    mean = duration / max(1, sum(each[0].steps for each in measured))
    return Throughput(
        samples_per_second=sum(w.samples for each in measured for w in each) / duration,
        tokens_per_second=sum(w.tokens for each in measured for w in each) / duration,
        padded_tokens_per_second=sum(w.padded_tokens for each in measured for w in each) / duration,
        step_seconds_median=statistics.median(steps) if steps else mean,
        step_seconds_p95=percentile(steps, 0.95) if steps else mean,
        variation=_variation(even),
        windows=len(measured),
        measured_steps=sum(each[0].steps - max(w.skipped for w in each) for each in measured),
    )


def _variation(values: Sequence[float]) -> float | None:
    """The coefficient of variation, or None where there is none."""
    mean = statistics.mean(values) if values else 0.0
    return statistics.stdev(values) / mean if len(values) > 1 and mean else None


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ordered values do not exceed (nearest rank)."""
    index = max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))
    return ordered[index]


def _seconds(folder: Folder, total: float) -> Seconds:
    def slowest(name: str) -> float | None:
        found = [done.seconds[name] for done in folder.done.values() if name in done.seconds]
        return max(found) if found else None

    setup = None
    if folder.stepping and folder.attempt_began is not None:
        setup = max(0.0, max(folder.stepping.values()) - folder.attempt_began)
    training = slowest("training")
    if training is None or folder.attempt > 1:
        training = sum(max(w.seconds for w in each) for each in folder.ordered_windows()) or None
    return Seconds(
        total=total,
        setup=setup,
        training=training,
        evaluation=slowest("evaluation"),
        saving=slowest("saving"),
    )


def _memory(windows: Sequence[Sequence[events.Window]]) -> Memory:
    def peak(name: str) -> int | None:
        found = [getattr(w, name) for each in windows for w in each if getattr(w, name) is not None]
        return max(found) if found else None

    return Memory(
        allocator_peak=peak("allocator_peak"),
        device_peak=peak("device_peak"),
        resident_peak=peak("resident_peak"),
    )


def _quality(folder: Folder) -> Quality | None:
    parts = list(folder.answered.values())
    count = sum(part.questions for part in parts)
    if not count:
        return None
    executed = [part.executed for part in parts if part.executed is not None]
    return Quality(
        questions=count,
        exact_match=sum(part.exact for part in parts) / count,
        execution_match=sum(executed) / count if len(executed) == len(parts) else None,
        seconds=max(part.seconds for part in parts),
    )


def _hosts(folder: Folder, job: Job) -> list[HostReport]:
    reports = []
    for place in job.placements:
        samples = folder.hardware.get(place.host, [])
        cpu = [s.cpu_percent for s in samples if s.cpu_percent is not None]
        used = [s.memory_used for s in samples if s.memory_used is not None]
        gpu = [g["percent"] for s in samples for g in s.gpus if g.get("percent") is not None]
        reports.append(
            HostReport(
                host=place.host,
                ranks=list(place.ranks),
                facts=folder.facts.get(place.host, {}),
                cpu_percent_mean=statistics.mean(cpu) if cpu else None,
                memory_used_peak=max(used) if used else None,
                gpu_percent_mean=statistics.mean([float(g) for g in gpu if g is not None]) if gpu else None,
            )
        )
    return reports
