"""From the jobs that are over to the document: figures, thresholds, a verdict per host. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from muster.benches.commands import CLOCK, notes_on, speeds
from muster.benches.document import (
    Bench,
    Compared,
    Comparison,
    Curve,
    CurvePoint,
    JobRecord,
    PublishedComparison,
)
from muster.benches.doubts import UNSTEADY
from muster.benches.inputs import BenchInputs
from muster.benches.logs import logs_of, row_of
from muster.benches.schedule import Task
from muster.benches.suite import Suite, Threshold
from muster.benches.switches import switches_of
from muster.core.recipe import Recipe
from muster.core.recipes import leaves_of
from muster.core.result import JobEntry
from muster.core.robust import variation
from muster.core.state import State
from muster.core.units import format_seconds
from muster.judging import Baseline, JobClass, Settings, document
from muster.judging.baseline import FEWEST
from muster.judging.document import Verdict
from muster.judging.joblogs import judged
from muster.judging.logs import blamed

# A threshold of one of these, met alone, makes a host fit where there is no fleet to compare it with.
SPEEDS = (
    "samples_per_second", "tokens_per_second", "step_seconds", "mfu", "flops_per_second", "training_seconds",
    "seconds", "matmul",
)  # fmt: skip


def fold_bench(
    *,
    id: str,
    inputs: BenchInputs,
    dropped: Mapping[str, str],
    tasks: Sequence[Task],
    records: Mapping[str, JobRecord],
    notes: Sequence[str],
    started: float,
    ended: float,
    stored: Mapping[JobClass, Baseline],
    unfinished: bool = False,
) -> Bench:
    """Make the document of a bench in its present state. The hosts of `inputs` are those that take part;
    `dropped`: those that do not, and why; `unfinished`: an adaptive entry would have asked for more."""
    records = {task.id: records[task.id] for task in tasks if task.id in records}
    logs_by_job = logs_of(records, inputs.recipes)
    logs = [log for each in logs_by_job.values() for log in each]
    settings = Settings(slow=inputs.suite.slow)
    judgement = judged(inputs.name, logs, settings, stored, switches_of(inputs.suite))
    entries = {each.job: each for each in judgement.jobs}
    ran = speeds(records, inputs.recipes)
    jobs = [_job(inputs, record, entries) for record in records.values()]
    jobs = with_misses(jobs, inputs.suite, judgement.peers)
    hosts = _hosts(inputs, dropped, jobs, judgement)
    versions = next((r.result.versions for r in records.values() if r.result and r.result.versions), {})
    well = [job for job in jobs if not job.warm_up and job.outcome.good]
    measured = [job for job in well if not job.not_measured]
    by_work = sorted(judgement.peers, key=lambda each: (each.work.partition(",")[0], each.hosts, each.work))
    own = {
        "source": inputs.inventory.source, "hosts": hosts, "peers": by_work, "jobs": jobs,
        "notes": [*notes, *notes_on(ran, records), *judgement.notes],
    }  # fmt: skip
    return Bench(
        **{**dict(judgement), **own},
        id=id,
        suite=inputs.name,
        about=inputs.suite.about,
        overrides=list(inputs.overrides),
        complete=not unfinished and len(records) == len(tasks),
        started=started,
        ended=ended,
        versions=versions,
        curves=curves_of(inputs.suite, well),
        comparison=comparison_of(inputs.suite, inputs.recipes, measured),
        published=beside_published(
            inputs.suite, measured, {name: record.devices for name, record in records.items()}
        ),
    )


def _job(inputs: BenchInputs, record: JobRecord, entries: Mapping[str, JobEntry]) -> JobEntry:
    """Return a job's row. Of one that measured the fabric of a single host its products are judged."""
    recipe = inputs.recipes[record.entry]
    row = entries.get(record.job) or row_of(record, inputs.recipes)
    alone = entries.get(f"{record.job}#{record.hosts[0]}") if record.size == 1 else None
    if alone and not row.judged:
        row = replace(row, slower=alone.slower, judged=alone.judged, work=alone.work)
    if row.measure == CLOCK or not (row.measure or recipe.trains):  # a whole run's time, or an all-reduce's
        row = replace(row, step_seconds=None, measured_seconds=None)
    return replace(
        row,
        outcome=record.outcome,  # one that was cut is judged by its speed all the same
        hosts=record.hosts,
        failed_host=record.failed_host,
        recipe=next(each.called for each in inputs.suite.jobs if each.name == record.entry),
    )


def with_misses(jobs: Sequence[JobEntry], suite: Suite, peers: Sequence[document.Peers]) -> list[JobEntry]:
    """Return each job with the thresholds that it does not meet. An unknown figure meets none."""
    bounds = {each.name: suite.of(each).thresholds for each in suite.jobs}
    made = []
    for job in jobs:
        misses: tuple[str, ...] = ()
        if job.outcome.good and not (job.warm_up or job.not_measured):
            misses = tuple(
                words
                for bound in bounds[job.entry]
                if (words := _missed(job, bound, _normal(job, bound, jobs, peers))) is not None
            )
        made.append(replace(job, misses=misses))
    return made


def _normal(
    job: JobEntry, bound: Threshold, jobs: Sequence[JobEntry], peers: Sequence[document.Peers]
) -> float | None:
    """Return the figure of jobs of the same work on as many hosts: the judge's baseline for the throughput,
    else the median of at least four. None: there are too few."""
    if bound.figure == "samples_per_second":
        for each in peers:
            if (each.work, each.hosts) == (job.work, job.size) and each.samples_per_second:
                return each.samples_per_second
    alike = [
        each.figures[bound.figure]
        for each in jobs
        if (each.work, each.size, each.outcome) == (job.work, job.size, State.SUCCEEDED)
        and not (each.warm_up or each.not_measured)
        and bound.figure in each.figures
    ]
    return statistics.median(alike) if len(alike) >= FEWEST else None


def _missed(job: JobEntry, bound: Threshold, normal: float | None) -> str | None:
    """Return why the job does not meet the threshold; None: it does, or there is no fleet to compare it with.
    """
    value = job.figures.get(bound.figure)
    if value is None:
        return f"{bound.figure} is not known; it must be {bound.words}"
    if bound.per == "fleet":
        if not normal:
            return None
        value /= normal
    elif (count := job.divisor(bound.per)) is not None:
        value /= count
    else:
        return f"{bound.figure} per {bound.per} is not known; it must be {bound.words}"
    return None if bound.met(value) else f"{bound.figure} is {value:.6g}; it must be {bound.words}"


def _hosts(
    inputs: BenchInputs, dropped: Mapping[str, str], jobs: Sequence[JobEntry], judgement: document.Judged
) -> list[Verdict]:
    """Return one verdict per host, in the order of the inventory; those that took no part last."""
    verdicts = {each.host: each for each in judgement.hosts}
    counted = [job for job in jobs if not job.warm_up]
    bounded = {
        each.name
        for each in inputs.suite.jobs
        if any(bound.per != "fleet" and bound.figure in SPEEDS for bound in inputs.suite.of(each).thresholds)
    }
    reason = "no job of this host could be evaluated"
    made = [
        _host(
            verdicts.get(host) or Verdict(hosts=[host], condition="unknown", confidence=0.0, reason=reason),
            [job for job in counted if host in job.hosts],
            bounded,
        )
        for host in inputs.inventory.names
    ]
    left_out = [
        Verdict(hosts=[host], condition="unfit", confidence=1.0, reason=why) for host, why in dropped.items()
    ]
    return [*blamed(made, counted), *left_out]


def _host(verdict: Verdict, jobs: Sequence[JobEntry], bounded: set[str]) -> Verdict:
    """Return the verdict by comparison with others, and by thresholds that it met. `bounded`: entries with a
    threshold of speed that needs no fleet."""
    well = bool(jobs) and all(job.outcome.good and not job.misses for job in jobs)
    if verdict.condition == "unknown" and not verdict.evidence and well:
        verdict = _uncompared(verdict, jobs, bounded)
    left = document.not_judged(
        verdict.condition, verdict.subjects, exchanged=any(job.size > 1 for job in jobs)
    )
    if verdict.condition in document.GOOD and left and left not in verdict.reason:
        return verdict.model_copy(update={"reason": f"{verdict.reason}; {left}"})
    return verdict


def _uncompared(verdict: Verdict, jobs: Sequence[JobEntry], bounded: set[str]) -> Verdict:
    """Return the verdict of a host whose jobs succeeded and could not be compared: by the thresholds that
    they met."""
    reason = "its jobs succeeded, but there are too few similar jobs to compare them with"
    sound = [job for job in jobs if not job.not_measured]
    if not sound:
        reason = f"its jobs are no measurements: {jobs[0].not_measured[0]}"
    by_thresholds = _by_thresholds([job for job in sound if job.entry in bounded])
    subjects = {each.name: each for each in verdict.subjects} | by_thresholds
    if any(job.size > 1 for job in jobs):
        subjects.setdefault("card", document.Subject(name="card", condition="unknown"))
    fields: dict[str, Any] = {"reason": reason, "subjects": list(subjects.values())}
    if "compute" in by_thresholds:
        reason = "it meets the thresholds; there are too few similar jobs to compare it with"
        fields |= {"condition": "fit", "confidence": 1.0, "reason": reason}
    return verdict.model_copy(update=fields)


def _by_thresholds(jobs: Sequence[JobEntry]) -> dict[Literal["compute", "card", "links"], document.Subject]:
    """Return what thresholds of speed that these jobs met show: alone of what a host computes, in a group of
    its card as well."""
    counts: dict[Literal["compute", "card", "links"], int] = {
        "compute": sum(job.size == 1 for job in jobs),
        "card": sum(job.size > 1 for job in jobs),
    }
    return {
        name: document.Subject(name=name, condition="fit", jobs=count)
        for name, count in counts.items()
        if count
    }


# ----------------------------------------------------------------------------------------------------
# Curves of entries over the number of hosts, and entries beside each other. Pure.

_APART = ("launch", "env", "force", "measure")  # nothing that a comparison could be about
# What a job has to have measured for its rate to be compared: less is start-up and chance.
FEWEST_SECONDS = 2.0
FEWEST_STEPS = 10
ROUNDING = 0.005  # of an efficiency
MOST = 1.1  # an efficiency above is none: one of the two was no measurement


def curves_of(suite: Suite, jobs: Sequence[JobEntry]) -> list[Curve]:
    """Return the efficiency of each entry that asks for it, from jobs that ended well."""
    curves = []
    for entry in suite.jobs:
        own = [job for job in jobs if job.entry == entry.name and job.figures.get("samples_per_second")]
        if entry.curve is None or not own:
            continue
        by_size: dict[int, list[JobEntry]] = {}
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
        curves.append(Curve(entry=entry.name, kind=entry.curve, points=points, notes=notes))
    return curves


def _points(groups: Sequence[Sequence[JobEntry]]) -> list[CurvePoint]:
    """Return speed-up S(n) = rate(n) / rate(smallest), efficiency S(n) / (ranks(n) / ranks(smallest)); for
    weak and strong scaling alike, since rates count samples and not steps. None where one of the two was too
    short to measure, or is no measurement."""
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
        measured = not (why or short or (first and first.not_measured))
        points.append(
            CurvePoint(
                hosts=group[0].size,
                ranks=ranks,
                jobs=len(group),
                samples_per_second=rate,
                variation=spread,
                speedup=speedup if measured else None,
                efficiency=efficiency if measured else None,
                not_measured=why,
            )
        )
    return points


def _short(job: JobEntry) -> bool:
    """Return whether it measured too little for its rate to mean anything."""
    seconds, step = job.measured_seconds, job.step_seconds
    if seconds is None or step is None:
        return False  # its rate is another tool's
    return seconds < FEWEST_SECONDS or seconds < (FEWEST_STEPS - 0.5) * step


def _doubts(groups: Sequence[Sequence[JobEntry]], points: Sequence[CurvePoint]) -> list[str]:
    """Return what is odd about a curve: runs that were too short, and more speed than there are ranks for."""
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


def _spread(group: Sequence[JobEntry], point: CurvePoint) -> float:
    """Return the spread of the rate: over the jobs, and over a job's own windows."""
    own = [job.variation for job in group if job.variation is not None]
    return max([point.variation or 0.0, *own])


def comparison_of(suite: Suite, recipes: Mapping[str, Recipe], jobs: Sequence[JobEntry]) -> Comparison | None:
    """Return entries side by side, by size; and everything else that differs. None: the suite does not ask.
    """
    if suite.compare is None:
        return None
    flat = {
        each.name: {
            path: "none" if value is None or value == {} else str(value)
            for path, value in leaves_of(recipes[each.name].as_dict()).items()
        }
        for each in suite.jobs
    }
    paths = sorted({path for each in flat.values() for path in each})
    differ = [path for path in paths if len({flat[name].get(path, "") for name in flat}) > 1]
    about = [
        path for path in differ if any(path == each or path.startswith(f"{each}.") for each in suite.compare)
    ]
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
                    spread=variation(rates),
                )
            )
    return Comparison(
        about=list(suite.compare),
        rows=rows,
        confounded_by={path: {name: flat[name].get(path, "") for name in flat} for path in others},
    )


def beside_published(
    suite: Suite, jobs: Sequence[JobEntry], devices: Mapping[str, Mapping[str, str]]
) -> list[PublishedComparison]:
    """Return published figures of entries with what their jobs measured. `devices`: per job, its hosts'."""
    rows = []
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
                rows.append(
                    PublishedComparison(
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
    return rows


def _medians(jobs: Sequence[JobEntry]) -> dict[str, float]:
    """Return the median of every figure that all of these jobs have."""
    names = set.intersection(*(set(job.figures) for job in jobs))
    return {name: statistics.median([job.figures[name] for job in jobs]) for name in sorted(names)}
