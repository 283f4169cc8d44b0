"""Traces: few layers for many, few samples for many, a GPU's kernels, the process, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.errors import RecipeError, UsageError
from muster.core.flops import Shape, training
from muster.core.trace import FIGURES, TraceRequest
from muster.planner.tracing import trace as trace_here
from tests.real.traced import HEADS, TOKENS, WIDTH, asked, traced
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


# --- depth and samples -------------------------------------------------------------------------------------


# Rows of a batch that are as many as the width of such small models hide that it is thin.
SMALL = {"thin", "thin_moved"}


@pytest.mark.parametrize(
    ("kind", "layers", "others"),
    [
        ("t5", {"num_layers": 6, "num_decoder_layers": 6}, {}),
        ("t5", {"num_layers": 5, "num_decoder_layers": 4}, {"checkpointing": True, "device": "cuda"}),
        ("gpt2", {"n_layer": 6}, {"arithmetic": "autocast", "device": "cuda"}),
        ("opt", {"num_hidden_layers": 6}, {"checkpointing": True, "arithmetic": "half"}),
        ("llama", {"num_hidden_layers": 6}, {"arithmetic": "half", "device": "cuda"}),
        ("vit", {"num_hidden_layers": 6}, {}),
    ],
)
def test_few_layers_stand_for_all(
    kind: str, layers: dict[str, int], others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(kind, config=layers, **others)
    found = traced(request)
    assert max(found.layers) == (4 if kind == "t5" else 3)
    from muster.worker.tracing import tracing as depth

    monkeypatch.setattr(depth, "MORE", 99)
    whole = traced(request)
    assert whole.layers == tuple(layers.values())
    assert whole.parameters == found.parameters
    for samples in (1, 2, 4, 9, 2000):
        part, all_ = asdict(found.at(samples)), asdict(whole.at(samples))
        for name in set(FIGURES) - SMALL:
            assert part[name] == pytest.approx(all_[name], rel=0.001), name
        for name in ("forward_peak", "backward_peak", "growing_peak"):
            assert part[name] == pytest.approx(all_[name], rel=0.01), name


@pytest.mark.parametrize("kind", ["t5", "vit"])
def test_samples_that_were_not_traced(kind: str) -> None:
    """What is said of 16 and 32 from two and four is what is found with them."""
    request = asked(kind, device="cuda", checkpointing=kind == "vit")
    few, many = traced(request), traced(replace(request, samples=(16, 32)))
    for samples in (16, 24, 32):
        low, high = asdict(few.at(samples)), asdict(many.at(samples))
        for name in set(low) - {"peaks"} - SMALL:
            assert low[name] == pytest.approx(high[name], rel=0.002), name


@pytest.mark.parametrize(
    ("name", "workload", "lengths", "fused"),
    [
        ("t5-small", "text2sql", (96, 48), False), ("gpt2-small", "causal-lm", (256,), True),
        ("llama-3-8b", "causal-lm", (512,), True), ("vit-base", "image-classification", (), True),
    ],
)  # fmt: skip
def test_operations_are_those_of_the_formulas(
    name: str, workload: str, lengths: tuple[int, ...], fused: bool
) -> None:
    """Attention in full, by whatever kernel; what flash kernels compute again is left out."""
    config = families.size(name) or {}
    config = {**config, "num_layers": 2} if workload == "text2sql" else config
    products = families.products(config, Shape(8, *lengths))
    assert products is not None
    request = TraceRequest(workload, config, *lengths, fused_loss=False)  # whose gradients come at once
    found = traced(replace(request, device="cuda", arithmetic="half") if fused else request)
    assert found.at(8).forward_flops == pytest.approx(training(products).forward, rel=1e-3)
    assert found.at(8).flops == pytest.approx(training(products).model, rel=1e-3)
    assert sum(each.numel for each in found.parameters) == families.parameters(config)


# --- a GPU's kernels, assumed ------------------------------------------------------------------------------


def test_fused_attention_keeps_no_probabilities() -> None:
    """With attention dropout: on the CPU the square of the tokens is kept, on a GPU a multiple of them."""
    sizes = {}
    for device in ("cpu", "cuda"):
        for tokens in (32, 64):
            request = replace(asked("gpt2", device=device, arithmetic="half"), tokens=tokens)
            sizes[device, tokens] = traced(request).at(8).saved
    assert sizes["cuda", 64] == pytest.approx(2 * sizes["cuda", 32], rel=0.001)
    assert sizes["cpu", 64] > 2.2 * sizes["cpu", 32]


def test_dropout_keeps_a_byte_per_element() -> None:
    """Two in each block, and none in attention: what they keep is the whole difference."""
    config = {"attention_dropout": 0.0}
    kept = {
        (device, rate): traced(
            asked("opt", device=device, arithmetic="half", config={**config, "dropout": rate})
        )
        for device in ("cpu", "cuda")
        for rate in (0.0, 0.1)
    }
    elements = 8 * TOKENS * WIDTH * 2 * 3
    masks = {
        device: kept[device, 0.1].at(8).saved - kept[device, 0.0].at(8).saved for device in ("cpu", "cuda")
    }
    assert masks == {"cpu": 2 * elements, "cuda": elements}


def test_a_learned_bias_is_kept_once_a_layer() -> None:
    """T5's position biases are the mask of the memory-efficient kernel: heads x tokens x tokens a layer, in
    the queries' type and in rows of whole sixteens, beside masks of dropout and the like in proportion."""
    request = asked("t5", device="cuda", config={"num_decoder_layers": 1, "dropout_rate": 0.0})
    found = {}
    for layers in (2, 3):
        for tokens in (40, 80):
            config = {**request.config, "num_layers": layers}
            found[layers, tokens] = traced(replace(request, config=config, tokens=tokens)).at(8).saved
    one, two = (found[3, tokens] - found[2, tokens] for tokens in (40, 80))
    bias = 80 * 80 - 2 * 40 * 48
    logarithms = 96 - 2 * 64  # a row's, in whole thirty-twos
    assert two - 2 * one == pytest.approx(4 * 8 * HEADS * (bias + logarithms), rel=0.001)


def test_autocast_of_cuda_computes_norms_in_fp32() -> None:
    needs_torch()
    import torch
    from torch.nn import functional

    from muster.worker.tracing.cuda import cuda_kernels

    half = torch.ones(2, 4, dtype=torch.bfloat16)
    named: dict[str, Any] = {
        "layer_norm": lambda: functional.layer_norm(half, (4,)),
        "softmax": lambda: half.softmax(-1),
        "pow": lambda: half.pow(2),
        "rsqrt": lambda: half.rsqrt(),
        "sum": lambda: half.sum(-1),
        "product": lambda: half.float() @ half.T,
        "named": lambda: half.softmax(-1, dtype=torch.bfloat16),
    }
    plain = {name: call().dtype for name, call in named.items() if name != "product"}
    assert set(plain.values()) == {torch.bfloat16}
    with cuda_kernels(autocast=True), torch.autocast("cpu", torch.bfloat16):
        found = {name: call().dtype for name, call in named.items()}
    lower = {"product": torch.bfloat16, "named": torch.bfloat16}
    assert found == {name: lower.get(name, torch.float32) for name in named}
    with torch.autocast("cpu", torch.bfloat16):
        assert half.softmax(-1).dtype is torch.bfloat16
    assert functional.dropout is not None
    assert functional.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"


# --- the process -------------------------------------------------------------------------------------------


def test_the_largest_model_needs_no_memory(tmp_path: Path) -> None:
    """OPT-175B in a process of its own: 350 GB of halves, and not one of them is allocated."""
    needs_torch()
    config = families.size("opt-175b") or {}
    request = TraceRequest("causal-lm", config, 2048, arithmetic="half", device="cuda", checkpointing=True)
    program = (
        "import resource, runpy, sys\n"
        "try: runpy.run_module('muster.worker.tracing', run_name='__main__')\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(asdict(request)), capture_output=True, text=True
    )
    from muster.core.trace import from_json

    found = from_json(json.loads(done.stdout))
    assert int(done.stderr.split()[-1]) * 1024 < 2e9
    assert sum(each.numel for each in found.parameters) == families.parameters(config)
    assert {each.unit for each in found.parameters} == {"", *(f"model.decoder.layers.{i}" for i in range(96))}
    inputs = 96 * 2048 * 12288 * 2  # each block's input is all that checkpointing keeps
    assert found.at(1).saved - found.at(1).logits == pytest.approx(inputs, rel=0.03)


def test_what_is_computed_again_is_no_work_of_the_gradient() -> None:
    """Of phi, which has no formula: six operations a weight of products and token, and attention's, whether
    or not blocks are computed again. Neither the output layer nor a block's last product is."""
    needs_torch()
    from muster.worker.tracing.tracing import trace

    config = {
        "model_type": "phi", "vocab_size": 8000, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512,
    }  # fmt: skip
    layer = 4 * 256 * 256 + 2 * 256 * 512
    for checkpointing in (False, True):
        request = TraceRequest("causal-lm", config, 256, arithmetic="half", checkpointing=checkpointing)
        found = trace(request).at(2)
        needed = 6 * (2 * layer + 8000 * 256) + 12 * 2 * 256 * 256
        assert (found.flops - found.again) / (2 * 256) == needed
        again = 2 * 256 * 2 * (2 * (layer - 256 * 512) + 2 * 2 * 256 * 256)
        assert found.again == (again if checkpointing else 0)


def test_a_trace_is_found_again(tmp_path: Path) -> None:
    needs_torch()
    request = asked("vit")
    first = trace_here(request, cache=tmp_path)
    again = trace_here(request, cache=tmp_path)
    assert first is not None
    assert first == again
    assert first.at(3) == traced(request).at(3)
    assert first.versions.keys() >= {"torch", "transformers"}


@pytest.mark.parametrize(
    ("request_", "where", "words", "hint"),
    [
        (TraceRequest("causal-lm", {"model_type": "gtp2"}, 8), "model_type", "no model type 'gtp2'", "gpt2"),
        (asked("opt", config={"num_attention_heads": 5}), "num_attention_heads", "hidden_size=64", "heads=4"),
        (asked("llama", config={"num_key_value_heads": 3}), "key_value_heads", "does not divide", "heads=2"),
        (asked("gpt2", config={"n_head": 0}), "model.config.n_head", "is 0", "n_head=1"),
        (replace(asked("gpt2"), tokens=65), "data.sequence", "has 64 positions", "data.sequence=64"),
        (replace(asked("t5"), target=0), "target", "is 0", "1"),
        (asked("vit", config={"image_size": 33}), "image_size", "patches of 4", None),
        (replace(asked("opt"), workload="text2sql", target=8), "model", "not an encoder-decoder", "t5-small"),
        (replace(asked("vit"), workload="causal-lm", tokens=8), "model", "not a causal language", "gpt2"),
        (replace(asked("opt"), workload="fabric"), "workload", "cannot be traced", "causal-lm"),
        (replace(asked("opt"), samples=(3, 3)), "samples", "3 and 3", "1 and 2"),
        (asked("opt", config={"hidden_size": "wide"}), "model.config", "does not make a model", None),
    ],
)  # fmt: skip
def test_what_makes_no_model(request_: TraceRequest, where: str, words: str, hint: str | None) -> None:
    with pytest.raises(RecipeError) as refused:
        traced(request_)
    assert where in (refused.value.where or "")
    assert words in refused.value.what
    if hint:
        assert hint in (refused.value.hint or "")


def test_bad_input_is_told_without_a_traceback(tmp_path: Path) -> None:
    needs_torch()
    from muster.worker.tracing.__main__ import _read as read

    with pytest.raises(RecipeError, match="no model type 'gtp2'"):
        trace_here(TraceRequest("causal-lm", {"model_type": "gtp2"}, 8), cache=tmp_path)
    command = [sys.executable, "-m", "muster.worker.tracing"]
    for text in ("", "[]", "{}", '{"workload": "causal-lm", "config": 3}', '{"config": {}, "more": 1}'):
        with pytest.raises(UsageError):
            read(text)
    for text in ("", "[1"):
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"]["what"]
        assert "Traceback" not in done.stderr
