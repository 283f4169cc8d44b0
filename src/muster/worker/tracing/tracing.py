"""The whole trace of a request: parameters of the model as it is, passes over a model of few layers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from muster.core.trace import EMBEDDINGS, Parameter, Pass, Request, Trace
from muster.worker import loss as losses
from muster.worker.instruments.meta import set_checkpointing
from muster.worker.tracing import passes
from muster.worker.tracing.depth import Group, depth_of, extrapolated
from muster.worker.tracing.refusals import check
from muster.worker.tracing.tasks import logits_of, make, replace_tensors, task_of

PACKAGES = ("torch", "transformers", "accelerate", "peft")
MANY = 4096  # samples that no micro-batch has


def trace(request: Request) -> Trace:
    """Parameters and passes of a model. Raises RecipeError for what makes no model, RuntimeError for a model
    that needs data to run."""
    began = time.perf_counter()
    check(request)
    whole = _without_weights(request, {})
    depth = depth_of(request.config, whole.config.to_dict())
    classes, each = logits_of(request, whole)
    most = (losses.SMALL if request.device == "cuda" else losses.SMALL_ON_CPU) // each
    layers: list[tuple[int, ...]] = []

    def traced(changes: Mapping[str, int], some: Sequence[Group]) -> Sequence[Pass]:
        layers.append(tuple(changes.values()))
        return _traced(request, changes, classes, some)

    groups, beyond = _groups(request, most)
    found = extrapolated(depth, traced, groups, beyond)
    single = found[0] if len(groups) > 2 else None
    small, large = found[len(groups) - 2 : len(groups)]
    return Trace(
        parameters=parameters_of(whole),
        passes=(small, large),
        buffers=sum(each.numel() * each.element_size() for each in whole.buffers()),
        arithmetic=request.arithmetic,
        device=request.device,
        checkpointing=request.checkpointing,
        layers=max(layers),
        versions=versions(),
        seconds=round(time.perf_counter() - began, 3),
        most=most if beyond else None,
        beyond=(found[-2], found[-1]) if beyond else None,
        single=single,
    )


def _groups(request: Request, most: int) -> tuple[list[Group], list[Group]]:
    """The micro-batches to run, and those beyond `most`, where that is a number that there may be: samples,
    and whether the loss works through their logits in parts.

    A single sample is apart where plain products do the attention, as on CPUs: fused kernels make no copies.
    """
    alone = (1,) if request.device == "cpu" else ()
    groups = [(each, most < 1) for each in (*alone, *request.samples)]
    return groups, [] if most < 1 or most >= MANY else [(most + 1, True), (2 * most + 2, True)]


def _traced(
    request: Request, changes: Mapping[str, int], classes: int, groups: Sequence[Group]
) -> Sequence[Pass]:
    """Passes of a model of some depth, of tensors without data."""
    task = task_of(request)
    model = _without_weights(request, changes)
    with FakeTensorMode(allow_non_fake_inputs=True), _seen_as_real():
        # Fake tensors of a CPU, since those of the meta device have no autocast and no choice of kernels.
        replace_tensors(model, lambda each: torch.empty(each.shape, dtype=each.dtype))
        if request.checkpointing:
            set_checkpointing(model, True)
        return [
            passes.run(
                model,
                task.batch(request, model, samples),
                request,
                classes=classes,
                in_parts=in_parts,
                answer=not task.masked,
            )
            for samples, in_parts in groups
        ]


def _without_weights(request: Request, changes: Mapping[str, Any]) -> Any:
    """The model on the meta device. Its weights are not drawn: it takes time, and some distributions ask for
    values."""
    from transformers import PreTrainedModel

    known = PreTrainedModel.initialize_weights
    PreTrainedModel.initialize_weights = lambda self: None
    try:
        with torch.device("meta"):
            return make(request, changes)
    finally:
        PreTrainedModel.initialize_weights = known


@contextmanager
def _seen_as_real() -> Iterator[None]:
    """Transformers makes more masks for tensors without data than for real ones, unless it takes them for
    real: then it asks whether anything is masked, and hears it from the ledger."""
    from transformers.utils import import_utils

    known = getattr(import_utils, "is_fake_tensor", None)
    if known is None:  # an older release, which does not look
        yield
        return
    import_utils.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        import_utils.is_fake_tensor = known


def parameters_of(model: Any) -> tuple[Parameter, ...]:
    """Every parameter once, in the model's order, with the unit that FSDP gathers it in: a transformer block,
    or the input embeddings where they are not the output as well (accelerate, fsdp2_prepare_model)."""
    units = {f"{block}.": block for block in sorted(passes.blocks_of(model), key=len, reverse=True)}
    alone = _alone(model)
    if alone:
        units[f"{alone}."] = EMBEDDINGS

    def unit(name: str) -> str:
        return next((found for start, found in units.items() if name.startswith(start)), "")

    return tuple(
        Parameter(name, tuple(each.shape), each.requires_grad, unit(name))
        for name, each in model.named_parameters()
    )


def _alone(model: Any) -> str | None:
    """The input embeddings' name, where they share no weight with the output; None: they do, or there are
    none."""
    try:
        inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:  # as of models of images without patches
        return None
    if inputs is None or inputs is outputs:
        return None
    weight = getattr(inputs, "weight", None)
    if weight is not None and weight is getattr(outputs, "weight", None):
        return None
    return next((name for name, module in model.named_modules() if module is inputs), None)


def versions() -> dict[str, str]:
    """What decides what a model keeps."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
