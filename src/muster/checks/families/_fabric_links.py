"""Judges of links: which host, or which single link, is slower than its peers. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from muster.checks.base import Context, Finding, Level
from muster.checks.families._judging import About, number
from muster.core.fabric.result import Fabric

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
