"""The fabric, as the control side knows it: what is measured, and for how long."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from muster.core.data import Data
from muster.core.recipe import DATA, WORKLOAD, Recipe
from muster.core.section import Bytes, Section


class Fabric(Section):
    """What the fabric workload measures."""

    largest: Bytes | None = Field(
        None,
        description="Largest message, in bytes or with a unit such as 64MiB. Null: 64 MiB on CPUs, 1 GiB on "
        "GPUs.",
    )
    pairs: Literal["sample", "all"] = Field(
        "all",
        description="Pairs of hosts measured point to point. all: every pair. sample: neighbours in a ring.",
    )
    matmul: bool = Field(
        True, description="Also measure matrix products: on each device, and one split over all ranks."
    )
    seconds: Annotated[float, Field(gt=0)] = Field(
        60, description="Seconds of measuring in total, divided among the measurements."
    )


class FabricData(Data):
    """The fabric reads nothing."""


class FabricRecipe(Recipe):
    """The hosts' collectives, links and matrix products are measured; nothing is trained."""

    trains: ClassVar[bool] = False
    short: ClassVar[tuple[str, ...]] = ("fabric.seconds=5", "fabric.pairs=sample")

    workload: str = Field("fabric", description=WORKLOAD)
    data: FabricData = Field(default_factory=FabricData, description=DATA)
    fabric: Fabric = Field(default_factory=Fabric, description="What is measured, and for how long.")


RECIPE = FabricRecipe
