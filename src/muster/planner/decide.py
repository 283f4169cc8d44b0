"""Decide what a recipe leaves open: slots, device, precision, ZeRO's stage, recomputation, batch, threads.

Of the open ways the fastest that fits is taken; where speeds are not known, the mildest that fits. Pure;
every choice has its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core.batch import Batch, check_given_shares, check_groups
from muster.core.errors import RecipeError, UsageError
from muster.core.hardware.devices import WIDE, capability_for, driver_device
from muster.core.hardware.machines import Machines
from muster.core.hostlist import fold_hosts
from muster.core.inventory import Host
from muster.core.job import Decision, Facts, Job, place
from muster.core.loss_parts import PLAIN_OUTPUT, fits_whole
from muster.core.recipe import Recipe
from muster.core.units import format_bytes
from muster.engines.base import spec_of
from muster.inputs.model import is_t5, whole_config
from muster.inputs.read import Inputs
from muster.planner.document import Candidate, Plan
from muster.planner.machines import MachineModel
from muster.planner.memory.fit import MemoryLimit, Setting
from muster.planner.placing import device_and_slots, gpu_numbers, gpus_of
from muster.planner.remedies import refusal, remedies
from muster.planner.setting import room_of
from muster.planner.time.steptime import Calibration
from muster.planner.ways import RunTarget, Tracer, TrainingWay, best, compared, open_choices, ways
from muster.store.secrets import shareable

FIELD = "launch.hosts"
NOWHERE = MemoryLimit(None, None)
LONG = 500  # steps in which compiling is won back: about a minute, at a tenth of a step of some 0.1 to 1 s
LOADER_SHM = 256 << 20  # bytes of /dev/shm in which a loader process hands over its batches
Gpus = Mapping[str, Sequence[Mapping[str, Any]]]  # by host
Choice = tuple[TrainingWay, list[Candidate], UsageError | None, list[str]]


@dataclass(frozen=True)
class Chosen:
    """The hosts that a job runs on, those given that it leaves idle, and why. `timed`: by predicted speeds;
    `skips`: they are not the first ones; `candidates`: the numbers of hosts that were compared."""

    hosts: tuple[Host, ...]
    idle: tuple[Host, ...]
    why: str
    timed: bool = False
    skips: bool = False
    candidates: tuple[Candidate, ...] = ()

    @property
    def decision(self) -> Decision:
        """How many, why, and which hosts are left idle."""
        one = len(self.idle) == 1
        names = fold_hosts(host.label for host in self.idle)
        left = f"; {names} stay{'s' if one else ''} idle" if self.idle else ""
        return Decision(FIELD, len(self.hosts), f"{self.why}{left}")


@dataclass(frozen=True)
class Decided:
    """A job as it is decided, with everything that hosts had to be asked for. `decide` makes it, and it is
    passed on whole: the plan and the run add what they know, to the job as well (its id, its attempt)."""

    job: Job
    way: TrainingWay
    threads: tuple[int, ...]
    visible_gpus: tuple[tuple[int, ...] | None, ...]  # numbers within CUDA_VISIBLE_DEVICES; None: as it is
    asked: Recipe | None = None  # with what ways were to decide; None: nothing is trained
    where: RunTarget | None = None  # that they were compared on
    candidates: tuple[Candidate, ...] = ()  # ways that were compared
    refused: UsageError | None = None  # it does not fit
    would_fit: tuple[str, ...] = ()  # the smallest changes with which it does
    chosen: Chosen | None = None  # None: all hosts given are used
    machines: Machines | None = None  # that its time rests on; None: not known
    reach: int = 0  # hosts that there are like them
    plan: Plan | None = None  # None: nothing is trained
    orders: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # what each host is to start

    @property
    def room(self) -> MemoryLimit:
        """What a rank may use."""
        return self.where.room if self.where else NOWHERE

    @property
    def slots(self) -> tuple[int, ...]:
        """Ranks of each host."""
        return tuple(place.slots for place in self.job.placements)

    @property
    def recipe(self) -> Recipe:
        """The recipe, with what was auto in it decided."""
        return self.way.recipe

    @property
    def setting(self) -> Setting | None:
        """What decides its memory; None: the model is not known here."""
        return self.way.setting

    @property
    def works(self) -> bool:
        """Whether it fits, as far as that is known."""
        return self.refused is None and self.way.fits is not False

    def saying(self, *decisions: Decision) -> Decided:
        """Return the same with these decisions and no others."""
        return replace(self, job=replace(self.job, decisions=decisions))


def decide(
    inputs: Inputs, facts: Facts, *, tracer: Tracer | None = None, model: MachineModel | None = None
) -> Decided:
    """Decide the recipe's open values for these hosts. `tracer`: of real models, where closed forms are not
    enough; `model`: of these hosts, where speeds are to decide.

    Raises RecipeError and InventoryError where nothing can work. What does not fit is decided nevertheless,
    and `refused` says why.
    """
    decisions: list[Decision] = []
    recipe, hosts, one_machine = inputs.recipe, inputs.inventory.hosts, inputs.launcher.ONE_MACHINE
    device, slots = device_and_slots(recipe, inputs.inventory, facts, one_machine, decisions)
    world_size = sum(slots)
    # What trains nothing has neither: the values below are shown nowhere.
    precision, refused, asked, where = "fp32", None, None, None
    way, candidates, would_fit = TrainingWay(recipe, Batch(1, 1, world_size)), list[Candidate](), list[str]()
    if recipe.trains:
        gpus = gpus_of(facts, hosts, slots, shared=one_machine)
        precision = decide_precision(recipe, device, gpus, decisions)
        recipe = decide_compiling(recipe, device, decisions)
        own = [
            (facts[host.label], world_size if one_machine else n)
            for host, n in zip(hosts, slots, strict=True)
        ]
        recipe = decide_loaders(recipe, device, own, decisions)
        if recipe.engine.group and recipe.engine.group >= world_size:
            recipe = recipe.choosing(group=0)
            decisions.append(Decision("engine.group", None, f"all {world_size} ranks are one group"))
        room = room_of(facts, hosts, slots, device, shared=one_machine)
        recipe = decide_loss(recipe, precision, room, world_size, decisions)
        machines = model.on(slots, device, precision) if model else None
        calibration = model.calibration if model else Calibration()
        where = RunTarget(precision, device, slots, room, machines, calibration, tracer, inputs.surveyed)
        asked = recipe
        way, candidates, refused, would_fit = _choose(recipe, where, decisions)
        check_cuda_graphs(way.recipe, way.batch)
        if isinstance(recipe.batch.split, list):
            check_given_shares(recipe.batch.split, world_size=world_size, micro=way.batch.micro)
        check_groups(way.setting.spread.group if way.setting else recipe.engine.group or 0, world_size)
    recipe = way.recipe
    decisions.extend(spec_of(recipe.engine.name).decisions(recipe))
    sharing = world_size if one_machine else None
    threads = []
    for host, count in zip(hosts, slots, strict=True):
        cores = facts[host.label].get("cores") or 1
        threads.append(recipe.launch.threads or max(1, int(cores) // (sharing or count)))
    visible: list[tuple[int, ...] | None] = [None] * len(slots)
    if device == "cuda" and one_machine and len(slots) > 1:
        visible = [tuple(numbers) for numbers in gpu_numbers(slots, shared=True)]
    job = Job(
        id="",  # the run's, later
        launcher=inputs.launcher_name,
        placements=place(list(zip(hosts, slots, strict=True))),
        batch=way.batch,
        precision=precision,
        device=device,
        recipe=shareable(recipe.as_dict())[0],
        decisions=tuple(decisions),
    )
    return Decided(
        job,
        way,
        tuple(threads),
        tuple(visible),
        asked,
        where,
        tuple(candidates),
        refused,
        tuple(would_fit),
        machines=where.machines if where else None,
    )


def _choose(recipe: Recipe, where: RunTarget, decisions: list[Decision]) -> Choice:
    """Return the best way, all that were compared, why it does not fit, and what would.

    Raises RecipeError for numbers that contradict each other.
    """
    tried = ways(recipe, where)
    chosen, reason = best(tried)
    decisions.extend(chosen.decisions)
    refused, would_fit = None, list[str]()
    if chosen.lacks is not None and not chosen.lacks.refused:
        decisions.append(Decision("memory of a rank", "tight", f"{chosen.lacks}: it may not fit"))
    elif chosen.setting is not None and chosen.lacks is not None and where.room.device is not None:
        name = recipe.model.name or "the model"
        if not recipe.force:
            would_fit = remedies(chosen.setting, where.room, name, open_choices(chosen.recipe, where))
        refused = refusal(chosen.setting, where.room, name, would_fit)
        decisions.append(Decision("force", True, f"although {refused.what}"))
    for field_, value in chosen.changes.items():
        if field_ != "batch.micro":
            word = int(value) if value.isdigit() else value == "true"
            decisions.append(Decision(field_, word, reason))
    return chosen, compared(tried, chosen, reason), None if recipe.force else refused, would_fit


def decide_compiling(recipe: Recipe, device: str, decisions: list[Decision]) -> Recipe:
    """Return the recipe with `train.compile` decided."""
    if recipe.train.compile != "auto":
        return recipe
    steps = recipe.train.max_steps
    against = [
        (device == "cpu", "CPUs gain little by it"),
        (recipe.shapes_vary, "batches differ in length, and each length would be compiled anew"),
        (recipe.measure.attention or recipe.measure.profile == "flops", "what is measured needs the layers"),
        (steps is not None and steps < LONG, f"{steps} steps do not win back the time that compiling takes"),
    ]
    why = next((reason for holds, reason in against if holds), None)
    shapes = "batches have few shapes" if recipe.padding_varies else "all batches have one shape"
    decisions.append(Decision("train.compile", why is None, why or shapes))
    return recipe.choosing(compiled=why is None)


def check_cuda_graphs(recipe: Recipe, batch: Batch) -> None:
    """Raise RecipeError where CUDA graphs would be recorded again and again, or overwrite what is needed."""
    against = [
        (not spec_of(recipe.engine.name).plain, f"{recipe.engine.name} moves weights and gradients itself"),
        (batch.accumulation > 1, "gradients that accumulate lie in memory that the next micro-step writes"),
        (recipe.padding_varies, "batches differ in length, and each length would be recorded anew"),
    ]
    why = next((reason for holds, reason in against if holds), None)
    if recipe.train.cuda_graphs and why:
        hint = "train.compile=true compiles without them"
        raise RecipeError(f"is cuda-graphs, and {why}", where="train.compile", hint=hint)


def decide_loss(
    recipe: Recipe, precision: str, room: MemoryLimit, ranks: int, decisions: list[Decision]
) -> Recipe:
    """Return the recipe with `train.fused_loss` decided where the model is compiled: off where the device has
    room for all logits, so that the compiler fuses the loss with the model; else unchanged, and it is
    computed in parts."""
    engine, train, micro = recipe.engine, recipe.train, recipe.batch.micro
    config = whole_config(recipe)
    lengths = recipe.lengths(config)
    if train.compile in (False, "auto") or train.fused_loss != "auto" or recipe.output != "logits":
        return recipe
    if engine.zero == "auto" or spec_of(engine.name).shards_weights(engine.zero, ranks):
        return recipe
    if config is None or lengths is None or room.device is None or not isinstance(micro, int):
        return recipe
    rows = micro * lengths.sequences * (lengths.target or lengths.tokens)
    classes, element = int(config.get("vocab_size") or 0), 4 if precision in WIDE else 2
    if config.get("model_type") not in PLAIN_OUTPUT or not classes:
        return recipe
    if not fits_whole(rows, classes, element, room.device):
        return recipe
    logits = format_bytes(rows * classes * element)
    decisions.append(
        Decision("train.fused_loss", False, f"the compiled graph has it, with {logits} of logits")
    )
    return recipe.choosing(fused_loss=False)


def decide_loaders(
    recipe: Recipe, device: str, hosts: Sequence[tuple[Mapping[str, Any], int]], decisions: list[Decision]
) -> Recipe:
    """Return the recipe with `train.workers` decided. `hosts`: facts and ranks of each, or of the one
    machine; an unknown fact sets no bound."""
    if recipe.train.workers != "auto":
        return recipe
    if device == "cpu":  # its cores compute
        return recipe.choosing(workers=0)
    wanted = number = recipe.loaders
    why = f"{recipe.workload}: " + (
        f"{wanted} keep up with a GPU" if wanted else "batches are made faster than they are trained on"
    )
    for about, ranks in hosts:
        bounds = {"cores": (about.get("cores"), 1), "/dev/shm": (about.get("shm"), LOADER_SHM)}
        for name, (there, each) in bounds.items():
            # A rank computes on a core of its own.
            free = None if there is None else int(there) // ranks // each - (name == "cores")
            if free is not None and free < number:
                number, why = (
                    max(0, free),
                    f"{recipe.workload} wants {wanted}, and a host's {name} allows no more",
                )
    decisions.append(Decision("train.workers", number, why))
    return recipe.choosing(workers=number)


def decide_precision(recipe: Recipe, device: str, gpus: Gpus, decisions: list[Decision]) -> str:
    """Return fp32, tf32, bf16, fp16 or fp8. `auto`: the fastest of the first four that every device supports
    and the model tolerates.

    `gpus`: those that ranks use, by host.

    Compute capability below 8.9 has no fp8, below 8 no bf16 and no tf32, below 7 no useful fp16.
    """
    wanted = recipe.precision
    able = [
        (_capability(gpu), f"{gpu.get('name') or 'a GPU'} of {host}")
        for host, used in gpus.items()
        for gpu in used
    ]
    reported = [(capability, name) for capability, name in able if capability and device == "cuda"]
    capability, weakest = min(reported, default=(None, None))
    if wanted == "auto" and recipe.half:
        wanted = "bf16"
        decisions.append(Decision("precision", wanted, "{}={} computes in it".format(*recipe.half)))
    if wanted == "auto":
        chosen, why = _auto_precision(recipe, device, weakest, capability)
        silent = [name for each, name in able if not each]
        if chosen != "fp32" and silent:
            chosen, why = "fp32", f"{silent[0]} does not report its compute capability"
        decisions.append(Decision("precision", chosen, why))
        return chosen
    refusal = _refusal(recipe, wanted, device, weakest, capability)
    if refusal and recipe.half:
        key, value, usual = recipe.half
        refusal = RecipeError(f"is {value}, and {refusal.what}", where=key, hint=f"{key}={usual}")
    if refusal and not recipe.force:
        raise refusal
    if refusal:
        decisions.append(Decision("precision", wanted, f"forced, although: {refusal.what}"))
    elif wanted == "fp8" and (note := _of_float8(recipe, device)):
        decisions.append(Decision("precision", wanted, note))
    return wanted


def _of_float8(recipe: Recipe, device: str) -> str:
    """Return a note on the device or the casts of a run in fp8; empty where all is as it should be."""
    if device == "cpu":
        return "emulated in fp32: CPUs have no such products, and a run shows that it learns, not how fast"
    if recipe.train.compile is False:
        return "its casts run by themselves, and may cost more than it saves: train.compile=true fuses them"
    return ""


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the driver's compute capability, else that of the maker's GPU of this name."""
    stated = gpu.get("capability")
    if stated:
        return int(stated[0]), int(stated[1])
    device = driver_device(str(gpu.get("name") or ""))
    return device.capability if device else None


def _auto_precision(
    recipe: Recipe, device: str, weakest: str | None, capability: tuple[int, int] | None
) -> tuple[str, str]:
    if device == "cpu":
        return "fp32", "CPUs train in fp32"
    if capability is None:
        return "fp32", "no host reported its GPUs' compute capability"
    if capability >= (8, 0):
        return "bf16", "every GPU supports it"
    if capability >= (7, 0) and not is_t5(recipe):
        return "fp16", f"{weakest} has compute capability {capability[0]}.{capability[1]}: fp16, but no bf16"
    reason = "T5 overflows in fp16" if capability >= (7, 0) else "no useful fp16"
    return "fp32", f"{weakest} has compute capability {capability[0]}.{capability[1]}: no bf16; {reason}"


def _refusal(
    recipe: Recipe, wanted: str, device: str, weakest: str | None, capability: tuple[int, int] | None
) -> UsageError | None:
    if wanted == "fp16" and is_t5(recipe):
        return RecipeError(
            "T5 overflows in fp16 (its feed-forward activations leave fp16's range: loss 0 or nan)",
            where="precision",
            hint="precision=bf16 where the GPU has it, else fp32; force=true starts anyway",
        )
    if wanted in ("fp16", "tf32") and device == "cpu":
        return RecipeError(f"{wanted} needs a GPU", where="precision", hint="precision=fp32 or bf16")
    need = capability_for(wanted, weakest or "")
    if need and capability is not None and capability < need:
        words = f"{need[0]}.{need[1]}".removesuffix(".0")
        return RecipeError(
            f"{wanted} needs compute capability {words}, and {weakest} has {capability[0]}.{capability[1]}",
            where="precision",
            hint="precision=auto chooses what every host supports",
        )
    return None
