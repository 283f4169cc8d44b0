"""Judges of what each host measures by itself: matrix products, copies, the disk. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from muster.checks.base import Context, Finding, Level
from muster.checks.families._fabric_links import upper_median
from muster.checks.families._judging import About, number
from muster.core.fabric.result import Fabric, Matmul
from muster.core.hardware.peaks import stated_peak

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
