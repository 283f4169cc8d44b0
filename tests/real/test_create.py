"""Making models in shards: the same first weights as whole, and no rank that holds all of a large one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs_torch, ranks

# Their memory is measured, so they are no forks.
pytestmark = [pytest.mark.real, pytest.mark.real_start, pytest.mark.timeout(600)]

SMALL: dict[str, dict[str, Any]] = {
    "opt": {
        "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
        "word_embed_proj_dim": 32, "vocab_size": 400,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 400},
    "llama": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 400,
    },
    "t5": {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 400},
    "vit": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 8,
    },
}  # fmt: skip
# 101 million parameters: 405 MB in fp32. Each rank's half of it, and less than a quarter more to work with.
LARGE = {
    "model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 8, "word_embed_proj_dim": 1024, "vocab_size": 400,
    "max_position_embeddings": 64, "dropout": 0.0,
}  # fmt: skip
WHOLE = 405_000_000
LIMIT = 300_000_000


def make(folder: Path, engine: str, zero: int, parts: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What each of two ranks says of each part."""
    needs_torch()
    whole = {"limit": None, "step": False}
    asked = {"engine": engine, "zero": zero, "parts": [{**whole, **each} for each in parts]}
    (folder / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        ranks(2, "tests.real.creating", str(folder)),
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def zero3(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Each small model whole and in shards; then the large one both ways with too little memory for it."""
    parts = [
        {"create": create, "config": {"model_type": kind, **fields}}
        for kind, fields in SMALL.items()
        for create in ("whole", "sharded")
    ]
    parts += [
        {"create": "whole", "config": LARGE, "limit": LIMIT},
        {"create": "sharded", "config": LARGE, "limit": LIMIT, "step": True},
    ]
    return make(tmp_path_factory.mktemp("zero3"), "deepspeed", 3, parts)


@pytest.mark.parametrize("kind", SMALL)
def test_the_first_weights_are_the_same_in_shards_as_whole(
    kind: str, zero3: list[list[dict[str, Any]]]
) -> None:
    at = 2 * list(SMALL).index(kind)
    for rank in zero3:
        whole, sharded = rank[at], rank[at + 1]
        assert "error" not in whole and "error" not in sharded
        assert len(whole["sums"]) > 10
        assert sum(whole["sums"].values()) > 100  # something was drawn
        assert sharded["sums"] == whole["sums"]
        assert sharded["next"] == whole["next"]  # and every rank's random state goes on from one place
    assert zero3[0][at]["sums"] == zero3[1][at]["sums"]


def test_a_rank_without_memory_for_the_whole_model_makes_its_shards_and_trains(
    zero3: list[list[dict[str, Any]]],
) -> None:
    for rank in zero3:
        whole, sharded = rank[-2], rank[-1]
        assert "can't allocate memory" in whole["error"]  # the limit is a limit
        assert "error" not in sharded
        assert WHOLE / 2 < sharded["added"] < 0.75 * WHOLE
        assert 5 < sharded["loss"] < 8  # the logarithm of 400 entries is 6.0


def test_under_fsdp_the_first_rank_alone_makes_the_model(tmp_path: Path) -> None:
    config = {**LARGE, "num_hidden_layers": 3}
    size = 4 * 38_700_000
    first, second = make(tmp_path, "fsdp", 0, [{"create": "sharded", "config": config, "step": True}])
    assert first[0]["added"] > 0.9 * size
    assert second[0]["added"] < 0.1 * size  # addresses, and nothing in them
    assert first[0]["loss"] == second[0]["loss"]
    assert 5 < first[0]["loss"] < 8
