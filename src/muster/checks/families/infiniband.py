"""InfiniBand and RoCE ports, where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Finding, Level
from muster.checks.kinds import Case, Differ, host_check, same_check


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return every port of /sys/class/infiniband: state, rate in Gbit/s, how often its link went down."""
    import os

    root = "/sys/class/infiniband"
    ports = []
    for device in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        place = "%s/%s/ports" % (root, device)
        for number in sorted(os.listdir(place)) if os.path.isdir(place) else []:
            at = "%s/%s/" % (place, number)
            rate = (text(at + "rate") or "").split()
            downed = text(at + "counters/link_downed") or ""
            ports.append(
                {
                    "port": device + ":" + number,
                    "state": (text(at + "state") or "").rpartition(" ")[2].lower() or None,
                    "physical": (text(at + "phys_state") or "").rpartition(" ")[2].lower() or None,
                    "gbit": float(rate[0]) if rate and rate[0].replace(".", "", 1).isdigit() else None,
                    "downed": int(downed) if downed.isdigit() else None,
                }
            )
    return {"ports": ports}


def _active(case: Case) -> list[Mapping[str, Any]]:
    return [port for port in case.answer.get("ports") or [] if port["state"] == "active"]


_IBSTAT = "ibstat; check the cable and the subnet manager: sudo systemctl status opensm"
_IBPORTSTATE = "ibstat; sudo ibportstate -D 0 PORT  # then another cable or port"


@same_check(
    "infiniband.ports",
    Differ(
        "the number of active InfiniBand ports differs from most hosts",
        Level.FAIL,
        _IBSTAT,
        "{} active".format,
        nowhere="no InfiniBand port is active on any host",
    ),
    at_least=0,
)
def ports(case: Case) -> Finding | int:
    """Number of active ports: at_least, and as many as on most hosts.

    A host with fewer active ports slows the job; one without any falls back to TCP.
    """
    active, wanted = _active(case), int(case.expect("at_least"))
    if len(active) >= wanted:
        return len(active)
    down = [
        f"{port['port']} {port['state']} ({port['physical']})"
        for port in case.answer.get("ports") or []
        if port not in active
    ]
    evidence = f"{len(active)} active" + (f"; {', '.join(down)}" if down else "") + f"; {wanted} expected"
    return case.fail("fewer InfiniBand ports are active than expected", evidence, _IBSTAT)


@same_check(
    "infiniband.rate",
    Differ("the InfiniBand rate differs from most hosts", remedy=_IBPORTSTATE, show="{:g} Gbit/s".format),
    at_least=0,
)
def rate(case: Case) -> Finding | float:
    """The slowest active port's rate in Gbit/s: at_least, and the same on every host.

    A port that runs at half its rate halves the job's bandwidth.
    """
    rates = [float(port["gbit"]) for port in _active(case) if port.get("gbit")]
    if not rates:
        return case.not_applicable("no active port")
    slowest, least = min(rates), case.expect("at_least")
    if slowest >= least:
        return slowest
    evidence = f"{slowest:g} Gbit/s, {least:g} expected"
    return case.fail("an InfiniBand port is slower than expected", evidence, _IBPORTSTATE)


@host_check("infiniband.errors", at_most=10)
def errors(case: Case) -> Finding:
    """How often the link of an active port went down since the counters were reset.

    A link that flaps ends NCCL with a transport retry error.
    """
    active = _active(case)
    counts = {port["port"]: port["downed"] for port in active if port.get("downed") is not None}
    if not active:
        return case.not_applicable("no active port")
    if not counts:
        return case.unknown("the ports' counters could not be read")
    bad = {port: count for port, count in counts.items() if count > case.expect("at_most")}
    evidence = ", ".join(f"{port}: {count}" for port, count in (bad or counts).items())
    if not bad:
        return case.passed(evidence)
    remedy = "sudo perfquery -R  # resets; clean the cable"
    return case.warn("an InfiniBand link keeps going down", evidence, remedy)


CHECKS = (ports, rate, errors)
