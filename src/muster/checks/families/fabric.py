"""What ranks on all hosts measure together: rendezvous, values, links, products, copies, disks, MPI.

The answers come from real ranks (checks/group.py), not from a probe: `judge_group` has the judges. They
compare a host with its peers, since the capability of a link or a device is seldom known, and with the
profile where it states one. The peers' reference is the upper median (the better one of two): where more is
better, half the group being bad does not lower it.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import median_high, median_low
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.kinds import Case, Judge, words_of
from muster.core.fabric import GroupFabric, Matmul, TimedPair
from muster.core.hardware.peaks import stated_peak
from muster.core.units import counted, format_flops
from muster.results.figures import gbit
from muster.workloads.fabric.fold import Rates, best_links, suspects
from muster.workloads.fabric.request import COLLECTIVES


@dataclass(frozen=True)
class GroupMeasurement:
    """A check of the group's measurements."""

    check: Check
    compare: Callable[[GroupFabric, Context], Judge]
    question: str | None  # that the group must have been asked; None: it always is
    together: bool  # makes no sense with a single rank


def measured(
    name: str, *, question: str | None = None, together: bool = False, **expects: Any
) -> Callable[[Callable[[GroupFabric, Context], Judge]], GroupMeasurement]:
    """Declare a check as group_check does, of the group's measurements."""
    return lambda compare: GroupMeasurement(
        Check(name, *words_of(compare), expects), compare, question, together
    )


# ----------------------------------------------------------------------------------------------------
# Whether the ranks met, came to their end, and computed what is right.


@measured("fabric.rendezvous", together=True)
def rendezvous(fabric: GroupFabric, context: Context) -> Judge:
    """Whether the ranks of every host reach the rendezvous (the first host's address and port).

    The job never starts: all ranks wait for the missing ones until a timeout that names no host.
    """
    met = fabric.rendezvous
    place = f"{met.address}:{met.port}"

    def judge(case: Case) -> Finding:
        problems = [
            each.what
            for each in fabric.failures
            if each.host == case.host and each.blamed and each.question == "rendezvous"
        ]
        if case.host in met.missing or problems:
            evidence = problems[0] if problems else f"its ranks did not connect to {place}"
            remedy = (
                f"python3 -c 'import socket; socket.create_connection((\"{met.address}\", {met.port}), 3)' "
                "there, while a listener runs on the first host: a firewall, a wrong route, or "
                "launch.address=ADDRESS of the first host as the others see it"
            )
            return case.fail("its ranks do not reach the rendezvous", evidence, remedy)
        if case.host not in met.connect:
            return case.unknown("its ranks did not get that far")
        return case.passed(f"connected to {place} in {met.connect[case.host]:.3f} s")

    return judge


@measured("fabric.ranks")
def ranks(fabric: GroupFabric, context: Context) -> Judge:
    """Whether the host's ranks finished: none was killed, hung, or failed to use its device.

    One rank that dies or hangs ends the whole job, often with an error on another host.
    """
    # A disk that cannot be written, and a host that never came, are findings of their own checks.
    counts = {each.host: len(each.ranks) for each in fabric.hosts}

    def judge(case: Case) -> Finding:
        own = [each for each in fabric.failures if each.host == case.host]
        blamed = [each for each in own if each.blamed and each.question not in ("rendezvous", "disk")]
        if blamed:
            evidence = "; ".join(f"{each.what} (at {each.question})" for each in blamed)
            return case.fail("ranks failed", evidence, blamed[0].hint)
        if fabric.stopped and not fabric.stopped.startswith("timeout"):
            return case.unknown(f"ended early: {fabric.stopped}")
        if own:
            evidence = f"at {own[0].question}: {own[0].what}"
            return case.passed(f"its ranks failed only because another host failed ({evidence})")
        return case.passed(f"{counted(counts[case.host], 'rank')} finished")

    return judge


@measured("fabric.values", question="values", together=True)
def values(fabric: GroupFabric, context: Context) -> Judge:
    """All-reduce, all-gather, reduce-scatter, broadcast and point-to-point at odd sizes, every element
    against a computed expectation.

    Wrong sums of gradients raise no error: the model learns something else.
    """
    # A wrong value is that of the host that most of them have in common.
    accused = suspects(fabric.wrong)
    elements = sum(each.elements for each in fabric.values)
    complete = {each.operation for each in fabric.values if each.ranks == fabric.world_size}

    def judge(case: Case) -> Finding:
        if case.host in accused:
            seen = [each for each in fabric.wrong if case.host in (each.host, each.source_host)]
            evidence = "; ".join(each.words for each in seen[:3])
            remedy = "leave the host out; test its memory, device and network card"
            return case.fail("wrong values", evidence, remedy)
        if not fabric.values:
            return case.unknown("no values were compared")
        if set(COLLECTIVES) - complete:
            return case.unknown("not all values were compared", evidence=f"{elements} elements were")
        return case.passed(f"{elements} elements compared in total, none wrong here")

    return judge


# ----------------------------------------------------------------------------------------------------
# Links: which host, or which single link, is slower than its peers.

_LINK = "ethtool INTERFACE (speed, duplex), its error counters (ip -s link), cable, switch port"


@measured(
    "fabric.bandwidth",
    question="points",
    together=True,
    warn_below=0.33,
    fail_below=0.2,
    link_warn_below=0.2,
    at_least_gbit=None,
)
def bandwidth(fabric: GroupFabric, context: Context) -> Judge:
    """Point-to-point bandwidth of each direction of each link, the best of several messages: a host's best
    link against the median of the hosts' best, each link against what both its ends reach elsewhere, and all
    against at_least_gbit (Gbit/s).

    Every step waits for the slowest link.
    """
    if len(fabric.hosts) == 1:
        return lambda case: _within_a_host(case, fabric.pairs)
    rates = {(each.source_host, each.target_host): each.bandwidth_best for each in fabric.pairs}
    best_out, best_in = best_links(rates, 0), best_links(rates, 1)
    warn = context.expect("fabric.bandwidth", "link_warn_below")
    slow_links = _slow_links(rates, best_out, best_in, warn)

    def judge(case: Case) -> Finding:
        host, least = case.host, case.expect("at_least_gbit")
        reached = [best[host] for best in (best_out, best_in) if host in best]
        if not reached:
            return case.unknown("none of its links was measured")
        ratio, words = min(
            _ratio(host, best_out, "out"), _ratio(host, best_in, "in"), key=lambda ratio: ratio[0]
        )
        if least is not None and min(reached) * 8 / 1e9 < least:
            evidence = f"{gbit(min(reached))} at best, expected at least {least:g} Gbit/s"
            return case.fail("its links are slower than expected", evidence, _LINK)
        if ratio < case.expect("warn_below"):
            level = Level.FAIL if ratio < case.expect("fail_below") else Level.WARN
            problem = "its links are much slower than those of its peers"
            return case.at(level, problem, words, f"{_LINK}; tc qdisc show on {host}")
        if host in slow_links:
            remedy = f"{_LINK}; the route between the two: traceroute"
            return case.warn("one of its links is much slower", slow_links[host], remedy)
        return case.passed(words)

    return judge


def _ratio(host: str, best: Mapping[str, float], way: str) -> tuple[float, str]:
    """Return this host's best against the reference of all, and the same in words. Two hosts share their one
    link."""
    if host not in best:
        return float("inf"), ""
    if len(best) < 3:
        return float("inf"), f"{way} {gbit(best[host])} at best; there is no third host to compare with"
    reference = median_high(best.values())
    words = f"{way} {gbit(best[host])} at best; the hosts' median is {gbit(reference)}"
    return best[host] / reference, words


def _slow_links(
    rates: Rates, best_out: Mapping[str, float], best_in: Mapping[str, float], warn: float
) -> dict[str, str]:
    """Return, by host, its links far below what both their ends reach with others, in words."""
    slow: dict[str, list[str]] = defaultdict(list)
    for (source, target), rate in rates.items():
        possible = min(best_out[source], best_in[target])
        if rate < warn * possible:
            words = f"{source} to {target}: {gbit(rate)}; both reach {gbit(possible)} with other hosts"
            slow[source].append(words)
            slow[target].append(words)
    return {host: "; ".join(words) for host, words in slow.items()}


def _within_a_host(case: Case, pairs: list[TimedPair]) -> Finding:
    if not pairs:
        return case.unknown("no pair of its ranks was measured")
    least = case.expect("at_least_gbit")
    slowest = min(pairs, key=lambda each: each.bandwidth_best)
    words = f"rank {slowest.source} to {slowest.target}: {gbit(slowest.bandwidth_best)}, the slowest pair"
    if least is not None and slowest.bandwidth_best * 8 / 1e9 < least:
        return case.fail("its links are slower than expected", f"{words}; at least {least:g} Gbit/s")
    return case.passed(f"{words}; the median is {gbit(median_high(each.bandwidth_best for each in pairs))}")


@measured(
    "fabric.latency",
    question="points",
    together=True,
    warn_above=5.0,
    warn_excess_seconds=0.002,
    at_most_seconds=None,
)
def latency(fabric: GroupFabric, context: Context) -> Judge:
    """Half a round trip of 8 bytes, the best of many, on a host's best link, against the hosts' median
    (warn_above times it, and warn_excess_seconds above it) and at_most_seconds.

    The time of small messages, such as those of ZeRO-3's small layers, is all latency.
    """
    best: dict[str, float] = {}
    for pair in fabric.pairs:
        if pair.latency_best is not None:
            for host in (pair.source_host, pair.target_host):
                best[host] = min(best.get(host, float("inf")), pair.latency_best)
    reference = median_low(best.values()) if len(best) > 2 else None

    def judge(case: Case) -> Finding:
        if case.host not in best:
            return case.unknown("none of its links was measured")
        own, most = best[case.host], case.expect("at_most_seconds")
        words = f"{own * 1e6:.0f} us at best"
        bound = float("inf")
        if reference is not None:
            words += f"; the hosts' median is {reference * 1e6:.0f} us"
            bound = max(case.expect("warn_above") * reference, reference + case.expect("warn_excess_seconds"))
        remedy = "ping between the hosts; power saving of the network card and CPU; tc qdisc show"
        if most is not None and own > most:
            evidence = f"{words}; expected at most {most * 1e6:.0f} us"
            return case.fail("its latency is higher than expected", evidence, remedy)
        if own > bound:
            return case.warn("its latency is much higher than its peers'", words, remedy)
        return case.passed(words)

    return judge


@measured("fabric.all_reduce", question="all-reduce", together=True, at_least_gbit=None)
def all_reduce(fabric: GroupFabric, context: Context) -> Judge:
    """Bus bandwidth of all-reduce over message sizes, the highest one (nccl-tests' formula), against
    at_least_gbit (Gbit/s).

    This is what a gradient synchronisation gets in practice.
    """
    top = max(fabric.of("all-reduce"), key=lambda each: each.busbw, default=None)

    def judge(case: Case) -> Finding:
        if top is None:
            return case.unknown("it was not measured")
        least = case.expect("at_least_gbit")
        words = f"{gbit(top.busbw)} of bus bandwidth at {top.bytes} bytes over {fabric.world_size} ranks"
        if least is None or top.busbw * 8 / 1e9 >= least:
            return case.passed(words)
        evidence = f"{words}; expected at least {least:g} Gbit/s"
        remedy = "see fabric.bandwidth for the slow host; NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_DEBUG=INFO"
        return case.fail("all-reduce is slower than expected", evidence, remedy)

    return judge


# ----------------------------------------------------------------------------------------------------
# What each host measures by itself: matrix products, copies, the disk.


@measured(
    "fabric.matmul",
    question="matmul",
    gpu_warn_below=0.9,
    gpu_fail_below=0.75,
    cpu_warn_below=0.4,
    cpu_fail_below=0.15,
    of_peak_warn_below=0.5,
)
def matmul(fabric: GroupFabric, context: Context) -> Judge:
    """Matrix products on every device at the same time: exact products must be right, and the rate against
    devices of the same name (GPUs: sustained; CPUs: the better of best and sustained, as other work disturbs
    them) and against the maker's peak.

    A throttled device slows all others down; a broken one computes wrong results.
    """
    on_gpus = fabric.device == "cuda"
    kind = "gpu" if on_gpus else "cpu"

    # A CPU's best may be one lucky moment of a peer, its sustained rate suffers from other work: a slow one
    # has both below its peers'.
    rates = [attrgetter("sustained"), *([] if on_gpus else [attrgetter("best")])]
    alike: dict[tuple[str, str, int | None], list[Matmul]] = defaultdict(list)
    for each in fabric.matmul:
        alike[each.device, each.precision, each.threads].append(each)

    def ratio(each: Matmul) -> float:
        peers = alike[each.device, each.precision, each.threads]
        return max(float(rate(each) / median_high(map(rate, peers))) for rate in rates)

    def judge(case: Case) -> Finding:
        own = [each for each in fabric.matmul if each.host == case.host]
        if not own:
            return case.unknown("its devices were not measured")
        wrong = [each for each in own if not each.right]
        if wrong:
            where = f"rank {wrong[0].rank}, {wrong[0].device}, {wrong[0].precision}"
            evidence = f"{where}: an exact product differs"
            return case.fail("a device computes wrong results", evidence, "replace the device")
        slowest = min(own, key=ratio)
        remedy = "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER" if on_gpus else None
        if ratio(slowest) < case.expect(f"{kind}_warn_below"):
            level = Level.FAIL if ratio(slowest) < case.expect(f"{kind}_fail_below") else Level.WARN
            evidence = f"{_words(slowest)}, {100 * ratio(slowest):.0f} % of the median of the same devices"
            remedy = remedy or "top shows what else runs there; check the CPU governor"
            return case.at(level, "a device is much slower than its peers", evidence, remedy)
        for each in own:
            stated = stated_peak(each.device, each.precision)
            capped = stated is not None and stated.power_capped  # a sound device stays far below its peak
            if each.peak and not capped and each.sustained < case.expect("of_peak_warn_below") * each.peak:
                share = f"{100 * each.sustained / each.peak:.0f} % of the stated peak ({each.peak_source})"
                evidence = f"{_words(each)}, {share}"
                return case.warn("a device is far below its stated peak", evidence, remedy)
        return case.passed(_words(slowest))

    return judge


def _words(each: Matmul) -> str:
    peak = f" of {format_flops(each.peak)} stated" if each.peak else ""
    return (
        f"rank {each.rank}, {each.device}, {each.precision}: {format_flops(each.sustained)} sustained, "
        f"{format_flops(each.best)} best{peak}"
    )


@measured("fabric.copy", question="copy", warn_below=0.7, at_least_gb=None)
def copies(fabric: GroupFabric, context: Context) -> Judge:
    """Copies between host and GPU from pinned memory, against the other GPUs of the same name and at_least_gb
    (GB/s).

    A GPU in the wrong slot, or with fewer lanes, waits for input and offloading.
    """
    devices = {(each.host, each.rank): each.device for each in fabric.matmul}
    rates: dict[tuple[str, str | None], list[float]] = defaultdict(list)  # (to or from, device) -> bytes/s
    own: dict[str, list[tuple[str, str | None, int, float]]] = defaultdict(list)
    for each in fabric.copies:
        device = devices.get((each.host, each.rank))
        for way, seconds in (("to", each.to_device.median), ("from", each.to_host.median)):
            rates[way, device].append(each.bytes / seconds)
            own[each.host].append((way, device, each.rank, each.bytes / seconds))

    def judge(case: Case) -> Finding:
        if fabric.device != "cuda":
            return case.not_applicable("the ranks run on CPUs")
        if case.host not in own:
            return case.unknown("its devices were not measured")
        least, warn = case.expect("at_least_gb"), case.expect("warn_below")
        trouble = []
        for way, device, rank, rate in own[case.host]:
            ratio = rate / median_high(rates[way, device])
            level = Level.WARN if ratio < warn else Level.PASS
            if least is not None and rate / 1e9 < least:
                level = Level.FAIL
            trouble.append((level, ratio, f"rank {rank}: {rate / 1e9:.3g} GB/s {way} the device"))
        order = (Level.FAIL, Level.WARN, Level.PASS).index
        level, ratio, words = min(trouble, key=lambda each: (order(each[0]), each[1]))
        if level is Level.PASS:
            return case.passed(words)
        evidence = f"{words}, {100 * ratio:.0f} % of the median of the same devices"
        remedy = "nvidia-smi -q -d PCI (link width and generation); nvidia-smi topo -m"
        return case.at(level, "copies to or from a device are slow", evidence, remedy)

    return judge


@measured("fabric.disk", question="disk", warn_below=0.1, write_at_least_mb=None, read_at_least_mb=None)
def disks(fabric: GroupFabric, context: Context) -> Judge:
    """A file written, synced and read back, where checkpoints go: the same bytes, and the speed against the
    hosts' median, write_at_least_mb and read_at_least_mb (MB/s).

    All ranks wait at a checkpoint until the slowest host has written.
    """
    disks = {each.host: each for each in fabric.disks}
    failed = {each.host: each for each in fabric.failures if each.question == "disk" and each.blamed}

    def judge(case: Case) -> Finding:
        if case.host in failed:
            return case.fail("the disk cannot be used", failed[case.host].what, failed[case.host].hint)
        if case.host not in disks:
            return case.unknown("it was not measured")
        disk = disks[case.host]
        if not disk.right:
            evidence = f"{disk.folder}: what was read is not what was written"
            return case.fail("the disk returns wrong data", evidence, "smartctl -a DEVICE; dmesg -T")
        shown = f"write {disk.write / 1e6:.0f} MB/s and read {disk.read / 1e6:.0f} MB/s"
        words = f"{disk.folder}: {shown}{' (from memory)' if disk.cached else ''}"
        for way, rate in (("write", disk.write), ("read", disk.read)):
            least = case.expect(f"{way}_at_least_mb")
            if least is not None and rate / 1e6 < least:
                evidence = f"{words}; expected to {way} at least {least:g} MB/s"
                remedy = "use another folder: launch.workdir=FOLDER"
                return case.fail("the disk is slower than expected", evidence, remedy)
        for way, rate in (("write", disk.write), ("read", disk.read)):
            reference = median_high(getattr(each, way) for each in disks.values())
            if len(disks) > 2 and rate < case.expect("warn_below") * reference:
                evidence = f"{words}; the hosts' median is to {way} {reference / 1e6:.0f} MB/s"
                remedy = "iostat -x 1 shows what else writes there"
                return case.warn("the disk is much slower than its peers'", evidence, remedy)
        return case.passed(words)

    return judge


@measured("fabric.mpi", question="mpi")
def mpi(fabric: GroupFabric, context: Context) -> Judge:
    """One MPI program over all hosts by mpirun, with an MPI_Allreduce; where the launcher is openmpi.

    mpirun ends with an error about a daemon, or hangs.
    """

    def judge(case: Case) -> Finding:
        hello = fabric.mpi
        if fabric.launcher != "openmpi":
            return case.not_applicable("the launcher is not openmpi")
        if hello is None:
            return case.unknown("mpirun was not started: the group checks did not finish")
        if hello.problem or hello.summed is False:
            evidence = hello.problem or "MPI_Allreduce gave a wrong sum"
            remedy = shlex.join([*hello.command[:-3], "hostname"])  # without `python -c PROGRAM`
            return case.fail("the MPI program failed", evidence, remedy)
        words = (
            "MPI_Allreduce is right" if hello.summed else "libmpi was not found: only the start was tested"
        )
        return case.passed(f"{counted(len(hello.hosts), 'rank')} in {hello.seconds:.1f} s, {words}")

    return judge


_MEASURED = (rendezvous, ranks, values, bandwidth, latency, all_reduce, matmul, copies, disks, mpi)
CHECKS = tuple(each.check for each in _MEASURED)


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Return nothing, since no probe asks for this family: see judge_group."""
    return []


def judge_group(data: Mapping[str, Any], context: Context) -> list[Finding]:
    """Return one Finding per host and check of the group's measurements, which are plain data.

    A check that the group was not asked has none.
    """
    fabric = GroupFabric.model_validate(data)
    findings = []
    for each in _MEASURED:
        if each.question is None or each.question in fabric.asked:
            alone = each.together and fabric.world_size == 1
            one = _alone if alone else each.compare(fabric, context)
            findings += [one(Case(each.check.name, host.host, context)) for host in fabric.hosts]
    return findings


def _alone(case: Case) -> Finding:
    return case.not_applicable("there is only one rank, so nothing to measure")
