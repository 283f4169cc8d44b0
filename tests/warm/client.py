"""The shadow of a fork: `python3 -IS client.py SOCKET PROGRAM -m MODULE ARGUMENTS...`

Run by path, standard library alone, and quick. It hands its files, environment and folder to the server and
ends as the fork does. Where the server does not take the request, PROGRAM is started anew in its place.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

FILES = ("MUSTER_RENDEZVOUS",)  # variables that hold the number of an open file
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # sent to the fork as well, which decides


def main() -> None:
    """Ask; wait for the end."""
    path, program, *argv = sys.argv[1:]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asked.connect(path)
        ask(asked, [program, *argv])
        taken = asked.recv(1) == b"+"
    except OSError:
        taken = False
    if not taken:
        for number, handler in before.items():
            signal.signal(number, handler)
        asked.close()
        os.execv(sys.executable, [program, *argv])
    said = b""
    while part := asked.recv(64):
        said += part
    kind, _, number = said.decode().partition(" ")
    if kind == "exit":
        os._exit(int(number))
    end_by(int(number) if kind == "signal" else signal.SIGKILL)


def ask(server: socket.socket, argv: list[str]) -> None:
    """Everything that makes a process what it is to whoever started it."""
    request = {
        "argv": argv,
        "env": {os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items()},
        "cwd": os.getcwd(),
        "umask": os.umask(0o022),
        "affinity": sorted(os.sched_getaffinity(0)),
    }
    os.umask(request["umask"])
    text = json.dumps(request).encode()
    more = [int(request["env"][name]) for name in FILES if name in request["env"]]
    socket.send_fds(server, [struct.pack("!I", len(text))], [0, 1, 2, *more])
    server.sendall(text)


def end_by(number: int) -> None:
    """End by a signal, as the fork did."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
