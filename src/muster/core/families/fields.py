"""The fields of a configuration that decide what a model holds and computes: their names, usual values and
limits. Pure.

Usual values and general names (attribute_map) are those of transformers/models/*/configuration_*.py, 5.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MOST = 10**9  # a slip of the finger, whatever the field
MOST_LAYERS = 10_000
Kind = Literal["whole", "pair", "share", "flag", "activation", "feed-forward"]


@dataclass(frozen=True)
class Field:
    """A field. `usual`: its value where none is given; None: it follows from other fields; `also`: the
    general name that sets the same field, and wins; `optional`: null may be given; `least`, `most`: of a
    number.

    Kinds: a whole number; one, or two for height and width; a share from 0 to 1; true or false; an
    activation's name; T5's feed_forward_proj.
    """

    name: str
    kind: Kind
    usual: Any = None
    also: str | None = None
    optional: bool = False
    least: int = 1
    most: int = MOST


@dataclass(frozen=True)
class Division:
    """The number in the field `parts` has to divide the one in `whole`. `even`: into an even number each;
    `types`: the model types that require it, none: all of the family."""

    whole: str
    parts: str
    even: bool = False
    types: tuple[str, ...] = ()


def whole(
    name: str, usual: int | None = None, *, also: str | None = None, least: int = 1, most: int = MOST
) -> Field:
    """Return a field with a whole number. Null may be given where there is no usual one."""
    return Field(name, "whole", usual, also, usual is None, least, most)


def depth(name: str, usual: int | None = None, *, also: str | None = None) -> Field:
    """Return a field with a number of layers."""
    return whole(name, usual, also=also, most=MOST_LAYERS)


def share(name: str, usual: float) -> Field:
    """Return a field with a share from 0 to 1, such as dropout's."""
    return Field(name, "share", usual)


def flag(name: str, usual: bool) -> Field:
    """Return a field that is true or false."""
    return Field(name, "flag", usual)


def plain(fields: Iterable[Field], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the family's own names in place of general ones."""
    renamed = dict(config)
    for field in fields:
        if field.also is not None and field.also in renamed:
            value = renamed.pop(field.also)
            if value is not None or field.name not in renamed:
                renamed[field.name] = value
    return renamed


def filled(fields: Iterable[Field], usual: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain configuration with a value for every field that has a usual one. `usual`: of the model
    type, before those of the family."""
    complete = plain(fields, config)
    for field in fields:
        value = usual.get(field.name, field.usual)
        given = field.name in complete and (field.optional or complete[field.name] is not None)
        if value is not None and not given:
            complete[field.name] = value
    return complete
