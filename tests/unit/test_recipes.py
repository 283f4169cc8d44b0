"""Recipes: files that inherit, overrides, and mistakes that name the field's full path and the near names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.recipe import Recipe, recipe_classes, recipe_from
from muster.core.recipes import (
    _section,
    anchored,
    dump_yaml,
    field_paths,
    find_recipe,
    load_recipe,
    merge,
    parse_override,
    parse_yaml,
    read_layers,
    shipped_recipes,
    validate,
)
from muster.workloads.text2sql.spec import TextToSqlRecipe


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def failure(source: str, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(source, overrides)
    return caught.value


def test_where_a_recipe_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = shipped_recipes()["demo"]
    assert find_recipe("demo") == find_recipe("demo.yaml") == find_recipe("recipes/demo.yaml") == shipped
    write(tmp_path, demo="precision: bf16", mine="")
    assert find_recipe("demo") == tmp_path / "demo.yaml"
    assert find_recipe("mine.yaml") == find_recipe(str(tmp_path / "mine")) == tmp_path / "mine.yaml"


@pytest.mark.parametrize("source", ["dmeo", "elsewhere/demo.yaml", "~nobody-here/x.yaml", "x" * 5000, ""])
def test_no_such_recipe(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no such recipe" in failure(source).what


def test_relative_paths_are_taken_from_the_recipes_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each file that inherits its own; those of overrides stay for the working folder."""
    below, top = tmp_path / "below", tmp_path / "top"
    for folder in (below, top, tmp_path / "work"):
        folder.mkdir()
    (below / "tokens").mkdir()
    write(below, base="data: {path: data/x.jsonl}\nmodel: {tokenizer: tokens, name: t5-small}")
    write(top, mine="inherit: ../below/base.yaml\nengine: {name: deepspeed, config: ../ds.json}")
    monkeypatch.chdir(tmp_path / "work")
    recipe = load_recipe("../top/mine.yaml")
    assert recipe.data.path == str(below / "data" / "x.jsonl")
    assert (recipe.model.tokenizer, recipe.model.name) == (str(below / "tokens"), "t5-small")
    assert recipe.engine.config == str(tmp_path / "ds.json")
    assert load_recipe("../top/mine.yaml", ["data.path=y.jsonl"]).data.path == "y.jsonl"
    assert load_recipe("text2sql-t5-small").data.path == "data/wikisql"  # for whoever has it there


@pytest.mark.parametrize("value", ["auto", "train"])
def test_words_and_whole_paths_are_left_alone(tmp_path: Path, value: str) -> None:
    (tmp_path / value).mkdir()
    write(tmp_path, mine=f"data: {{path: /data/x}}\nmodel: {{tokenizer: {value}, name: {'x' * 5000}}}")
    recipe = load_recipe(str(tmp_path / "mine.yaml"))
    assert (recipe.data.path, recipe.model.tokenizer, recipe.model.name) == ("/data/x", value, "x" * 5000)


@pytest.mark.parametrize(
    ("section", "key", "value", "made"),
    [
        ("model", "name", "~/t5", "/home/me/t5"),
        ("model", "name", "./t5", "{there}/t5"),
        ("data", "name", "folder", "{there}/folder"),
        ("launch", "setup", "file", "{there}/file"),
        ("launch", "setup", "folder", "folder"),  # no file to source, so a line of bash
        ("launch", "setup", "./configure --all", "./configure --all"),
        ("launch", "setup", ". /opt/modules.sh", ". /opt/modules.sh"),
    ],
)
def test_a_name_is_a_path_where_it_looks_like_one(
    section: str, key: str, value: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert anchored({section: {key: value}}, tmp_path) == {section: {key: made.format(there=tmp_path)}}


def test_a_home_folder_of_nobody(tmp_path: Path) -> None:
    write(tmp_path, mine="data: {path: ~nobody-here/x}")
    assert failure(str(tmp_path / "mine.yaml")).where == "data.path"


@pytest.mark.parametrize("below", [{}, {"data": {"generated": {}}}])
def test_two_sources_of_data_in_one_place_are_an_error(below: dict[str, Any]) -> None:
    merged = merge(below, {"data": {"name": "a", "path": "b"}}, Recipe)
    with pytest.raises(RecipeError, match="data: at most one of name, path can be given"):
        validate(merged, where="x")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["data.path=/a", "data.name=b"], "name, path"),
        (["data.name=b", "data.generated={}"], "name, generated"),
        (["batch.global=8", "batch.tokens=auto"], "global, tokens"),
    ],
)
def test_two_words_that_exclude_each_other_are_an_error(words: list[str], names: str) -> None:
    """Not where one of them is none, or another layer's."""
    for given in (words, words[::-1]):
        with pytest.raises(RecipeError, match=f"at most one of {names} can be given"):
            load_recipe("demo", given)
    key, _, value = words[0].partition("=")
    alone = load_recipe("demo", [f"{words[1].partition('=')[0]}=null", words[0]]).as_dict()
    section, _, name = key.partition(".")
    assert str(alone[section][name]) == value
    assert load_recipe("demo", ["engine.options=null", "engine.options.a=1"]).engine.options == {"a": 1}


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    write(tmp_path, a="")
    assert load_recipe(str(tmp_path / "a.yaml")) == TextToSqlRecipe()


@pytest.mark.parametrize(
    "word", ["1e5", "no", "12:30", "010", "0o10", "1_000", "true", "~", "a: b", "#", "", " x "]
)
def test_a_recipe_is_read_back_as_it_was_written(tmp_path: Path, word: str) -> None:
    recipe = load_recipe("demo", ["data.path=/x", "lora.rank=4"])
    recipe = validate({**recipe.as_dict(), "env": {"A": word}}, where="x")
    write(tmp_path, frozen=dump_yaml(recipe.as_dict()))
    assert load_recipe(str(tmp_path / "frozen.yaml")) == recipe
    assert yaml.safe_load(dump_yaml({"A": word})) == {"A": word}  # YAML 1.1, which other tools read


def test_field_paths_are_what_a_user_types() -> None:
    paths = field_paths(TextToSqlRecipe)
    assert {"batch.global", "engine.zero", "data.generated.seed", "lora.rank", "force"} <= set(paths)
    assert "batch.global_" not in paths
    assert len(paths) == len(set(paths))


def test_layers_do_not_touch_each_other(tmp_path: Path) -> None:
    write(tmp_path, base="train: {epochs: 3}", top="inherit: base\ntrain: {epochs: 5}")
    below = read_layers(str(tmp_path / "base.yaml"))
    merged = merge(below, {"train": {"seed": 1}}, Recipe)
    assert below == {"train": {"epochs": 3}}
    assert merged == {"train": {"epochs": 3, "seed": 1}}


def _takes_text(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[type, str, str]]:
    """(class that declares it, path, kind) of every field of a recipe whose values are words: one, a list, or
    named ones."""
    for name, field in model.model_fields.items():
        path, about = f"{prefix}{field.alias or name}", repr(field.annotation)
        section = _section(model, field.alias or name)
        owner = next(each for each in model.__mro__ if name in vars(each).get("__annotations__", ()))
        if section:
            yield from _takes_text(section, f"{path}.")
        elif "list[str]" in about:
            yield owner, path, "list"
        elif "dict[str, str" in about:
            yield owner, path, "mapping"
        elif field.annotation in (str, str | None) and path not in ("workload", "engine.name"):
            yield owner, path, "word"


# What several workloads inherit is one field.
TEXT = {field: name for name, each in recipe_classes().items() for field in _takes_text(each)}


@pytest.mark.parametrize(("workload", "path", "kind"), [(name, *field[1:]) for field, name in TEXT.items()])
def test_a_number_where_text_is_meant_is_read_as_it_was_written(workload: str, path: str, kind: str) -> None:
    for text in ("2222", "0022", "1.10", "0x1f"):
        given, read = {
            "list": (f"[-p, {text}]", ["-p", text]),
            "mapping": (f"{{A: {text}}}", {"A": text}),
            "word": (text, text),
        }[kind]
        made = validate({"workload": workload, **parse_override(f"{path}={given}")}, where="test")
        value: Any = made.as_dict()
        for part in path.split("."):
            value = value[part]
        assert value == read
        assert recipe_from(parse_yaml(dump_yaml(made.as_dict()))) == made


@pytest.mark.parametrize(
    ("given", "strategy", "steps"), [("epoch", "epoch", None), ("5", "steps", 5), ("null", "no", None)]
)
def test_what_the_trainer_is_told_of_evaluation(given: str, strategy: str, steps: int | None) -> None:
    pytest.importorskip("torch")
    from muster.worker.arguments import training_arguments

    recipe = load_recipe("digits", [f"evaluate.every={given}", "measure.report_to=[wandb]"])
    context: Any = SimpleNamespace(
        recipe=recipe, batch=Batch(2, 3, 24), base=Path("/runs/r1"), checkpoints=Path("/c"), shared=False,
        precision="bf16", device="cpu",
    )  # fmt: skip
    told = training_arguments(context)
    assert (told["eval_strategy"], told["eval_steps"]) == (strategy, steps)
    assert (told["report_to"], told["run_name"], told["save_on_each_node"]) == (["wandb"], "r1", True)


@pytest.mark.parametrize(
    ("changes", "minutes"),
    [
        ([], 10), (["model.config.n_layer=8"], 10), (["model.name=gpt2-small"], None),
        (["model.config.model_type=llama"], None), (["model.name=gpt2-small", "train.max_minutes=5"], 5),
    ],
)  # fmt: skip
def test_the_minutes_of_a_recipe_are_those_of_its_own_model(changes: list[str], minutes: int | None) -> None:
    assert load_recipe("causal-lm", changes).train.max_minutes == minutes
