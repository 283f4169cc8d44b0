"""A bench's finished jobs as figures, and as what the judge reads: the same as of others' logs. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.core.bench import JobRecord
from muster.core.fabric_result import FabricRun, Matmul, Sweep
from muster.core.recipe import Recipe
from muster.core.result import Result
from muster.judging import Observation
from muster.planner.rota import Task
from muster.readers._failures import PATTERNS, Signs, shortened
from muster.readers.base import JobLog, Measured
from muster.stages.ends import OF_HOSTS
from muster.stages.joblogs import observation_of, work_of

# What Muster itself says of a host, by the catalogue's name for it.
_OWN_WORDS = (
    ("cannot be reached", "ssh_unreachable"),
    ("the host was lost", "ssh_unreachable"),
    ("not installed for", "remote_module_missing"),
)
_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")  # the first that all devices did is compared
# What does not change what a job takes; the rest of a recipe does, and with it whom it is compared with.
_APART = ("launch", "env", "force")


def figures_of(record: JobRecord) -> dict[str, float]:
    """What a job came to, by the names that suites use. Unknown ones are left out."""
    result = record.result
    if result is None:
        return {"seconds": record.ended - record.started}
    speed, seconds, flops = result.throughput, result.seconds, result.flops
    found: dict[str, float | None] = {
        "seconds": seconds.total,
        "setup_seconds": seconds.setup,
        "training_seconds": seconds.training,
        "memory": memory_of(result),
        "loss": result.loss_final,
        "evaluation_loss": result.evaluation_loss,
        "perplexity": result.perplexity,
    }
    if speed is not None:
        found |= {
            "samples_per_second": speed.samples_per_second,
            "tokens_per_second": speed.tokens_per_second or None,
            "step_seconds": speed.step_seconds_median,
            "variation": speed.variation,
        }
    if flops is not None:
        found |= {"mfu": flops.mfu, "flops_per_second": flops.model_per_second}
    if result.quality is not None:
        found |= {
            "exact_match": result.quality.exact_match,
            "execution_match": result.quality.execution_match,
        }
    if result.steps:
        found["skipped_share"] = result.skipped_steps / result.steps
    if result.fabric is not None:
        found |= fabric_figures(result.fabric)
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def fabric_figures(fabric: FabricRun) -> dict[str, float | None]:
    """busbw: all-reduce's best (bytes/s); latency: of a small one (s); matmul: of the slowest device."""
    sweeps = fabric.of("all-reduce")
    latencies = [each.median for each in fabric.latencies]
    products = _products(fabric.matmul)
    return {
        "busbw": max((each.busbw for each in sweeps), default=None),
        "latency": max(latencies, default=None),
        "matmul": min((each.sustained for each in products), default=None),
    }


def memory_of(result: Result) -> int | None:
    """The highest peak of a rank: the allocator's, on CPUs the process's."""
    return result.memory.allocator_peak or result.memory.resident_peak


def observed(tasks: Sequence[Task], logs: Mapping[str, Sequence[JobLog]]) -> list[Observation]:
    """What the jobs of one entry say of their hosts, for the choice of the next ones."""
    mine = (log for task in tasks for log in logs.get(task.id, ()))
    found = (observation_of(log, work_of(log)) for log in mine)
    return [each for each in found if each is not None]


def logs_of(task: Task, record: JobRecord, recipe: Recipe) -> list[JobLog]:
    """What the judge hears of a job: one log as a rule; of the fabric one for its collectives, and one per
    host for its own matrix products. The first has the job's id. Of a failure that is nobody's on the
    hosts it hears no hosts."""
    if task.warm_up:
        return []
    result = record.result
    base = JobLog(
        task.id, record.outcome, format="muster", hosts=task.hosts, hosts_from="muster", workload=task.entry,
        recipe=_about(record, recipe), world_size=result.world_size if result else None, family=task.entry,
    )  # fmt: skip
    if record.outcome != "succeeded" or result is None:
        failure, guilty = _failure(record, task)
        hosts = () if record.usage else task.hosts
        return [replace(base, reason=record.reason, failure=failure, failed_host=guilty, hosts=hosts)]
    if result.fabric is not None:
        return _fabric_logs(base, result.fabric)
    speed, measured = result.throughput, None
    if speed is not None and result.global_batch and speed.samples_per_second > 0 and speed.measured_steps:
        samples = float(speed.measured_steps * result.global_batch)
        seconds = samples / speed.samples_per_second
        tokens = speed.tokens_per_second * seconds or None
        measured = Measured(samples, seconds, speed.measured_steps, speed.windows, tokens, speed.variation)
    return [
        replace(
            base,
            batch=float(result.global_batch) if result.global_batch else None,
            steps=result.steps,
            skipped=result.skipped_steps,
            measured=measured,
            memory=memory_of(result),
            computing=_computing(result, task.hosts),
        )
    ]


def _computing(result: Result, hosts: Sequence[str]) -> tuple[float, ...]:
    """What each host's forward passes took; nothing where one does not say, or their shares differ."""
    told = {each.host: each.forward_seconds for each in result.hosts if each.share is None}
    found = [seconds for host in hosts if (seconds := told.get(host)) is not None]
    return tuple(found) if len(found) == len(hosts) else ()


def _about(record: JobRecord, recipe: Recipe) -> str:
    """The recipe and what it ran on: only jobs that share both are compared."""
    told = {key: value for key, value in recipe.as_dict().items() if key not in _APART}
    devices = sorted(set(record.devices.values()))
    precision = record.result.precision if record.result else None
    return json.dumps([told, devices, precision], sort_keys=True)


def _failure(record: JobRecord, task: Task) -> tuple[str | None, str | None]:
    """The failure's name in the catalogue, and the host that is to blame by it."""
    signs = Signs()
    for text in (record.reason or "", record.hint or ""):
        signs.line(shortened(text), record.failed_host)
    sign = signs.decisive()
    known = sign.failure if sign and sign.failure in {name for name, *_ in PATTERNS} else None
    guilty = record.failed_host if record.failed_host in task.hosts else None
    if guilty and known not in OF_HOSTS:
        known = next((name for words, name in _OWN_WORDS if words in (record.reason or "")), known)
    return known, guilty


def _fabric_logs(base: JobLog, fabric: FabricRun) -> list[JobLog]:
    """The largest all-reduce as the job's time, and of what size: a job that had too little time ends with a
    smaller one. Each host's matrix products as a job of it alone."""
    largest = max(fabric.of("all-reduce"), key=lambda each: each.bytes, default=None)
    logs = [base]
    if largest is not None:
        about = f"{base.workload}, all-reduce of {largest.bytes:,} bytes"
        logs = [replace(base, workload=about, batch=1.0, measured=_timed(largest))]
    by_host: dict[str, list[Matmul]] = {}
    for each in _products(fabric.matmul):
        by_host.setdefault(each.host, []).append(each)
    for host, products in by_host.items():
        slowest = min(products, key=lambda each: each.sustained)
        if not slowest.sustained > 0:
            continue
        seconds = 2.0 * slowest.n**3 / slowest.sustained
        logs.append(
            replace(
                base,
                path=f"{base.path}#{host}",
                hosts=(host,),
                workload=f"{base.workload}, matrix products in {slowest.precision}",
                family=f"{base.family}, matrix products",  # an entry's jobs are counted once
                recipe=f"{slowest.n} {slowest.device} {slowest.threads} {len(products)}",
                world_size=None,
                batch=1.0,
                measured=Measured(1.0, seconds, 1, 1, None, None),
                moment=base.path,
            )
        )
    return logs


def _timed(sweep: Sweep | None) -> Measured | None:
    """One all-reduce is a step of one sample."""
    if sweep is None or not sweep.time.median > 0:
        return None
    repeats = len(sweep.time.seconds)
    return Measured(float(repeats), repeats * sweep.time.median, repeats, repeats, None, sweep.time.variation)


def _products(products: Sequence[Matmul]) -> list[Matmul]:
    """Those of the first precision that every rank measured."""
    ranks = {each.rank for each in products}
    for precision in _PRECISIONS:
        of_it = [each for each in products if each.precision == precision]
        if of_it and {each.rank for each in of_it} == ranks:
            return of_it
    return []
