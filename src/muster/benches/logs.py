"""A bench's finished jobs as figures, and in the form that the judge reads, as of others' logs. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.benches.commands import Speed, speeds
from muster.benches.document import JobRecord
from muster.benches.doubts import UNSTEADY, Doubts, doubts_of, steady_sweeps, varied
from muster.core.fabric import FabricRun, Matmul, Sweep
from muster.core.recipe import Recipe
from muster.core.result import CommandRun, JobEntry, Result
from muster.core.state import State
from muster.judging import Observation
from muster.judging.joblogs import observation_of, work_of
from muster.readers.base import JobLog, MeasuredWindows

# Of matrix products, the first arithmetic that all devices did is compared: that of the bench's trainings,
# then what such devices train in where a recipe leaves it open.
_USUAL = {"cpu": ("fp32", "bf16"), "cuda": ("bf16", "fp16", "tf32", "fp32")}
# What does not change what a job takes; the rest of a recipe does, and with it whom it is compared with.
_APART = ("launch", "env", "force")


def figures_of(record: JobRecord, recipes: Mapping[str, Recipe] | None = None) -> dict[str, float]:
    """Return a job's figures, by the names that suites use. Unknown ones are left out. `recipes`: the
    bench's, which give the arithmetic of matrix products."""
    result = record.result
    if result is None:
        return {"seconds": record.took or 0.0}
    speed, seconds, flops = result.throughput, result.seconds, result.flops
    figures: dict[str, float | None] = {
        "seconds": seconds.total,
        "setup_seconds": seconds.setup,
        "training_seconds": seconds.training,
        "memory": memory_of(result),
        "loss": result.loss_final,
        "evaluation_loss": result.evaluation_loss,
        "perplexity": result.perplexity,
    }
    if speed is not None:
        figures |= {
            "samples_per_second": speed.samples_per_second,
            "tokens_per_second": speed.tokens_per_second or None,
            "step_seconds": speed.step_seconds_median,
            "variation": speed.variation,
        }
    if flops is not None:
        figures |= {"mfu": flops.mfu, "flops_per_second": flops.model_per_second}
    if result.quality is not None:
        figures |= {
            "exact_match": result.quality.exact_match,
            "execution_match": result.quality.execution_match,
        }
    if result.steps:
        figures["skipped_share"] = result.skipped_steps / result.steps
    if result.fabric is not None:
        figures |= fabric_figures(result.fabric, recipes or {})
    if result.command is not None:
        figures |= command_figures(result.command)
    return {
        name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)
    }


def fabric_figures(fabric: FabricRun, recipes: Mapping[str, Recipe]) -> dict[str, float | None]:
    """Return busbw: all-reduce's best (bytes/s); latency: of a small one (s); matmul: of the slowest device.
    """
    sweeps = fabric.of("all-reduce")
    latencies = [each.median for each in fabric.latencies]
    products = _products(fabric, recipes)
    return {
        "busbw": max((each.busbw for each in sweeps), default=None),
        "latency": max(latencies, default=None),
        "matmul": min((each.sustained for each in products), default=None),
    }


def command_figures(run: CommandRun) -> dict[str, float | None]:
    """Return the figures of its output, and how long it ran."""
    figures = {"step_seconds": run.step_seconds, "variation": run.variation}
    if run.unit != "steps":
        figures[f"{run.unit}_per_second"] = run.rate
    return figures if run.seconds is None else {**figures, "seconds": run.seconds}


def memory_of(result: Result) -> int | None:
    """Return the highest peak of a rank: the allocator's, on CPUs the process's."""
    return result.memory.allocator_peak or result.memory.resident_peak


def observed(logs: Mapping[str, Sequence[JobLog]]) -> list[Observation]:
    """Return the observations of the jobs of one entry, for the choice of the next ones."""
    observations = (observation_of(log, work_of(log)) for own in logs.values() for log in own)
    return [each for each in observations if each is not None]


def logs_of(records: Mapping[str, JobRecord], recipes: Mapping[str, Recipe]) -> dict[str, list[JobLog]]:
    """Return the judge's logs of each job that is over, warm-ups apart: one log as a rule; of the fabric one
    for its collectives, and one per host for its own matrix products. The first has the job's id. A failure
    that is no host's fault has no hosts; what is no measurement has no times."""
    over = {job: record for job, record in records.items() if not record.warm_up}
    by_command = speeds(records, recipes)
    doubts = doubts_of(records, by_command)
    disturbed = {job for job, each in doubts.items() if each.disturbed}
    alike: dict[tuple[str, int], list[dict[int, Sweep]]] = {}
    for job, record in over.items():
        if job not in disturbed and (sweeps := steady_sweeps(record)):
            alike.setdefault((record.entry, record.size), []).append(sweeps)
    compared = {key: _Compared.of(each) for key, each in alike.items()}
    logs_by_job = {}
    for job, record in over.items():
        speed, doubt = by_command.get(job), doubts.get(job, Doubts())
        how = speed.how if speed else None
        row = JobLog.of(row_of(record, recipes), measure=how, not_measured=doubt.all)
        logs = _logs(row, record, recipes, compared.get((record.entry, record.size)), speed)
        logs_by_job[job] = [replace(logs[0], measured=None)] if job in disturbed else logs
    return logs_by_job


def row_of(record: JobRecord, recipes: Mapping[str, Recipe]) -> JobEntry:
    """Return the row of a job that is over, before it is judged."""
    ranks = record.result.world_size if record.result else None
    return JobEntry.of(record, world_size=ranks, figures=figures_of(record, recipes))


def _logs(
    row: JobLog,
    record: JobRecord,
    recipes: Mapping[str, Recipe],
    compared: _Compared | None,
    speed_of_command: Speed | None,
) -> list[JobLog]:
    result, entry = record.result, row.entry
    base = replace(
        row, outcome=State.SUCCEEDED if record.measured else record.outcome, format="muster",
        hosts_from="muster", workload=entry, settings=_about(record, recipes[entry]),
    )  # fmt: skip
    if not record.measured or result is None:
        host = record.failed_host if record.failed_host in row.hosts else None
        guilty = ((host, record.failure),) if host else ()
        hosts = () if record.usage else row.hosts
        return [replace(base, failed=guilty, hosts=hosts)]
    if result.fabric is not None:
        reduced = (compared or _Compared(0, {})).reduced(base, steady_sweeps(record))
        products = _product_logs(base, _products(result.fabric, recipes))
        shaky = [note for log in products for note in log.notes]
        return [
            replace(reduced, notes=(*reduced.notes, *shaky)),
            *(log for log in products if log.measured),
        ]
    if speed_of_command is not None:
        figures = speed_of_command.measured
        unit = figures.unit if figures else "samples"
        return [replace(base, steps=result.steps, measured=figures, unit=unit, loss=result.loss_final)]
    speed, measured = result.throughput, None
    if speed and 0 < speed.samples_per_second < math.inf and result.global_batch and speed.measured_steps:
        samples = float(speed.measured_steps * result.global_batch)
        seconds = samples / speed.samples_per_second
        tokens = speed.tokens_per_second * seconds or None
        measured = MeasuredWindows(
            speed.measured_steps, 0, samples, seconds, tokens, windows=speed.windows,
            variation=speed.variation, halves=speed.halves,
        )  # fmt: skip
    return [
        replace(
            base,
            batch=float(result.global_batch) if result.global_batch else None,
            steps=result.steps,
            skipped_steps=result.skipped_steps,
            measured=measured,
            spread=_error(speed.variation, speed.windows) if speed is not None else None,
            memory=memory_of(result),
            computing=_computing(result, row.hosts),
        )
    ]


def _computing(result: Result, hosts: Sequence[str]) -> tuple[float, ...]:
    """Return the seconds of each host's forward passes; empty where one is missing, or their shares differ.
    """
    by_host = {each.host: each.forward_seconds for each in result.hosts if each.share is None}
    seconds_of_hosts = [seconds for host in hosts if (seconds := by_host.get(host)) is not None]
    return tuple(seconds_of_hosts) if len(seconds_of_hosts) == len(hosts) else ()


def _about(record: JobRecord, recipe: Recipe) -> str:
    """Return the recipe and what it ran on: only jobs that share both are compared."""
    settings = {key: value for key, value in recipe.as_dict().items() if key not in _APART}
    devices = sorted(set(record.devices.values()))
    precision = record.result.precision if record.result else None
    return json.dumps([settings, devices, precision], sort_keys=True)


@dataclass(frozen=True)
class _Compared:
    """The size at which all-reduces of jobs alike are compared: the largest that half of them reached.

    A sweep has so many seconds: over a slow link it ends at a smaller size. Such a job is compared at the
    largest size that it reached, as if it had gone on like the others: `longer`, by size, is how much longer
    than of that size an all-reduce of the compared size takes (median of the jobs that did both).
    """

    bytes: int
    longer: Mapping[int, float]

    @classmethod
    def of(cls, jobs: Sequence[Mapping[int, Sweep]]) -> _Compared:
        """Compare the sweeps of jobs alike, of which there is one at least."""
        sizes = sorted({size for each in jobs for size in each}, reverse=True)
        most = next(size for size in sizes if 2 * sum(size in each for each in jobs) >= len(jobs))
        ratios: dict[int, list[float]] = {}
        for each in jobs:
            for size in each if most in each else ():
                ratios.setdefault(size, []).append(each[most].time.median / each[size].time.median)
        return cls(most, {size: statistics.median(shares) for size, shares in ratios.items()})

    def reduced(self, base: JobLog, sweeps: Mapping[int, Sweep]) -> JobLog:
        """Return the job's log: an all-reduce is a step."""
        reached = max((size for size in sweeps if size in self.longer and size <= self.bytes), default=None)
        if reached is None:
            note = "none of its steady all-reduces has a size that others measured too: not compared"
            if not sweeps:  # see doubts.py
                return base
            return replace(base, notes=(note,), not_measured=base.not_measured or (note,))
        time, longer = sweeps[reached].time, self.longer[reached]
        short = (
            f"its largest steady all-reduce is of {reached:,} bytes: compared there with those of the jobs "
            f"that reached {self.bytes:,}"
        )
        repeats = len(time.seconds)
        return replace(
            base,
            workload=f"{base.workload}, all-reduce of {self.bytes:,} bytes",
            batch=1.0,
            unit="steps",
            measured=MeasuredWindows(
                1, 0, 1.0, longer * time.median, windows=repeats, variation=time.variation, unit="steps"
            ),
            exchanges=len(base.hosts) > 1,
            spread=_error(varied(time), repeats),
            notes=(short,) if reached < self.bytes else (),
        )


def _product_logs(base: JobLog, products: Sequence[Matmul]) -> list[JobLog]:
    """Return each host's matrix products as a job of it alone, by its slowest rank. Without a measurement
    where they varied too much, and why in the notes."""
    by_host: dict[str, list[Matmul]] = {}
    for each in products:
        by_host.setdefault(each.host, []).append(each)
    logs = []
    for host, mine in by_host.items():
        if not all(0 < each.sustained < math.inf for each in mine):
            continue
        slowest = min(mine, key=lambda each: each.sustained)
        varied = slowest.variation
        shaky = varied is not None and varied > UNSTEADY
        note = f"the matrix products of {host} varied by {varied:.0%}: not a measurement" if shaky else ""
        logs.append(
            replace(
                base,
                job=f"{base.job}#{host}",
                hosts=(host,),
                workload=f"{base.workload}, matrix products in {slowest.precision}",
                entry=f"{base.entry}, matrix products",  # an entry's jobs are counted once
                settings=f"{slowest.n} {slowest.device} {slowest.threads} {len(mine)}",
                world_size=None,
                batch=1.0,
                unit="steps",
                measured=None
                if shaky
                else MeasuredWindows(
                    1, 0, 1.0, 2.0 * slowest.n**3 / slowest.sustained, variation=varied, unit="steps"
                ),
                spread=_error(varied, slowest.windows),
                moment=base.job,
                notes=(note,) if note else (),
            )
        )
    return logs


def _error(variation: float | None, windows: int) -> float | None:
    """Return the relative standard error of a mean of so many windows; None: it is not known."""
    if variation is None or not 0 <= variation < math.inf or windows < 1:
        return None
    return variation / math.sqrt(windows)


def _products(fabric: FabricRun, recipes: Mapping[str, Recipe]) -> list[Matmul]:
    """Return the products of the first arithmetic that every rank measured."""
    precisions = [each.precision for each in recipes.values() if each.trains]
    ranks = {each.rank for each in fabric.matmul}
    for precision in dict.fromkeys([*precisions, *_USUAL[fabric.device]]):
        of_it = [each for each in fabric.matmul if each.precision == precision]
        if of_it and {each.rank for each in of_it} == ranks:
            return of_it
    return []
