"""What every workload answers before its ranks start, whichever there are: those of tomorrow too.

Its ranks' half is held to its promises by tests/real/test_contracts_worker.py.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.agent.host import check_command
from muster.agent.talk import Problem
from muster.core.data import Data
from muster.core.errors import DataError, RecipeError
from muster.core.job import Placement
from muster.core.recipe import Recipe, recipe_class, recipe_classes, recipe_from
from muster.core.recipes import lay_over, load_recipe, merge, parse_override, shipped_recipes, validate
from muster.core.registry import WORKLOADS, load_part, own_plugins, plugin_names
from muster.core.workload import Lengths, Spot, Workload
from muster.inputs.model import whole_config
from muster.inputs.read import absolute, check_data, read_inputs
from muster.planner.orders import greeting
from muster.planner.plan import survey_of
from tests.images import write_folder
from tests.unit.test_contracts import HEAVY

NAMES = sorted(name.replace("_", "-") for name in own_plugins(WORKLOADS))


def shipped(workload: str, *overrides: str) -> Recipe:
    """A recipe of the workload that comes with Muster, or of a command, which is the user's."""
    if recipe_class(workload).foreign:
        data = {"workload": workload, "command": ["true"]}
        return absolute(validate(lay_over(data, [parse_override(each) for each in overrides]), where="here"))
    name = next(name for name in shipped_recipes() if load_recipe(name).workload == workload)
    return absolute(load_recipe(name, overrides))


def data_class(workload: str) -> type[Data]:
    kind = recipe_class(workload).model_fields["data"].annotation
    assert isinstance(kind, type) and issubclass(kind, Data)
    return kind


def test_no_spec_needs_torch() -> None:
    code = (
        "import sys; from muster.core.recipe import recipe_classes;"
        "print(*recipe_classes()); print(*{name.partition('.')[0] for name in sys.modules})"
    )
    names, modules = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert set(NAMES) <= set(names.split())
    assert not HEAVY & set(modules.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_is_a_folder_with_a_spec_and_a_ranks_half(name: str) -> None:
    spec = load_part(WORKLOADS, name, "spec")
    assert spec is not None and spec.RECIPE is recipe_class(name)
    assert issubclass(spec.RECIPE, Recipe) and inspect.getdoc(spec.RECIPE)
    assert spec.RECIPE().workload == name
    folder = Path(inspect.getfile(spec)).parent
    assert (folder / "train.py").is_file() != spec.RECIPE.foreign  # whose ranks run the user's program
    assert (folder / "model.py").is_file() == (spec.RECIPE.traced is True)
    asked = {key for key in vars(Workload) if not key.startswith("_")}
    for key in asked & set(vars(spec.RECIPE)):  # with the parameters of the question
        question, answer = getattr(Workload, key), getattr(spec.RECIPE, key)
        if inspect.isfunction(question):
            assert list(inspect.signature(answer).parameters) == list(inspect.signature(question).parameters)
            assert inspect.getdoc(answer)


@pytest.mark.parametrize("name", NAMES)
def test_its_data_have_sources_of_which_one_is_given(name: str) -> None:
    kind = data_class(name)
    assert set(Data.exclusive) <= set(kind.exclusive) <= set(kind.model_fields)
    assert kind.embedded is None or kind.embedded in kind.exclusive
    if kind.embedded:
        given, built_in = {"data": {"path": "some"}}, {"data": {kind.embedded: {}}}
        assert lay_over(given, [built_in]) == built_in  # a later layer's takes the place of an earlier one's
        assert lay_over(built_in, [given]) == given
        for other in NAMES:  # whosever it is
            source = {"workload": other, "data": {data_class(other).embedded or "name": {}}}
            assert lay_over(source, [{"workload": name, **built_in}]) == {"workload": name, **built_in}


@pytest.mark.parametrize("name", NAMES)
def test_its_recipe_stays_the_same_as_data(name: str) -> None:
    recipe = shipped(name)
    assert type(recipe) is recipe_class(name)
    assert recipe_from(recipe.as_dict()) == recipe
    assert recipe.trains or not recipe.families


@pytest.mark.parametrize("name", NAMES)
def test_a_short_job_and_a_warm_up_are_recipes_too(name: str) -> None:
    recipe = shipped(name)
    assert recipe.foreign or (recipe.short and shipped(name, *recipe.short) != recipe)
    changed = merge(recipe.as_dict(), {"data": recipe.data.short(32)}, type(recipe))
    short = validate(changed, where="warm-up").survey(None).samples
    most = 32 * getattr(recipe, "per_prompt", 1)
    assert short is None or recipe.survey(None).samples is None or short <= most or not recipe.data.short(32)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_plan_asks(name: str) -> None:
    recipe = shipped(name)
    if not recipe.trains:
        return
    assert recipe.usual_type()
    config = whole_config(recipe) or {}
    lengths = recipe.lengths(config)
    assert isinstance(lengths, Lengths) and lengths.tokens > 0
    assert not recipe.packed or lengths.target == 0
    assert all(field in config for field in recipe.config_keys)
    assert all(isinstance(note, str) for note in recipe.assumed(config))
    half = replace(lengths, tokens=lengths.tokens // 2, target=lengths.target // 2)
    fixed = recipe.with_lengths(half)
    assert not fixed.padding_varies
    if recipe.padding_varies and not recipe.drawing():
        shorter = fixed.lengths(config)
        assert shorter is not None and 0 < shorter.tokens < lengths.tokens


@pytest.mark.parametrize("name", NAMES)
def test_bad_data_is_told_before_the_start(name: str, tmp_path: Path) -> None:
    if not recipe_class(name).trains:
        return
    write_folder(tmp_path, {"nothing.bin": b"\0"})
    recipe = shipped(name, f"data.path={tmp_path}")
    with pytest.raises(DataError):
        check_data(recipe, here=True)
    with pytest.raises(DataError):
        recipe.describe_data(tmp_path)
    check_data(shipped(name), here=True)  # its built-in data, or those of a hub


# --- third parties ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["ranks_alone.py", "ranks_alone/__init__.py"])
def test_one_that_ranks_alone_know_has_what_all_recipes_have(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single module, which may need torch: the control side does not import it."""
    about: dict[str, Any] = {
        file: "raise RuntimeError('this runs in ranks')\n",
        "ranks_alone-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ranks-alone\nVersion: 1.0\n",
        "ranks_alone-1.0.dist-info/entry_points.txt": f"[{WORKLOADS}]\nranks-alone = ranks_alone\n",
    }
    write_folder(tmp_path, {name: text.encode() for name, text in about.items()})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugin_names(WORKLOADS)["ranks_alone"] == "ranks_alone"
    assert recipe_class("ranks-alone") is recipe_classes()["ranks-alone"] is Recipe
    recipe = recipe_from({"workload": "ranks-alone", "data": {"options": {"depth": 3}}})
    assert recipe.data.options == {"depth": 3}
    assert recipe.lengths({}) is None and recipe.survey(None).samples is None and not recipe.families
    check_data(recipe, here=True)


@pytest.mark.parametrize(
    "command",
    [
        "python -c print(1)",
        "torchrun --nnodes=2 --node_rank=0 --master_addr=a train.py --lr 1",
        "./train.sh",
    ],
)
def test_a_launcher_that_means_more_is_refused_before_the_start(command: str, tmp_path: Path) -> None:
    recipe = recipe_from({"workload": "command", "command": command.split()})
    with pytest.raises(RecipeError) as error:
        recipe.check_data(None, {})
    assert error.value.where == "command" and error.value.hint
    if "train.py" in command:
        assert "-- train.py --lr 1" in error.value.hint
    recipe_from({"workload": "command", "command": command.split(), "run": {"start": "host"}}).check_data(
        None, {}
    )


@pytest.mark.parametrize(
    ("start", "command", "script"),
    [
        ("torchrun", "train.py --data x.py", "train.py"),
        ("torchrun", "torchrun --nproc_per_node 8 --max-restarts=0 train.py", "train.py"),
        ("torchrun", "-m pkg.train conf.py", None),
        ("torchrun", "--no-python ./train conf.py", None),
        ("torchrun", "./train conf.py", "./train"),
        ("rank", "python3 -u train.py --data x.py", "train.py"),
        ("rank", "python -W ignore train.py", "train.py"),
        ("rank", "python -c pass conf.py", None),
        ("rank", "./train conf.py", None),
        ("host", "bash train.sh conf.py", None),
    ],
)
def test_the_script_is_looked_for_before_the_start(start: str, command: str, script: str | None) -> None:
    given = {"workload": "command", "command": command.split(), "run": {"start": start}}
    assert recipe_from(given).before_start()["script"] == script


@pytest.mark.parametrize(
    ("start", "command", "module"),
    [
        ("rank", "python -m pkg.train x", "pkg.train"), ("host", "/opt/bin/python3 -u -m pkg", "pkg"),
        ("torchrun", "python -m pkg.train", "pkg.train"), ("torchrun", "-m pkg", "pkg"),
        ("rank", "python -I -m pkg", None), ("rank", "python -c pass -m pkg", None),
        ("rank", "bash -m pkg", None), ("rank", "python train.py -m pkg", None),
    ],
)  # fmt: skip
def test_a_module_is_looked_for_before_the_start(start: str, command: str, module: str | None) -> None:
    given = {"workload": "command", "command": command.split(), "run": {"start": start}}
    assert recipe_from(given).before_start().get("module") == module


@pytest.mark.parametrize(
    ("module", "there"),
    [
        ("json.tool", True), ("json.nosuch", False), ("nosuch", False), ("own.part", True), ("own.no", False),
        ("json.tool.deep", False), ("space.inner", True), ("sys", True),
    ],
)  # fmt: skip
def test_a_module_is_found_as_python_finds_it(tmp_path: Path, module: str, there: bool) -> None:
    for name in ("own/__init__.py", "own/part.py", "space/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit(3)\n")  # nothing is imported
    spec = {"cwd": str(tmp_path), "module": module}
    with nullcontext() if there else pytest.raises(Problem, match=f"no module {module}"):
        check_command(spec, sys.executable)
    with nullcontext() if there else pytest.raises(Problem, match=f"no module {module}"):
        check_command({**spec, "program": sys.executable}, "true")  # the command's own Python


@pytest.mark.parametrize(
    ("name", "there"),
    [("PATH", False), ("PYTHONPATH", False), ("PYTHONHOME", False), ("PYTHONUNBUFFERED", True)],
)
def test_a_module_that_ranks_look_for_elsewhere_is_not_looked_for(
    tmp_path: Path, name: str, there: bool
) -> None:
    """Their environment can name places that their agent does not see."""
    recipe = recipe_from({"workload": "command", "command": ["python", "-m", "own.train"]})
    about: dict[str, Any] = {"run_dir": tmp_path, "nonce": "n", "job_id": "j", "attempt": 1}
    told = greeting(recipe, (Placement("a", "a", 1, 0),), env={name: "1"}, **about)
    assert told["a"]["module"] == ("own.train" if there else None)


@pytest.mark.parametrize("option", ["--nproc-per-node=2", "--nproc_per_node 2", "--nproc-per-node=gpu"])
def test_processes_of_a_host_are_its_slots(option: str) -> None:
    recipe = recipe_from({"workload": "command", "command": ["torchrun", *option.split(), "train.py"]})
    spot = Spot(python="python3", node=0, nodes=1, slots=2, address="a", port=1)
    assert recipe.program(spot)
    if option.endswith("2"):
        with pytest.raises(RecipeError, match="2 processes"):
            recipe.program(replace(spot, slots=1))


@pytest.mark.parametrize("workload", ["seq2seq", "text2sql", "sft", "reward", "dpo", "grpo", "rloo", "ppo"])
def test_rows_that_cannot_be_used_are_refused_or_counted_alike(workload: str, tmp_path: Path) -> None:
    """An empty row, one that lacks a column, and one whose answer or prompt is blank."""
    file = tmp_path / "a.csv"
    rows = [f"what is {n}?,{n},no {n}" for n in range(8)]
    bad = [",,", "", "only this", " , ,x"]
    file.write_text("\n".join(["question,sql,rejected", *rows[:4], *bad, *rows[4:]]))
    data = {"path": str(file)}
    reward = {"reward": {"function": "math:floor"}} if workload in ("grpo", "rloo", "ppo") else {}
    given = {"workload": workload, "data": data, **reward}
    with pytest.raises(DataError) as caught:
        check_data(recipe_from(given), here=True)
    assert caught.value.where == f"{file}:6" and "data.bad=skip" in (caught.value.hint or "")
    recipe = recipe_from({**given, "data": {**data, "bad": "skip"}})
    check_data(recipe, here=True)
    recipe.describe_data(file)
    found = recipe.survey(None)
    assert found.samples and found.samples % 7 == 0  # eight, one of which is held out
    assert [note for note in found.notes if f"3; the first: {file}:6" in note]
    file.write_text("question,sql,rejected\n,,\n")
    with pytest.raises(DataError, match="no samples"):
        check_data(recipe, here=True)


@pytest.mark.parametrize("workload", ["seq2seq", "sft", "dpo", "grpo"])
def test_a_start_reads_the_data_once(workload: str, tmp_path: Path) -> None:
    """What the check has read is what the plan says: the file may be gone by then."""
    file = tmp_path / "a.csv"
    rows = [f"what is {n}?,{n},no {n},x" for n in range(40)]
    file.write_text("\n".join(["question,answer,rejected,more", *rows]))
    inputs = read_inputs(workload, "local:1", [f"data.path={file}", *REWARD.get(workload, [])])
    twice = inputs.recipe.survey(whole_config(inputs.recipe))
    file.unlink()
    once = survey_of(inputs)
    assert once == twice and once.samples and any("held out" in note for note in once.notes)


REWARD = {"grpo": ["reward.function=math:floor"]}
