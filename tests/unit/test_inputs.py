"""Before a host is asked: the environment, the paths, the data, and what can never work; and the code that
is sent."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import DataError, InventoryError, RecipeError
from muster.core.inventory import Host, inventory_document
from muster.core.recipe import Recipe, recipe_from
from muster.inputs.read import absolute, environment, read_env_file, read_inputs, read_recipe
from muster.planner.orders import code

GOOD = '{"question": "q", "sql": "s"}\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a home folder of the test's own."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def recipe(**fields: Any) -> Recipe:
    return recipe_from(fields)


def test_deepspeed_env_files(here: Path) -> None:
    file = here / ".deepspeed_env"
    file.write_text(
        '# network\n\nNCCL_DEBUG=INFO\n  A = b c \nQ="x y"\nEMPTY=\nEQ=a=b\n'
        "export NCCL_IB_HCA='=mlx5_1,mlx5_2'\nexport ONE=\"it's\"\nHALF='a\n"
    )
    assert read_env_file(file) == {
        "NCCL_DEBUG": "INFO", "A": "b c", "Q": "x y", "EMPTY": "", "EQ": "a=b",
        "NCCL_IB_HCA": "=mlx5_1,mlx5_2", "ONE": "it's", "HALF": "'a",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["NCCL_DEBUG", "export A", "1A=b", "=b", "A-B=c", "exportA b=c"])
def test_a_line_that_is_no_variable(here: Path, line: str) -> None:
    file = here / ".deepspeed_env"
    file.write_text(f"A=b\n\n{line}\n")
    with pytest.raises(RecipeError, match="is not NAME=VALUE") as caught:
        read_env_file(file)
    assert caught.value.where == f"{file}:3"


def test_the_environments_layers(here: Path) -> None:
    assert environment(recipe()) == ({}, ())
    (here.parent / "home" / ".deepspeed_env").write_text("A=home\nB=home\nC=home\n")
    (here / ".deepspeed_env").write_text("B=work\nC=work\n")
    env, told = environment(recipe(env={"C": "recipe"}))
    assert env == {"A": "home", "B": "work", "C": "recipe"}
    assert [(each.value, each.why) for each in told] == [  # a decision each: the start and the page show them
        ("A", f"set by {here.parent}/home/.deepspeed_env"),
        ("B", f"set by {here}/.deepspeed_env"),
    ]


def test_what_speaks_to_communication_libraries_is_passed_on(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, and below files and the recipe; other variables of this shell stay here."""
    for name in ("NCCL_DEBUG", "UCX_TLS", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "OTHER"):
        monkeypatch.setenv(name, "shell")
    (here / ".deepspeed_env").write_text("NCCL_IB_HCA=file\n")
    env, decisions = environment(recipe(env={"UCX_TLS": "recipe"}))
    assert env == {
        "NCCL_DEBUG": "shell", "GLOO_SOCKET_IFNAME": "shell", "NCCL_IB_HCA": "file", "UCX_TLS": "recipe",
    }  # fmt: skip
    assert [(each.field, each.value) for each in decisions] == [
        ("env", "GLOO_SOCKET_IFNAME, NCCL_DEBUG"), ("env", "NCCL_IB_HCA"),
    ]  # fmt: skip


def test_a_deepspeed_env_of_another_user_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = here / ".deepspeed_env"
    file.write_text("LD_PRELOAD=/tmp/theirs.so\n")
    monkeypatch.setattr("os.getuid", lambda: file.stat().st_uid + 4711)
    if file.stat().st_uid == 0:
        os.chown(file, 4712, -1)
    with pytest.raises(RecipeError, match="belongs to another user") as caught:
        environment(recipe())
    assert caught.value.where == str(file)
    monkeypatch.setattr("os.getuid", lambda: file.stat().st_uid)
    assert environment(recipe())[0] == {"LD_PRELOAD": "/tmp/theirs.so"}


def test_a_deepspeed_env_that_everybody_may_write_is_refused(here: Path) -> None:
    file = here / ".deepspeed_env"
    file.write_text("A=1\n")
    file.chmod(0o664)  # a group of one's own, as many systems have it
    assert environment(recipe())[0] == {"A": "1"}
    file.chmod(0o666)
    with pytest.raises(RecipeError, match="written by every user") as caught:
        environment(recipe())
    assert caught.value.where == str(file)


def test_a_bad_line_of_a_deepspeed_env_is_not_repeated(here: Path) -> None:
    """`export HF_TOKEN ...` is a mistake that people make, and its value is a secret."""
    (here / ".deepspeed_env").write_text("export HF_TOKEN hf_secret\n")
    with pytest.raises(RecipeError) as caught:
        environment(recipe())
    assert "hf_secret" not in f"{caught.value} {caught.value.hint}"


def a_run(root: Path, name: str, *, model: bool = True) -> Path:
    run = root / "runs" / name
    run.mkdir(parents=True)
    (run / "job.json").write_text("{}")
    if model:
        (run / "model").mkdir()
        (run / "model" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    return run


@pytest.mark.parametrize("name", ["last", "latest", "first-steps", "runs/first-steps"])
def test_a_runs_model_is_named_by_the_run(here: Path, name: str) -> None:
    run = a_run(here, "first-steps")
    found = read_inputs("causal-lm", "local:1", [f"model.name={name}", "model.init=pretrained"]).recipe
    assert found.model.name == str(run / "model")
    assert found.model.config is None  # the shape is the run's, not the recipe's


def test_a_runs_name_alone_means_its_weights_shape_and_tokenizer(here: Path) -> None:
    """Over a recipe that describes a model from scratch; what is said beside it wins."""
    run = a_run(here, "first-steps")
    found = read_inputs("sft", "local:1", ["model.name=first-steps"]).recipe.model
    assert (found.name, found.init, found.config, found.tokenizer) == (
        str(run / "model"),
        "pretrained",
        None,
        "auto",
    )
    found = read_inputs("sft", "local:1", ["model.name=last", "model.tokenizer=train"]).recipe.model
    assert (found.init, found.tokenizer) == ("pretrained", "train")
    (run / "model" / "model.safetensors").write_text("")
    found = read_inputs("sft", "local:1", [f"model.name={run}/model"]).recipe.model
    assert (found.init, found.config, found.tokenizer) == ("pretrained", None, "auto")  # as any saved model
    other = read_inputs("sft", "local:1", ["model.name=llama-3-8b"]).recipe.model
    assert (other.init, other.tokenizer) == ("random", "train")  # a size, whose weights are not here


def test_a_saved_model_of_a_recipes_file_is_trained_on_as_one_of_the_command_line(here: Path) -> None:
    """With its weights and tokenizer, of which the recipe below has neither; also where a file between says
    more, and where the weights alone are asked for."""
    (here / "saved").mkdir()
    (here / "saved" / "config.json").write_text('{"model_type": "gpt2"}')
    (here / "saved" / "model.safetensors").write_text("")
    (here / "base.yaml").write_text("inherit: sft\nmodel: {name: saved}\n")
    (here / "mine.yaml").write_text("inherit: base\ntrain: {epochs: 2}\n")
    (here / "own.yaml").write_text("inherit: sft\nmodel: {name: saved, tokenizer: train}\n")
    for source, given, expected in (
        ("base.yaml", [], ("pretrained", "auto")),
        ("mine.yaml", [], ("pretrained", "auto")),
        ("own.yaml", [], ("pretrained", "train")),
        ("mine.yaml", ["model.init=random"], ("random", "auto")),
        ("sft", ["model.name=saved", "model.init=pretrained"], ("pretrained", "auto")),
        ("sft", ["model.init=pretrained", "model.name=gpt2"], ("pretrained", "auto")),
        ("sft", ["model.name=somebody/unknown"], ("pretrained", "auto")),
        ("sft", ["model.name=gpt2"], ("random", "train")),
    ):
        made = read_recipe(source, given).model
        assert (made.init, made.tokenizer) == expected, (source, given)


def test_a_run_without_a_model_and_weights_that_would_not_be_used_are_refused(here: Path) -> None:
    a_run(here, "broken", model=False)
    a_run(here, "whole")
    for name, init, words in (
        ("broken", "pretrained", "no trained model"),
        ("whole", "random", "would draw other weights"),
    ):
        with pytest.raises(RecipeError, match=words) as caught:
            read_inputs("causal-lm", "local:1", [f"model.name={name}", f"model.init={init}"])
        assert caught.value.where == "model.name"


@pytest.mark.parametrize("name", ["gpt2", "somebody/whole", "x" * 5000])
def test_other_names_are_no_runs(here: Path, name: str) -> None:
    """Nor is a known size, though a run has its name."""
    a_run(here, "whole")
    a_run(here, "gpt2")
    assert absolute(recipe(model={"name": name})).model.name == name


@pytest.mark.parametrize("name", ["1A", "A B", "A=B", "", "Ä", "A\n"])
def test_names_that_no_environment_takes(name: str) -> None:
    with pytest.raises(RecipeError, match="is not the name of an environment variable"):
        environment(recipe(env={name: "x"}))


def test_paths_do_not_depend_on_where_it_was_started(here: Path) -> None:
    (here / "tokenizer").mkdir()
    made = absolute(
        recipe(
            data={"path": "sub/data.jsonl"},
            model={"name": "./model", "tokenizer": "tokenizer"},
            engine={"name": "deepspeed", "config": "~/ds.json"},
        )
    )
    assert made.data.path == str(here / "sub/data.jsonl")
    assert made.model.name == str(here / "model")
    assert made.model.tokenizer == str(here / "tokenizer")
    assert made.engine.config == str(here.parent / "home" / "ds.json")
    assert absolute(made) == made


def test_names_stay_names() -> None:
    made = absolute(recipe(model={"name": "google-t5/t5-small"}, data={"name": "wikisql"}))
    assert (made.model.name, made.model.tokenizer, made.engine.config) == ("google-t5/t5-small", "auto", None)
    assert (made.data.name, made.data.path, made.data.generated) == ("wikisql", None, None)  # type: ignore[attr-defined]


def test_without_data_it_is_generated() -> None:
    assert (
        absolute(recipe()).data.generated  # type: ignore[attr-defined]
        == absolute(recipe(data={"generated": {}})).data.generated  # type: ignore[attr-defined]
        is not None
    )


def test_everything_together(here: Path) -> None:
    (here / "data.jsonl").write_text(GOOD + GOOD.replace('"q"', '"other"'))
    made = read_inputs("demo", "local:2x1", ["data.path=data.jsonl", "env.A=1"])
    assert made.launcher_name == "local"
    assert made.launcher.ONE_MACHINE
    assert made.inventory.names == ("local0", "local1")
    assert made.recipe.data.path == str(here / "data.jsonl")
    assert made.env == {"A": "1"}
    assert read_inputs("demo", "node1,node2:4", []).launcher_name == "ssh"


@pytest.mark.parametrize(("name", "line"), [("train", 3), ("validation", 2)])
def test_a_fault_in_the_data_is_found_with_its_line(here: Path, name: str, line: int) -> None:
    for part in ("train", "validation"):
        (here / f"{part}.jsonl").write_text(GOOD * 5)
    (here / f"{name}.jsonl").write_text(GOOD * (line - 1) + '{"question": "q"}\n')
    with pytest.raises(DataError, match="field 'sql' is missing") as caught:
        read_inputs("demo", "local:2", ["data.path=."])
    assert caught.value.where == f"{here / name}.jsonl:{line}"


def test_the_samples_of_an_epoch_are_those_that_are_not_held_out(here: Path) -> None:
    lines = [GOOD.replace('"q"', f'"{number}"') for number in range(20)]
    (here / "data.jsonl").write_text("".join(lines))
    for extra, count in ((["data.validation_fraction=0.25"], 15), (["data.limit=10"], 9)):
        made = read_inputs("demo", "local:2", ["data.path=data.jsonl", *extra]).recipe
        assert made.survey(None).samples == count
    (here / "train.jsonl").write_text("".join(lines))
    (here / "dev.jsonl").write_text(lines[0])
    (here / "data.jsonl").unlink()
    assert read_inputs("demo", "local:2", ["data.path=."]).recipe.survey(None).samples == 20


def test_too_few_samples_are_told_before_the_start(here: Path) -> None:
    (here / "one.jsonl").write_text(GOOD * 3)
    with pytest.raises(DataError, match="1 different sample is too few to hold some out"):
        read_inputs("demo", "local:2", ["data.path=one.jsonl"])
    (here / "train.jsonl").write_text(GOOD)
    (here / "dev.jsonl").write_text(GOOD)
    read_inputs("demo", "local:2", ["data.path=."])


def test_data_must_be_here_unless_it_may_be_on_the_hosts(here: Path) -> None:
    with pytest.raises(DataError, match="no such data"):
        read_inputs("demo", "local:2", ["data.path=nowhere"])
    assert (
        read_inputs("demo", "node1", ["data.path=/data/of/the/hosts"]).recipe.data.path
        == "/data/of/the/hosts"
    )


def sent() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(code()))) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_code_that_is_sent_is_what_ranks_import() -> None:
    names = set(sent())
    assert {
        "muster/__init__.py", "muster/core/recipe.py", "muster/engines/deepspeed/keys.json",
        "muster/store/events.py", "muster/worker/__main__.py", "muster/engines/ddp/runtime.py",
    } <= names  # fmt: skip
    rooms = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert rooms == {"core", "dialogues", "engines", "failures", "store", "worker", "workloads"}
    assert "muster/failures/failures.json" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_code_that_is_sent_is_this_very_code() -> None:
    root = Path(__file__).resolve().parents[2] / "src"
    for name, content in sent().items():
        own = "muster/agent/inside.py" if name == "sitecustomize.py" else name
        assert content == (root / own).read_bytes(), name


def test_the_same_code_gives_the_same_zip() -> None:
    first = code()
    code.cache_clear()
    assert code() == first
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(first))) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2020, 1, 1, 0, 0, 0)}


def test_a_deepspeed_env_that_is_not_text(here: Path) -> None:
    (here / ".deepspeed_env").write_bytes(b"A=\xff\n")
    with pytest.raises(RecipeError):
        environment(recipe())


@pytest.mark.parametrize("word", ["auto", "train"])
def test_a_folder_does_not_change_what_a_word_means(here: Path, word: str) -> None:
    (here / word).mkdir()
    assert absolute(recipe(model={"tokenizer": word})).model.tokenizer == word


def test_an_inventory_of_an_older_gather_is_refused(tmp_path: Path) -> None:
    """Its ssh_config has ports and users of hosts, which are not dropped in silence."""
    file = tmp_path / "hosts.json"
    old = {**inventory_document([Host("10.0.0.1", 2)], "ssh"), "ssh_config": "/home/me/hosts.ssh_config"}
    file.write_text(json.dumps(old))
    with pytest.raises(InventoryError, match="ssh_config") as refused:
        read_inputs("demo", str(file), [])
    assert "-F, /home/me/hosts.ssh_config" in str(refused.value.hint)


def test_localhost_is_this_machine_unless_ssh_is_asked_for() -> None:
    def launcher(*words: str, hosts: str = "localhost:2") -> tuple[str, str]:
        made = read_inputs("demo", hosts, list(words))
        return made.launcher_name, made.inventory.launcher

    assert launcher() == ("local", "local")
    assert launcher("launch.ssh_options=[-p, '2222']") == ("ssh", "ssh")
    assert read_inputs("demo", "local:2x1", ["launch.ssh_options=[-p, 2222]"]).launcher_name == "local"
    assert launcher("launch.launcher=ssh")[0] == "ssh"
    assert launcher("launch.launcher=local", hosts="localhost")[0] == "local"
    with pytest.raises(RecipeError, match="pretend hosts"):
        launcher("launch.launcher=ssh", hosts="local:2")
