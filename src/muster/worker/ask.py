"""Answers questions with a trained model: JSON lines on standard input and on standard output.

The first line says which model; "ready" comes when it is loaded. Each further line asks, and is answered by
"piece" (a part of a growing answer), "row" (one question and its answer), and "done" or "error".
Run by `muster ask` in a process of its own: python -m muster.worker.ask
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.core.errors import DataError, MusterError
from muster.core.recipe import recipe_from
from muster.core.registry import WORKLOADS, load_plugin
from muster.worker.workloads.base import HeldOut

Say = Callable[..., None]


def main() -> int:
    """Load the model, then answer until the input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not disturb the answers

    def say(**message: Any) -> None:
        out.write(json.dumps(message, ensure_ascii=False) + "\n")
        out.flush()

    model: _Model | None = None
    for line in sys.stdin:
        try:
            if model is None:
                model = _Model(json.loads(line))
                say(ready=model.device, converses=bool(model.answerer.converses))
            else:
                model.answer(json.loads(line), say)
        except MusterError as error:
            say(error={**error.as_dict(), "code": error.exit_code})
    return 0


class _Model:
    """The trained model of a run."""

    def __init__(self, request: dict[str, Any]) -> None:
        import torch

        from muster.worker.answering import load_answerer

        self.recipe = recipe_from(request["recipe"])
        self.workload: Any = load_plugin(WORKLOADS, self.recipe.workload, "train")
        self.device = "cuda" if torch.cuda.is_available() and self.recipe.launch.device != "cpu" else "cpu"
        self.cache = Path(request["cache"])
        self.answerer: Any = load_answerer(self.workload, Path(request["model"]), self.recipe, self.device)

    def answer(self, request: dict[str, Any], say: Say) -> None:
        """Answer request["questions"]; where there are none, the held-out set."""
        if "questions" in request:
            before = [tuple(turn) for turn in request.get("before", ())]
            self._answer(request["questions"], say, before, stream=request["stream"])
        elif (figures := self.answerer.score(self.cache, request["limit"])) is not None:
            say(done={"seconds": figures.pop("seconds"), "figures": figures})
        else:
            self._evaluate(request["limit"], say)

    def _answer(self, questions: list[str], say: Say, before: list[tuple[str, ...]], *, stream: bool) -> None:
        alone = stream and len(questions) == 1 and self.recipe.evaluate.beams == 1
        pieces = alone and self.answerer.tokenizer is not None
        self.answerer.streamer = _Pieces(self.answerer.tokenizer, say) if pieces else None
        more = {"before": before} if before else {}
        answers, seconds = self.answerer.answer(questions, **more)
        for question, predicted in zip(questions, answers, strict=True):
            say(row={"question": question, "predicted": predicted})
        say(done={"seconds": seconds})

    def _evaluate(self, limit: int | None, say: Say) -> None:
        from muster.worker.quality import judge

        every: list[HeldOut] = self.workload.questions(self.recipe, self.cache)
        reasons = Counter(each.left_out for each in every if each.left_out)
        notes = [
            f"{count:,} of {len(every):,} held-out samples are not asked: {why}"
            for why, count in reasons.items()
        ]
        held = [each for each in every if not each.left_out][:limit]
        if not held:
            raise DataError(": ".join(["has no held-out questions", *notes]), where="data")
        answers, seconds = self.answerer.answer([each.question for each in held])
        for each in judge(held, answers):
            say(row=vars(each))
        say(done={"seconds": seconds, "metric": self.recipe.metric, "notes": notes})


class _Pieces:
    """Say an answer's text token by token. Transformers' generate calls a streamer's `put` with the prompt
    first, and `end` at last."""

    def __init__(self, tokenizer: Any, say: Say) -> None:
        self.tokenizer, self.say = tokenizer, say
        self.tokens: list[int] | None = None
        self.shown = ""

    def put(self, tokens: Any) -> None:
        """Take the prompt, or the next token. A character may need several: half of one is not shown."""
        if self.tokens is None:
            self.tokens = []
            return
        self.tokens += tokens.reshape(-1).tolist()
        words = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        text = self.tokenizer.decode(self.tokens, **words)
        if text.startswith(self.shown) and not text.endswith("\ufffd"):
            piece, self.shown = text[len(self.shown) :], text
            if piece:
                self.say(piece=piece)

    def end(self) -> None:
        """Begin anew: the answer is whole."""
        self.tokens, self.shown = None, ""


if __name__ == "__main__":
    sys.exit(main())
