"""JSON Schemas of the documents that Muster reads and writes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from muster.benches.document import Bench
from muster.benches.suite import Suite
from muster.checks.inspection import Inspection
from muster.checks.profiles import profile_schema
from muster.checks.registry import checks_of, families
from muster.core.recipe import Recipe, recipe_classes
from muster.core.registry import ENGINES, plugin_names
from muster.core.result import PipelineResult, Result
from muster.inputs.pipeline import Pipeline
from muster.judging.document import Judged
from muster.planner.document import Plan
from muster.runs.explain import Explanation
from muster.store.events import event_schema


def schema_of(what: str) -> dict[str, Any]:
    """Return the schema of a recipe, suite or check profile file, or of a document that Muster writes."""
    if what == "profile":
        return profile_schema(checks_of(families()))
    if what == "plan":
        return Plan.model_json_schema()
    if what == "inspection":
        return Inspection.model_json_schema()
    if what == "judged":
        return Judged.model_json_schema(mode="serialization")
    if what == "bench":
        return Bench.model_json_schema(mode="serialization")
    if what == "pipeline":
        return Pipeline.model_json_schema()
    if what == "pipeline-result":
        return PipelineResult.model_json_schema()
    if what == "suite":
        return Suite.model_json_schema()
    if what == "result":
        return Result.model_json_schema()
    if what == "explanation":
        return Explanation.model_json_schema()
    if what == "event":
        return event_schema()
    return recipe_schema()


def recipe_schema() -> dict[str, Any]:
    """Return the schema of a recipe file: any of the workloads' recipes, each with its own `data`."""
    models: list[tuple[type[BaseModel], Literal["validation"]]]
    usual = Recipe.model_fields["workload"].default  # comes first, and what trains nothing last
    classes = sorted(
        recipe_classes().items(), key=lambda each: (not each[1].trains, each[0] != usual, each[0])
    )
    kinds = {name: kind for name, kind in classes if kind is not Recipe}
    models = [(model, "validation") for model in kinds.values()]
    refs, schema = models_json_schema(models, by_alias=True)
    for workload, model in kinds.items():
        properties = schema["$defs"][model.__name__]["properties"]
        properties["workload"] |= {"enum": sorted({workload, workload.replace("-", "_")})}
        properties["inherit"] = {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "Other recipes that this one starts from, by name or path; later keys override "
            "earlier ones.",
        }
    schema["$defs"]["Engine"]["properties"]["name"]["enum"] = sorted(plugin_names(ENGINES))
    return {"title": "Muster recipe", "anyOf": [refs[model] for model in models], **schema}
