"""Answers questions with a trained model: one JSON request on standard input, JSON lines on standard output.

Run by `muster ask` in a process of its own: python -m muster.worker.ask
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from muster.core.errors import DataError, MusterError
from muster.core.recipe import Recipe, recipe_from
from muster.core.registry import load_plugin
from muster.worker.workloads.base import HeldOut


def main() -> int:
    """Read the request, answer it. Errors go out as {"error": ...}."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not disturb the answers
    request = json.loads(sys.stdin.read())
    try:
        for line in answer(request):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            out.flush()
    except MusterError as error:
        out.write(json.dumps({"error": {**error.as_dict(), "code": error.exit_code}}) + "\n")
        out.flush()
        return error.exit_code
    return 0


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers to request["questions"], or to the held-out set where request["evaluate"] is true.

    A workload whose held-out set is not questions has `score` for it.
    """
    import torch

    recipe = recipe_from(request["recipe"])
    workload = load_plugin("muster.worker.workloads", recipe.workload)
    device = "cuda" if torch.cuda.is_available() and recipe.launch.device != "cpu" else "cpu"
    answerer = workload.Answerer(Path(request["model"]), recipe, device)
    if request.get("evaluate") and hasattr(workload, "score"):
        figures = workload.score(answerer, Path(request["cache"]), request.get("limit"))
        return [{"seconds": figures.pop("seconds"), "questions": 0, "device": device, "figures": figures}]
    if request.get("evaluate"):
        questions = _held_out(workload, recipe, Path(request["cache"]), request.get("limit"))
    else:
        questions = [HeldOut(text, "") for text in request["questions"]]
    answers, seconds = answerer.answer([q.question for q in questions])
    lines: list[dict[str, Any]] = []
    if request.get("evaluate"):
        from muster.worker.quality import judge

        for each in judge(questions, answers):
            lines.append(
                {
                    "question": each.question.question,
                    "predicted": each.predicted,
                    "expected": each.question.expected,
                    "exact": each.exact,
                    "executed": each.executed,
                    "unscored": each.unscored,
                }
            )
    else:
        lines = [{"question": q.question, "predicted": a} for q, a in zip(questions, answers, strict=True)]
    metric = getattr(workload, "METRIC", "exact match")
    return [*lines, {"seconds": seconds, "questions": len(questions), "device": device, "metric": metric}]


def _held_out(workload: ModuleType, recipe: Recipe, cache: Path, limit: int | None) -> list[HeldOut]:
    held: list[HeldOut] = workload.questions(recipe, cache)
    if not held:
        raise DataError("has no held-out questions", where="data")
    return held[:limit]


if __name__ == "__main__":
    sys.exit(main())
