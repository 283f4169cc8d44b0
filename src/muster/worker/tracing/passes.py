"""One forward and one backward pass over a micro-batch, as the trainer does them, every storage counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from muster.core import loss_parts
from muster.core.trace import AFTER_BLOCKS, BACKWARD, FORWARD, Pass, TraceRequest, with_peaks
from muster.worker.loss import TokenLoss
from muster.worker.tracing.cuda import cuda_kernels
from muster.worker.tracing.graphs import compiling
from muster.worker.tracing.ledger import Ledger
from muster.worker.tracing.tasks import Inputs, task_of


def blocks_of(model: Any) -> dict[str, Any]:
    """Return the transformer blocks by their names, which FSDP gathers one at a time."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return {name: each for name, each in model.named_modules() if type(each).__name__ in kinds}


def run(
    model: Any,
    inputs: Inputs,
    request: TraceRequest,
    loss_of: TokenLoss,
    *,
    samples: int,
    classes: int,
    in_parts: bool,
    answer: bool | None = None,
) -> Pass:
    """Run a pass over `inputs`. `in_parts`: the loss works through the logits in parts; `answer`: see
    Ledger."""
    inputs = dict(inputs)
    outside = [*inputs.values(), *model.buffers()]
    rows = {each.shape[0] * each.shape[1] for each in inputs.values() if each.ndim == 2}
    ledger = Ledger(model.parameters(), outside, classes=classes, rows=rows, answer=answer)
    with ExitStack() as stack:
        stack.enter_context(task_of(request).within(model, request, in_parts))
        stack.enter_context(_loss_in_parts(in_parts))
        if request.device == "cuda":
            stack.enter_context(cuda_kernels(autocast=request.arithmetic == "autocast"))
        forward = forward_of(model, request)
        if request.compiled:
            account = stack.enter_context(compiling())
            forward = account.compiled(forward)
            compute_loss(forward, inputs, request, loss_of).backward()  # which makes the graphs
            model.zero_grad(set_to_none=True)
            account.ledger = ledger
        else:
            stack.enter_context(_marked(model, ledger))
        stack.enter_context(ledger)
        ledger.mark(f"{FORWARD}: before the blocks")
        loss = compute_loss(forward, inputs, request, loss_of)
        kept, forward_flops = ledger.alive(), ledger.flops
        ledger.returning = True
        ledger.mark(AFTER_BLOCKS)
        loss.backward()
    gradients = ledger.numbers(each.grad for each in model.parameters() if each.grad is not None)
    gradients -= kept  # what the fused loss makes in the forward pass lies beside those that come later
    copies = ledger.copies(kept)
    model.zero_grad(set_to_none=True)
    figures = {
        "saved": ledger.bytes(kept - copies),
        "logits": ledger.bytes(kept - copies, wide=True),
        "copies": ledger.bytes(copies),
        "handed": ledger.handed(kept) if request.compiled else 0,
        "forward_flops": forward_flops,
        "flops": ledger.flops,
        "again": ledger.again,
        "attention": ledger.attention,
        "masked": ledger.masked,
        "thin": ledger.thin,
        "moved": ledger.moved,
        "thin_moved": ledger.thin_moved,
        "operations": ledger.operations,
    }
    plain, growing = ledger.peaks(copies | gradients), ledger.peaks(copies)
    return with_peaks(samples, figures, {part: (plain[part], growing[part]) for part in plain})


def forward_of(model: Any, request: TraceRequest) -> Callable[..., Any]:
    """Return the model's forward pass; under DDP's mixed precision as Accelerate wraps it."""
    if request.arithmetic != "autocast":
        called: Callable[..., Any] = model
        return called
    from accelerate.utils import convert_outputs_to_fp32

    lower = torch.autocast("cpu", torch.bfloat16)
    wrapped: Callable[..., Any] = convert_outputs_to_fp32(lower(model.forward))
    return wrapped


def compute_loss(
    forward: Callable[..., Any], inputs: Mapping[str, torch.Tensor], request: TraceRequest, loss: TokenLoss
) -> torch.Tensor:
    """Compute the loss as the trainer's compute_loss does."""
    task = task_of(request)
    own, given = task.loss, task.prepare(request, dict(inputs))
    if own is not None:
        return own(forward, given)
    labels = given.pop("labels")
    with loss.expecting(labels):
        outputs = forward(**given)
    return loss(outputs, labels, num_items_in_batch=torch.ones((), dtype=torch.long))


@contextmanager
def _loss_in_parts(on: bool) -> Iterator[None]:
    """Let the loss work through all logits in parts inside, or take them at once, however many there are."""
    kept = loss_parts.SMALL_ON_CPU
    loss_parts.SMALL_ON_CPU = 0 if on else 1 << 62
    try:
        yield
    finally:
        loss_parts.SMALL_ON_CPU = kept


@contextmanager
def _marked(model: Any, ledger: Ledger) -> Iterator[None]:
    """Mark the parts of a pass: before, between and after each stack's first and last block. What lies
    between them, in as many blocks as there are, is never higher than both."""
    handles = []
    stacks: dict[str, list[tuple[str, Any]]] = {}
    for name, block in blocks_of(model).items():
        stacks.setdefault(name.rpartition(".")[0], []).append((name, block))
    for stack, blocks in stacks.items():
        for index, (_, block) in enumerate(blocks):
            place = "first" if index == 0 else "last" if index == len(blocks) - 1 else "middle"
            handles.append(block.register_forward_pre_hook(partial(_before, ledger, stack, place)))
            handles.append(block.register_forward_hook(partial(_after, ledger, stack, place)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _before(ledger: Ledger, stack: str, place: str, module: Any, args: tuple[Any, ...]) -> None:
    """Mark that a block is about to run."""
    if ledger.returning:  # computed again
        return
    ledger.mark(f"{FORWARD}: {stack} {place}")
    first = args[0] if args else None
    if place == "first" and isinstance(first, torch.Tensor) and first.requires_grad:
        first.register_hook(lambda _: ledger.mark(f"{BACKWARD}: before {stack}"))


def _after(ledger: Ledger, stack: str, place: str, module: Any, args: tuple[Any, ...], output: Any) -> None:
    """Mark that a block has run; its output's gradient is where its backward pass begins."""
    if ledger.returning:
        return
    hidden = output[0] if isinstance(output, tuple | list) else output
    ledger.mark(f"{FORWARD}: after {stack} {place}")
    if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
        hidden.register_hook(lambda _: ledger.mark(f"{BACKWARD}: {stack} {place}"))
