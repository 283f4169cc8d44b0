"""Proximal policy optimization: a decoder draws answers, and a critic says what reward to expect of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DummyOptim, set_seed
from transformers import TrainingArguments
from trl.models.utils import prepare_deepspeed

from muster.dialogues.answer import Answerer, executed, questions
from muster.dialogues.load import Encoding
from muster.dialogues.rollouts import Prompts, Repeated, Rollouts, generate, generation_config
from muster.dialogues.scoring import Scorer
from muster.dialogues.trl import Means
from muster.worker.context import Context
from muster.worker.decoders import make_model
from muster.worker.models import without_dropout
from muster.worker.saving import write_merged
from muster.worker.trainer import Trainer, wired
from muster.worker.workloads.base import Built, Counts
from muster.workloads.ppo.actor_critic import ActorCritic, AnsweredPrompts, logits_of, make_critic
from muster.workloads.ppo.objective import advantages_of, log_probs_of, policy_loss, token_rewards, value_loss
from muster.workloads.ppo.spec import Ppo, PpoRecipe

__all__ = ["Answerer", "build", "questions"]


@dataclass
class Experience:
    """A micro-batch of answers with what was true when they were drawn; (answers, columns) each."""

    answered: AnsweredPrompts
    log_probs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class _Trainer(Means, Rollouts, Trainer):
    """Muster's trainer; each optimizer step begins with answers to its prompts, or goes on with those of the
    step before. All micro-batches of a step are answered at once. `reference`: the model that the actor is
    held to, which is never trained; None: the actor without its adapters."""

    loss_is_scaled_for_ga = True

    def __init__(self, *, ppo: Ppo, reference: Any, **given: Any) -> None:
        super().__init__(**given)
        self.ppo, self.reference = ppo, reference
        if reference is not None:  # in shards where the actor is
            without_dropout(reference).requires_grad_(False)
            self.reference = (
                prepare_deepspeed(reference, self.accelerator)
                if self.is_deepspeed_enabled
                else self.accelerator.prepare_model(reference, evaluation_mode=True).eval()
            )
        self._waiting: list[list[int]] = []  # prompts of micro-batches that are to be answered
        self._left = 0  # steps on the answers there are
        self._experiences: list[Experience] = []  # of this step's micro-batches, the next one first
        self._at = 0
        self._tokens = 1.0  # of all answers of the global batch

    @staticmethod
    def generating(model: Any) -> Any:
        """Return the actor."""
        return model.actor

    def _get_train_sampler(self, train_dataset: Any = None) -> Repeated:
        return Repeated(self.sampler, self.ppo.epochs)

    def create_optimizer(self, model: Any = None) -> Any:
        """Create Transformers' own optimizer, with a learning rate for the critic. DeepSpeed makes its own
        later, where the recipe wants one, from the groups of this one."""
        optimizer, rate = super().create_optimizer(model), self.ppo.critic_learning_rate
        if rate is None:
            return optimizer
        later = isinstance(optimizer, DummyOptim)
        groups = optimizer.params if later else optimizer.param_groups
        split = parted(groups, self.model.critic, rate)
        if later:
            optimizer.params = split
        else:
            optimizer.param_groups[:] = split
        return optimizer

    def get_batch_samples(self, *given: Any) -> Any:
        """Take a step's micro-batches of prompts, which `training_step` answers."""
        batches, _ = super().get_batch_samples(*given)
        self._at = 0
        if not self._left:
            self._waiting = [batch["prompts"].tolist() for batch in batches]
            self._left = self.ppo.epochs - self.state.global_step % self.ppo.epochs
        self._left -= 1
        return batches, None

    def training_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Compute loss and gradient of a micro-batch of answers. They are in `inputs` afterwards."""
        if self._waiting:
            self._experiences = self._drawn(self._waiting)
            self._waiting = []
        answered = self._experiences[self._at].answered
        inputs |= {"input_ids": answered.input_ids, "attention_mask": answered.attention_mask}
        # It is a part of the step's loss already. Transformers 5.17 does not ask `loss_is_scaled_for_ga`.
        self.current_gradient_accumulation_steps = 1
        loss: torch.Tensor = super().training_step(model, inputs)
        self._at += 1
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        """Compute this rank's and micro-batch's part of the mean over all answers' tokens of the global
        batch: the policy's loss and the weighted value's. Engines average over ranks."""
        now, ppo = self._experiences[self._at], self.ppo
        mask = now.answered.mask
        log_probs, values = model(inputs["input_ids"], inputs["attention_mask"], mask.shape[1])
        policy, clipped = policy_loss(log_probs, now.log_probs, now.advantages, mask, ppo.clip)
        value = value_loss(values, now.values, now.returns, mask, ppo.value_clip)
        self.see("value_loss", value.detach(), mask.sum())
        self.see("clip_fraction", clipped, mask.sum())
        return (policy + ppo.value_weight * value) * (self.accelerator.num_processes / self._tokens)

    def _drawn(self, waiting: Sequence[Sequence[int]]) -> list[Experience]:
        """Draw answers to these prompts, which are numbers, and compute all that the loss needs of them."""
        micro, tokenizer = self.args.per_device_train_batch_size, self.encoding.tokenizer
        numbers = [number for batch in waiting for number in batch]
        prompts = [self.prompts.tokens[number] for number in numbers]
        config = generation_config(self.generation, tokenizer, sampled=True)
        with self.phase("generating"):
            answers = generate(self, prompts, config, batch=micro)
        samples = [self.prompts.samples[number] for number in numbers]
        with self.phase("scoring"):
            scores = self.scorer(samples, answers)
            made = [
                self._experience(prompts[part], answers[part], scores[part])
                for part in (slice(start, start + micro) for start in range(0, len(numbers), micro))
            ]
            self._settle(made)
        cut = sum(answer[-1] != tokenizer.eos_token_id for answer in answers)
        self.see("reward", sum(scores), len(answers))
        self.see("completions/mean_length", sum(map(len, answers)), len(answers))
        self.see("completions/clipped_ratio", cut, len(answers))
        return made

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _experience(
        self, prompts: Sequence[list[int]], answers: Sequence[list[int]], scores: Sequence[float]
    ) -> Experience:
        """Compute what is true of a micro-batch of answers when they are drawn."""
        encoding, ppo, device = self.encoding, self.ppo, self.accelerator.device
        pad = encoding.tokenizer.pad_token_id
        answered = AnsweredPrompts.of(prompts, answers, pad, encoding.fixed, encoding.multiple).to(device)
        mask = answered.mask
        given = (answered.input_ids, answered.attention_mask, mask.shape[1])
        self.model.eval()
        with self.accelerator.autocast():
            log_probs, values, entropy = self.model(*given, entropy=True)
            divergence = torch.zeros_like(log_probs)
            if ppo.kl:
                actor, own = self.model.actor, self.reference is None
                with actor.disable_adapter() if own else nullcontext():
                    logits = logits_of(actor if own else self.reference, *given)
                divergence = log_probs - log_probs_of(logits, answered.tokens, self.generation.temperature)
                self.see("kl", (divergence * mask).sum(), mask.sum())
        self.see("entropy", (entropy * mask).sum(), mask.sum())
        scored = torch.tensor(scores, device=device)
        rewards = token_rewards(scored, divergence, mask, ppo.kl, ppo.reward_clip)
        return Experience(
            answered, log_probs, values, *advantages_of(values, rewards, mask, ppo.gamma, ppo.lam)
        )

    def _settle(self, made: Sequence[Experience]) -> None:
        """Count the answers' tokens on all ranks; give their advantages mean 0 and variance 1 where that is
        wanted."""
        masks = [each.answered.mask.double() for each in made]
        moments = [
            torch.stack([mask.sum(), each.advantages.sum(), (each.advantages.double() ** 2).sum()])
            for mask, each in zip(masks, made, strict=True)
        ]
        summed = self.accelerator.reduce(torch.stack(moments).sum(0), "sum")
        self._tokens, total, squares = summed.tolist()
        if self.ppo.whiten:
            mean = total / self._tokens
            deviation = max(squares / self._tokens - mean**2, 0.0) ** 0.5
            for each in made:
                each.advantages = (each.advantages - mean) / (deviation + 1e-8) * each.answered.mask

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save both into checkpoints; else the actor, as any causal language model, and the critic in
        `critic/`."""
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
            return
        weights = self.accelerator.get_state_dict(self.model_wrapped)
        if not self.is_world_process_zero():
            return
        folder, actor = Path(output_dir or self.args.output_dir), self.model.actor
        if hasattr(actor, "peft_config"):
            actor.save_pretrained(str(folder / "adapter"), state_dict=_part(weights, "actor."))
            write_merged(actor, _part(weights, "actor."), folder)
        else:
            actor.save_pretrained(str(folder), state_dict=_part(weights, "actor."))
        self.model.critic.save_pretrained(str(folder / "critic"), state_dict=_part(weights, "critic."))
        for each in (folder, folder / "critic"):
            self.processing_class.save_pretrained(str(each))


def parted(groups: Sequence[dict[str, Any]], critic: Any, rate: float) -> list[dict[str, Any]]:
    """Divide an optimizer's groups of parameters: the critic's are in groups of their own behind the
    others."""
    own = {id(parameter) for parameter in critic.parameters()}
    split = []
    for inside, change in ((False, {}), (True, {"lr": rate})):
        for group in groups:
            part = [each for each in group["params"] if (id(each) in own) == inside]
            split += [{**group, "params": part, **change}] if part else []
    return split


def _part(weights: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe. Raises DataError and RecipeError."""
    recipe = context.recipe
    assert isinstance(recipe, PpoRecipe)
    encoding, generation = Encoding(context), recipe.generation
    tokenizer, samples = encoding.tokenizer, encoding.samples
    train, held = (Prompts(part, encoding, generation.prompt) for part in (samples.train, samples.held_out))
    scorer = Scorer(context, recipe, tokenizer)
    actor, critic = make_model(context, encoding.config, tokenizer), make_critic(context, tokenizer)
    own = recipe.ppo.kl and not recipe.lora
    reference = make_model(context, encoding.config, tokenizer) if own else None
    trainer = wired(
        _Trainer,
        context,
        ActorCritic(actor, critic, generation.temperature),
        TrainingArguments(**arguments),
        train=train,
        held_out=held,
        lengths=train.lengths,
        collator=_numbers,
        processing=tokenizer,
        grouped=recipe.padding_varies,
        own_loss=True,
        encoding=encoding,
        generation=generation,
        prompts=train,
        scorer=scorer,
        ppo=recipe.ppo,
        reference=reference,
    )
    set_seed(recipe.train.seed, device_specific=True)  # ranks draw different answers to the same prompt
    return Built(
        trainer,
        _count,
        len(train) * recipe.ppo.epochs,
        executed(held.samples),
        0,
        encoding.skipped,
        len(held),
        encoding.notes,
        after=True,
        flops=False,  # of generation, mostly
    )


def _numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    return {"prompts": torch.tensor([int(row["prompt"]) for row in rows])}


def _count(inputs: Mapping[str, Any]) -> Counts:
    """Count answers, and their tokens with those of their prompts."""
    mask = inputs["attention_mask"]
    return Counts(len(mask), mask.sum(), mask.numel())
