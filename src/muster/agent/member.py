"""Registers this machine with a head that runs `muster gather`, and waits until all machines have registered.

    MUSTER_JOIN_TOKEN=... python3 THIS_FILE HEAD[,HEAD...]:PORT

One file, standard library alone, Python >= 3.8, imports nothing of Muster: `muster join --script` prints it
for machines that have no Muster. The token is never sent: each side proves that it knows it
(muster/fleet/handshake.py). Exit codes: 0 all machines have registered, 1 they have not, 2 bad input or
another token.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import hmac
import ipaddress
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

MAX_LINE = 4096  # bytes of a line, its end included
CONNECT = 3.0  # seconds for a connection: a head may have addresses that do not lead there from here
ANSWER = 10.0  # seconds for a head to greet on it
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a dead peer is noticed in 20 s
WORTH_RETRYING = ("crowded", "slow")  # a head's reasons not to let a machine in that pass


class Rejected(Exception):
    """The head rejects this machine. `wrong_token`: it has another token."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.wrong_token = why == "wrong secret"


class Unreachable(Exception):
    """No head has answered in time, or none has reported that all machines are there."""


# ---- the handshake -----------------------------------------------------------------------------------------
# Agents that dial a controller bring this part as well: fleet/launchers/base.py.


def proof(secret: str, side: str, nonce: str, content: bytes) -> bytes:
    """Return the proof that `side` (client or server) knows the secret."""
    return (
        hmac.new(secret.encode(), ("%s %s " % (side, nonce)).encode() + content, hashlib.sha256)
        .hexdigest()
        .encode()
    )


def read_line(sock: socket.socket) -> bytes:
    """Read one line, and not a byte more: what follows may be for another reader. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        seen = sock.recv(MAX_LINE - len(line), socket.MSG_PEEK)
        if not seen:
            raise OSError("the other side closed the connection")
        line += sock.recv(seen.find(b"\n") + 1 or len(seen))
    return line[:-1]


def claim(
    address: str, port: int, secret: str, payload: Dict[str, Any], timeout: float
) -> Tuple[socket.socket, str]:
    """Connect, and prove to the server that the secret is known here. Return the connection, and the nonce
    that its answer must cover. Raises OSError: no server is there, or it is not Muster."""
    sock = socket.create_connection((address, port), min(timeout, CONNECT))
    try:
        sock.settimeout(timeout)
        word, _, nonce = read_line(sock).decode("latin-1").strip().partition(" ")
        if word != "muster1" or len(nonce) != 32 or nonce.strip("0123456789abcdef"):
            raise OSError("the program there is not Muster")
        own_nonce = os.urandom(16).hex()
        content = json.dumps(dict(payload, nonce=own_nonce), separators=(",", ":")).encode()
        sock.sendall(proof(secret, "client", nonce, content) + b" " + content + b"\n")
        return sock, own_nonce
    except BaseException:
        sock.close()
        raise


def read_answer(sock: socket.socket, secret: str, nonce: str) -> Dict[str, Any]:
    """Return the server's answer to a claim, proven; the connection is closed where there is no answer.

    Raises Rejected (the server refuses) and OSError (closed, silent, or it does not know the secret).
    """
    try:
        line = read_line(sock)
        if line.startswith(b"refused "):
            raise Rejected(printable(line[8:]))
        given, _, content = line.partition(b" ")
        if not hmac.compare_digest(given, proof(secret, "server", nonce, content)):
            raise OSError("the program there does not know the secret")
        return json.loads(content.decode())  # type: ignore[no-any-return]
    except BaseException:
        sock.close()
        raise


def knock(
    address: str, port: int, secret: str, payload: Dict[str, Any], timeout: float
) -> Tuple[socket.socket, Dict[str, Any]]:
    """Connect, and prove the secret both ways. Return the connection, and the server's first answer.

    Raises Rejected and OSError (see above).
    """
    sock, nonce = claim(address, port, secret, payload, timeout)
    return sock, read_answer(sock, secret, nonce)


def printable(text: bytes) -> str:
    """Return another machine's text in a form that is harmless for a terminal."""
    return "".join(
        letter if letter.isprintable() else "?" for letter in text[:200].decode("utf-8", "replace")
    )


# ---- this machine -----------------------------------------------------------------------------------------


def own_addresses() -> List[str]:
    """Return this machine's addresses without loopback and link-local ones; the one of the default route
    comes first."""
    addresses = []  # type: List[str]
    for target in ("192.0.2.1", "2001:db8::1"):  # for documentation: nothing is sent there
        try:
            with socket.socket(
                socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM
            ) as probe:
                probe.connect((target, 9))
                addresses.append(probe.getsockname()[0])
        except OSError:
            pass
    last = ""
    for line in lines_of("/proc/net/fib_trie"):
        if "|--" in line:
            last = line.split()[-1]
        elif "/32 host LOCAL" in line:
            addresses.append(last)
    for line in lines_of("/proc/net/if_inet6"):
        addresses.append(str(ipaddress.IPv6Address(int(line.split()[0], 16))))
    unique = list(dict.fromkeys(addresses))
    return [text for text in unique if not is_useless(ipaddress.ip_address(text))]


def is_useless(address: Any) -> bool:
    """Return whether no other machine can use the address."""
    return bool(
        address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    )


def lines_of(path: str) -> Iterable[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []


def output_of(argv: List[str]) -> str:
    """Return what a program prints; empty where it does not exist, fails or hangs."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def gpu_count() -> int:
    """Return the number of GPUs that nvidia-smi lists, or that have a device file."""
    listed = [line for line in output_of(["nvidia-smi", "-L"]).splitlines() if line.startswith("GPU ")]
    return len(listed) or len(glob.glob("/dev/nvidia[0-9]*"))


# ---- joining -----------------------------------------------------------------------------------------------


def parse_heads(text: str) -> Tuple[List[str], int]:
    """Parse `10.0.0.1,head:7000` into (["10.0.0.1", "head"], 7000). IPv6 in brackets. Raises ValueError."""
    names, _, port = text.rpartition(":")
    heads = [name.strip("[]") for name in names.split(",") if name.strip("[]")]
    if not heads or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("%r is not HEAD:PORT" % text)
    return heads, int(port)


def about(slots: Optional[int], address: str) -> Dict[str, Any]:
    """Return this machine's facts for the head. `address`: by which others reach it; "": the one that the
    connection comes from."""
    return {
        "name": socket.gethostname(),
        "wants": "join",
        "address": address,
        "slots": slots or gpu_count() or 1,
    }


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice a peer that has vanished, within a time that it may allow to be set."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def join(
    heads: List[str],
    port: int,
    secret: str,
    facts: Dict[str, Any],
    timeout: float,
    say: Callable[[str], None],
) -> Dict[str, Any]:
    """Register, and wait until the head reports that all machines are there. Return its answer (`name`,
    `members`).

    Raises Rejected and Unreachable (see there).
    """
    deadline = time.monotonic() + timeout
    last, why = "", "no answer"
    while time.monotonic() < deadline:
        for head in heads:
            try:
                sock, nonce = claim(head, port, secret, facts, min(ANSWER, remaining(deadline)))
                keep_alive(sock)
                sock.settimeout(remaining(deadline))
                answer = read_answer(sock, secret, nonce)
                sock.close()
                return answer
            except Rejected as error:
                if str(error) not in WORTH_RETRYING:
                    raise
                why = "%s: the head says: %s" % (head, error)
            except (OSError, ValueError) as error:
                why = "%s port %d: %s" % (head, port, error)
            if why != last:
                say(why + "; trying again")
                last = why
        # Not all at once, where a thousand machines start in the same second.
        time.sleep(min(random.uniform(0.5, 2.0), remaining(deadline)))
    raise Unreachable("not done after %g s; last: %s" % (timeout, why))


def remaining(deadline: float) -> float:
    """Return the seconds until the deadline, at least a little."""
    return max(0.05, deadline - time.monotonic())


def main(argv: List[str]) -> int:
    """Run the script's command line. Return its exit code."""
    parser = argparse.ArgumentParser(prog="join", description="Register this machine with `muster gather`.")
    parser.add_argument("head", help="HEAD[,HEAD...]:PORT")
    parser.add_argument("--token-file", help="default: the environment's MUSTER_JOIN_TOKEN")
    parser.add_argument("--slots", type=int, help="ranks on this machine; default: its GPUs, or 1")
    parser.add_argument("--address", default="", help="how others reach it; default: as the head sees it")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds in all")
    given = parser.parse_args(argv)
    try:
        heads, port = parse_heads(given.head)
        if given.token_file:
            with open(given.token_file) as file:
                secret = file.read().strip()
        else:
            secret = os.environ.get("MUSTER_JOIN_TOKEN", "").strip()
        secret.encode()  # not every environment variable is text
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not 0 < given.timeout < float("inf"):  # NaN is neither
        parser.error("--timeout must be above 0 and finite")
    if not secret:
        parser.error("no token: set MUSTER_JOIN_TOKEN or give --token-file")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        last = join(heads, port, secret, about(given.slots, given.address), given.timeout, say)
    except KeyboardInterrupt:
        return 1
    except (Rejected, Unreachable) as error:
        say("error: %s" % error)
        return 2 if getattr(error, "wrong_token", False) else 1
    say("registered as %s, one of %s" % (last.get("name"), last.get("members")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
