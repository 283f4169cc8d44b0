"""What a rank knows about itself and its job."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.core.batch import MULTIPLE, Batch
from muster.core.job import ENGINE_CONFIG
from muster.core.recipe import Recipe, recipe_from
from muster.engines.base import EngineSpec, spec_of
from muster.progress import Pulse
from muster.store import events
from muster.worker.engine import EngineRuntime, runtime_of

# For tests: "1" lets a rank that is alone form a group, so that one device runs what many would.
GROUP_OF_ONE = "MUSTER_GROUP_OF_ONE"
CHECKPOINT = "checkpoint-"  # and the step: the name of a checkpoint's folder, as Transformers has it


class Emitter:
    """Writes a rank's events to its own file, one line each, flushed: the agent forwards them."""

    def __init__(self, path: Path | None, *, rank: int, attempt: int) -> None:
        self.rank = rank
        self.attempt = attempt
        self._file = path.open("a", encoding="utf-8") if path else None
        # Beside it: how far the rank is, for those who ask whether it hangs.
        self.pulse = Pulse(str(path.with_name(f"rank{rank}.pulse"))) if path else None

    def __call__(self, kind: type[events._Event], **content: Any) -> None:
        """Record one event of `kind`."""
        event = kind(time=time.time(), attempt=self.attempt, rank=self.rank, **content)
        if self._file:
            self._file.write(events.to_line(event) + "\n")  # type: ignore[arg-type]
            self._file.flush()
        if self.pulse:
            if isinstance(event, events.Phase):
                self.pulse.phase = event.name.encode()[:48]
            self.pulse.beat()


@dataclass(frozen=True)
class Context:
    """One rank's view of its job."""

    recipe: Recipe
    batch: Batch
    precision: str
    device: str
    base: Path  # where checkpoints and the model go on this host
    place: Path  # this host's own folder of this attempt
    shared: bool
    attempt: int
    resume_step: int | None
    engine_config: dict[str, Any] | None
    rank: int
    local_rank: int
    world_size: int
    emit: Emitter = field(repr=False)
    hosts: tuple[tuple[str, int, int], ...] = ()  # (label, first rank, slots) of every host, in order

    @property
    def spec(self) -> EngineSpec:
        """The recipe's engine, as the control side asks it."""
        return spec_of(self.recipe.engine.name)

    @property
    def engine(self) -> EngineRuntime:
        """The recipe's engine, as ranks run it."""
        return runtime_of(self.recipe.engine.name)

    @property
    def grouped(self) -> bool:
        """Whether this rank is one of a group."""
        return self.world_size > 1 or os.environ.get(GROUP_OF_ONE) == "1"

    @property
    def main(self) -> bool:
        """Rank 0."""
        return self.rank == 0

    @property
    def saver(self) -> bool:
        """The one rank of each disk that writes what all its ranks share."""
        return self.rank == 0 if self.shared else self.local_rank == 0

    @property
    def padding_multiple(self) -> int:
        """What padded lengths are multiples of."""
        return MULTIPLE if self.device == "cuda" else 1

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go on this host."""
        return self.base / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.checkpoints / f"{CHECKPOINT}{step}"

    @property
    def resumed(self) -> Path | None:
        """The checkpoint that the job goes on from; None: it begins."""
        return self.checkpoint(self.resume_step) if self.resume_step else None

    @property
    def model(self) -> Path:
        """Where the trained model goes on the first host."""
        return self.base / "model"

    @property
    def cache(self) -> Path:
        """Files that this host can make anew, such as the generated data."""
        return self.base / "data"


def read_context(spec: dict[str, Any]) -> Context:
    """Return a rank's context from spec.json and the environment that its agent gave it."""
    job = spec["job"]
    rank = int(os.environ["RANK"])
    place = Path(spec["place"])
    return Context(
        recipe=recipe_from(job["recipe"]),
        batch=Batch(job["batch"]["micro"], job["batch"]["accumulation"], job["batch"]["global"]),
        precision=job["precision"],
        device=job["device"],
        base=Path(spec["base"]),
        place=place,
        shared=bool(spec["shared"]),
        attempt=job["attempt"],
        resume_step=job["resume_step"],
        engine_config=spec.get(ENGINE_CONFIG),
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        emit=Emitter(place / f"rank{rank}.events.jsonl", rank=rank, attempt=job["attempt"]),
        hosts=tuple((each["host"], each["first_rank"], each["slots"]) for each in job.get("placements", ())),
    )
