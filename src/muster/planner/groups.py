"""Hosts in groups: so many of each size that every host has its job, the last overlapping. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.fabric import rounds
from muster.core.suite import Sizes

RING = 6  # hosts: disjoint pairs of so few are fewer than the four times that can outvote a bad one


@dataclass(frozen=True)
class HostGroup:
    """The hosts of one job, in the order of the inventory. `leftover`: those for whose sake it is there, in
    a last group that overlaps the one before."""

    hosts: tuple[str, ...]
    leftover: tuple[str, ...] = ()

    @property
    def again(self) -> tuple[str, ...]:
        """Hosts that had a job of this size already."""
        return tuple(host for host in self.hosts if self.leftover and host not in self.leftover)


def sizes_of(groups: Sizes, count: int) -> tuple[list[int], list[int]]:
    """Numbers of hosts of a job, each once, in the order given; and those for which there are too few."""
    if groups == "adaptive":
        return [], []
    if groups == "doubling":
        wanted = [1 << power for power in range(count.bit_length()) if 1 << power <= count] + [count]
    else:
        wanted = [count if size == "all" else int(size) for size in groups]
    unique = list(dict.fromkeys(wanted))
    return [size for size in unique if 1 <= size <= count], [size for size in unique if size > count]


def groups_of(hosts: Sequence[str], size: int, *, first: bool = False) -> list[HostGroup]:
    """Neighbours in groups of `size`, which is at most the number of hosts. `first`: one group alone.

    Of hosts that are left over, a last group is made with the ones before them. Of few hosts, pairs are all
    neighbours on their ring: every host is in two, every link in one.
    """
    if not 1 <= size <= len(hosts):
        raise ValueError(f"no group of {size} can be made of {len(hosts)} hosts")
    if first:
        return [HostGroup(tuple(hosts[:size]))]
    if size == 2 and len(hosts) <= RING:
        return [
            HostGroup((hosts[a], hosts[b])) for wave in rounds(range(len(hosts)), "ring") for a, b in wave
        ]
    whole = len(hosts) // size * size
    made = [HostGroup(tuple(hosts[at : at + size])) for at in range(0, whole, size)]
    if whole < len(hosts):
        made.append(HostGroup(tuple(hosts[-size:]), leftover=tuple(hosts[whole:])))
    return made
