"""Whether hosts can open TCP connections to each other, on ports that the kernel picks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import at_end
from muster.checks.base import Answers, Context, Finding
from muster.checks.kinds import Case, Judge, absent, group_check
from muster.core.hostlist import fold_hosts


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Listen on a free port, and send run and host to every client."""
    if ask["host"] not in (ask.get("hosts") or {}):
        return {"port": None, "addresses": [], "stays": False}  # no peer connects
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
    """Connect to sampled peers, all at once. Return by peer None where it answered, else what went wrong."""
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
                    reply = line.recv(1024).decode("utf-8", "replace").split()
                if reply == [ask["token"], label]:
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


@group_check("firewall.ports")
def ports(answers: Answers, peers: Answers, context: Context) -> Judge:
    """A TCP connection to a new port of each sampled peer (all pairs of up to 16 hosts, six peers each of
    more), answered by the right host.

    Rendezvous, gloo and NCCL use ports that the kernel picks: if one host drops them, the job waits until it
    times out.
    """
    # Host -> {peer: None where it answered, else what went wrong}.
    out = {host: dict(answer.get("reached") or {}) for host, answer in peers.items()}
    into: dict[str, dict[str, str | None]] = {}
    for source, reached in out.items():
        for target, wrong in reached.items():
            into.setdefault(target, {})[source] = wrong
    deaf = {host for host in answers if into.get(host) and all(into[host].values())}

    def judge(case: Case) -> Finding:
        if context.one_machine or len(answers) < 2:
            return case.not_applicable("one host has no peers")
        if case.host in deaf:
            remedy = "allow the cluster: sudo ufw allow from NETWORK, "
            remedy += "or sudo iptables -I INPUT -s NETWORK -j ACCEPT"
            return case.fail("peers cannot connect to the host", _first("from", into[case.host]), remedy)
        if case.host not in peers:
            return absent(case)
        tried = out[case.host]
        hearing = {target: wrong for target, wrong in tried.items() if target not in deaf}
        lost = {target: wrong for target, wrong in hearing.items() if wrong}
        if lost and len(lost) == len(hearing):
            wrongs = {target: wrong for target, wrong in tried.items() if wrong}
            remedy = "ip route; sudo iptables -L OUTPUT -n; sudo nft list ruleset"
            return case.fail("the host cannot connect to any peer", _first("to", wrongs), remedy)
        if lost:
            remedy = "ip route get ADDRESS on both hosts; sudo nft list ruleset"
            return case.fail("the host cannot connect to some of its peers", _first("to", lost), remedy)
        if not tried:
            return case.not_applicable("one host has no peers")
        answered = sum(not wrong for wrong in tried.values())
        return case.passed(f"{answered} of {len(tried)} peers reached")

    return judge


def _first(way: str, wrongs: Mapping[str, str | None]) -> str:
    return f"{way} {fold_hosts(wrongs)}: {next(iter(wrongs.values()))}"


CHECKS = (ports,)
