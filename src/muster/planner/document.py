"""A plan: what a job will need and take, as far as it can be predicted before it starts. Pure data.

Bytes and seconds; GB in texts is 10^9 bytes. None: not known.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from muster.core.section import Part

SCHEMA_VERSION = 1
NEARLY_FULL = 0.88  # of a device: from here on a plan says so, and names what would leave more free
UNCOUNTED = "not counted"  # a basis: the model is neither traced nor a decoder, and the memory a lower bound
SPEAKS_FOR = (
    "of Muster's own training; other trainers take more: about 14 bytes a logit in half precision where the "
    "loss is Transformers', 4 bytes a parameter where AdamW is foreach, whole gradients under no_sync"
)
# Decisions that change what a rank holds.
_MEMORY = (
    "engine.zero", "engine.sync_each_batch", "engine.group", "train.gradient_checkpointing",
    "train.fused_loss", "model.create", "batch.micro",
)  # fmt: skip


class MemoryPlan(Part):
    """A rank's memory at its peak, by purpose. On CPUs all of it is in `device`."""

    device: dict[str, int] = Field(description="bytes")
    host: dict[str, int] = Field(description="bytes of the host's memory, in addition to a GPU's")
    device_bytes: int = Field(description="the sum of `device`")
    host_bytes: int = Field(description="the sum of `host`")
    device_room: int | None = Field(description="what a rank may use of the smallest device")
    host_room: int | None = Field(description="what a rank may use of the smallest host")
    margin: float = Field(description="of the room, left free")
    basis: str = Field(
        description="where the activations are from: traced, or closed form; not counted: the sums lack them"
    )
    moment: str = Field(description="when the peak is")
    samples: str | None = Field(
        None, description="how long the samples are that it is for, and by what; None: all are of one length"
    )
    lacking: str | None = Field(
        description="device or host, where there is too little; None: it fits, as far as it is counted"
    )
    speaks_for: str = Field(SPEAKS_FOR, description="whose memory this is")

    @property
    def tight(self) -> bool:
        """Whether the device has less than the margin left."""
        return self.device_room is not None and self.device_bytes > (1 - self.margin) * self.device_room

    @property
    def nearly_full(self) -> bool:
        """Whether so much of the device is used that a run's variation may be too much."""
        return self.device_room is not None and self.device_bytes > NEARLY_FULL * self.device_room


class TimePlan(Part):
    """Seconds of an optimizer step in parts that add up, and what follows from them."""

    compute: float = Field(description="forward and backward passes")
    communication: float = Field(description="what ranks wait for each other")
    optimizer: float
    transfer: float = Field(description="over the bus to the host's memory")
    overhead: float = Field(description="what an engine does for each tensor, and else of its own")
    step: float = Field(description="the sum")
    step_range: tuple[float, float] | None = Field(
        None, description="what a step may take instead, in 9 of 10 cases; None: an earlier version's plan"
    )
    samples_per_second: float
    steps: int | None = Field(description="optimizer steps of the whole training")
    epoch: float | None = Field(description="seconds; None: the number of its samples is not known")
    total: float | None = Field(description="seconds of all steps, without evaluation and saving")
    cost: float | None = Field(description="in the currency of the price")
    tokens_per_second: float | None = Field(
        None, description="of all ranks, as samples are padded; None: samples have no tokens"
    )
    tokens_per_device: float | None = Field(None, description="tokens_per_second of one rank")
    mfu: float | None = Field(
        None, description="what the gradient needs of operations, as a share of the devices' stated peaks"
    )
    kwh: float | None = Field(
        None, description="at most: the devices' power limits over the total, and nothing else of the hosts"
    )
    assumed: list[str] = Field(description="what was neither measured nor stated by a maker")
    calibrated: bool = Field(description="the device's efficiency was learned from measured runs")


class TrainingPlan(Part):
    """The training in words, as the recipe and the engine's own configuration define it."""

    samples: int | None = Field(description="of an epoch; None: not known here")
    steps: int | None = Field(description="optimizer steps; None: not known here")
    length: str = Field(description="what the number of steps is from, and what may end the training earlier")
    optimizer: str
    decay: str = Field(description="the optimizer's groups: which weights decay")
    schedule: str
    order: str = Field(description="of the samples")


class ScalingPoint(Part):
    """The same job on a number of hosts, at its best there with what the recipe leaves open."""

    hosts: int
    ranks: int
    changes: dict[str, str] = Field(
        default_factory=dict, description="of what the recipe leaves open, what is not as on the chosen hosts"
    )
    step: float = Field(description="seconds")
    samples_per_second: float
    efficiency: float = Field(description="samples/s per host, over those of the fewest hosts")
    total: float | None = None
    cost: float | None = None


class Candidate(Part):
    """Another way to run the recipe, and why it was chosen or lost."""

    changes: dict[str, str] = Field(description="overrides of the recipe; empty: as it is")
    fits: bool | None = Field(description="null: what it needs is not known")
    memory: int = Field(description="bytes of a rank's device")
    step: float | None = Field(None, description="seconds of an optimizer step")
    samples_per_second: float | None = None
    chosen: bool = False
    why: str = Field(description="why it was chosen, or lost")


class Plan(Part):
    """plan.json: what was decided and why, and what is predicted. A run's result is compared with it."""

    schema_version: int = SCHEMA_VERSION
    model: str | None
    parameters: int | None = None
    trainable: int | None = None
    engine: str
    precision: str
    device: str = Field(description="cuda or cpu")
    machines: str = Field(description="the hosts, for people")
    hosts: int
    idle: list[str] = Field(
        default_factory=list, description="hosts given that the job does not use; `decisions` says why"
    )
    ranks: int
    batch: dict[str, int]
    training: TrainingPlan | None = Field(None, description="None: an earlier version's plan")
    data: list[str] = Field(
        default_factory=list,
        description="what of the data is held out, left out, changed or cut, as far as it is known here",
    )
    memory: MemoryPlan | None = Field(None, description="None: the model is not known here")
    time: TimePlan | None = Field(None, description="None: the device's speed is not known")
    scaling: list[ScalingPoint] = Field(default_factory=list)
    fastest_hosts: int | None = Field(
        None, description="of `scaling`, where most samples/s are; of equals the fewest"
    )
    candidates: list[Candidate] = Field(default_factory=list)
    sentence: str | None = None
    would_fit: list[str] = Field(default_factory=list, description="the smallest changes with which it fits")
    roomier: list[str] = Field(
        default_factory=list,
        description="where the device is nearly full, the smallest changes with which it is not",
    )
    decisions: list[dict[str, Any]] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @property
    def choices(self) -> list[str]:
        """What was decided of a rank's memory, as overrides: with other values it may not fit."""
        decided = [(each["field"], each["value"]) for each in self.decisions if each["field"] in _MEMORY]
        return [f"{field}={str(value).lower()}" for field, value in decided if value not in (None, False)]
