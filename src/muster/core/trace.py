"""A trace of a recipe's real model: its parameters, and what a forward and a backward pass over a micro-batch
keep, need and compute. Plain data, made where torch is (`worker/tracing`), for the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

Arithmetic = Literal["fp32", "half", "autocast"]
FORWARD, BACKWARD = "forward", "backward"  # how the names of parts of a pass begin
EMBEDDINGS = "input embeddings"
AFTER_BLOCKS = f"{BACKWARD}: after the blocks"  # the loss and the output layer


@dataclass(frozen=True)
class TraceRequest:
    """A model to trace, and how it is trained.

    `config`: the whole configuration, with `model_type`; `tokens`, `target`: of a sample, with padding
    (images have none here); `arithmetic`, `device` and `compiled`: see Trace; `lora` and `fused_loss`: as in
    the recipe; `inside`: the compiled graph has the loss; `samples`: the two micro-batches that are traced.
    """

    workload: str
    config: Mapping[str, Any]
    tokens: int = 0
    target: int = 0
    arithmetic: Arithmetic = "fp32"
    device: Literal["cpu", "cuda"] = "cpu"
    checkpointing: bool = False
    lora: Mapping[str, Any] | None = None
    label_smoothing: float = 0.0
    fused_loss: bool | Literal["auto"] = "auto"
    samples: tuple[int, int] = (2, 4)
    compiled: bool = False
    inside: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter tensor in the model's order. `unit`: the module that FSDP gathers it in ("": the root, and
    the last norm and the output with it; EMBEDDINGS: the input embeddings, where they are by themselves)."""

    name: str
    shape: tuple[int, ...]
    trained: bool
    unit: str

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for each in self.shape:
            count *= each
        return count


@dataclass(frozen=True)
class Pass:
    """A forward and a backward pass over one micro-batch. Bytes are of storages, each counted once.

    `saved`: bytes kept at the end of the forward pass for the backward pass (the loss included), beyond
    parameters; `logits`: those of `saved` whose last dimension is the vocabulary, or the classes;
    `handed`: those of `logits` that a compiled graph and code outside it hand to each other;
    `copies`: autocast's copies of weights in half precision, not in `saved`;
    `forward_peak`, `backward_peak`: the most bytes at once in either pass, beyond parameters, their gradients
    and `copies`; `growing_peak`: the same in the backward pass with the gradients as they come, where there
    are none before it;
    `forward_flops`, `flops`: operations of matrix products in the forward pass, and in both, with what
    gradient checkpointing computes again; of `flops`: `again`, those that are computed a second time;
    `attention`, in fused kernels; `masked`, of these above
    a causal mask's diagonal, which kernels skip; `thin`, in products with a side that is neither the rows of
    the batch nor as long as THIN, which are bound by the bytes that they move;
    `moved`: bytes that operations other than products read and write, views excluded, none fused;
    `thin_moved`: those of the thin products; `operations`: how many operations there are, about as many as
    kernels;
    `peaks`: for each part of the two passes the most bytes at once, without and with the gradients: which
    part is the highest depends on the samples, and each one's peak grows in proportion.
    """

    samples: int
    saved: int
    logits: int
    copies: int
    forward_peak: int
    backward_peak: int
    forward_flops: int
    flops: int
    moved: int
    growing_peak: int = 0
    operations: int = 0
    again: int = 0
    attention: int = 0
    masked: int = 0
    thin: int = 0
    thin_moved: int = 0
    handed: int = 0
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)


FIGURES = (
    "saved", "logits", "copies", "forward_flops", "flops", "again", "attention", "masked", "thin", "moved",
    "thin_moved", "operations", "handed",
)  # fmt: skip
THIN = 256  # of a matrix: shorter sides leave fewer operations a byte than GPUs can do meanwhile


@dataclass(frozen=True)
class Trace:
    """A model as it was traced at two micro-batches, all else equal.

    `arithmetic`: fp32, half (the whole model in bf16 or fp16, as DeepSpeed and FSDP hold it) or autocast
    (DDP's mixed precision); `device`: whose kernels are assumed, cpu or cuda; `layers`: of each stack, as
    traced (fewer than the model has where the rest follows by proportion); `seconds`: what tracing took.
    `compiled`: by torch.compile, so that `moved` and `operations` are those of fused kernels.
    `most`: samples up to which `passes` hold; beyond, logits are so many that the loss works through them in
    parts (worker/loss.py), and `beyond` holds. None: they hold for any number. `single`: one sample, on
    CPUs, where it is no point of the others' line if a view of it does for what is a copy of several.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    parameters: tuple[Parameter, ...]
    passes: tuple[Pass, Pass]
    buffers: int  # bytes of the model's buffers
    arithmetic: str
    device: str
    checkpointing: bool
    layers: tuple[int, ...]
    versions: dict[str, str]
    seconds: float
    most: int | None = None
    beyond: tuple[Pass, Pass] | None = None
    single: Pass | None = None
    compiled: bool = False

    def at(self, samples: int) -> Pass:
        """Return a pass over so many samples: every figure is a constant and a multiple of the samples, but
        for the peaks, which are the highest of such lines, and for a single sample."""
        if self.single is not None and samples == 1:
            return self.single
        if self.beyond is not None and self.most is not None and samples > self.most:
            return line(*self.beyond, samples)
        return line(*self.passes, samples)


def line(small: Pass, large: Pass, samples: int) -> Pass:
    """Return the pass over so many samples on the line through two others."""
    share = (samples - small.samples) / (large.samples - small.samples)

    def between(low: int, high: int) -> int:
        return max(0, round(low + (high - low) * share))

    figures: dict[str, Any] = {name: between(getattr(small, name), getattr(large, name)) for name in FIGURES}
    if not (small.peaks and small.peaks.keys() == large.peaks.keys()):
        tops = ("forward_peak", "backward_peak", "growing_peak")
        figures |= {name: between(getattr(small, name), getattr(large, name)) for name in tops}
        return Pass(samples=samples, **figures)
    peaks = {}
    for part, (low, growing_low) in small.peaks.items():
        high, growing_high = large.peaks[part]
        peaks[part] = (between(low, high), between(growing_low, growing_high))
    return with_peaks(samples, figures, peaks)


def with_peaks(samples: int, figures: Mapping[str, int], peaks: dict[str, tuple[int, int]]) -> Pass:
    """Return a pass with the highest peaks of its parts. With gradients there is never less than without."""
    peaks = {part: (plain, max(plain, growing)) for part, (plain, growing) in peaks.items()}

    def top(which: str, index: int) -> int:
        return max((pair[index] for part, pair in peaks.items() if part.startswith(which)), default=0)

    return Pass(
        samples=samples,
        forward_peak=top(FORWARD, 0),
        backward_peak=top(BACKWARD, 0),
        growing_peak=top(BACKWARD, 1),
        peaks=peaks,
        **{name: figures[name] for name in FIGURES},
    )


def to_json(trace: Trace) -> dict[str, Any]:
    """Return the trace as plain JSON values."""
    return asdict(trace)


def from_json(data: Any) -> Trace:
    """Return the trace that `to_json` wrote. Raises ValueError for other data."""
    return _TRACE.validate_python(data)


_TRACE = TypeAdapter(Trace)
