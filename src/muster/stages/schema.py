"""JSON Schemas of the documents that Muster reads and writes."""

from __future__ import annotations

from typing import Any

from muster.core.inspection import Inspection
from muster.core.recipe import Recipe
from muster.core.result import Result
from muster.store.events import event_schema


def schema_of(what: str) -> dict[str, Any]:
    """The schema of a recipe file, a result, an event or an inspection."""
    if what == "inspection":
        return Inspection.model_json_schema()
    if what == "result":
        return Result.model_json_schema()
    if what == "event":
        return event_schema()
    schema = Recipe.model_json_schema(by_alias=True)
    schema["title"] = "Muster recipe"
    schema["properties"]["inherit"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "another recipe, by name or path; later keys win",
    }
    return schema
