"""Check a configuration of a known family before a closed form is computed from it. Pure.

Only a configuration that makes no model, or another one than was meant, is refused: Transformers refuses some
of these after the ranks have started, computes with others (no layers), and ignores a misspelt field.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core import families
from muster.core.errors import RecipeError
from muster.core.families.fields import MOST, Division, Field
from muster.core.families.known import fields_of, listed
from muster.core.families.vit import pair
from muster.core.near import did_you_mean

# transformers/activations.py, ACT2FN.
ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu",
    "relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu",
)  # fmt: skip
MISSPELT = 0.85  # of difflib's ratio: nearer than any two names that mean different things


@dataclass(frozen=True)
class FieldSource:
    """Where the fields of a configuration come from. `own`: the recipe's model.config; `base`: the file with
    the others, None: a known size; `elsewhere`: field -> the recipe's key that sets it instead."""

    own: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def key(self, of: Field) -> str:
        """Return the recipe's key that sets a field."""
        name = of.also if of.also in self.own else of.name
        return self.elsewhere.get(of.name, f"model.config.{name}")

    def gives(self, of: Field) -> bool:
        """Return whether the recipe itself sets a field."""
        return of.name in self.elsewhere or of.name in self.own or of.also in self.own

    def place(self, of: Field) -> str:
        """Return where a field is set."""
        return self.key(of) if self.gives(of) or not self.base else f"{self.base}: {of.name}"


def check_config(config: Mapping[str, Any], source: FieldSource) -> None:
    """Raise RecipeError for the first fault: what is wrong, where, and the nearest value that works.

    `config`: with its `model_type`; one of an unknown family is not checked.
    """
    family = families.family_of(config)
    if family is None:
        return
    given = families.plain(config)
    fields = {each.name: each for each in family.FIELDS}
    for name, each in fields.items():
        if name in given and not (given[name] is None and each.optional):
            _check_value(each, given[name], source)
    whole = families.filled(config)
    kind = str(config["model_type"]).lower()
    for division in family.DIVISIONS:
        if kind in (division.types or family.MODEL_TYPES):
            _check_division(division, whole, fields, source)
    if hasattr(family, "head_width"):
        _check_rotary(family.head_width(whole), fields["head_dim"], source)


def closed_form_missing(config: Mapping[str, Any]) -> RecipeError:
    """Return the error for a model that needs a trace."""
    kind = str(config.get("model_type") or "")
    kinds = [name for family in families.FAMILIES for name in family.MODEL_TYPES]
    near = did_you_mean(kind, kinds) or f"known: {', '.join(kinds)}"
    return RecipeError(
        f"there is no formula for models of type {kind!r}" if kind else "is not given",
        where="model.config.model_type",
        hint=f"{near}; without --quick the model itself is traced",
    )


def check_length(
    length: int, positions: int | None, where: str, instead: str = "a model with more of them"
) -> None:
    """Raise RecipeError for a sequence of `length` tokens that a model with so many positions cannot have.
    `positions`: None: no limit; `where`: the key of the length; `instead`: what else would do."""
    if positions and length > positions:
        raise RecipeError(
            f"is {length:,}, and the model has {positions:,} positions",
            where=where,
            hint=f"{where}={positions}, or {instead}",
        )


def check_names(config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise RecipeError for a field of the recipe's own that no class of the model's type has: Transformers
    would ignore it. A type that is not listed, and a model with code of its own (auto_map), may have any."""
    if not own or "auto_map" in config:
        return
    names = fields_of(str(config.get("model_type")))
    if names is None:
        return
    every, version = {*names, *listed()["common"].split()}, listed()["transformers"]
    family = families.family_of(config)
    every |= {name for each in (family.FIELDS if family else ()) for name in (each.name, each.also) if name}
    for key in map(str, own):
        if key not in every and not key.startswith("_"):
            near = difflib.get_close_matches(key, sorted(every), n=1)
            hint = f"did you mean model.config.{near[0]}?" if near else f"leave {key} out"
            raise RecipeError(
                f"is not a field of this model in Transformers {version} and would be ignored",
                where=f"model.config.{key}",
                hint=f"{hint}; force=true takes it, for a newer Transformers",
            )


Wanted = tuple[str | None, Any]  # what a value has to be, None: it is so; the nearest that is


def _check_value(of: Field, value: Any, source: FieldSource) -> None:
    """Raise RecipeError where a value is not of the field's kind."""
    check = {
        "whole": _whole, "pair": _pair, "share": _share, "flag": _flag, "activation": _activation,
        "feed-forward": _feed_forward,
    }[of.kind]  # fmt: skip
    wanted, nearest = check(of, value)
    if wanted:
        raise RecipeError(
            f"must be {wanted}, not {'null' if value is None else repr(value)}",
            where=source.place(of),
            hint=None if nearest is None else f"{source.key(of)}={nearest}",
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(of: Field, value: Any) -> Wanted:
    if _is_whole(value) and of.least <= value <= of.most:
        return None, None
    wanted = f"a whole number from {of.least} to {of.most:,}"
    if of.least == 1 and of.most == MOST and not (_is_whole(value) and value > of.most):
        wanted = "a whole number above 0"
    try:
        return wanted, min(of.most, max(of.least, round(float(value))))
    except (TypeError, ValueError, OverflowError):
        return wanted, of.usual


def _pair(of: Field, value: Any) -> Wanted:
    if not isinstance(value, list | tuple):
        return _whole(of, value)
    good = len(value) == 2 and all(_whole(of, each)[0] is None for each in value)
    nearest = next((each for each in value if _whole(of, each)[0] is None), of.usual)
    return (None, None) if good else ("a whole number, or two for height and width", nearest)


def _share(of: Field, value: Any) -> Wanted:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return None, None
    try:
        return "a number from 0 to 1", 1 if float(value) > 1 else 0 if float(value) < 0 else float(value)
    except (TypeError, ValueError):
        return "a number from 0 to 1", of.usual


def _flag(of: Field, value: Any) -> Wanted:
    if isinstance(value, bool):
        return None, None
    meant = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}
    return "true or false", str(meant.get(str(value).lower(), of.usual)).lower()


def _activation(of: Field, value: Any) -> Wanted:
    if isinstance(value, str) and value in ACTIVATIONS:
        return None, None
    near = difflib.get_close_matches(str(value), ACTIVATIONS, n=1)
    return "an activation that Transformers has", near[0] if near else of.usual


def _feed_forward(of: Field, value: Any) -> Wanted:
    """Return what a feed-forward's name has to be: an activation, or one behind `gated-`."""
    if isinstance(value, str) and value.removeprefix("gated-") in ACTIVATIONS:
        return None, None
    text = str(value)
    prefix = "gated-" if text.startswith("gated") else ""
    name = text.removeprefix("gated").lstrip("-_ ") if prefix else text
    near = [name] if name in ACTIVATIONS else difflib.get_close_matches(name, ACTIVATIONS, n=1)
    return "an activation, or gated- and one", f"{prefix}{near[0]}" if near else of.usual


def _check_division(
    division: Division, config: Mapping[str, Any], fields: Mapping[str, Field], source: FieldSource
) -> None:
    """Raise RecipeError where parts do not divide the whole. It names the number that the recipe gives."""
    total, parts = config.get(division.whole), config.get(division.parts)
    if total is None or parts is None:
        return  # it follows from the other
    each = 2 if division.even and not config.get("head_dim") else 1
    if all(a % (b * each) == 0 for a, b in zip(pair(total), pair(parts), strict=True)):
        return
    whole, part = fields[division.whole], fields[division.parts]
    latest = whole.name in source.elsewhere or not source.gives(part)
    blamed = whole if source.gives(whole) and latest else part
    ways = []
    if _is_whole(total) and _is_whole(parts):
        ways = (
            [f"{source.key(part)}={_either(near_divisors(total, parts, each))}"] if total % each == 0 else []
        )
        ways.append(f"{source.key(whole)}={_either(near_multiples(total, parts * each))}")
    odd = each == 2 and total % parts == 0
    raise RecipeError(
        f"{division.parts}={parts} does not divide {division.whole}={total}"
        + (" into even heads, whose pairs of values rotary positions turn" if odd else ""),
        where=source.place(blamed),
        hint=", or ".join(ways) or None,
    )


def _check_rotary(width: int, of: Field, source: FieldSource) -> None:
    if width % 2:
        near = _either([each for each in (width - 1, width + 1) if each])
        raise RecipeError(
            f"a head is {width} wide, and rotary positions turn pairs of values",
            where=source.place(of),
            hint=f"{source.key(of)}={near}",
        )


def near_divisors(total: int, parts: int, each: int = 1) -> list[int]:
    """Return the numbers nearest to `parts` that divide `total` into multiples of `each`: one, or two that
    are as near."""
    small = [number for number in range(1, int(total**0.5) + 1) if total % number == 0]
    every = {number for one in small for number in (one, total // one) if total // number % each == 0}
    least = min((abs(number - parts) for number in every), default=0)
    return sorted(number for number in every if abs(number - parts) == least)


def near_multiples(total: int, unit: int) -> list[int]:
    """Return the multiples of `unit` around `total`."""
    below = total // unit * unit
    return [number for number in (below, below + unit) if number]


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
