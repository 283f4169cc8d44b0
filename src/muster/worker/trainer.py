"""What every workload's trainer has in common: Muster's order of samples, dealt to ranks in equal or unequal
parts; an exact held-out loss; weights of checkpoints found whatever their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from accelerate.utils import DummyOptim
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_pt_utils import nested_gather
from transformers.trainer_utils import IntervalStrategy, seed_worker

from muster.core import float8
from muster.core.errors import DataError
from muster.worker.arithmetic import cast_weights
from muster.worker.context import Context
from muster.worker.data.loading import CONTEXT
from muster.worker.data.sampler import GroupedSampler, RankBatches
from muster.worker.float8 import convert
from muster.worker.heldout import PaddedRows, mean_of, perplexity
from muster.worker.later import DeferredWork, Scalars
from muster.worker.lean import keep_mode, remember_packages
from muster.worker.loss import LossSums, TokenLoss, fused_head
from muster.worker.models import without_dropout

if TYPE_CHECKING:
    from transformers import Trainer as BeforeTrainer
else:
    BeforeTrainer = object  # at run time `super()` reaches whichever trainer comes behind

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # of a checkpoint
AHEAD = ("cuda",)  # devices that compute while the host goes on


class TrainerBase(BeforeTrainer):  # type: ignore[misc]
    """Goes before a Transformers trainer among the base classes of every workload's own. `wired` makes it.

    `sampler`: orders the training samples; `tally`: what the loss adds up while nothing is learned, None: the
    held-out loss is the trainer's own; `in_shards`: each rank has a part of the weights, which its engine
    loads.
    """

    per_token = False  # the loss is one per token of text: its exponential is the perplexity

    _globalstep_last_logged: int

    def __init__(
        self, *, sampler: Sampler[int], tally: LossSums | None = None, in_shards: bool = False, **given: Any
    ) -> None:
        self.sampler, self.tally, self.in_shards = sampler, tally, in_shards
        # Samples of each micro-step per rank, which worker/uneven.py settles; None: the same for all.
        self.shares: tuple[int, ...] | None = None
        self.lean: Any = None  # the model that is trained without needless work
        super().__init__(**given)
        # Models that take **kwargs (T5) average their own loss over a micro-batch: with Muster's, which is
        # the whole of it, the trainer must not hand them a token count as well.
        self.model_accepts_loss_kwargs = False
        if self.args.device.type == "cpu":
            # Accelerate numbers it, Transformers 5.17 loads an optimizer's state to it, and PyTorch knows no
            # "cpu:0" there.
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        self.later = DeferredWork(self.args.device.type)

    # --- Muster's order of samples, dealt to ranks in equal or unequal parts -----------------------------

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self.sampler

    def get_train_dataloader(self) -> Any:
        """Make the loader of this rank's part of every micro-step."""
        if self.shares is None:
            return super().get_train_dataloader()
        args = self.args
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=RankBatches(self.sampler, self.shares),
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=getattr(args, CONTEXT, None),
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(
                seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
            ),
        )
        return self.accelerator.prepare(loader)

    # --- a step ------------------------------------------------------------------------------------------

    def create_optimizer(self, model: Any = None) -> Any:
        """Create Transformers' own optimizer. One that DeepSpeed makes later, of its file, gets the same
        groups: Transformers 5.23 gives it all parameters in one (integrations/deepspeed.py:
        deepspeed_optim_sched), so that norms and biases would decay as well."""
        optimizer = super().create_optimizer(model)
        if isinstance(optimizer, DummyOptim):
            trained = [pair for pair in self.model.named_parameters() if pair[1].requires_grad]
            decayed = set(self.get_decay_parameter_names(self.model))
            groups = [
                {
                    "params": [each for name, each in trained if (name in decayed) is decays],
                    "weight_decay": decay,
                }
                for decays, decay in ((True, self.args.weight_decay), (False, 0.0))
            ]
            optimizer.params = [group for group in groups if group["params"]]
        return optimizer

    def _run_epoch(self, *args: Any, **named: Any) -> None:
        """Skip the epoch where a checkpoint of the last step was loaded: Transformers 5.23 looks after a step
        alone whether it was the last one, and would take one more. At its end do the work that was put
        off."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        try:
            super()._run_epoch(*args, **named)
        except BaseException:
            self.later.rescue()
            raise
        self.later.drain()

    def training_step(self, model: Any, *args: Any, **named: Any) -> Any:
        """Take Transformers' own step, without what it looks up again in every micro-step; then do the work
        that was put off."""
        if self.lean is not model:
            self.lean = model
            keep_mode(model)
            remember_packages()
        loss = super().training_step(model, *args, **named)
        self.later.drain()
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **named: Any) -> Any:
        """Compute as Transformers does; the output layer may compute the loss as well, so it gets the
        labels."""
        loss = getattr(self, "compute_loss_func", None)
        with loss.expecting(inputs.get("labels")) if isinstance(loss, TokenLoss) else nullcontext():
            return super().compute_loss(model, inputs, *args, **named)

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip as Transformers does. DeepSpeed has done it, and its norm stays on the device: accelerate 1.15
        (utils/deepspeed.py) would read it in every step, behind the optimizer's work."""
        return self.deepspeed.get_global_grad_norm() if self.deepspeed else super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm for the log; DeepSpeed's unread."""
        if self.deepspeed:
            return self._clip_grad_norm(model) if grad_norm is None else grad_norm
        return super()._get_grad_norm(model, grad_norm)

    def floating_point_ops(self, inputs: Any) -> int:
        """Count nothing: Transformers' estimate walks through all modules in every step, for no reader:
        instruments/flops.py counts the real operations, once for each shape."""
        return 0

    def store_flos(self) -> None:
        """Store nothing: Transformers adds its estimates up over all ranks, and waits for the device in every
        log."""

    # --- its log, which is read, written and shown when the next micro-step has been launched: the device
    # --- never waits for that

    def runs_ahead(self) -> bool:
        """Return whether the next step follows this one, and nothing comes between. A log of a trainer that
        adds figures of its own to it is written at once: they may be the next step's."""
        control, state = self.control, self.state
        return (
            self.args.device.type in AHEAD
            and type(self).log is transformers.Trainer.log
            and state.global_step < state.max_steps
            and not (control.should_save or control.should_evaluate)
            and not (control.should_training_stop or control.should_epoch_stop)
        )

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, *rest: Any, learning_rate: Any = None
    ) -> None:
        """Do as Transformers does, or put its log off."""
        control = self.control
        due = control.should_log and self.state.global_step > self._globalstep_last_logged
        if due and self.runs_ahead():
            self._put_off_log(tr_loss, grad_norm, rest[-1], learning_rate)
            return
        if due or control.should_save or control.should_evaluate:
            self.later.drain()
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *rest, learning_rate=learning_rate)

    def _put_off_log(self, tr_loss: Any, grad_norm: Any, start_time: Any, rate: float | None) -> None:
        """Put off the log of Transformers 5.23 (trainer.py: _maybe_log_save_evaluate)."""
        loss = nested_gather(tr_loss, self.args.parallel_mode).mean()
        if hasattr(grad_norm, "full_tensor"):  # FSDP's
            grad_norm = grad_norm.full_tensor()
        scalars = Scalars([loss, grad_norm])
        tr_loss -= tr_loss
        steps = self.state.global_step - self._globalstep_last_logged
        logs = {"learning_rate": self._get_learning_rate() if rate is None else rate}
        self._globalstep_last_logged = self.state.global_step
        self.control.should_log = False

        def log() -> None:
            total, norm = scalars.values()
            self._total_loss_scalar += total
            figures = {"loss": total / steps, "grad_norm": norm, **logs}
            self.log({name: each for name, each in figures.items() if each is not None}, start_time)

        self.later.add(log)

    # --- held-out loss and checkpoints -------------------------------------------------------------------

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **named: Any) -> Any:
        """Run Transformers' loop; its loss is made exact, and language models get their perplexity.

        Transformers means over batches: a short last batch, and samples that it repeats so that every rank
        has one, weigh too much.
        """
        if self.tally is None:
            return super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)
        self.tally.reset()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)
        loss = mean_of(self.tally, self.accelerator)
        if loss is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = loss
            if self.per_token:
                output.metrics[f"{metric_key_prefix}_perplexity"] = perplexity(loss)
        return output

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load weights as Transformers does, also where a checkpoint has them under other names than the
        model.

        save_pretrained of Transformers 5 gives some models' weights (ViT's, for one) the names that earlier
        versions had, and from_pretrained takes them back. The trainer, when it resumes a model that every
        rank has whole, loads the file as it is and passes over names that do not fit: the run would go on
        from first weights, with a warning (transformers 5.23, trainer.py: _load_from_checkpoint).
        """
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        target = model or self.model
        names = saved_names(Path(resume_from_checkpoint))
        if self.in_shards or hasattr(target, "peft_config") or names <= set(target.state_dict()):
            return
        whole = type(target).from_pretrained(resume_from_checkpoint, config=target.config, dtype=target.dtype)
        target.load_state_dict(whole.state_dict())


def saved_names(folder: Path) -> set[str]:
    """Return the names of the weights in a checkpoint's folder; none where it has no such file."""
    if (folder / INDEX).is_file():
        return set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])
    if not (folder / WEIGHTS).is_file():
        return set()
    from safetensors import safe_open

    with safe_open(str(folder / WEIGHTS), "pt") as file:
        return set(file.keys())


class Trainer(TrainerBase, transformers.Trainer):  # type: ignore[misc]
    """Transformers' trainer with what Muster adds."""


def adjust_model(context: Context, model: Any) -> None:
    """Give a model, in place, the dropout and the arithmetic that the recipe asks for."""
    recipe = context.recipe
    if not recipe.dropout:
        without_dropout(model)
    if recipe.keeps_half:
        model.to(torch.bfloat16)
    elif recipe.computes_half:
        cast_weights(model)
    if recipe.precision == float8.NAME:
        convert(context, model)


def wired(
    kind: Callable[..., Any],
    context: Context,
    model: Any,
    arguments: Any,
    *,
    train: Any,
    held_out: Any,
    lengths: Sequence[int] | Sequence[tuple[int, int]],
    collator: Any,
    processing: Any,
    sampler: type[GroupedSampler] = GroupedSampler,
    global_batch: int | None = None,
    grouped: bool = False,
    moved: bool = False,
    own_loss: bool = False,
    **more: Any,
) -> Any:
    """Make a workload's trainer, with Muster's order of samples, loss and held-out loss, for its model, which
    is adjusted to the recipe.

    `kind`: its class; `arguments`: Transformers'; `train`, `held_out`: data sets; `lengths`: of each training
    sample or of its two parts, by which it is `grouped` or not; `processing`: what is saved beside the model;
    `global_batch`: samples of one, where that is not the recipe's;
    `moved`: labels are the inputs, and the loss moves them on by one; `own_loss`: the trainer has a loss of
    its own; `more`: what else the trainer is made of. Where nothing is held out, nothing is evaluated.
    Raises DataError where there is nothing to train on.
    """
    if not len(train):
        raise DataError(
            "no sample is left that can be trained on", where="data", hint="data.bad=error says what is wrong"
        )
    if not len(held_out):
        arguments.eval_strategy = IntervalStrategy.NO  # Transformers refuses any other without data
    recipe, tally = context.recipe, LossSums()
    context.engine.before_trainer()
    adjust_model(context, model)
    unit = arguments.per_device_eval_batch_size * context.world_size
    spread = context.spec.shards_weights(recipe.engine.stage, context.world_size)
    if not own_loss:
        more["compute_loss_func"] = TokenLoss(
            lambda: recipe.train.label_smoothing if model.training else 0.0,
            moved=moved,
            tally=tally,
            head=fused_head(
                model,
                wanted=recipe.train.fused_loss,
                # FSDP casts what a model returns, and a sum of losses has no room in half precision.
                inside=recipe.train.compiled and recipe.train.fused_loss is False and not spread,
            ),
        )
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=PaddedRows(held_out, unit) if len(held_out) else None,
        processing_class=processing,
        data_collator=collator,
        sampler=sampler(
            lengths,
            global_batch or context.batch.global_,
            recipe.train.seed,
            grouped=grouped,
            epoch=lambda: int(trainer.state.epoch or 0),
        ),
        tally=None if own_loss else tally,
        in_shards=spread,
        **more,
    )
    return trainer
