"""The trained model answers held-out questions, shared among the ranks that see it."""

from __future__ import annotations

import gc
import traceback
from typing import Any

from muster.core.errors import MusterError
from muster.store import events
from muster.worker.context import Context
from muster.worker.explain import explain
from muster.worker.together import gather, leave
from muster.worker.workloads.base import HeldOut


def answer(context: Context, workload: Any, held_out: list[Any]) -> None:
    """Every rank that sees the saved model answers its share of the held-out questions with it.

    The training is over and its model is saved: what goes wrong from here on is told, and
    costs the answers alone.
    """
    sees = (context.model / "config.json").is_file()
    seeing = [rank for rank, rank_sees in enumerate(gather(sees)) if rank_sees]
    leave()  # nobody waits in a collective while others answer
    if context.rank not in seeing:
        return
    mine = list(range(seeing.index(context.rank), len(held_out), len(seeing)))
    try:
        _answer_share(context, workload, [(index, held_out[index]) for index in mine])
    except Exception as error:
        cause = error if isinstance(error, MusterError) else explain(error)
        traceback.print_exc()
        context.emit(
            events.Noted, text=f"held-out questions were not answered by rank {context.rank}: {cause}"
        )


def _answer_share(context: Context, workload: Any, share: list[tuple[int, HeldOut]]) -> None:
    from transformers.integrations import unset_hf_deepspeed_config

    from muster.worker.quality import judge

    unset_hf_deepspeed_config()  # else ZeRO-3 would cut the saved model into shards while it is loaded
    gc.collect()
    if context.device == "cuda":
        import torch

        torch.cuda.empty_cache()
    answerer = workload.Answerer(context.model, context.recipe, context.device)
    answers, seconds = answerer.answer([question.question for _, question in share])
    judged = judge([question for _, question in share], answers)
    for (index, _), each in zip(share, judged, strict=True):
        context.emit(events.Answer, index=index, **vars(each))
    executed = [each.executed for each in judged if each.executed is not None]
    context.emit(
        events.Answered,
        metric=getattr(workload, "METRIC", context.recipe.metric),
        questions=len(judged),
        exact=sum(each.exact for each in judged),
        executed=sum(executed) if executed else None,
        scored=len(executed),
        seconds=seconds,
    )
