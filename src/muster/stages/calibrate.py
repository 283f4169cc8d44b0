"""Calibrate: what finished runs teach about their devices and links, kept for the plans to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muster.core.errors import RunFolderError
from muster.core.inventory import Host
from muster.core.job import Job, read_job
from muster.core.links import Figures, find_link
from muster.core.machines import Machines
from muster.core.recipe import recipe_from
from muster.core.result import Result
from muster.planner.learning import Measured, errors, learn
from muster.planner.learning_links import link_figures
from muster.planner.model import whole_config
from muster.planner.prospect import case_of
from muster.planner.setting import setting_of
from muster.planner.steptime import Calibration, Case, key, link_key
from muster.stages.outlook import NOMINAL, Ground, load_calibration, save_calibration
from muster.stages.settle import tracer
from muster.store.runfolder import RunFolder


@dataclass(frozen=True)
class Learned:
    """What runs taught. `runs`: those that trained; `errors`: of each of them, predicted seconds of a step
    over measured ones, less one."""

    calibration: Calibration
    file: Path
    runs: tuple[str, ...]
    errors: tuple[float, ...]


def calibrate(runs: Sequence[RunFolder], link: str | None = None, file: Path | None = None) -> Learned:
    """Learn from runs, and remember it: from trainings, and from the fabric workload's, which measure a link.
    `link`: between their hosts, in place of what those say.

    Raises RunFolderError for a run that teaches nothing, UsageError for a link that is not understood.
    """
    known = load_calibration(file)
    trained = []
    for run in runs:
        found = link_of(run, link)
        if found is None:
            trained.append(run)
        else:
            known = replace(known, links={**known.links, **found})
    measured = [measured_of(run, link) for run in trained]
    alone = {_device(each) for each in measured if each.case.machines.ranks == 1}
    for run, each in zip(trained, measured, strict=True):
        if _device(each) not in alone and _device(each) not in known.efficiency:
            raise RunFolderError(
                f"ran on several ranks, and no run on one has shown what a {_device(each)} can do",
                where=run.id,
                hint="a run of the same kind on one rank first: --calibrate THAT --calibrate THIS",
            )
    learned = learn(measured, known)
    saved = save_calibration(learned, file)
    return Learned(learned, saved, tuple(run.id for run in trained), tuple(errors(measured, learned)))


def _device(measured: Measured) -> str:
    return key(measured.case.machines.device.name, measured.case.precision)


def measured_of(run: RunFolder, link: str | None = None) -> Measured:
    """A run's case, and the seconds of its steps. Raises RunFolderError where either is not known."""
    result, job = run.read_result(), read_job(run.read_json(run.job))
    if result is None or job is None or result.status != "succeeded" or result.throughput is None:
        raise RunFolderError(
            "has no measured speed", where=run.id, hint="a run that succeeded, with steps after its warm-up"
        )
    if any(report.share is not None for report in result.hosts):
        raise RunFolderError("had unequal shares, which teach nothing about one device", where=run.id)
    case = _case(job, [place.slots for place in job.placements], _machines(run, result, job, link))
    if case is None:
        raise RunFolderError("trained a model that is not known here", where=run.id)
    return Measured(case, _step_seconds(result, job))


def link_of(run: RunFolder, link: str | None = None) -> dict[str, Figures] | None:
    """What a run of the fabric workload measured of its link, by the link's name; None for a training.

    Raises RunFolderError where it is not finished, or its link is not known.
    """
    result, job = run.read_result(), read_job(run.read_json(run.job))
    if result is None or job is None or result.fabric is None:
        return None
    machines = _machines(run, result, job, link)
    joined = machines.link if machines.hosts > 1 else machines.inner
    if result.status != "succeeded" or joined is None:
        raise RunFolderError("measured no link that is known", where=run.id, hint="--link 10Gbit names it")
    ranks = sum(place.slots for place in job.placements)
    return {link_key(joined, machines.device.kind): link_figures(result.fabric, ranks)}


def _machines(run: RunFolder, result: Result, job: Job, link: str | None) -> Machines:
    """What a run ran on. Raises RunFolderError where that is not known."""
    recipe = recipe_from(job.recipe)
    ground = Ground(
        {report.host: report.facts for report in result.hosts},
        tuple(Host(place.host, place.slots) for place in job.placements),
        NOMINAL,
        link=find_link(link) if link else None,
        env=recipe.env,
        threads=recipe.launch.threads,
        one_machine=job.launcher == "local",
    )
    machines = ground.on([place.slots for place in job.placements], job.device)
    if machines is None:
        raise RunFolderError("ran on a device or over a link that is not known", where=run.id)
    return machines


def _case(job: Job, slots: Sequence[int], machines: Machines) -> Case | None:
    recipe = recipe_from(job.recipe)
    config = whole_config(recipe)
    trace = tracer(recipe, job.precision, job.device, sum(slots))
    setting = setting_of(recipe, config, job.precision, job.device, slots, trace)
    if setting is None:
        return None
    setting = replace(setting, micro=job.batch.micro, accumulation=job.batch.accumulation)
    return case_of(setting, machines)


def _step_seconds(result: Result, job: Job) -> float:
    """The mean of the measured windows: what an epoch is made of."""
    assert result.throughput is not None
    return job.batch.global_ / result.throughput.samples_per_second
