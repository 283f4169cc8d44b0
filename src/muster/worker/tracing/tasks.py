"""What a workload trains, made by its own functions (`traced` of its recipe): model, batch and loss, of any
depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from muster.core.batch import Batch
from muster.core.errors import MusterError, RecipeError
from muster.core.recipe import ATTENTION, recipe_class, recipe_classes, recipe_from
from muster.core.registry import WORKLOADS, load_plugin
from muster.core.trace import TraceRequest
from muster.worker.context import Context, Emitter
from muster.worker.instruments.meta import held_tensors
from muster.worker.loss import FusedHead, TokenLoss
from muster.worker.models import without_cache

Inputs = dict[str, torch.Tensor]
LONGEST = 200  # characters of a library's message


@dataclass(frozen=True)
class TraceTask:
    """How a workload makes its model and its batches.

    `lengths`: the request's that are a sample's tokens; none where samples are no tokens, and a prediction is
    one of the configuration's `num_labels`; `masked`: whether some of a batch is padding, which is what
    models ask of their masks; `moved`: labels are predicted by the place before; `sequences`: of a sample;
    `loss`: of the forward pass and a batch, where it is not Muster's over logits; it has at most `tile`
    predictions in memory at once, None: all; `prepare`: what the trainer makes of a batch before the model
    reads it; `within`: what a model of a request is traced inside of, with several tiles or one.
    """

    make: Callable[[Context, TraceRequest, dict[str, Any]], Any]
    batch: Callable[[TraceRequest, Any, int], Inputs]
    lengths: tuple[str, ...] = ()
    masked: bool = False
    moved: bool = False
    sequences: int = 1
    loss: Callable[[Callable[..., Any], Inputs], torch.Tensor] | None = None
    tile: int | None = None
    prepare: Callable[[TraceRequest, Inputs], Inputs] = lambda _, batch: dict(batch)
    within: Callable[[Any, TraceRequest, bool], AbstractContextManager[None]] = lambda *_: nullcontext()


class Vocabulary:
    """What building a model asks of a tokenizer."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.size = int(config.get("vocab_size") or 1)
        self.pad_token_id = config.get("pad_token_id") or 0
        self.eos_token_id = config.get("eos_token_id") or min(1, self.size - 1)

    def __len__(self) -> int:
        return self.size


def tokens_of(samples: int, length: int) -> torch.Tensor:
    """Make a batch of token numbers, (samples, length)."""
    return torch.zeros((samples, length), dtype=torch.long)


def task_of(request: TraceRequest) -> TraceTask:
    """Find the request's task. Raises RecipeError where its workload has none."""
    module, _, name = str(recipe_class(request.workload).traced).partition(":")
    where = import_module(module) if name else load_plugin(WORKLOADS, request.workload, "model")
    task = getattr(where, name or "TRACED", None)
    if not isinstance(task, TraceTask):
        traced = [name for name, each in recipe_classes().items() if each.traced]
        raise RecipeError(
            f"{request.workload} cannot be traced", where="workload", hint=f"known: {', '.join(traced)}"
        )
    return task


def make(request: TraceRequest, changes: Mapping[str, Any]) -> Any:
    """Make the model as it is trained, with some fields of its configuration changed (its depth).

    Weights go where tensors go at the moment: the caller says, by a device or a mode. Raises RecipeError.
    """
    config = {**request.config, **changes}
    context = _context(request, config)
    try:
        model = task_of(request).make(context, request, config)
    except MusterError:
        raise
    except Exception as error:  # configurations check themselves, each with errors of its own
        text = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise RecipeError(f"does not make a model: {text}", where="model.config") from None
    if request.arithmetic == "half":
        replace_tensors(model, lambda each: each.to(torch.bfloat16) if each.is_floating_point() else each)
    without_cache(model)
    for module in model.modules():
        if isinstance(getattr(module, "layerdrop", None), float):
            module.layerdrop = 0.0  # else a layer is left out by chance
    return model.train()


def replace_tensors(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put another tensor in the place of every one that a module holds, registered or not. What is tied stays
    tied, and a parameter a parameter."""
    made: dict[int, torch.Tensor] = {}
    for held, name, each in held_tensors(model):
        if id(each) not in made:
            new = change(each.detach())
            if isinstance(each, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=each.requires_grad)
            made[id(each)] = new
        held[name] = made[id(each)]


def _context(request: TraceRequest, config: Mapping[str, Any]) -> Context:
    if config.get("attn_implementation") == ATTENTION["flash"]:  # keeps what PyTorch's own flash kernel keeps
        config = {**config, "attn_implementation": ATTENTION["sdpa"]}
    recipe = recipe_from(
        {
            "workload": request.workload,
            "model": {"init": "random", "create": "whole", "config": dict(config)},
            "lora": None if request.lora is None else dict(request.lora),
            "train": {"gradient_checkpointing": request.checkpointing},
        }
    )
    nowhere = Path()
    return Context(
        recipe=recipe, batch=Batch(1, 1, 1), precision="fp32", device="cpu", base=nowhere, place=nowhere,
        shared=True, attempt=1, resume_step=None, engine_config=None, rank=0, local_rank=0, world_size=1,
        emit=Emitter(None, rank=0, attempt=1),
    )  # fmt: skip


def loss_of(request: TraceRequest, head: FusedHead | None) -> TokenLoss:
    """Make the workload's loss."""
    return TokenLoss(lambda: request.label_smoothing, moved=task_of(request).moved, head=head)


def logits_of(request: TraceRequest, model: Any) -> tuple[int, int]:
    """Return how many classes a prediction has, and how many predictions a sample."""
    task, output = task_of(request), model.get_output_embeddings()
    if not task.lengths or output is None:
        return int(model.config.num_labels), task.sequences
    return int(output.weight.shape[0]), task.sequences * (request.target or request.tokens)
