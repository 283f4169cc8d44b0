"""Model families whose sizes and parameter counts are known in closed form, so that no torch is needed.

A module per family has

MODEL_TYPES                  Transformers' names for it
FIELDS                       what decides sizes and operations, with usual values (families/fields.py)
USUAL (where types differ)   model type -> usual values in place of those
DIVISIONS                    which numbers have to divide which
SIZES: name -> fields        configurations of known sizes, with `model_type` (families/checkpoints.py: the
                             hub's, also of families without closed forms)
parameters(config) -> int    trainable parameters, of a filled configuration
tables(config)               shapes of the matrices outside of layers, but for the token embeddings; where
                             there are any
stacks(config)               its layers by their sizes (families/stack.py)
products(config, shape)      multiply-accumulates of a forward pass over a batch of some shape; decoders have
                             none, since theirs follow from the stack
positions(config) -> int     tokens of a sequence at most; where there is such a limit
PUBLISHED (where known)      name -> the learning rate and tokens per optimizer step of a size

A configuration is filled where every field has a value (`filled`). `families/checking.py` reports what is
wrong with one; elsewhere it is taken to be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from muster.core.families import fields, gpt2, llama, opt, t5, vit
from muster.core.families.checkpoints import TRACED
from muster.core.families.known import fields_of
from muster.core.families.published import PublishedTraining
from muster.core.families.stack import Stack
from muster.core.flops import Products, Shape

FAMILIES: tuple[ModuleType, ...] = (t5, gpt2, opt, llama, vit)
POSITIONS = ("max_position_embeddings", "n_positions")  # of other families; the first that is given
OWNERS = ("google-t5", "openai-community", "facebook", "google", "meta-llama")


def size(name: str | None) -> dict[str, Any] | None:
    """Return the configuration of a known size by its name, with or without a hub owner's before it."""
    owner, _, bare = (name or "").rpartition("/")
    for sizes in (*(family.SIZES for family in FAMILIES), TRACED):
        shape = sizes.get(name) or (sizes.get(bare) if owner in OWNERS else None)
        if shape:
            return dict(shape)
    return None


def published(name: str | None) -> PublishedTraining | None:
    """Return how a known size was trained, by its name with or without a hub owner's; None: not published
    here."""
    owner, _, bare = (name or "").rpartition("/")
    if owner and owner not in OWNERS:
        return None
    tables = (getattr(family, "PUBLISHED", {}) for family in FAMILIES)
    return next((table[bare] for table in tables if bare in table), None)


def published_near(count: int) -> tuple[str, PublishedTraining]:
    """Return the published size nearest to a number of parameters, and how it was trained."""
    tables = (getattr(family, "PUBLISHED", {}) for family in FAMILIES)
    trainings = {name: how for table in tables for name, how in table.items()}

    def distance(name: str) -> float:
        config = size(name)
        assert config is not None
        return abs(math.log(count / (parameters(config) or 1)))

    nearest = min(trainings, key=distance)
    return nearest, trainings[nearest]


def sizes(*model_types: str) -> list[str]:
    """Return the names of the known sizes of some families; of all, where no family is named."""
    wanted = set(model_types)
    chosen = [family for family in FAMILIES if not wanted or wanted & set(family.MODEL_TYPES)]
    return [*(name for family in chosen for name in family.SIZES), *(() if wanted else TRACED)]


def family_of(config: Mapping[str, Any]) -> ModuleType | None:
    """Return the family of a configuration; None where it is none of these."""
    kind = str(config.get("model_type", "")).lower()
    return next((family for family in FAMILIES if kind in family.MODEL_TYPES), None)


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with its family's own names of fields in place of the general ones that
    Transformers accepts as well (GPT-2's hidden_size is n_embd)."""
    family = family_of(config)
    return fields.plain(family.FIELDS, config) if family else dict(config)


def filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with a value in every field that decides sizes: Transformers' default where it
    has none."""
    family = family_of(config)
    if family is None:
        return dict(config)
    usual = getattr(family, "USUAL", {}).get(str(config["model_type"]).lower(), {})
    return fields.filled(family.FIELDS, usual, config)


def parameters(config: Mapping[str, Any]) -> int | None:
    """Return the number of trainable parameters; None for an unknown family."""
    family = family_of(config)
    return family.parameters(filled(config)) if family else None


def positions(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a sequence can have, as the model's family counts them; None: no limit, or not
    known.

    A key that the family, or Transformers' class of the type, does not read, left over from another model,
    does not count: LongT5's files have T5's n_positions.
    """
    family = family_of(config)
    if family is None:
        read = None if "auto_map" in config else fields_of(str(config.get("model_type")))
        keys = [key for key in POSITIONS if read is None or key in read]
        return next((limit for key in keys if isinstance(limit := config.get(key), int) and limit), None)
    try:
        return family.positions(filled(config)) if hasattr(family, "positions") else None
    except (TypeError, ValueError):  # no number: families/checking.py says so
        return None


def tables(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the shapes of the matrices outside of layers, but for the token embeddings; none where unknown.
    """
    family = family_of(config)
    own: list[tuple[int, int]] = family.tables(filled(config)) if family and hasattr(family, "tables") else []
    return own


def products(config: Mapping[str, Any], shape: Shape) -> Products | None:
    """Return the multiply-accumulates of a forward pass over a batch; None for an unknown family.

    Attention counts in full. `core/flops.py` turns them into floating-point operations.
    """
    family, whole = family_of(config), filled(config)
    if family is None or hasattr(family, "products"):
        return family.products(whole, shape) if family else None
    [stack], tokens = family.stacks(whole), shape.samples * shape.tokens
    narrow = int(whole.get("word_embed_proj_dim") or stack.width)  # OPT: to and from narrower embeddings
    projections = 2 * tokens * narrow * stack.width if narrow != stack.width else 0
    outside = projections + tokens * narrow * int(whole["vocab_size"])
    return Products(
        weights=tokens * stack.layers * stack.weights + outside,
        attention=stack.layers * 2 * tokens * shape.tokens * stack.query,
        outside=outside,
    )


def stacks(config: Mapping[str, Any]) -> list[Stack]:
    """Return the model as stacks of layers; none for an unknown family."""
    family = family_of(config)
    layers: list[Stack] = family.stacks(filled(config)) if family else []
    return layers
