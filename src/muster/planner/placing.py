"""Place a job on hosts by their facts: CPUs or GPUs, and the ranks of each host. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from muster.core.errors import InventoryError
from muster.core.inventory import Host, Inventory
from muster.core.job import Decision
from muster.core.recipe import Recipe


def ranks_of(host: Host, about: Mapping[str, Any], device: str) -> int:
    """Return the ranks that a host takes: its slots, else one per GPU, else one. `device`: cpu, cuda or auto.
    """
    gpus = 0 if device == "cpu" else len(about.get("gpus") or [])
    return host.slots or gpus or 1


def gpu_numbers(slots: Sequence[int], *, shared: bool) -> list[range]:
    """Return the numbers of the GPUs that each host's ranks use: its first ones. `shared`: pretend hosts that
    are all one machine, whose GPUs they take one host after the other."""
    first = accumulate(slots, initial=0) if shared else [0] * len(slots)
    return [range(start, start + count) for start, count in zip(first, slots, strict=False)]


def gpus_of(
    facts: Mapping[str, Mapping[str, Any]], hosts: Sequence[Host], slots: Sequence[int], *, shared: bool
) -> dict[str, list[Mapping[str, Any]]]:
    """Return, by host, the GPUs that the job's ranks use, as in its facts."""
    used = zip(hosts, gpu_numbers(slots, shared=shared), strict=True)
    return {
        host.label: list(facts[host.label].get("gpus") or [])[numbers.start : numbers.stop]
        for host, numbers in used
    }


def device_and_slots(
    recipe: Recipe,
    inventory: Inventory,
    facts: Mapping[str, Mapping[str, Any]],
    one_machine: bool,
    decisions: list[Decision],
) -> tuple[str, list[int]]:
    """Return cpu or cuda for all, and each host's ranks. `one_machine`: pretend hosts that share its GPUs.

    Raises InventoryError where a host has too few GPUs.
    """
    counts = {host.label: len(facts[host.label].get("gpus") or []) for host in inventory.hosts}
    device = recipe.launch.device
    if device == "auto":
        with_gpu = [name for name, count in counts.items() if count]
        if with_gpu and len(with_gpu) < len(counts):
            without = [name for name, count in counts.items() if not count]
            raise InventoryError(
                f"has no visible GPU, while {with_gpu[0]} has {counts[with_gpu[0]]}",
                host=without[0],
                hint="leave the host out, mend its driver, or set launch.device=cpu for all",
            )
        device = "cuda" if with_gpu else "cpu"
        decisions.append(
            Decision("launch.device", device, "every host has a GPU" if with_gpu else "no host has a GPU")
        )
    slots = []
    for host in inventory.hosts:
        slots.append(ranks_of(host, facts[host.label], device))
        if host.slots is None:
            why = "one rank per GPU" if device == "cuda" else "one rank per host without a GPU"
            decisions.append(Decision(f"slots of {host.label}", slots[-1], why))
    for host, count in zip(inventory.hosts, slots, strict=True):
        there, need = counts[host.label], sum(slots) if one_machine else count
        if device == "cuda" and need > there:
            what = f"{need} ranks need as many GPUs, and it has {there}" if there else "has no visible GPU"
            way = "lower the slots" if there else "mend its driver"
            raise InventoryError(what, host=host.label, hint=f"{way}, or set launch.device=cpu")
    return device, slots
