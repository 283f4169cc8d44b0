"""One host's connection: the launcher's process, and JSON lines in both directions. Never blocks."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any

from muster.core.job import Placement
from muster.shell import Process

_CHUNK = 1 << 16


class Link:
    """Bytes in, messages out; and the other way round. `heard` is when the host last said anything."""

    def __init__(self, place: Placement, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.place = place
        self.process = process
        self.input = process.stdin.fileno()
        self.output = process.stdout.fileno()
        self.errors = process.stderr.fileno()
        for descriptor in (self.input, self.output, self.errors):
            os.set_blocking(descriptor, False)
        self.outgoing = bytearray()
        self.closed: set[int] = set()
        self.complaints: deque[str] = deque(maxlen=200)  # stderr, and stdout that is not ours (login noise)
        self.facts: dict[str, Any] | None = None
        self.problem: tuple[str, str | None] | None = None
        self.exit: tuple[int | None, str | None] | None = None
        self.lost: str | None = None
        self.heard = time.monotonic()
        self._partial: dict[int, bytes] = {}

    @property
    def ended(self) -> bool:
        """No more messages will come."""
        return self.lost is not None or (self.output in self.closed and self.process.poll() is not None)

    def send(self, data: bytes) -> None:
        """Queue bytes."""
        if self.input not in self.closed:
            self.outgoing += data

    def tell(self, op: str, **content: Any) -> None:
        """Queue a message."""
        self.send(json.dumps({"op": op, **content}).encode() + b"\n")

    def flush(self) -> None:
        """Hand over what the pipe takes now."""
        while self.outgoing and self.input not in self.closed:
            try:
                sent = os.write(self.input, self.outgoing[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self.close_input()
                return
            del self.outgoing[:sent]

    def close_input(self) -> None:
        """The agent takes a closed input as the end of its job."""
        if self.input not in self.closed:
            self.closed.add(self.input)
            assert self.process.stdin
            try:
                self.process.stdin.close()
            except OSError:
                pass

    def read(self, descriptor: int) -> list[dict[str, Any]]:
        """Messages that have come on `descriptor`; lines that are none go to `complaints`."""
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed.add(descriptor)
            data = b"\n" if self._partial.get(descriptor) else b""
        elif descriptor == self.output:
            self.heard = time.monotonic()
        *lines, rest = (self._partial.get(descriptor, b"") + data).split(b"\n")
        self._partial[descriptor] = rest
        messages = []
        for line in lines:
            message = _message(line) if descriptor == self.output else None
            if message is not None:
                messages.append(message)
            elif line.strip():
                self.complaints.append(line.decode("utf-8", "replace").rstrip())
        return messages

    def give_up(self, why: str) -> None:
        """Declare the host lost; end our own side of the connection."""
        self.lost = self.lost or why
        self.close_input()
        if self.process.poll() is None:
            self.process.kill()

    def why_unreachable(self) -> str:
        """The last thing the connection complained about, or how it ended."""
        if self.lost:
            return self.lost
        words = [line for line in self.complaints if not line.startswith("Warning: Permanently added")]
        if words:
            return words[-1]
        return f"the connection ended with exit code {self.process.poll()}"


def _message(line: bytes) -> dict[str, Any] | None:
    if line.startswith(b"{"):
        try:
            message = json.loads(line)
        except ValueError:
            return None
        if isinstance(message, dict) and "m" in message:
            return message
    return None
