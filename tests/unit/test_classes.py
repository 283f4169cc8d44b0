"""How many classes the images of a run have, which decides the size of a classifier's last layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.recipe import recipe_from
from muster.inputs.model import parameters, whole_config
from muster.inputs.read import read_recipe
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_on
from tests.images import RED, png, write_folder, write_parquet

pytestmark = pytest.mark.usefixtures("nothing_learned")

IMAGE = png(RED)


def images(data: dict[str, Any], **model: Any) -> Any:
    return recipe_from(
        {"workload": "image-classification", "data": data, "model": {"name": "vit-tiny", **model}}
    )


def head(recipe: Any) -> int:
    """The classifier's parameters, of 192 values each and one more."""
    config = whole_config(recipe) or {}
    without = (families.parameters({**config, "num_labels": 1}) or 0) - 193
    return (parameters(recipe) or 0) - without


def test_the_classifier_has_as_many_classes_as_the_data(tmp_path: Path) -> None:
    assert images({"digits": {}}).classes() == 10
    assert head(images({})) == 10 * 193  # the digits, where no source is given
    write_folder(tmp_path / "folders", {f"train/{name}/1.png": IMAGE for name in ("cat", "dog", "emu")})
    assert head(images({"path": str(tmp_path / "folders")})) == 3 * 193
    names = ["a", "b", "c", "d", "e"]
    write_parquet(tmp_path / "named" / "train.parquet", [(IMAGE, 0), (IMAGE, 1)], names=names)
    assert head(images({"path": str(tmp_path / "named")}, config={"num_labels": 9})) == 5 * 193
    write_parquet(tmp_path / "numbered" / "train.parquet", [(IMAGE, 0), (IMAGE, 1), (IMAGE, 2)])
    assert head(images({"path": str(tmp_path / "numbered")})) == 3 * 193
    assert head(images({"path": str(tmp_path / "numbered")}, config={"num_labels": 9})) == 9 * 193
    write_parquet(tmp_path / "texts" / "train.parquet", [(IMAGE, "emu"), (IMAGE, "cat"), (IMAGE, "emu")])
    assert head(images({"path": str(tmp_path / "texts")})) == 2 * 193


def test_data_that_changes_is_read_again(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train/cat/1.png": IMAGE, "train/dog/1.png": IMAGE})
    recipe = images({"path": str(tmp_path)})
    assert recipe.classes() == 2
    write_folder(tmp_path, {"train/emu/1.png": IMAGE})
    assert recipe.classes() == 3


@pytest.mark.parametrize("number", [None, 9])
@pytest.mark.parametrize("kind", ["folders", "named", "numbered", "texts", "digits"])
def test_the_ranks_find_as_many(
    kind: str, number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "PIL", "pyarrow", "datasets"):
        pytest.importorskip(module)
    import datasets

    from muster.workloads.image_classification.images import load_parts

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = ["a", "b", "c", "d", "e"] if kind == "named" else None
    labels = ["emu", "cat", "emu"] if kind == "texts" else [0, 1, 2]
    file = tmp_path / "data" / "train.parquet"
    if kind == "folders":
        write_folder(tmp_path / "data", {f"train/{name}/{i}.png": IMAGE for name in "abc" for i in (1, 2)})
    elif kind != "digits":
        write_parquet(file, [(IMAGE, label) for label in labels], names=names)
    recipe = images(
        {"digits": {}} if kind == "digits" else {"path": str(tmp_path / "data")},
        config={"num_labels": number} if number else None,
    )
    assert recipe.classes() == len(load_parts(recipe.data, 1, number).names)


@pytest.mark.parametrize(
    ("override", "noted"),
    [("data.name=cifar10", True), ("data.path=/nowhere/on/this/machine", True), ("data.digits={}", False)],
)
def test_a_plan_says_where_classes_are_not_known(override: str, noted: bool) -> None:
    """On a hub or on other hosts; the plan is of two, as Transformers takes them."""

    def notes(*more: str) -> list[str]:
        recipe = read_recipe("vit-cifar10", [override, *more])
        found = plan_on(recipe, "h200", UserFigures(), traced=False).plan.notes
        return [note for note in found if "num_labels" in note]

    assert bool(notes()) is noted
    assert all("2 are counted; model.config.num_labels=N" in note for note in notes())
    assert not notes("model.config.num_labels=10")
