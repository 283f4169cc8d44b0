"""What each host of a run did, from its events. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from muster.core.job import FASTEST, SLOWER, Decision, Job
from muster.core.recipe import Recipe
from muster.core.result import HostReport
from muster.store import events

NAMED = 8  # hosts that a note names one by one
POINTS = 20  # of the cores' use over a run


def host_reports(
    job: Job,
    facts: Mapping[str, dict[str, Any]],
    hardware: Mapping[str, Sequence[events.Hardware]],
    split: events.Split | None,
    windows: Sequence[Sequence[events.Window]] = (),
) -> list[HostReport]:
    """A report per host, in the order of the ranks. `windows`: those that are measured."""
    reports = []
    forward = _forward(windows)
    for place in job.placements:
        samples = hardware.get(place.host, [])
        cpu = [s.cpu_percent for s in samples if s.cpu_percent is not None]
        used = [s.memory_used for s in samples if s.memory_used is not None]
        gpu = [g["percent"] for s in samples for g in s.gpus if g.get("percent") is not None]
        reports.append(
            HostReport(
                host=place.host,
                ranks=list(place.ranks),
                facts=facts.get(place.host, {}),
                cpu_percent_mean=statistics.mean(cpu) if cpu else None,
                memory_used_peak=max(used) if used else None,
                gpu_percent_mean=statistics.mean([float(g) for g in gpu if g is not None]) if gpu else None,
                cpu_use=_cpu_use(samples),
                stolen=_stolen(samples, facts.get(place.host, {}).get("cores")),
                **_gpu_trouble(samples),
                share=sum(split.shares[rank] for rank in place.ranks) if split else None,
                speed=sum(split.speeds[rank] for rank in place.ranks) if split and split.speeds else None,
                forward_seconds=max((forward[rank] for rank in place.ranks if rank in forward), default=None),
            )
        )
    return reports


def _cpu_use(samples: Sequence[events.Hardware]) -> list[tuple[float, float, float]]:
    """Core-seconds of the host and of the run until some of the samples, from the first one on."""
    known = [each for each in samples if each.cpu_busy is not None and each.cpu_own is not None]
    busy = itertools.accumulate(each.cpu_busy or 0.0 for each in known[1:])
    own = itertools.accumulate(each.cpu_own or 0.0 for each in known[1:])
    points = [(each.time, 0.0, 0.0) for each in known[:1]]
    points += [(each.time, *both) for each, both in zip(known[1:], zip(busy, own, strict=True), strict=True)]
    step = -(-len(points) // POINTS)
    return [*points[:-1:step], *points[-1:]] if step else []


def _stolen(samples: Sequence[events.Hardware], cores: float | None) -> float | None:
    known = [each for each in samples if each.cpu_stolen is not None]
    if len(known) < 2 or not cores:
        return None
    return sum(each.cpu_stolen or 0.0 for each in known[1:]) / (cores * (known[-1].time - known[0].time))


def _gpu_trouble(samples: Sequence[events.Hardware]) -> dict[str, Any]:
    """`slowed` and `strangers` of a report."""
    slowed = [each for sample in samples for gpu in sample.gpus if (each := gpu.get("slowed")) is not None]
    strangers = [
        int(n) for sample in samples for gpu in sample.gpus if (n := gpu.get("strangers")) is not None
    ]
    return {
        "slowed": sum(map(bool, slowed)) / len(slowed) if slowed else None,
        "strangers": max(strangers, default=None),
    }


def _forward(windows: Sequence[Sequence[events.Window]]) -> dict[int, float]:
    """Of each rank, the seconds of a forward pass."""
    found: dict[int, list[float]] = {}
    for each in windows:
        for window in each:
            if window.rank is not None and window.forward_seconds is not None:
                found.setdefault(window.rank, []).append(window.forward_seconds)
    return {rank: statistics.median(seconds) for rank, seconds in found.items()}


def split_note(job: Job, split: events.Split | None) -> str | None:
    """How micro-steps were split over the hosts; None where every rank took the same."""
    if split is None:
        return None
    words = []
    for place in job.placements[:NAMED]:
        share = sum(split.shares[rank] for rank in place.ranks)
        speed = sum(split.speeds[rank] for rank in place.ranks) if split.speeds else None
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
    """Hosts that made the job slower: as predicted before it, and by the speeds that it measured."""
    from muster.planner.advice import review  # loads the planner, which `muster show` can do without

    found: list[Decision] = [e for e in job.decisions if e.value == SLOWER or e.field == FASTEST]
    if split and split.speeds and started:
        samples = data.train if data else None
        found += review(recipe, job, facts, split.speeds, started.trainable, samples)
    return [f"{each.field}: {each.value}: {each.why}" for each in found]
