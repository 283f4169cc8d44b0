"""A plain compiled loop of GPT-2 as it ran on an H100 (benchmarks/gpu/peers.py, `compiled`), counted.

    .venv/bin/python -m benchmarks.compiled_loop

The whole model with its loss is one graph, so all logits lie in memory. Muster's own tracing runs it, of two
and of three layers, and the planner's arithmetic makes a peak and a step of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from muster.core import families
from muster.core.hardware.machines import parse_parts
from muster.core.trace import Parameter, TraceRequest
from muster.engines.spread import ModelSpread
from muster.planner.memory.fit import WORKSPACES
from muster.planner.time.steptime import COMPILED_LAUNCH, StepCase, StepWork, predict

LAYERS, TOKENS, SAMPLES = 12, 1024, 32
CONFIG = {
    "model_type": "gpt2", "vocab_size": 50304, "n_embd": 768, "n_head": 12, "n_positions": TOKENS,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """Bytes at the allocator's peak, and seconds of a step, of an H100."""

    peak: int
    step_seconds: float


def counted() -> Counted:
    """Of all layers, on the line through two and three."""
    two, three = (_pass(layers) for layers in (2, 3))
    whole = {name: two[name] + (LAYERS - 2) * (three[name] - two[name]) for name in two}
    count = families.parameters({**CONFIG, "n_layer": LAYERS}) or 0
    work = StepWork(
        SAMPLES, whole["forward"], whole["flops"], whole["moved"], whole["operations"], whole["attention"],
        whole["masked"], launches=COMPILED_LAUNCH * whole["operations"],
    )  # fmt: skip
    spread = ModelSpread("ddp", 1, 2)
    case = StepCase(parse_parts("h100:1")[0], "bf16", work, (Parameter("all", (count,), True, ""),), spread)
    return Counted(round(whole["peak"] + 12 * count + WORKSPACES), predict(case).seconds)


def _pass(layers: int) -> dict[str, float]:
    """Figures of a pass over all samples by a model of so many layers."""
    import torch
    import transformers.modeling_utils  # noqa: F401
    from torch._subclasses.fake_tensor import FakeTensorMode

    from muster.worker.tracing import graphs, tracing
    from muster.worker.tracing.cuda import cuda_kernels
    from muster.worker.tracing.ledger import Ledger
    from muster.worker.tracing.tasks import make, replace_tensors, task_of

    config: dict[str, Any] = {**CONFIG, "n_layer": layers}
    request = TraceRequest("causal-lm", config, TOKENS, arithmetic="autocast", device="cuda")
    with torch.device("meta"):
        model = make(replace(request, fused_loss=False), {})
    model.set_attn_implementation(
        "sdpa"
    )  # with the mask that Transformers makes in a graph, as the loop had it
    with FakeTensorMode(allow_non_fake_inputs=True), tracing.seen_as_real():
        replace_tensors(model, lambda each: torch.empty(each.shape, dtype=each.dtype))
        inputs = task_of(request).batch(request, model, SAMPLES)
        outside = [*inputs.values(), *model.buffers()]
        ledger = Ledger(model.parameters(), outside, classes=CONFIG["vocab_size"], answer=True)
        with cuda_kernels(autocast=True), graphs.compiling() as account:
            run = account.compiled(model)

            def loss() -> Any:
                with torch.autocast("cpu", torch.bfloat16):
                    return run(**inputs).loss

            loss().backward()
            model.zero_grad(set_to_none=True)
            account.ledger = ledger
            with ledger:
                made = loss()
                forward = ledger.flops
                ledger.mark("backward")
                made.backward()
    return {
        "peak": max(ledger.peaks(set()).values()), "forward": forward, "flops": ledger.flops,
        "moved": ledger.moved, "operations": ledger.operations, "attention": ledger.attention,
        "masked": ledger.masked,
    }  # fmt: skip


if __name__ == "__main__":
    print(counted())
