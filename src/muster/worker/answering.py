"""The trained model answers: what each workload's Answerer derives from, and the held-out questions, shared
among the ranks that see the model."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import AutoTokenizer

from muster.core.errors import MusterError
from muster.core.recipe import Recipe
from muster.core.registry import WORKLOADS, broken
from muster.store import events
from muster.worker.context import Context
from muster.worker.explain import explain
from muster.worker.models import load_from
from muster.worker.together import gather, leave
from muster.worker.workloads.base import HeldOut


class Answerer:
    """Answer questions with a trained model. A workload derives its own, with `kind` and `answer`.

    `kind`: Transformers' Auto class of the model; `tokenized`: a tokenizer is saved beside it; `streamer`:
    Transformers', which `answer` hands to `generate` for the answer to a single question as it grows.
    """

    kind: Any
    tokenized: Any = False
    converses: Any = False  # `answer` takes earlier turns of a conversation, as `before`

    def __init__(self, folder: Path, recipe: Any, device: str) -> None:
        """Load the model that is saved in a folder. Raises RecipeError."""
        self.recipe, self.streamer = recipe, None
        self.tokenizer: Any = None
        if self.tokenized:
            self.tokenizer = load_from(AutoTokenizer.from_pretrained, str(folder), "model")
        self.model = load_from(self.kind.from_pretrained, str(folder), "model")
        self.model.to(torch.device(device)).eval()
        if hasattr(self.model.config, "use_cache"):
            self.model.config.use_cache = True
        self.device = self.model.device

    def answer(self, questions: Sequence[str]) -> tuple[list[str], float]:
        """Return the answers in the order of the questions, and the seconds they took."""
        raise NotImplementedError

    def score(self, cache: Path, limit: int | None) -> dict[str, float] | None:
        """Return figures of the held-out set, `seconds` among them; None: it is questions, each answered.
        Raises DataError."""
        return None


def load_answerer(workload: ModuleType, folder: Path, recipe: Recipe, device: str) -> Answerer:
    """Load the saved model of a workload's run. Raises RecipeError, and BrokenPluginError."""
    answerer = workload.Answerer(folder, recipe, device)
    if not isinstance(answerer, Answerer):
        what = f"its Answerer is not derived from {Answerer.__module__}.Answerer"
        raise broken(WORKLOADS, recipe.workload, what, workload.__file__)
    return answerer


def answer(context: Context, workload: ModuleType, held_out: Sequence[HeldOut]) -> None:
    """Answer held-out questions with the saved model; every rank that sees it takes a share.

    The training is over and its model is saved: a failure from here on costs the answers alone, and is noted.
    """
    sees = (context.model / "config.json").is_file()
    seeing = [rank for rank, rank_sees in enumerate(gather(sees)) if rank_sees]
    leave()  # else a rank without the model would wait in a collective until the others have answered
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


def _answer_share(context: Context, workload: ModuleType, share: list[tuple[int, HeldOut]]) -> None:
    """Answer and judge numbered questions. Emits Answer events, and Answered."""
    from transformers.integrations import unset_hf_deepspeed_config

    from muster.worker.quality import judge

    unset_hf_deepspeed_config()  # else ZeRO-3 would cut the saved model into shards while it is loaded
    gc.collect()
    if context.device == "cuda":
        torch.cuda.empty_cache()
    answerer = load_answerer(workload, context.model, context.recipe, context.device)
    answers, seconds = answerer.answer([question.question for _, question in share])
    judged = judge([question for _, question in share], answers)
    for (index, _), each in zip(share, judged, strict=True):
        context.emit(events.Answer, index=index, **vars(each))
    executed = [each.executed for each in judged if each.executed is not None]
    context.emit(
        events.Answered,
        metric=context.recipe.metric,
        questions=len(judged),
        exact=sum(each.exact for each in judged),
        executed=sum(executed) if executed else None,
        scored=len(executed),
        seconds=seconds,
    )
