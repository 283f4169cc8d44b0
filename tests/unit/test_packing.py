"""Packed rows: a sample's loss and gradient are those of the sample by itself, under any attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.core.errors import RecipeError  # noqa: E402
from muster.dialogues.tokens import LearnedCollator, Rows, apart, count_learned, packed  # noqa: E402
from muster.worker.loss import TokenLoss  # noqa: E402
from muster.workloads.sft.spec import BY_MASK, BY_POSITIONS, check_packing  # noqa: E402

CLASSES, LENGTHS, ROOM = 60, [7, 9, 1, 4, 11], 18
GENERAL: dict[str, Any] = {
    "vocab_size": CLASSES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
OWN: dict[str, dict[str, Any]] = {
    "gpt2": GPT, "gptj": {**GPT, "rotary_dim": 8}, "codegen": {**GPT, "rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4,
                "window_size": 4},
    "mistral": {"sliding_window": 5}, "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 5},
    "gemma3_text": {"head_dim": 8, "sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5,
              "layer_types": ["full_attention", "sliding_attention"]},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}  # fmt: skip


def model_of(kind: str, attention: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**GENERAL, **OWN.get(kind, {})})
    try:
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    except ValueError:
        pytest.skip(f"{kind} has no attention {attention}")


def rows() -> Rows:
    torch.manual_seed(1)
    made = []
    for length in LENGTHS:
        tokens = torch.randint(3, CLASSES, (length,)).tolist()
        made.append({"input_ids": tokens, "labels": [-100, *tokens[1:]]})
    return Rows(made, LENGTHS)


def summed(model: Any, batch: Mapping[str, Any], masked: bool) -> Any:
    given = dict(batch)
    labels = given.pop("labels")
    if "position_ids" in given:
        given["attention_mask"] = apart(given["position_ids"]) if masked else None
    loss = TokenLoss(moved=True)
    return loss(model(**given), labels, num_items_in_batch=torch.tensor(1))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", sorted(BY_POSITIONS | BY_MASK))
def test_packed_is_apart(kind: str, attention: str) -> None:
    model = model_of(kind, attention)
    if kind in BY_MASK and attention != "sdpa":
        with pytest.raises(RecipeError) as error:
            check_packing(kind, attention)
        assert error.value.where == "data.packing"
        return
    check_packing(kind, attention)
    single = rows()
    together = packed(single, ROOM)
    assert len(together) == 2 and sorted(size for row in together.rows for size in row["sizes"]) == sorted(
        LENGTHS
    )
    found = []
    for source, fixed in ((single, None), (together, ROOM)):
        model.zero_grad(set_to_none=True)
        collate = LearnedCollator(0, fixed)
        total = sum(summed(model, collate([row]), kind in BY_MASK) for row in source.rows)
        total.backward()
        found.append((total.detach(), {name: each.grad for name, each in model.named_parameters()}))
    (loss, gradients), (other, others) = found
    torch.testing.assert_close(other, loss, rtol=1e-5, atol=0)
    for name, gradient in gradients.items():
        if gradient is not None:
            torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=2e-5)
    batch = LearnedCollator(0, ROOM)(together.rows)
    counts = count_learned(batch)
    assert (counts.samples, int(counts.tokens), counts.padded_tokens) == (2, sum(LENGTHS), 2 * ROOM)


@pytest.mark.parametrize("kind", ["bloom", "falcon", "mpt"])
def test_models_that_let_samples_see_each_other_are_refused(kind: str) -> None:
    with pytest.raises(RecipeError) as error:
        check_packing(kind, None)
    assert error.value.where == "data.packing" and error.value.hint == "data.packing=false"


def test_the_first_token_of_a_row_is_predicted_by_none() -> None:
    """Transformers counts the labels by which the sum of losses is divided; of GPT-2's it counts all."""
    row = {"input_ids": [5, 6, 7], "labels": [5, 6, 7]}
    for pads in (False, True):
        batch = LearnedCollator(0, 5, pads=pads)([row, row])
        assert batch["labels"].tolist() == [[-100, 6, 7, *([0, 0] if pads else [-100, -100])]] * 2
