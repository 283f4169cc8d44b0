"""The actor, which answers, and the critic, which expects rewards, as one module: one engine spreads both,
and one optimizer trains both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from muster.core.errors import RecipeError
from muster.dialogues.rewarding import make_reward_model
from muster.dialogues.scoring import check_tokenizer
from muster.dialogues.tokens import length_of
from muster.worker.context import Context
from muster.worker.data.padding import padded
from muster.worker.models import without_dropout
from muster.workloads.ppo.objective import entropy_of, log_probs_of
from muster.workloads.ppo.spec import PpoRecipe


@dataclass(frozen=True)
class AnsweredPrompts:
    """Prompts with their answers, padded behind them.

    `input_ids`, `attention_mask`: (answers, length); `mask`: (answers, columns), 1 for the answers' tokens in
    the last columns, which begin where the first answer does.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(
        cls,
        prompts: Sequence[list[int]],
        answers: Sequence[list[int]],
        pad: int,
        length: int | None,
        multiple: int,
    ) -> AnsweredPrompts:
        """Make it from token numbers. `length`: of all rows, or None: of the longest, in whole multiples."""
        rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        inputs, attention = padded(rows, pad, length or length_of(rows, multiple))
        mask = attention.clone()
        for index, prompt in enumerate(prompts):
            mask[index, : len(prompt)] = 0
        return cls(inputs, attention, mask[:, min(map(len, prompts)) :])

    def to(self, device: torch.device) -> AnsweredPrompts:
        """Copy it to a device."""
        return AnsweredPrompts(
            self.input_ids.to(device), self.attention_mask.to(device), self.mask.to(device)
        )

    @property
    def tokens(self) -> torch.Tensor:
        """(answers, columns): those that `mask` speaks of."""
        return self.input_ids[:, -self.mask.shape[1] :]


class ActorCritic(PreTrainedModel):  # type: ignore[misc]
    """A causal language model beside a decoder that gives a number at every position."""

    supports_gradient_checkpointing = True

    def __init__(self, actor: Any, critic: Any, temperature: float) -> None:
        sizes = [each.config.hidden_size for each in (actor, critic)]
        super().__init__(PreTrainedConfig(hidden_size=max(sizes), use_cache=False))
        self.actor, self.critic = without_dropout(actor), without_dropout(critic)
        self.temperature = temperature

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, columns: int, entropy: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Return log-probabilities of the last tokens, the values before they were drawn, and where it is
        asked for the entropy that they were drawn with; (answers, columns) each."""
        logits = logits_of(self.actor, input_ids, attention_mask, columns)
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        hidden = self.critic.base_model(**given)[0]
        values = self.critic.score(hidden[:, -columns - 1 : -1])[..., 0].float()
        outputs = (log_probs_of(logits, input_ids[:, -columns:], self.temperature), values)
        return (*outputs, entropy_of(logits, self.temperature)) if entropy else outputs


def logits_of(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, columns: int
) -> torch.Tensor:
    """Return (answers, columns, vocabulary) logits of the model before each of the last tokens."""
    given = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
    logits: torch.Tensor = model(**given, logits_to_keep=columns + 1).logits[:, :-1]
    return logits


def make_critic(context: Context, tokenizer: Any) -> Any:
    """Make the critic as the recipe wants it, trained whole. Raises RecipeError."""
    recipe = context.recipe
    assert isinstance(recipe, PpoRecipe)
    where = "ppo.critic" if recipe.ppo.critic else "reward.model"
    name = recipe.ppo.critic or recipe.reward.model
    changes: dict[str, Any] = {"lora": None}
    if name:
        check_tokenizer(name, tokenizer, where)
        start = {"name": name, "init": "pretrained", "config": None}
        changes["model"] = recipe.model.model_copy(update=start)
    critic = make_reward_model(replace(context, recipe=recipe.model_copy(update=changes)), tokenizer)
    if not hasattr(critic, "score"):
        raise RecipeError(f"a {critic.config.model_type} has no layer that values each position", where=where)
    return critic
