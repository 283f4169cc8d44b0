"""Pipelines: recipes whose steps follow each other, in one YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from muster.core.errors import RecipeError
from muster.core.recipe import Recipe
from muster.core.recipes import PIPELINE, SHIPPED, find_file, read_yaml, shipped_pipelines, shipped_recipes
from muster.core.section import Section
from muster.inputs.entries import (
    After,
    NamedRecipe,
    check_names,
    explain,
    in_order,
    located,
    parts_of,
    with_names,
)


class PipelineStep(NamedRecipe):
    """A recipe of a pipeline: a separate run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_\-]{0,40}$")] = Field(
        "", validate_default=False, description="Name of the step. Default: the recipe's name."
    )
    after: After = Field(
        default_factory=list,
        description="The step, or a list of steps, that must have ended well before. The first one that "
        "trains gives `model.name`, unless `set` does. A value of `set` that is `{step}` is that step's "
        "trained model.",
    )

    @field_validator("name")
    @classmethod
    def _told_apart(cls, name: str) -> str:
        if name in Recipe.model_fields:
            raise ValueError(f"a recipe has a section {name}: overrides could not tell them apart")
        return name


class Pipeline(Section):
    """Recipes whose steps follow each other."""

    about: str = Field("", description="One line that describes the pipeline.")
    pipeline: Annotated[list[PipelineStep], Field(min_length=1)] = Field(
        description="The steps. Each runs once all that it follows have ended well; else in this order."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return with_names(data, PIPELINE)

    @model_validator(mode="after")
    def _sensible(self) -> Pipeline:
        check_names(self.pipeline, "step", "steps")
        return self


def find_pipeline(source: str) -> Path | None:
    """Return the file of a pipeline; None: it is a recipe's. Raises RecipeError where there is no such file.
    """
    shipped = {**shipped_recipes(), **shipped_pipelines()}
    path = find_file(source, "recipe", shipped, RecipeError)
    return path if PIPELINE in read_yaml(path) else None


def load_pipeline(file: Path, *, frozen: bool = False) -> Pipeline:
    """Read and check a pipeline, its steps in the order in which they run, and its recipes found. `frozen`:
    a run's own, in which all paths are whole. Raises RecipeError."""
    where = str(file)
    try:
        made = Pipeline.model_validate(read_yaml(file))
    except ValidationError as error:
        kind = PipelineStep if len(parts_of(error)) > 1 else Pipeline
        complaint = explain(error, where, kind.model_fields, "docs/pipelines.md", "'-' and '_'")
        raise RecipeError(complaint.what, where=complaint.where, hint=complaint.hint) from None
    shipped = SHIPPED.parent / "pipelines"
    steps = made.pipeline
    if not frozen:
        steps = [located(each, file, f"{PIPELINE}.{n}", shipped) for n, each in enumerate(steps)]
    return made.model_copy(update={PIPELINE: in_order(steps)})
