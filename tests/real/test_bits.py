"""Weights in few bits with real bitsandbytes, where it is installed: their bytes, operations, adapters, and
what is saved. On a CPU; Transformers' trainer takes such models on GPUs alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from muster.core import bits
from muster.core.recipe import recipe_from

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def packed_bytes(weight: Any) -> int:
    """A packed weight's, with its scales."""
    held = weight.numel() * weight.element_size()
    state = getattr(weight, "quant_state", None)
    if state is None:
        return int(held + 4 * weight.SCB.numel())
    held += state.absmax.numel() * state.absmax.element_size()
    return int(held + (4 * state.state2.absmax.numel() if state.nested else 0))


@pytest.mark.parametrize("kind", get_args(bits.Bits))
def test_a_quantised_model(kind: bits.Bits, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from muster.worker.instruments import meta
    from muster.worker.models import add_lora, load_quantized
    from muster.worker.saving import save_merged

    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2, "num_attention_heads": 4}
    whole = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=1000, **shape))
    folder = str(tmp_path / "model")
    whole.save_pretrained(folder)
    recipe = recipe_from(
        {
            "workload": "causal-lm",
            "model": {"name": folder, "quantized": kind},
            "lora": {"rank": 4, "targets": "all-linear"},
        }
    )
    context: Any = SimpleNamespace(recipe=recipe, precision="fp32", local_rank=0, device="cpu")
    model = load_quantized(context, AutoModelForCausalLM, AutoConfig.from_pretrained(folder))
    plain = dict(whole.named_parameters())
    packed = {name: each for name, each in model.named_parameters() if not each.is_floating_point()}
    assert len(packed) == 2 * 7 and not any("embed" in name or "lm_head" in name for name in packed)
    for name, each in packed.items():
        assert packed_bytes(each) == bits.weight_bytes(kind, tuple(plain[name].shape))
    model = add_lora(context, model, "CAUSAL_LM")
    tokens = torch.randint(0, 1000, (2, 16))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 3e-3)
    losses = []
    for _ in range(5):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.2
    now = float(model.eval()(input_ids=tokens, labels=tokens).loss)

    batch = {name: torch.zeros(2, 16, dtype=torch.long, device="meta") for name in ("input_ids", "labels")}
    model.train()
    other = add_lora(context, AutoModelForCausalLM.from_pretrained(folder), "CAUSAL_LM")
    assert meta.count(meta.double(model), batch) == meta.count(meta.double(other), batch)

    trainer = SimpleNamespace(
        model=model,
        save_model=model.save_pretrained,
        accelerator=SimpleNamespace(get_state_dict=lambda model: {}),
        model_wrapped=model,
        processing_class=None,
    )
    save_merged(trainer, tmp_path / "out", main=True)
    merged = AutoModelForCausalLM.from_pretrained(str(tmp_path / "out"))
    assert not hasattr(merged.config, "quantization_config")
    again = float(merged(input_ids=tokens, labels=tokens).loss)
    assert again == pytest.approx(now, abs=0.2)  # of 2: it holds beside whole weights, which differ


@pytest.mark.parametrize("numel", [100, 4095, 4096, 5000, 70_001])
def test_moments_in_eight_bits(numel: int) -> None:
    optim = pytest.importorskip("bitsandbytes").optim
    import torch

    parameter = torch.nn.Parameter(torch.randn(numel))
    optimizer = optim.AdamW([parameter], lr=1e-3, optim_bits=8)
    optimizer.init_state(optimizer.param_groups[0], parameter, 0, 0)
    kept = {name: each for name, each in optimizer.state[parameter].items() if isinstance(each, torch.Tensor)}
    held = sum(each.numel() * each.element_size() for name, each in kept.items() if "qmap" not in name)
    assert held == bits.moment_bytes(numel)
