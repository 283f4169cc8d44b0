"""Unequal micro-batches: each rank's share of a micro-step in proportion to how fast it is with this model.

The samples of a micro-step stay those of the even split, in the same order; only where they are cut changes.
Losses are divided by what counts in the whole global batch (worker/loss.py), and DDP averages sums that are
already whole, so the gradient is that of the global batch whatever the shares are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from muster.core.batch import shares_by_speed
from muster.core.errors import RecipeError
from muster.store import events
from muster.worker.context import Context
from muster.worker.instruments.clock import DeviceClock
from muster.worker.loss import IGNORED
from muster.worker.together import barrier, gather
from muster.worker.trainer import TrainerBase

# All ranks measure at once, each for this long at the least: ranks of one host share it then as they do in
# training, and what slows a host in bursts (a quota, another user) is in the mean.
ROUGH_SECONDS, FINE_SECONDS = 1.0, 2.0
PASSES = 3  # at the least, after one that is not counted
BATCHES = 3  # that a rank goes through in turn
# What training holds beside weights, gradients and activations: Adam's two moments and DDP's buckets.
BESIDE = 3


def settle_shares(context: Context, trainer: Any) -> None:
    """Give the trainer its ranks' shares where the recipe wants unequal ones, and record them.

    Every rank has to call it, at the same place: after the model is built, before training. Raises
    RecipeError where this workload's gradient would not stay that of the global batch.
    """
    wanted = context.recipe.batch.split
    if wanted == "even" or context.world_size == 1:
        return
    check_trainer(context, trainer)
    began = time.perf_counter()
    shares, speeds = measure(context, trainer) if wanted == "measured" else (tuple(wanted), None)
    trainer.shares = shares
    if context.main:
        seconds = time.perf_counter() - began
        context.emit(events.Split, shares=list(shares), speeds=speeds, seconds=seconds)


def check_trainer(context: Context, trainer: Any) -> None:
    """Raise RecipeError where a trainer cannot deal unequal shares, or averages over each micro-batch."""
    where, hint = "batch.split", "batch.split=even"
    if not isinstance(trainer, TrainerBase):
        raise RecipeError(
            f"{context.recipe.workload} cannot split its batches unevenly", where=where, hint=hint
        )
    whole = trainer.compute_loss_func is not None or trainer.model_accepts_loss_kwargs
    if not whole or not trainer.args.average_tokens_across_devices:
        raise RecipeError(
            f"{context.recipe.workload} averages its loss over each micro-batch, so unequal ones would "
            "change the gradient",
            where=where,
            hint=hint,
        )


def measure(context: Context, trainer: Any) -> tuple[tuple[int, ...], list[float]]:
    """Return each rank's share of a micro-step's samples, and its samples per second with its own model.

    Twice: at the even share, and at the share that follows from that, since speed depends on the size. On a
    GPU no rank gets more than a size that was tried with room for the optimizer beside it.
    """
    even = context.batch.micro
    total = even * context.world_size
    blocks = micro_steps(trainer.sampler, total)
    barrier()
    rough = _speed(trainer, context.device, blocks, even, ROUGH_SECONDS)
    first = shares_by_speed(total, gather(rough))
    own = first[context.rank]
    barrier()
    fine, limit = None, total if context.device == "cpu" else max(even, own)
    try:
        fine = _speed(trainer, context.device, blocks, own, FINE_SECONDS)
    except torch.cuda.OutOfMemoryError:
        limit = even
    if fine is None:
        torch.cuda.empty_cache()  # here, where the error no longer holds what it was raised from
    measured = gather((fine or rough, limit))
    speeds = [speed for speed, _ in measured]
    return shares_by_speed(total, speeds, [limit for _, limit in measured]), speeds


def micro_steps(order: Sequence[int], total: int) -> list[list[int]]:
    """Pick a few micro-steps from all over the epoch: the first one is the longest, not typical."""
    indices = list(order)
    count = len(indices) // total
    chosen = sorted({count * (k + 1) // (BATCHES + 1) for k in range(BATCHES)})
    return [indices[k * total : (k + 1) * total] for k in chosen]


def _speed(trainer: Any, device: str, blocks: list[list[int]], size: int, seconds: float) -> float:
    """Measure samples per second of forward and backward passes; model and random numbers are left as they
    were."""
    from accelerate.utils import send_to_device

    clock = DeviceClock(device)
    with _untouched(trainer, device), _room(trainer.model, device):
        batches = []
        for block in blocks:  # spread over the block, so that every size has short and long samples
            rows = [trainer.train_dataset[block[i * len(block) // size]] for i in range(size)]
            batches.append(send_to_device(trainer.data_collator(rows), trainer.args.device))
        _pass(trainer, batches[0])
        began, passes = clock.wait(), 0
        while passes < PASSES or time.perf_counter() - began < seconds:
            _pass(trainer, batches[passes % len(batches)])
            clock.wait()
            passes += 1
        return passes * size / (time.perf_counter() - began)


def _pass(trainer: Any, batch: dict[str, Any]) -> None:
    count = (batch["labels"] != IGNORED).sum() if "labels" in batch else None
    with trainer.accelerator.autocast():
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=count)
    loss.backward()


@contextmanager
def _room(model: Any, device: str) -> Iterator[None]:
    """Hold as much of a GPU as training will need beside this, so that what fits here fits there."""
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    held = torch.empty(BESIDE * trained, dtype=torch.uint8, device="cuda") if device == "cuda" else None
    try:
        yield
    finally:
        del held
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


@contextmanager
def _untouched(trainer: Any, device: str) -> Iterator[None]:
    """Train mode as training has it; afterwards mode, buffers, gradients and random numbers as before."""
    import numpy as np

    model, args = trainer.model, trainer.args
    training = model.training
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    numbers, numpy_numbers = random.getstate(), np.random.get_state()
    checkpointing = args.gradient_checkpointing and not getattr(model, "is_gradient_checkpointing", True)
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            model.train()
            if checkpointing:
                model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
            yield
        finally:
            if checkpointing:
                model.gradient_checkpointing_disable()
            model.zero_grad(set_to_none=True)
            model.train(training)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            random.setstate(numbers)
            np.random.set_state(numpy_numbers)
