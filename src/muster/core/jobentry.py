"""A job that was run: the row of the documents of `muster judge` and `muster bench`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic import Field, computed_field, dataclasses

from muster.core.state import LogEnd

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobEntry:
    """One job, as its log or its run folder tells it."""

    job: str = Field(
        description="the log's path in the folder, with #HOST for a table's column of hosts; or its id"
    )
    outcome: LogEnd
    reason: str | None = Field(default=None, description="why it did not succeed: the decisive line")
    hint: str | None = None
    failure: str | None = Field(default=None, description="id in the table of failures")
    failed_host: str | None = Field(
        default=None,
        description="that wrote the decisive line, or is to blame as far as the job knows",
    )
    failed_hosts: tuple[str, ...] = Field(
        default=(), description="all that failed by themselves, that one first"
    )
    format: str | None = None
    hosts: tuple[str, ...] = ()
    hosts_from: str = Field(
        default="", description="log; pattern (--host-pattern); guess: file name, or guess: folder name"
    )
    world_size: int | None = None
    workload: str = Field(default="", description="what was trained, as far as the log tells")
    work: str = Field(default="", description="jobs of the same work on as many hosts are compared")
    started: float | None = Field(
        default=None, description="Unix time, as `ended`; of a log, by the clock of who wrote it"
    )
    ended: float | None = None
    steps: int | None = Field(default=None, description="attempted")
    skipped_steps: int | None = Field(default=None, description="that a loss scaler threw away")
    samples_per_second: float | None = Field(
        default=None,
        description="samples over seconds of the measured windows; of jobs without any, the tool's own; null "
        "where the log does not tell how many samples a step has",
    )
    reported: float | None = Field(default=None, description="samples/s that the tool printed")
    step_seconds: float | None = Field(default=None, description="null: nothing timed, or only per sample")
    measured_samples: float | None = None
    measured_seconds: float | None = None
    windows: int | None = None
    variation: float | None = Field(
        default=None, description="coefficient of variation of samples/s over windows"
    )
    tokens_per_second: float | None = None
    memory: int | None = Field(default=None, description="peak of the allocator in bytes")
    loss: float | None = Field(default=None, description="the last one in the log")
    slower: float | None = Field(default=None, description="than its peers: share of a healthy step's time")
    judged: bool = Field(default=False, description="it counts as evidence")
    misses: tuple[str, ...] = Field(default=(), description="thresholds that it does not meet")
    notes: tuple[str, ...] = ()
    # Of a bench's job alone.
    entry: str = Field(default="", description="of the suite; this and what follows: of a bench's job alone")
    recipe: str = ""
    repeat: int = 1
    warm_up: bool = Field(default=False, description="not measured, not judged")
    leftover: tuple[str, ...] = Field(default=(), description="hosts for whose sake the group is there")
    wave: int | None = Field(default=None, description="of an adaptive entry")
    run: str = Field(default="", description="run folder, relative to the bench's; its last attempt")
    figures: dict[str, float] = Field(default_factory=dict, description="by the names of thresholds")
    measure: str | None = Field(default=None, description="of a command: by what it is compared with others")
    not_measured: tuple[str, ...] = Field(
        default=(), description="why its figures are no measurement; they have no verdict then"
    )

    @computed_field(description="hosts")  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        """How many hosts it had."""
        return len(self.hosts)

    @property
    def took(self) -> float | None:
        """Seconds from its start to its end, where both are known."""
        return None if self.started is None or self.ended is None else self.ended - self.started

    def divisor(self, per: str) -> int | None:
        """By what a figure of it is divided to be one of a host or a slot (a rank); None: not known."""
        return {"job": 1, "host": self.size or None, "slot": self.world_size}[per]

    @classmethod
    def of(cls, other: JobEntry, /, **values: Any) -> Self:
        """Make a row of this class of another's, with other `values`."""
        return cls(**{each.name: getattr(other, each.name) for each in fields(JobEntry)} | values)
