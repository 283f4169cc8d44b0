"""From events to a Result. Pure: the same events give the same result, now or later."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.core.job import FASTEST, PASSED_OVER, WARNINGS, Decision, Job
from muster.core.learning_rate import warmup_steps
from muster.core.recipe import Recipe, recipe_from
from muster.core.result import (
    AttentionExtremes,
    CommandRun,
    Extreme,
    Failure,
    HostReport,
    Hung,
    LearnedFigure,
    Memory,
    Pace,
    PhaseTime,
    Planned,
    Quality,
    Result,
    Seconds,
    Unscored,
    WrittenFile,
    unscored_words,
)
from muster.core.robust import variation
from muster.core.state import RunEnd
from muster.core.units import counted, format_seconds
from muster.engines.base import spec_of
from muster.failures.table import known_failures
from muster.readers.base import NOT_FINITE, WARM_UP
from muster.results.speed import flops, throughput, usual_seconds
from muster.results.stragglers import parts_of
from muster.store import events
from muster.store.secrets import masked_program
from muster.store.windows import measured, seconds_of
from muster.workloads.fabric.fold import fabric_result

# ----------------------------------------------------------------------------------------------------
# What each host of a run did, from its events. Pure.

NAMED = 8  # hosts that a note names one by one
SAMPLES, FEWEST = 20_000, 20  # of hardware that are kept in memory: of all hosts, and of each
TIMER_APART, TIMER_SECONDS = 1.25, 20.0  # of a program's own time of a step: how far off, over how long
POINTS = 20  # of the cores' use over a run


class Samples(events.Hardware):
    """Consecutive samples as one."""

    stands: int = 1  # for so many

    @classmethod
    def of(cls, first: events.Hardware, second: events.Hardware) -> Samples:
        """Join two neighbours: sums of seconds, means of shares, maxima of the rest."""
        def joined(name: str, values: Sequence[Any]) -> Any:
            pairs = zip(values, (first, second), strict=True)
            there = [(float(value), each) for value, each in pairs if value is not None]
            if name in ("memory_used", "memory_total", "strangers"):
                return max((value for value, _ in there), default=None)
            return _mean(there)

        gpus = [
            {name: joined(name, (gpu.get(name), other.get(name))) for name in {**gpu, **other}}
            for gpu, other in zip(_plain(first), _plain(second), strict=False)
        ]
        merged: dict[str, Any] = dict(second) | {"stands": _stands(first) + _stands(second), "gpus": gpus}
        merged |= {"own": {}, "links": []}  # who holds the run up was found out of the samples as they came
        for name in ("cpu_busy", "cpu_own", "cpu_stolen", "seconds"):
            parts = [value for each in (first, second) if (value := getattr(each, name)) is not None]
            merged[name] = sum(parts) if parts else None
        for name in ("cpu_percent", "memory_used", "memory_total"):
            merged[name] = joined(name, (getattr(first, name), getattr(second, name)))
        return cls.model_validate(merged)


def _plain(sample: events.Hardware) -> list[dict[str, Any]]:
    """Return a sample's GPUs, with the share of samples in which each was throttled in place of the reasons.
    """
    return [
        gpu if gpu.get("slowed") is None else {**gpu, "slowed": _slowed(gpu, sample)} for gpu in sample.gpus
    ]


def _slowed(gpu: Mapping[str, Any], sample: events.Hardware) -> float:
    return float(gpu["slowed"]) if isinstance(sample, Samples) else float(bool(gpu["slowed"]))


def thinned(samples: Sequence[events.Hardware]) -> list[events.Hardware]:
    """Return half as many samples: each two neighbours of an attempt as one, except the first, from which
    totals count."""
    made = list(samples[:1])
    rest = iter(samples[1:])
    for first in rest:
        second = next(rest, None)
        if second is None or second.attempt != first.attempt:
            made += [first, *([second] if second else [])]
        else:
            made.append(Samples.of(first, second))
    return made


def _stands(sample: events.Hardware) -> int:
    return sample.stands if isinstance(sample, Samples) else 1


def _mean(samples: Iterable[tuple[float, events.Hardware]]) -> float | None:
    """Return the mean of values, each weighted by the number of samples in it."""
    weighted = [(value, _stands(each)) for value, each in samples]
    whole = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / whole if whole else None


def host_reports(
    job: Job,
    facts: Mapping[str, dict[str, Any]],
    hardware: Mapping[str, Sequence[events.Hardware]],
    split: events.Split | None,
    windows: Sequence[Sequence[events.Window]] = (),
) -> list[HostReport]:
    """Return a report per host, in the order of the ranks. `windows`: those that are measured."""
    reports = []
    forward, parts = _forward(windows), _parts(windows)
    for place in job.placements:
        samples = hardware.get(place.host, [])
        used = [s.memory_used for s in samples if s.memory_used is not None]
        gpu = [(float(p), s) for s in samples for g in s.gpus if (p := g.get("percent")) is not None]
        share, speed = split.of(place.ranks) if split else (None, None)
        reports.append(
            HostReport(
                host=place.host,
                ranks=list(place.ranks),
                facts=facts.get(place.host, {}),
                cpu_percent_mean=_mean((s.cpu_percent, s) for s in samples if s.cpu_percent is not None),
                memory_used_peak=max(used) if used else None,
                gpu_percent_mean=_mean(gpu),
                cpu_use=_cpu_use(samples),
                stolen=_stolen(samples, facts.get(place.host, {}).get("cores")),
                **_gpu_trouble(samples),
                share=share,
                speed=speed,
                forward_seconds=max((forward[rank] for rank in place.ranks if rank in forward), default=None),
                parts=min(
                    (parts[rank] for rank in place.ranks if rank in parts),
                    key=lambda each: each.get("waiting", 0.0),
                    default={},
                ),
            )
        )
    return reports


def _cpu_use(samples: Sequence[events.Hardware]) -> list[tuple[float, float, float]]:
    """Return time and core-seconds of the host and of the run up to some of the samples, from the first one
    on."""
    counting = [each for each in samples if each.cpu_busy is not None and each.cpu_own is not None]
    busy = itertools.accumulate(each.cpu_busy or 0.0 for each in counting[1:])
    own = itertools.accumulate(each.cpu_own or 0.0 for each in counting[1:])
    points = [(each.time, 0.0, 0.0) for each in counting[:1]]
    points += [
        (each.time, *both) for each, both in zip(counting[1:], zip(busy, own, strict=True), strict=True)
    ]
    step = -(-len(points) // POINTS)
    return [*points[:-1:step], *points[-1:]] if step else []


def _stolen(samples: Sequence[events.Hardware], cores: float | None) -> float | None:
    counting = [each for each in samples if each.cpu_stolen is not None]
    if len(counting) < 2 or not cores:
        return None
    return sum(each.cpu_stolen or 0.0 for each in counting[1:]) / (
        cores * (counting[-1].time - counting[0].time)
    )


def _gpu_trouble(samples: Sequence[events.Hardware]) -> dict[str, Any]:
    """Return `slowed` and `strangers` of a report."""
    slowed = [
        (_slowed(gpu, sample), sample)
        for sample in samples
        for gpu in sample.gpus
        if gpu.get("slowed") is not None
    ]
    strangers = [
        int(n) for sample in samples for gpu in sample.gpus if (n := gpu.get("strangers")) is not None
    ]
    return {
        "slowed": _mean(slowed),
        "strangers": max(strangers, default=None),
    }


def _forward(windows: Sequence[Sequence[events.Window]]) -> dict[int, float]:
    """Return the seconds of a forward pass of each rank."""
    by_rank: dict[int, list[float]] = {}
    for each in windows:
        for window in each:
            if window.rank is not None and window.forward_seconds is not None:
                by_rank.setdefault(window.rank, []).append(window.forward_seconds)
    return {rank: statistics.median(seconds) for rank, seconds in by_rank.items()}


def _parts(windows: Sequence[Sequence[events.Window]]) -> dict[int, dict[str, float]]:
    """Return, by rank, the shares of the steps' time."""
    whole = sum(seconds_of(ranks) for ranks in windows)
    by_rank: dict[int, dict[str, float]] = {}
    for window in (each for ranks in windows for each in ranks):
        if window.rank is not None and window.parts and whole > 0:
            own = by_rank.setdefault(window.rank, {})
            for name, spent in parts_of(window).items():
                own[name] = own.get(name, 0.0) + spent / whole
    return by_rank


def split_note(job: Job, split: events.Split | None) -> str | None:
    """Return how micro-steps were split over the hosts; None where every rank took the same."""
    if split is None:
        return None
    words = []
    for place in job.placements[:NAMED]:
        share, speed = split.of(place.ranks)
        words.append(f"{place.host} {share}" + (f" ({speed:.4g} samples/s)" if speed is not None else ""))
    more = f" and {len(job.placements) - NAMED} more hosts" if len(job.placements) > NAMED else ""
    how = "by measured speed" if split.speeds else "as the recipe says"
    return f"every micro-step of {sum(split.shares)} samples was split {how}: {', '.join(words)}{more}"


def pace_notes(
    job: Job,
    recipe: Recipe,
    facts: Mapping[str, dict[str, Any]],
    split: events.Split | None,
    started: events.Started | None,
    data: events.DataRead | None,
) -> list[str]:
    """Return notes on hosts that made the job slower, as predicted before it and by the measured speeds, and
    the plan's other warnings."""
    from muster.planner.advice import review  # loads the planner, which `muster show` can do without

    decisions: list[Decision] = [e for e in job.decisions if e.value in WARNINGS or e.field == FASTEST]
    if split and split.speeds and started:
        samples = data.train if data else None
        decisions += review(recipe, job, facts, split.speeds, started.trainable, samples)
    return [f"{each.field}: {each.value}: {each.why}" for each in decisions]


FEW_STEPS = 20  # measured steps below which a throughput carries a note
STARVING = 0.1  # of the time spent getting batches: a note
DIFFERS = 0.02  # of counted FLOPs from a formula: a note


def starving_note(share: float, workers: int) -> str:
    """Return a note on what waiting for batches costs, and what helps."""
    cost = f"{100 * share:.0f} % of the time went into getting batches"
    helps = f"train.workers={workers + 2} has other processes prepare them (now {workers})"
    return f"{cost}: where cores are free, {helps}"


@dataclass
class EventFold:
    """Collects events; `result` is made from them. Later attempts replace the steps that they repeat."""

    windows: dict[int, dict[int, events.Window]] = field(default_factory=lambda: defaultdict(dict))
    logs: dict[int, events.Log] = field(default_factory=dict)
    started: dict[int, events.Started] = field(default_factory=dict)
    done: dict[int, events.Done] = field(default_factory=dict)
    answered: dict[int, events.Answered] = field(default_factory=dict)
    unscored: list[Unscored] = field(default_factory=list)
    failed: list[events.Failed] = field(default_factory=list)  # in the order of arrival
    noted: list[str] = field(default_factory=list)
    measured: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # the fabric's: (host, event)
    hang: Hung | None = None
    pace: Pace | None = None
    progress: events.Progress | None = None  # of a command, as its output tells
    evaluated: list[events.Evaluated] = field(default_factory=list)
    saved: list[events.Saved] = field(default_factory=list)
    attention: dict[int, events.Attention] = field(default_factory=dict)
    hardware: dict[str, list[events.Hardware]] = field(default_factory=lambda: defaultdict(list))
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: events.DataRead | None = None
    split: events.Split | None = None
    counted: dict[int, events.FlopsCounted] = field(default_factory=dict)
    profiled: list[events.Profiled] = field(default_factory=list)
    wrote: dict[str, events.Wrote] = field(default_factory=dict)  # by path
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
            self.last_heard = max(self.last_heard, event.arrived)
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
        elif isinstance(event, events.Answer):
            if event.unscored:
                self.unscored.append(Unscored(index=event.index, why=event.unscored))
        elif isinstance(event, events.Phase) and event.name == "steps":
            self.stepping[rank] = event.arrived
        elif isinstance(event, events.Measured):
            content = {**event.content, "kind": event.what, "rank": rank, "time": event.time}
            self.measured.append((event.host or "", content))
        elif isinstance(event, events.FlopsCounted):
            self.counted[rank] = event
        elif isinstance(event, events.Profiled):
            self.profiled.append(event)
        elif isinstance(event, events.Wrote):
            self.wrote[event.path] = event
        elif isinstance(event, events.Progress):
            self.progress = event
            if not self.windows:  # muster.step counts its own steps, and tells its own losses
                earlier = self.logs.get(event.step)  # the last step is told once more at the program's end
                time = earlier.time if earlier else event.time
                self.logs[event.step] = events.Log(time=time, step=event.step, loss=event.loss)
        elif isinstance(event, events.Hanging):
            self.hang = event.found
        elif isinstance(event, events.Paced):
            self.pace = event.found
        elif isinstance(event, events.Noted):
            if event.text not in self.noted:
                self.noted.append(event.text)
        elif isinstance(event, events.Failed):
            self.failed.append(event)
        elif isinstance(event, events.Evaluated):
            self.evaluated.append(event)
        elif isinstance(event, events.Attention):
            self.attention[event.step] = event
        elif isinstance(event, events.Hardware):
            samples = self.hardware[event.host or ""]
            samples.append(event)
            # There are hosts and hours without an end.
            if len(samples) > max(2 * FEWEST, SAMPLES // len(self.hardware)):
                self.hardware[event.host or ""] = thinned(samples)
        elif isinstance(event, events.HostFacts):
            self.facts[event.host or ""] = event.facts
        elif isinstance(event, events.DataRead):
            self.data = event
        elif isinstance(event, events.Split):
            self.split = event
        elif isinstance(event, events.Saved):
            self.saved.append(event)
            self.model_path = event.path if event.step is None else self.model_path
        elif isinstance(event, events.JobState) and event.state == "begin":
            self._begin(event)

    def _begin(self, event: events.JobState) -> None:
        """Begin an attempt: drop what it will do again, and how the last one ended."""
        self.began = self.began or event.time
        self.attempt = event.attempt
        if self.attempt_began is not None:
            self.earlier_seconds += max(0.0, self.last_heard - self.attempt_began)
        self.attempt_began = event.time
        self.stepping.clear()
        resume = event.detail.get("resume_step") or 0
        for table in (self.windows, self.logs, self.attention):
            for step in [step for step in table if step > resume]:
                del table[step]
        self.evaluated = [each for each in self.evaluated if each.step <= resume]
        self.saved = [each for each in self.saved if each.step is not None and each.step <= resume]
        self.profiled = [each for each in self.profiled if each.last_step <= resume]
        for record in (self.failed, self.noted, self.measured, self.done, self.answered, self.unscored):
            record.clear()
        self.split = self.progress = self.hang = self.pace = None

    def ordered_windows(self) -> list[list[events.Window]]:
        """Return windows in the order of steps, each with the events of all ranks."""
        return [list(self.windows[step].values()) for step in sorted(self.windows)]


def fold(stream: Iterable[events.Event]) -> EventFold:
    """Fold all events of a run."""
    folded = EventFold()
    for event in stream:
        folded.add(event)
    return folded


def caveats(folded: EventFold, recipe: Recipe, steps: int) -> list[str]:
    """Return what a success of so many steps lacks of what was asked for, in words."""
    lacks, first = [], folded.started.get(0)
    if first and 0 < steps < first.total_steps:
        limit = recipe.train.max_minutes
        late = folded.done[0].out_of_time if 0 in folded.done else None  # None: its version does not say
        by = f" by train.max_minutes={limit:g}" if limit and late is not False else ""
        lacks.append(f"cut at {steps:,} of {first.total_steps:,} steps{by}")
        warmup = warmup_steps(recipe.train, first.total_steps)
        own = bool(recipe.engine.config) or "scheduler" in recipe.engine.options  # may warm up otherwise
        if steps <= warmup and not own:
            lacks.append(f"the learning rate did not reach its peak: its warm-up takes {warmup:,} steps")
    rewards = [log.figures for log in folded.logs.values()]
    if rewards and not any(each.get("reward", 1) or each.get("reward_std", 0) for each in rewards):
        lacks.append("no answer was rewarded")
    elif rewards and all(each.get("equal_groups") == 1 for each in rewards):
        lacks.append("all answers to each prompt were worth the same")
    if _unchanged(folded):
        lacks.append(f"the weights did not change in {counted(steps, 'step')}")
    return lacks


def _unchanged(folded: EventFold) -> bool:
    """Return whether every rank's trained weights are those of the start, bit for bit."""
    return bool(folded.done) and all(done.weights_changed is False for done in folded.done.values())


def learned_nothing(folded: EventFold, job: Job) -> Failure | None:
    """Return why a training that every rank ended well is no success: the trained model is the one that it
    began with.

    None: its weights changed, before a resume at the latest, or are not known; no model was to be kept; or
    they were not meant to change: at a rate of 0 all along, as a DeepSpeed file may say, or in one step, the
    first of a warm-up.
    """
    recipe, steps = recipe_from(job.recipe), max(folded.windows, default=0)
    rates = [log.learning_rate for log in folded.logs.values() if log.learning_rate is not None]
    still = job.resume_step or steps < 2 or (bool(rates) and not any(rates))
    if not (recipe.trains and recipe.checkpoint.model and _unchanged(folded)) or still:
        return None
    skipped = sum(max(window.skipped for window in each) for each in folded.ordered_windows())
    scaled = known_failures()["loss_scale_too_high"] if skipped == steps else None
    return Failure(
        what="; ".join(caveats(folded, recipe, steps)),
        hint=scaled.remedy
        if scaled
        else "a higher train.learning_rate, or rewards that differ; "
        "checkpoint.model=false where nothing but speed is measured",
        id=scaled.id if scaled else None,
    )


def make_result(
    folded: EventFold,
    job: Job,
    *,
    status: RunEnd,
    failure: Failure | None,
    ended: float,
    planned: Planned | None = None,
) -> Result:
    """Return a run's result, from its events. `planned`: what its plan predicted."""
    recipe = recipe_from(job.recipe)
    windows = folded.ordered_windows()
    first = folded.started.get(0)
    logs = [folded.logs[step] for step in sorted(folded.logs)]
    losses = [log.loss for log in logs if log.loss is not None]
    began = folded.began or ended
    last_step = max(folded.windows, default=0)
    lacks = caveats(folded, recipe, last_step) if status.good else []
    notes = [*lacks, *(first.notes if first else []), *folded.noted]
    if note := split_note(job, folded.split):
        notes.append(note)
    notes += pace_notes(job, recipe, folded.facts, folded.split, first, folded.data)
    skipped = sum(max(w.skipped for w in each) for each in windows)
    if skipped:
        notes.append(f"{skipped} of {last_step} steps were skipped by the loss scaler and do not count")
    if folded.data and folded.data.cut:
        by = f" to {recipe.cut_by}" if recipe.cut_by else ""
        notes.append(f"{counted(folded.data.cut, 'sample')} cut{by}")
    quality = _quality(folded)
    if quality and (note := unscored_words(quality.questions, quality.scored, quality.unscored)):
        notes.append(note)
    speed = None if recipe.foreign else throughput(windows, recipe.measure.warmup, job.world_size)
    if speed and speed.measured_steps < FEW_STEPS:
        notes.append(f"the throughput rests on {counted(speed.measured_steps, 'step')} alone")
    if speed and speed.data_share is not None and speed.data_share > STARVING:
        notes.append(starving_note(speed.data_share, recipe.train.loaders))
    notes += [*_counting(folded.counted.get(0)), *_profiles(folded.profiled)]
    notes += [
        f"{each.what} of {recipe.engine.name} is on {each.host}: {each.path}"
        for each in folded.wrote.values()
    ]
    if folded.attempt > 1:
        notes.append(f"this run was resumed: attempt {folded.attempt}")
    for each in job.decisions:
        if each.value == PASSED_OVER:
            notes.append(f"{each.field} was passed over when the run was resumed: {each.why}")
    profiled = {each.summary.rank: each.summary for each in folded.profiled if each.summary}
    chosen = measured(windows, recipe.measure.warmup, job.world_size)
    seconds = spent(folded, folded.earlier_seconds + ended - (folded.attempt_began or began))
    made = Result(
        id=job.id,
        status=status,
        failure=failure,
        attempt=job.attempt,
        workload=recipe.workload,
        model=model_name(recipe),
        parameters=first.parameters if first else None,
        engine=spec_of(recipe.engine.name).described(recipe.engine),
        precision=job.precision,
        world_size=job.world_size,
        global_batch=job.batch.global_,
        started=began,
        ended=ended,
        seconds=seconds,
        steps=last_step,
        skipped_steps=skipped,
        samples=sum(w.samples for each in windows for w in each),
        epochs=logs[-1].epoch if logs else None,
        loss_first=losses[0] if losses else None,
        loss_final=losses[-1] if losses else None,
        evaluation_loss=folded.evaluated[-1].loss if folded.evaluated else None,
        perplexity=folded.evaluated[-1].perplexity if folded.evaluated else None,
        figures=learned(logs, folded.evaluated),
        throughput=speed,
        phases=phases(chosen),
        flops=flops(windows, folded.started, folded.counted, job, recipe.measure),
        planned=planned,
        memory=_memory(windows),
        profiles=[
            profiled[rank].model_copy(
                update={"usual_seconds": usual_seconds(windows, recipe.measure.warmup, job.world_size, rank)}
            )
            for rank in sorted(profiled)
        ],
        files=[
            WrittenFile(what=each.what, host=each.host or "", path=each.path, head=each.head)
            for each in folded.wrote.values()
        ],
        quality=quality,
        attention=attention_report(list(folded.attention.values()), seconds.training),
        hang=folded.hang,
        pace=folded.pace,
        hosts=host_reports(job, folded.facts, folded.hardware, folded.split, chosen),
        versions=dict(first.versions) if first else {},
        model_path=folded.model_path,
        notes=notes,
        caveats=lacks,
    )
    if recipe.foreign:
        return of_command(made, folded, job)
    return made if recipe.trains else fabric_result(made, folded.measured, job)


def learned(logs: Sequence[events.Log], evaluated: Sequence[events.Evaluated]) -> list[LearnedFigure]:
    """Return the workload's further figures, in the order in which they are reported."""
    held = evaluated[-1].figures if evaluated else {}
    names = dict.fromkeys([*held, *(name for log in logs for name in log.figures)])
    listed = []
    for name in names:
        values = [log.figures[name] for log in logs if name in log.figures]
        first, final = (values[0], values[-1]) if values else (None, None)
        listed.append(LearnedFigure(name=name, first=first, final=final, held_out=held.get(name)))
    return listed


def phases(windows: Sequence[Sequence[events.Window]]) -> list[PhaseTime]:
    """Return the shares of the steps' time. A phase ends when all ranks have ended it, so the slowest rank
    counts."""
    names = dict.fromkeys(name for ranks in windows for each in ranks for name in each.phases)
    whole = sum(seconds_of(ranks) for ranks in windows)
    samples = sum(each.samples for ranks in windows for each in ranks)
    listed = []
    for name in names:
        spent = sum(max(each.phases.get(name, 0.0) for each in ranks) for ranks in windows)
        rate = samples / spent if spent else None
        listed.append(PhaseTime(name=name, share=spent / whole if whole else 0.0, samples_per_second=rate))
    return listed


def model_name(recipe: Recipe) -> str:
    """Return a name for the recipe's model."""
    if recipe.model.name:
        return recipe.model.name
    kind = (recipe.model.config or {}).get("model_type", recipe.usual_type() or "a model")
    return f"{kind} from a configuration"


def _counting(counted: events.FlopsCounted | None) -> list[str]:
    """Return a note where the counted operations differ from the family's formula."""
    if counted is None or not counted.formula or abs(counted.model / counted.formula - 1) <= DIFFERS:
        return []
    ratio = counted.model / counted.formula
    return [f"the model's FLOPs, as counted, are {ratio:.3f} times what the formula of its family says"]


def _profiles(profiled: Sequence[events.Profiled]) -> list[str]:
    notes = []
    for what in sorted({each.what for each in profiled}):
        some = [each for each in profiled if each.what == what]
        first, last = some[0].first_step, some[0].last_step
        steps = f"step {first} ran" if first == last else f"steps {first} to {last} ran"
        name = {"flops": "breakdown by module", "trace": "trace"}[what]
        places = ", ".join(each.path for each in some)
        notes.append(f"{steps} under a profiler, outside every throughput; {name}: {places}")
    return notes


def _memory(windows: Sequence[Sequence[events.Window]]) -> Memory:
    def peak(name: str) -> int | None:
        peaks = (getattr(window, name) for ranks in windows for window in ranks)
        return max((each for each in peaks if each is not None), default=None)

    return Memory(**{name: peak(name) for name in Memory.model_fields})


def _quality(folded: EventFold) -> Quality | None:
    parts = list(folded.answered.values())
    count = sum(part.questions for part in parts)
    if not count:
        return None
    # Older events have no `scored`: one question that could not be left its rank without a figure.
    counts = [
        part.questions if part.scored is None and part.executed is not None else part.scored for part in parts
    ]
    scored = sum(each or 0 for each in counts) if None not in counts else None
    unscored = sorted(folded.unscored, key=lambda each: each.index)
    return Quality(
        questions=count,
        exact_match=sum(part.exact for part in parts) / count,
        metric=parts[0].metric,
        execution_match=sum(part.executed or 0 for part in parts) / scored if scored else None,
        scored=scored if scored or unscored else None,
        unscored=unscored,
        seconds=max(part.seconds for part in parts),
    )


# ----------------------------------------------------------------------------------------------------
# Where a run's time went, from its events. Pure.


def spent(folded: EventFold, total: float) -> Seconds:
    """Return where the time went. `total`: of all attempts. What ranks report at their end covers the last
    attempt alone: of several, the events of their steps are added."""

    def slowest(name: str, of_steps: float | None) -> float | None:
        of_ranks = [done.seconds[name] for done in folded.done.values() if name in done.seconds]
        return max(of_ranks) if of_ranks and folded.attempt == 1 else of_steps

    setup = None
    if folded.stepping and folded.attempt_began is not None:
        setup = max(folded.stepping.values()) - folded.attempt_began
    windows = folded.ordered_windows()
    saved: dict[int | None, float] = {}  # by step, of the disk that took longest
    for each in folded.saved:
        saved[each.step] = max(each.seconds, saved.get(each.step, 0.0))
    evaluated = [each.seconds for each in folded.evaluated if each.seconds is not None]
    return Seconds(
        total=total,
        setup=setup if setup is not None and setup >= 0 else None,  # of old events: clocks that do not agree
        training=slowest("training", sum(seconds_of(each) for each in windows) or None),
        evaluation=slowest("evaluation", sum(evaluated) if evaluated else None),
        saving=slowest("saving", sum(saved.values()) if saved else None),
    )


# ----------------------------------------------------------------------------------------------------
# The result of a command of the user's. Pure.


def of_command(made: Result, folded: EventFold, job: Job) -> Result:
    """Return the result with a command's reported progress, and without a model, an engine, a batch."""
    recipe, progress = job.recipe, folded.progress
    figures: dict[str, Any] = {}
    changed: dict[str, Any] = {"model": None, "engine": None, "precision": None, "global_batch": None}
    notes = [*made.notes]
    marked = [each for ranks in folded.windows.values() for each in ranks.values() if each.seconds > 0]
    if marked:
        ranks = _without_warmup(marked)
        pauses = _pauses(ranks)
        figures, notes = _marked(ranks, steady=not pauses), [*notes, *pauses]
    elif progress is not None:
        figures = {"told_by": progress.format, "rests_on": progress.steps}
        figures |= {name: getattr(progress, name) for name in ("rate", "unit", "step_seconds", "variation")}
        # Its first line is not among those that were looked at: some seconds of them at a time.
        changed |= {"steps": max(progress.step, progress.made)}
        changed |= {"loss_first": None, "loss_final": progress.loss}
        figures["last_step"] = progress.step if progress.made > progress.step + 1 else None
        if note := _timer_note(folded, progress):
            notes.append(note)
    lacks = _not_finite(folded)
    if lacks:
        figures["not_finite"] = lacks
        changed |= {"loss_final": None, "caveats": [*made.caveats, *([lacks] if made.status.good else ())]}
        notes.insert(0, lacks)
    changed["notes"] = notes
    words = masked_program(recipe["command"])  # folders of earlier versions have it as it was
    changed["command"] = CommandRun(command=words, start=recipe["run"]["start"], **figures)
    return made.model_copy(update=changed)


def _not_finite(folded: EventFold) -> str | None:
    """Return since when a command's last losses are not finite, in words; None: they are, or there are none.
    """
    if not folded.windows:
        return folded.progress.not_finite if folded.progress else None
    since = None
    for step in sorted(folded.logs):
        if (loss := folded.logs[step].loss) is not None:
            since = None if math.isfinite(loss) else step if since is None else since
    return None if since is None else f"{NOT_FINITE}, as at step {since:,} already"


def _timer_note(folded: EventFold, progress: events.Progress) -> str | None:
    """Return a note where the program's own time of a step is much less than the time from step to step."""
    timed = progress.step - (progress.steps or progress.step)
    logs = [folded.logs[step] for step in sorted(folded.logs) if step >= timed]
    if not progress.step_seconds or len(logs) < 2 or logs[-1].time - logs[0].time < TIMER_SECONDS:
        return None
    passed = (logs[-1].time - logs[0].time) / (logs[-1].step - logs[0].step)
    if passed < TIMER_APART * progress.step_seconds:
        return None
    return (
        f"a step takes {format_seconds(progress.step_seconds)} by the program's own timer, and "
        f"{format_seconds(passed)} passed from step to step: evaluation, saving, loading or waiting that the "
        "timer leaves out"
    )


def _marked(ranks: Mapping[int, Sequence[events.Window]], *, steady: bool) -> dict[str, Any]:
    """Return what ranks reported by muster.step: their samples (else tokens, else steps) over their own
    seconds. Windows of ranks begin and end at their own times, so a rank's rate is its own, and rates are
    added up. `steady`: no pauses lie between steps, so that windows vary by chance."""
    whole = [each for by_window in ranks.values() for each in by_window]
    unit = next((name for name in ("samples", "tokens") if any(getattr(w, name) for w in whole)), "steps")

    def count(each: events.Window) -> int:
        return int(getattr(each, unit))

    rates = [
        sum(map(count, by_window)) / sum(each.seconds for each in by_window) for by_window in ranks.values()
    ]
    steps = [seconds for each in whole for seconds in each.step_seconds]
    paces = [count(each) / each.seconds for each in ranks[min(ranks)]]
    return {
        "told_by": "muster.step",
        "rate": min(rates) if unit == "steps" else sum(rates),
        "unit": unit,
        "step_seconds": statistics.median(steps) if steps else None,
        "variation": variation(paces, least=3) if steady else None,
        "rests_on": sum(each.steps for each in ranks[min(ranks)]),
    }


def _without_warmup(windows: Iterable[events.Window]) -> dict[int, list[events.Window]]:
    """Return the windows of each rank, in order, without its first WARM_UP steps; of few, without a third."""
    ranks: dict[int, list[events.Window]] = defaultdict(list)
    for each in sorted(windows, key=lambda each: each.step):
        ranks[each.rank or 0].append(each)
    for rank, by_window in ranks.items():
        rest, ranks[rank] = min(WARM_UP, sum(each.steps for each in by_window) // 3), []
        for each in by_window:
            cut, rest = min(rest, each.steps), rest - min(rest, each.steps)
            if cut == each.steps:
                continue
            share = (each.steps - cut) / each.steps
            counts = {"samples": round(share * each.samples), "tokens": round(share * each.tokens)}
            left = {"steps": each.steps - cut, "seconds": each.seconds - sum(each.step_seconds[:cut])}
            own = each.model_copy(update={**counts, **left, "step_seconds": each.step_seconds[cut:]})
            ranks[rank].append(own)
    return ranks


def _pauses(ranks: Mapping[int, Sequence[events.Window]]) -> list[str]:
    """Return a note where much time passed between the first rank's steps, or in a few of them."""
    steps = [seconds for each in ranks[min(ranks)] for seconds in each.step_seconds]
    usual, mean = (statistics.median(steps), statistics.fmean(steps)) if steps else (0.0, 0.0)
    if mean < TIMER_APART * usual or not usual:
        return []
    return [
        f"a usual step takes {format_seconds(usual)}, and {format_seconds(mean)} passed from step to step on "
        "the mean: evaluation, saving, loading or waiting between some of them, which the throughput includes"
    ]


# ----------------------------------------------------------------------------------------------------
# What the attention monitor saw, over the whole run. Pure.


def attention_report(seen: Sequence[events.Attention], training: float | None) -> AttentionExtremes | None:
    """Return the run's extremes and the monitor's share of `training` seconds; None where nothing was
    monitored."""
    if not seen:
        return None
    seconds = sum(each.seconds for each in seen)
    return AttentionExtremes(
        largest=max(_extremes(seen, "largest"), key=lambda each: each.logit, default=None),
        smallest=min(_extremes(seen, "smallest"), key=lambda each: each.logit, default=None),
        windows=len(seen),
        seconds=seconds,
        share=seconds / training if training else None,
    )


def _extremes(seen: Sequence[events.Attention], name: str) -> Iterable[Extreme]:
    for each in seen:
        for layer, logit in zip(each.layers, getattr(each, name), strict=False):
            if logit is not None:
                yield Extreme(logit=logit, layer=layer, step=each.step)
