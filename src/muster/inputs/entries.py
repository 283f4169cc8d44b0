"""Files that name recipes: the jobs of a suite and the steps of a pipeline. What each changes of its recipe,
which of them it follows, and what a command line changes of one or of all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from muster.core.errors import RecipeError, UsageError
from muster.core.near import did_you_mean
from muster.core.recipe import EVERYWHERE, Recipe, recipe_class, recipe_classes
from muster.core.recipes import (
    SHIPPED,
    anchored,
    find_recipe,
    lay_over,
    layers_of,
    leaves_of,
    merge,
    parse_override,
    read_layers,
    validate,
)
from muster.core.section import Section

NAME_HINT = (
    "at most 41 letters, digits, {marks}, a letter or digit first; `name: NAME` next to `recipe` gives one"
)


def _dotted(value: Any) -> Any:
    """Nest dotted keys, among keys that are nested already: {'train.max_steps': 5} -> {'train': {'max_steps':
    5}}. Raises ValueError for a key that is set twice."""
    if not isinstance(value, dict):
        return value
    nested: dict[str, Any] = {}
    for key, inner in value.items():
        for part in reversed(str(key).split(".")):
            inner = {part: inner}
        twice = sorted(leaves_of(nested).keys() & leaves_of(inner).keys())
        if twice:
            raise ValueError(f"{twice[0]} is set twice: once nested, once by its dotted name")
        nested = merge(nested, inner, None)
    return nested


After = Annotated[
    list[str],
    BeforeValidator(lambda value: [] if value is None else value if isinstance(value, list) else [value]),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class NamedRecipe(Section):
    """A recipe with changes, and the entries that it follows."""

    name: str = ""
    recipe: str | dict[str, Any] = Field(
        description="A shipped recipe's name, a file (next to this file, or as given), or a recipe itself."
    )
    set: Annotated[dict[str, Any], BeforeValidator(_dotted)] = Field(
        default_factory=dict, description="Changes to the recipe, nested or with dotted keys."
    )
    after: After = Field(default_factory=list)

    @property
    def label(self) -> str:
        """The entry's name with its recipe's, for people."""
        return f"{self.name} ({Path(self.recipe).name})" if isinstance(self.recipe, str) else self.name


Entries = TypeVar("Entries", bound=NamedRecipe)


def with_names(data: Any, key: str) -> Any:
    """Return a file's data, where an entry without a name has its recipe's, or its command's. Pure."""
    if not isinstance(data, dict) or not isinstance(data.get(key), list):
        return data
    entries = []
    for each in data[key]:
        if isinstance(each, dict) and not each.get("name"):
            if isinstance(each.get("recipe"), str):
                each = {**each, "name": Path(each["recipe"]).name.removesuffix(".yaml")}
            elif isinstance(each.get("command"), list):
                each = {**each, "name": command_name(list(map(str, each["command"])))}
        entries.append(each)
    return {**data, key: entries}


def command_name(words: Sequence[str]) -> str:
    """Return a command's name: its script's, else its program's."""
    script = next((word for word in words if word.endswith(".py")), words[0] if words else "")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(script).name.removesuffix(".py")).lstrip("._-")
    return name[:41] or "command"


def check_names(entries: Sequence[NamedRecipe], one: str, several: str) -> None:
    """Raise ValueError for a duplicate name, for one in `after` that does not exist, and for entries that
    wait for each other. `one`, `several`: what entries are called."""
    names = [each.name for each in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two {several} are named {twice}: give each a `name`")
    for each in entries:
        for name in each.after:
            if name not in names:
                near = did_you_mean(name, names) or f"{several}: {', '.join(names)}"
                raise ValueError(f"{each.name}: after: no {one} is named {name!r}; {near}")
    in_order(entries)


def in_order(entries: Sequence[Entries]) -> list[Entries]:
    """Sort entries behind all that they follow, else in the file's order. Raises ValueError where some wait
    for each other."""
    made: list[Entries] = []
    left = list(entries)
    while left:
        done = {each.name for each in made}
        ready = next((each for each in left if done.issuperset(each.after)), None)
        if ready is None:
            raise ValueError(f"wait for each other: {' -> '.join(_circle(left))}")
        made.append(ready)
        left.remove(ready)
    return made


def _circle(entries: Sequence[NamedRecipe]) -> list[str]:
    """Return entries that wait for each other: some of them, each with one that it follows, back to the
    first."""
    by_name = {each.name: each for each in entries}
    path = [entries[0].name]
    while path.count(path[-1]) < 2:
        path.append(next(name for name in by_name[path[-1]].after if name in by_name))
    return path[path.index(path[-1]) :]


def located(entry: Entries, file: Path, place: str, shipped: Path) -> Entries:
    """Return the entry with its recipe's path, and paths relative to the file's folder; one in `shipped` has
    none. `place`: the entry's place in the file. Raises RecipeError."""
    if isinstance(entry.recipe, dict):
        recipe: str | dict[str, Any] = layers_of(entry.recipe, file)
    else:
        try:
            file_of_recipe = find_recipe(entry.recipe, base=file.parent)
        except RecipeError as error:
            where = f"{file}: {place}.recipe {entry.recipe}"
            raise RecipeError(error.what, where=where, hint=error.hint) from None
        recipe = file_of_recipe.stem if file_of_recipe.parent == SHIPPED else str(file_of_recipe)
    changes = entry.set if file.parent == shipped else anchored(entry.set, file.parent)
    return entry.model_copy(update={"recipe": recipe, "set": changes})


def recipes_of(
    entries: Sequence[NamedRecipe], overrides: Iterable[str], one: str, marks: str
) -> dict[str, Recipe]:
    """Return each entry's recipe, in the order in which they run: the file, the model of what it follows, the
    entry's changes, the user's. Overrides that name an entry, with one of `marks` behind it, are for that
    one; the others for all that have the key. `one`: what an entry is called. Raises RecipeError, UsageError.
    """
    ordered = in_order(entries)
    merged: dict[str, dict[str, Any]] = {}
    for each in ordered:
        own = read_layers(each.recipe) if isinstance(each.recipe, str) else each.recipe
        before = _model_before(each, {**merged, each.name: own})
        merged[each.name] = lay_over(lay_over(own, [before]), [each.set])
    for_all: dict[str, list[dict[str, Any]]] = {name: [] for name in merged}
    for_one: dict[str, list[dict[str, Any]]] = {name: [] for name in merged}
    for override in overrides:
        name, rest = _addressed(override, list(merged), marks, one)
        key, _, value = rest.partition("=")
        if value[:1] == "{" and value[1:-1] in merged:  # a step's model; to YAML it would be a mapping
            rest = f"{key}='{value}'"
        change = parse_override(rest)
        names = [name] if name else [name for name in merged if means_something(change, merged[name])]
        if not names:
            raise RecipeError(f"means nothing to any {one}", where=override)
        for one_of in names:
            (for_one if name else for_all)[one_of].append(change)
    recipes = {
        each.name: validate(
            lay_over(lay_over(merged[each.name], for_all[each.name]), for_one[each.name]), where=each.label
        )
        for each in ordered
    }
    _check_models(ordered, recipes)
    return recipes


def _addressed(override: str, names: Sequence[str], marks: str, one: str) -> tuple[str | None, str]:
    """Split `sft.train.seed=1` into ('sft', 'train.seed=1'); None: it is for all. Raises UsageError for an
    unknown name."""
    inner = "" if "." in marks else "."
    match = re.fullmatch(rf"([A-Za-z0-9][\w{inner}-]*)([{marks}])([^=]+=.*)", override, re.DOTALL)
    if match is None or "=" in match[1]:
        return None, override
    name, mark, rest = match.groups()
    if name in names:
        return name, rest
    sections = {key for kind in recipe_classes().values() for key in kind.model_fields}
    if (mark == "." and name in sections) or (mark == ":" and "." in name):
        return None, override
    near = did_you_mean(name, names) or (did_you_mean(name, sections) if mark == "." else None)
    hint = near or f"there are: {', '.join(names)}"
    raise UsageError(f"no {one} is named {name!r}", where=override, hint=hint)


def means_something(change: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
    """Return whether an override of all entries is for this recipe; a misspelt key is for all that train."""
    kind = recipe_class(recipe.get("workload"))
    section = next(iter(change))
    if kind.trains:
        others = (name for each in recipe_classes().values() for name in each.own_sections())
        return section in kind.own_sections() or section not in others
    if section == "measure":
        return isinstance(change[section], Mapping) and set(change[section]) == {"hardware_seconds"}
    return section in (*EVERYWHERE, *kind.own_sections())


# ----------------------------------------------------------------------------------------------------
# The model that an entry takes of those that it follows.

_STEP = re.compile(r"\{([A-Za-z0-9][\w-]*)\}")  # a whole value: the trained model of the step


def _model_before(step: NamedRecipe, recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a step's recipe gets of the steps that it follows: the model of the first one that trains,
    with that model's tokenizer; nothing where its `set` names a model. `recipes`: its own and those before
    it, not validated yet. Pure."""
    own = step.set.get("model")
    trains = {name: recipe_class(each.get("workload")).trains for name, each in recipes.items()}
    first = next((each for each in step.after if trains[each]), None)
    if first is None or not trains[step.name] or (isinstance(own, Mapping) and {"name", "init"} & set(own)):
        return {}
    return {"model": {"name": f"{{{first}}}", "init": "pretrained", "tokenizer": "auto"}}


def _check_models(steps: Sequence[NamedRecipe], recipes: Mapping[str, Recipe]) -> None:
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
    """Return (dotted path, name) of each value in braces: the model of a step, where there is one of this
    name."""
    return list(_taken(recipe.as_dict()))


def with_models(value: Any, models: Mapping[str, str]) -> Any:
    """Return data in which each value that is `{step}` is replaced by that step's model. Pure."""
    if isinstance(value, Mapping):
        return {key: with_models(inner, models) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_models(inner, models) for inner in value]
    match = _STEP.fullmatch(value) if isinstance(value, str) else None
    return models.get(match[1], value) if match else value


# ----------------------------------------------------------------------------------------------------
# What is wrong with a file of entries.


def parts_of(error: ValidationError) -> list[str]:
    """Return the place of pydantic's first error, without pydantic's own parts of the path."""
    own = ("list[", "literal[", "function-", "dict[")
    first = error.errors(include_url=False)[0]
    return [str(part) for part in first["loc"] if part != "str" and not str(part).startswith(own)]


def explain(
    error: ValidationError, where: str, siblings: Iterable[str], example: str, marks: str
) -> UsageError:
    """Return pydantic's first error as one line with the field's path. `siblings`: the keys at its place;
    `example`: a page with one; `marks`: what a name may contain besides letters and digits."""
    first, parts = error.errors(include_url=False)[0], parts_of(error)
    location, given, kind = ".".join(parts), first.get("input"), first["type"]
    if kind == "extra_forbidden":
        keys = sorted(siblings)
        hint = did_you_mean(parts[-1], keys) or f"known keys here: {', '.join(keys)}"
        return UsageError(f"unknown key {location!r}", where=where, hint=hint)
    if kind == "value_error":
        return UsageError(f"{location}: {first['ctx']['error']}".removeprefix(": "), where=where)
    if kind == "missing":
        return UsageError(f"{location} is missing", where=where, hint=f"{example} has an example")
    if kind == "string_pattern_mismatch":  # a name: nothing else has a pattern
        what = f"{location}: {given!r} cannot be the name of an entry"
        return UsageError(what, where=where, hint=NAME_HINT.format(marks=marks))
    complaint = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return UsageError(f"{location}: {complaint}, not {given!r}", where=where)
