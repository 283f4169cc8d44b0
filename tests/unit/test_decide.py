"""What the recipe leaves open, decided from what the hosts are; and what is refused, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.core import families
from muster.core.errors import RecipeError, UsageError
from muster.core.loss_parts import part_rows
from muster.core.recipe import recipe_from
from muster.inputs.model import parameters
from muster.runs.requirements import check_disk, disk_needed


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("t5-small", 60_506_624),
        ("google-t5/t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-3b", 2_851_598_336),
    ],
)
def test_parameters_of_the_published_sizes(name: str, count: int) -> None:
    assert parameters(recipe_from({"model": {"name": name}})) == count


def test_parameters_of_a_gated_decoder_of_another_depth() -> None:
    """Whatever it says of its embeddings: Transformers ties them."""
    config = {
        "model_type": "t5", "d_model": 4, "d_kv": 3, "d_ff": 5, "num_heads": 2, "num_layers": 1,
        "num_decoder_layers": 2, "vocab_size": 7, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False, "relative_attention_num_buckets": 8,
    }  # fmt: skip
    attention, feed_forward, norm = 4 * 4 * 6, 3 * 4 * 5, 4
    encoder = (attention + norm) + (feed_forward + norm) + norm
    decoder = 2 * (2 * (attention + norm) + (feed_forward + norm)) + norm
    assert families.parameters(config) == encoder + decoder + 2 * (8 * 2) + 7 * 4


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
