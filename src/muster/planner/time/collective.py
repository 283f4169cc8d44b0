"""What a collective sends, and how long that takes: a latency per hop and bytes over a bandwidth. Pure.

Ring algorithms (Patarasuk and Yuan 2009): an all-gather or a reduce-scatter of n ranks takes n - 1 steps, in
each of which every rank sends an n-th; an all-reduce both. Ranks of a host are neighbours in the ring, so
each host's network card carries what a rank sends once, in each direction, whatever the ranks per host.
Latency by NCCL's cost model (src/graph/tuning.cc): 2 (hosts - 1) of an all-reduce's steps go between hosts,
the others within one. NCCL may also reduce along a tree: twice the bytes whatever n, but only log2(hosts)
hops.

gloo (ProcessGroupGloo.cpp): all-reduce and all-gather are rings as well; reduce_scatter_tensor is an
all-reduce of the whole, of which each rank keeps its part: twice the bytes of a reduce-scatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from muster.core.errors import UsageError
from muster.core.hardware.machines import Machines
from muster.engines.traffic import Call

RINGS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # times (n - 1) steps
# Seconds of starting a call, beside its hops. gloo: from Python to its threads and back, measured between two
# and three ranks of a host; nccl: its cost model's base latency, and a launch.
CALL = {"gloo": 2.5e-4, "nccl": 1.0e-5}
# Of a link's bandwidth, what an all-gather of two ranks gets, where that is not all. With two, a ring's
# neighbours are the same rank, and gloo has one connection for both directions: 0.66 to 0.86 of what its
# all-reduce gets, over links of 200 Mbit/s and 1 Gbit/s. With three, each carries data one way: 0.86 to 1.
PAIR_SHARE = {"gloo": 0.75}


@dataclass(frozen=True)
class WireTime:
    """What a rank sends: bytes, and consecutive steps within a host (`inner`) and between hosts."""

    size: float
    inner: int
    outer: int


def library_of(device: str) -> str:
    """Return the library that moves tensors between ranks: gloo on CPUs, nccl on GPUs."""
    return "gloo" if device == "cpu" else "nccl"


def ring(call: Call, ranks: int, hosts: int, library: str) -> WireTime:
    """Return what a rank sends along a ring. Raises ValueError for an operation that is no collective here.
    """
    operation = call.operation
    if operation == "reduce-scatter" and library == "gloo":
        operation = "all-reduce"
    if operation not in RINGS:
        raise ValueError(f"no cost is known of {call.operation!r}")
    times = RINGS[operation]
    outer = times * (hosts - 1)
    return WireTime(times * (ranks - 1) / ranks * call.size, times * (ranks - 1) - outer, outer)


def tree(call: Call, per_host: int, hosts: int) -> WireTime:
    """Return what a rank sends of an all-reduce along NCCL's double binary tree: up, and down again."""
    inner = 2 * (per_host - 1)
    return WireTime(2.0 * call.size, inner, 2 * math.ceil(math.log2(hosts)) if hosts > 1 else 0)


def seconds(call: Call, machines: Machines, library: str) -> float:
    """Return how long a call takes on these machines, by the faster algorithm that the library has.

    Raises UsageError where a link that it crosses is not known.
    """
    machines = _those_of(call, machines)
    if machines.ranks == 1:
        return 0.0
    ways = [ring(call, machines.ranks, machines.hosts, library)]
    if library == "nccl" and call.operation == "all-reduce" and machines.hosts > 1:
        ways.append(tree(call, machines.per_host, machines.hosts))
    share = _share(call, machines, library)
    return CALL[library] + min(_over(w, machines, share) for w in ways)


def _those_of(call: Call, machines: Machines) -> Machines:
    """Return the machines of a call's ranks, where those are not all: a group's hosts, or one rank of each
    group, which share their hosts' cards with the other ranks of those groups. Where hosts have unlike
    numbers of ranks, those with fewest: all wait for the group that goes over most links."""
    if not call.group:
        return machines
    group, per_host = call.group, min(machines.slots[: machines.hosts], default=machines.per_host)
    if call.across:
        inside = max(1, per_host // group)
        link, sharing = machines.link, min(group, per_host)
        shared = link and replace(link, bandwidth=link.bandwidth / sharing)
        hosts = max(1, machines.ranks // group // inside)
        return replace(machines, per_host=inside, hosts=hosts, link=shared, slots=())
    hosts = 1 if per_host % group == 0 else max(2, -(-group // per_host))
    return replace(machines, per_host=-(-group // hosts), hosts=hosts, slots=())


def _share(call: Call, machines: Machines, library: str) -> float:
    """Return the share of the links' bandwidth that a call gets."""
    link = machines.link if machines.hosts > 1 else machines.inner
    if call.operation != "all-gather" or link is None:
        return 1.0
    if machines.ranks == 2:
        usual, measured = PAIR_SHARE.get(library, 1.0), link.beside.pair_gather
    else:
        usual, measured = 1.0, link.beside.gather
    return usual if measured is None else measured


def _over(wire: WireTime, machines: Machines, share: float) -> float:
    latency, rate = 0.0, math.inf
    if machines.per_host > 1:
        if machines.inner is None:
            raise UsageError(
                "the link between the devices of a host is unknown",
                where=f"device {machines.device.name}",
                hint="name it, as in mydev{...}:8x4,10Gbit,pcie4",
            )
        latency, rate = wire.inner * machines.inner.latency, machines.inner.bandwidth
    if machines.hosts > 1:
        if machines.link is None:
            raise UsageError(
                f"how {machines.hosts} hosts are connected is unknown",
                where=f"device {machines.device.name}",
                hint="name the link between them, as in h200:8x4,10Gbit",
            )
        latency += wire.outer * machines.link.latency
        rate = min(rate, machines.link.bandwidth)
    return latency + wire.size / (share * rate)
