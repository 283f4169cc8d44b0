"""Curves of entries over the number of hosts, and entries beside each other. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.benches.document import BenchJob, BesidePublished, Compared, Comparison, Curve, CurvePoint
from muster.benches.doubts import UNSTEADY
from muster.benches.suite import Suite
from muster.core.recipe import Recipe
from muster.core.units import format_seconds

_APART = ("launch", "env", "force", "measure")  # nothing that a comparison could be about
# What a job has to have measured for its rate to be compared: less is start-up and chance.
FEWEST_SECONDS = 2.0
FEWEST_STEPS = 10
ROUNDING = 0.005  # of an efficiency
MOST = 1.1  # an efficiency above is none: one of the two was no measurement


def curves_of(suite: Suite, jobs: Sequence[BenchJob]) -> list[Curve]:
    """The efficiency of each entry that asks for it, from jobs that ended well."""
    found = []
    for entry in suite.jobs:
        own = [job for job in jobs if job.entry == entry.name and job.figures.get("samples_per_second")]
        if entry.curve is None or not own:
            continue
        by_size: dict[int, list[BenchJob]] = {}
        for job in own:
            by_size.setdefault(job.size, []).append(job)
        groups = [by_size[size] for size in sorted(by_size)]
        points = _points(groups)
        notes = _doubts(groups, points)
        if any(len({job.world_size for job in group}) > 1 for group in by_size.values()):
            notes.append(
                "hosts have different numbers of slots: jobs of one size have different numbers of ranks"
            )
        if len(points) == 1:
            notes.append("one size alone ended well: there is nothing to compare it with")
        found.append(Curve(entry=entry.name, kind=entry.curve, points=points, notes=notes))
    return found


def _points(groups: Sequence[Sequence[BenchJob]]) -> list[CurvePoint]:
    """Speed-up S(n) = rate(n) / rate(smallest), efficiency S(n) / (ranks(n) / ranks(smallest)); for weak and
    strong scaling alike, since rates count samples and not steps. None where one of the two was too short to
    measure, or is no measurement."""
    points: list[CurvePoint] = []
    for group in groups:
        sound = [job for job in group if not job.not_measured] or group
        rates = [job.figures["samples_per_second"] for job in sound]
        ranks = round(statistics.median([job.world_size or job.size for job in group]))
        rate, first = statistics.median(rates), points[0] if points else None
        spread = variation(rates)
        why = list(dict.fromkeys(words for job in sound for words in job.not_measured))
        if spread is not None and spread > UNSTEADY:
            why.append(f"samples/s varied by {spread:.0%} over its jobs")
        speedup = rate / first.samples_per_second if first else 1.0
        efficiency = speedup * first.ranks / ranks if first else 1.0
        short = any(map(_short, (*group, *groups[0])))
        if efficiency > MOST and not (short or why or (first and first.not_measured)):
            why.append(
                f"an efficiency of {efficiency:.1%} cannot be: smaller jobs were slower than they could be"
            )
        told = not (why or short or (first and first.not_measured))
        points.append(
            CurvePoint(
                hosts=group[0].size,
                ranks=ranks,
                jobs=len(group),
                samples_per_second=rate,
                variation=spread,
                speedup=speedup if told else None,
                efficiency=efficiency if told else None,
                not_measured=why,
            )
        )
    return points


def _short(job: BenchJob) -> bool:
    """Whether it measured too little for its rate to mean anything."""
    seconds, step = job.measured_seconds, job.step_seconds
    if seconds is None or step is None:
        return False  # its rate is another tool's
    return seconds < FEWEST_SECONDS or seconds < (FEWEST_STEPS - 0.5) * step


def _doubts(groups: Sequence[Sequence[BenchJob]], points: Sequence[CurvePoint]) -> list[str]:
    """What is odd about a curve: runs that were too short, and more speed than there are ranks for."""
    notes = []
    short = [group for group in groups if any(map(_short, group))]
    if short:
        sizes = ", ".join(str(group[0].size) for group in short)
        least = min(job.measured_seconds or 0.0 for group in short for job in group)
        notes.append(
            f"too short to measure on {sizes} host{'' if sizes == '1' else 's'} ({format_seconds(least)} at "
            f"least): an efficiency takes {FEWEST_STEPS} steps and {FEWEST_SECONDS:g} s after the warm-up; "
            "more train.max_steps"
        )
    for group, point in zip(groups, points, strict=True):
        size = f"{point.hosts} host{'s' * (point.hosts > 1)}"
        if point.not_measured:
            more = f"; and {len(point.not_measured) - 2} more" if len(point.not_measured) > 2 else ""
            notes.append(f"{size}: not a measurement: {'; '.join(point.not_measured[:2])}{more}")
        spread = math.hypot(_spread(group, point), _spread(groups[0], points[0]))
        if point.efficiency is not None and point.efficiency > 1 + spread + ROUNDING:
            notes.append(
                f"{point.efficiency:.1%} on {point.hosts} hosts is more than the spread of {spread:.1%}: "
                "the smaller job ran slower than it could. A short run, a warm-up that is not over, a "
                "first job that fills caches, or other work on its host; more train.max_steps or repeats tell"
            )
    return notes


def _spread(group: Sequence[BenchJob], point: CurvePoint) -> float:
    """Of the rate: over the jobs, and over a job's own windows."""
    own = [job.variation for job in group if job.variation is not None]
    return max([point.variation or 0.0, *own])


def variation(values: Sequence[float]) -> float | None:
    """Coefficient of variation; None: a single value, or nothing but zeros."""
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if len(values) > 1 and mean > 0 else None


def comparison_of(suite: Suite, recipes: Mapping[str, Recipe], jobs: Sequence[BenchJob]) -> Comparison | None:
    """Entries beside each other, by size; and everything else that differs. None: the suite does not ask."""
    if suite.compare is None:
        return None
    flat = {each.name: dict(_flat(recipes[each.name].as_dict())) for each in suite.jobs}
    paths = sorted({path for each in flat.values() for path in each})
    differ = [path for path in paths if len({flat[name].get(path, "") for name in flat}) > 1]
    about = [path for path in differ if _within(path, suite.compare)]
    others = [path for path in differ if path not in about and path.partition(".")[0] not in _APART]
    rows = []
    for entry in suite.jobs:
        own = [job for job in jobs if job.entry == entry.name]
        for size in sorted({job.size for job in own}):
            of_size = [job for job in own if job.size == size]
            rates = [
                job.figures["samples_per_second"] for job in of_size if "samples_per_second" in job.figures
            ]
            rows.append(
                Compared(
                    entry=entry.name,
                    hosts=size,
                    jobs=len(of_size),
                    settings={path: flat[entry.name].get(path, "") for path in about},
                    figures=_medians(of_size),
                    spread=variation(rates) if rates else None,
                )
            )
    return Comparison(
        about=list(suite.compare),
        rows=rows,
        confounded_by={path: {name: flat[name].get(path, "") for name in flat} for path in others},
    )


def beside_published(
    suite: Suite, jobs: Sequence[BenchJob], devices: Mapping[str, Mapping[str, str]]
) -> list[BesidePublished]:
    """What was published of entries beside what their jobs measured. `devices`: per job, its hosts'."""
    found = []
    for entry in suite.jobs:
        own = [job for job in jobs if job.entry == entry.name and job.figures.get("samples_per_second")]
        for ranks in sorted({job.world_size for job in own if job.world_size}):
            alike = [job for job in own if job.world_size == ranks]
            figures = _medians(alike)
            kinds = sorted({kind for job in alike for kind in devices.get(job.job, {}).values()})
            for each in entry.published:
                nearest = min(
                    each.samples_per_second, key=lambda count: (abs(math.log(count / ranks)), count)
                )
                published = each.samples_per_second[nearest] / nearest * ranks
                found.append(
                    BesidePublished(
                        entry=entry.name,
                        ranks=ranks,
                        jobs=len(alike),
                        devices=kinds,
                        samples_per_second=figures["samples_per_second"],
                        memory=figures.get("memory"),
                        source=each.source,
                        published_on=each.on,
                        same_device=bool(kinds) and all(each.means(kind) for kind in kinds),
                        published_ranks=nearest,
                        published=published,
                        published_memory=each.memory,
                        ratio=figures["samples_per_second"] / published,
                    )
                )
    return found


def _medians(jobs: Sequence[BenchJob]) -> dict[str, float]:
    """Of every figure that all of these jobs have."""
    names = set.intersection(*(set(job.figures) for job in jobs))
    return {name: statistics.median([job.figures[name] for job in jobs]) for name in sorted(names)}


def _within(path: str, about: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in about)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf by its dotted path, as text."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "none" if value is None or value == {} else str(value)
