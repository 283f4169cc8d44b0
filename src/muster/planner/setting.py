"""From a recipe and what hosts told to what decides the memory of a rank, and what a rank may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core import families
from muster.core.batch import Batch
from muster.core.data import ImageData, TextData, TextToSqlData
from muster.core.families import vit
from muster.core.inventory import Host
from muster.core.recipe import Recipe
from muster.core.zero import deepspeed_config
from muster.planner.activations import Lengths
from muster.planner.fit import Room, Setting
from muster.planner.remedies import default_bucket

Facts = Mapping[str, Mapping[str, Any]]


def room_of(facts: Facts, hosts: Sequence[Host], slots: Sequence[int], device: str, *, shared: bool) -> Room:
    """What a rank may use at the smallest device and the smallest host. `shared`: pretend hosts that are all
    one machine."""
    devices: list[tuple[int, str]] = []
    shares: list[tuple[int, str]] = []
    for host, count in zip(hosts, slots, strict=True):
        about = facts[host.label]
        totals = [about[key] for key in ("memory_total", "memory_limit") if about.get(key)]
        if totals:
            shares.append((min(totals) // (sum(slots) if shared else count), host.label))
        for gpu in (about.get("gpus") or []) if device == "cuda" else []:
            if gpu.get("memory_total"):
                devices.append((gpu["memory_total"], f"{gpu.get('name') or 'a GPU'} of {host.label}"))
    share, host_name = min(shares, default=(None, "a host"))
    if device == "cpu":
        return Room(share, None, host_name, host_name)
    smallest, name = min(devices, default=(None, "a GPU"))
    return Room(smallest, share, name, host_name)


def setting_of(
    recipe: Recipe, config: Mapping[str, Any] | None, precision: str, device: str, slots: Sequence[int]
) -> Setting | None:
    """What decides the memory of a rank, at micro-batch 1; None where model or lengths are not known."""
    lengths = lengths_of(recipe, config)
    count = families.parameters(config) if config else None
    if config is None or count is None or lengths is None:
        return None
    if isinstance(recipe.data, ImageData):
        config = {**config, "image_size": recipe.data.size} if recipe.data.size else config
    else:
        config = {"vocab_size": recipe.model.vocab_size, **config}  # of a tokenizer trained on the data
    setting = Setting(
        config=config,
        parameters=count,
        trainable=min(count, _adapters(recipe, config)) if recipe.lora else count,
        lengths=lengths,
        engine=recipe.engine.name,
        precision=precision,
        device=device,
        ranks=sum(slots),
        ranks_per_host=max(slots),
        offload=recipe.engine.offload,
        checkpointing=recipe.train.gradient_checkpointing,
        create="sharded" if recipe.model.create == "sharded" else "whole",
        saves=recipe.checkpoint.model,
    )
    return _with_deepspeed(recipe, setting) if recipe.engine.name == "deepspeed" else setting


def _with_deepspeed(recipe: Recipe, setting: Setting) -> Setting:
    """Stage, offload and buckets as DeepSpeed will read them, a user's own file included."""
    zero = deepspeed_config(recipe, Batch(1, 1, 1), setting.precision).get("zero_optimization") or {}
    stage = int(zero.get("stage", 0))
    devices = [(zero.get(key) or {}).get("device", "none") for key in ("offload_optimizer", "offload_param")]
    offload = {"param": "optimizer+param", "optimizer": "optimizer"}.get(
        "param" if devices[1] != "none" else "optimizer" if devices[0] != "none" else "none", "none"
    )
    setting = replace(setting, stage=stage, offload=offload)
    bucket, live = zero.get("reduce_bucket_size"), zero.get("stage3_max_live_parameters")
    return replace(
        setting,
        bucket=int(bucket) if isinstance(bucket, int | float) else default_bucket(setting),
        live=int(live) if isinstance(live, int | float) else setting.live,
        overlap=bool(zero.get("overlap_comm", stage == 3)),
    )


def lengths_of(recipe: Recipe, config: Mapping[str, Any] | None) -> Lengths | None:
    """The longest sample, in tokens; None where it is not known."""
    data = recipe.data
    if isinstance(data, TextToSqlData):
        return Lengths(data.max_source, data.max_target)
    if isinstance(data, ImageData):
        return Lengths(vit.tokens(config or {}))
    sequence = sequence_of(recipe, config)
    return None if sequence is None else Lengths(sequence)


def sequence_of(recipe: Recipe, config: Mapping[str, Any] | None) -> int | None:
    """Tokens of a packed sequence; None for other data."""
    if not isinstance(recipe.data, TextData):
        return None
    keys = ("max_position_embeddings", "n_positions")
    positions = next((config[key] for key in keys if key in config), None) if config else None
    return recipe.data.sequence or positions


def _adapters(recipe: Recipe, config: Mapping[str, Any]) -> int:
    """At most so many parameters in LoRA's adapters: rank x (in + out) for every matrix of every layer."""
    assert recipe.lora is not None
    width = int(next((config[key] for key in ("hidden_size", "d_model", "n_embd") if key in config), 0))
    inner = next((config[k] for k in ("ffn_dim", "intermediate_size", "d_ff", "n_inner") if config.get(k)), 0)
    layers = sum(int(config.get(key) or 0) for key in ("num_hidden_layers", "n_layer", "num_layers"))
    layers += int(config.get("num_decoder_layers") or config.get("num_layers") or 0)
    per_layer = 4 * 2 * width + 3 * (width + int(inner or 4 * width))
    return recipe.lora.rank * layers * per_layer
