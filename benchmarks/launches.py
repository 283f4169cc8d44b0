"""What Python takes for an operation, where tensors are so small that nothing else counts.

    .venv/bin/python benchmarks/launches.py

Models of 24 layers 64 wide run forward and backward on one thread, as they are, with LoRA, and with gradient
checkpointing; and under DeepSpeed's stages, which add to that for each tensor. Prints medians and the fastest
of 25 passes, per operation that a trace counts and per tensor. A GPU waits as long where its kernels are
shorter than that (planner/time/steptime.py: LAUNCH, AGAIN; engines/deepspeed/spec.py: HOOKS): the CPU's own
work on such tensors stands in for CUDA's launches, about 5 us each.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from hardware import processor

from muster.core.trace import TraceRequest
from muster.planner.tracing import trace

TOKENS, PASSES, WARM = 16, 25, 8
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 24, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": False,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 24, "n_head": 4, "vocab_size": 512},
}  # fmt: skip
ADAPTERS = {"rank": 8, "alpha": 16, "dropout": 0.05, "targets": "all-linear"}


def made(kind: str, *, lora: bool, again: bool) -> Any:
    """A model with real weights, as it trains."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    given = dict(CONFIGS[kind])
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(given.pop("model_type"), **given))
    model = model.bfloat16().train()
    if lora:
        how = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear")
        model = get_peft_model(model, how)
        model.enable_input_require_grads()
    if again:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def timed(once: Callable[[], None]) -> tuple[float, float]:
    """The fastest, and the median of many."""
    took = []
    for _ in range(WARM + PASSES):
        began = time.perf_counter()
        once()
        took.append(time.perf_counter() - began)
    return min(took[WARM:]), statistics.median(took[WARM:])


def pass_of(model: Any, ids: torch.Tensor) -> Callable[[], None]:
    """A forward and a backward pass."""
    return lambda: model(input_ids=ids, labels=ids).loss.backward()


def plain() -> None:
    """Microseconds per operation."""
    ids = torch.randint(0, 512, (1, TOKENS))
    for kind in CONFIGS:
        for lora in (False, True):
            for again in (False, True):
                model = made(kind, lora=lora, again=again)
                fastest, middle = timed(pass_of(model, ids))
                asked = TraceRequest(
                    "causal-lm",
                    CONFIGS[kind],
                    tokens=TOKENS,
                    arithmetic="half",
                    checkpointing=again,
                    lora=ADAPTERS if lora else None,
                    fused_loss=False,
                )
                found = trace(asked)
                assert found is not None
                count = found.at(1).operations
                words = f"{kind}{', LoRA' if lora else ''}{', checkpointed' if again else ''}"
                each = f"{1e6 * fastest / count:.1f} us, median {1e6 * middle / count:.1f}"
                print(f"{words:32s} {1e3 * fastest:6.1f} ms for {count:5d} operations: {each}", flush=True)


def staged() -> None:
    """Microseconds per tensor, beyond the same passes without DeepSpeed."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777"}
    import deepspeed

    deepspeed.init_distributed("gloo")
    ids = torch.randint(0, 512, (1, TOKENS))
    for again in (False, True):
        model = made("llama", lora=False, again=again)
        base, _ = timed(pass_of(model, ids))
        for stage in (0, 1, 2, 3):
            model = made("llama", lora=False, again=again)
            zero = {
                "stage": stage, "reduce_bucket_size": 4096, "stage3_prefetch_bucket_size": 3686,
                "stage3_param_persistence_threshold": 640,
            }  # fmt: skip
            if stage < 3:
                zero.pop("reduce_bucket_size")
            config = {
                "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1000,
                "bf16": {"enabled": True}, "zero_optimization": zero, "steps_per_print": 10**9,
            }  # fmt: skip
            optimizer = torch.optim.AdamW(model.parameters())
            engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

            def once(engine: Any = engine) -> None:
                engine.backward(engine(input_ids=ids, labels=ids).loss)
                engine.step()

            fastest, middle = timed(once)
            tensors = sum(1 for _ in model.parameters())
            beyond = [1e6 * (each - base) / tensors for each in (fastest, middle)]
            words = f"ZeRO-{stage}{', checkpointed' if again else ''}"
            print(
                f"{words:32s} {beyond[0]:6.0f} us a tensor of {tensors}, median {beyond[1]:.0f}", flush=True
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{processor()}, torch {torch.__version__}")
    plain()
    staged()
