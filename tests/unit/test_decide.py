"""What the recipe leaves open, decided from what the hosts are; and what is refused, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.core.errors import RecipeError, UsageError
from muster.core.loss_parts import part_rows
from muster.core.recipe import recipe_from
from muster.inputs.model import parameters
from muster.runs.requirements import check_disk, disk_needed


def test_parameters_come_from_a_local_folder(tmp_path: Path) -> None:
    recipe = recipe_from({"model": {"name": str(tmp_path)}})
    assert parameters(recipe) is None
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "t5", "vocab_size": 32128, "d_model": 512})
    )
    assert parameters(recipe) == 60_506_624
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart"}))
    assert parameters(recipe) is None
    for text in ("{", "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecipeError) as caught:
            parameters(recipe)
        assert caught.value.where == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("checkpoint", "need"),
    [({}, 4), ({"every": 10, "keep": 1}, 4 + 2 * 16), ({"every": 10, "keep": 3}, 4 + 4 * 16)],
)
def test_the_disk_that_a_run_needs(checkpoint: dict[str, int], need: int) -> None:
    recipe = recipe_from({"model": {"name": "t5-small"}, "checkpoint": checkpoint})
    assert disk_needed(1, recipe) == need
    bytes_needed = need * 60_506_624
    about = {"a": {"disk_free": None, "base": "/x"}, "b": {"disk_free": bytes_needed, "base": "/y"}}
    check_disk(recipe, about)
    about["b"]["disk_free"] = bytes_needed - 1
    with pytest.raises(
        UsageError, match="free where the run is kept, and checkpoints and model need about"
    ) as caught:
        check_disk(recipe, about)
    assert (caught.value.host, caught.value.where) == ("b", "/y")
    assert "checkpoint.keep" in (caught.value.hint or "")
    check_disk(recipe.model_copy(update={"force": True}), about)


def test_rows_of_a_part_fill_the_device_and_spare_the_weights_gradient() -> None:
    """On a GPU 2^27 logits, and at least half of the width; on a CPU 2^24."""
    assert part_rows("cuda", 50257, 768) == 2**27 // 50257
    assert part_rows("cuda", 128256, 8192) == 4096
    assert part_rows("cpu", 50257, 768) == 384
