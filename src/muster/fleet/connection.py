"""A host's connection: JSON lines in both directions over a wire. Never blocks."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any

from muster.core.job import Placement
from muster.core.result import Failure
from muster.core.units import format_bytes
from muster.fleet.messages import Check, Kernel
from muster.fleet.transport import Wire

_CHUNK = 1 << 16
LONGEST = 1 << 24  # bytes of a line that is ours: an agent sends its ranks' lines in parts of 256 KiB
_NOISE = 1 << 16  # bytes of one that is not
# What ssh and srun say of every host, and is no trouble.
NOISE = ("Warning: Permanently added", "srun: cluster configuration lacks support for cpu binding")


class LineSplitter:
    """Splits bytes into whole lines as they arrive. Of a line longer than `most` only the beginning is kept,
    so that a long line costs no more time than its bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.overlong = False  # a line was too long
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`."""
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append(b"".join(self._parts))
            self._parts, self._size = [], 0
        self._add(rest)
        return lines

    def rest(self) -> bytes:
        """Return the beginning of a line whose end has not arrived."""
        return b"".join(self._parts)

    def _add(self, part: bytes) -> None:
        room = self.most - self._size
        self.overlong = self.overlong or len(part) > room
        if part and room > 0:
            self._parts.append(part[:room])
            self._size += len(self._parts[-1])


class Connection:
    """Turns bytes into messages, and messages into bytes. `heard`: when the host last sent anything.

    What is sent before there is a wire is queued.
    """

    def __init__(self, place: Placement, check: Check | None = None) -> None:
        self.place = place
        self._check = check  # what its messages must be
        self.wire: Wire | None = None
        self.begun: float | None = None  # when its launcher's process was started
        self.came: float | None = None  # when there was a connection
        self.greeted_at: float | None = None  # when the far side first said something of ours
        self.outgoing = bytearray()
        self.complaints: deque[str] = deque(maxlen=200)  # stderr
        self.noise: deque[str] = deque(maxlen=200)  # stdout that is not ours: what a login shell prints
        self.accused = False  # a process that starts many hosts complained about this one by name
        self.facts: dict[str, Any] | None = None
        self.verified: dict[str, Any] | None = None  # what it found when it read a checkpoint
        self.lacks: list[str] | None = None  # contents of files that it has not
        self.brought = False  # it has all files of the code
        self.problem: Failure | None = None  # what its agent could not do
        self.exit: tuple[int | None, str | None] | None = None
        self.culprit: tuple[int, int] | None = None  # the rank that ended badly first, its process id
        self.kernel = Kernel()
        self.lost: str | None = None
        self.heard = time.monotonic()
        self.output_closed = False
        self._input_closed = False
        self._lines = (LineSplitter(LONGEST), LineSplitter(_NOISE))  # output, errors

    @property
    def greeted(self) -> bool:
        """Whether the far side has sent a message of the protocol."""
        return self.greeted_at is not None

    def attach(self, wire: Wire) -> None:
        """Use this wire from now on."""
        self.wire = wire
        self.heard = self.came = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether no more messages will arrive."""
        return self.lost is not None or (self.wire is not None and self.output_closed and self.wire.gone())

    def send(self, data: bytes) -> None:
        """Queue bytes."""
        if not self._input_closed:
            self.outgoing += data

    def tell(self, op: str, **content: Any) -> None:
        """Queue a message."""
        self.send(json.dumps({"op": op, **content}).encode() + b"\n")

    @property
    def sending(self) -> bool:
        """Whether bytes are queued, and the connection still accepts them."""
        return bool(self.outgoing) and self.wire is not None and not self._input_closed

    def flush(self) -> None:
        """Write as much of the queue as the connection accepts now."""
        while self.wire is not None and self.outgoing and not self._input_closed:
            try:
                sent = os.write(self.wire.input, self.outgoing[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self.close_input()
                return
            del self.outgoing[:sent]

    def close_input(self) -> None:
        """Close the agent's input, which it takes as the end of its job."""
        if not self._input_closed:
            self._input_closed = True
            if self.wire is not None:
                self.wire.hang_up()

    def read(self, descriptor: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the messages that have arrived on `descriptor`, and whether it is still open.

        Lines that are no messages go to `noise` (output) and `complaints` (errors). A host that sends what no
        agent sends, or too much of it in one line, is given up.
        """
        assert self.wire is not None
        output = descriptor == self.wire.output
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        open_still = bool(data)
        if not data:
            self.output_closed = self.output_closed or output
            data = b"\n" if self._lines[not output].rest() else b""
        elif output:
            self.heard = time.monotonic()
        messages = []
        for line in self._lines[not output].feed(data):
            message = _message(line) if output else None
            if message is not None and self._is_ours(message):
                self.greeted_at = self.greeted_at or time.monotonic()
                messages.append(message)
            elif line.strip() and self.lost is None:
                text = line[:_NOISE].decode("utf-8", "replace").rstrip()
                (self.noise if output else self.complaints).append(text)
        if output and self.greeted and self._lines[0].overlong:
            self.give_up(
                f"it sent a line of more than {format_bytes(LONGEST)}, which no agent of Muster does"
            )
        return messages, open_still

    def _is_ours(self, message: dict[str, Any]) -> bool:
        """Return whether a JSON line is a message. Before the first one, it may be a login script's."""
        if self.lost is not None:
            return False
        try:
            if self._check is not None:
                self._check(self.place, message)
        except ValueError as error:
            if self.greeted or message["m"] == "hello":
                self.give_up(f"it sent what no agent of Muster sends ({error})")
            return False
        return True

    def give_up(self, why: str) -> None:
        """Declare the host lost."""
        self.lost = self.lost or why

    def why_unreachable(self) -> str:
        """Return why the host was given up, with the last line of its errors; or else how it ended."""
        words = [line for line in self.complaints if not line.startswith(NOISE)] or list(self.noise)
        if self.lost:
            return f"{self.lost} ({words[-1]})" if words and words[-1] not in self.lost else self.lost
        if words:
            return words[-1]
        return self.wire.farewell() if self.wire is not None else "its agent never came"


def _message(line: bytes) -> dict[str, Any] | None:
    if line.startswith(b"{"):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if isinstance(message, dict) and isinstance(message.get("m"), str):
            return message
    return None
