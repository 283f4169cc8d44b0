"""What grpo and rloo share in the ranks: TRL's trainers draw several answers to a prompt and compare them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import trl

from muster.core.errors import RecipeError
from muster.dialogues.answer import Answerer, executed, questions
from muster.dialogues.load import Encoding
from muster.dialogues.rl import GroupRecipe
from muster.dialogues.rollouts import Prompts, Repeated, Rollouts, as_asked
from muster.dialogues.scoring import Scorer
from muster.dialogues.trl import TrlTrainer
from muster.worker.context import Context
from muster.worker.decoders import make_model
from muster.worker.trainer import wired
from muster.worker.workloads.base import Built, Counts

__all__ = ["Answerer", "Grouped", "build", "questions"]


class Grouped(Rollouts, TrlTrainer):
    """Goes before TRL's GRPOTrainer and RLOOTrainer among the base classes. `placed`: the model takes
    position_ids."""

    def __init__(self, *, placed: bool, **given: Any) -> None:
        self.placed = placed
        super().__init__(**given)

    def _get_train_sampler(self, dataset: Any = None) -> Repeated:
        """Deal Muster's order of prompts as TRL deals its own: the answers to one prompt go to all ranks.
        TRL's own order leaves out the last prompts of an epoch where they do not fill a batch."""
        passes = self.num_iterations * self.args.steps_per_generation
        return Repeated(self.sampler, passes, self.num_generations)

    def _tokenize_prompts(self, numbers: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Return the tokens that every workload of dialogues makes."""
        return [self.prompts.tokens[int(number)] for number in numbers], None, {}

    def _generate(self, *args: Any, **named: Any) -> Any:
        with self.phase("generating"), as_asked(self.accelerator.unwrap_model(self.model)):
            return super()._generate(*args, **named)

    def _calculate_rewards(self, *args: Any, **named: Any) -> Any:
        with self.phase("scoring"):
            return super()._calculate_rewards(*args, **named)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **named: Any) -> Any:
        """Compute as TRL does, with each token at the position at which it was drawn. TRL pads prompts at
        their begin and gives no positions: learned ones (GPT-2's) would count the padding."""

        def forward(attention_mask: Any, **given: Any) -> Any:
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)
            return model(attention_mask=attention_mask, position_ids=places, **given)

        return super()._get_per_token_logps_and_entropies(forward if self.placed else model, *args, **named)


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe. Raises DataError and RecipeError."""
    recipe = context.recipe
    assert isinstance(recipe, GroupRecipe)
    group, base = recipe.group, getattr(trl, f"{recipe.trl}Trainer")
    make_arguments = getattr(trl, f"{recipe.trl}Config")
    if context.batch.global_ % group.answers:
        raise RecipeError(
            f"is {context.batch.global_:,} answers, and each prompt has {group.answers}",
            where="batch.global",
            hint=f"a multiple of {group.answers}",
        )
    encoding, generation = Encoding(context), recipe.generation
    tokenizer, samples = encoding.tokenizer, encoding.samples
    train, held = (Prompts(part, encoding, generation.prompt) for part in (samples.train, samples.held_out))
    scorer = Scorer(context, recipe, tokenizer)
    model = make_model(context, encoding.config, tokenizer)
    whole = model.get_base_model() if recipe.lora else model

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """Score answers to prompts, which are numbers."""
        return scorer([train.samples[int(each)] for each in prompts], completion_ids)

    trainer = wired(
        type(base.__name__, (Grouped, base), {}),
        context,
        model,
        make_arguments(
            **arguments,
            num_generations=group.answers,
            num_generations_eval=1,
            max_completion_length=generation.answer,
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            generation_kwargs={"use_cache": True},  # else as the model's configuration says, which has it off
            beta=group.beta,
            epsilon=group.clip,
            epsilon_high=None,  # the same
            num_iterations=group.epochs,
            disable_dropout=True,  # else a token's probability differs from when it was drawn
            repetition_penalty=1.0,
            mask_truncated_completions=False,
            sync_ref_model=False,
            **recipe.trl_arguments(),
        ),
        train=train,
        held_out=held,
        lengths=train.lengths,
        collator=None,
        processing=tokenizer,
        global_batch=context.batch.global_ // group.answers,  # in prompts
        own_loss=True,
        encoding=encoding,
        generation=generation,
        prompts=train,
        scorer=scorer,
        placed="position_ids" in inspect.signature(type(whole).forward).parameters,
        reward_funcs=[reward],
    )

    def count(_: Any) -> Counts:
        """Count the answers of the last micro-step, with their prompts."""
        made: Sequence[Mapping[str, Any]] = trainer._buffered_inputs
        batch = made[(trainer._step - 1) % len(made)]
        masks = [batch["prompt_mask"], batch["completion_mask"]]
        return Counts(len(masks[0]), sum(mask.sum() for mask in masks), sum(mask.numel() for mask in masks))

    return Built(
        trainer,
        count,
        len(train) * group.answers,
        executed(held.samples),
        0,
        encoding.skipped,
        len(held),
        encoding.notes,
        after=True,
        flops=False,  # of generation, mostly
    )
