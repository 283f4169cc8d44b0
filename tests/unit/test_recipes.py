"""Recipes: files that inherit, overrides, and mistakes that name the field's full path and the near names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from muster.core import families
from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.recipe import Recipe, recipe_class, recipe_classes, recipe_from
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


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_loads(name: str) -> None:
    recipe = load_recipe(name)
    assert type(recipe) is recipe_class(recipe.workload)


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


def test_a_misspelt_recipe_has_near_names() -> None:
    assert failure("dmeo").hint == "did you mean demo?"


def test_later_keys_win_and_mappings_merge(tmp_path: Path) -> None:
    write(
        tmp_path,
        base="train: {epochs: 3, seed: 1}\nbatch: {micro: 4}",
        middle="inherit: base\ntrain: {epochs: 5}",
        other="batch: {micro: 16}\nprecision: bf16",
        top="inherit: [middle, other.yaml]\ntrain: {clip: 0}",
    )
    recipe = load_recipe(str(tmp_path / "top.yaml"), ["train.seed=7"])
    assert (recipe.train.epochs, recipe.train.seed, recipe.train.clip) == (5, 7, 0)
    assert (recipe.batch.micro, recipe.precision) == (16, "bf16")


def test_inheriting_from_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path, mine="inherit: demo\nengine: {zero: 2}")
    recipe = load_recipe(str(tmp_path / "mine.yaml"))
    assert recipe.engine.zero == 2
    assert recipe.model == load_recipe("demo").model


OPT = "{model_type: opt, max_position_embeddings: 64}"
WHOLE = {"model_type": "opt", "max_position_embeddings": 64}
HALVES = ["model.config.max_position_embeddings=64", "model.config.model_type=opt"]


@pytest.mark.parametrize("overrides", [[f"model.config={OPT}"], HALVES, HALVES[::-1]])
@pytest.mark.parametrize("recipe", ["causal-lm", "gpt2-micro"])
def test_another_type_of_model_begins_a_new_configuration(recipe: str, overrides: list[str]) -> None:
    """Fields of GPT-2, and the name of its size, mean nothing to OPT. Overrides have no order in this."""
    model = load_recipe(recipe, overrides).model
    assert (model.config, model.name, model.init) == (WHOLE, None, "random")


def test_another_engine_leaves_the_options_of_the_first() -> None:
    assert load_recipe("gpt2-micro", ["engine.zero=1"]).engine.options
    assert load_recipe("gpt2-micro", ["engine.zero=0", "engine.name=ddp"]).engine.options == {}


def test_an_inheriting_recipe_with_another_type_of_model(tmp_path: Path) -> None:
    write(
        tmp_path,
        opt=f"inherit: causal-lm\nmodel: {{config: {OPT}}}",
        wider="inherit: opt\nmodel: {config: {hidden_size: 32}}",
        named="inherit: wider\nmodel: {name: gpt2-small}",
    )
    found = {name: load_recipe(str(tmp_path / f"{name}.yaml")).model for name in ("opt", "wider", "named")}
    assert found["opt"].config == WHOLE
    assert found["wider"].config == {**WHOLE, "hidden_size": 32}
    assert (found["named"].config, found["named"].name) == (None, "gpt2-small")
    assert found["opt"].vocab_size == load_recipe("causal-lm").model.vocab_size  # not of the configuration


@pytest.mark.parametrize(
    ("recipe", "override", "kept"),
    [
        ("causal-lm", "model.config={model_type: gpt2, n_layer: 2}", "n_positions"),
        ("causal-lm", "model.config.n_layer=2", "n_positions"),
        ("demo", "model.config.model_type=t5", "d_kv"),  # which it is without saying so
        ("vit-cifar10", "model.name=vit-tiny", "initializer_range"),
        ("vit-cifar10", "model.name=vit-micro", "initializer_range"),
        ("demo", "model.name=t5-large", "dropout_rate"),
        ("s1-opt-350m", "model.name=facebook/opt-125m", "attention_dropout"),
        ("s1-opt-66b", "train.seed=1", "attention_dropout"),  # through three layers
    ],
)
def test_the_same_type_of_model_is_changed(recipe: str, override: str, kept: str) -> None:
    assert kept in (load_recipe(recipe, [override]).model.config or {})


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("causal-lm", "gpt2-xl"),
        ("demo", "t5-large"),
        ("digits", "vit-base"),
        ("causal-lm", "opt-125m"),
        ("causal-lm", "a/folder"),
    ],
)
def test_a_name_replaces_the_shape(recipe: str, name: str) -> None:
    """Else a named size is another model: the recipe's own, which nobody asked for."""
    model = load_recipe(recipe, [f"model.name={name}"]).model
    assert model.name == name
    shape = {key for field in families.FAMILIES for each in field.FIELDS if each.kind != "share"
             for key in (each.name, each.also)}  # fmt: skip
    assert not shape & set(model.config or {})
    assert "model_type" not in (model.config or {})


def test_what_is_given_beside_or_after_a_name_stays(tmp_path: Path) -> None:
    for order in (1, -1):
        overrides = ["model.name=gpt2-xl", "model.config.n_layer=2"][::order]
        assert load_recipe("causal-lm", overrides).model.config == {"n_layer": 2}
    write(
        tmp_path,
        named="inherit: causal-lm\nmodel: {name: gpt2-small, config: {n_positions: 64}}",
        later="inherit: named\nmodel: {config: {n_layer: 3}}",
        again="inherit: later\nmodel: {name: gpt2-small}",
        other="inherit: later\nmodel: {name: gpt2-medium}",
    )
    found = {
        name: load_recipe(str(tmp_path / f"{name}.yaml")).model.config for name in ("later", "again", "other")
    }
    assert found == {
        "later": {"n_positions": 64, "n_layer": 3},
        "again": {"n_positions": 64, "n_layer": 3},
        "other": None,
    }


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


def test_nobody_says_what_type_a_folder_has(tmp_path: Path) -> None:
    write(tmp_path, a="workload: causal-lm\nmodel: {name: some/folder, config: {n_layer: 3}}")
    model = load_recipe(str(tmp_path / "a.yaml"), ["model.config.model_type=opt"]).model
    assert (model.name, model.config) == ("some/folder", {"n_layer": 3, "model_type": "opt"})


@pytest.mark.parametrize(
    ("value", "path"),
    [("3", "model"), ("[a]", "model"), ("{name: [3]}", "model.name"), ("{config: 4}", "model.config")],
)
def test_a_model_that_is_none_is_told_over_any_other(value: str, path: str, tmp_path: Path) -> None:
    write(tmp_path, a=f"inherit: causal-lm\nmodel: {value}")
    assert failure(str(tmp_path / "a.yaml")).what.startswith(f"{path}: ")
    write(tmp_path, c="inherit: a\nmodel: {config: {model_type: [opt]}, name: [gpt2]}")
    assert failure(str(tmp_path / "c.yaml")).what.startswith("model.name: ")


def test_inheriting_from_itself(tmp_path: Path) -> None:
    write(tmp_path, a="inherit: b", b="inherit: a")
    assert failure(str(tmp_path / "a.yaml")).what == "inherits from itself: a.yaml -> b.yaml -> a.yaml"


@pytest.mark.parametrize("value", ["3", "{a: b}", "[1]"])
def test_inherit_must_be_names(tmp_path: Path, value: str) -> None:
    write(tmp_path, a=f"inherit: {value}")
    assert "must be the name or path of a recipe" in failure(str(tmp_path / "a.yaml")).what


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5e+3", -1500.0),
        ("010", 10),
        ("0x10", 16),
        ("0o10", 8),
        ("-3", -3),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("0b_", "0b_"),
        ("[1, a]", [1, "a"]),
        ("{a: 1}", {"a": 1}),
        ("^docker,lo", "^docker,lo"),
        ("a=b", "a=b"),
        ("*x", "*x"),
        ("=", "="),
        ("!!bool maybe", "!!bool maybe"),
        ("!!timestamp x", "!!timestamp x"),
        ("!!int x", "!!int x"),
        ("[" * 5000, "[" * 5000),
        ("9" * 5000, "9" * 5000),
        ("!!python/object/apply:os.system [id]", "!!python/object/apply:os.system [id]"),
    ],
)
def test_values_are_yaml_1_2_or_text(text: str, value: Any) -> None:
    assert parse_override(f"a.b={text}") == {"a": {"b": value}}


@pytest.mark.parametrize(
    "text", ["", "=", "=3", "engine.zero", "engine..zero=3", ".zero=3", "zero.=3", "  =3"]
)
def test_not_an_override(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_override(text)
    assert caught.value.what == "is not a setting"
    assert caught.value.hint == "write key.sub=value, such as engine.zero=3"


@pytest.mark.parametrize(
    ("override", "what", "hint"),
    [
        ("engine.zerro=3", "unknown key 'engine.zerro'", "engine.zero"),
        ("enigne.zero=3", "unknown key 'enigne'", "engine"),
        ("zero=3", "unknown key 'zero'", "engine.zero"),
        ("lora.rnak=3", "unknown key 'lora.rnak'", "lora.rank"),
        ("data.generated.sead=3", "unknown key 'data.generated.sead'", "data.generated.seed"),
        ("batch.quux=3", "unknown key 'batch.quux'", "known keys here: micro, global, tokens, accumulation"),
    ],
)
def test_an_unknown_key_has_its_full_path_and_near_names(override: str, what: str, hint: str) -> None:
    error = failure("demo", override)
    assert error.what == what
    assert error.where == "demo"
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("engine.zero=4", "engine.zero"),
        ("engine.zero=three", "engine.zero"),
        ("engine.name=horovod", "engine.name"),
        ("batch.micro=0", "batch.micro"),
        ("batch.micro=many", "batch.micro"),
        ("batch.global=-4", "batch.global"),
        ("train.learning_rate=0", "train.learning_rate"),
        ("train.learning_rate=inf", "train.learning_rate"),
        ("train.learning_rate=nan", "train.learning_rate"),
        ("train=3", "train"),
        ("model=[a]", "model"),
        ("lora.targets=3", "lora.targets"),
        ("env.NCCL_DEBUG=[INFO]", "env"),
        ("env.FLAG=true", "env"),
        ("launch.port=65536", "launch.port"),
        ("launch.ssh_options=-F", "launch.ssh_options"),
    ],
)
def test_a_wrong_value_names_the_fields_full_path(override: str, path: str) -> None:
    assert failure("demo", override).what.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("override", "word"),
    [("evaluate.every=epochs", "epoch"), ("evaluate.every=-1", "epoch"), ("checkpoint.keep=both", "all")],
)
def test_a_word_that_a_number_may_be_is_told(override: str, word: str) -> None:
    """And no word of another field that is wrong as well."""
    found = failure("demo", override, "measure.profile=steep").what
    assert f"or '{word}', not" in found and "trace" not in found


def test_auto_is_what_the_plan_decides() -> None:
    recipe = load_recipe("demo", ["batch.micro=auto", "batch.global=64"])
    assert (recipe.batch.micro, recipe.batch.global_) == (None, 64)


def test_a_whole_number_in_env_is_text() -> None:
    assert load_recipe("demo", ["env.NCCL_IB_DISABLE=1"]).env == {"NCCL_IB_DISABLE": "1"}


def test_a_later_source_of_data_drops_the_earlier_one() -> None:
    recipe = load_recipe("demo", ["data.path=x", "data.limit=5"])
    assert (recipe.data.path, recipe.data.generated, recipe.data.name) == ("x", None, None)  # type: ignore[attr-defined]
    recipe = load_recipe("demo", ["data.path=x", "data.generated.seed=4"])
    assert recipe.data.path is None
    assert recipe.data.generated is not None  # type: ignore[attr-defined]
    assert recipe.data.generated.seed == 4  # type: ignore[attr-defined]


def test_taking_a_source_of_data_away_keeps_the_others() -> None:
    assert load_recipe("demo", ["data.path=null"]).data.generated is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("below", [{}, {"data": {"generated": {}}}])
def test_two_sources_of_data_in_one_place_are_an_error(below: dict[str, Any]) -> None:
    merged = merge(below, {"data": {"name": "a", "path": "b"}}, Recipe)
    with pytest.raises(RecipeError, match="data: at most one of name, path, generated can be given"):
        validate(merged, where="x")


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("a: [1\nb: 2", "is not valid YAML", ":2"),
        ("x: !!int y", "is not valid YAML", ""),
        ("- a", "must be a mapping", ""),
        ("3: a", "must be a mapping", ""),
        ("text", "must be a mapping", ""),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str, what: str, line: str) -> None:
    write(tmp_path, a=text)
    error = failure(str(tmp_path / "a.yaml"))
    assert what in error.what
    assert error.where == f"{tmp_path / 'a.yaml'}{line}"


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    assert "cannot be read" in failure(str(tmp_path / "a.yaml")).what


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


def _takes_text(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(path, kind) of every field of a recipe whose values are words: one, a list, or named ones."""
    for name, field in model.model_fields.items():
        path, about = f"{prefix}{field.alias or name}", repr(field.annotation)
        section = _section(model, field.alias or name)
        if section:
            yield from _takes_text(section, f"{path}.")
        elif "list[str]" in about:
            yield path, "list"
        elif "dict[str, str" in about:
            yield path, "mapping"
        elif field.annotation in (str, str | None) and path not in ("workload", "engine.name"):
            yield path, "word"


@pytest.mark.parametrize(
    ("workload", "path", "kind"),
    [(name, *field) for name, each in recipe_classes().items() for field in _takes_text(each)],
)
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


def test_numbers_stay_numbers_where_numbers_are_meant() -> None:
    made = load_recipe("demo", ["model.config.eps=1.10", "engine.options={a: 0022, b: [1e3]}"])
    assert made.model.config is not None
    config, options = made.model.config, made.engine.options
    assert (config["eps"], options) == (1.1, {"a": 22, "b": [1000.0]})
    assert json.loads(json.dumps(options)) == {"a": 22, "b": [1000.0]}
    assert parse_yaml(dump_yaml(options)) == options


def test_yes_and_no_are_no_words() -> None:
    with pytest.raises(RecipeError, match="a valid string, not True"):
        load_recipe("demo", ["launch.options=[--requeue, true]"])


@pytest.mark.parametrize(
    ("given", "trackers"),
    [("wandb", ["wandb"]), ("none", []), ("[mlflow,trackio]", ["mlflow", "trackio"]), ("[]", [])],
)
def test_one_tracker_needs_no_list(given: str, trackers: list[str]) -> None:
    assert load_recipe("digits", [f"measure.report_to={given}"]).measure.report_to == trackers


@pytest.mark.parametrize("given", ["epoch", 5, None])
def test_evaluation_by_steps_or_epochs(given: object) -> None:
    told = "null" if given is None else given
    assert load_recipe("digits", [f"evaluate.every={told}"]).evaluate.every == given


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
    ("text", "said"),
    [
        ("workload: sft\ntrain: {learning_rate: 1.0e-3}\ndata: {}\ntrain: {epochs: 2}\n", "lines 2 and 4"),
        ("train:\n  epochs: 2\n  epochs: 3\n", "lines 2 and 3"),
        ("train: {epochs: 2, epochs: 3}\n", "lines 1 and 1"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(str(path))
    assert said in error.value.what


def test_an_anchor_that_is_merged_in_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("train: &train {epochs: 2, warmup: 5}\nevaluate: {limit: 3}\n")
    assert load_recipe(str(path)).train.epochs == 2
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")["b"] == {"x": 1, "y": 3}


def test_epochs_that_are_given_beat_steps_that_are_inherited(tmp_path: Path) -> None:
    assert load_recipe("demo").train.max_steps
    for words in (["train.epochs=3"], ["train={epochs: 3}"]):
        train = load_recipe("demo", words).train
        assert (train.epochs, train.max_steps) == (3, None)
    for words in (["train.epochs=3", "train.max_steps=7"], ["train.max_steps=7", "train.epochs=3"]):
        assert load_recipe("demo", words).train.max_steps == 7  # of one layer: steps, as ever
    (tmp_path / "own.yaml").write_text("inherit: demo\ntrain: {epochs: 2}\n")
    assert load_recipe(str(tmp_path / "own.yaml")).train.max_steps is None
    assert load_recipe(str(tmp_path / "own.yaml"), ["train.max_steps=5"]).train.max_steps == 5


def test_a_section_is_no_part_of_what_two_names_share() -> None:
    """train.early_stopping_patience was said to be near train.learning_rate."""
    with pytest.raises(RecipeError) as refused:
        load_recipe("demo", ["train.early_stopping_patience=3"])
    assert (refused.value.hint or "").startswith("known keys here")
    with pytest.raises(RecipeError) as refused:
        load_recipe("demo", ["train.learning_rat=3"])
    assert refused.value.hint == "did you mean train.learning_rate?"
