"""Which fields Transformers' own classes of each model type have, as dev/model_fields.py read them there."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def listed() -> dict[str, Any]:
    """Load the list: `transformers` (its version), `common` (fields of any type), `types` (by type)."""
    text = resources.files(__package__).joinpath("known.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


def fields_of(model_type: str) -> frozenset[str] | None:
    """Return the fields of a type, without those of any; None: the type is not listed."""
    names = listed()["types"].get(model_type.lower())
    return None if names is None else frozenset(names.split())
