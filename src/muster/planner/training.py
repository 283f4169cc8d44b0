"""Describe the training: its steps, optimizer, decay groups, schedule and order. Pure."""

from __future__ import annotations

from muster.core import families
from muster.core.batch import Batch
from muster.core.learning_rate import steps_of, warmup_steps
from muster.core.recipe import Recipe, Train
from muster.core.units import counted, format_count
from muster.engines.base import Fixed, spec_of
from muster.engines.states import elements
from muster.planner.document import TrainingPlan
from muster.planner.memory.fit import Setting

LARGE = 50_000_000  # parameters of a model that is not a recipe's own small one
FAR = 3.0  # times the published rate
FILLED = 0.05  # of an epoch's samples: what its last batch may repeat without a word


def training_plan(
    recipe: Recipe, setting: Setting | None, batch: Batch, samples: int | None, tokens: int | None = None
) -> TrainingPlan:
    """Describe the training. `samples`: of an epoch, None: not known; `setting`: None where the model is not
    known; `tokens`: to be trained in place of what the recipe says."""
    fixed, train = spec_of(recipe.engine.name).given(recipe), recipe.train
    if tokens is not None:
        train = train.model_copy(update={"max_steps": None, "max_minutes": None, "epochs": 1.0})
    steps = None
    if train.max_steps or samples is not None:
        steps = steps_of(train, samples or 0, batch.global_, batch.accumulation)
    length = "train.max_steps"
    if tokens is not None:
        length = f"{format_count(tokens)} tokens (--tokens)"
    elif not train.max_steps:
        length = f"{train.epochs:g} epoch{'s' if train.epochs != 1 else ''}"
        length += f" of {counted(samples, 'sample') if samples is not None else 'all samples'}"
    if train.max_minutes:
        length += f", and at most {train.max_minutes:g} minutes (train.max_minutes)"
    alike = ", those of similar length in a batch" if recipe.padding_varies else ""
    return TrainingPlan(
        samples=samples,
        steps=steps,
        length=length,
        optimizer=_optimizer(train, fixed),
        decay=_decay(train, setting),
        schedule=fixed.schedule or _schedule(train, steps),
        order=f"drawn anew in each epoch by train.seed={train.seed}{alike}; the same on any number of ranks",
    )


def rate_note(rate: float, parameters: int) -> str | None:
    """Return a note where a learning rate that the user did not give is far above those with which models of
    this size are trained; None: it is not."""
    name, how = families.published_near(parameters)
    if parameters < LARGE or rate < FAR * how.learning_rate:
        return None
    return (
        f"train.learning_rate={rate:g} is the recipe's, for a model of its own: {name} was trained with "
        f"{how.learning_rate:g}, and fine-tunes take less"
    )


def filling_note(training: TrainingPlan, batch: Batch) -> str | None:
    """Return a note where a good part of an epoch's samples is trained twice, to fill its last batch."""
    samples, steps = training.samples or 0, training.steps or 0
    again = -samples % batch.global_
    if again <= FILLED * samples or steps * batch.global_ < samples:
        return None
    return (
        f"an epoch has {counted(samples, 'sample')} in batches of {batch.global_:,}: its last batch is "
        f"filled with {counted(again, 'sample')} that it trains once more"
    )


def _optimizer(train: Train, fixed: Fixed) -> str:
    """Return the optimizer with the betas and the epsilon, which one other than AdamW has where its
    configuration gives them."""
    rate = train.learning_rate if train.learning_rate == "auto" else f"{train.learning_rate:g}"
    parts = [fixed.optimizer or train.optimizer, f"learning rate {rate}"]
    if fixed.optimizer is None or "beta1" in fixed.train:
        parts.append(f"betas {train.beta1:g} and {train.beta2:g}")
    if fixed.optimizer is None or "epsilon" in fixed.train:
        parts.append(f"epsilon {train.epsilon:g}")
    parts.append(f"gradients clipped at {train.clip:g}" if train.clip else "no clipping")
    return ", ".join(parts)


def _decay(train: Train, setting: Setting | None) -> str:
    if not train.weight_decay:
        return "no weight decay"
    sizes = ["", ""]
    groups = setting.spread.optimizer_groups(setting.tensors) if setting is not None else []
    if len(groups) == 2:
        sizes = [f" ({format_count(elements(group))} parameters)" for group in groups]
    return f"{train.weight_decay:g} of matrices{sizes[0]}, none of norms and biases{sizes[1]}"


def _schedule(train: Train, steps: int | None) -> str:
    if train.schedule == "constant":
        return train.schedule
    if steps is not None or train.warmup >= 1:
        return f"{train.schedule}, {counted(warmup_steps(train, steps or 0), 'step')} of warm-up"
    return f"{train.schedule}, {100 * train.warmup:g} % of the steps as warm-up"
