"""Calibrate: learn from finished runs about their devices and links, for later plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from muster.core.errors import RunFolderError
from muster.core.hardware.devices import CPU
from muster.core.hardware.links import LinkFigures, find_link
from muster.core.hardware.machines import Machines
from muster.core.inventory import Host
from muster.core.job import Job, read_job
from muster.core.recipe import recipe_from
from muster.core.result import Result
from muster.inputs.model import whole_config
from muster.planner.machines import MachineModel, load_calibration, save_calibration
from muster.planner.predict import case_of
from muster.planner.setting import setting_of
from muster.planner.time.learning import (
    MeasuredRun,
    as_counted,
    at_mean_lengths,
    deviation_of_hosts,
    errors,
    learn,
    link_figures,
    on_host,
    shows_device,
)
from muster.planner.time.steptime import Calibration, StepCase, case_key, link_key
from muster.planner.tracing import once, tracer
from muster.store.runfolder import RunFolder


def calibrate(
    runs: Sequence[RunFolder], link: str | None = None
) -> tuple[Calibration, Path, dict[str, float]]:
    """Learn from runs, and store it: from trainings, and from the fabric workload's, which measure a link.
    Return what was learned, its file, and of each run that trained the predicted seconds of a step over
    measured ones, less one. `link`: between their hosts, in place of their own facts.

    Raises RunFolderError for a run that teaches nothing, UsageError for a link that is not understood.
    """
    calibration = load_calibration()
    trained = []
    for run in runs:
        links = link_of(run, link)
        if links is None:
            trained.append(run)
        else:
            for name, figures in links.items():
                measured_now = figures.after(calibration.links.get(name, LinkFigures()))
                calibration = replace(calibration, links={**calibration.links, name: measured_now})
    measured = [measured_of(run, link) for run in trained]
    for run, each in zip(trained, measured, strict=True):
        result = run.read_result()
        spread = deviation_of_hosts(result) if result else None
        if spread is not None:
            calibration = replace(
                calibration, spreads={**calibration.spreads, each.case.machines.device.name: spread}
            )
    cases = {run.id: each.case for run, each in zip(trained, measured, strict=True)}
    _check_shown(cases, calibration)
    learned = learn(measured, calibration)
    _check_sense(cases, learned)
    by_run = zip((run.id for run in trained), errors(measured, learned), strict=True)
    return learned, save_calibration(learned), dict(by_run)


def _check_shown(cases: Mapping[str, StepCase], calibration: Calibration) -> None:
    """Raise RunFolderError for a run on a device whose speed no run shows."""
    shown = {case_key(case) for case in cases.values() if shows_device(case)} | calibration.efficiency.keys()
    for run, case in cases.items():
        if case_key(case) in shown:
            continue
        what = "offloads" if case.spread.offload != "none" else "ran on several ranks"
        kind = "without offload" if case.spread.offload != "none" else "of the same kind on one rank"
        raise RunFolderError(
            f"{what}, and no run on one rank has shown what a {case_key(case)} can do by itself",
            where=run,
            hint=f"a run {kind} first: --calibrate THAT --calibrate THIS",
        )


def _check_sense(cases: Mapping[str, StepCase], learned: Calibration) -> None:
    """Raise RunFolderError where what was learned is impossible, or nothing was learned."""
    for run, case in cases.items():
        device, name = case.machines.device, case_key(case)
        if shows_device(case) and device.kind != CPU and learned.efficiency.get(name, 0.0) > 1:
            raise RunFolderError(
                f"a {name} would reach {learned.efficiency[name]:.0%} of its stated figures, which none does",
                where=run,
                hint="leave it out: its model or its samples are not what they are taken for here",
            )
        if on_host(case) and device.name not in learned.hosts:
            raise RunFolderError(
                "offloads, and what its host's memory moves could not be told",
                where=run,
                hint="a run on one rank with offload, in which the optimizer takes a good part of a step",
            )


def measured_of(run: RunFolder, link: str | None = None) -> MeasuredRun:
    """Return a run's case, and the seconds of its steps. Raises RunFolderError where either is not known."""
    result, job = run.read_result(), read_job(run.read_json(run.job))
    if result is None or job is None or not result.status.good or result.throughput is None:
        raise RunFolderError(
            "has no measured speed", where=run.id, hint="a run that succeeded, with steps after its warm-up"
        )
    if any(report.share is not None for report in result.hosts):
        raise RunFolderError("had unequal shares, which teach nothing about one device", where=run.id)
    recipe = recipe_from(job.recipe)
    if recipe.drawing():
        raise RunFolderError("drew answers, and how long that takes is not planned", where=run.id)
    slots = [place.slots for place in job.placements]
    machines, there = _machines(run, result, job, link), at_mean_lengths(recipe, result)
    trace = once(tracer)(there, job.precision, job.device, sum(slots))
    setting = setting_of(there, whole_config(there), job.precision, job.device, slots, trace)
    if setting is not None:
        setting = replace(setting, micro=job.batch.micro).spreading(micro_steps=job.batch.accumulation)
    case = case_of(setting, machines) if setting is not None else None
    if case is None:
        raise RunFolderError("trained a model that is not known here", where=run.id)
    counted = as_counted(case, result) if recipe.padding_varies else case
    if counted is None:
        why = "they are not those of its mean lengths" if result.flops else "they were not counted"
        what = "padded each batch to its longest sample, and how many operations a step had is not known"
        hint = "a run with data.padding=fixed" + ("" if result.flops else ", or with measure.flops=true")
        raise RunFolderError(f"{what}: {why}", where=run.id, hint=hint)
    # The mean of the measured windows: what an epoch is made of. Skipped steps are not in their seconds.
    return MeasuredRun(counted, job.batch.global_ / result.throughput.samples_per_second)


def link_of(run: RunFolder, link: str | None = None) -> dict[str, LinkFigures] | None:
    """Return the measurements of a run of the fabric workload, by the link's name; None for a training.

    Raises RunFolderError where it is not finished, or its link is not known.
    """
    result, job = run.read_result(), read_job(run.read_json(run.job))
    if result is None or job is None or result.fabric is None:
        return None
    machines = _machines(run, result, job, link)
    joined = machines.link if machines.hosts > 1 else machines.inner
    if not result.status.good or joined is None:
        raise RunFolderError("measured no link that is known", where=run.id, hint="--link 10Gbit names it")
    ranks = sum(place.slots for place in job.placements)
    return {link_key(joined, machines.device.kind): link_figures(result.fabric, ranks)}


def _machines(run: RunFolder, result: Result, job: Job, link: str | None) -> Machines:
    """Return the machines of a run. Raises RunFolderError where they are not known."""
    recipe = recipe_from(job.recipe)
    model = MachineModel(
        {report.host: report.facts for report in result.hosts},
        tuple(Host(place.host, place.slots) for place in job.placements),
        Calibration(),
        link=find_link(link) if link else None,
        env=recipe.env,
        threads=recipe.launch.threads,
        one_machine=job.launcher == "local",
        learning=True,
    )
    machines = model.on([place.slots for place in job.placements], job.device, job.precision)
    if machines is None:
        raise RunFolderError("ran on a device or over a link that is not known", where=run.id)
    return machines
