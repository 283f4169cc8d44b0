"""A decoder over packed text, as it is traced."""

from __future__ import annotations

from typing import Any

from muster.core.errors import RecipeError
from muster.core.families.checking import check_length
from muster.core.trace import TraceRequest
from muster.worker.context import Context
from muster.worker.decoders import make_config, make_model, positions_of
from muster.worker.tracing.tasks import Inputs, TraceTask, tokens_of
from muster.workloads.causal_lm.spec import FROM_SCRATCH, TextData


def sequence_of(data: TextData, config: Any) -> int:
    """Return the tokens per sample. Raises RecipeError where the model has fewer positions."""
    positions = positions_of(config)
    if data.sequence is None and positions is None:
        raise RecipeError("the model does not say how many positions it has", where="data.sequence")
    sequence = data.sequence or positions or 0
    check_length(sequence, positions, "data.sequence", FROM_SCRATCH)
    if sequence < 2:
        raise RecipeError("is 1, so there is no next token to predict", where="data.sequence")
    return sequence


def _traced_model(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    made = make_config(context.recipe, None)
    sequence_of(TextData(sequence=request.tokens), made)  # raises where the model has fewer positions
    return make_model(context, made, None, longest=request.tokens)


def _traced_batch(request: TraceRequest, model: Any, samples: int) -> Inputs:
    """Make a batch as tokens.py collates it."""
    return {name: tokens_of(samples, request.tokens) for name in ("input_ids", "labels")}


TRACED = TraceTask(_traced_model, _traced_batch, lengths=("tokens",), moved=True)
