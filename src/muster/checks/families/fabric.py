"""What ranks on all hosts find out together: meeting, values, links, products, copies, disks, MPI.

The answers come from real ranks (muster/fabric), not from a probe: `judge_group` has the judges. They compare
a host with its peers, because what a link or a device can do is seldom known, and with the profile where it
says so. The peers' reference is the upper median (the better one of two): one bad host never is the measure.
"""

from __future__ import annotations

import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import About, number
from muster.core.fabric.result import Fabric, FabricFailure, Matmul, suspects, wrong_words
from muster.core.hardware.peaks import stated_peak
from muster.core.units import counted

# ----------------------------------------------------------------------------------------------------
# Judges of links: which host, or which single link, is slower than its peers. Pure.

_BANDWIDTH = "fabric.bandwidth"
_REMEDY = "ethtool INTERFACE (speed, duplex), its error counters (ip -s link), cable, switch port; "


def gbit(rate: float) -> str:
    """Bytes per second as the field states a link."""
    return f"{rate * 8 / 1e9:.3g} Gbit/s"


def bandwidth(found: Fabric, context: Context) -> list[Finding]:
    """Per host: its best link out and in, against the other hosts' best; then single links."""
    least = number(context.expect(_BANDWIDTH, "at_least_gbit"))
    warn, fail = (float(context.expect(_BANDWIDTH, key)) for key in ("warn_below", "fail_below"))
    rates = {(each.source_host, each.target_host): each.bandwidth_best for each in found.pairs}
    if len(found.hosts) == 1:
        return _one_host(found, least)
    best_out, best_in = _best(rates, 0), _best(rates, 1)
    single = float(context.expect(_BANDWIDTH, "link_warn_below"))
    slow_links = _slow_links(rates, best_out, best_in, single)
    findings = []
    for host in (each.host for each in found.hosts):
        about = About(_BANDWIDTH, host)
        if host not in best_out and host not in best_in:
            findings.append(about.unknown("none of its links was measured"))
            continue
        ratio, words = min(
            (_ratio(host, best_out, "out"), _ratio(host, best_in, "in")), key=lambda item: item[0]
        )
        top = min(best.get(host, float("inf")) for best in (best_out, best_in))
        if least is not None and top * 8 / 1e9 < least:
            problem = "its links are slower than expected"
            evidence = f"{gbit(top)} at best, expected at least {least:g} Gbit/s"
            findings.append(about.fail(problem, evidence, _REMEDY.rstrip("; ")))
        elif ratio < warn:
            level = Level.FAIL if ratio < fail else Level.WARN
            remedy = _REMEDY + f"tc qdisc show on {host}"
            findings.append(
                about.at(level, "its links are much slower than those of its peers", words, remedy)
            )
        elif host in slow_links:
            remedy = _REMEDY + "the route between the two: traceroute"
            findings.append(about.warn("one of its links is much slower", slow_links[host], remedy))
        else:
            findings.append(about.passed(words))
    return findings


def _best(rates: Mapping[tuple[str, str], float], end: int) -> dict[str, float]:
    """Host -> the best rate of the links that begin (0) or end (1) there."""
    found: dict[str, float] = {}
    for pair, rate in rates.items():
        found[pair[end]] = max(found.get(pair[end], 0.0), rate)
    return found


def _ratio(host: str, best: Mapping[str, float], way: str) -> tuple[float, str]:
    """-> (this host's best against the reference of all, in words). Two hosts share their one link."""
    if host not in best:
        return float("inf"), ""
    if len(best) < 3:
        return float("inf"), f"{way} {gbit(best[host])} at best; there is no third host to compare with"
    reference = upper_median(best.values())
    words = f"{way} {gbit(best[host])} at best; the hosts' median is {gbit(reference)}"
    return best[host] / reference, words


def upper_median(values: Iterable[float]) -> float:
    """The middle value, the higher one of two: where more is better, half the group being bad does not lower
    it."""
    return statistics.median_high(list(values))


def _slow_links(
    rates: Mapping[tuple[str, str], float],
    best_out: Mapping[str, float],
    best_in: Mapping[str, float],
    warn: float,
) -> dict[str, str]:
    """Links far below what both their ends reach with others: host -> words."""
    found: dict[str, str] = {}
    for (source, target), rate in rates.items():
        possible = min(best_out[source], best_in[target])
        if rate < warn * possible:
            words = f"{source} to {target}: {gbit(rate)}; both reach {gbit(possible)} with other hosts"
            for host in (source, target):
                found[host] = f"{found[host]}; {words}" if host in found else words
    return found


def _one_host(found: Fabric, least: float | None) -> list[Finding]:
    about = About(_BANDWIDTH, found.hosts[0].host)
    if not found.pairs:
        return [about.unknown("no pair of its ranks was measured")]
    slowest = min(found.pairs, key=lambda each: each.bandwidth_best)
    words = f"rank {slowest.source} to {slowest.target}: {gbit(slowest.bandwidth_best)}, the slowest pair"
    if least is not None and slowest.bandwidth_best * 8 / 1e9 < least:
        return [about.fail("its links are slower than expected", f"{words}; at least {least:g} Gbit/s")]
    reference = upper_median(each.bandwidth_best for each in found.pairs)
    return [about.passed(f"{words}; the median is {gbit(reference)}")]


def latency(found: Fabric, context: Context) -> list[Finding]:
    """Per host: the best half round trip of its best link."""
    check = "fabric.latency"
    most = number(context.expect(check, "at_most_seconds"))
    times, excess = (float(context.expect(check, key)) for key in ("warn_above", "warn_excess_seconds"))
    best: dict[str, float] = {}
    for pair in found.pairs:
        if pair.latency_best is not None:
            for host in (pair.source_host, pair.target_host):
                best[host] = min(best.get(host, float("inf")), pair.latency_best)
    reference = statistics.median_low(list(best.values())) if len(best) > 2 else None
    findings = []
    for host in (each.host for each in found.hosts):
        about = About(check, host)
        if host not in best:
            findings.append(about.unknown("none of its links was measured"))
            continue
        words = f"{best[host] * 1e6:.0f} us at best"
        if reference is not None:
            words += f"; the hosts' median is {reference * 1e6:.0f} us"
        remedy = "ping between the hosts; power saving of the network card and CPU; tc qdisc show"
        far = reference is not None and best[host] > max(times * reference, reference + excess)
        if most is not None and best[host] > most:
            evidence = f"{words}; expected at most {most * 1e6:.0f} us"
            findings.append(about.fail("its latency is higher than expected", evidence, remedy))
        elif far:
            findings.append(about.warn("its latency is much higher than its peers'", words, remedy))
        else:
            findings.append(about.passed(words))
    return findings


def all_reduce(found: Fabric, context: Context) -> list[Finding]:
    """The group's highest bus bandwidth: one figure, the same finding for every host."""
    check = "fabric.all_reduce"
    least = number(context.expect(check, "at_least_gbit"))
    sweeps = found.of("all-reduce")
    abouts = [About(check, each.host) for each in found.hosts]
    if not sweeps:
        return [about.unknown("it was not measured") for about in abouts]
    top = max(sweeps, key=lambda each: each.busbw)
    words = f"{gbit(top.busbw)} of bus bandwidth at {top.bytes} bytes over {found.world_size} ranks"
    if least is not None and top.busbw * 8 / 1e9 < least:
        evidence = f"{words}; expected at least {least:g} Gbit/s"
        remedy = "see fabric.bandwidth for the slow host; NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_DEBUG=INFO"
        return [about.fail("all-reduce is slower than expected", evidence, remedy) for about in abouts]
    return [about.passed(words) for about in abouts]


# ----------------------------------------------------------------------------------------------------
# Judges of what each host measures by itself: matrix products, copies, the disk. Pure.

_MATMUL = "fabric.matmul"


def matmul(found: Fabric, context: Context) -> list[Finding]:
    """Per host: the worst of its devices and precisions."""
    warn, fail = (
        float(context.expect(_MATMUL, f"{'gpu' if found.device == 'cuda' else 'cpu'}_{key}"))
        for key in ("warn_below", "fail_below")
    )
    of_peak = float(context.expect(_MATMUL, "of_peak_warn_below"))
    groups: dict[tuple[str, str, int | None], list[float]] = defaultdict(list)
    for each in found.matmul:
        groups[each.device, each.precision, each.threads].append(_rate(each, found))
    findings = []
    for host in (each.host for each in found.hosts):
        about = About(_MATMUL, host)
        own = [each for each in found.matmul if each.host == host]
        wrong = [each for each in own if not each.right]
        if not own:
            findings.append(about.unknown("its devices were not measured"))
        elif wrong:
            evidence = (
                f"rank {wrong[0].rank}, {wrong[0].device}, {wrong[0].precision}: an exact product differs"
            )
            findings.append(about.fail("a device computes wrong results", evidence, "replace the device"))
        else:
            ratios = [
                (_rate(each, found) / upper_median(groups[each.device, each.precision, each.threads]), each)
                for each in own
            ]
            ratio, slowest = min(ratios, key=lambda item: item[0])
            findings.append(_judged(about, found, ratio, slowest, own, (warn, fail, of_peak)))
    return findings


def _rate(each: Matmul, found: Fabric) -> float:
    return each.sustained if found.device == "cuda" else each.best


def _judged(
    about: About,
    found: Fabric,
    ratio: float,
    slowest: Matmul,
    own: Sequence[Matmul],
    limits: tuple[float, float, float],
) -> Finding:
    warn, fail, of_peak = limits
    words = _words(slowest)
    remedy = "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER" if found.device == "cuda" else None
    if ratio < warn:
        level = Level.FAIL if ratio < fail else Level.WARN
        problem = "a device is much slower than its peers"
        evidence = f"{words}, {100 * ratio:.0f} % of the median of the same devices"
        return about.at(
            level, problem, evidence, remedy or "top shows what else runs there; check the CPU governor"
        )
    weak = [each for each in own if each.peak and each.sustained < of_peak * each.peak and not _capped(each)]
    if weak:
        share = 100 * weak[0].sustained / (weak[0].peak or 1)
        evidence = f"{_words(weak[0])}, {share:.0f} % of the stated peak ({weak[0].peak_source})"
        return about.warn("a device is far below its stated peak", evidence, remedy)
    return about.passed(words)


def _capped(each: Matmul) -> bool:
    """Whether its power limit keeps a sound device of this kind far below its peak."""
    peak = stated_peak(each.device, each.precision)
    return peak is not None and peak.power_capped


def _words(each: Matmul) -> str:
    unit, name = (1e12, "TFLOP/s") if each.best >= 1e12 else (1e9, "GFLOP/s")
    peak = f" of {each.peak / unit:.4g} stated" if each.peak else ""
    return (
        f"rank {each.rank}, {each.device}, {each.precision}: {each.sustained / unit:.3g} {name} sustained, "
        f"{each.best / unit:.3g} best{peak}"
    )


def copies(found: Fabric, context: Context) -> list[Finding]:
    """Per host: its slowest GPU, in its slower direction."""
    check = "fabric.copy"
    warn = float(context.expect(check, "warn_below"))
    least = number(context.expect(check, "at_least_gb"))
    abouts = [About(check, each.host) for each in found.hosts]
    if found.device != "cuda":
        return [about.not_applicable("the ranks run on CPUs") for about in abouts]
    devices = {(each.host, each.rank): each.device for each in found.matmul}
    rates = {
        (each.host, each.rank): (each.bytes / each.to_device.median, each.bytes / each.to_host.median)
        for each in found.copies
    }
    findings = []
    for about in abouts:
        own = {key: rate for key, rate in rates.items() if key[0] == about.host}
        if not own:
            findings.append(about.unknown("its devices were not measured"))
            continue
        worst = Level.PASS, 2.0, ""
        for key, both in own.items():
            alike = [rate for other, rate in rates.items() if devices.get(other) == devices.get(key)]
            for way, name in enumerate(("to", "from")):
                ratio = both[way] / upper_median(rate[way] for rate in alike)
                words = f"rank {key[1]}: {both[way] / 1e9:.3g} GB/s {name} the device"
                short = least is not None and both[way] / 1e9 < least
                level = Level.FAIL if short else Level.WARN if ratio < warn else Level.PASS
                order = (Level.PASS, Level.WARN, Level.FAIL).index
                if (order(level), -ratio) > (order(worst[0]), -worst[1]):
                    worst = level, ratio, words
        if worst[0] is Level.PASS:
            findings.append(about.passed(worst[2]))
        else:
            evidence = f"{worst[2]}, {100 * worst[1]:.0f} % of the median of the same devices"
            remedy = "nvidia-smi -q -d PCI (link width and generation); nvidia-smi topo -m"
            findings.append(about.at(worst[0], "copies to or from a device are slow", evidence, remedy))
    return findings


def disks(found: Fabric, context: Context) -> list[Finding]:
    """Per host: whether it works, and its speed against the others."""
    check = "fabric.disk"
    warn = float(context.expect(check, "warn_below"))
    least = {
        "write": number(context.expect(check, "write_at_least_mb")),
        "read": number(context.expect(check, "read_at_least_mb")),
    }
    measured = {each.host: {"write": each.write, "read": each.read} for each in found.disks}
    details = {each.host: each for each in found.disks}
    failed = {each.host: each for each in found.failures if each.question == "disk" and each.blamed}
    findings = []
    for host in (each.host for each in found.hosts):
        about = About(check, host)
        if host in failed:
            findings.append(about.fail("the disk cannot be used", failed[host].what, failed[host].hint))
        elif host not in measured:
            findings.append(about.unknown("it was not measured"))
        elif not details[host].right:
            evidence = f"{details[host].folder}: what was read is not what was written"
            findings.append(
                about.fail("the disk returns wrong data", evidence, "smartctl -a DEVICE; dmesg -T")
            )
        else:
            findings.append(_disk(about, measured, details[host].folder, details[host].cached, least, warn))
    return findings


def _disk(
    about: About,
    measured: Mapping[str, Mapping[str, float]],
    folder: str,
    cached: bool,
    least: Mapping[str, float | None],
    warn: float,
) -> Finding:
    own = measured[about.host]
    shown = " and ".join(f"{way} {rate / 1e6:.0f} MB/s" for way, rate in own.items())
    words = f"{folder}: {shown}{' (from memory)' if cached else ''}"
    for way, rate in own.items():
        wanted = least[way]
        if wanted is not None and rate / 1e6 < wanted:
            evidence = f"{words}; expected to {way} at least {wanted:g} MB/s"
            return about.fail(
                "the disk is slower than expected", evidence, "use another folder: launch.workdir=FOLDER"
            )
    for way, rate in own.items():
        reference = upper_median(each[way] for each in measured.values())
        if len(measured) > 2 and rate < warn * reference:
            evidence = f"{words}; the hosts' median is to {way} {reference / 1e6:.0f} MB/s"
            remedy = "iostat -x 1 shows what else writes there"
            return about.warn("the disk is much slower than its peers'", evidence, remedy)
    return about.passed(words)


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
        "fabric.bandwidth": bandwidth,
        "fabric.latency": latency,
        "fabric.all_reduce": all_reduce,
        "fabric.matmul": matmul,
        "fabric.copy": copies,
        "fabric.disk": disks,
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
