"""Causal attention without a mask: the same numbers, and what lets PyTorch choose its flash kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.worker.attention import CAUSAL, UNMASKED, is_unmasked, unmask  # noqa: E402
from muster.workloads.sft.spec import BY_MASK, BY_POSITIONS  # noqa: E402

LENGTH, CLASSES = 12, 60
GENERAL: dict[str, Any] = {
    "vocab_size": CLASSES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "mistral": {"sliding_window": None},
    "gemma": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": 64},
    "mixtral": {"num_local_experts": 2, "sliding_window": None},
    "qwen2_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "starcoder2": {"sliding_window": None},
}  # fmt: skip
# What Transformers gives no SDPA by itself.
WITHOUT = {"codegen", "gemma2", "gpt_neo", "gptj"}


def model_of(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**GENERAL, **OWN.get(kind, {}), **more})
    return AutoModelForCausalLM.from_config(config).eval()


def attentions(model: Any, inputs: Any) -> list[tuple[Any, Any]]:
    """(mask, is_causal) of each attention in the graph that torch.compile makes."""
    seen = []

    def backend(graph: Any, example: Any) -> Any:
        for node in graph.graph.nodes:
            if "scaled_dot_product_attention" in str(node.target):
                seen.append((node.kwargs.get("attn_mask"), node.kwargs.get("is_causal")))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(input_ids=inputs)
    return seen


@pytest.mark.parametrize(
    ("kind", "more"), [*((kind, {}) for kind in sorted(CAUSAL)), ("mistral", {"sliding_window": LENGTH + 1})]
)
def test_a_compiled_model_attends_causally_without_a_mask(
    kind: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Also with a window that no row fills. What is saved says nothing of it."""
    from transformers import AutoModelForCausalLM

    tokens = torch.randint(3, CLASSES, (3, LENGTH))
    model = model_of(kind, **more)
    with torch.no_grad():
        masked = model(input_ids=tokens).logits
        assert unmask(model, LENGTH)
        torch.testing.assert_close(model(input_ids=tokens).logits, masked, rtol=1e-5, atol=1e-6)
        changed = tokens.clone()
        changed[:, 7:] = 3  # what comes later changes nothing before it
        before = model(input_ids=changed).logits[:, :7]
        torch.testing.assert_close(before, masked[:, :7], rtol=1e-5, atol=1e-6)
        assert attentions(model, tokens) == [(None, True)] * 2
    model.save_pretrained(tmp_path)
    assert UNMASKED not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", sorted(CAUSAL))
def test_padding_at_the_end_needs_no_mask(kind: str) -> None:
    """Logits and gradients of rows of unlike lengths are those of the mask, where there is a token."""
    tokens = torch.randint(3, CLASSES, (3, LENGTH))
    there = torch.ones_like(tokens)
    there[0, 5:] = there[1, 9:] = 0
    tokens = tokens * there
    found = []
    for unmasked in (False, True):
        model = model_of(kind)
        if unmasked:
            unmask(model, LENGTH)
        logits = model(input_ids=tokens, attention_mask=None if unmasked else there).logits[there.bool()]
        logits.logsumexp(-1).sum().backward()
        found.append((logits.detach(), model.get_input_embeddings().weight.grad))
    for masked, other in zip(*found, strict=True):
        torch.testing.assert_close(other, masked, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "more", "longest"),
    [
        ("mistral", {"sliding_window": 8}, 8),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8,
                   "use_sliding_window": True}, 20),
        ("llama", {"attn_implementation": "eager"}, 12),
        ("gemma3_text", {"use_bidirectional_attention": True}, 12), ("llama", {"is_causal": False}, 12),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}, 12),
    ],
)  # fmt: skip
def test_models_that_need_their_mask_keep_it(kind: str, more: dict[str, Any], longest: int) -> None:
    model = model_of(kind, **more)
    before = model.config._attn_implementation
    assert not unmask(model, longest) and not is_unmasked(model)
    assert model.config._attn_implementation == before


def test_every_decoder_that_muster_names_attends_so() -> None:
    """By its size, or as one whose samples can be packed."""
    from muster.core import families

    sized = {str((families.size(name) or {})["model_type"]) for name in families.sizes()}
    encoders = {kind for family in (families.t5, families.vit) for kind in family.MODEL_TYPES}
    assert (sized | BY_POSITIONS | BY_MASK) - encoders - CAUSAL == WITHOUT
    gptj = model_of("gptj", n_embd=32, n_layer=1, rotary_dim=4)
    assert gptj.config._attn_implementation == "eager"


@pytest.mark.parametrize("cap", [0.5, None])
def test_scores_that_are_capped_are_capped(cap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers 5.17 gives Gemma 2 an SDPA that leaves the cap out."""
    from transformers import Gemma2PreTrainedModel

    from muster.worker.models import with_caps

    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    made = model_of("gemma2", head_dim=8, attn_logit_softcapping=cap, initializer_range=1.0)
    assert made.config._attn_implementation == "sdpa"
    tokens = torch.randint(0, CLASSES, (2, LENGTH))
    capped = with_caps(made)(tokens).logits
    made.set_attn_implementation("eager")
    assert torch.allclose(capped, made(tokens).logits, atol=1e-5)
