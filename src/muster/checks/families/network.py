"""The network interface that leads to the peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import About, Differ, differing, each, loopback
from muster.core.hostlist import fold_hosts

# Bridges and tunnels of containers and virtual machines, which lead to no other host.
_INSIDE = (
    "docker",
    "br-",
    "veth",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "podman",
    "lxc",
    "lxdbr",
    "ifb",
    "dummy",
)

CHECKS = (
    Check(
        "network.route",
        "The interface used to reach the peers is not loopback or a container's bridge.",
        "Ranks announce an address that other hosts cannot reach, and all wait for ever.",
    ),
    Check(
        "network.speed",
        "That interface's speed in Mbit/s: at_least, and the same on every host.",
        "All-reduce is as fast as the slowest link: one port that fell back to 1 Gbit/s slows the whole job.",
        {"at_least": 0},
    ),
    Check(
        "network.duplex",
        "That interface runs in full duplex.",
        "Half duplex comes from a failed negotiation: collisions, and a tenth of the speed.",
    ),
    Check(
        "network.mtu",
        "That interface's MTU: at_least, and the same on every host.",
        "Large packets to a host with a smaller MTU are lost: small messages work, training hangs.",
        {"at_least": 0},
    ),
    Check(
        "network.errors",
        "The share of that interface's packets with errors since boot.",
        "A bad cable or port costs retransmissions.",
        {"at_most": 1e-4, "packets": 10_000},
    ),
    Check(
        "network.variables",
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME of the recipe and of the host name interfaces that are "
        "there, up and with an address.",
        "NCCL finds no socket interface and gives up; gloo fails to resolve its address.",
    ),
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Interfaces from /sys/class/net, and the one whose address the kernel would use towards a peer."""
    import fcntl
    import os
    import socket
    import struct
    import threading

    answer: dict[str, Any] = {"interfaces": {}, "route": None, "env": {}}
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if os.environ.get(name):
            answer["env"][name] = os.environ[name]

    def whole(path: str) -> int | None:
        said = text(path) or ""
        return int(said) if said.lstrip("-").isdigit() else None

    root = "/sys/class/net/"
    inet6: dict[str, Any] = {}
    for line in (text("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6:
            inet6.setdefault(words[5], []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name in sorted(os.listdir(root))[:200] if os.path.isdir(root) else []:
            try:
                packed = fcntl.ioctl(
                    control.fileno(), 0x8915, struct.pack("256s", name.encode()[:15])
                )  # SIOCGIFADDR
                addresses = [socket.inet_ntoa(packed[20:24])]
            except OSError:
                addresses = []
            addresses += inet6.get(name, [])
            if addresses:
                flags = int(text(root + name + "/flags") or "0", 16)
                answer["interfaces"][name] = {"addresses": addresses, "up": bool(flags & 1)}
    mine = ask.get("address")
    others = [address for address in (ask.get("hosts") or {}).values() if address != mine]
    client = os.environ.get("SSH_CONNECTION", "").split()[:1]
    guess: dict[str, Any] = {}
    spare: dict[str, Any] = {}

    def find() -> None:
        for target in [*others[:1], *client, "192.0.2.1"]:
            asked = target.rpartition("@")[2].strip("[]")
            try:
                for info in socket.getaddrinfo(asked.encode("ascii", "replace"), 9, type=socket.SOCK_DGRAM):
                    with socket.socket(info[0], socket.SOCK_DGRAM) as trial:
                        trial.connect(info[4])  # sends nothing: asks the kernel for the way
                        source = trial.getsockname()[0]
                    way = {"asked": asked, "address": source, "to": info[4][0]}
                    inside = source.startswith("127.") or source == "::1"
                    if not inside or asked.startswith("127.") or asked == "::1":
                        guess.update(way)
                        return
                    # The name means this host itself: what is asked next may lead outside.
                    spare.update(spare or way)
            except OSError:
                continue
        guess.update(spare)

    finding = threading.Thread(target=find, daemon=True)  # a dead name server must not hold the rest
    finding.start()
    finding.join(min(3.0, 0.6 * float(ask.get("timeout") or 5.0)))
    for name, about in answer["interfaces"].items():
        if guess.get("address") in about["addresses"] or (
            (guess.get("address") or "").startswith("127.") and name == "lo"
        ):
            answer["route"] = dict(guess, interface=name)
            for key in ("speed", "mtu"):
                answer["route"][key] = whole(root + name + "/" + key)
            answer["route"]["duplex"] = text(root + name + "/duplex")
            for key in ("rx_packets", "tx_packets", "rx_errors", "tx_errors"):
                answer["route"][key] = whole(root + name + "/statistics/" + key)
            break
    return answer


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """The way to the peers, and what it is like compared with the other hosts'."""
    routes = {host: dict(answer.get("route") or {}) for host, answer in answers.items()}
    real = {host: route for host, route in routes.items() if _leads_out(route) and not context.one_machine}
    findings = each("network.route", answers, lambda at, a: _route(at, routes[at.host], context))
    for key, unit, remedy in (
        ("speed", "Mbit/s", "ethtool INTERFACE; try another cable or port where it has fallen back"),
        ("mtu", "bytes", "sudo ip link set dev INTERFACE mtu 9000  # the same on all hosts and switches"),
    ):
        known = {host: route[key] for host, route in real.items() if (route.get(key) or 0) > 0}
        findings += _measure(f"network.{key}", key, unit, remedy, known, context)
        findings += _others(f"network.{key}", answers, known, routes, "the interface does not report this")
    findings += each("network.duplex", answers, lambda at, a: _duplex(at, real.get(at.host)))
    findings += each("network.errors", answers, lambda at, a: _errors(at, real.get(at.host), context))
    return findings + each("network.variables", answers, lambda at, a: _variables(at, a, context))


def _leads_out(route: Mapping[str, Any]) -> bool:
    return (
        bool(route.get("interface"))
        and route["interface"] != "lo"
        and not route["interface"].startswith(_INSIDE)
    )


def _route(about: About, route: Mapping[str, Any], context: Context) -> Finding:
    if context.one_machine:
        return about.not_applicable("pretend hosts of one machine")
    if not route:
        return about.unknown("the route to the peers could not be read")
    asked, to = route.get("asked"), route["to"]
    shown = to if asked in (None, to) else f"{to}, which {asked} means here"
    evidence = f"{route['interface']} ({route['address']}) to {shown}"
    # Hosts that are given as loopback addresses are this machine's own; a name that means one is an error.
    if _leads_out(route) or loopback(str(route.get("asked"))):
        return about.passed(evidence)
    return about.warn(
        "the route to the peers reaches no other host",
        evidence,
        "ip route get ADDRESS-OF-A-PEER; fix the route, or the peer's name in /etc/hosts",
    )


def _others(
    check: str, answers: Answers, known: Mapping[str, Any], routes: Mapping[str, Any], why: str
) -> list[Finding]:
    return [About(check, host).not_applicable(why) for host in answers if host not in known]


def _measure(
    check: str, key: str, unit: str, remedy: str, known: Mapping[str, int], context: Context
) -> list[Finding]:
    least = float(context.expect(check, "at_least"))
    word = {"mtu": "MTU"}.get(key, key)
    low = {host: value for host, value in known.items() if value < least}
    findings = [
        About(check, host).fail(f"the interface's {word} is lower than expected", f"{value} {unit}", remedy)
        for host, value in low.items()
    ]
    enough = {host: value for host, value in known.items() if host not in low}
    differ = Differ(
        f"another {key} than most hosts", Level.WARN, remedy, 0.0, lambda value: f"{value} {unit}"
    )
    return findings + differing(check, enough, differ)


def _duplex(about: About, route: Mapping[str, Any] | None) -> Finding:
    duplex = (route or {}).get("duplex")
    if duplex not in ("full", "half"):
        return about.not_applicable("the interface does not report this")
    if duplex == "full":
        return about.passed()
    return about.fail(
        "the interface runs in half duplex",
        str((route or {}).get("interface")),
        "sudo ethtool -s INTERFACE autoneg on",
    )


def _errors(about: About, route: Mapping[str, Any] | None, context: Context) -> Finding:
    counts = [(route or {}).get(key) for key in ("rx_packets", "tx_packets", "rx_errors", "tx_errors")]
    if any(count is None for count in counts):
        return about.not_applicable("the interface does not report this")
    received, sent, bad_in, bad_out = (int(count or 0) for count in counts)
    packets, bad = received + sent, bad_in + bad_out
    evidence = f"{bad} of {packets} packets"
    if packets < context.expect(about.check, "packets") or bad <= packets * context.expect(
        about.check, "at_most"
    ):
        return about.passed(evidence)
    return about.warn(
        "the interface loses packets", evidence, "ethtool -S INTERFACE; try another cable or port"
    )


def _variables(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    given = {**(answer.get("env") or {}), **(context.recipe.get("env") or {})}
    wanted = {
        name: str(given[name]) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if given.get(name)
    }
    if not wanted:
        return about.not_applicable("neither is set")
    usable = [
        name for name, one in (answer.get("interfaces") or {}).items() if one["up"] and one["addresses"]
    ]
    bad = [f"{name}={value}" for name, value in wanted.items() if not matching(name, value, usable)]
    if not bad:
        return about.passed(", ".join(f"{name}={value}" for name, value in wanted.items()))
    return about.fail(
        "a variable names no interface that is up here",
        f"{', '.join(bad)}; up with an address: {fold_hosts(usable) or 'none'}",
        "env.NCCL_SOCKET_IFNAME=^docker,lo, or a list that has every host's: NCCL_SOCKET_IFNAME=eno1,eth0",
    )


def matching(variable: str, value: str, interfaces: list[str]) -> list[str]:
    """The interfaces that a variable allows. NCCL: prefixes, `=` for exact names, `^` for all but these
    (NCCL's documentation of NCCL_SOCKET_IFNAME). gloo: exact names."""
    if variable.startswith("GLOO"):
        names = [name.strip() for name in value.split(",")]
        return [name for name in interfaces if name in names]
    but = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    words = [word for word in value.lstrip("^=").split(",") if word]
    hit = [name for name in interfaces if (name in words if exact else name.startswith(tuple(words)))]
    return [name for name in interfaces if name not in hit] if but else hit
