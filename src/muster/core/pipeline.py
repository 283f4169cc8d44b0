"""A pipeline: recipes whose steps follow each other, one YAML file; and what came of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from muster.core.entries import (
    After,
    NamedRecipe,
    check_names,
    explain,
    in_order,
    located,
    parts_of,
    with_names,
)
from muster.core.errors import RecipeError
from muster.core.near import did_you_mean
from muster.core.recipe import Recipe, recipe_class
from muster.core.recipes import PIPELINE, SHIPPED, find_file, read_yaml, shipped_pipelines, shipped_recipes
from muster.core.result import Failure, Result, Seconds
from muster.core.section import Part, Section
from muster.core.state import RunEnd, State

SCHEMA_VERSION = 1
_STEP = re.compile(r"\{([A-Za-z0-9][\w-]*)\}")  # a whole value: the trained model of the step


class PipelineStep(NamedRecipe):
    """One recipe of a pipeline: a run of its own."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_\-]{0,40}$")] = Field(
        "", validate_default=False, description="Name of the step. Default: the recipe's name."
    )
    recipe: str | dict[str, Any] = Field(
        description="A shipped recipe's name, a file (beside the pipeline, or as given), or a recipe itself."
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


class StepResult(Part):
    """A step of a pipeline."""

    name: str
    after: list[str] = Field(default_factory=list)
    run: str = Field(description="its run's folder")
    status: State = Field(description="of its result; or interrupted; or not begun")
    result: Result | None = Field(None, description="None: it has none")


class PipelineResult(Part):
    """result.json of a pipeline: written last, atomically. No result.json: not finished."""

    schema_version: int = SCHEMA_VERSION
    id: str
    workload: Literal["pipeline"] = "pipeline"
    status: RunEnd
    failure: Failure | None = Field(None, description="of the step that ended it")
    attempt: int
    started: float = Field(description="Unix time")
    ended: float
    seconds: Seconds
    pipeline: list[StepResult] = Field(description="in the order in which they run")
    notes: list[str] = Field(default_factory=list, description="what a reader must know of the steps")


def find_pipeline(source: str) -> Path | None:
    """The file of a pipeline; None: it is a recipe's. Raises RecipeError where there is no such file."""
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


def model_before(step: NamedRecipe, recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a step's recipe gets of the steps that it follows: the model of the first one that trains, with
    that model's tokenizer; nothing where its `set` says which model. `recipes`: its own and those before it,
    not validated yet. Pure."""
    own = step.set.get("model")
    trains = {name: recipe_class(each.get("workload")).trains for name, each in recipes.items()}
    first = next((each for each in step.after if trains[each]), None)
    if first is None or not trains[step.name] or (isinstance(own, Mapping) and {"name", "init"} & set(own)):
        return {}
    return {"model": {"name": f"{{{first}}}", "init": "pretrained", "tokenizer": "auto"}}


def check_models(steps: Sequence[NamedRecipe], recipes: Mapping[str, Recipe]) -> None:
    """Raise RecipeError where a recipe takes the model of a step that it does not follow, that keeps none, or
    whose name is misspelt."""
    before: dict[str, set[str]] = {}
    for step in steps:
        before[step.name] = {*step.after, *(name for each in step.after for name in before[each])}
        model = recipes[step.name].model
        if _STEP.fullmatch(model.name or "") and model.init == "random":
            raise RecipeError(
                f"model.init=random would draw other weights than {model.name}'s",
                where=step.name,
                hint="in the step, `set: {model.init: random}` keeps the model of its recipe",
            )
        for where, name in models_taken(recipes[step.name]):
            what, hint = None, None
            if name not in recipes:
                hint = did_you_mean(name, recipes)
                what = f"no step is named {name!r}" if hint else None  # else braces of another kind
            elif name not in before[step.name]:
                what, hint = f"does not follow {name}", f"after: [{', '.join([*step.after, name])}]"
            elif not recipes[name].trains:
                what = f"{name} trains nothing, so that it has no model"
            elif not recipes[name].checkpoint.model:
                what, hint = f"{name} keeps no model", f"{name}.checkpoint.model=true"
            if what:
                raise RecipeError(what, where=f"{step.name}: {where}", hint=hint)


def _taken(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _taken(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _taken(inner, where)
    elif isinstance(value, str) and (match := _STEP.fullmatch(value)):
        yield where, match[1]


def models_taken(recipe: Recipe) -> list[tuple[str, str]]:
    """(dotted path, name) of each value in braces: the model of a step, where there is one of this name."""
    return list(_taken(recipe.as_dict()))


def with_models(value: Any, models: Mapping[str, str]) -> Any:
    """Data in which each value that is `{step}` is that step's model. Pure."""
    if isinstance(value, Mapping):
        return {key: with_models(inner, models) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_models(inner, models) for inner in value]
    match = _STEP.fullmatch(value) if isinstance(value, str) else None
    return models.get(match[1], value) if match else value
