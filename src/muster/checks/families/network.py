"""The network interface that leads to the peers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Check, Finding
from muster.checks.kinds import Case, Differ, alike, host_check, loopback
from muster.core.hostlist import fold_hosts

# Bridges and tunnels of containers and virtual machines, which lead to no other host.
_INSIDE = re.compile("docker|br-|veth|virbr|cni|flannel|cali|podman|lxc|lxdbr|ifb|dummy|lo$")


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return interfaces from /sys/class/net, and the one whose address the kernel would use towards a peer.
    """
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
        content = text(path) or ""
        return int(content) if content.lstrip("-").isdigit() else None

    root = "/sys/class/net/"
    inet6: dict[str, Any] = {}
    for line in (text("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6:
            inet6.setdefault(words[5], []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name in sorted(os.listdir(root))[:200] if os.path.isdir(root) else []:
            try:
                request = struct.pack("256s", name.encode()[:15])
                packed = fcntl.ioctl(control.fileno(), 0x8915, request)  # SIOCGIFADDR
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


def _way_out(case: Case) -> Mapping[str, Any]:
    """Return the route to the peers, where it leaves the host; else empty."""
    route: Mapping[str, Any] = case.answer.get("route") or {}
    interface = route.get("interface")
    leads_out = interface and not _INSIDE.match(interface) and not case.context.one_machine
    return route if leads_out else {}


_SILENT = "the interface does not report this"


@host_check("network.route")
def route(case: Case) -> Finding:
    """The interface used to reach the peers is not loopback or a container's bridge.

    Ranks announce an address that other hosts cannot reach, and all wait for ever.
    """
    # Hosts given as loopback addresses are this machine's own; a name that means one is an error.
    if case.context.one_machine:
        return case.not_applicable("pretend hosts of one machine")
    way = case.answer.get("route")
    if not way:
        return case.unknown("the route to the peers could not be read")
    asked, to = way.get("asked"), way["to"]
    shown = to if asked in (None, to) else f"{to}, which {asked} means here"
    evidence = f"{way['interface']} ({way['address']}) to {shown}"
    if _way_out(case) or loopback(str(asked)):
        return case.passed(evidence)
    remedy = "ip route get ADDRESS-OF-A-PEER; fix the route, or the peer's name in /etc/hosts"
    return case.warn("the route to the peers reaches no other host", evidence, remedy)


def _figure(key: str, word: str, unit: str, asks: str, why: str, remedy: str) -> Check:
    """Declare a check of a figure of the interface: at_least, and the same on every host."""

    def value(case: Case) -> Finding | int:
        figure: int = _way_out(case).get(key) or 0
        if figure <= 0:
            return case.not_applicable(_SILENT)
        if figure < case.expect("at_least"):
            return case.fail(f"the interface's {word} is lower than expected", f"{figure} {unit}", remedy)
        return figure

    differ = Differ(f"another {key} than most hosts", remedy=remedy, show=lambda value: f"{value} {unit}")
    asks = f"That interface's {asks}: at_least, and the same on every host."
    return alike(f"network.{key}", asks, why, differ, value, at_least=0)


speed = _figure(
    "speed",
    "speed",
    "Mbit/s",
    "speed in Mbit/s",
    "All-reduce is as fast as the slowest link: one port that fell back to 1 Gbit/s slows the whole job.",
    "ethtool INTERFACE; try another cable or port where it has fallen back",
)
mtu = _figure(
    "mtu",
    "MTU",
    "bytes",
    "MTU",
    "Large packets to a host with a smaller MTU are lost: small messages work, training hangs.",
    "sudo ip link set dev INTERFACE mtu 9000  # the same on all hosts and switches",
)


@host_check("network.duplex")
def duplex(case: Case) -> Finding:
    """That interface runs in full duplex.

    Half duplex comes from a failed negotiation: collisions, and a tenth of the speed.
    """
    way = _way_out(case)
    if way.get("duplex") not in ("full", "half"):
        return case.not_applicable(_SILENT)
    if way["duplex"] == "full":
        return case.passed()
    remedy = "sudo ethtool -s INTERFACE autoneg on"
    return case.note("the interface runs in half duplex", str(way["interface"]), remedy)


@host_check("network.errors", at_most=1e-4, packets=10_000)
def errors(case: Case) -> Finding:
    """The share of that interface's packets with errors since boot.

    A bad cable or port costs retransmissions.
    """
    way = _way_out(case)
    counts = [way.get(key) for key in ("rx_packets", "tx_packets", "rx_errors", "tx_errors")]
    if None in counts:
        return case.not_applicable(_SILENT)
    received, sent, bad_in, bad_out = (int(count or 0) for count in counts)
    packets, bad = received + sent, bad_in + bad_out
    evidence = f"{bad} of {packets} packets"
    if packets < case.expect("packets") or bad <= packets * case.expect("at_most"):
        return case.passed(evidence)
    return case.warn(
        "the interface loses packets", evidence, "ethtool -S INTERFACE; try another cable or port"
    )


@host_check("network.variables")
def variables(case: Case) -> Finding:
    """NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME of the recipe and of the host name interfaces that are there,
    up and with an address.

    NCCL finds no socket interface and gives up; gloo fails to resolve its address.
    """
    given = {**(case.answer.get("env") or {}), **(case.context.recipe.get("env") or {})}
    wanted = {
        name: str(given[name]) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if given.get(name)
    }
    if not wanted:
        return case.not_applicable("neither is set")
    interfaces = case.answer.get("interfaces") or {}
    usable = [name for name, one in interfaces.items() if one["up"] and one["addresses"]]
    bad = [f"{name}={value}" for name, value in wanted.items() if not matching(name, value, usable)]
    if not bad:
        return case.passed(", ".join(f"{name}={value}" for name, value in wanted.items()))
    return case.fail(
        "a variable names no interface that is up here",
        f"{', '.join(bad)}; up with an address: {fold_hosts(usable) or 'none'}",
        "env.NCCL_SOCKET_IFNAME=^docker,lo, or a list that has every host's: NCCL_SOCKET_IFNAME=eno1,eth0",
    )


CHECKS = (route, speed, duplex, mtu, errors, variables)


def matching(variable: str, value: str, interfaces: list[str]) -> list[str]:
    """Return the interfaces that a variable allows. NCCL: prefixes, `=` for exact names, `^` for all but
    these (NCCL's documentation of NCCL_SOCKET_IFNAME). gloo: exact names."""
    if variable.startswith("GLOO"):
        names = [name.strip() for name in value.split(",")]
        return [name for name in interfaces if name in names]
    but = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    words = [word for word in value.lstrip("^=").split(",") if word]
    hit = [name for name in interfaces if (name in words if exact else name.startswith(tuple(words)))]
    return [name for name in interfaces if name not in hit] if but else hit
