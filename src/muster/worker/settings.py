"""Whether a rank trains by the settings of its recipe, after every library has had its say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

from transformers import TrainerCallback

from muster.core.errors import WorkerError
from muster.core.learning_rate import learning_rate, warmup_steps
from muster.core.recipe import Train
from muster.engines.base import Fixed
from muster.store import events
from muster.worker.context import Context
from muster.worker.loss import TokenLoss
from muster.worker.models import dropouts_of

TOLERANCE = 1e-6  # relative; schedulers compute in another order
# Of a model's configuration: what Muster settles, and the ids of tokens, which Transformers takes from the
# tokenizer.
OWN = ("vocab_size", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id")
Setting = tuple[str, Any, Any]  # its key, what the recipe says, what the libraries hold


class SettingsWatch(TrainerCallback):  # type: ignore[misc]
    """Compares the recipe's settings with what is held before the first step, when optimizer and scheduler
    are made and the engine has the model; and in every step the learning rate, whose first difference becomes
    a note.

    A scheduler of the engine's own is not compared, nor the rate of each step in fp16, where skipped steps do
    not move the schedule.
    """

    def __init__(self, context: Context, trainer: Any) -> None:
        self.context, self.trainer = context, trainer
        self.fixed, self.train = context.spec.fixed(context.engine_config or {}), context.recipe.train
        self.scheduled = not self.fixed.schedule
        self.watching = context.main and self.scheduled and context.precision != "fp16"

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Raise WorkerError for the first setting that is held otherwise."""
        trainer = self.trainer
        settings = [
            *of_arguments(self.context, args),
            *of_engine(self.context, trainer.model_wrapped),
            *of_autocast(self.context, trainer.accelerator),
            *of_loss(self.train, trainer.compute_loss_func, model),
            *of_model(self.context, model),
            *of_optimizer(self.fixed, self.train, optimizer),
            *of_sampler(self.context, getattr(trainer, "sampler", None), train_dataloader),
        ]
        if self.scheduled:
            settings += of_schedule(self.train, lr_scheduler, state.max_steps)
        for key, wanted, held in settings:
            if not alike(wanted, held):
                raise WorkerError(
                    f"is {wanted} in the recipe, and the training would use {held}",
                    where=key,
                    hint="a library or a configuration of the engine's own changes it",
                )

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Compare the rate that this step uses."""
        if not self.watching or optimizer is None:
            return
        step, train = state.global_step + 1, self.train
        wanted = learning_rate(train, step, state.max_steps)
        rate = float(optimizer.param_groups[0]["lr"])
        if not math.isclose(rate, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE * train.rate):
            self.watching = False
            self.context.emit(
                events.Noted,
                text=f"the learning rate of step {step} was {rate:.6g}, where the recipe's schedule "
                f"({train.schedule}, warm-up {train.warmup:g}) gives {wanted:.6g}",
            )


def alike(wanted: Any, held: Any) -> bool:
    """Return whether both are the same, numbers but for rounding."""
    if isinstance(wanted, float) or isinstance(held, float):
        return math.isclose(float(wanted), float(held), rel_tol=TOLERANCE, abs_tol=1e-15)
    return bool(wanted == held)


def of_arguments(context: Context, args: Any) -> Iterator[Setting]:
    """Compare what Transformers' and TRL's arguments hold."""
    train = context.recipe.train
    yield "train.seed", train.seed, args.seed
    yield "train.seed", train.seed, train.seed if args.data_seed is None else args.data_seed
    yield "train.clip", train.clip, args.max_grad_norm
    yield "train.label_smoothing", 0.0, args.label_smoothing_factor  # the loss has it, or none
    yield "batch.micro", context.batch.micro, args.per_device_train_batch_size
    yield "batch.accumulation", context.batch.accumulation, args.gradient_accumulation_steps


def of_engine(context: Context, engine: Any) -> Iterator[Setting]:
    """Compare what DeepSpeed's engine holds, which clips and accumulates by itself."""
    asked: list[tuple[str, Any, str]] = [
        ("train.clip", context.recipe.train.clip, "gradient_clipping"),
        ("batch.micro", context.batch.micro, "train_micro_batch_size_per_gpu"),
        ("batch.accumulation", context.batch.accumulation, "gradient_accumulation_steps"),
    ]
    for key, wanted, name in asked:
        method: Callable[[], Any] | None = getattr(engine, name, None)
        if callable(method):
            yield key, wanted, method()


def of_autocast(context: Context, accelerator: Any) -> Iterator[Setting]:
    """Compare what accelerate casts to. worker/arithmetic.py compares what products of fp32 compute in."""
    halves = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}
    wanted = "no" if context.recipe.computes_half else halves.get(context.precision, "no")
    yield "precision", wanted, str(accelerator.mixed_precision)


def of_loss(train: Train, loss: Any, model: Any) -> Iterator[Setting]:
    """Compare what Muster's loss smooths labels by in training. Until the first step a pretrained model is in
    the mode in which it was loaded, which is for answers."""
    if isinstance(loss, TokenLoss):
        before = model.training
        model.train()
        yield "train.label_smoothing", train.label_smoothing, loss.smoothing()
        model.train(before)


def of_model(context: Context, model: Any) -> Iterator[Setting]:
    """Compare the model's own settings, and dropout where the workload trains without."""
    recipe, config = context.recipe, cast("Any", getattr(model, "config", None))
    given = recipe.model.config or {}
    for name, wanted in given.items():
        held = getattr(config, name, wanted)
        if name in OWN or not isinstance(wanted, int | float) or not isinstance(held, int | float):
            continue
        if not alike(wanted, held):  # a class may settle a field: T5's ties embeddings whatever it is given
            wanted = getattr(type(config).from_dict({**config.to_dict(), **given}), name)
        yield f"model.config.{name}", wanted, held
    if not recipe.dropout:
        yield "dropout", 0.0, max(dropouts_of(model), default=0.0)


def of_optimizer(fixed: Fixed, train: Train, optimizer: Any) -> Iterator[Setting]:
    """Compare what the optimizer's groups of parameters hold. Each group decays by the recipe's number, or
    not at all. The recipe's betas and epsilon are AdamW's: another optimizer that the engine's configuration
    names has its own."""
    groups = getattr(optimizer, "param_groups", [])
    fields = [
        ("train.beta1 and beta2", "betas", (train.beta1, train.beta2), "beta1"),
        ("train.epsilon", "eps", train.epsilon, "epsilon"),
    ]
    for group in groups:
        for key, name, wanted, field in fields:
            if fixed.optimizer is None or field in fixed.train:
                held = group.get(name, wanted)
                yield key, wanted, tuple(held) if isinstance(held, list) else held
        if group["weight_decay"]:
            yield "train.weight_decay", train.weight_decay, group["weight_decay"]
    if groups and train.weight_decay:
        yield "train.weight_decay", train.weight_decay, max(group["weight_decay"] for group in groups)


def of_schedule(train: Train, scheduler: Any, total: int) -> Iterator[Setting]:
    """Compare the learning rates of some steps, as Transformers' scheduler computes them."""
    while not hasattr(scheduler, "lr_lambdas") and hasattr(scheduler, "scheduler"):
        scheduler = scheduler.scheduler  # in accelerate's
    warmup = warmup_steps(train, total)
    steps = {0, 1, warmup - 1, warmup, warmup + 1, total // 2, total - 1} & set(range(total))
    for factor in getattr(scheduler, "lr_lambdas", [])[:1]:
        for step in sorted(steps):
            wanted, held = learning_rate(train, step + 1, total), train.rate * factor(step)
            yield f"the learning rate of step {step + 1}", wanted, held
        rates = [float(rate) for rate in scheduler.base_lrs]  # PPO's critic may have one of its own
        yield "train.learning_rate", train.rate, min(rates, key=lambda rate: abs(rate - train.rate))


def of_sampler(context: Context, sampler: Any, loader: Any) -> Iterator[Setting]:
    """Compare which sampler orders the samples, and its seed. A third party's trainer may have no sampler of
    Muster's: Transformers' own has the seed of its arguments."""
    own = getattr(sampler, "order", sampler)  # GRPO's and PPO's repeats it
    if own is None:
        return
    yield "train.seed", context.recipe.train.seed, getattr(own, "seed", context.recipe.train.seed)
    samplers = list(chain_of(loader))
    if samplers:
        yield "the order of samples", True, any(each is own for each in samplers)


def chain_of(loader: Any) -> Iterator[Any]:
    """Yield the samplers of a loader, from accelerate's outermost to the innermost."""
    each = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
    while each is not None:
        yield each
        names = ("batch_sampler", "sampler", "order")
        each = next((getattr(each, name) for name in names if getattr(each, name, None) is not None), None)
