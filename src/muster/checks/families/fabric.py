"""What ranks on all hosts find out together: meeting, values, links, products, copies, disks, MPI.

The answers come from real ranks (muster/fabric), not from a probe: `judge_group` has the judges. They compare
a host with its peers, because what a link or a device can do is seldom known, and with the profile where it
says so. The peers' reference is the upper median (the better one of two): one bad host never is the measure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families import _fabric_devices as devices
from muster.checks.families import _fabric_links as links
from muster.checks.families._judging import About
from muster.core.fabric.result import Fabric, FabricFailure, suspects, wrong_words
from muster.core.units import counted

CHECKS = (
    Check(
        "fabric.rendezvous",
        "Whether the ranks of every host reach the rendezvous (the first host's address and port).",
        "The job never starts: all ranks wait for the missing ones until a timeout that names no host.",
    ),
    Check(
        "fabric.ranks",
        "Whether the host's ranks finished: none was killed, hung, or failed to use its device.",
        "One rank that dies or hangs ends the whole job, often with an error on another host.",
    ),
    Check(
        "fabric.values",
        "All-reduce, all-gather, reduce-scatter, broadcast and point-to-point at odd sizes, every element "
        "against a computed expectation.",
        "Wrong sums of gradients raise no error: the model learns something else.",
    ),
    Check(
        "fabric.bandwidth",
        "Point-to-point bandwidth of each direction of each link, the best of several messages: a host's "
        "best link against the median of the hosts' best, each link against what both its ends reach "
        "elsewhere, and all against at_least_gbit (Gbit/s).",
        "Every step waits for the slowest link.",
        {"warn_below": 0.33, "fail_below": 0.2, "link_warn_below": 0.2, "at_least_gbit": None},
    ),
    Check(
        "fabric.latency",
        "Half a round trip of 8 bytes, the best of many, on a host's best link, against the hosts' "
        "median (warn_above times it, and warn_excess_seconds above it) and at_most_seconds.",
        "The time of small messages, such as those of ZeRO-3's small layers, is all latency.",
        {"warn_above": 5.0, "warn_excess_seconds": 0.002, "at_most_seconds": None},
    ),
    Check(
        "fabric.all_reduce",
        "Bus bandwidth of all-reduce over message sizes, the highest one (nccl-tests' formula), against "
        "at_least_gbit (Gbit/s).",
        "This is what a gradient synchronisation gets in practice.",
        {"at_least_gbit": None},
    ),
    Check(
        "fabric.matmul",
        "Matrix products on every device at the same time: exact products must be right, and the rate "
        "against "
        "devices of the same name (GPUs: sustained; CPUs: the best, as other work disturbs them) and against "
        "the maker's peak.",
        "A throttled device slows all others down; a broken one computes wrong results.",
        {
            "gpu_warn_below": 0.9,
            "gpu_fail_below": 0.75,
            "cpu_warn_below": 0.4,
            "cpu_fail_below": 0.15,
            "of_peak_warn_below": 0.5,
        },
    ),
    Check(
        "fabric.copy",
        "Copies between host and GPU from pinned memory, against the other GPUs of the same name and "
        "at_least_gb (GB/s).",
        "A GPU in the wrong slot, or with fewer lanes, waits for input and offloading.",
        {"warn_below": 0.7, "at_least_gb": None},
    ),
    Check(
        "fabric.disk",
        "A file written, synced and read back, where checkpoints go: the same bytes, and the speed against "
        "the hosts' median, write_at_least_mb and read_at_least_mb (MB/s).",
        "All ranks wait at a checkpoint until the slowest host has written.",
        {"warn_below": 0.1, "write_at_least_mb": None, "read_at_least_mb": None},
    ),
    Check(
        "fabric.mpi",
        "One MPI program over all hosts by mpirun, with an MPI_Allreduce; where the launcher is openmpi.",
        "mpirun ends with an error about a daemon, or hangs.",
    ),
)

_ALONE = "there is only one rank, so nothing to measure"


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """No probe asks for this family: see judge_group."""
    return []


def judge_group(data: Mapping[str, Any] | Fabric, context: Context) -> list[Finding]:
    """What fabric.measure.measure gave (or its plain data) -> one Finding per host and check.

    A check that the group was not asked has none.
    """
    found = data if isinstance(data, Fabric) else Fabric.model_validate(data)
    judges: dict[str, Callable[[Fabric, Context], list[Finding]]] = {
        "fabric.rendezvous": _rendezvous,
        "fabric.ranks": _ranks,
        "fabric.values": _values,
        "fabric.bandwidth": links.bandwidth,
        "fabric.latency": links.latency,
        "fabric.all_reduce": links.all_reduce,
        "fabric.matmul": devices.matmul,
        "fabric.copy": devices.copies,
        "fabric.disk": devices.disks,
        "fabric.mpi": _mpi,
    }
    needs = {
        "fabric.values": "values",
        "fabric.bandwidth": "points",
        "fabric.latency": "points",
        "fabric.all_reduce": "all-reduce",
        "fabric.matmul": "matmul",
        "fabric.copy": "copy",
        "fabric.disk": "disk",
        "fabric.mpi": "mpi",
    }
    together = ("rendezvous", "values", "bandwidth", "latency", "all_reduce")
    findings: list[Finding] = []
    for check, one in judges.items():
        if check in needs and needs[check] not in found.asked:
            continue
        if found.world_size == 1 and check.partition(".")[2] in together:
            findings += [About(check, host.host).not_applicable(_ALONE) for host in found.hosts]
        else:
            findings += one(found, context)
    return findings


def _blamed(found: Fabric, host: str) -> list[FabricFailure]:
    return [each for each in found.failures if each.host == host and each.blamed]


def _rendezvous(found: Fabric, context: Context) -> list[Finding]:
    place = f"{found.rendezvous.address}:{found.rendezvous.port}"
    findings = []
    for host in (each.host for each in found.hosts):
        about = About("fabric.rendezvous", host)
        told = [each for each in _blamed(found, host) if each.question == "rendezvous"]
        if host in found.rendezvous.missing or told:
            evidence = told[0].what if told else f"its ranks did not connect to {place}"
            remedy = f'python3 -c \'import socket; socket.create_connection(("{found.rendezvous.address}", '
            remedy += f"{found.rendezvous.port}), 3)' there, while a listener runs on the first host: a "
            remedy += (
                "firewall, a wrong route, or launch.address=ADDRESS of the first host as the others see it"
            )
            findings.append(about.fail("its ranks do not reach the rendezvous", evidence, remedy))
        elif host not in found.rendezvous.connect:
            findings.append(about.unknown("its ranks did not get that far"))
        else:
            seconds = found.rendezvous.connect[host]
            findings.append(about.passed(f"connected to {place} in {seconds:.3f} s"))
    return findings


def _ranks(found: Fabric, context: Context) -> list[Finding]:
    findings = []
    for host in (each.host for each in found.hosts):
        about = About("fabric.ranks", host)
        own = [each for each in found.failures if each.host == host]
        # A disk that cannot be written, and a host that never came, are findings of their own checks.
        blamed = [each for each in own if each.blamed and each.question not in ("rendezvous", "disk")]
        if blamed:
            worst = blamed[0]
            evidence = "; ".join(f"{each.what} (at {each.question})" for each in blamed)
            findings.append(about.fail("ranks failed", evidence, worst.hint))
        elif found.stopped and not found.stopped.startswith("timeout"):
            findings.append(about.unknown(f"ended early: {found.stopped}"))
        elif own:
            evidence = f"at {own[0].question}: {own[0].what}"
            findings.append(about.passed(f"its ranks failed only because another host failed ({evidence})"))
        else:
            ranks = next(len(each.ranks) for each in found.hosts if each.host == host)
            findings.append(about.passed(f"{ranks} rank{'s' if ranks > 1 else ''} finished"))
    return findings


def _values(found: Fabric, context: Context) -> list[Finding]:
    accused = suspects(found.wrong)
    elements = sum(each.elements for each in found.values)
    complete = {each.operation for each in found.values if each.ranks == found.world_size}
    findings = []
    for host in (each.host for each in found.hosts):
        about = About("fabric.values", host)
        seen = [each for each in found.wrong if host in (each.host, each.source_host)]
        if host in accused:
            evidence = "; ".join(wrong_words(each) for each in seen[:3])
            remedy = "leave the host out; test its memory, device and network card"
            findings.append(about.fail("wrong values", evidence, remedy))
        elif not found.values:
            findings.append(about.unknown("no values were compared"))
        elif {"all-reduce", "all-gather", "reduce-scatter", "broadcast"} - complete:
            findings.append(
                about.unknown("not all values were compared", evidence=f"{elements} elements were")
            )
        else:
            findings.append(about.passed(f"{elements} elements compared in total, none wrong here"))
    return findings


def _mpi(found: Fabric, context: Context) -> list[Finding]:
    abouts = [About("fabric.mpi", each.host) for each in found.hosts]
    hello = found.mpi
    if found.launcher != "openmpi":
        return [about.not_applicable("the launcher is not openmpi") for about in abouts]
    if hello is None:
        return [about.unknown("mpirun was not started: the group checks did not finish") for about in abouts]
    if hello.problem or hello.summed is False:
        evidence = hello.problem or "MPI_Allreduce gave a wrong sum"
        remedy = shlex.join([*hello.command[:-3], "hostname"])  # without `python -c PROGRAM`
        return [about.fail("the MPI program failed", evidence, remedy) for about in abouts]
    words = "MPI_Allreduce is right" if hello.summed else "libmpi was not found: only the start was tested"
    return [
        about.passed(f"{counted(len(hello.hosts), 'rank')} in {hello.seconds:.1f} s, {words}")
        for about in abouts
    ]
