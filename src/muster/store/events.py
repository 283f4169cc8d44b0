"""The event schema, version 1: the only source for metrics. One JSON object per line.

Ranks write theirs to their own file; the agent forwards the lines and adds its own; the controller appends
all
to events.jsonl. Every event has: v, kind, time (Unix), attempt, host, rank (None: the host or the
controller).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

VERSION = 1


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")
    v: int = VERSION
    time: float
    attempt: int = 1
    host: str | None = None
    rank: int | None = None


class HostFacts(_Event):
    """What an agent found on its host before the start."""

    kind: Literal["host"] = "host"
    facts: dict[str, Any]


class Hardware(_Event):
    """A sample of a host. Bytes and per cent; None where the host cannot tell."""

    kind: Literal["hardware"] = "hardware"
    cpu_percent: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    gpus: list[dict[str, float | int | None]] = Field(default_factory=list)


class Started(_Event):
    """A rank has its model: what it runs on and what it trains."""

    kind: Literal["started"] = "started"
    device: str
    parameters: int
    trainable: int
    total_steps: int
    versions: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class DataRead(_Event):
    """How many samples there are, and how many were cut to fit."""

    kind: Literal["data"] = "data"
    train: int
    validation: int
    cut: int = 0


class Window(_Event):
    """One window of optimizer steps on one rank, between two device synchronisations.

    `seconds` and `step_seconds` leave out evaluation, saving and skipped steps, and so do samples and tokens.
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
    allocator_peak: int | None = None
    device_peak: int | None = None
    resident_peak: int | None = None


class Log(_Event):
    """The trainer's own figures, averaged over all ranks."""

    kind: Literal["log"] = "log"
    step: int
    epoch: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None


class Evaluated(_Event):
    """The loss on held-out samples."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    loss: float
    seconds: float | None = None


class Saved(_Event):
    """A complete checkpoint, or the final model (step is None)."""

    kind: Literal["saved"] = "saved"
    step: int | None
    path: str
    bytes: int
    seconds: float


class Answered(_Event):
    """A rank's share of the held-out questions, answered by the trained model."""

    kind: Literal["answered"] = "answered"
    questions: int
    exact: int
    executed: int | None = Field(None, description="questions with the same rows; None without a database")
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


class Phase(_Event):
    """A rank entered a part of its work: load, train, steps (the first one begins), save, answer."""

    kind: Literal["phase"] = "phase"
    name: str


class Noted(_Event):
    """Something that a reader of the result must know."""

    kind: Literal["noted"] = "noted"
    text: str


class Failed(_Event):
    """Something broke. `usage`: bad input rather than a breakdown."""

    kind: Literal["failed"] = "failed"
    what: str
    where: str | None = None
    hint: str | None = None
    usage: bool = False
    traceback: str | None = None


class Done(_Event):
    """A rank came to its end in good order. A rank without it did not."""

    kind: Literal["done"] = "done"
    step: int
    skipped: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)


class JobState(_Event):
    """The controller's own marks: an attempt begins, ends."""

    kind: Literal["job"] = "job"
    state: Literal["begin", "end"]
    detail: dict[str, Any] = Field(default_factory=dict)


Event = (
    HostFacts
    | Hardware
    | Started
    | DataRead
    | Window
    | Log
    | Evaluated
    | Saved
    | Answered
    | Answer
    | Phase
    | Failed
    | Noted
    | Done
    | JobState
)
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def parse_event(line: str | bytes) -> Event:
    """One line -> one event. Raises ValueError for anything else."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def to_line(event: Event) -> str:
    """One event -> one line, without the newline."""
    return json.dumps(event.model_dump(mode="json", exclude_none=False), ensure_ascii=False)


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file in order. A last line without its newline (a write cut short) is left out."""
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
    """The JSON Schema of an event."""
    return _ADAPTER.json_schema()
