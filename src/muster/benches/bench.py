"""Bench: a suite on hosts -> many jobs on groups of them, one verdict per host. docs/bench.md."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.benches.child import Child
from muster.benches.document import Bench, BenchJob, JobRecord
from muster.benches.fold import Ended, fold_bench
from muster.benches.folder import BenchFolder
from muster.benches.grow import Growth
from muster.benches.inputs import BenchInputs, freeze_bench, reread, started_of, write_schedule
from muster.benches.loop import Jobs, Spectator, command, not_started, settle_unfinished
from muster.benches.schedule import Task, rounds
from muster.checks.check import WantedChecks
from muster.checks.check import check as inspect
from muster.checks.inspection import Inspection
from muster.checks.survey import Progress
from muster.core.errors import UsageError
from muster.core.inventory import Host
from muster.core.units import counted
from muster.fleet.shell import RealShell, Shell
from muster.judging import Baseline, Class
from muster.judging.logs import load_baselines


class Nobody:
    """A spectator that does not look."""

    def began(self, task: Task, run: Path) -> None:
        """See Spectator."""

    def ended(self, task: Task, record: JobRecord | None) -> None:
        """See Spectator."""

    def turn(self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
        """See Spectator."""


@dataclass
class Surroundings:
    """What a bench speaks with; tests give their own."""

    spectator: Spectator = field(default_factory=Nobody)
    announce: Callable[[str], None] = lambda text: None
    progress: Progress = lambda done, total, unreached: None
    shell: Shell = field(default_factory=RealShell)
    baseline: Path | None = None  # what an earlier bench, or muster judge --json, found normal


def bench(inputs: BenchInputs, folder: BenchFolder, around: Surroundings | None = None) -> Bench:
    """Run a suite to its end, or until Ctrl-C. The results are also in the folder.

    Raises UsageError (nothing was started then) and JobError.
    """
    around = around or Surroundings()
    stored = load_baselines(around.baseline) if around.baseline else {}
    if "," in str(folder.path):
        raise UsageError("a comma in it would divide hosts", where=str(folder.path), hint="another --output")
    folder.create()
    with folder.held():
        _keep_baseline(folder, around.baseline)
        freeze_bench(folder, inputs)
        return _inspected(inputs, folder, around, stored)


def continue_bench(
    folder: BenchFolder, around: Surroundings | None = None, *, at_once: int | None = None
) -> Bench:
    """Go on where a bench was broken off: jobs that are over are not run again. What is normal is as it was
    told last. Raises as `bench`."""
    around = around or Surroundings()
    folder = folder.marked()
    inputs = reread(folder, at_once)
    told = around.baseline or (folder.baseline if folder.baseline.exists() else None)
    stored = load_baselines(told) if told else {}
    with folder.held():
        _keep_baseline(folder, around.baseline)
        return _inspected(inputs, folder, around, stored)


def _keep_baseline(folder: BenchFolder, told: Path | None) -> None:
    """For a bench that goes on: the file may be another by then."""
    if told is not None:
        folder.write(folder.baseline, told.read_text(encoding="utf-8"))


def dry_run(inputs: BenchInputs, folder: BenchFolder) -> dict[str, Any]:
    """The schedule as data: jobs with their commands, and what would run beside each other."""
    suite, tasks = inputs.suite, inputs.schedule.tasks
    adaptive = [each.name for each in suite.jobs if suite.of(each).groups == "adaptive"]
    waves = rounds(tasks, inputs.at_once)
    return {
        "suite": inputs.name,
        "about": suite.about,
        "hosts": list(inputs.inventory.names),
        "check": suite.check.model_dump(mode="json") if suite.check else None,
        "at_once": inputs.at_once,
        "jobs": [
            {
                **task.as_dict(),
                "command": command(
                    folder.recipe(task.entry),
                    folder.hosts(task.id),
                    folder.next_attempt(task.id),
                    task,
                    inputs.recipes[task.entry],
                ),
            }
            for task in tasks
        ],
        "waves": [[task.id for task in wave] for wave in waves],
        "at_most_seconds": sum(max(task.timeout for task in wave) for wave in waves),
        "adaptive": adaptive,
        "notes": [
            *inputs.schedule.notes,
            *(f"{name}: its groups are chosen from results" for name in adaptive),
        ],
    }


def _inspected(
    inputs: BenchInputs, folder: BenchFolder, around: Surroundings, stored: Mapping[Class, Baseline]
) -> Bench:
    """The inspection, where the suite asks for one and none was made yet; then the jobs."""
    if inputs.suite.check is not None and not folder.inspection.exists():
        around.announce(f"inspecting {counted(len(inputs.inventory.hosts), 'host')}")
        found = _inspection(inputs, around)
        usable = [Host(each.name, each.slots) for each in found.usable]
        inputs = inputs.on(usable)
        write_schedule(folder, inputs, _dropped(found))
        folder.write_data(folder.inspection, found.model_dump(mode="json"))
    dropped = folder.read_schedule().get("dropped", {})
    for host, why in dropped.items():
        around.announce(f"{host} takes no part: {why}")
    return _jobs(inputs, folder, around, stored, dropped)


def _inspection(inputs: BenchInputs, around: Surroundings) -> Inspection:
    checks = inputs.suite.check
    assert checks is not None
    recipe = next(
        (each for each in inputs.recipes.values() if each.trains), next(iter(inputs.recipes.values()))
    )
    wanted = WantedChecks(inputs.name, checks.profile, checks.gpus, checks.group)
    return inspect(
        inputs.inventory,
        recipe,
        wanted,
        progress=around.progress,
        announce=around.announce,
        shell=around.shell,
    )


def _dropped(found: Inspection) -> dict[str, str]:
    """Hosts that are unfit, with everything that failed on them."""
    dropped = {}
    for host in found.hosts:
        if host.verdict in ("fit", "warning"):
            continue
        failed = [f"{each.check}: {each.problem}" for each in host.checks if each.level == "fail"]
        dropped[host.host] = "; ".join(failed) or host.verdict
    return dropped


def _jobs(
    inputs: BenchInputs,
    folder: BenchFolder,
    around: Surroundings,
    stored: Mapping[Class, Baseline],
    dropped: Mapping[str, str],
) -> Bench:
    growth = Growth(inputs, folder, stored)
    tasks = list(inputs.schedule.tasks)
    done = folder.records([task.id for task in tasks])
    notes = settle_unfinished(folder, tasks, done)
    for note in notes:
        around.announce(note)
    if done:
        around.announce(f"{len(done)} jobs are over already")
    jobs = Jobs(
        folder,
        inputs.inventory,
        inputs.recipes,
        tasks,
        done,
        inputs.at_once,
        around.shell,
        around.spectator,
        growth.grown,
    )
    stopped = jobs.run()
    found = fold_bench(
        Ended(
            id=folder.id,
            name=inputs.name,
            suite=inputs.suite,
            source=inputs.inventory.source,
            overrides=inputs.overrides,
            hosts=inputs.inventory.names,
            dropped=dropped,
            recipes=inputs.recipes,
            tasks=jobs.tasks,
            records=jobs.done,
            notes=[
                *inputs.schedule.notes,
                *growth.notes,
                *not_started(jobs.unstarted),
                *([stopped] if stopped else []),
            ],
            started=started_of(folder),
            ended=time.time(),
            stored=stored,
            unfinished=stopped is not None,
        )
    )
    folder.write_data(folder.bench, found.model_dump(mode="json"))
    folder.write(folder.table, table_of(found))
    return found


def table_of(found: Bench) -> str:
    """A row per job as CSV: the columns of the benchmark that this one stands in for first."""
    verdicts = {each.host: each.verdict for each in found.hosts}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    extra = sorted({name for job in found.jobs for name in job.figures} - {"samples_per_second", "memory"})
    rows.writerow(
        ["Hostnames", "Throughput (samples/sec)", "Status", "job", "recipe", "group", "seconds", "reason",
         "memory", "spread", "slower", "steps", "skipped", "verdicts", "entry", "repeat", "warm_up",
         "world_size", "misses", "run", *(f"figure.{name}" for name in extra)]
    )  # fmt: skip
    for job in found.jobs:
        rows.writerow("" if value is None else value for value in _row(job, verdicts, extra))
    return text.getvalue()


def _row(job: BenchJob, verdicts: Mapping[str, str], extra: Sequence[str]) -> list[Any]:
    figures = job.figures
    speed = figures.get("samples_per_second")
    status = "below threshold" if job.misses else "not a measurement" if job.not_measured else job.outcome
    took = job.ended - job.started if job.ended and job.started else None
    memory = figures.get("memory")
    why = job.reason or "; ".join(job.not_measured)
    return [
        ",".join(job.hosts), None if speed is None else f"{speed:.4f}", status, job.job, job.recipe, job.size,
        None if took is None else f"{took:.3f}", why, None if memory is None else int(memory),
        job.variation, None if job.slower is None else f"{job.slower:.6f}", job.steps, job.skipped_steps,
        " ".join(dict.fromkeys(verdicts.get(host, "unknown") for host in job.hosts)), job.entry, job.repeat,
        job.warm_up, job.world_size, "; ".join(job.misses), job.run, *(figures.get(name) for name in extra),
    ]  # fmt: skip
