"""The fabric: collectives, links and matrix products between real ranks. Nothing is trained."""

from __future__ import annotations

import os
from typing import Any

from muster.core.errors import WorkerError
from muster.store import events
from muster.worker.context import Context
from muster.workloads.fabric.group import RankGroup, device_of
from muster.workloads.fabric.rank import Round
from muster.workloads.fabric.request import BESIDE, COLLECTIVES, MIB, PRODUCT, FabricRequest
from muster.workloads.fabric.spec import Fabric, FabricRecipe

_ARRIVAL = 300.0  # seconds for all ranks to come: Python and torch are slow to load from some disks
ALONE = 3  # times the part of the time that products have otherwise: one rank has nothing else to measure
_PATIENCE = 60.0  # seconds for the others to come to a question, and for one operation to end


def measure(context: Context) -> None:
    """Ask all questions of all ranks; every answer is an event. Raises WorkerError where one failed on this
    rank, or where a rank did not answer, after everything that could still be measured was."""
    assert isinstance(context.recipe, FabricRecipe)
    group = RankGroup(
        rank=context.rank,
        local_rank=context.local_rank,
        hosts=context.hosts,
        device=device_of(context.device, context.local_rank),
        address=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        base=context.base,
        folder=context.place,
        asked=request_of(context.recipe.fabric, context.device, context.world_size),
    )
    trouble: list[WorkerError] = []

    def report(kind: str, **content: Any) -> None:
        """Emit an event. A question's begin is also a phase of the run, of rank 0."""
        if kind == "begin" and context.main:
            context.emit(events.Phase, name=content["question"])
        if kind == "failed":
            what = f"{content['question']}: {content['what']}"
            trouble.append(WorkerError(what, hint=content["hint"], failure=content["id"]))
        if kind == "missing":
            ranks = ", ".join(f"rank {rank} on {group.host_of(rank)}" for rank in content["ranks"])
            trouble.append(WorkerError(f"{ranks} did not answer the check at {content['question']}"))
        context.emit(events.Measured, what=kind, content=content)

    Round(group, report).run()
    if context.world_size == 1 and context.main:
        text = "there is only one rank: collectives, pairs and the split product are not measured"
        context.emit(events.Noted, text=text)
    if trouble:
        raise trouble[0]


def request_of(fabric: Fabric, device: str, world_size: int) -> FabricRequest:
    """Return the recipe's section as the questions that ranks know."""
    alone, split = (("matmul",), (PRODUCT,)) if fabric.matmul else ((), ())
    more = 1 if world_size > 1 else ALONE
    message = (64 if device == "cuda" else 4) * MIB  # point to point
    asked = FabricRequest(
        questions=(*alone, "values", "latency", *COLLECTIVES, "points", *split, BESIDE),
        pairs="all" if fabric.pairs == "all" else "ring",
        smallest=min(1024, fabric.largest or 1024),
        largest=fabric.largest,
        point_bytes=min(message, fabric.largest or message),
        seconds=fabric.seconds * more,
        arrival=_ARRIVAL,
        patience=_PATIENCE,
    )
    return asked.grown(world_size) if device == "cuda" else asked
