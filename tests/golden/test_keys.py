"""The keys of every document that Muster reads or writes, one a line: what changes shows in a review.

Renew with: python -m tests.golden.renew keys
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from muster.cli.reference import What
from muster.schemas.documents import schema_of

KEYS = Path(__file__).parent / "keys"
# A profile's keys are the checks that are installed; a pipeline's result is mostly that of its runs.
NAMES = [name for name in get_args(What) if name not in ("profile", "pipeline-result")]


def type_of(value: dict[str, Any]) -> str:
    """The type of a property, in few words."""
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "enum" in value:
        return "|".join(map(str, value["enum"]))
    if "const" in value:
        return repr(value["const"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in value:
            return " or ".join(map(type_of, value[key]))
    if value.get("type") == "array":
        return f"[{type_of(value.get('items', {}))}]"
    values = value.get("additionalProperties")
    return "{" + type_of(values) + "}" if isinstance(values, dict) else str(value.get("type", "any"))


def keys_of(schema: dict[str, Any]) -> Iterator[str]:
    """A line for each property: its place, type, bounds and default."""
    for place, part in [("", schema), *sorted(schema.get("$defs", {}).items())]:
        for name, value in part.get("properties", {}).items():
            words = [f"{place}.{name}: {type_of(value)}"]
            words += ["required"] if name in part.get("required", ()) else []
            words += [
                f"{key} {value[key]}" for key in ("minimum", "exclusiveMinimum", "maximum") if key in value
            ]
            words += [f"= {value['default']!r}"] if "default" in value else []
            yield " ".join(words)


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_as_they_were(name: str) -> None:
    assert list(keys_of(schema_of(name))) == (KEYS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


class Keys:
    """The kind of documents that this file holds."""

    kind = "keys"

    @staticmethod
    def renew() -> None:
        """Write the keys as they are now."""
        KEYS.mkdir(exist_ok=True)
        for each in NAMES:
            (KEYS / f"{each}.txt").write_text("".join(f"{line}\n" for line in keys_of(schema_of(each))))


DOCUMENTS = [Keys]
