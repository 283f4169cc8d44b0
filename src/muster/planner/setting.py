"""From a recipe and the hosts' facts to what decides the memory of a rank, and what a rank may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core import families
from muster.core.families import stacks
from muster.core.hardware.devices import WIDE
from muster.core.inventory import Host
from muster.core.job import Facts
from muster.core.recipe import Recipe
from muster.core.trace import Trace
from muster.engines.base import spec_of
from muster.engines.spread import ModelSpread
from muster.inputs.model import config_of, decided_config, whole_config
from muster.planner.memory.fit import MemoryLimit, Setting
from muster.planner.memory.states import shape_of
from muster.planner.placing import gpus_of
from muster.planner.remedies import hidden_size

LONG = 16384  # tokens: longer sequences than most people train on


def room_of(
    facts: Facts, hosts: Sequence[Host], slots: Sequence[int], device: str, *, shared: bool
) -> MemoryLimit:
    """Return what a rank may use at the smallest device that the job uses and the smallest host. `shared`:
    pretend hosts that are all one machine."""
    devices: list[tuple[int, str, tuple[int, ...]]] = []
    shares: list[tuple[int, str]] = []
    for host, count in zip(hosts, slots, strict=True):
        about = facts[host.label]
        totals = [about[key] for key in ("memory_total", "memory_limit") if about.get(key)]
        if totals:
            shares.append((min(totals) // (sum(slots) if shared else count), host.label))
    share, host_name = min(shares, default=(None, "a host"))
    if device == "cpu":
        return MemoryLimit(share, None, host_name, host_name)
    for label, gpus in gpus_of(facts, hosts, slots, shared=shared).items():
        for gpu in gpus:
            if gpu.get("memory_total"):
                name, able = f"{gpu.get('name') or 'a GPU'} of {label}", tuple(gpu.get("capability") or ())
                devices.append((gpu["memory_total"], name, able))
    smallest, name, able = min(devices, default=(None, "a GPU", ()))
    return MemoryLimit(smallest, share, name, host_name, (able[0], able[1]) if len(able) == 2 else None)


def setting_of(
    recipe: Recipe,
    config: Mapping[str, Any] | None,
    precision: str,
    device: str,
    slots: Sequence[int],
    trace: Trace | None = None,
) -> Setting | None:
    """Return what decides the memory of a rank, at micro-batch 1; None where model or lengths are not known.
    `trace`: of this recipe's model, where there is one."""
    lengths = recipe.lengths(config)
    if config is None or lengths is None:
        return None
    config = shape_of(recipe.output, decided_config(recipe, config))
    counted = _counted(recipe, config, trace)
    if counted is None:
        return None
    spread = ModelSpread(
        engine=recipe.engine.name,
        ranks=sum(slots),
        element=4 if precision in WIDE else 2,
        micro_steps=recipe.batch.accumulation or 1,
        offload=recipe.engine.offload,
        device=device,
        sync_each_batch=recipe.engine.sync_each_batch is True,
        keeps_half=recipe.keeps_half,
        casts=recipe.computes_half and not recipe.keeps_half,
        bucket=0,
    )
    own = spec_of(recipe.engine.name).spread_of(recipe, precision, hidden_size(config))
    return Setting(
        config=config,
        parameters=counted[0],
        trainable=counted[1],
        lengths=lengths,
        precision=precision,
        spread=replace(spread, **own),
        ranks_per_host=max(slots),
        checkpointing=recipe.train.checkpointing,
        create="sharded" if recipe.model.create == "sharded" else "whole",
        saves=recipe.checkpoint.model,
        checkpoints=recipe.checkpoint.every is not None,
        fused_loss=recipe.train.fused_loss,
        compiled=recipe.train.compile in (True, "cuda-graphs") and device == "cuda",
        quantized=recipe.model.quantized,
        small_moments=recipe.train.optimizer == "adamw-8bit",
        output=recipe.output,
        others=tuple(replace(each, config=config_of(each.source)) for each in recipe.held_models()),
        drawing=recipe.drawing(),
        trace=trace,
    )


def assumed_shapes(recipe: Recipe) -> list[str]:
    """Return notes on further models that are assumed to be as large as the trained one, without a
    configuration."""
    unknown = [each for each in recipe.held_models() if each.source and config_of(each.source) is None]
    return [
        f"the {each.role} is taken to be as large as the model: {each.source} has no configuration here"
        for each in unknown
    ]


def assumed_length(recipe: Recipe, config: Mapping[str, Any] | None) -> list[str]:
    """Return a note that sequences are assumed to be as long as the model allows, where the recipe leaves it
    open and that is much."""
    tokens = sequence_of(recipe, config)
    if tokens is None or tokens < LONG or getattr(recipe.data, "sequence", None):
        return []
    return [f"a sequence has {tokens:,} tokens, as many as the model has positions; data.sequence=N sets it"]


def sequence_of(recipe: Recipe, config: Mapping[str, Any] | None) -> int | None:
    """Return the tokens of a packed sequence; None for other data."""
    lengths = recipe.lengths(config) if recipe.packed else None
    return lengths.tokens if lengths else None


def why_unknown(recipe: Recipe) -> str:
    """Return why there is no setting of a recipe."""
    config = whole_config(recipe)
    if config is None:
        return "the model's configuration is unknown"
    if recipe.lengths(config) is None:
        return "the length of its samples is unknown (set data.sequence=N)"
    kind = config.get("model_type")
    if families.family_of(config) is not None:
        return f"what a rank holds under {recipe.engine.name} is unknown"
    return f"for models of type {kind} no closed form is known, and it was not traced"


def _counted(recipe: Recipe, config: Mapping[str, Any], trace: Trace | None) -> tuple[int, int] | None:
    """Return the parameters, and how many of them are trained: as traced, else in closed form; None: neither.
    """
    if trace is not None:
        own = [each.numel for each in trace.parameters if each.trained]
        return sum(each.numel for each in trace.parameters), sum(own)
    count = families.parameters(config)
    if count is None:
        return None
    adapters = min(count, _adapters(recipe, config)) if recipe.lora else 0
    return count + adapters, adapters or count


# By which names targets call the matrices of a layer.
_ROLES = {
    **dict.fromkeys(("q_proj", "q", "query"), "query"),
    **dict.fromkeys(("k_proj", "k", "key"), "key"),
    **dict.fromkeys(("v_proj", "v", "value"), "value"),
    **dict.fromkeys(("o_proj", "out_proj", "o"), "output"),
    **dict.fromkeys(("up_proj", "fc1", "wi", "wi_1"), "up"),
    **dict.fromkeys(("gate_proj", "wi_0"), "gate"),
    **dict.fromkeys(("down_proj", "fc2", "wo"), "down"),
}


def _adapters(recipe: Recipe, config: Mapping[str, Any]) -> int:
    """Return the parameters of LoRA's adapters: rank x (in + out) of each target. PEFT's own targets are
    queries and values (peft/utils/constants.py); of names that are not known here, all matrices of layers are
    counted."""
    assert recipe.lora is not None
    given, fused = recipe.lora.targets, config.get("model_type") == "gpt2"
    names = {"c_attn"} if fused else {"query", "value"}
    if isinstance(given, list):
        names = set(given) if fused else {_ROLES.get(each, each) for each in given}
    every = given == "all-linear" or not names <= {*_ROLES.values(), "c_attn", "c_proj", "c_fc"}
    sides = 0
    for stack in stacks(config):
        width, inner, query, keys = stack.width, stack.inner, stack.query, stack.keys
        attention = {"query": query, "key": keys, "value": keys, "output": query}
        layer = [(name, width + side) for name, side in attention.items()] * stack.attentions
        layer += [(name, width + inner) for name in ("up", "down", *(["gate"] if stack.gated else []))]
        if fused:
            between = width + inner
            layer = [("c_attn", 4 * width), ("c_proj", 2 * width), ("c_fc", between), ("c_proj", between)]
        sides += stack.layers * sum(size for name, size in layer if every or name in names)
    width, narrow = hidden_size(config), int(config.get("word_embed_proj_dim") or 0)
    if every and narrow not in (0, width):  # OPT's projections of narrower embeddings
        sides += 2 * (width + narrow)
    return recipe.lora.rank * sides
