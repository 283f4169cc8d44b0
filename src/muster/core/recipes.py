"""Read recipes: files that inherit, dotted overrides, and errors that name the field's full path."""

from __future__ import annotations

import difflib
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from muster.core import families
from muster.core.data import Data
from muster.core.errors import RecipeError, UsageError
from muster.core.families.checking import MISSPELT
from muster.core.near import did_you_mean
from muster.core.printable import HIDDEN
from muster.core.recipe import Recipe, recipe_class, recipe_classes, recipe_from
from muster.core.registry import ENGINES, WORKLOADS, find_plugin, plugin_names
from muster.core.section import Section

SHIPPED = Path(__file__).resolve().parent.parent / "recipes"
PIPELINE = "pipeline"  # the key of a file of several recipes (inputs/pipeline.py)
# Fields of a configuration that say how a model is trained or what it is for, and not how large it is.
SETTINGS = re.compile(r"drop|^initializer_|^num_labels$|^attn_implementation$")
# Keys of a recipe that are files or folders: always, and where there is one of that name.
PATHS = (("data", "path"), ("engine", "config"), ("measure", "peaks"), ("run", "sync"))
NAMES = (
    ("model", "name"), ("model", "tokenizer"), ("data", "name"), ("reward", "model"), ("ppo", "critic"),
    ("launch", "setup"),  # else a line of bash, which may begin like a path
)  # fmt: skip
NAME = re.compile(r"[a-zA-Z][\w-]*")  # of a plug-in
WORDS = ("auto", "train")  # of model.tokenizer: never a folder of that name


_REPLACED = (":bool", ":int", ":float", ":timestamp")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$")


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's numbers and booleans: 5e-5 is a number, `no`, `on`, 12:30 and 1_000 are words. A
    duplicate key in a section is an error: PyYAML would take the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(f"{key.value!r} is given twice, in lines {lines[key.value]} and {line}")
            lines[key.value] = line
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


class _Dumper(yaml.SafeDumper):
    """Quotes every word that either version of YAML would read as another value."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(_REPLACED)]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
    _class.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


class _Written:
    """A number that keeps its spelling where text is expected: 0022, 1.10."""

    written: str

    def __str__(self) -> str:
        return self.written


class _Int(_Written, int):
    pass


class _Float(_Written, float):
    pass


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    value = _Int(text, 0) if text.startswith(("0o", "0x")) else _Int(text)
    value.written = text
    return value


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    value = _Float(loader.construct_yaml_float(node))
    value.written = str(loader.construct_scalar(node))
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Dumper.add_multi_representer(int, lambda dumper, value: dumper.represent_int(int(value)))
_Dumper.add_multi_representer(float, lambda dumper, value: dumper.represent_float(float(value)))


def parse_yaml(text: str) -> Any:
    """Parse text as recipes are read. Raises yaml.YAMLError and nothing else: PyYAML's own constructors raise
    many kinds of errors for `!!bool x`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise yaml.YAMLError(f"cannot be read as YAML ({type(error).__name__}: {error})") from None


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with Muster, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def shipped_pipelines() -> dict[str, Path]:
    """Return the pipelines that come with Muster, by name."""
    return {path.stem: path for path in sorted((SHIPPED.parent / "pipelines").glob("*.yaml"))}


def shipped_about() -> dict[str, str]:
    """Return a sentence about each of both: the first one of the comment at the top of its file."""
    files = {**shipped_recipes(), **shipped_pipelines()}
    return {name: _first_sentence(path.read_text(encoding="utf-8")) for name, path in files.items()}


def _first_sentence(text: str) -> str:
    comment: list[str] = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        comment.append(line[2:].strip())
    return re.split(r"(?<=\.)\s", " ".join(comment), maxsplit=1)[0]


def load_recipe(source: str | Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, or from the mapping that its file would hold; follow `inherit`,
    apply `key=value` overrides, validate.

    Raises RecipeError naming the file or the field's full path, with near names for a misspelt one.
    """
    given = [parse_override(override) for override in overrides]
    where = source if isinstance(source, str) else "the recipe"
    return validate(lay_over(_whole(source), given), where=where)


def _whole(source: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with everything that it inherits; not validated yet."""
    return read_layers(source) if isinstance(source, str) else layers_of(source, Path.cwd() / "recipe")


# Of a recipe below, what is not said: what a model or a data set replaces as a whole, measuring, and values
# that may be secrets.
_UNSAID = (
    "workload", "measure", "env", "model.config", "model.name", "data.generated", "data.library", "data.path",
)  # fmt: skip


def inherited(source: str | Mapping[str, Any], overrides: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the settings that a recipe has from those that it inherits, or from a shipped one under
    overrides, by their dotted paths, without defaults; and the names of these recipes. Raises RecipeError."""
    given = [parse_override(override) for override in overrides]
    if isinstance(source, str):
        path = find_recipe(source)
        own, parents = read_layer(path, (), "recipe", RecipeError)
    else:
        path = Path.cwd() / "recipe"
        own, parents = parents_of(source, "recipe", RecipeError, str(path))
    if path.parent == SHIPPED:
        own, parents = {}, [path.stem] if given else []
    if not parents:
        return "", {}
    given_paths = {key for layer in (own, *given) for key in leaves_of(layer)}
    merged = lay_over(_whole(source), given)
    usual = leaves_of(recipe_class(merged.get("workload"))().as_dict())
    settings = {
        key: value
        for key, value in leaves_of(merged).items()
        if key not in given_paths and value != usual.get(key) and not key.startswith(_UNSAID)
    }
    return ", ".join(Path(each).name.removesuffix(".yaml") for each in parents), settings


def leaves_of(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by their dotted paths."""
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        leaves |= leaves_of(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def lay_over(below: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge changes into a recipe, all of one layer: a model's name and its fields may come in any order, and
    keys that exclude each other stay, to be refused. Pure."""
    merged = dict(below)
    for change in changes:
        merged = begin_anew(merged, change)
    for model in (Recipe, None):  # then without rivals, which brings back those of one layer
        for change in changes:
            merged = merge(merged, change, model)
    return merged


def anchored(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a recipe's data with its relative paths taken from `folder`. A name stays one, unless it begins
    with a dot or is that of a file or folder there."""
    made = dict(data)
    for section, key in (*PATHS, *NAMES):
        values = made.get(section)
        value = values.get(key) if isinstance(values, Mapping) else None
        if not isinstance(value, str) or not value or value in WORDS:
            continue
        is_path = (section, key) in PATHS or (value.startswith((".", "/", "~")) and section != "launch")
        there = os.path.isfile if section == "launch" else os.path.exists  # which never raise
        if is_path or there(folder / value):
            made[section] = {**made[section], key: _whole_path(value, folder, f"{section}.{key}")}
    values = made.get("reward")
    if isinstance(values, Mapping) and isinstance(values.get("function"), str):
        place, colon, name = values["function"].rpartition(":")
        if place.endswith(".py"):
            whole = _whole_path(place, folder, "reward.function")
            made["reward"] = {**values, "function": f"{whole}{colon}{name}"}
    values = made.get("data")
    if isinstance(values, Mapping) and isinstance(values.get("mix"), list):
        mix = [_anchored_source(each, folder) for each in values["mix"]]
        made["data"] = {**values, "mix": mix}
    return made


def _anchored_source(source: Any, folder: Path) -> Any:
    """Anchor one data set of data.mix."""
    if not isinstance(source, Mapping) or not isinstance(source.get("path"), str):
        return source
    return {**source, "path": _whole_path(source["path"], folder, "data.mix.path")}


def _whole_path(value: str, folder: Path, where: str) -> str:
    try:
        return os.path.abspath(folder / Path(value).expanduser())  # noqa: PTH100 - without its ".."
    except RuntimeError as error:  # ~nobody
        raise RecipeError(f"{value}: {error}", where=where) from None


def validate(data: Mapping[str, Any], *, where: str) -> Recipe:
    """Return the recipe of plain data. Raises RecipeError about the first thing that is wrong."""
    data = _with_workload(data)
    _check_workload(data.get("workload"), where)
    try:
        recipe = recipe_from(data)
    except ValidationError as error:
        raise _explain(error, where, recipe_class(data.get("workload"))) from None
    try:
        find_plugin(ENGINES, recipe.engine.name)
    except UsageError as error:
        raise RecipeError(f"engine.name: {error.what}", where=where, hint=error.hint) from None
    return recipe


def _with_workload(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's data with its workload; one with a command is a command's."""
    complete = "command" not in data or data.get("workload") is not None
    return dict(data) if complete else {**data, "workload": "command"}


def _check_workload(workload: Any, where: str) -> None:
    """Raise RecipeError for a misspelt workload, whose other keys would be refused as unknown. A name that is
    near to none may be a third party's, installed on the hosts alone."""
    name = str("text2sql" if workload is None else workload).replace("_", "-")
    names = workloads()
    if isinstance(workload, str | int) and not NAME.fullmatch(name):
        hint = f"known here: {', '.join(sorted(names))}"
        raise RecipeError(f"workload: {workload!r} is not a workload's name", where=where, hint=hint)
    near = difflib.get_close_matches(name, names, n=1, cutoff=MISSPELT)
    if near and name not in names:
        what = f"workload: no workload is named {workload!r}"
        raise RecipeError(what, where=where, hint=f"did you mean {near[0]}?")


def workloads() -> list[str]:
    """Return the workloads of the packages that are installed here."""
    return [name.replace("_", "-") for name in plugin_names(WORKLOADS)]


def read_layers(source: str, *, base: Path | None = None, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe file with everything that it inherits, merged; not validated yet."""
    path = find_recipe(source, base=base)
    data, parents = read_layer(path, chain, "recipe", RecipeError)
    if PIPELINE in data:
        hint = "`muster train` and `muster plan` take it"
        raise RecipeError("is a pipeline of several recipes, and not a recipe", where=str(path), hint=hint)
    return _layered(data, parents, path, (*chain, path))


def layers_of(data: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return a recipe that is part of another file, with everything that it inherits."""
    return _layered(*parents_of(data, "recipe", RecipeError, str(file)), file, ())


def _layered(
    data: dict[str, Any], parents: Sequence[str], path: Path, chain: tuple[Path, ...]
) -> dict[str, Any]:
    if path.parent != SHIPPED:  # whose paths are the user's to make: they count from the working folder
        data = anchored(data, path.parent)
    merged: dict[str, Any] = {}
    for parent in parents:
        merged = lay_over(merged, [read_layers(parent, base=path.parent, chain=chain)])
    return _with_workload(lay_over(merged, [data]))


def find_recipe(source: str, *, base: Path | None = None) -> Path:
    """Return the path of a recipe: as given, a file next to the inheriting one, or a shipped name."""
    return find_file(source, "recipe", shipped_recipes(), RecipeError, base)


def find_file(
    source: str, kind: str, shipped: Mapping[str, Path], error: type[UsageError], base: Path | None = None
) -> Path:
    """Return the file of a recipe, a suite or a profile (`kind`): as given, below `base`, or a shipped one.
    """
    folder, given = base or Path(), Path(source)
    try:
        given = given.expanduser()
        for candidate in (folder / given, folder / f"{given}.yaml", given):
            if candidate.is_file():
                return candidate.resolve()
    except (OSError, RuntimeError, ValueError):  # longer than a name can be; ~nobody; a null byte
        pass
    stem = given.name.removesuffix(".yaml")
    if stem in shipped and ("/" not in source or given.parent.name == f"{kind}s"):
        return shipped[stem]
    hint = did_you_mean(stem, shipped) or f"shipped {kind}s: {', '.join(shipped)}"
    raise error(f"no such {kind}", where=source, hint=hint)


def read_layer(
    path: Path, chain: tuple[Path, ...], kind: str, error: type[UsageError]
) -> tuple[dict[str, Any], list[str]]:
    """Return a file's own keys, and the names of those that it inherits. `chain`: the files that inherit it.
    """
    if path in chain:
        names = " -> ".join(each.name for each in (*chain, path))
        raise error(f"inherits from itself: {names}", where=str(path))
    return parents_of(read_yaml(path), kind, error, str(path))


def parents_of(
    data: Mapping[str, Any], kind: str, error: type[UsageError], where: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a recipe or a profile without `inherit`, and the names in that."""
    own = dict(data)
    parents = own.pop("inherit", None) or []
    if isinstance(parents, str):
        parents = [parents]
    if not isinstance(parents, list) or not all(isinstance(each, str) for each in parents):
        raise error(f"must be the name or path of a {kind}, or a list of them", where=f"{where}: inherit")
    return own, parents


def parse_override(text: str) -> dict[str, Any]:
    """Parse an override: `engine.zero=3` -> {'engine': {'zero': 3}}. The value is YAML. Raises RecipeError.
    """
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise RecipeError("is not a setting", where=text, hint="write key.sub=value, such as engine.zero=3")
    if not raw.strip():
        hint = f"{key}=null for none, or {key}='\"\"' for empty text"
        raise RecipeError("is empty", where=key, hint=hint)
    try:
        value: Any = parse_yaml(raw)
    except yaml.YAMLError:
        value = raw
    _check_colons(value, key)
    for part in reversed(key.split(".")):
        value = {part: value}
    return typing.cast(dict[str, Any], value)


def merge(
    below: Mapping[str, Any], above: Mapping[str, Any], model: type[BaseModel] | None
) -> dict[str, Any]:
    """Lay `above` over `below`, key by key, mappings merged; a key of an exclusive set removes its rivals
    below. Pure."""
    rivals = _rivals(model)
    wins = any(above.get(rival) is not None for rival in rivals)
    merged = {key: value for key, value in below.items() if not wins or key not in rivals or key in above}
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(old, value, _section(model, key))
        else:
            merged[key] = value
    return merged


def _rivals(model: type[BaseModel] | None) -> tuple[str, ...]:
    """Return the keys of which at most one is set. Of data, those are every workload's sources: layers are
    merged before the workload is known."""
    if model is None or not issubclass(model, Section):
        return ()
    if model is not Data:
        return model.exclusive
    kinds = (_section(kind, "data") for kind in recipe_classes().values())
    return tuple({key for kind in kinds if kind and issubclass(kind, Data) for key in kind.exclusive})


def begin_anew(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` without what `above` replaces by naming an engine, a model, a configuration of another
    type, or a length. Pure.

    Options are an engine's own. A model's name replaces the shape: of the configuration below, SETTINGS alone
    stay. The name of a saved model, which is no known size, means its weights and tokenizer as well; and
    weights that exist already have a tokenizer, so none is trained. Another type replaces all of the
    configuration, since one type's fields mean nothing to another, and the name of a known size. Epochs are
    another measure of what max_steps says; and max_minutes would end a length that is given. The minutes of a
    recipe are those of its own model.
    """
    old, new = (layer.get("train") for layer in (below, above))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lengths = [key for key in ("epochs", "max_steps") if new.get(key) is not None]
        others = {"max_minutes", "max_steps"} if lengths else set()
        below = {**below, "train": {key: value for key, value in old.items() if key not in others}}
    old, new = (layer.get("engine") for layer in (below, above))
    if (
        isinstance(old, Mapping)
        and isinstance(new, Mapping)
        and new.get("name", old.get("name")) != old.get("name")
    ):
        below = {**below, "engine": {key: value for key, value in old.items() if key != "options"}}
    old, new = (layer.get("model") for layer in (below, above))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return dict(below)
    named = isinstance(new.get("name"), str) and new["name"] != old.get("name")
    if named and _known_size(new) is None:
        old = {key: value for key, value in old.items() if key not in ("init", "tokenizer")}
    elif new.get("init") == "pretrained" and old.get("tokenizer") == "train":
        old = {key: value for key, value in old.items() if key != "tokenizer"}
    workload = above.get("workload") or below.get("workload")
    usual = recipe_class(workload).usual_type() if workload and not old.get("name") else None
    had, wanted = _model_type(old) or usual, _model_type(new)
    other = had is not None and wanted is not None and had != wanted
    if not named and not other:
        return {**below, "model": dict(old)}
    if isinstance(train := below.get("train"), Mapping):
        below = {**below, "train": {key: value for key, value in train.items() if key != "max_minutes"}}
    kept, config = {key: value for key, value in old.items() if key != "config"}, old.get("config")
    if not other and wanted is not None and isinstance(config, Mapping):
        kept["config"] = {key: value for key, value in config.items() if SETTINGS.search(str(key))} or None
    if (_known_size(old) or {}).get("model_type", wanted) != wanted:
        kept.pop("name", None)
    return {**below, "model": kept}


def _model_type(model: Mapping[str, Any]) -> Any:
    """Return the type of a recipe's `model`: its configuration's, or that of the known size that it names;
    None: neither."""
    config = model.get("config")
    given = config.get("model_type") if isinstance(config, Mapping) else None
    return given or (_known_size(model) or {}).get("model_type")


def _known_size(model: Mapping[str, Any]) -> dict[str, Any] | None:
    name = model.get("name")
    return families.size(name) if isinstance(name, str) else None


def field_paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every field of a recipe by its full dotted path."""
    paths = []
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        paths.append(path)
        section = _section(model, field.alias or name)
        if section:
            paths += field_paths(section, f"{path}.")
    return paths


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML, keys in the given order."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _section(model: type[BaseModel] | None, key: str) -> type[BaseModel] | None:
    """Return the Section class behind a field, through Optional."""
    if model is None:
        return None
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            options = (
                typing.get_args(field.annotation)
                if typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
                else (field.annotation,)
            )
            for option in options:
                if isinstance(option, type) and issubclass(option, BaseModel):
                    return option
    return None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that is a mapping. Raises RecipeError with the file and the line."""
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {getattr(error, 'strerror', error)}", where=str(path)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"is not valid YAML: {problem}", where=f"{path}{line}") from None
    if data is None:
        data = {}
    _check_colons(data, str(path))
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise RecipeError("must be a mapping of names to values", where=str(path))
    return data


def _check_colons(value: Any, where: str) -> None:
    """Raise RecipeError for `{a:1}`, which YAML reads as a key `a:1` without a value."""
    if not isinstance(value, Mapping):
        return
    for key, each in value.items():
        name, colon, rest = str(key).partition(":")
        if colon and rest and each is None:
            hint = f"a space behind the colon: {name}: {rest}"
            raise RecipeError(f"{key!r} is a key without a value", where=where, hint=hint)
        _check_colons(each, where)


def _of_others(location: str, model: type[Recipe]) -> str | None:
    """Return a hint where other workloads have the key, and the recipe's own is unknown here or has no keys.
    """
    if model is not Recipe:
        return None
    having = [name for name, each in recipe_classes().items() if location in field_paths(each)]
    return f"it is a key of {', '.join(having)}; this workload is none that is known here" if having else None


def _explain(error: ValidationError, where: str, model: type[Recipe]) -> RecipeError:
    """Return pydantic's first error as one line with the field's full path and, where it helps, a hint."""
    first = error.errors(include_url=False)[0]
    location = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    paths = field_paths(model)
    if first["type"] == "extra_forbidden":
        siblings = [p for p in paths if p.rpartition(".")[0] == location.rpartition(".")[0]]
        elsewhere = [p for p in paths if not location.startswith(f"{p}.")]
        hint = (
            _of_others(location, model)
            or _other_name(location, paths)
            or did_you_mean(location, siblings)
            or did_you_mean(location, elsewhere)
        )
        return RecipeError(
            f"unknown key {location!r}",
            where=where,
            hint=hint or f"known keys here: {', '.join(p.rpartition('.')[2] for p in siblings)}",
        )
    while location not in paths and "." in location:  # drop pydantic's own parts behind the field's path
        location = location.rpartition(".")[0]
    if first["type"] == "value_error":  # a section's own words
        return RecipeError(f"{location}: {first['ctx']['error']}", where=where)
    given = first.get("input")
    if given is None:
        return RecipeError(f"{location}: is empty; {first['msg'].lower()}", where=where)
    if location in _MAIN and not isinstance(given, dict):
        keys = " or ".join(f"{location}.{key}={given}" for key in _MAIN[location])
        return RecipeError(
            f"{location}: is a section with keys of its own, not {given!r}", where=where, hint=keys
        )
    shown = HIDDEN if location.partition(".")[0] == "env" else repr(given)  # it may be a password
    wanted = first["msg"].partition(", unable to")[0].lower()
    if first["type"] != "literal_error":  # words that the field takes as well
        under = tuple(location.split("."))
        others = [each for each in error.errors(include_url=False) if each["loc"][: len(under)] == under]
        words = [each["ctx"]["expected"] for each in others if each["type"] == "literal_error"]
        wanted = " or ".join([wanted, *words])
    hint = None
    if isinstance(given, dict) and list(given.values()) == [None]:  # {NAME}, a text that YAML reads so
        hint = f'as text: "{{{next(iter(given))}}}", in quotes'
    return RecipeError(f"{location}: {wanted}, not {shown}", where=where, hint=hint)


# What is meant where a whole section is given one value.
_MAIN = {
    "model": ("name",), "data": ("name", "path"), "engine": ("name",), "batch": ("micro", "global"),
    "train": ("epochs", "max_steps"), "lora": ("rank",), "checkpoint": ("every",), "evaluate": ("every",),
    "launch": ("launcher",),
}  # fmt: skip
# Names that other tools give to keys of a recipe (the last part of what was written).
_ELSEWHERE = {
    "train.learning_rate": ("lr", "learningrate"),
    "train.epochs": ("num_train_epochs", "num_epochs", "n_epochs", "epoch"),
    "train.max_steps": ("steps", "train_steps", "max_train_steps", "iterations"),
    "train.schedule": ("lr_scheduler_type", "lr_scheduler", "scheduler"),
    "train.min_learning_rate": ("min_lr", "lr_min", "min_lr_ratio"),
    "train.warmup": ("warmup_steps", "warmup_ratio", "num_warmup_steps", "lr_warmup_steps"),
    "train.clip": ("max_grad_norm", "gradient_clipping", "grad_clip", "clip_grad_norm"),
    "train.workers": ("dataloader_num_workers", "num_workers"),
    "train.gradient_checkpointing": ("activation_checkpointing",),
    "train.weight_decay": ("wd",),
    "batch.micro": (
        "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch_size",
        "micro_batch", "per_gpu_batch_size",
    ),
    "batch.global": ("train_batch_size", "global_batch_size", "total_batch_size"),
    "batch.accumulation": ("gradient_accumulation_steps", "grad_accum", "accumulation_steps"),
    "precision": ("fp16", "bf16", "fp32", "dtype", "torch_dtype", "mixed_precision"),
    "engine.config": ("deepspeed", "ds_config", "deepspeed_config"),
    "engine.offload": ("offload", "cpu_offload"),
    "engine.zero": ("zero_stage", "stage", "zero_optimization"),
    "model.name": ("model_name_or_path", "model_name", "pretrained_model_name_or_path"),
    "data.name": ("dataset", "dataset_name"),
    "data.path": ("data_path", "train_file", "data_dir", "file"),
    "data.sequence": ("max_seq_length", "max_seq_len", "seq_length", "seq_len", "block_size", "max_length"),
    "checkpoint.every": ("save_steps", "save_every", "checkpoint_every"),
    "checkpoint.keep": ("save_total_limit",),
    "evaluate.every": ("eval_steps", "eval_every"),
    "lora.rank": ("lora_rank", "lora_r", "lora_dim"),
    "measure.window": ("logging_steps", "log_every", "log_interval"),
}  # fmt: skip
_BATCH = ("batch_size", "batchsize", "bs", "size")


def _other_name(location: str, paths: Iterable[str]) -> str | None:
    """Return a hint where other tools have another name for the key."""
    word = location.rpartition(".")[2].lower().replace("-", "_")
    if word in _BATCH:
        return "batch.micro is the batch of a rank, batch.global that of all ranks"
    meant = [path for path, names in _ELSEWHERE.items() if word in names and path in paths]
    return f"did you mean {meant[0]}?" if meant else None
