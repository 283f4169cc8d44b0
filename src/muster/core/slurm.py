"""`slurm:` as HOSTS: the allocation that this process is in, or nodes that Slurm shall allocate. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from muster.core.errors import InventoryError

FORM = "slurm:[PARTITION][/NODES[xSLOTS]], such as slurm: or slurm:gpu/4x8"
_ASK = re.compile(
    r"slurm:(?P<partition>[A-Za-z0-9_][A-Za-z0-9_.,-]*)?(?:/(?P<nodes>[0-9]{1,6})(?:x(?P<slots>[0-9]{1,4}))?)?"
)


@dataclass(frozen=True)
class SlurmAsk:
    """What `slurm:` asks for; None: as in the allocation or the partition."""

    partition: str | None = None
    nodes: int | None = None
    slots: int | None = None

    def __str__(self) -> str:
        nodes = "" if self.nodes is None else f"/{self.nodes}"
        return f"slurm:{self.partition or ''}{nodes}{'' if self.slots is None else f'x{self.slots}'}"


@dataclass(frozen=True)
class Allocation:
    """The nodes that Slurm has allocated to this process, from its environment."""

    job: str
    nodelist: str  # folded, as Slurm writes it
    slots: int | None  # tasks per node where the job was asked for with a number of them


def parse_ask(text: str) -> SlurmAsk:
    """Parse `slurm:[PARTITION][/NODES[xSLOTS]]`. Raises InventoryError."""
    match = _ASK.fullmatch(text)
    if not match:
        raise InventoryError("is not understood", where=text, hint=FORM)
    nodes, slots = (int(match[key]) if match[key] else None for key in ("nodes", "slots"))
    if nodes == 0 or slots == 0:
        raise InventoryError("nodes and slots are 1 or more", where=text, hint=FORM)
    return SlurmAsk(match["partition"], nodes, slots)


def allocation(env: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of a process with this environment; None: it is in none."""
    job, nodelist = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_NODELIST")
    if not job or not nodelist:
        return None
    tasks = re.match(r"[0-9]+", env.get("SLURM_NTASKS_PER_NODE", ""))
    return Allocation(job, nodelist, int(tasks[0]) if tasks and int(tasks[0]) else None)
