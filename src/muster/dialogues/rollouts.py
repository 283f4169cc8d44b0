"""Answers that the trained model draws: in training and for held-out prompts, with the time that takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler
from transformers import GenerationConfig
from transformers.trainer_utils import EvalLoopOutput
from trl.distributed import DistributedBackend
from trl.models import unwrap_model_for_generation

from muster.dialogues.load import Encoding
from muster.dialogues.rl import Generation
from muster.dialogues.rows import Dialogue, prompt_too_long
from muster.dialogues.scoring import Scorer
from muster.dialogues.tokens import usable
from muster.worker.data.padding import padded
from muster.worker.data.sampler import GroupedSampler
from muster.worker.together import gather
from muster.worker.trainer import BeforeTrainer

BATCH = 64  # held-out prompts that are answered at once


class Prompts(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Samples by their number: a row is {"prompt": "17"}, since TRL wants a text there; what it means is in
    `samples` and `tokens`."""

    def __init__(self, samples: Sequence[Dialogue], encoding: Encoding, longest: int) -> None:
        def make(sample: Dialogue) -> tuple[Dialogue, list[int]]:
            tokens = encoding.templates.prompt(sample.turns)
            if len(tokens) > longest:
                raise prompt_too_long(len(tokens), longest, f"generation.prompt={longest:,}", sample.where)
            return sample, tokens

        rows = usable(samples, make, encoding.errors)
        self.samples, self.tokens = [sample for sample, _ in rows], [tokens for _, tokens in rows]
        self.lengths = [len(each) for each in self.tokens]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"prompt": str(range(len(self))[index])}


class Repeated(Sampler[int]):  # type: ignore[misc]
    """Every global batch of an order of prompts `passes` times, and in it each prompt `answers` times in a
    row. An epoch has every prompt, since the order fills up its last batch."""

    def __init__(self, order: GroupedSampler, passes: int, answers: int = 1) -> None:
        self.order, self.passes, self.answers = order, passes, answers

    def __len__(self) -> int:
        return len(self.order) * self.passes * self.answers

    def __iter__(self) -> Iterator[int]:
        indices, size = list(self.order), self.order.global_batch
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            yield from [index for index in batch for _ in range(self.answers)] * self.passes


def generation_config(generation: Generation, tokenizer: Any, *, sampled: bool) -> GenerationConfig:
    """Make Transformers' configuration. `sampled`: else the likeliest token is taken each time."""
    drawn = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
    }
    return GenerationConfig(
        max_new_tokens=generation.answer,
        do_sample=sampled,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        disable_compile=True,
        use_cache=True,
        **(drawn if sampled else {}),
    )


@contextmanager
def as_asked(model: Any) -> Iterator[None]:
    """Let a model answer by the settings that it is given alone. Transformers fills those that are left open
    from the model's own generation_config, such as a published chat model's penalty for repetition: what is
    drawn then has other probabilities than the loss computes."""
    whole = getattr(model, "get_base_model", lambda: model)()  # of one with adapters
    before, whole.generation_config = whole.generation_config, GenerationConfig()
    try:
        yield
    finally:
        whole.generation_config = before


def generate(
    trainer: Any,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    batch: int = BATCH,
) -> list[list[int]]:
    """Return the answers' tokens, each with its end if it came. Every rank has to call it.

    Under ZeRO-3 and FSDP the whole parameters are gathered once for all of them.
    """
    answers: list[list[int]] = []
    device = trainer.accelerator.device
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, generation_kwargs=config.to_diff_dict()
        ) as unwrapped,
        torch.no_grad(),
        DistributedBackend(trainer.accelerator).summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        model = trainer.generating(unwrapped)
        training = model.training
        model.eval()
        for start in range(0, len(prompts), batch):
            chosen = prompts[start : start + batch]
            inputs, mask = padded(chosen, int(config.pad_token_id), left=True)
            with as_asked(model):
                made = model.generate(
                    inputs.to(device), attention_mask=mask.to(device), generation_config=config
                )
            answers += [ended(row, int(config.eos_token_id)) for row in made[:, inputs.shape[1] :].tolist()]
        model.train(training)
    return answers


def ended(tokens: list[int], end: int) -> list[int]:
    """Cut tokens behind the first end, which is one of them."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


class Rollouts(BeforeTrainer):  # type: ignore[misc]
    """Goes before a trainer that generates. `prompts`: those that it is trained on.

    `phase_seconds`: what the rank spent on each phase; the meter reads them and sets them to 0.
    """

    def __init__(
        self, *, encoding: Encoding, prompts: Prompts, scorer: Scorer, generation: Generation, **given: Any
    ) -> None:
        self.encoding, self.prompts = encoding, prompts
        self.scorer, self.generation = scorer, generation
        self.phase_seconds: dict[str, float] = {}
        super().__init__(**given)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as the phase's. Inner phases are left out of outer ones."""
        seconds = self.phase_seconds
        before, began = sum(seconds.values()), time.perf_counter()
        try:
            yield
        finally:
            inner = sum(seconds.values()) - before
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began - inner

    def evaluation_loop(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> EvalLoopOutput:
        """Return the mean reward of the likeliest answers to held-out prompts; every rank answers its
        share."""
        held: Prompts = self.eval_dataset.inner
        ranks, rank = self.args.world_size, self.args.process_index
        mine = list(range(rank, len(held), ranks))
        config = generation_config(self.generation, self.encoding.tokenizer, sampled=False)
        answers = generate(self, [held.tokens[index] for index in mine], config)
        rewards = self.scorer([held.samples[index] for index in mine], answers)
        scored = [each for part in gather([*zip(rewards, map(len, answers), strict=True)]) for each in part]
        metrics = {
            f"{metric_key_prefix}_reward": sum(reward for reward, _ in scored) / len(scored),
            f"{metric_key_prefix}_completions/mean_length": sum(size for _, size in scored) / len(scored),
        }
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(scored))

    @staticmethod
    def generating(model: Any) -> Any:
        """Return the model that generates, of the trained module."""
        return model
