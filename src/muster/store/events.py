"""The event schema, version 1: the only source of metrics. One JSON object per line.

Ranks write events to their own file; the agent forwards the lines and adds its own; the controller appends
all to events.jsonl. Every event has: v, kind, time (Unix, by its own host's clock), attempt, host, rank
(None: the host or the controller), heard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from muster.core.profile import StepProfile
from muster.core.result import Hung, Pace
from muster.core.section import Part

VERSION = 1
MOST_LINKS = 16  # that a sample tells of: agent/sampler.py
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_NOT_UTF8 = re.compile("[\ud800-\udfff]")  # how Python holds the bytes of a file name that is not UTF-8


class _Event(Part):
    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="constants")
    v: int = VERSION
    time: float
    attempt: int = 1
    host: str | None = None
    rank: int | None = None
    heard: float | None = Field(
        None, description="when the controller had it, by its clock; hosts' clocks need not agree with that"
    )

    @property
    def arrived(self) -> float:
        """`heard`; the host's own time where an old file has no `heard`."""
        return self.time if self.heard is None else self.heard


class HostFacts(_Event):
    """Facts about a host, collected by its agent before the start."""

    kind: Literal["host"] = "host"
    facts: dict[str, Any]


class Link(Part):
    """Traffic to another host since the sample before."""

    model_config = ConfigDict(extra="ignore")
    at: str = Field(description="this host's address")
    to: str = Field(description="the other one's")
    bytes: int = Field(ge=0, lt=1 << 63, description="that it has acknowledged")
    busy: _Seconds = Field(description="seconds in which some were on their way or waited to be sent")


class Hardware(_Event):
    """A sample of a host's hardware. Bytes and per cent; None where the host cannot measure it."""

    kind: Literal["hardware"] = "hardware"
    cpu_percent: float | None = None
    cpu_busy: float | None = Field(
        None, description="core-seconds of all processes since the sample before, on the cores of the run"
    )
    cpu_own: float | None = Field(None, description="those of the run's own processes")
    cpu_stolen: float | None = Field(None, description="those that the machine's own host gave to others")
    memory_used: int | None = None
    memory_total: int | None = None
    gpus: list[dict[str, float | int | None]] = Field(default_factory=list)
    seconds: _Seconds | None = Field(None, description="since the sample before; None: it is the first one")
    own: dict[int, _Seconds] = Field(
        default_factory=dict,
        description="of each rank, seconds since then in which it computed or wanted to; the rest it slept",
    )
    links: list[Link] = Field(
        default_factory=list,
        max_length=MOST_LINKS,
        description="TCP connections of the ranks to other hosts, by their end",
    )


class Started(_Event):
    """A rank has its model: the device it runs on and what it trains."""

    kind: Literal["started"] = "started"
    device: str
    parameters: int
    trainable: int
    total_steps: int
    arithmetic: str | None = Field(None, description="of matrix products: fp32, tf32, bf16, fp16 or fp8")
    versions: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class DataRead(_Event):
    """The number of samples, how many were cut to fit, and how many were left out as unusable."""

    kind: Literal["data"] = "data"
    train: int
    validation: int
    cut: int = 0
    skipped: int = 0


class Window(_Event):
    """A window of optimizer steps on one rank, between two device synchronisations.

    `seconds`, `step_seconds`, samples and tokens leave out evaluation, saving and skipped steps.
    """

    kind: Literal["window"] = "window"
    step: int = Field(description="the last optimizer step of the window")
    steps: int
    skipped: int = 0
    seconds: float
    samples: int
    tokens: int
    padded_tokens: int
    step_seconds: list[float]
    profiled: bool = Field(False, description="a profiler ran: it counts for no throughput")
    forward_seconds: float | None = Field(
        None, description="of a micro-step's forward pass, without waiting for other ranks: mean"
    )
    data_seconds: float | None = Field(
        None, description="that the rank's program spent getting batches: a GPU may compute meanwhile"
    )
    parts: dict[str, float] = Field(
        default_factory=dict,
        description="seconds of the window that the rank did itself: forward, backward, optimizer; and "
        "waiting for other ranks. Of a GPU forward alone",
    )
    phases: dict[str, float] = Field(
        default_factory=dict, description="seconds of a step's parts where it has such: generating, scoring"
    )
    model_flops: int | None = Field(None, description="forward and backward, by shapes with padding")
    hardware_flops: int | None = Field(None, description="with what gradient checkpointing computes again")
    allocator_peak: int | None = None
    device_peak: int | None = None
    resident_peak: int | None = None


class FlopsCounted(_Event):
    """A rank has counted the operations of its batches, between two windows."""

    kind: Literal["flops"] = "flops"
    seconds: float = Field(description="that counting took")
    runs: int = Field(description="forward and backward passes of a model without weights")
    method: str = Field(description="for further lengths: formula, polynomial or counted")
    samples: int = Field(description="of one micro-batch, as an example")
    lengths: list[int] = Field(description="its tokens per sample; of two stacks: both")
    model: int = Field(description="its operations")
    hardware: int
    formula: int | None = Field(description="its operations by the family's formula; None: there is none")


class Profiled(_Event):
    """A rank wrote a profile of some steps."""

    kind: Literal["profiled"] = "profiled"
    what: Literal["flops", "trace"]
    first_step: int
    last_step: int
    path: str
    bytes: int
    summary: StepProfile | None = Field(None, description="of a trace; None: it has none")


class Wrote(_Event):
    """The engine wrote a file or a folder by itself, as its configuration asks."""

    kind: Literal["wrote"] = "wrote"
    what: str = Field(description="the section that asks for it: flops_profiler, tensorboard")
    path: str
    head: list[str] = Field(default_factory=list, description="first lines of a file of text")


class Log(_Event):
    """The trainer's own figures, averaged over all ranks."""

    kind: Literal["log"] = "log"
    step: int
    epoch: float | None = None
    loss: float | None = Field(None, description="mean over the steps since the log before")
    learning_rate: float | None = None
    gradient_norm: float | None = None
    figures: dict[str, float] = Field(
        default_factory=dict, description="further ones of the workload: reward, kl, pair_accuracy"
    )


class Evaluated(_Event):
    """The loss on held-out samples."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    loss: float | None = Field(None, description="None: of generated answers, whose reward is in figures")
    perplexity: float | None = Field(None, description="of language models: exp of the loss per token")
    seconds: float | None = None
    figures: dict[str, float] = Field(
        default_factory=dict, description="further ones of the workload: pair_accuracy, margin, reward"
    )


class Split(_Event):
    """How every micro-step is divided: the ranks' shares, in samples, where they may differ."""

    kind: Literal["split"] = "split"
    shares: list[int] = Field(description="per rank")
    speeds: list[float] | None = Field(
        None, description="per rank, samples per second as measured; None: the recipe gave the shares"
    )
    seconds: float = Field(0.0, description="that measuring took")

    def of(self, ranks: Sequence[int]) -> tuple[int, float | None]:
        """Return the share of some ranks together, and their speed."""
        speed = sum(self.speeds[rank] for rank in ranks) if self.speeds else None
        return sum(self.shares[rank] for rank in ranks), speed


class Attention(_Event):
    """The extremes of each layer's attention logits (q.k times the scale, plus the position bias; before mask
    and softmax) in the last micro-step of a window, over all ranks."""

    kind: Literal["attention"] = "attention"
    step: int
    layers: list[str]
    largest: list[float | None] = Field(description="per layer; None: not a finite number")
    smallest: list[float | None] = Field(description="per layer")
    seconds: float = Field(description="that measuring took in this window, on the slowest rank")


class Saved(_Event):
    """A complete checkpoint, or the final model (step is None)."""

    kind: Literal["saved"] = "saved"
    step: int | None
    path: str
    bytes: int
    seconds: float
    sealing: float | None = Field(None, description="seconds of these that hashing its files took")
    manifest: str | None = Field(None, description="of a checkpoint: the SHA-256 of its manifest")
    files: dict[str, dict[str, int | str]] | None = Field(
        None, description="of the final model: each file's size and hash"
    )


class Answered(_Event):
    """A rank's share of the held-out questions, answered by the trained model."""

    kind: Literal["answered"] = "answered"
    metric: str = Field("exact match", description="what the share of right answers is called")
    questions: int
    exact: int
    executed: int | None = Field(None, description="questions with the same rows; None without a database")
    scored: int | None = Field(
        None,
        description="questions whose expected query could be run; None: all, or none where executed is None",
    )
    seconds: float


class Answer(_Event):
    """One held-out question."""

    kind: Literal["answer"] = "answer"
    index: int
    question: str
    predicted: str
    expected: str
    exact: bool
    executed: bool | None = None
    unscored: str | None = Field(None, description="why the expected query could not be run")


class Phase(_Event):
    """A rank entered a phase: load, train, steps (the first one begins), evaluate, save, answer; compile
    (DeepSpeed builds an extension, at its first use on this machine), compiled."""

    kind: Literal["phase"] = "phase"
    name: str
    what: str | None = None  # is compiled


class Noted(_Event):
    """A note that readers of the result need."""

    kind: Literal["noted"] = "noted"
    text: str


class Measured(_Event):
    """Measurements of the fabric workload's ranks, which workloads/fabric/fold.py reads."""

    kind: Literal["measured"] = "measured"
    what: str
    content: dict[str, Any] = Field(default_factory=dict)


class Progress(_Event):
    """The progress of a command, as a reader of logs finds it in its output."""

    kind: Literal["progress"] = "progress"
    format: str = Field(description="of the output: Transformers, Megatron-LM, nanoGPT and so on")
    step: int
    made: int = Field(0, description="steps that lines tell of in all, where numbers began anew or at 0")
    loss: float | None = None
    not_finite: str | None = Field(None, description="since when its last losses are not finite, in words")
    rate: float | None = Field(None, description="per second, over the steps so far without the warm-up")
    unit: Literal["samples", "steps", "tokens"] = Field("samples", description="what is counted by `rate`")
    step_seconds: float | None = Field(None, description="mean; None: not told")
    steps: int = Field(0, description="that `rate` rests on")
    variation: float | None = Field(None, description="coefficient of variation of the rate over windows")


class Hanging(_Event):
    """The job made no progress, and its ranks were probed."""

    kind: Literal["hang"] = "hang"
    found: Hung


class Paced(_Event):
    """The rank that holds the job up has changed."""

    kind: Literal["pace"] = "pace"
    step: int | None = None
    found: Pace


class Failed(_Event):
    """A failure. `usage`: bad input rather than a breakdown; `id`: in the table of failures."""

    kind: Literal["failed"] = "failed"
    id: str | None = None
    what: str
    where: str | None = None
    hint: str | None = None
    usage: bool = False
    checkpoint: int | None = Field(None, description="the step of a checkpoint that could not be loaded")
    traceback: str | None = None


class Done(_Event):
    """A rank has ended well. A rank without this event has not."""

    kind: Literal["done"] = "done"
    step: int
    skipped: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    weights_changed: bool | None = Field(
        None, description="by the steps of this attempt, of those on this rank; None: not known"
    )
    out_of_time: bool | None = Field(None, description="train.max_minutes ended it; None: not known")


class JobState(_Event):
    """The controller's own events: an attempt begins or ends."""

    kind: Literal["job"] = "job"
    state: Literal["begin", "end"]
    detail: dict[str, Any] = Field(default_factory=dict)


Event = (
    HostFacts
    | Hardware
    | Started
    | DataRead
    | Window
    | FlopsCounted
    | Profiled
    | Wrote
    | Log
    | Evaluated
    | Attention
    | Split
    | Saved
    | Answered
    | Answer
    | Phase
    | Progress
    | Hanging
    | Paced
    | Failed
    | Measured
    | Noted
    | Done
    | JobState
)
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def parse_event(line: str | bytes) -> Event:
    """Return the event of a line. Raises ValueError for anything else."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def to_line(event: Event) -> str:
    """Return an event as a line, without the newline. Bytes of a text that are not UTF-8 are escaped, as in
    logs."""
    line = json.dumps(event.model_dump(mode="json", exclude_none=False), ensure_ascii=False)
    # \\udce9 and not \udce9: readers of JSON refuse an escape of half a character.
    return _NOT_UTF8.sub(lambda match: "\\" + ascii(match[0])[1:-1], line)


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file in order. A last line without its newline (a write cut short) is left out.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                try:
                    yield parse_event(line)
                except ValueError:
                    continue  # a later version's kind, or a torn line: not ours to read


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema of an event."""
    return _ADAPTER.json_schema()
