"""Reward model: a decoder with one number on top learns which of two answers is better."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, TrainerCallback
from trl import RewardConfig, RewardTrainer

from muster.core.errors import UsageError
from muster.dialogues.answer import Answerer as Dialogues
from muster.dialogues.load import Encoding, read
from muster.dialogues.pairs import PairTrainer
from muster.dialogues.pairs import build as build_pairs
from muster.dialogues.rewarding import make_reward_model, read_at_end, rewards, settle_padding
from muster.dialogues.rows import Dialogue, Turn
from muster.dialogues.tokens import turns_of
from muster.worker.context import Context
from muster.worker.workloads.base import Built


class _Padding(TrainerCallback):  # type: ignore[misc]
    """Settles it when training begins: TRL's trainer has set it, and Transformers' has taken the tokenizer's
    (trainer_utils.py: align_special_tokens)."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, processing_class: Any = None, **_: Any
    ) -> None:
        """Settle the padding before the first step."""
        settle_padding(model, processing_class)


class _Trainer(PairTrainer, RewardTrainer):  # type: ignore[misc]
    """TRL's, with exact figures over held-out pairs."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.add_callback(_Padding())

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **named: Any) -> Any:
        """Return -log sigmoid(reward of the chosen answer - reward of the rejected one), the mean over pairs
        (Ouyang et al. 2022, equation 1)."""
        given = {name: each for name, each in inputs.items() if name != "completion_mask"}
        chosen, rejected = model(**given, use_cache=False).logits.squeeze(-1).chunk(2)
        if self.model.training:
            return self.preferring(chosen, rejected)
        self.seen(inputs, chosen, rejected)
        return chosen.new_zeros(())


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe. Raises DataError and RecipeError."""

    def models(encoding: Encoding) -> dict[str, Any]:
        """Make the model; its rows are padded at their end."""
        return {"model": make_reward_model(context, encoding.tokenizer, longest=encoding.sequence)}

    own = {"center_rewards_coefficient": None}
    return build_pairs(context, arguments, _Trainer, RewardConfig, models, **own)


class Answerer(Dialogues):
    """The saved model, which gives a number for a prompt with its answer."""

    kind = AutoModelForSequenceClassification
    converses = False

    def __init__(self, folder: Path, recipe: Any, device: str) -> None:
        super().__init__(folder, recipe, device)
        read_at_end(self.model)

    def answer(self, questions: Sequence[str], before: Any = ()) -> tuple[list[str], float]:
        """Return the reward of each "prompt => answer". Raises UsageError for a question without an
        answer."""
        began = time.perf_counter()
        pairs = []
        for question in questions:
            prompt, arrow, answer = question.partition("=>")
            if not arrow or not prompt.strip() or not answer.strip():
                raise UsageError(
                    "is no prompt with an answer, and a reward model judges answers",
                    where=f"the question {question!r}",
                    hint='muster ask RUN "prompt => answer"',
                )
            pairs.append((turns_of(self.tokenizer, prompt.strip()), answer.strip()))
        return [f"{each:.4f}" for each in self.rewards(pairs).tolist()], time.perf_counter() - began

    def rewards(self, pairs: Sequence[tuple[Sequence[Turn], str]]) -> torch.Tensor:
        """Return (pairs) rewards of answers to these turns."""
        texts = [
            [*self.templates.prompt(turns), *self.templates.answer(turns, answer)] for turns, answer in pairs
        ]
        return rewards(self.model, texts, self.tokenizer.pad_token_id, self.recipe.evaluate.batch)

    def score(self, cache: Path, limit: int | None) -> dict[str, float]:
        """Return accuracy and margin on held-out pairs. Raises DataError."""
        began = time.perf_counter()
        held: list[Dialogue] = read(self.recipe, cache, may_write=True).held_out[:limit]
        chosen = self.rewards([(each.turns, each.answer or "") for each in held])
        rejected = self.rewards([(each.turns, each.rejected or "") for each in held])
        margin = chosen - rejected
        return {
            "pair_accuracy": float((margin > 0).float().mean()),
            "margin": float(margin.mean()),
            "pairs": len(held),
            "seconds": time.perf_counter() - began,
        }
