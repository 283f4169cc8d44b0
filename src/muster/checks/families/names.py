"""What hosts call themselves and each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.checks.base import Answers, Context, Finding
from muster.checks.kinds import Case, Judge, absent, group_check, host_check, loopback, majority
from muster.core.hostlist import fold_hosts

_HOSTS_FILE = "the same lines in /etc/hosts on every host: echo 'ADDRESS NAME' | sudo tee -a /etc/hosts"
_LOOPBACK_LINE = (
    "take the peers' names off the lines of 127.* in /etc/hosts (images keep that of the host that they were "
    f"made on); then {_HOSTS_FILE}"
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the host's name, what it resolves to, the host's own names, and the reverse lookup."""
    import os
    import socket
    import threading

    # Names go to the resolver as bytes: for text, Python first loads its tables of international names.
    answer: dict[str, Any] = {"name": socket.gethostname(), "addresses": None, "own": [], "reverse": None}
    answer["stays"] = ask.get("host") in (ask.get("hosts") or {})
    ssh = os.environ.get("SSH_CONNECTION", "").split()

    def has(address: str) -> bool:
        """Return whether the host has an address: only then can a socket be bound to it."""
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as trial:
            try:
                trial.bind((address, 0))
            except OSError:
                return False
            return True

    def resolve(name: str) -> list[str]:
        try:
            return sorted(
                {
                    str(info[4][0])
                    for info in socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)
                }
            )
        except (OSError, UnicodeError):
            return []

    def look() -> None:
        addresses = resolve(answer["name"])
        answer["addresses"] = addresses
        answer["own"] = [address for address in addresses if has(address)]
        outside = [a for a in answer["own"] if not a.startswith("127.") and a != "::1"]
        address = ssh[2] if len(ssh) == 4 else (outside or [None])[0]
        if address:
            try:
                name = socket.gethostbyaddr(address)[0]
                answer["reverse"] = [address, name, resolve(name)]
            except OSError:
                answer["reverse"] = [address, None, []]
        answer["done"] = True

    looking = threading.Thread(target=look, daemon=True)  # a name server that is dead must not hold the rest
    looking.start()
    looking.join(min(4.0, 0.8 * float(ask.get("timeout") or 5.0)))
    return dict(answer)


def probe_peers(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the names of the hosts that stay resolve to here. `slow`: not all within the time."""
    import socket
    import threading

    views: dict[str, Any] = {}

    def look() -> None:
        for label in ask.get("hosts") or {}:
            name = ask["hosts"][label].rpartition("@")[2].strip("[]")
            if ":" in name or name.replace(".", "").isdigit():
                continue  # an address already
            try:
                infos = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)
                views[label] = sorted({str(info[4][0]) for info in infos})
            except (OSError, UnicodeError):
                views[label] = []

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(min(6.0, 0.8 * float(ask.get("timeout") or 7.0)))
    return {"views": dict(views), "slow": looking.is_alive()}


@host_check("names.own", loopback="allowed")
def own(case: Case) -> Finding:
    """The host's own name resolves there to one of its addresses.

    gloo and MPI look their own host up and tell peers the address. loopback: allowed, since Muster names the
    interface to gloo itself; forbidden for jobs that others start.
    """
    addresses, name = case.answer.get("addresses"), f"{case.answer.get('name')}"
    if addresses is None:
        remedy = "getent hosts $(hostname); cat /etc/resolv.conf"
        return case.warn("looking up the host's own name times out", name, remedy)
    if not addresses:
        return case.warn("the host cannot resolve its own name", name, _HOSTS_FILE)
    evidence = f"{name} is {', '.join(addresses)}"
    if not case.answer.get("own"):
        problem = "the host's own name resolves to an address that it does not have"
        return case.warn(problem, evidence, _HOSTS_FILE)
    inside = all(map(loopback, case.answer["own"]))
    if inside and not case.context.one_machine and case.expect("loopback") != "allowed":
        return case.warn("the host's own name resolves to loopback", evidence, _HOSTS_FILE)
    return case.passed(evidence)


@host_check("names.reverse")
def reverse(case: Case) -> Finding:
    """The reverse lookup of the host's address gives a name that resolves to that address.

    sshd, MPI and Slurm compare the two, wait for the lookup, and log the wrong name.
    """
    # The address that the connection used, else the first one of the host's name.
    if case.context.one_machine:
        return case.not_applicable("pretend hosts of one machine")
    if not case.answer.get("done"):
        return case.unknown("name servers time out")
    if not case.answer.get("reverse"):
        return case.unknown("no address to look up")
    address, name, back = case.answer["reverse"]
    if not name:
        return case.not_applicable("the address has no reverse name")
    if address in back or loopback(address):
        return case.passed(f"{address} is {name}")
    evidence = f"{address} is {name}, which is {', '.join(back) or 'unknown'}"
    return case.note("the address's name resolves to another address", evidence, _HOSTS_FILE)


@group_check("names.peers")
def peers(answers: Answers, peers: Answers, context: Context) -> Judge:
    """The hosts' names resolve to the same addresses on every host (a sample that includes the first).

    A rank connects to the wrong host, or waits for the rendezvous until it times out.
    """
    views = {host: answer.get("views") or {} for host, answer in peers.items()}
    usual: dict[str, tuple[str, ...]] = {}
    apart: set[str] = set()  # names that two hosts resolve to addresses without a common one
    for target in {target for view in views.values() for target in view}:
        # A host's view of itself does not count: loopback is usual there. Nor does one that takes a peer for
        # the host itself, which is wrong however many have it.
        seen = [
            tuple(view[target])
            for host, view in views.items()
            if host != target and view.get(target) and not all(map(loopback, view[target]))
        ]
        if seen:
            usual[target] = majority(seen) or ()
            if any(not set(one) & set(other) for one in seen for other in seen):
                apart.add(target)

    def judge(case: Case) -> Finding:
        if context.one_machine or len(answers) < 2:
            return case.not_applicable("one host has no peers")
        if case.host not in peers:
            return absent(case)
        return _view(case, views[case.host], bool(peers[case.host].get("slow")), usual, apart)

    return judge


def _view(
    case: Case,
    seen: Mapping[str, list[str]],
    slow: bool,
    usual: Mapping[str, tuple[str, ...]],
    apart: set[str],
) -> Finding:
    """Compare what names resolve to here (`seen`) with most hosts (`usual`)."""
    if not seen and not slow:
        return case.not_applicable("the hosts are given by address")
    views = {target: view for target, view in seen.items() if target != case.host}
    selves = [target for target, view in views.items() if view and all(map(loopback, view))]
    if selves:
        words = f"{fold_hosts(selves)}: {', '.join(views[selves[0]])}"
        return case.warn("names of peers resolve to this host itself", words, _LOOPBACK_LINE)
    lost = [target for target, view in views.items() if target in usual and not view]
    if lost:
        return case.warn("names of peers do not resolve here", fold_hosts(lost), _HOSTS_FILE)
    odd = [t for t, view in views.items() if t in apart and not set(view) & set(usual[t])]
    if odd:
        words, most = f"{odd[0]} is {', '.join(views[odd[0]])} here", ", ".join(usual[odd[0]])
        if not most:
            return case.warn("the hosts resolve a peer's name to different addresses", words, _HOSTS_FILE)
        problem = "names of peers resolve to other addresses than on most hosts"
        return case.warn(problem, f"{words}, and {most} on most hosts", _HOSTS_FILE)
    if slow:
        return case.warn("name servers time out", f"{len(views)} names in the time", "cat /etc/resolv.conf")
    if not any(target in usual for target in views):
        return case.not_applicable("only the connection knows the names (ssh_config)")
    return case.passed(f"{len(views)} names resolve as on the other hosts")


CHECKS = (own, reverse, peers)
