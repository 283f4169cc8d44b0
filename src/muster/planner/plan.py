"""Plan what a job will need and take, and what to choose, before anything starts or is rented."""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.core import families
from muster.core.errors import ReaderMissingError, RecipeError, UsageError
from muster.core.hardware.devices import ambiguous
from muster.core.hardware.machines import Machines, parse_parts
from muster.core.inventory import Host
from muster.core.job import UNTRACED, Decision, Facts, place
from muster.core.learning_rate import warmup_note
from muster.core.near import near_names
from muster.core.recipe import Recipe
from muster.core.result import Planned as Promise
from muster.core.workload import Survey
from muster.engines.base import spec_of
from muster.fleet.supervisor import Supervisor
from muster.inputs.model import check_closed_form, no_gpu, whole_config
from muster.inputs.read import INHERITED, OVERRULED, Inputs, check
from muster.planner.advice import advise, grouping
from muster.planner.decide import Chosen, Decided, decide
from muster.planner.document import NEARLY_FULL, UNCOUNTED, MemoryPlan, Plan
from muster.planner.forecast import predictions
from muster.planner.hosts import AUTO, first_hosts, numbers, on_hosts, pick
from muster.planner.machines import (
    MachineModel,
    UserFigures,
    by_speed,
    hypothetical,
    load_calibration,
    machine_model,
)
from muster.planner.memory.activations import activations_missing
from muster.planner.memory.fit import MARGIN
from muster.planner.orders import greeting
from muster.planner.placing import ranks_of
from muster.planner.remedies import GROUP, remedies
from muster.planner.setting import assumed_length, assumed_shapes, why_unknown
from muster.planner.time.steptime import Calibration
from muster.planner.tracing import once, tracer
from muster.planner.training import filling_note, rate_note, training_plan
from muster.planner.ways import Tracer, open_choices
from muster.store.atomic import write_json, write_text
from muster.store.values import recipe_file

Say = Callable[[str], None]
HOPELESS = 2.0  # times a rank's room: what needs more by closed forms does not fit, whatever a trace finds
TIGHT = 0.5  # of a rank's room: closed forms, which miss by up to 37 %, will do for what needs less
SMALL = 0.05  # of it: a model that takes less without its activations is not worth the seconds of a trace


def plan_on(
    recipe: Recipe,
    on: str,
    figures: UserFigures,
    *,
    traced: bool = True,
    say: Say | None = None,
    noted: Sequence[Decision] = (),
) -> Decided:
    """Plan a recipe on machines that do not exist. `say`: gets what takes seconds; `noted`: earlier
    decisions. Raises UsageError for what is not understood."""
    check_plannable(recipe, figures)
    inventory, facts, machines = hypothetical(parse_parts(on), f"--on {on}", figures.host_memory)
    inputs, chosen = first_hosts(check(recipe, inventory))
    if not traced:
        check_closed_form(recipe)
    model = MachineModel(facts, inventory.hosts, load_calibration(), machines).of(inputs.inventory.hosts)
    inputs = replace(inputs, noted=tuple(noted))
    trace = partial(tracer, say=say) if traced else None
    return _attempt(inputs, model, figures, trace, chosen, on, notes=ambiguous(on))


def plan_hosts(
    inputs: Inputs,
    figures: UserFigures,
    *,
    traced: bool = True,
    say: Say | None = None,
) -> Decided:
    """Plan a recipe on hosts, which are asked for their facts. `say`: as in plan_on. Raises UsageError."""
    check_plannable(inputs.recipe, figures)
    if not traced:
        check_closed_form(inputs.recipe)
    inputs, chosen = first_hosts(inputs)
    calibration = load_calibration()  # before any host is asked
    if say is not None:
        say("asking the hosts")
    model = machine_model(inputs, ask(inputs), figures, calibration)
    if say is not None:
        say("planning")
    return _attempt(inputs, model, figures, partial(tracer, say=say) if traced else None, chosen)


def check_plannable(recipe: Recipe, figures: UserFigures) -> None:
    """Raise UsageError where nothing is trained, the model is not known, or tokens are given for images."""
    if not recipe.trains:
        raise RecipeError(
            f"{recipe.workload} trains nothing, so there is nothing to plan",
            where="workload",
            hint="a recipe that trains, such as opt-benchmark",
        )
    if figures.tokens is not None and not recipe.tokenized:
        raise UsageError(
            f"{recipe.workload} has no tokens", where="--tokens", hint="--samples N, of an epoch"
        )
    if whole_config(recipe) is not None:
        return
    name = recipe.model.name
    near = near_names(name, families.sizes()) if name else []
    raise RecipeError(
        f"the configuration of {name} is unknown" if name else "there is no model",
        where="model.name",
        hint=(f"did you mean {' or '.join(near)}? " if near else "")
        + "Or a folder with its config.json, or its fields in model.config",
    )


def hosts_first(inputs: Inputs, asking: Callable[[Inputs], Facts]) -> tuple[Inputs, Chosen | None]:
    """Choose the hosts that `train` will use, before all else. None: all that were given.

    `asking`: returns every host's facts, where the plan chooses them. Raises UsageError as `plan_first` does.
    """
    inputs, chosen = first_hosts(inputs)
    if inputs.recipe.launch.hosts != AUTO:
        return inputs, chosen
    inputs = replace(inputs, surveyed=survey_of(inputs))
    model = machine_model(inputs, asking(inputs), UserFigures(), _calibration([]))
    decided = settle(inputs, model, None)
    if _worth_tracing(decided):
        decided = settle(inputs, model, tracer)
    assert decided.chosen is not None
    return on_hosts(inputs, decided.chosen.hosts), decided.chosen


def plan_first(inputs: Inputs, facts: Facts, chosen: Chosen | None = None) -> Decided:
    """Decide everything before `train` starts, with the plan where something is trained.

    `chosen`: the hosts, of more that were given. Raises UsageError where nothing can work, or the job cannot
    fit.
    """
    if not inputs.recipe.trains:
        return _with_hosts(decide(inputs, facts), chosen)
    notes: list[str] = []
    inputs = replace(inputs, surveyed=inputs.surveyed or survey_of(inputs))
    model = machine_model(inputs, facts, UserFigures(), _calibration(notes))
    traces = tracer if _worth_tracing(settle(inputs, model, None)) else None
    decided = _attempt(inputs, model, UserFigures(), traces, chosen, notes=notes)
    if decided.refused:
        raise decided.refused
    return decided


def survey_of(inputs: Inputs) -> Survey:
    """Survey the data as ranks will read them, with a note where this machine lacks the reader. Raises
    DataError."""
    config, checked = whole_config(inputs.recipe), inputs.checked
    try:
        return inputs.recipe.survey(config, checked) if checked else inputs.recipe.survey(config)
    except ReaderMissingError as error:
        return Survey(notes=(str(error),))


def settle(inputs: Inputs, model: MachineModel, tracer: Tracer | None) -> Decided:
    """Decide everything that was open, including the number of hosts. Raises RecipeError and InventoryError
    where nothing can work."""
    tracer = once(tracer) if tracer else None
    given = inputs.inventory.hosts
    if inputs.recipe.launch.hosts != AUTO:
        decided = decide(inputs, model.facts, tracer=tracer, model=model)
        return replace(decided, reach=len(given))
    device = inputs.recipe.launch.device
    ordered = by_speed(given, model.facts, device, model.env, inputs.recipe.precision)
    ranks = [ranks_of(host, model.facts[host.label], device) for host in ordered]
    trials: list[tuple[tuple[Host, ...], Decided | RecipeError]] = []
    for number in numbers(inputs.recipe, ranks):
        labels = {host.label for host in ordered[:number]}
        some = tuple(host for host in given if host.label in labels)
        there = model.of(some)
        try:
            trials.append((some, decide(on_hosts(inputs, some), there.facts, tracer=tracer, model=there)))
        except RecipeError as error:
            if not (error.where or "").startswith(("batch.", GROUP)):  # what no number of hosts would change
                raise
            trials.append((some, error))
    decided = pick(trials, given)
    job = decided.job
    in_order = [ranks_of(host, model.facts[host.label], device) for host in given]
    machines, reach = _beside(decided.machines, model.on(in_order, job.device, job.precision))
    return replace(decided, machines=machines, reach=reach)


def _beside(machines: Machines | None, whole: Machines | None) -> tuple[Machines | None, int]:
    """Return the chosen machines as a part of all, and how many hosts there are like them: none but
    themselves where the others are slower, or not all have as many slots. A single host has the link to the
    others that it leaves idle."""
    if machines is None:
        return None, 1
    alike = whole is not None and replace(whole, hosts=machines.hosts, link=machines.link) == machines
    if whole is None or not alike or (machines.hosts > 1 and whole.link != machines.link):
        return machines, machines.hosts
    return whole.on(machines.hosts), whole.hosts


def _calibration(notes: list[str]) -> Calibration:
    """Return what was learned; a damaged file is noted, and does not stop a training."""
    try:
        return load_calibration()
    except UsageError as error:
        notes.append(f"{error.where} {error.what}")
        return Calibration()


def _attempt(
    inputs: Inputs,
    model: MachineModel,
    figures: UserFigures,
    tracer: Tracer | None,
    chosen: Chosen | None = None,
    words: str | None = None,
    notes: Sequence[str] = (),
) -> Decided:
    """Decide everything, with a plan, whether it fits or not. `chosen`: the hosts, where that was done
    before; `words`: a name for the machines; `notes`: the last ones of the plan."""
    survey = inputs.surveyed or survey_of(inputs)
    if figures.samples not in (None, survey.samples):  # other data than those that are here
        survey = replace(survey, longest=None)
    inputs = replace(inputs, surveyed=survey)
    failures: list[str] = []
    tracer = once(tracer, failures) if tracer else None
    decided = settle(inputs, model, tracer)
    decided = _with_hosts(decided, decided.chosen or chosen)
    job = decided.job
    if decided.recipe.bits is not None and job.device != "cuda":
        raise no_gpu(decided.recipe)
    samples = figures.samples or survey.samples
    if figures.tokens is not None and decided.setting is not None:
        samples = math.ceil(figures.tokens / decided.setting.tokens)
    decisions = [Decision("the model", UNTRACED, why) for why in dict.fromkeys(failures)]
    if decided.chosen is None or not decided.chosen.timed:  # else slower hosts were left out already
        decisions += advise(decided, model, samples)
    idle_gpus = job.device == "cpu" and any(about.get("gpus") for about in model.facts.values())
    if idle_gpus:  # said at the start as well
        why = "the recipe says so, and the hosts' GPUs are not used"
        decisions.append(Decision("launch.device", "cpu", why))
    decided = decided.saying(*job.decisions, *decisions)
    alike = decided.machines is None or len(model.hosts) != len(decided.slots)
    fewer = None if alike else model.fewer(decided.slots, job.device, job.precision)
    predicted, more = predictions(decided, figures, samples, model.calibration, fewer)
    words = words or inputs.inventory.source
    plan = _plan(inputs, decided, words, survey, samples, figures.tokens, predicted)
    if figures.tokens is None and plan.training is not None:  # tokens are for the time alone
        spec_of(decided.recipe.engine.name).check_length(decided.recipe, plan.training.steps)
    if fewer is not None:
        plan.notes.append("hosts differ: the slowest sets the pace, and fewer hosts are the fastest of them")
    if idle_gpus:
        plan.notes.append("the hosts' GPUs are not used: the recipe says launch.device=cpu")
    faster = grouping(decided, model.calibration)
    plan.notes.extend([faster] if faster else [])
    plan.notes.extend(more)
    if figures.price is not None and (plan.time is None or plan.time.cost is None):
        why = "that needs a time, which is unknown"
        if plan.time is not None:
            why = "how much is trained is unknown; give it with --samples N, of an epoch, or --tokens N"
        plan.notes.append(f"no cost: {why}")
    plan.notes.extend(notes)
    return replace(decided, plan=plan)


def _with_hosts(decided: Decided, chosen: Chosen | None) -> Decided:
    """Return it with the choice of hosts as its first decision, and the numbers of hosts that were compared.
    """
    if chosen is None:
        return decided
    compared = chosen.candidates or decided.candidates
    decided = decided.saying(chosen.decision, *decided.job.decisions)
    return replace(decided, chosen=chosen, candidates=compared)


def _worth_tracing(decided: Decided) -> bool:
    """Return whether a trace is worth its seconds, by closed forms: where a time can be predicted, a rank
    needs so much of its room that a closed form is not enough, or there is none for a model that is not
    small; not where a rank surely needs so much that no trace could find it to fit."""
    room, setting, short = decided.room, decided.setting, decided.way.lacks
    if decided.refused and short is not None:
        # A model without a closed form is told what would fit by traces alone.
        counted = decided.way.needed is not None and decided.way.needed.whole
        return not counted or short.needed <= HOPELESS * short.has
    # Hosts are chosen by their speeds.
    if decided.way.step is not None or (decided.chosen is not None and decided.machines is not None):
        return True
    if room.device is None:
        return False
    needed = decided.way.needed
    if setting is None or needed is None:
        config = whole_config(decided.recipe)
        return config is not None and decided.recipe.lengths(config) is not None
    if not needed.whole:
        return 16 * setting.elements > SMALL * room.device  # in fp32, gradients and Adam among them
    host = sum(needed.host.values()) > TIGHT * room.host if room.host else False
    return sum(needed.device.values()) > TIGHT * room.device or host


def ask(inputs: Inputs, *, into: Path | None = None) -> Facts:
    """Ask hosts for their facts. `into`: the folder that a run would have there, which need not exist. Raises
    InventoryError where one cannot be reached."""
    places = place([(host, host.slots or 1) for host in inputs.inventory.hosts])
    name = f"plan-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        run = Path(folder) / name
        specs = greeting(
            inputs.recipe, places, run_dir=run, nonce=name, job_id=name, attempt=1, env=inputs.env
        )
        if into is not None:
            specs = {host: {**spec, "workdir": str(into)} for host, spec in specs.items()}
        with Supervisor(places, inputs.launcher, inputs.recipe.launch, name) as supervisor:
            return supervisor.greet(specs)


def _plan(
    inputs: Inputs,
    decided: Decided,
    words: str,
    survey: Survey,
    samples: int | None,
    tokens: int | None,
    predicted: Mapping[str, Any],
) -> Plan:
    """Return the plan of what was decided. `samples`: of an epoch; `tokens`: in all, as the user gave them;
    `predicted`: its other fields."""
    recipe, setting, chosen, job = decided.recipe, decided.setting, decided.chosen, decided.job
    memory, roomier = predicted.get("memory"), list[str]()
    where = decided.where
    if setting and memory and where and memory.nearly_full and not memory.lacking:
        less = replace(where.room, device=int(NEARLY_FULL / (1 - MARGIN) * memory.device_room))
        if memory.basis != UNCOUNTED:
            name = recipe.model.name or "the model"
            roomier = remedies(setting, less, name, open_choices(recipe, where))
    engine = recipe.engine.name
    if setting:
        group = setting.spread.group if setting.spread.grouped else 0
        engine = spec_of(engine).label(setting.spread.stage, group)
    training = training_plan(recipe, setting, job.batch, samples, tokens)
    fixed = spec_of(recipe.engine.name).given(recipe)
    warming = warmup_note(recipe.train, training.steps, fixed.rise) if training.steps else None
    passes = tokens is None and recipe.drawing() is None
    filled = filling_note(training, job.batch) if passes else None
    overruled = [d.why for d in inputs.noted if d.field == OVERRULED]
    left = any(d.field == INHERITED and "train.learning_rate=" in d.why for d in inputs.noted)
    rate = None
    if left and setting and recipe.train.learning_rate != "auto":
        rate = rate_note(recipe.train.rate, setting.parameters)
    return Plan(
        model=recipe.model.name,
        training=training,
        data=[*survey.notes, *filter(None, [filled])],
        engine=engine,
        precision=job.precision,
        device=job.device,
        machines=words,
        hosts=len(decided.slots),
        idle=[host.label for host in chosen.idle] if chosen else [],
        ranks=job.world_size,
        batch=job.batch.as_dict(),
        candidates=list(decided.candidates) if len(decided.candidates) > 1 else [],
        decisions=[asdict(each) for each in (*inputs.noted, *job.decisions)],
        would_fit=list(decided.would_fit),
        roomier=roomier,
        notes=[*overruled, *_notes(decided, memory), *filter(None, [warming, rate])],
        **predicted,
    )


def _notes(decided: Decided, memory: MemoryPlan | None) -> list[str]:
    setting, device, machines = decided.setting, decided.job.device, decided.machines
    notes = []
    if setting is None or memory is None:
        notes.append(f"{why_unknown(decided.recipe)}: neither memory nor time can be predicted")
    elif memory.basis == UNCOUNTED:
        notes.append(activations_missing(setting.config))
    elif setting.trace is None:
        notes.append("the model was not traced: its activations are from a formula, off by -18 to +37 %")
    if setting is not None and setting.spread.disk.holds != "none":
        notes.append(
            "what goes to a disk, and its buffers, are counted by DeepSpeed's source, never measured"
        )
    if setting is not None and setting.spread.ratio < 1:
        notes.append("the optimizer's time is that of all its states in host memory, whatever ratio says")
    config = whole_config(decided.recipe)
    notes += decided.recipe.assumed(config) if config is not None else []
    if decided.recipe.model.quantized is not None:
        notes.append("each pass makes whole numbers of the quantised weights, which the time leaves out")
    notes += assumed_shapes(decided.recipe) + assumed_length(decided.recipe, config)
    if decided.recipe.train.compiled:
        notes.append(
            "torch.compile: compiling takes about 4 s a layer before the first step, which no time here has"
        )
    if left_out := spec_of(decided.recipe.engine.name).uncounted(decided.recipe, decided.job.precision):
        notes.append(f"neither memory nor time counts what DeepSpeed's {', '.join(left_out)} change")
    if device == "cuda" and decided.room.host is None and setting is not None:
        notes.append("the hosts' memory was not checked: give it with --host-memory")
    if machines is None and device == "cpu":
        notes.append("no time: the speed of these CPUs is unknown; `muster plan --calibrate RUN` learns it")
    elif machines is None:
        notes.append("no time: a device or a link is unknown; describe it with --on and --link")
    return notes


def promised(document: Mapping[str, Any]) -> Promise | None:
    """Return the predictions of a run's plan.json, for its result; None: it has none of memory and time."""
    try:
        plan = Plan.model_validate(document)
    except ValueError:
        return None
    if plan.memory is None or plan.memory.basis == UNCOUNTED:
        return None
    return Promise(
        memory=plan.memory.device_bytes,
        traced=plan.memory.basis == "traced",
        on_device=plan.device == "cuda",
        step_seconds=plan.time.step if plan.time else None,
        samples_per_second=plan.time.samples_per_second if plan.time else None,
    )


def write_plan(decided: Decided, file: Path) -> list[Path]:
    """Write the decided recipe, which `muster train` takes as it is. Return what was written. Raises
    UsageError."""
    recipe, job = decided.recipe, decided.job
    data = recipe.as_dict()
    data["precision"] = job.precision
    data["batch"] |= {**job.batch.as_dict(), "tokens": None}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, recipe_file(data))
        config = spec_of(recipe.engine.name).config(recipe, job.batch, job.precision)
        own_config = file.with_suffix(f".{recipe.engine.name}.json")
        if config is None or recipe.engine.config == str(own_config.absolute()):
            return [file]
        write_json(own_config, config)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(file)) from None
    return [file, own_config]
