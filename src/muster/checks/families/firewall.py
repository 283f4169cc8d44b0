"""Whether hosts can open TCP connections to each other, on ports that nobody opened for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import at_end
from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, absent, each
from muster.core.hostlist import fold_hosts

CHECKS = (
    Check(
        "firewall.ports",
        "A TCP connection to a new port of each sampled peer (all pairs of up to 16 hosts, six peers each "
        "of more), answered by the right host.",
        "Rendezvous, gloo and NCCL use ports that the kernel picks: if one host drops them, the job "
        "waits until it times out.",
    ),
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Listen on a free port, and say run and host to whoever connects."""
    if ask["host"] not in (ask.get("hosts") or {}):
        return {"port": None, "addresses": [], "stays": False}  # nobody will connect
    import os
    import socket
    import threading

    try:
        server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("", 0))
    except OSError:  # a kernel without IPv6
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.bind(("", 0))
    server.listen(64)
    at_end(server.close)
    words = ("%s %s\n" % (ask.get("token"), ask.get("host"))).encode()

    def serve() -> None:
        while True:
            try:
                caller = server.accept()[0]
            except OSError:
                return
            try:
                caller.settimeout(2.0)
                caller.sendall(words)
            except OSError:
                pass
            finally:
                caller.close()

    threading.Thread(target=serve, daemon=True).start()
    addresses = []
    ssh = os.environ.get("SSH_CONNECTION", "").split()
    if len(ssh) == 4:
        addresses.append(ssh[2])
    for kind, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(kind, socket.SOCK_DGRAM) as guess:
                guess.connect((target, 9))  # sends nothing: asks the kernel which address leads out
                addresses.append(guess.getsockname()[0])
        except OSError:
            pass
    return {"port": server.getsockname()[1], "addresses": list(dict.fromkeys(addresses)), "stays": True}


def probe_peers(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Connect to sampled peers, all at once -> {peer: None where it answered, else what went wrong}."""
    import socket
    import threading
    import time

    peers = {label: answer for label, answer in (ask.get("peers") or {}).items() if answer.get("port")}
    labels = sorted(peers)
    mine = ask["host"]
    limit = min(3.0, 0.6 * float(ask.get("timeout") or 5.0))
    targets = [label for label in labels if label != mine]
    if len(labels) > 16 and mine in labels:
        here, count = labels.index(mine), len(labels)
        targets = [labels[(here + offset) % count] for offset in (1, 2, 3, 5, 8, 13)]
    results: dict[str, Any] = {}

    def dial(label: str) -> None:
        peer = peers[label]
        named = (ask.get("hosts") or {}).get(label, "").rpartition("@")[2].strip("[]")
        wrong = []
        deadline = time.monotonic() + limit
        # The address that the connection used comes first; each one has its share of the time that is left.
        candidates = [
            word for word in dict.fromkeys([*peer["addresses"][:1], named, *peer["addresses"]]) if word
        ]
        for index, address in enumerate(candidates):
            left = max(0.1, (deadline - time.monotonic()) / (len(candidates) - index))
            try:
                with socket.create_connection((address, peer["port"]), left) as line:
                    line.settimeout(max(0.1, deadline - time.monotonic()))
                    said = line.recv(1024).decode("utf-8", "replace").split()
                if said == [ask["token"], label]:
                    results[label] = None
                    return
                wrong.append("another host answers at " + address)
            except (OSError, UnicodeError) as error:
                words = getattr(error, "strerror", None) or str(error) or type(error).__name__
                wrong.append("%s: %s" % (address, words))
        results[label] = "; ".join(wrong) or "no address"

    threads = [threading.Thread(target=dial, args=(label,), daemon=True) for label in targets]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit + 0.5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {"reached": {label: results.get(label, "no answer in time") for label in targets}}


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Tell a host that nobody reaches from one that reaches nobody and from a single bad pair."""
    check = "firewall.ports"
    if context.one_machine or len(answers) < 2:
        return each(check, answers, lambda at, a: at.not_applicable("one host has no peers"))
    tries = {
        (source, target): wrong
        for source, answer in peers.items()
        for target, wrong in (answer.get("reached") or {}).items()
    }
    deaf = {
        target
        for target in answers
        if (wrongs := [wrong for (_, to), wrong in tries.items() if to == target]) and all(wrongs)
    }
    mute = {
        source
        for source in answers
        if (wrongs := [w for (of, to), w in tries.items() if of == source and to not in deaf]) and all(wrongs)
    }
    return each(
        check,
        answers,
        lambda at, a: _reach(at, tries, deaf, mute) if at.host in peers or at.host in deaf else absent(at, a),
    )


def _reach(
    about: About, tries: Mapping[tuple[str, str], str | None], deaf: set[str], mute: set[str]
) -> Finding:
    host = about.host
    into = {source: wrong for (source, target), wrong in tries.items() if target == host and wrong}
    out = {target: wrong for (source, target), wrong in tries.items() if source == host and wrong}
    tried = [target for source, target in tries if source == host]
    if host in deaf:
        return about.fail(
            "peers cannot connect to the host",
            f"from {fold_hosts(into)}: {next(iter(into.values()))}",
            "allow the cluster: sudo ufw allow from NETWORK, or sudo iptables -I INPUT -s NETWORK -j ACCEPT",
        )
    if host in mute:
        return about.fail(
            "the host cannot connect to any peer",
            f"to {fold_hosts(out)}: {next(iter(out.values()))}",
            "ip route; sudo iptables -L OUTPUT -n; sudo nft list ruleset",
        )
    pairs = {target: wrong for target, wrong in out.items() if target not in deaf}
    if pairs:
        return about.fail(
            "the host cannot connect to some of its peers",
            f"to {fold_hosts(pairs)}: {next(iter(pairs.values()))}",
            "ip route get ADDRESS on both hosts; sudo nft list ruleset",
        )
    if not tried:
        return about.not_applicable("one host has no peers")
    return about.passed(f"{len(tried) - len(out)} of {len(tried)} peers reached")
