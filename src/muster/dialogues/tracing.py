"""Workloads of prompts and answers, as they are traced: tokens, log-probabilities by TRL's tiles, rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from trl.kernels import chunked_logprob
from trl.trainer import utils

from muster.core.trace import TraceRequest
from muster.dialogues.rewarding import make_reward_model
from muster.worker.context import Context
from muster.worker.decoders import make_config, make_model
from muster.worker.tracing.tasks import Inputs, TraceTask, Vocabulary, tokens_of


def make_decoder(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    """Make the model that is trained."""
    return make_model(context, make_config(context.recipe, None), None)


def _compared_model(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    model = make_decoder(context, request, config)
    utils.add_fused_lm_head(_inner(model), outputs=("log_probs", "entropy"))
    return model


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _reward_model(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    return make_reward_model(context, Vocabulary(config))


def batches_of(sequences: int, *more: str) -> Callable[[TraceRequest, Any, int], Inputs]:
    """Make batches as dialogues/tokens.py collates them. `sequences`: of a sample; `more`: names of further
    tensors."""

    def batch(request: TraceRequest, model: Any, samples: int) -> Inputs:
        names = ("input_ids", *more, "attention_mask")
        return {name: tokens_of(samples * sequences, request.tokens) for name in names}

    return batch


def _reward_loss(forward: Callable[..., Any], inputs: Inputs) -> torch.Tensor:
    """Compute the loss of TRL's RewardTrainer."""
    chosen, rejected = forward(**inputs, use_cache=False).logits.squeeze(-1).chunk(2)
    return -torch.nn.functional.logsigmoid(chosen - rejected).mean()


def _log_probs_loss(forward: Callable[..., Any], inputs: Inputs) -> torch.Tensor:
    """Compute the log-probabilities that all objectives rest on; what they make of them is small."""
    sums: torch.Tensor = forward(**inputs, labels=inputs["input_ids"], fused_lm_head=True).log_probs
    return -sums.sum()


@contextmanager
def _tiles(model: Any, request: TraceRequest, several: bool) -> Iterator[None]:
    """Let TRL's tiles of logits be as large inside as they are in memory, and their products count.

    On CPUs columns beyond the vocabulary are never written to. On GPUs a kernel of Triton's works in place
    (trl/kernels/chunked_logprob.py), and the product itself adds gradients up in fp32. `several`: there are
    more predictions than a tile has.
    """
    gpu = request.device == "cuda"
    classes = _inner(model).get_output_embeddings().weight.shape[0]
    width = utils._CHUNKED_LOGPROB_CHUNK_SIZE

    def added(sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        if (
            gpu and sums.dtype != left.dtype
        ):  # the CPU has no such product: one of the same size, in its place
            torch.mm(left, right, out=sums.view(left.dtype)[:, : sums.shape[1]])
        else:
            torch.addmm(sums, left.float(), right.float(), out=sums)

    with ExitStack() as stack:
        change = partial(_changed, stack)
        change(utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", width if gpu else min(width, classes))
        change(chunked_logprob, "TOKEN_CHUNK_SIZE", chunked_logprob.TOKEN_CHUNK_SIZE if several else 1 << 62)
        change(chunked_logprob, "_addmm_fp32", added)
        for name in ("_forward_tile", "_backward_tile") if gpu else ():
            change(chunked_logprob, name, lambda *_, **__: None)
        yield


def _changed(stack: ExitStack, module: Any, name: str, value: Any) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)


def _compared(sequences: int) -> TraceTask:
    """Describe a decoder that is trained by log-probabilities. `sequences`: of a sample."""
    return TraceTask(
        _compared_model,
        batches_of(sequences),
        lengths=("tokens",),
        masked=True,
        sequences=sequences,
        loss=_log_probs_loss,
        tile=chunked_logprob.TOKEN_CHUNK_SIZE,
        within=_tiles,
    )


LEARNED = TraceTask(make_decoder, batches_of(1, "labels"), lengths=("tokens",), masked=True, moved=True)
REWARDED = TraceTask(
    _reward_model, batches_of(2), lengths=("tokens",), masked=True, sequences=2, loss=_reward_loss
)
PAIRS, ANSWERS = _compared(2), _compared(1)
