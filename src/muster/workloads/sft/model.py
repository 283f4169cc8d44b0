"""A decoder over prompts and answers, as it is traced."""

from __future__ import annotations

from typing import Any

from muster.core.trace import TraceRequest
from muster.worker.context import Context
from muster.worker.decoders import make_config, make_model
from muster.worker.tracing.tasks import Inputs, TraceTask, tokens_of


def _traced_model(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    return make_model(context, make_config(context.recipe, None), None)


def _traced_batch(request: TraceRequest, model: Any, samples: int) -> Inputs:
    """As dialogues/tokens.py collates."""
    names = ("input_ids", "labels", "attention_mask")
    return {name: tokens_of(samples, request.tokens) for name in names}


TRACED = TraceTask(_traced_model, _traced_batch, lengths=("tokens",), masked=True, moved=True)
