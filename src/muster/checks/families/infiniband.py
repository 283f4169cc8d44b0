"""InfiniBand and RoCE ports, where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import About, Differ, differing, each

CHECKS = (
    Check(
        "infiniband.ports",
        "Number of active ports: at_least, and as many as on most hosts.",
        "A host with fewer active ports slows the job; one without any falls back to TCP.",
        {"at_least": 0},
    ),
    Check(
        "infiniband.rate",
        "The slowest active port's rate in Gbit/s: at_least, and the same on every host.",
        "A port that runs at half its rate halves the job's bandwidth.",
        {"at_least": 0},
    ),
    Check(
        "infiniband.errors",
        "How often the link of an active port went down since the counters were reset.",
        "A link that flaps ends NCCL with a transport retry error.",
        {"at_most": 10},
    ),
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Every port of /sys/class/infiniband: state, rate in Gbit/s, how often its link went down."""
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
                    "layer": text(at + "link_layer"),
                }
            )
    return {"ports": ports}


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Ports and rates against the profile and the other hosts."""
    ports = {host: answer.get("ports") or [] for host, answer in answers.items()}
    active = {host: [port for port in found if port["state"] == "active"] for host, found in ports.items()}
    wanted = int(context.expect("infiniband.ports", "at_least"))
    if not any(ports.values()) and not wanted:
        return [
            About(check.name, host).not_applicable("no InfiniBand on any host")
            for check in CHECKS
            for host in answers
        ]
    return [
        *_ports(answers, ports, active, wanted),
        *_rates(active, float(context.expect("infiniband.rate", "at_least"))),
        *each("infiniband.errors", answers, lambda at, a: _errors(at, active[at.host], context)),
    ]


def _ports(
    answers: Answers, ports: Mapping[str, list[Any]], active: Mapping[str, list[Any]], wanted: int
) -> list[Finding]:
    check, remedy = (
        "infiniband.ports",
        "ibstat; check the cable and the subnet manager: sudo systemctl status opensm",
    )
    findings = []
    enough = {}
    for host in answers:
        down = [
            f"{port['port']} {port['state']} ({port['physical']})"
            for port in ports[host]
            if port not in active[host]
        ]
        evidence = f"{len(active[host])} active" + (f"; {', '.join(down)}" if down else "")
        if len(active[host]) < wanted:
            problem = "fewer InfiniBand ports are active than expected"
            findings.append(About(check, host).fail(problem, f"{evidence}; {wanted} expected", remedy))
        else:
            enough[host] = len(active[host])
    differ = Differ(
        "the number of active InfiniBand ports differs from most hosts",
        Level.FAIL,
        remedy,
        show=lambda n: f"{n} active",
    )
    return findings + differing(check, enough, differ)


def _rates(active: Mapping[str, list[Any]], least: float) -> list[Finding]:
    check, remedy = "infiniband.rate", "ibstat; sudo ibportstate -D 0 PORT  # then another cable or port"
    findings = []
    rates = {}
    for host, ports in active.items():
        known = [port["gbit"] for port in ports if port.get("gbit")]
        if not known:
            findings.append(About(check, host).not_applicable("no active port"))
        elif min(known) < least:
            evidence = f"{min(known):g} Gbit/s, {least:g} expected"
            findings.append(
                About(check, host).fail("an InfiniBand port is slower than expected", evidence, remedy)
            )
        else:
            rates[host] = min(known)
    differ = Differ(
        "the InfiniBand rate differs from most hosts",
        Level.WARN,
        remedy,
        show=lambda rate: f"{rate:g} Gbit/s",
    )
    return findings + differing(check, rates, differ)


def _errors(about: About, ports: list[Any], context: Context) -> Finding:
    counts = {port["port"]: port["downed"] for port in ports if port.get("downed") is not None}
    if not ports:
        return about.not_applicable("no active port")
    if not counts:
        return about.unknown("the ports' counters could not be read")
    bad = {port: count for port, count in counts.items() if count > context.expect(about.check, "at_most")}
    evidence = ", ".join(f"{port}: {count}" for port, count in (bad or counts).items())
    if not bad:
        return about.passed(evidence)
    return about.warn(
        "an InfiniBand link keeps going down", evidence, "sudo perfquery -R  # resets; clean the cable"
    )
