"""Plan: what a job will need and take, and what to choose, before anything starts or is rented."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.core import families
from muster.core.errors import RecipeError, UsageError
from muster.core.hardware.machines import Machines, parse_parts
from muster.core.job import Decision, Facts, place
from muster.core.near import near_names
from muster.core.recipe import Recipe
from muster.core.recipes import load_recipe
from muster.core.result import Planned as Promise
from muster.engines.base import spec_of
from muster.fleet.shell import Shell
from muster.fleet.supervisor import Supervisor
from muster.inputs.model import check_closed_form, whole_config
from muster.inputs.read import Inputs, absolute, check
from muster.planner.advice import advise
from muster.planner.choose import Tracer, nothing_traced
from muster.planner.decide import Decided, decide
from muster.planner.document import Plan
from muster.planner.forecast import Outlook, case_of, global_given, plan_of
from muster.planner.hosts import Chosen
from muster.planner.memory.fit import lacking, need
from muster.planner.orders import greeting
from muster.planner.outlook import Ground, UserFigures, ground_of, hypothetical, load_calibration
from muster.planner.remedies import remedies
from muster.planner.resolve import AUTO, Settled, first_hosts, on_hosts, settle, tracer
from muster.planner.setting import why_unknown
from muster.planner.sizing import said_of
from muster.planner.time.steptime import Calibration

Say = Callable[[str], None]
HOPELESS = 2.0  # times a rank's room: what needs more by closed forms does not fit, whatever a trace finds
TIGHT = 0.5  # of a rank's room: closed forms, which miss by up to 37 %, will do for what needs less


@dataclass(frozen=True)
class PlannedJob:
    """A plan, and the decisions that it shows. `chosen`: None where all hosts given are used."""

    plan: Plan
    decided: Decided
    chosen: Chosen | None = None


def recipe_of(source: str, overrides: list[str]) -> Recipe:
    """A recipe as a user names it. Raises RecipeError."""
    return absolute(load_recipe(source, overrides))


def _tracer(traced: bool, say: Say | None) -> Tracer:
    """Tracing, or closed forms alone."""
    if not traced:
        return nothing_traced
    return partial(tracer, say=say) if say is not None else tracer


def plan_on(
    recipe: Recipe, on: str, told: UserFigures, *, traced: bool = True, say: Say | None = None
) -> PlannedJob:
    """A recipe on machines that are not there. `say`: what is done that takes seconds. Raises UsageError for
    what is not understood."""
    check_plannable(recipe)
    inventory, facts, machines = hypothetical(parse_parts(on), f"--on {on}", told.host_memory)
    inputs, chosen = first_hosts(check(recipe, inventory))
    if not traced:
        check_closed_form(recipe)
    ground = Ground(facts, inventory.hosts, load_calibration(), machines).of(inputs.inventory.hosts)
    return _attempt(inputs, ground, told, _tracer(traced, say), chosen, on)[0]


def plan_hosts(
    inputs: Inputs,
    told: UserFigures,
    *,
    traced: bool = True,
    shell: Shell | None = None,
    say: Say | None = None,
) -> PlannedJob:
    """A recipe on hosts, which are asked what they are. `say`: as in plan_on. Raises UsageError."""
    check_plannable(inputs.recipe)
    if not traced:
        check_closed_form(inputs.recipe)
    inputs, chosen = first_hosts(inputs)
    known = load_calibration()  # before any host is asked
    if say is not None:
        say("asking the hosts")
    ground = ground_of(inputs, ask(inputs, shell or Shell()), told, known)
    if say is not None:
        say("planning")
    return _attempt(inputs, ground, told, _tracer(traced, say), chosen)[0]


def check_plannable(recipe: Recipe) -> None:
    """Raise RecipeError where nothing is trained, or nobody here knows the model."""
    if not recipe.trains:
        raise RecipeError(
            f"{recipe.workload} trains nothing, so there is nothing to plan",
            where="workload",
            hint="a recipe that trains, such as opt-benchmark",
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
    """What `train` does before all else: the hosts that it will use. None: all that were given.

    `asking`: what every host says of itself, where the plan chooses them. Raises UsageError as `plan_first`
    does.
    """
    inputs, chosen = first_hosts(inputs)
    if inputs.recipe.launch.hosts != AUTO:
        return inputs, chosen
    ground = ground_of(inputs, asking(inputs), UserFigures(), _calibration([]))
    settled = settle(inputs, ground, nothing_traced)
    if settled.refused or _tight(settled.decided) or settled.machines is not None:
        settled = settle(inputs, ground, tracer)
    assert settled.chosen is not None
    return on_hosts(inputs, settled.chosen.hosts), settled.chosen


def plan_first(inputs: Inputs, facts: Facts, chosen: Chosen | None = None) -> tuple[Decided, Plan | None]:
    """What `train` does before it starts: everything decided, and the plan. None: nothing is trained.

    Tracing takes seconds: it is done where memory is tight by the closed forms, where there are none for the
    model, and where a time can be told. `chosen`: the hosts, of more that were given. Raises UsageError where
    nothing can work, or the job cannot fit.
    """
    if not inputs.recipe.trains:
        one_machine = inputs.launcher.ONE_MACHINE
        decided = decide(inputs.recipe, inputs.inventory, facts, one_machine=one_machine)
        return _with_hosts(decided, chosen), None
    notes: list[str] = []
    ground, told = ground_of(inputs, facts, UserFigures(), _calibration(notes)), UserFigures()
    planned, refused = _attempt(inputs, ground, told, nothing_traced, chosen)
    hopeless = refused is not None and not inputs.recipe.force and _hopeless(planned.decided)
    if not hopeless and (refused or _tight(planned.decided) or planned.plan.time is not None):
        planned, refused = _attempt(inputs, ground, told, tracer, chosen)
    if refused and not inputs.recipe.force:
        raise refused
    return planned.decided, planned.plan.model_copy(update={"notes": [*planned.plan.notes, *notes]})


def _calibration(notes: list[str]) -> Calibration:
    """What was learned; a damaged file is noted, and no reason not to train."""
    try:
        return load_calibration()
    except UsageError as error:
        notes.append(f"{error.where} {error.what}")
        return Calibration()


def _attempt(
    inputs: Inputs,
    ground: Ground,
    told: UserFigures,
    with_tracer: Tracer,
    chosen: Chosen | None = None,
    words: str | None = None,
) -> tuple[PlannedJob, UsageError | None]:
    """A plan, and the error where it does not fit. `chosen`: the hosts, where that was done before; `words`:
    what to call the machines."""
    settled = settle(inputs, ground, with_tracer)
    chosen = settled.chosen or chosen
    decided = _with_hosts(settled.decided, chosen)
    # Counting them may mean reading the data, which only a time is worth.
    samples = told.samples or (decided.recipe.epoch_samples() if settled.machines is not None else None)
    if chosen is None or not chosen.timed:  # else slower hosts were left out already
        advice = _advice(decided, ground, samples)
        decided = replace(decided, decisions=(*decided.decisions, *advice))
    start = _begun(inputs, settled, decided, chosen, words or inputs.inventory.source)
    alike = settled.machines is None or len(ground.hosts) != len(decided.slots)
    fewer = None if alike else ground.fewer(decided.slots, decided.device, decided.precision)
    if fewer is not None:
        note = "hosts differ: the slowest sets the pace, and fewer hosts are the fastest of them"
        start = start.model_copy(update={"notes": [*start.notes, note]})
    outlook = Outlook(settled.machines, ground.known, samples, told.price, settled.reach, fewer)
    if decided.device == "cpu" and any(about.get("gpus") for about in ground.facts.values()):
        note = "the hosts' GPUs are not used: the recipe says launch.device=cpu"
        start = start.model_copy(update={"notes": [*start.notes, note]})
    made = plan_of(decided.recipe, decided.setting, decided.room, outlook, start)
    return PlannedJob(_with_cost_note(made, told), decided, chosen), settled.refused


def _advice(decided: Decided, ground: Ground, samples: int | None) -> list[Decision]:
    """Which hosts make the job slower; nothing where a step's time is not known."""
    recipe, setting = decided.recipe, decided.setting
    if ground.one_machine or setting is None or len(ground.hosts) != len(decided.slots):
        return []
    members = ground.members(decided.slots, decided.device, decided.precision)
    case = case_of(setting, members[0].machines) if members else None
    if case is None or members is None:
        return []
    batch = decided.batch.global_ if global_given(recipe) else None
    try:
        return advise(recipe, case, members, ground.known, batch=batch, samples=samples)
    except UsageError:  # a figure is missing, as the plan says
        return []


def _with_cost_note(made: Plan, told: UserFigures) -> Plan:
    """Why there is no cost, where a price was given."""
    if told.price is None or (made.time is not None and made.time.cost is not None):
        return made
    why = "that needs a time, which is unknown"
    if made.time is not None:
        why = "the number of samples per epoch is unknown; give it with --samples N"
    return made.model_copy(update={"notes": [*made.notes, f"no cost: {why}"]})


def _with_hosts(decided: Decided, chosen: Chosen | None) -> Decided:
    """With the choice of hosts as its first decision."""
    return replace(decided, decisions=(chosen.decision, *decided.decisions)) if chosen else decided


def _hopeless(decided: Decided) -> bool:
    """Whether a rank needs so much more than there is that no trace could find it to fit."""
    found = need(decided.setting) if decided.setting is not None else None
    if found is None or decided.setting is None:
        return False
    short = lacking(found, decided.setting, decided.room)
    return short is not None and short.needed > HOPELESS * short.has


def _tight(decided: Decided) -> bool:
    """Whether a rank needs so much of its room that a closed form is not enough, or there is none and the
    model can be traced."""
    setting, room = decided.setting, decided.room
    if room.device is None:
        return False
    found = need(setting) if setting is not None else None
    if found is None:
        config = whole_config(decided.recipe)
        return config is not None and decided.recipe.lengths(config) is not None
    host = sum(found.host.values()) > TIGHT * room.host if room.host else False
    return sum(found.device.values()) > TIGHT * room.device or host


def ask(inputs: Inputs, shell: Shell, *, into: Path | None = None) -> Facts:
    """What hosts say of themselves. `into`: the folder that a run would have there, which need not exist.
    Raises InventoryError where one cannot be reached."""
    places = place([(host, host.slots or 1) for host in inputs.inventory.hosts])
    name = f"plan-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        run = Path(folder) / name
        specs = greeting(inputs.recipe, places, run_dir=run, nonce=name, job_id=name, attempt=1)
        if into is not None:
            specs = {host: {**spec, "workdir": str(into)} for host, spec in specs.items()}
        with Supervisor(places, inputs.launcher, inputs.recipe.launch, name, shell) as supervisor:
            return supervisor.greet(specs)


def _begun(inputs: Inputs, settled: Settled, decided: Decided, chosen: Chosen | None, words: str) -> Plan:
    """The plan without memory and time."""
    recipe, setting, batch = decided.recipe, decided.setting, decided.batch
    name = recipe.model.name or "the model"
    ways = []
    if settled.refused and setting:
        ways = remedies(setting, decided.room, name, said_of(recipe, whole_config(recipe)))
    compared = chosen.candidates if chosen and chosen.candidates else decided.candidates
    return Plan(
        model=recipe.model.name,
        engine=spec_of(recipe.engine.name).label(setting.stage) if setting else recipe.engine.name,
        precision=decided.precision,
        device=decided.device,
        machines=words,
        hosts=len(decided.slots),
        idle=[host.label for host in chosen.idle] if chosen else [],
        ranks=sum(decided.slots),
        batch={"micro": batch.micro, "accumulation": batch.accumulation, "global": batch.global_},
        candidates=list(compared) if len(compared) > 1 else [],
        decisions=[{"field": d.field, "value": d.value, "why": d.why} for d in decided.decisions],
        would_fit=ways,
        notes=_notes(decided, settled.machines),
    )


def _notes(decided: Decided, machines: Machines | None) -> list[str]:
    setting, device, notes = decided.setting, decided.device, []
    if setting is None or need(setting) is None:
        notes.append(f"{why_unknown(decided.recipe)}: neither memory nor time can be predicted")
    elif setting.trace is None:
        notes.append("the model was not traced: its activations are from a formula, off by -18 to +37 %")
    if setting is not None and setting.disk.holds != "none":
        notes.append(
            "what goes to a disk, and its buffers, are counted by DeepSpeed's source, never measured"
        )
    config = whole_config(decided.recipe)
    notes += decided.recipe.assumed(config) if config is not None else []
    if decided.recipe.train.compile:
        notes.append(
            "train.compile=true changes nothing in this plan: memory and time are those without torch.compile"
        )
    if device == "cuda" and decided.room.host is None and setting is not None:
        notes.append("the hosts' memory was not checked: give it with --host-memory")
    if machines is None and device == "cpu":
        notes.append("no time: the speed of these CPUs is unknown; `muster plan --calibrate RUN` learns it")
    elif machines is None:
        notes.append("no time: a device or a link is unknown; describe it with --on and --link")
    return notes


def promised(document: Mapping[str, Any]) -> Promise | None:
    """What a run's plan.json said, for its result; None: nothing of memory and time."""
    try:
        plan = Plan.model_validate(document)
    except ValueError:
        return None
    if plan.memory is None:
        return None
    return Promise(
        memory=plan.memory.device_bytes,
        traced=plan.memory.basis == "traced",
        on_device=plan.device == "cuda",
        step_seconds=plan.time.step if plan.time else None,
        samples_per_second=plan.time.samples_per_second if plan.time else None,
    )
