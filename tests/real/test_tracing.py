"""Traces against what real models of real tensors hold and allocate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.trace import Trace, TraceRequest
from muster.inputs.model import whole_config
from muster.inputs.read import read_recipe
from muster.planner.tracing import request_of
from tests.real.traced import TINY, TOKENS, VOCABULARY, Real, asked, traced
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CASES = [(kind, checkpointing) for kind in TINY for checkpointing in (False, True)]


@pytest.mark.parametrize(("kind", "checkpointing"), CASES)
def test_what_autograd_holds(kind: str, checkpointing: bool) -> None:
    """Within 2 % at micro-batches that were not traced; the allocator agrees, also on the peaks."""
    request = asked(kind, checkpointing=checkpointing)
    found, real = traced(request), Real(request)
    for samples in (1, 3, 8):
        held, _ = real.saved(samples)
        at = found.at(samples)
        if checkpointing:  # which holds masks and the like without autograd's knowledge
            assert held <= at.saved <= 1.06 * held
        else:
            assert at.saved == pytest.approx(held, rel=0.02)
    check_allocated(found, real, 8)


def test_a_t5_that_is_loaded_has_an_output_of_its_own(tmp_path: Path) -> None:
    """As T5 v1.1 and mT5 have it in their files; one that is drawn has none, whatever its fields say."""
    needs_torch()
    import torch
    import transformers

    config = transformers.T5Config(**TINY["t5"])
    made = transformers.T5ForConditionalGeneration(config)
    made.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, config.d_model))
    made.config.tie_word_embeddings = False
    made.save_pretrained(tmp_path)
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path)
    untied = transformers.T5Config(**TINY["t5"], tie_word_embeddings=False)
    drawn = transformers.T5ForConditionalGeneration(untied)
    for init, real in (("pretrained", loaded), ("random", drawn)):
        recipe = read_recipe("seq2seq", [f"model.name={tmp_path}", f"model.init={init}", "model.config=null"])
        whole = whole_config(recipe)
        assert whole is not None
        request = request_of(recipe, whole, precision="fp32", device="cpu", ranks=1)
        assert request is not None
        count = sum(each.numel() for each in real.parameters())
        assert families.parameters(whole) == count
        parameters = traced(request).parameters
        assert sum(each.numel for each in parameters) == count
        adapted = traced(replace(request, lora={"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": None}))
        assert all("lora" in each.name for each in adapted.parameters if each.trained)


@pytest.mark.parametrize("workload", ["reward", "dpo", "ppo"])
def test_what_workloads_with_a_loss_of_their_own_hold(workload: str) -> None:
    request = replace(asked("llama"), workload=workload)
    found, real = traced(request), Real(request)
    for samples in (3, 8):
        held, _ = real.saved(samples)
        assert found.at(samples).saved == pytest.approx(held, rel=0.02)


def check_allocated(found: Trace, real: Real, samples: int) -> None:
    end, forward, backward = real.allocated(samples)
    at = found.at(samples)
    assert at.saved + at.copies == pytest.approx(end, rel=0.02)
    assert at.forward_peak + at.copies == pytest.approx(forward, rel=0.05)
    assert at.growing_peak + at.copies == pytest.approx(backward, rel=0.05)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_autocast_and_its_copies(kind: str) -> None:
    request = asked(kind, arithmetic="autocast")
    found, real = traced(request), Real(request)
    for samples in (3, 8):
        held, copies = real.saved(samples)
        assert found.at(samples).saved == pytest.approx(held, rel=0.02)
        assert found.at(samples).copies == copies > 0
    check_allocated(found, real, 8)
    whole = traced(asked(kind)).at(8)
    assert found.at(8).saved < 0.8 * whole.saved
    assert found.at(8).flops == whole.flops


@pytest.mark.parametrize(("kind", "checkpointing"), [("t5", False), ("opt", True)])
def test_a_model_of_halves_with_adapters(kind: str, checkpointing: bool) -> None:
    lora = {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": None}
    request = asked(kind, arithmetic="half", checkpointing=checkpointing, lora=lora)
    found, real = traced(request), Real(request)
    end, forward, _ = real.allocated(8)
    assert found.at(8).saved == pytest.approx(end, rel=0.02)
    assert found.at(8).forward_peak == pytest.approx(forward, rel=0.05)
    assert found.at(8).copies == 0
    names = {each.name for each in found.parameters if each.trained}
    assert names
    assert all("lora_" in name for name in names)
    units = {each.unit for each in found.parameters if each.trained}
    block = "block" if kind == "t5" else "layers"
    assert all(f".{block}." in unit for unit in units)


def test_the_trainer_of_a_run_holds_what_was_traced(tmp_path: Path) -> None:
    """The model, the batch and the loss that the workload itself puts together."""
    needs_torch()
    import torch

    from muster.core.batch import Batch
    from muster.core.recipe import recipe_from
    from muster.worker.arguments import training_arguments
    from muster.worker.context import Context, Emitter
    from muster.workloads.causal_lm.train import build

    request = asked("gpt2")
    recipe = recipe_from(
        {
            "workload": "causal-lm",
            "model": {"init": "random", "create": "whole", "config": dict(request.config)},
            "data": {"synthetic": {"samples": 8, "validation": 1}, "sequence": TOKENS},
            "train": {"max_steps": 1},
        }
    )
    context = Context(
        recipe=recipe, batch=Batch(8, 1, 8), precision="fp32", device="cpu", base=tmp_path, place=tmp_path,
        shared=True, attempt=1, resume_step=None, engine_config=None, rank=0, local_rank=0, world_size=1,
        emit=Emitter(None, rank=0, attempt=1),
    )  # fmt: skip
    trainer = build(context, training_arguments(context)).trainer
    batch = next(iter(trainer.get_train_dataloader()))
    assert len(batch["labels"]) == 8
    model = trainer.model.train()
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *batch.values())}
    held: dict[int, int] = {}
    alive = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.compute_loss(model, dict(batch), num_items_in_batch=torch.tensor(8 * (TOKENS - 1)))
    assert traced(request).at(8).saved == pytest.approx(sum(held.values()), rel=0.02)


def test_logits_worked_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to three samples at once, beyond in parts: two lines, each of which holds."""
    needs_torch()
    from muster.core import loss_parts as loss

    each = TOKENS * VOCABULARY
    monkeypatch.setattr(loss, "SMALL_ON_CPU", 3 * each)
    monkeypatch.setattr(loss, "SMALL", each)
    request = asked("opt", fused_loss=False)
    found, real = traced(request), Real(request)
    assert found.most == 3
    for samples in (3, 4, 9):
        held, _ = real.saved(samples)
        assert found.at(samples).saved == pytest.approx(held, rel=0.005)
    check_allocated(found, real, 9)
    logits = found.at(9).logits
    assert logits == 9 * each * 4
    monkeypatch.setattr(loss, "SMALL_ON_CPU", each - 1)  # no number of samples is few enough
    small = traced(request)
    assert (small.most, small.beyond) == (None, None)
    assert small.at(9).saved == found.at(9).saved


@pytest.mark.parametrize("arithmetic", ["fp32", "half", "autocast"])
@pytest.mark.parametrize("kind", ["t5", "gpt2", "opt", "llama"])
def test_the_fused_loss_holds_no_logits(kind: str, arithmetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what is few: the allocator agrees, and the products are the same."""
    needs_torch()
    from muster.core import loss_parts as loss

    rows = 32 if kind == "t5" else TOKENS
    monkeypatch.setattr(loss, "SMALL_ON_CPU", 3 * rows * VOCABULARY)
    monkeypatch.setattr(loss, "SMALL", rows * VOCABULARY)
    request = asked(kind, arithmetic=arithmetic)
    found, real = traced(request), Real(request)
    assert found.most == 3
    check_allocated(found, real, 9)
    plain = traced(asked(kind, arithmetic=arithmetic, fused_loss=False))
    assert found.at(3).saved == pytest.approx(plain.at(3).saved, rel=0.01)
    assert (found.at(3).logits, found.at(9).logits) == (plain.at(3).logits, 0)
    assert plain.at(9).logits == 9 * rows * VOCABULARY * (4 if arithmetic != "half" else 2)
    assert found.at(9).flops == plain.at(9).flops
    later = found.at(40).forward_peak - found.at(20).forward_peak
    assert later < 20 * (found.at(9).saved - found.at(3).saved) / 6 * 1.5  # parts do not grow with the batch
    always = traced(asked(kind, arithmetic=arithmetic, fused_loss=True))
    assert (always.most, always.at(1).logits) == (None, 0)
    assert always.at(9).saved == found.at(9).saved


def test_products_by_kind() -> None:
    """By hand. A causal Llama in halves: attention, half of it masked; of LoRA's products those with a side
    as short as its rank are thin. Of a mixture of experts, each token's two of four experts count."""
    needs_torch()
    from muster.worker.tracing.tracing import trace

    config = {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1024,
    }  # fmt: skip
    tokens, width, layers = 384, 512, 2
    how: Any = {"tokens": tokens, "arithmetic": "half", "device": "cuda", "fused_loss": False}
    plain = trace(TraceRequest("causal-lm", config, **how)).at(2)
    assert plain.attention == 3 * layers * 2 * 4 * tokens**2 * width  # forward, and twice backward
    assert plain.masked == plain.attention // 2
    assert plain.thin == 0
    adapters = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["q_proj"]}
    lora = trace(TraceRequest("causal-lm", config, lora=adapters, **how)).at(2)
    through = 2 * 2 * tokens * 2 * width * 8 * layers  # to the rank and from it, of 2 samples
    # Forward and two gradients, but for the first layer's input, which nothing before it asks for.
    assert 0.8 * 3 * through <= lora.thin <= 3 * through
    experts = {**config, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    mixed = trace(TraceRequest("causal-lm", experts, **how)).at(2)
    router = 3 * 2 * 2 * tokens * width * 4 * layers
    one_more = 3 * 2 * 2 * tokens * 3 * width * 1024 * layers  # a second feed-forward for each token
    assert mixed.flops - plain.flops == pytest.approx(router + one_more, rel=0.01)
