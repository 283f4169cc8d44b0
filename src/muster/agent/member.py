"""Registers this machine with a head that runs `muster gather`, and waits until all have come.

    MUSTER_JOIN_TOKEN=... python3 THIS_FILE HEAD[,HEAD...]:PORT

One file, standard library alone, Python >= 3.8, imports nothing of Muster: `muster join --script` prints it
for machines that have no Muster. The token is never sent: each side proves that it knows it
(muster/fleet/handshake.py). Exit codes: 0 everybody is there, 1 it came to nothing, 2 bad input or another
token.
"""

from __future__ import annotations

import argparse
import getpass
import glob
import hashlib
import hmac
import ipaddress
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

MAX_LINE = 4096  # bytes of a line, its end included
BEAT = 3.0  # seconds between two signs of life
SILENCE = 30.0  # seconds after which a head that says nothing is given up, and tried again
HEARD = b"+"  # what a machine answers to "done"; a sign of life is another byte
CONNECT = 3.0  # seconds for a connection: a head may have addresses that do not lead there from here
ANSWER = 10.0  # seconds for a head to answer on it
WORTH_RETRYING = ("crowded", "slow")  # a head's reasons not to let a machine in that pass


class Rejected(Exception):
    """The head does not want this machine. `wrong_token`: it has another token."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.wrong_token = why == "wrong secret"


class NotYet(Exception):
    """The head cannot use this machine as it is now."""


class Unreachable(Exception):
    """No head has answered, or none has said that all are there, in time."""


# ---- the handshake -----------------------------------------------------------------------------------------
# Agents that dial a controller bring this part as well: fleet/launchers/base.py.


def proof(secret: str, side: str, nonce: str, said: bytes) -> bytes:
    """What shows that `side` (client or server) knows the secret."""
    return (
        hmac.new(secret.encode(), ("%s %s " % (side, nonce)).encode() + said, hashlib.sha256)
        .hexdigest()
        .encode()
    )


def read_line(sock: socket.socket) -> bytes:
    """One line, and not a byte more: what follows may be another's to read. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        seen = sock.recv(MAX_LINE - len(line), socket.MSG_PEEK)
        if not seen:
            raise OSError("the other side closed the connection")
        line += sock.recv(seen.find(b"\n") + 1 or len(seen))
    return line[:-1]


class Line:
    """A connection to a server that has proven that it knows the secret."""

    def __init__(self, sock: socket.socket, secret: str, nonce: str) -> None:
        self.socket, self.secret, self.nonce = sock, secret, nonce
        self.count = 0

    def read(self) -> Dict[str, Any]:
        """The next thing that the server says, proven. Raises OSError: closed, silent, or somebody else."""
        line = read_line(self.socket)
        if line.startswith(b"refused "):
            raise Rejected(printable(line[8:]))
        given, _, said = line.partition(b" ")
        if not hmac.compare_digest(given, proof(self.secret, "server", self.nonce, said)):
            raise OSError("the program there does not know the secret")
        message = json.loads(said.decode())
        if message.get("count", 0) != self.count:  # said before, by somebody who has listened
            raise OSError("the program there repeats messages")
        self.count += 1
        return message  # type: ignore[no-any-return]

    def close(self) -> None:
        self.socket.close()


def knock(
    address: str, port: int, secret: str, payload: Dict[str, Any], timeout: float
) -> Tuple[Line, Dict[str, Any]]:
    """Connect, prove the secret both ways -> (the connection, what the server answered).

    Raises Rejected (the server says no) and OSError (nobody there, or not one that knows the secret).
    """
    sock = socket.create_connection((address, port), min(timeout, CONNECT))
    try:
        sock.settimeout(timeout)
        word, _, nonce = read_line(sock).decode("latin-1").strip().partition(" ")
        if word != "muster1" or len(nonce) != 32 or nonce.strip("0123456789abcdef"):
            raise OSError("the program there is not Muster")
        mine = os.urandom(16).hex()
        said = json.dumps(dict(payload, nonce=mine), separators=(",", ":")).encode()
        line = Line(sock, secret, mine)
        sock.sendall(proof(secret, "client", nonce, said) + b" " + said + b"\n")
        return line, line.read()
    except BaseException:
        sock.close()
        raise


def printable(said: bytes) -> str:
    """A stranger's words, harmless for a terminal."""
    return "".join(
        letter if letter.isprintable() else "?" for letter in said[:200].decode("utf-8", "replace")
    )


# ---- what there is to tell ---------------------------------------------------------------------------------


def own_addresses() -> List[str]:
    """This machine's addresses but for loopback and link-local ones; the one that leads out comes first."""
    found = []  # type: List[str]
    for target in ("192.0.2.1", "2001:db8::1"):  # for documentation: nothing is sent there
        try:
            with socket.socket(
                socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM
            ) as probe:
                probe.connect((target, 9))
                found.append(probe.getsockname()[0])
        except OSError:
            pass
    last = ""
    for line in lines_of("/proc/net/fib_trie"):
        if "|--" in line:
            last = line.split()[-1]
        elif "/32 host LOCAL" in line:
            found.append(last)
    for line in lines_of("/proc/net/if_inet6"):
        found.append(str(ipaddress.IPv6Address(int(line.split()[0], 16))))
    unique = list(dict.fromkeys(found))
    return [text for text in unique if not is_useless(ipaddress.ip_address(text))]


def is_useless(address: Any) -> bool:
    """Whether no other machine can use it."""
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
    """What a program prints; nothing where it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def login() -> str:
    """Who runs this; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "root" if os.getuid() == 0 else str(os.getuid())


def gpu_count() -> int:
    """GPUs that nvidia-smi lists, or that have a device file."""
    listed = [line for line in output_of(["nvidia-smi", "-L"]).splitlines() if line.startswith("GPU ")]
    return len(listed) or len(glob.glob("/dev/nvidia[0-9]*"))


def host_keys(port: int) -> List[str]:
    """`TYPE KEY` of the sshd on this machine: as it shows them, or else from its usual files."""
    found = []  # type: List[List[str]]
    for each in dict.fromkeys([port, 22]):  # from outside, a container's port may have another number
        text = "" if found else output_of(["ssh-keyscan", "-T", "5", "-p", str(each), "127.0.0.1"])
        found += [line.split()[1:3] for line in text.splitlines() if not line.startswith("#")]
    if not found:
        for path in glob.glob("/etc/ssh/ssh_host_*_key.pub"):
            found += [line.split()[:2] for line in lines_of(path)]
    order = ["ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"]
    known = sorted(
        (words for words in found if len(words) == 2 and words[0] in order), key=lambda w: order.index(w[0])
    )
    return list(dict.fromkeys(" ".join(words) for words in known))


def about(slots: Optional[int], ssh_port: int, user: Optional[str], addresses: List[str]) -> Dict[str, Any]:
    """What this machine tells the head. `addresses`: those given by hand, which then are the only ones."""
    told = {
        "name": socket.gethostname(),
        "wants": "join",
        "addresses": (addresses or own_addresses())[:16],
        "by_hand": bool(addresses),
        "port": ssh_port,
        "user": user or login(),
        "slots": slots or gpu_count() or 1,
        "keys": host_keys(ssh_port),
    }  # type: Dict[str, Any]
    while told["keys"] and len(json.dumps(told)) > MAX_LINE - 200:
        told["keys"].pop()
    return told


# ---- joining -----------------------------------------------------------------------------------------------


def parse_heads(text: str) -> Tuple[List[str], int]:
    """`10.0.0.1,head:7000` -> (["10.0.0.1", "head"], 7000). IPv6 in brackets. Raises ValueError."""
    names, _, port = text.rpartition(":")
    heads = [name.strip("[]") for name in names.split(",") if name.strip("[]")]
    if not heads or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("%r is not HEAD:PORT" % text)
    return heads, int(port)


def join(
    heads: List[str],
    port: int,
    secret: str,
    tell: Callable[[], Dict[str, Any]],
    timeout: float,
    say: Callable[[str], None],
) -> Dict[str, Any]:
    """Register, and wait until the head says that all are there -> its last words (`name`, `members`).

    `tell` gives what to say; it is asked again where the head could not use it. Raises Rejected and
    Unreachable (see there).
    """
    deadline = time.monotonic() + timeout
    facts = None  # type: Optional[Dict[str, Any]]
    said, why = "", "no answer"
    while time.monotonic() < deadline:
        facts = facts or tell()  # before the connection, for it may take longer than a head waits
        for head in heads:
            try:
                line, reply = knock(head, port, secret, facts, min(ANSWER, remaining(deadline)))
                facts = None
                try:
                    return wait(line, reply, deadline, say)
                finally:
                    line.close()
            except Rejected as error:
                if str(error) not in WORTH_RETRYING:
                    raise
                why = "%s: the head says: %s" % (head, error)
            except NotYet as error:
                why = str(error)
            except (OSError, ValueError) as error:
                why = "%s port %d: %s" % (head, port, error)
            if why != said:
                say(why + "; trying again")
                said = why
            if facts is None:
                break
        # Not all at once, where a thousand machines start in the same second.
        pause = random.uniform(0.5, 2.0) * (1 if facts else 2)
        time.sleep(min(pause, remaining(deadline)))
    raise Unreachable("not done after %g s; last: %s" % (timeout, why))


def remaining(deadline: float) -> float:
    """Seconds until then, and never none."""
    return max(0.05, deadline - time.monotonic())


def wait(line: Line, message: Dict[str, Any], deadline: float, say: Callable[[str], None]) -> Dict[str, Any]:
    """Until the head's last word. Raises NotYet and OSError where it is worth trying again."""
    heard, said = time.monotonic(), None
    line.socket.settimeout(ANSWER)
    while True:
        kind = message.get("op")
        if kind == "done":
            acknowledge(line)
            return message
        if kind == "closed":
            raise Rejected(str(message.get("why")))
        if kind == "again":
            raise NotYet(str(message.get("why")))
        if message.get("say", said) != said:
            said = message["say"]
            say(str(said))
        while True:
            now = time.monotonic()
            if now > deadline:
                raise OSError("not all machines have come yet")
            if now > heard + SILENCE:
                raise OSError("the head no longer responds")
            try:
                line.socket.sendall(b".")
            except OSError:  # it has hung up: its last words may still be there to be read
                pass
            if select.select([line.socket], [], [], min(BEAT, remaining(deadline)))[0]:
                break
        message = line.read()
        heard = time.monotonic()


def acknowledge(line: Line) -> None:
    """Tell the head that its last word has come. A head that has ended does not need it."""
    try:
        line.socket.sendall(HEARD)
        line.socket.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def main(argv: List[str]) -> int:
    """The script's own command line."""
    parser = argparse.ArgumentParser(prog="join", description="Register this machine with `muster gather`.")
    parser.add_argument("head", help="HEAD[,HEAD...]:PORT")
    parser.add_argument("--token-file", help="default: the environment's MUSTER_JOIN_TOKEN")
    parser.add_argument("--slots", type=int, help="ranks on this machine; default: its GPUs, or 1")
    parser.add_argument("--ssh-port", type=int, default=22)
    parser.add_argument("--user", help="user name for logins to this machine; default: yours")
    parser.add_argument(
        "--address", action="append", default=[], help="how to reach this machine; default: found out"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds in all")
    given = parser.parse_args(argv)
    try:
        heads, port = parse_heads(given.head)
        if given.token_file:
            with open(given.token_file) as file:
                secret = file.read().strip()
        else:
            secret = os.environ.get("MUSTER_JOIN_TOKEN", "").strip()
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
        last = join(
            heads,
            port,
            secret,
            lambda: about(given.slots, given.ssh_port, given.user, given.address),
            given.timeout,
            say,
        )
    except KeyboardInterrupt:
        return 1
    except (Rejected, Unreachable) as error:
        say("error: %s" % error)
        return 2 if getattr(error, "wrong_token", False) else 1
    say("registered as %s, one of %s" % (last.get("name"), last.get("members")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
