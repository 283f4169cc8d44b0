"""A DeepSpeed JSON as DeepSpeed's own reader takes it: every key known, every value of its type. Pure but for
reading the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import hjson
from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from muster.core.errors import RecipeError
from muster.core.near import did_you_mean

LISTED = 20  # keys of a section that a hint names all
AUTO = "auto"
# What "auto" stands for is decided by Transformers and Muster. In the other keys that pydantic reads
# DeepSpeed takes it for not given.
_DECIDED = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
_DECIDED |= {"gradient_clipping", *(f"{section}.enabled" for section in ("fp16", "bf16", "bfloat16"))}
_DECIDED |= {
    f"zero_optimization.{key}"
    for name in ("stage", "reduce_bucket_size", "prefetch_bucket_size", "param_persistence_threshold")
    for key in (name, f"stage3_{name}")
}
# Keys of older files -> those that took their place.
_MEANT = {"max_grad_norm": "gradient_clipping", "fp32_allreduce": "communication_data_type"}
# Keys of published files that DeepSpeed does not know, and that are not about the training itself.
_WITHOUT_EFFECT = {"comms_config", "monitor_config", "aio.thread_count"}
_EXAMPLES = {
    "zero_optimization": '"zero_optimization": {"stage": 1}',
    "fp16": '"fp16": {"enabled": true}',
    "bf16": '"bf16": {"enabled": true}',
}
_TYPES: dict[str, tuple[type, str]] = {
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "a text"),
    "path": (Path, "a path"),
    "list": (list, "a list"),
    "list[str]": (list[str], "a list of texts"),
}
_LIMITS = {">=": (Ge, "from"), ">": (Gt, "above"), "<=": (Le, "to"), "<": (Lt, "below")}
_TYPE = re.compile(r"(?P<name>[a-z\[\]]+)(?P<strict>~?)(?P<bounds>(?:[<>]=?[\d.e+-]+)*)\??")
_BOUND = re.compile(r"([<>]=?)([\d.e+-]+)")


@cache
def source() -> dict[str, Any]:
    """Load what dev/deepspeed_keys.py read in the source of DeepSpeed and PyTorch."""
    text = resources.files(__package__).joinpath("keys.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


def known_keys() -> dict[str, Any]:
    """Return DeepSpeed's keys with the names of their types; None: any type, or a section without a list."""
    keys: dict[str, Any] = source()["keys"]
    return keys


def read_file(path: str) -> dict[str, Any]:
    """Return a JSON object as it stands in a file; comments and trailing commas are read as DeepSpeed reads
    them (hjson), and keys that begin with _ are comments. Raises RecipeError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                raise RecipeError(f"{key!r} is given {count} times in one section", where=path)
        return {key: value for key, value in pairs if not key.startswith("_")}

    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        if not text.strip():
            raise RecipeError("is empty", where=path)
        try:
            config = json.loads(text, object_pairs_hook=unique)
        except ValueError:
            config = hjson.loads(text, object_pairs_hook=unique)
    except FileNotFoundError:
        raise RecipeError("no such DeepSpeed configuration", where=path) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"is not JSON: {error}", where=path) from None
    if not isinstance(config, dict):
        raise RecipeError("must be a JSON object", where=path)
    return config


def converted(config: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Convert each value as DeepSpeed's reader does, without what it takes for not given, and without keys
    that mean nothing to it. Raises RecipeError at the first key that it does not know, or whose value it
    refuses or would stumble over later."""
    return _section(config, known_keys(), "", where)


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a file that DeepSpeed passes over."""
    inner = {f"{key}.{name}" for key, value in config.items() if isinstance(value, dict) for name in value}
    return sorted(_WITHOUT_EFFECT & {*config, *inner})


def _section(
    config: Mapping[str, Any], allowed: Mapping[str, Any], prefix: str, where: str
) -> dict[str, Any]:
    made, lax = dict[str, Any](), prefix.rstrip(".") in source()["strict"]
    for key, value in config.items():
        path = prefix + key
        if path in _WITHOUT_EFFECT or _removed(path, value, where):
            continue
        if key not in allowed:
            raise _unknown(key, allowed, prefix, where)
        kind = allowed[key]
        absent = path in source()["absent"] or (isinstance(kind, str) and kind.endswith("?"))
        if (value is None and absent) or (value == AUTO and lax and path not in _DECIDED):
            continue
        if path == "zero_optimization" and isinstance(value, bool):
            value = {"stage": int(value)}  # the oldest form (zero/config.py, read_zero_config_deprecated)
        if isinstance(kind, dict):
            if not isinstance(value, dict):
                what = f"{path} is {json.dumps(value)}, and must be a section"
                raise RecipeError(what, where=where, hint=_EXAMPLES.get(path))
            made[key] = _section(value, kind, f"{path}.", where)
        elif value == AUTO and path in _DECIDED:
            made[key] = value
        else:
            made[key] = value if kind is None else _value(value, kind, path, where, lax=lax)
    return made


def _removed(path: str, value: Any, where: str) -> bool:
    """Return whether DeepSpeed has a key no longer: even off, as here, it refuses that. Raises
    RecipeError where it is on."""
    why = source()["removed"].get(path)
    if why and (value.get("enabled", bool(value)) if isinstance(value, dict) else value):
        raise RecipeError(f"{path} is refused by DeepSpeed: {why}", where=where, hint=f"leave {path} out")
    return why is not None


def _value(value: Any, kind: str, path: str, where: str, *, lax: bool) -> Any:
    """Return a value as pydantic reads it (`lax`), else as it is, where it works as what it should be."""
    reader, words, own, bool_is_number = _reader(kind)
    given = [value] if kind == "list[str]" and isinstance(value, str) else value
    if own is bool:
        fits = lax or (isinstance(value, int) and value in (0, 1))
    elif isinstance(value, bool):
        fits = lax and bool_is_number
    else:
        fits = lax or not isinstance(value, str) or own is str
    if not bool_is_number and own is int and isinstance(value, str):
        fits = value.strip().lstrip("+-").isdecimal()
    if fits:
        with suppress(ValidationError):
            read = reader.validate_python(given)
            return value if not lax and own is float else str(read) if isinstance(read, Path) else read
    hint = f"without the quotes: {value}" if _bare(value) else None
    raise RecipeError(f"{path} is {json.dumps(value)}, and must be {words}", where=where, hint=hint)


@cache
def _reader(kind: str) -> tuple[TypeAdapter[Any], str, type, bool]:
    """Return what checks a value of a type of keys.json, what it must be in words, the type itself, and
    whether true counts as 1."""
    if "|" in kind:
        taken = kind.rstrip("?").split("|")
        literal: Any = Literal[tuple(taken)]
        return TypeAdapter(literal), f"{', '.join(taken[:-1])} or {taken[-1]}", str, True
    match = _TYPE.fullmatch(kind)
    assert match is not None
    type_, words = _TYPES[match["name"]]
    bounds = _BOUND.findall(match["bounds"])
    limits = [_LIMITS[sign][0](float(bound)) for sign, bound in bounds]
    words += "".join(f" {_LIMITS[sign][1]} {bound}" for sign, bound in bounds)
    bounded: Any = Annotated[(type_, *limits)] if limits else type_
    return TypeAdapter(bounded), words, type_, not match["strict"]


def _unknown(key: str, allowed: Mapping[str, Any], prefix: str, where: str) -> RecipeError:
    """Make the error of a key that DeepSpeed does not know: most sections refuse it."""
    name = prefix.rstrip(".")
    strict = name in source()["strict"]
    what = f"{prefix + key!r} is not a key that DeepSpeed knows; it would "
    what += "refuse it at the start" if strict else "ignore it silently"
    sections = {at: sub for at, sub in known_keys().items() if isinstance(sub, dict)}
    homes = [at for at, sub in sections.items() if key in sub]
    everywhere = [*allowed, *(f"{at}.{inner}" for at, sub in sections.items() for inner in sub)]
    hint = f"did you mean {_MEANT[key]}?" if key in _MEANT else did_you_mean(key, allowed)
    if prefix and key in known_keys():
        hint = f"{key} belongs to the top level, next to {name.partition('.')[0]}"
    elif not prefix and len(homes) == 1:
        hint = f"{key} belongs to {homes[0]}"
    elif hint is None and strict and len(allowed) <= LISTED:
        hint = f"{name} takes {', '.join(sorted(allowed))}"
    return RecipeError(what, where=where, hint=hint or did_you_mean(key, everywhere))


def _bare(value: Any) -> bool:
    """Return whether it is a text that would be a number, true or false without its quotes."""
    try:
        return isinstance(value, str) and not isinstance(json.loads(value), str | list | dict | None)
    except ValueError:
        return False


def section(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Copy a section of a configuration; empty where it is none."""
    value = config.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def chosen(config: Mapping[str, Any], key: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a configuration's optimizer or scheduler, empty where it has none, and a copy of its
    params."""
    given = section(config, key)
    return str(given.get("type") or ""), section(given, "params")
