"""The whole trace of a request: parameters of the model as it is, passes over a model of few layers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from muster.core.errors import RecipeError
from muster.core.families import family_of, gpt2, llama, opt, t5, vit
from muster.core.loss_parts import most_rows
from muster.core.near import did_you_mean
from muster.core.registry import versions_of
from muster.core.trace import EMBEDDINGS, FIGURES, Parameter, Pass, Trace, TraceRequest, line, with_peaks
from muster.worker.instruments.meta import set_checkpointing
from muster.worker.loss import fused_head
from muster.worker.tracing import passes
from muster.worker.tracing.graphs import start_autograd, warm_up
from muster.worker.tracing.tasks import LONGEST, logits_of, loss_of, make, replace_tensors, task_of

# ----------------------------------------------------------------------------------------------------
# Few layers stand for many that are alike: every figure is a constant and a multiple of the layers.

MORE = 4  # layers of a stack that are traced in place of all, and one fewer: a first, a last, and others
Group = tuple[int, bool]  # samples, and whether the loss works through their logits in parts
_ONE = ("num_hidden_layers",)
_KEYS = {t5: ("num_layers", "num_decoder_layers"), gpt2: ("n_layer",), opt: _ONE, llama: _ONE, vit: _ONE}


@dataclass(frozen=True)
class Depth:
    """A stack's layers by their key in the configuration: {key: layers}. Empty: not known."""

    whole: Mapping[str, int]

    @property
    def deep(self) -> tuple[str, ...]:
        """Stacks that are worth tracing in part."""
        return tuple(key for key, layers in self.whole.items() if layers > MORE)


def depth_of(config: Mapping[str, Any], made: Mapping[str, Any]) -> Depth:
    """Return the depth of a configuration's stacks; `made`: the model's own, defaults included.

    Not known for other families, nor where the configuration says something of every layer.
    """
    family = family_of(config)
    keys = _KEYS.get(family, ()) if family else ()
    whole = {key: int(made.get(key) or made.get("num_layers") or 0) for key in keys}
    lists = [len(value) for value in config.values() if isinstance(value, list)]
    if any(layers in lists or layers < 1 for layers in whole.values()):
        return Depth({})
    return Depth(whole)


def extrapolated(
    depth: Depth,
    traced: Callable[[Mapping[str, int], Sequence[Group]], Sequence[Pass]],
    groups: Sequence[Group],
    beyond: Sequence[Group],
) -> list[Pass]:
    """Extrapolate the passes of the whole depth, over `groups` and `beyond`. `traced`: the passes of a model
    with so many layers per stack.

    Stacks of equal depth become deeper together: one more model is traced, else one for each. Deeper models
    run `groups` alone, whose last two make a line: how much more or less it takes where the loss works in
    parts (`beyond`) does not depend on the depth.
    """
    deep = depth.deep
    if not deep:
        return list(traced(depth.whole, [*groups, *beyond]))
    more = MORE if len(depth.whole) > 1 else MORE - 1  # where stacks meet, their ends differ more
    few = {**depth.whole, **dict.fromkeys(deep, more - 1)}
    together = len({depth.whole[key] for key in deep}) == 1
    stacks = [deep] if together else [(key,) for key in deep]
    base = traced(few, [*groups, *beyond])
    deeper = [traced({**few, **dict.fromkeys(stack, more)}, groups) for stack in stacks]
    shares = [float(depth.whole[stack[0]] - more + 1) for stack in stacks]
    whole = [
        _combined(
            base[index],
            [(passes[index], base[index], share) for passes, share in zip(deeper, shares, strict=True)],
        )
        for index in range(len(groups))
    ]
    small, large = len(groups) - 2, len(groups) - 1
    for other in base[len(groups) :]:
        few_layers = line(base[small], base[large], other.samples)
        all_layers = line(whole[small], whole[large], other.samples)
        whole.append(_combined(other, [(all_layers, few_layers, 1.0)]))
    return whole


def _combined(start: Pass, steps: Sequence[tuple[Pass, Pass, float]]) -> Pass:
    """Add the sum of share x (high - low) over (high, low, share) to `start`, figure by figure and part by
    part."""

    def added(value: int, pairs: list[tuple[int, int]]) -> int:
        more = (each[2] * (high - low) for each, (high, low) in zip(steps, pairs, strict=True))
        return max(0, round(value + sum(more)))

    figures = {
        name: added(
            getattr(start, name), [(getattr(high, name), getattr(low, name)) for high, low, _ in steps]
        )
        for name in FIGURES
    }
    peaks = {}
    for part, pair in start.peaks.items():
        plain, growing = (
            added(pair[i], [(high.peaks[part][i], low.peaks[part][i]) for high, low, _ in steps])
            for i in (0, 1)
        )
        peaks[part] = (plain, growing)
    return with_peaks(start.samples, figures, peaks)


# ----------------------------------------------------------------------------------------------------
# Configurations that make no model, refused before Transformers stumbles over them.

# Widths that a number of heads has to divide; where a head has a size of its own, none has.
HEADS = (("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("d_model", "encoder_attention_heads"))
KEYS = ("num_attention_heads", "num_key_value_heads")


def check(request: TraceRequest) -> None:
    """Raise RecipeError for an unknown model type, heads that do not divide, lengths and samples below 1."""
    from transformers import CONFIG_MAPPING

    kind = str(request.config.get("model_type") or "")
    kinds = list(CONFIG_MAPPING.keys())
    if kind not in kinds:
        raise RecipeError(
            f"Transformers has no model type {kind!r}",
            where="model.config.model_type",
            hint=did_you_mean(kind, kinds) or "such as t5, gpt2, opt, llama or vit",
        )
    for width, heads in HEADS:
        if not request.config.get("head_dim"):
            _divides(request.config, width, heads)
    _divides(request.config, *KEYS)
    _check_numbers(request)


def _divides(config: Mapping[str, Any], whole: str, parts: str) -> None:
    total, count = config.get(whole), config.get(parts)
    if not (isinstance(total, int) and isinstance(count, int)):
        return
    if count >= 1 and total % count == 0:
        return
    fitting = [each for each in range(1, total + 1) if total % each == 0]
    near = min(fitting, key=lambda each: abs(each - count), default=1)
    raise RecipeError(
        f"is {count}, which does not divide {whole}={total}",
        where=f"model.config.{parts}",
        hint=f"model.config.{parts}={near}",
    )


def _check_numbers(request: TraceRequest) -> None:
    for name in task_of(request).lengths:
        if getattr(request, name) < 1:
            raise RecipeError(
                f"is {getattr(request, name)}, and a sample has tokens", where=name, hint=f"{name}=1"
            )
    small, large = request.samples
    if not 1 <= small < large:
        raise RecipeError(
            f"are {small} and {large}", where="samples", hint="two micro-batches, such as 1 and 2"
        )


# ----------------------------------------------------------------------------------------------------
# The whole trace of a request: parameters of the model as it is, passes over a model of few layers.

PACKAGES = ("torch", "transformers", "accelerate", "peft")  # which decide what a model keeps
MANY = 4096  # samples that no micro-batch has


def trace(request: TraceRequest) -> Trace:
    """Trace the parameters and passes of a model. Raises RecipeError for what makes no model, RuntimeError
    for a model that needs data to run."""
    began = time.perf_counter()
    start_autograd()
    check(request)
    with torch.device("meta"):
        whole = make(request, {})
    depth = depth_of(request.config, whole.config.to_dict())
    classes, rows = logits_of(request, whole)
    most = _most(request, whole, classes) // rows
    layers: list[tuple[int, ...]] = []

    def traced(changes: Mapping[str, int], some: Sequence[Group]) -> Sequence[Pass]:
        layers.append(tuple(changes.values()))
        return _traced(request, changes, classes, some)

    groups, beyond = _groups(request, most)
    passes = extrapolated(depth, traced, groups, beyond)
    single = passes[0] if len(groups) > 2 else None
    small, large = passes[len(groups) - 2 : len(groups)]
    return Trace(
        parameters=parameters_of(whole),
        passes=(small, large),
        buffers=sum(each.numel() * each.element_size() for each in whole.buffers()),
        arithmetic=request.arithmetic,
        device=request.device,
        checkpointing=request.checkpointing,
        layers=max(layers),
        versions=versions_of(PACKAGES),
        seconds=round(time.perf_counter() - began, 3),
        most=most if beyond else None,
        beyond=(passes[-2], passes[-1]) if beyond else None,
        single=single,
        compiled=request.compiled,
    )


def _most(request: TraceRequest, model: Any, classes: int) -> int:
    """Return how many predictions have all of their logits in memory."""
    task = task_of(request)
    if task.loss is not None:
        return task.tile or MANY * request.tokens * task.sequences
    head = fused_head(model, wanted=request.fused_loss, inside=request.inside)
    if head is not None and head.inside:
        return MANY * request.tokens
    if head is not None and head.always:
        return 0
    width = 0 if head is None else model.get_output_embeddings().weight.shape[1]
    return most_rows(request.device, classes, width)


def _groups(request: TraceRequest, most: int) -> tuple[list[Group], list[Group]]:
    """Choose the micro-batches to run, and those beyond `most`, where that is a number that there may be:
    samples, and whether the loss works through their logits in parts.

    A single sample is apart where plain products do the attention, as on CPUs: fused kernels make no copies.
    """
    alone = (1,) if request.device == "cpu" else ()
    groups = [(each, most < 1) for each in (*alone, *request.samples)]
    return groups, [] if most < 1 or most >= MANY else [(most + 1, True), (2 * most + 2, True)]


def _traced(
    request: TraceRequest, changes: Mapping[str, int], classes: int, groups: Sequence[Group]
) -> Sequence[Pass]:
    """Run the passes of a model of some depth, of tensors without data."""
    task = task_of(request)
    with torch.device("meta"):
        model = make(request, changes)
    with FakeTensorMode(allow_non_fake_inputs=True), seen_as_real():
        # Fake tensors of a CPU, since those of the meta device have no autocast and no choice of kernels.
        replace_tensors(model, lambda each: torch.empty(each.shape, dtype=each.dtype))
        if request.checkpointing:
            set_checkpointing(model, True)
        head = None if task.loss else fused_head(model, wanted=request.fused_loss, inside=request.inside)
        loss = loss_of(request, head)

        def run(samples: int, in_parts: bool) -> Pass:
            batch = task.batch(request, model, samples)
            return passes.run(
                model,
                batch,
                request,
                loss,
                samples=samples,
                classes=classes,
                in_parts=in_parts,
                answer=not task.masked,
            )

        if request.compiled:  # which takes seconds
            warm_up()
            return side_by_side([partial(run, *each) for each in groups])
        return [run(*each) for each in groups]


def side_by_side(tasks: Sequence[Callable[[], Pass]]) -> list[Pass]:
    """Run tasks, each in a process that begins as a copy of this one. -> what they return. Raises
    RuntimeError for what one of them raises."""
    if torch.cuda.is_available():  # autograd has a thread for each device, and no copy of a process has it
        return [task() for task in tasks]
    fork = multiprocessing.get_context("fork")
    running = []
    for task in tasks:
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_answer, args=(task, theirs))
        process.start()
        theirs.close()
        running.append((process, ours))
    outcomes = []
    for process, answers in running:
        try:
            outcomes.append(answers.recv())
        except EOFError:
            outcomes.append(f"a process ended with {process.exitcode}")
        process.join()
    for each in outcomes:
        if not isinstance(each, Pass):
            raise RuntimeError(each)
    return outcomes


def _answer(task: Callable[[], Pass], answers: Connection) -> None:
    try:
        answers.send(task())
    except Exception as error:
        answers.send(cause_of(error))


def cause_of(error: BaseException) -> str:
    """Name the error that came first, in one line: torch.compile wraps what its backend raises."""
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    text = (str(error).strip().splitlines() or [""])[0][:LONGEST]
    return text if text and type(error) is RuntimeError else f"{type(error).__name__}: {text}"


@contextmanager
def seen_as_real() -> Iterator[None]:
    """Let Transformers take tensors without data for real ones inside. Otherwise it makes more masks for
    them; so it asks whether anything is masked, and the ledger answers. It has no setting for that."""
    from transformers.utils import import_utils

    original = getattr(import_utils, "is_fake_tensor", None)
    if original is None:  # an older release, which does not look
        yield
        return
    import_utils.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        import_utils.is_fake_tensor = original


def parameters_of(model: Any) -> tuple[Parameter, ...]:
    """List every parameter once, in the model's order, with the unit that FSDP gathers it in: a transformer
    block, or the input embeddings where they are not the output as well (accelerate, fsdp2_prepare_model)."""
    units = {f"{block}.": block for block in sorted(passes.blocks_of(model), key=len, reverse=True)}
    alone = _alone(model)
    if alone:
        units[f"{alone}."] = EMBEDDINGS

    def unit(name: str) -> str:
        return next((module for start, module in units.items() if name.startswith(start)), "")

    return tuple(
        Parameter(name, tuple(each.shape), each.requires_grad, unit(name))
        for name, each in model.named_parameters()
    )


def _alone(model: Any) -> str | None:
    """Return the input embeddings' name, where they share no weight with the output; None: they do, or there
    are none."""
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
