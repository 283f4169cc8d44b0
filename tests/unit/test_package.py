"""What ships: the wheel has recipes, templates and the agent; keys are described."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipe import recipe_classes
from muster.core.recipes import load_recipe, shipped_recipes
from muster.core.registry import plugin_names
from muster.schemas.documents import schema_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as `pip install .` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=240)
    return zipfile.ZipFile(next(folder.glob("passmuster-*.whl")))


def test_the_wheel_is_whole(wheel: zipfile.ZipFile) -> None:
    """Everything that is not Python as well."""
    names = set(wheel.namelist())
    for folder, pattern in (
        ("recipes", "*.yaml"),
        ("suites", "*.yaml"),
        ("pipelines", "*.yaml"),
        ("profiles", "*.yaml"),
        ("reports/templates", "*"),
        ("agent", "*.py"),  # sent as text
        ("engines/deepspeed", "*.json"),
        ("core/hardware", "*.json"),
    ):
        paths = list((ROOT / "src/muster" / folder).glob(pattern))
        assert paths, folder
        for path in paths:
            assert f"muster/{folder}/{path.name}" in names
    assert "muster/py.typed" in names


def test_the_control_side_does_not_require_torch(wheel: zipfile.ZipFile) -> None:
    """torch and its company come with the extra `train` alone."""
    metadata = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    required = [
        line.removeprefix("Requires-Dist: ")
        for line in wheel.read(metadata).decode().splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert required
    for package in ("torch", "transformers", "deepspeed", "accelerate", "datasets", "peft"):
        assert not any(line.startswith(package) for line in required)


@pytest.mark.parametrize("what", ["recipe", "suite", "pipeline", "profile"])
def test_every_key_that_users_write_is_described(what: str) -> None:
    """In the schema, where editors show it: what the key means."""
    silent = [key for key, words in _keys(schema_of(what), what) if len(words.split()) < 2]
    assert not silent


def _keys(schema: Any, at: str) -> Iterator[tuple[str, str]]:
    """(path, description) of each key in a JSON Schema."""
    for name, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if name == "properties":
            for key, value in inner.items():
                yield f"{at}.{key}", value.get("description", "")
                yield from _keys(value, f"{at}.{key}")
        elif isinstance(inner, dict | list) and name != "default":
            yield from _keys(inner, f"{at}.{name}" if isinstance(name, str) else at)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_valid(name: str) -> None:
    """Each loads, with what it inherits."""
    recipe = load_recipe(name)
    assert recipe.workload.replace("-", "_") in plugin_names("muster.worker.workloads")
    assert type(recipe) is recipe_classes()[recipe.workload]


def test_published_settings_of_the_t5_recipes() -> None:
    """As published: fp32, batch 32, AdamW 5e-5 linear, 3 epochs, both sides padded to 96."""
    padded = ["precision=fp32", "data.padding=fixed"]
    for name, overrides in (
        ("text2sql-t5-small-as-published", []),
        ("text2sql-t5-large-as-published", []),
        ("text2sql-t5-large-zero1", padded),
        ("text2sql-t5-large-zero3-offload", padded),
    ):
        recipe = load_recipe(name, overrides)
        assert (recipe.precision, recipe.batch.micro, recipe.train.epochs) == ("fp32", 32, 3)
        assert (recipe.train.learning_rate, recipe.train.schedule, recipe.train.warmup) == (5e-5, "linear", 0)
        assert (recipe.data.max_source, recipe.data.max_target, recipe.data.padding) == (96, 96, "fixed")  # type: ignore[attr-defined]
        assert recipe.model.name == ("t5-large" if "large" in name else "t5-small")
    assert load_recipe("text2sql-t5-large-zero1").engine.zero == 1
    offloaded = load_recipe("text2sql-t5-large-zero3-offload").engine
    assert (offloaded.zero, offloaded.offload) == (3, "optimizer+param")


def test_no_text_is_made_and_thrown_away() -> None:
    """An f-string that is a statement by itself is the end of a text that was cut off by mistake."""
    lost = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("src", "benchmarks", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.JoinedStr)
    ]
    assert lost == []
