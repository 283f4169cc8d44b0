"""The fabric: collectives, links and matrix products between real ranks. Nothing is trained."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from muster.core.errors import WorkerError
from muster.core.fabric.asked import BESIDE, MIB, PRODUCT, FabricRequest
from muster.core.fabric.busbw import COLLECTIVES
from muster.store import events
from muster.worker.context import Context
from muster.worker.fabric.place import Place
from muster.worker.fabric.rank import Round, open_device
from muster.worker.fabric.rendezvous import Meeting
from muster.workloads.fabric.spec import Fabric, FabricRecipe

_ARRIVAL = 300.0  # seconds for all ranks to come: Python and torch are slow to load from some disks
ALONE = 3  # times the part of the time that products have otherwise: one rank has nothing else to measure
_PATIENCE = 60.0  # seconds for the others to come to a question, and for one operation to end


def measure(context: Context) -> None:
    """Ask all questions of all ranks; every answer is an event. Raises WorkerError where one failed on this
    rank, or where a rank did not answer, after everything that could still be measured was."""
    place = place_of(context)
    report = Reporter(context)
    device = open_device(place)
    report("ready", device=device, torch=version("torch"), threads=_threads(context))
    Round(place, report, Meeting(place)).run()
    if context.world_size == 1 and context.main:
        text = "there is only one rank: collectives, pairs and the split product are not measured"
        context.emit(events.Noted, text=text)
    if report.trouble:
        kind, trouble = report.trouble[0]
        raise WorkerError(_in_words(place, kind, trouble), failure=trouble.get("id"))


def place_of(context: Context) -> Place:
    """This rank's place among the hosts of its job."""
    host = next(i for i, (_, first, slots) in enumerate(context.hosts) if 0 <= context.rank - first < slots)
    return Place(
        rank=context.rank,
        local_rank=context.local_rank,
        host=host,
        hosts=context.hosts,
        device=context.device,
        address=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        base=context.base,
        folder=context.place,
        asked=asked_by(_section(context), context.device, context.world_size),
    )


def _section(context: Context) -> Fabric:
    assert isinstance(context.recipe, FabricRecipe)
    return context.recipe.fabric


def asked_by(fabric: Fabric, device: str, world_size: int) -> FabricRequest:
    """The recipe's section as the questions that ranks know."""
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


def _threads(context: Context) -> int | None:
    import torch

    return None if context.device == "cuda" else torch.get_num_threads()


def _in_words(place: Place, kind: str, trouble: dict[str, Any]) -> str:
    question = trouble["question"]
    if kind == "failed":
        return f"{question}: {trouble['what']}"
    ranks = ", ".join(f"rank {rank} on {place.host_of(rank)}" for rank in trouble["ranks"])
    return f"{ranks} did not answer the check at {question}"


class Reporter:
    """Gives what a rank says the form of events, and remembers what went wrong."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.trouble: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, **content: Any) -> None:
        """Say one thing. A question's begin is also a phase of the run, told by rank 0."""
        if kind == "begin" and self._context.main:
            self._context.emit(events.Phase, name=content["question"])
        if kind in ("failed", "missing"):
            self.trouble.append((kind, content))
        self._context.emit(events.Measured, what=kind, content=content)
