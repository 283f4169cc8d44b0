"""A model with adapters is written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from muster.worker.saving import write_merged  # noqa: E402

LLAMA: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_a_compiled_model_are_merged(compiled: bool, tied: bool, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **LLAMA, tie_word_embeddings=tied)
    model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(task_type="CAUSAL_LM"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    model.eval()
    wrapped = torch.compile(model, backend="eager") if compiled else model
    write_merged(model, wrapped.state_dict(), tmp_path)
    tokens = torch.randint(0, 40, (2, 8))
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(merged(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
