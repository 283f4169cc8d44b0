"""Decide what a recipe leaves open: slots, device, precision, batch, threads. Pure; every choice has its
reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.core.batch import Batch
from muster.core.checkpoints import bytes_needed
from muster.core.errors import RecipeError, UsageError
from muster.core.hardware.devices import driver_device
from muster.core.inventory import Inventory
from muster.core.job import Decision
from muster.core.recipe import Recipe
from muster.core.shares import check_given_shares
from muster.core.units import format_bytes
from muster.engines.base import spec_of
from muster.inputs.model import is_t5, parameters, whole_config
from muster.planner.choose import Timer, Tracer, Where, choose, not_timed, nothing_traced
from muster.planner.document import Candidate
from muster.planner.memory.fit import Room, Setting
from muster.planner.placing import device_and_slots, gpu_numbers, gpus_of
from muster.planner.setting import room_of
from muster.planner.sizing import Sized

NOWHERE = Room(None, None)
Clock = Callable[[Sequence[int], str], Timer]
Gpus = Mapping[str, Sequence[Mapping[str, Any]]]  # by host
CPU_FACTS: dict[str, Any] = {"gpus": [], "cores": None}


@dataclass(frozen=True)
class Decided:
    """Everything that the hosts had to be asked for."""

    slots: tuple[int, ...]
    device: str
    precision: str
    batch: Batch
    threads: tuple[int, ...]
    visible_gpus: tuple[tuple[int, ...] | None, ...]  # numbers within CUDA_VISIBLE_DEVICES; None: as it is
    decisions: tuple[Decision, ...]
    recipe: Recipe  # with what was auto in its model and training
    setting: Setting | None = None  # None: the model is not known here
    room: Room = NOWHERE
    candidates: tuple[Candidate, ...] = ()  # ways that were compared


def decide(
    recipe: Recipe,
    inventory: Inventory,
    facts: Mapping[str, Mapping[str, Any]],
    *,
    one_machine: bool,
    tracer: Tracer = nothing_traced,
    clock: Clock | None = None,
) -> Decided:
    """The recipe's open values for these hosts. `clock`: from slots and device to how steps are predicted.

    Raises RecipeError and InventoryError where nothing can work.
    """
    decisions: list[Decision] = []
    device, slots = device_and_slots(recipe, inventory, facts, one_machine, decisions)
    world_size = sum(slots)
    gpus = gpus_of(facts, inventory.hosts, slots, shared=one_machine)
    # What trains nothing has neither: the values below are shown nowhere.
    precision = decide_precision(recipe, device, gpus, decisions) if recipe.trains else "fp32"
    sized, candidates, room = Sized(Batch(1, 1, world_size), recipe), list[Candidate](), NOWHERE
    if recipe.trains:
        room = room_of(facts, inventory.hosts, slots, device, shared=one_machine)
        where = Where(precision, device, slots, room)
        timer = clock(slots, device) if clock else not_timed
        sized, candidates = choose(recipe, whole_config(recipe), where, decisions, tracer, timer)
    recipe, batch = sized.recipe, sized.batch
    if isinstance(recipe.batch.split, list) and recipe.trains:
        check_given_shares(recipe.batch.split, world_size=world_size, micro=batch.micro)
    decisions.extend(spec_of(recipe.engine.name).decisions(recipe))
    sharing = sum(slots) if one_machine else None
    threads = []
    for host, count in zip(inventory.hosts, slots, strict=True):
        cores = facts[host.label].get("cores") or 1
        threads.append(recipe.launch.threads or max(1, int(cores) // (sharing or count)))
    visible: list[tuple[int, ...] | None] = [None] * len(slots)
    if device == "cuda" and one_machine and len(slots) > 1:
        visible = [tuple(numbers) for numbers in gpu_numbers(slots, shared=True)]
    return Decided(
        tuple(slots),
        device,
        precision,
        batch,
        tuple(threads),
        tuple(visible),
        tuple(decisions),
        recipe,
        sized.setting,
        room,
        tuple(candidates),
    )


def decide_precision(recipe: Recipe, device: str, gpus: Gpus, decisions: list[Decision]) -> str:
    """fp32, bf16 or fp16. `auto`: the fastest that every device can do and the model bears. `gpus`: those
    that ranks use, by host.

    Compute capability below 8 has no bf16, below 7 no useful fp16 (NVIDIA's CUDA programming guide).
    """
    wanted = recipe.precision
    fixed = spec_of(recipe.engine.name).given(recipe).precision
    if fixed and wanted not in ("auto", fixed):
        raise RecipeError(
            f"is {wanted}, but {recipe.engine.config} switches {fixed} on",
            where="precision",
            hint=f'precision={fixed}, or "auto" in that file',
        )
    wanted = fixed or wanted  # type: ignore[assignment]
    weakest, capability = _weakest(gpus) if device == "cuda" else (None, None)
    if wanted == "auto":
        chosen, why = _auto_precision(recipe, device, weakest, capability)
        if chosen != "fp32" and (silent := _silent(gpus)):
            chosen, why = "fp32", f"{silent} does not report its compute capability"
        decisions.append(Decision("precision", chosen, why))
        return chosen
    refusal = _refusal(recipe, wanted, device, weakest, capability)
    if refusal and not recipe.force:
        raise refusal
    if refusal:
        decisions.append(Decision("precision", wanted, f"forced, although: {refusal.what}"))
    return wanted


def _weakest(gpus: Gpus) -> tuple[str | None, tuple[int, int] | None]:
    known = [
        (capability, f"{gpu.get('name') or 'a GPU'} of {host}")
        for host, used in gpus.items()
        for gpu in used
        if (capability := _capability(gpu))
    ]
    if not known:
        return None, None
    capability, name = min(known)
    return name, capability


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int] | None:
    """As the driver tells it, else the maker of a GPU of this name."""
    told = gpu.get("capability")
    if told:
        return int(told[0]), int(told[1])
    device = driver_device(str(gpu.get("name") or ""))
    return device.capability if device else None


def _silent(gpus: Gpus) -> str | None:
    """A GPU whose compute capability is not known, as under an old driver."""
    for host, used in gpus.items():
        for gpu in used:
            if not _capability(gpu):
                return f"{gpu.get('name') or 'a GPU'} of {host}"
    return None


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
    if wanted == "fp16" and device == "cpu":
        return RecipeError("fp16 needs a GPU", where="precision", hint="precision=fp32 or bf16")
    need = {"fp16": (7, 0), "bf16": (8, 0)}.get(wanted)
    if need and capability is not None and capability < need:
        return RecipeError(
            f"{wanted} needs compute capability {need[0]}, and {weakest} has {capability[0]}.{capability[1]}",
            where="precision",
            hint="precision=auto chooses what every host supports",
        )
    return None


def check_disk(recipe: Recipe, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UsageError where checkpoints and the model cannot fit on a host's disk."""
    count = parameters(recipe)
    if count is None or recipe.force:
        return
    for host, about in facts.items():
        need = disk_needed(count, recipe, present=len(about.get("checkpoints") or []))
        free = about.get("disk_free")
        if free is not None and free < need:
            raise UsageError(
                f"{format_bytes(free)} free where the run is kept, and checkpoints and model need about "
                f"{format_bytes(need)}",
                host=host,
                where=str(about.get("base")),
                hint="make room, lower checkpoint.keep, save less often, or choose another --output or "
                "launch.workdir",
            )


def disk_needed(count: int, recipe: Recipe, *, present: int = 0) -> int:
    """Bytes for the model and as many checkpoints as will lie there at once, less those that do already."""
    kept, steps = recipe.checkpoint, recipe.train.max_steps
    return bytes_needed(count, kept.every, kept.keep, steps, present=present, model=kept.model)
