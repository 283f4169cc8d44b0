"""A job: one recipe placed on one group of hosts. Pure data; what a dry run prints is what runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from muster.core.batch import Batch
from muster.core.hardware.peaks import MeasuredPeaks
from muster.core.inventory import Host

Facts = Mapping[str, Mapping[str, Any]]  # host -> what its agent says of it, by the names of its greeting


@dataclass(frozen=True)
class Placement:
    """A host's part of a job: ranks first_rank ... first_rank + slots - 1."""

    host: str  # the label, as logs and events name it
    address: str  # what the launcher connects to
    slots: int
    first_rank: int

    @property
    def ranks(self) -> range:
        """The global ranks on this host."""
        return range(self.first_rank, self.first_rank + self.slots)


SLOWER = "makes it slower"  # the value of a decision about a host that a job would be faster without
UNTRACED = "was not traced"  # the value of a decision about a model whose trace failed
WARNINGS = (SLOWER, UNTRACED)  # values of decisions that a user has to see
FASTEST = "fastest hosts"  # the field of a decision that names them
# The configuration that an engine gets, in job.json, in start orders and as a file: named when one engine
# had any.
ENGINE_CONFIG = "deepspeed"
PASSED_OVER = "passed over"  # the value of a decision about a checkpoint that a run does not go on from


@dataclass(frozen=True)
class Decision:
    """A value that the recipe left open (or that had to change), and the reason for it."""

    field: str
    value: Any
    why: str


@dataclass(frozen=True)
class Job:
    """Everything that is fixed before the first rank starts."""

    id: str
    launcher: str
    placements: tuple[Placement, ...]
    batch: Batch
    precision: str
    device: str
    recipe: dict[str, Any]
    attempt: int = 1
    resume_step: int | None = None
    decisions: tuple[Decision, ...] = field(default=())
    peaks: MeasuredPeaks | None = None  # of `measure.peaks`: the figures of this job's hosts

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return sum(place.slots for place in self.placements)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for job.json."""
        return {**asdict(self), "batch": self.batch.as_dict(), "world_size": self.world_size}


def place(hosts: list[tuple[Host, int]]) -> tuple[Placement, ...]:
    """Return placements with consecutive ranks for hosts with their slots, in order."""
    placements = []
    rank = 0
    for host, slots in hosts:
        placements.append(Placement(host.label, host.address, slots, rank))
        rank += slots
    return tuple(placements)


def read_job(data: dict[str, Any]) -> Job | None:
    """Return the job that job.json was written from; None for other data."""
    try:
        batch = {**data["batch"], "global_": data["batch"]["global"]}
        return _JOB.validate_python({**data, "batch": batch})
    except (KeyError, TypeError, ValueError):
        return None


_JOB = TypeAdapter(Job)
