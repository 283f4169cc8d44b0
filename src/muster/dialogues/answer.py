"""A trained model answers: held-out prompts, and what `muster ask` is asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from muster.dialogues.load import read
from muster.dialogues.rows import Dialogue, Turn
from muster.dialogues.spec import DialogueRecipe
from muster.dialogues.tokens import Templates, converses, turns_of
from muster.worker import answering
from muster.worker.data.padding import padded
from muster.worker.decoders import room_of
from muster.worker.workloads.base import HeldOut


def questions(recipe: DialogueRecipe, cache: Path) -> list[HeldOut]:
    """Read the held-out prompts with their answers; some are left out, with the reason. Raises DataError."""
    held = read(recipe, cache, may_write=True).held_out
    return [
        HeldOut(each.question, each.answer or "", each.database, left_out=_unasked(each)) for each in held
    ]


def _unasked(sample: Dialogue) -> str | None:
    if not sample.answer:
        return "they have no expected answer"
    return "they have messages before the question" if len(sample.turns) > 1 else None


def asked(samples: Sequence[Dialogue]) -> list[HeldOut]:
    """Return samples of one turn as questions."""
    return [
        HeldOut(each.question, each.answer, each.database)
        for each in samples
        if _unasked(each) is None and each.answer
    ]


def executed(samples: Sequence[Dialogue]) -> list[HeldOut]:
    """Return the questions that a database judges. Of other answers, few are right word by word: they are
    left out."""
    return [each for each in asked(samples) if each.database]


class Answerer(answering.Answerer):
    """Answer prompts, and chat messages with their earlier turns."""

    kind = AutoModelForCausalLM
    tokenized = True

    def __init__(self, folder: Path, recipe: Any, device: str) -> None:
        super().__init__(folder, recipe, device)
        self.templates = Templates(self.tokenizer)

    @property
    def converses(self) -> bool:
        """Whether the model was trained on chat messages, and takes earlier turns."""
        return converses(self.tokenizer)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answer(
        self, questions: Sequence[str], before: Sequence[tuple[str, str]] = ()
    ) -> tuple[list[str], float]:
        """Return the answers in the order of the questions, and the seconds from tokenizing to text.

        `before`: earlier turns of the conversation that each question goes on with: role and text.
        """
        began = time.perf_counter()
        turns = [Turn(*turn) for turn in before]
        prompts = [self.templates.prompt(turns_of(self.tokenizer, text, turns)) for text in questions]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        answers = [""] * len(prompts)
        for start in range(0, len(order), self.recipe.evaluate.batch):
            part = order[start : start + self.recipe.evaluate.batch]
            made = self._generated([prompts[index] for index in part])
            for index, text in zip(part, made, strict=True):
                answers[index] = text.strip()
        return answers, time.perf_counter() - began

    def _generated(self, prompts: Sequence[list[int]]) -> list[str]:
        new, room = room_of(self.model.config, self.recipe.new_tokens)
        inputs, mask = padded([prompt[-room:] for prompt in prompts], self.tokenizer.pad_token_id, left=True)
        made = self.model.generate(
            inputs.to(self.device),
            attention_mask=mask.to(self.device),
            max_new_tokens=new,
            num_beams=self.recipe.evaluate.beams,
            do_sample=False,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            streamer=self.streamer,
        )
        texts: list[str] = self.tokenizer.batch_decode(
            made[:, inputs.shape[1] :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts
