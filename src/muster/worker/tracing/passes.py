"""One forward and one backward pass over a micro-batch, as the trainer does them, every storage counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from muster.core.trace import AFTER_BLOCKS, BACKWARD, FORWARD, Pass, Request, with_peaks
from muster.worker import loss as losses
from muster.worker.tracing.cuda import cuda_kernels
from muster.worker.tracing.ledger import Ledger
from muster.worker.tracing.tasks import Inputs, loss_of


def blocks_of(model: Any) -> dict[str, Any]:
    """The transformer blocks by their names, which FSDP gathers one at a time."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return {name: each for name, each in model.named_modules() if type(each).__name__ in kinds}


def run(
    model: Any,
    inputs: Inputs,
    request: Request,
    *,
    classes: int,
    in_parts: bool,
    answer: bool | None = None,
) -> Pass:
    """A pass over `inputs`. `in_parts`: the loss works through the logits in parts; `answer`: see Ledger."""
    inputs = dict(inputs)
    samples = len(inputs["labels"])
    outside = [*inputs.values(), *model.buffers()]
    ledger = Ledger(model.parameters(), outside, classes=classes, answer=answer)
    with ExitStack() as stack:
        stack.enter_context(_loss_in_parts(in_parts))
        stack.enter_context(_marked(model, ledger))
        if request.device == "cuda":
            stack.enter_context(cuda_kernels(autocast=request.arithmetic == "autocast"))
        stack.enter_context(ledger)
        ledger.mark(f"{FORWARD}: before the blocks")
        loss = compute_loss(model, inputs, request)
        kept, forward_flops = ledger.alive(), ledger.flops
        ledger.returning = True
        ledger.mark(AFTER_BLOCKS)
        loss.backward()
    gradients = ledger.numbers(each.grad for each in model.parameters() if each.grad is not None)
    copies = ledger.copies(kept)
    model.zero_grad(set_to_none=True)
    figures = {
        "saved": ledger.bytes(kept - copies),
        "logits": ledger.bytes(kept - copies, wide=True),
        "copies": ledger.bytes(copies),
        "forward_flops": forward_flops,
        "flops": ledger.flops,
        "moved": ledger.moved,
        "operations": ledger.operations,
    }
    plain, growing = ledger.peaks(copies | gradients), ledger.peaks(copies)
    return with_peaks(samples, figures, {part: (plain[part], growing[part]) for part in plain})


def compute_loss(model: Any, inputs: Mapping[str, torch.Tensor], request: Request) -> torch.Tensor:
    """What Transformers' trainer does in compute_loss; under DDP's mixed precision as Accelerate wraps it."""
    given = dict(inputs)
    labels = given.pop("labels")
    if request.arithmetic == "autocast":
        from accelerate.utils import convert_outputs_to_fp32

        mixed = torch.autocast("cpu", torch.bfloat16)
        outputs = convert_outputs_to_fp32(mixed(model.forward))(**given)
    else:
        outputs = model(**given)
    return loss_of(request, outputs, labels)


@contextmanager
def _loss_in_parts(on: bool) -> Iterator[None]:
    """Whether the loss takes all logits at once, however many there are."""
    kept = losses.SMALL_ON_CPU, losses.SMALL
    losses.SMALL_ON_CPU = 0 if on else 1 << 62
    try:
        yield
    finally:
        losses.SMALL_ON_CPU, losses.SMALL = kept


@contextmanager
def _marked(model: Any, ledger: Ledger) -> Iterator[None]:
    """The parts of a pass: before, between and after each stack's first and last block. What lies between
    them, in as many blocks as there are, is never higher than both."""
    handles = []
    stacks: dict[str, list[tuple[str, Any]]] = {}
    for name, block in blocks_of(model).items():
        stacks.setdefault(name.rpartition(".")[0], []).append((name, block))
    for stack, blocks in stacks.items():
        for index, (_, block) in enumerate(blocks):
            place = "first" if index == 0 else "last" if index == len(blocks) - 1 else "middle"
            handles.append(block.register_forward_pre_hook(_Before(ledger, stack, place)))
            handles.append(block.register_forward_hook(_After(ledger, stack, place)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Before:
    """Called before a block runs."""

    def __init__(self, ledger: Ledger, stack: str, place: str) -> None:
        self.ledger, self.stack, self.place = ledger, stack, place

    def __call__(self, module: Any, args: tuple[Any, ...]) -> None:
        if self.ledger.returning:  # computed again
            return
        self.ledger.mark(f"{FORWARD}: {self.stack} {self.place}")
        first = args[0] if args else None
        if self.place == "first" and isinstance(first, torch.Tensor) and first.requires_grad:
            part = f"{BACKWARD}: before {self.stack}"
            first.register_hook(lambda _: self.ledger.mark(part))


class _After:
    """Called after a block ran; its output's gradient is where its backward pass begins."""

    def __init__(self, ledger: Ledger, stack: str, place: str) -> None:
        self.ledger, self.stack, self.place = ledger, stack, place

    def __call__(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if self.ledger.returning:
            return
        hidden = output[0] if isinstance(output, tuple | list) else output
        self.ledger.mark(f"{FORWARD}: after {self.stack} {self.place}")
        if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            part = f"{BACKWARD}: {self.stack} {self.place}"
            hidden.register_hook(lambda _: self.ledger.mark(part))
