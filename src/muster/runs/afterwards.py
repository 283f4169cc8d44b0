"""What follows a run: the exact next command, and how to load the trained model without Muster."""

from __future__ import annotations

import json
import shlex
from typing import Any

from muster.core import families
from muster.dialogues.rows import PROMPTS_NOTE as PROMPTS
from muster.runs.resume import frozen_recipe
from muster.store.runfolder import RunFolder, from_here


def next_command(run: RunFolder, *, asked: bool = False) -> str:
    """Return the command to type next in the current folder. `asked`: the model has just answered questions.
    """
    if not run.model.is_dir():
        return f"muster show {run.word}"
    if asked or frozen_recipe(run).example(None) is None:
        return f"muster ask {run.word} --evaluate"
    question = _example(run)
    return f"muster ask {run.word}" + (f" {shlex.quote(question)}" if question else "")


def loading_lines(run: RunFolder) -> str:
    """Return Python that loads the trained model and asks it, with the answer that `muster ask` gives; empty
    where there is no model, or it reads no text."""
    if not run.model.is_dir():
        return ""
    recipe = frozen_recipe(run)
    example = recipe.example(_example(run))
    if example is None:
        return ""
    question, longest = example
    new = recipe.evaluate.max_new_tokens or longest
    config = run.read_json(run.model / "config.json")
    positions = families.positions(config)
    if positions and not config.get("is_encoder_decoder"):
        new = min(new, positions // 2)  # as worker/decoders.py: room_of
    chat = (run.model / "chat_template.jinja").is_file()  # where Transformers keeps it
    chat = chat and PROMPTS not in run.read_json(run.model / "tokenizer_config.json")
    return ((chat and recipe.loading_chat) or recipe.loading).format(
        model=json.dumps(from_here(run.model)),
        question=json.dumps(question, ensure_ascii=False),
        new=new,
        recipe=recipe,
    )


def answers_of(run: RunFolder, count: int) -> list[dict[str, Any]]:
    """Return a few held-out answers, spread over the set so that they show different kinds of questions."""
    if not run.predictions.exists():
        return []
    rows = [json.loads(line) for line in run.predictions.read_text(encoding="utf-8").splitlines()]
    return rows[:: max(1, len(rows) // count)][:count]


def _example(run: RunFolder) -> str | None:
    """Return a held-out question that the model has answered; None where there is none."""
    try:
        with run.predictions.open(encoding="utf-8") as lines:
            return str(json.loads(next(lines))["question"])
    except (OSError, StopIteration, ValueError, KeyError):
        return None
