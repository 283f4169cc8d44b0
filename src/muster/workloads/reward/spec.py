"""Reward models, as the control side knows them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.core.workload import Output
from muster.dialogues.spec import DialogueRecipe

_LOADING = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
words = AutoTokenizer.from_pretrained({{model}})
model = AutoModelForSequenceClassification.from_pretrained({{model}})
prompt, answer = (part.strip() for part in {{question}}.split("=>", 1))
{parts}
end = words.eos_token_id
tokens += said[: len(said) - said[::-1].index(end)] if end in said else [*said, end]
print(format(model(torch.tensor([tokens])).logits.item(), ".4f"))"""


class RewardRecipe(DialogueRecipe):
    """A decoder with one number on top learns which of two answers is better. A sample is a pair."""

    packages: ClassVar[tuple[str, ...]] = ("trl",)
    pairs: ClassVar[bool] = True
    dropout: ClassVar[bool] = False
    traced: ClassVar[bool | str] = "muster.dialogues.tracing:REWARDED"
    output: ClassVar[Output] = "numbers"
    metric: ClassVar[str] = "pair accuracy"
    loading: ClassVar[str] = _LOADING.format(
        parts="""\
tokens, said = words(prompt).input_ids, words(answer, add_special_tokens=False).input_ids"""
    )
    # Prompt and answer become tokens apart, as in training.
    loading_chat: ClassVar[str] = _LOADING.format(
        parts="""\
chat = [{{"role": "user", "content": prompt}}, {{"role": "assistant", "content": answer}}]
before = words.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
answer = words.apply_chat_template(chat, tokenize=False)[len(before):]
tokens, said = (words(part, add_special_tokens=False).input_ids for part in (before, answer))"""
    )

    workload: str = Field("reward", description=WORKLOAD)

    def example(self, question: str | None) -> tuple[str, int]:
        """Return a prompt with its answer."""
        return question or "How are you? => Well.", 0


RECIPE = RewardRecipe
