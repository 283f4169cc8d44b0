"""Small models of every family: what is traced of them, and what they hold with real weights and data."""

from __future__ import annotations

import gc
from typing import Any

from muster.core.trace import Trace, TraceRequest
from tests.support import needs_torch

WIDTH, HEADS, TOKENS, VOCABULARY = 64, 4, 48, 300
TINY: dict[str, dict[str, Any]] = {
    "t5": {
        "d_model": WIDTH, "d_ff": 4 * WIDTH, "d_kv": WIDTH // HEADS, "num_heads": HEADS, "num_layers": 3,
        "num_decoder_layers": 2, "dropout_rate": 0.1, "vocab_size": VOCABULARY,
    },
    "gpt2": {
        "n_embd": WIDTH, "n_head": HEADS, "n_layer": 3, "n_positions": 64, "vocab_size": VOCABULARY,
    },
    "opt": {
        "hidden_size": WIDTH, "ffn_dim": 4 * WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 3,
        "word_embed_proj_dim": WIDTH, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
    },
    "llama": {
        "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2, "num_hidden_layers": 3, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
    },
    "vit": {
        "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": HEADS,
        "num_hidden_layers": 3, "image_size": 32, "patch_size": 4, "num_labels": 10,
    },
}  # fmt: skip
WORKLOADS = {"t5": "text2sql", "vit": "image-classification"}


def asked(kind: str, **others: Any) -> TraceRequest:
    workload = WORKLOADS.get(kind, "causal-lm")
    lengths = {"text2sql": (TOKENS, 32), "causal-lm": (TOKENS, 0)}.get(workload, (0, 0))
    config = {"model_type": kind, **TINY[kind], **others.pop("config", {})}
    return TraceRequest(workload, config, *lengths, **others)


def traced(request: TraceRequest) -> Trace:
    needs_torch()
    import transformers.modeling_utils  # noqa: F401

    from muster.worker.tracing.tracing import trace

    gc.freeze()  # as the process itself does: without it a third of the time goes into searching for garbage
    return trace(request)


class Real:
    """The same model and batch with real weights, by the same functions as in training."""

    def __init__(self, request: TraceRequest) -> None:
        import torch

        from muster.worker.loss import fused_head
        from muster.worker.tracing.passes import forward_of
        from muster.worker.tracing.tasks import loss_of, make

        self.request = request
        self.model = make(request, {})
        self.loss_of = loss_of(request, fused_head(self.model, wanted=request.fused_loss))
        if request.checkpointing:
            checkpointed(self.model)
        self.own = {each.untyped_storage().data_ptr() for each in self.model.parameters()}
        self.torch = torch
        self.forward = forward_of(self.model, request)
        if request.compiled:  # PyTorch's own partition of the graphs, without Inductor's code
            torch._dynamo.reset()
            self.forward = torch.compile(self.forward, backend="aot_eager_decomp_partition", dynamic=False)

    def batch(self, samples: int) -> dict[str, Any]:
        """As many samples; of translations the last tokens are padding."""
        from muster.worker.tracing.tasks import task_of

        torch = self.torch
        inputs = task_of(self.request).batch(self.request, self.model, samples)
        for name, value in inputs.items():
            if value.dtype == torch.long:
                most = 2 if name == "labels" and value.ndim == 1 else VOCABULARY
                inputs[name] = torch.randint(1, most, value.shape)
            else:
                inputs[name] = torch.rand(value.shape).to(value.dtype)
        if "attention_mask" in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["attention_mask"][:, -5:] = 0
        return inputs

    def loss(self, inputs: dict[str, Any]) -> Any:
        from muster.worker.tracing.passes import compute_loss

        return compute_loss(self.forward, inputs, self.request, self.loss_of)

    def saved(self, samples: int) -> tuple[int, int]:
        """Bytes that autograd holds at the end of the forward pass: activations, and copies of weights."""
        torch, inputs = self.torch, self.batch(samples)
        given = {each.untyped_storage().data_ptr() for each in (*inputs.values(), *self.model.buffers())}
        shapes = {each.shape for each in self.model.parameters()}
        shapes |= {each.shape[::-1] for each in self.model.parameters()}
        held: dict[int, tuple[int, bool]] = {}
        alive = []

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.own | given:
                weight = self.request.arithmetic == "autocast" and tensor.shape in shapes
                held[storage.data_ptr()] = (storage.nbytes(), weight)
                alive.append(storage)  # else its address is given out again
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self.loss(inputs)
        assert loss.item() > 0
        copies = sum(size for size, weight in held.values() if weight)
        return sum(size for size, _ in held.values()) - copies, copies

    def allocated(self, samples: int) -> tuple[int, int, int]:
        """By the allocator: bytes at the end of the forward pass, and the most in each pass, gradients
        included."""
        from torch.profiler import ProfilerActivity, profile

        inputs = self.batch(samples)
        self.loss(inputs).backward()  # what is made once is there
        self.model.zero_grad(set_to_none=True)
        levels = []
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            loss = self.loss(inputs)
        levels.append(levels_of(seen))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            loss.backward()
        levels.append(levels_of(seen))
        end = levels[0][-1]
        return end, max(levels[0]), end + max(0, *levels[1])


def checkpointed(model: Any) -> None:
    """Gradient checkpointing without states of the random generator, which no operation allocates."""
    how = {"use_reentrant": False, "preserve_rng_state": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
    else:  # transformers before 5.20
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def levels_of(seen: Any) -> list[int]:
    """Bytes allocated after each event of a profile, from its beginning."""
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    total, levels = 0, [0]
    for each in sorted(events, key=lambda event: event.start_ns()):
        total += each.nbytes()
        levels.append(total)
    return levels
