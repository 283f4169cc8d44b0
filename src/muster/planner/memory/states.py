"""Bytes of parameters, gradients, fp32 copies, optimizer states and engine buffers of a rank, from the list
of a model's parameter tensors. Pure.

tests/real/test_states.py compares them with the tensors that every engine really has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from muster.core import families
from muster.core.trace import EMBEDDINGS, Parameter
from muster.core.workload import HeldModel, Output
from muster.engines.base import spec_of
from muster.engines.spread import ModelSpread, Tensors
from muster.engines.states import States, elements

_OUTPUT = "output.weight"


def shape_of(output: Output, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration from which sizes follow: a model that gives numbers has no output layer of its
    own."""
    return {**config, "tie_word_embeddings": True} if output == "numbers" else config


@lru_cache(maxsize=512)
def states(spread: ModelSpread, tensors: Tensors, rank: int | None = None) -> States | None:
    """Return what a rank holds, as its engine declares; rank None: the one that holds most. None: the engine
    does not declare it. The result is shared and must not be changed."""
    return spec_of(spread.engine).states(spread, tensors, rank)


def held_tensors(model: HeldModel, tensors: Tensors, shape: Mapping[str, Any]) -> Tensors:
    """Return the parameter tensors of a further model. `tensors`, `shape`: those of the trained one, and its
    configuration, whose shape it has where its own is not known."""
    config = shape_of(model.output, shape if model.config is None else model.config)
    count = families.parameters(config)
    if count is not None and (model.config is not None or model.trained or model.output == "numbers"):
        tensors = likely_tensors(config, count, count)
    return tuple(
        replace(each, name=f"{model.role}.{each.name}", unit=each.unit and f"{model.role}.{each.unit}")
        if model.trained
        else replace(
            each, trained=False, unit=""
        )  # FSDP cuts it as one unit (trl/models/utils.py, prepare_fsdp)
        for each in tensors
    )


def frozen_states(spread: ModelSpread, model: HeldModel, tensors: Tensors) -> States | None:
    """Return what a rank holds of a model that is not trained, under its role, and gathers while it runs.

    An engine that does not shard weights leaves it whole (trl/models/utils.py, prepare_deepspeed: stage 0).
    """
    if not model.sharded:
        return States({model.role: spread.element * elements(tensors)})
    cuts = spec_of(spread.engine).shards_weights(spread.stage, spread.ranks)
    plain = replace(
        spread,
        stage=spread.stage if cuts else 0,
        offload="optimizer+param" if spread.moves_parameters else "none",
        bucket=0,
    )
    account = states(plain, tensors)
    if account is None:
        return None
    held, host, passes = (sum(parts.values()) for parts in (account.held, account.host, account.passes))
    return States({model.role: held}, {model.role: host}, {f"gathered {model.role}": passes})


def likely_tensors(config: Mapping[str, Any], parameters: int, trainable: int) -> Tensors:
    """Return tensors of about the model's sizes where it was not traced: exactly `parameters` elements in
    all.

    The matrices of every layer, the embeddings, and the tables and matrices outside of layers, as the family
    has them; the rest of the number is dealt to the layers as vectors. With fewer `trainable` ones (LoRA) the
    model is frozen, and each layer has a small matrix of its own that is trained.
    """
    model = families.stacks(config)
    frozen = trainable < parameters
    total = parameters - trainable if frozen else parameters
    width = max((each.width for each in model), default=0)
    narrow = int(config.get("word_embed_proj_dim") or width)
    vocabulary = (int(config.get("vocab_size", 0)), narrow)
    tied = families.filled(config).get("tie_word_embeddings", True)
    made = [Parameter("embeddings.weight", vocabulary, not frozen, "" if tied else EMBEDDINGS)]
    tables = enumerate(families.tables(config))
    made += [Parameter(f"table{i}.weight", shape, not frozen, "") for i, shape in tables]
    layers = [(stack, f"layers.{at}.{i}") for at, stack in enumerate(model) for i in range(stack.layers)]
    for stack, name in layers:
        shapes = enumerate(stack.matrices)
        made += [Parameter(f"{name}.m{i}.weight", shape, not frozen, name) for i, shape in shapes]
    made += [] if tied else [Parameter(_OUTPUT, vocabulary, not frozen, "")]
    made = [each for each in made if each.numel]
    rest = total - elements(made)
    if rest < 0:  # smaller than its layers: the same tensors in proportion
        made = _shrunk(made, total)
        rest = total - elements(made)
    for (_, name), share in zip(layers, _dealt(rest, len(layers)), strict=True):
        made.append(Parameter(f"{name}.rest", (share,), not frozen, name))
    if not layers:
        made.append(Parameter("rest", (rest,), not frozen, ""))
    if frozen:
        names = [name for _, name in layers] or [""]
        for name, share in zip(names, _dealt(trainable, len(names)), strict=True):
            made.append(Parameter(f"{name}.adapter", (share, 1), True, name))
    made.sort(key=lambda each: each.name == _OUTPUT)  # the last one in every model
    return tuple(each for each in made if each.numel)


def _shrunk(made: list[Parameter], total: int) -> list[Parameter]:
    share = total / max(1, elements(made))
    return [
        Parameter(each.name, (int(each.shape[0] * share), *each.shape[1:]), each.trained, each.unit)
        for each in made
    ]


def _dealt(total: int, among: int) -> list[int]:
    """Divide `total` into parts that differ by one at most."""
    if not among:
        return []
    return [total // among + (index < total % among) for index in range(among)]
