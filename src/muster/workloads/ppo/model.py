"""The actor, as it is traced; its critic's memory is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from muster.core.trace import TraceRequest
from muster.dialogues.tracing import batches_of, make_decoder
from muster.worker.context import Context
from muster.worker.models import without_dropout
from muster.worker.tracing.tasks import Inputs, TraceTask
from muster.workloads.ppo.actor_critic import logits_of
from muster.workloads.ppo.objective import log_probs_of


def _actor(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    return without_dropout(make_decoder(context, request, config))


def _loss(forward: Callable[..., Any], inputs: Inputs) -> torch.Tensor:
    """Compute the loss as if every prompt were short: the shortest prompt decides how many columns answers
    have."""
    tokens = inputs["input_ids"]
    logits = logits_of(forward, tokens, inputs["attention_mask"], tokens.shape[1] - 1)
    return -log_probs_of(logits, tokens[:, 1:], 1.0).sum()


TRACED = TraceTask(_actor, batches_of(1), lengths=("tokens",), masked=True, loss=_loss)
