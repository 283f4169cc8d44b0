"""One host's connection: JSON lines in both directions over a wire. Never blocks."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any

from muster.core.job import Placement
from muster.supervise.wires import Wire

_CHUNK = 1 << 16
_LONGEST = 1 << 26  # bytes of a line
NOISE = ("Warning: Permanently added",)


class Link:
    """Bytes in, messages out; and the other way round. `heard` is when the host last said anything.

    What is sent before there is a wire waits for it.
    """

    def __init__(self, place: Placement) -> None:
        self.place = place
        self.wire: Wire | None = None
        self.begun: float | None = None  # when its launcher's process was started
        self.came: float | None = None  # when there was a connection
        self.greeted = False  # the far side has said something of ours
        self.outgoing = bytearray()
        self.complaints: deque[str] = deque(maxlen=200)  # stderr
        self.noise: deque[str] = deque(maxlen=200)  # stdout that is not ours: what a login shell prints
        self.accused = False  # a process that starts many hosts complained about this one by name
        self.facts: dict[str, Any] | None = None
        self.verified: dict[str, Any] | None = None  # what it found when it read a checkpoint
        self.problem: tuple[str, str | None] | None = None
        self.exit: tuple[int | None, str | None] | None = None
        self.lost: str | None = None
        self.heard = time.monotonic()
        self.output_closed = False
        self._input_closed = False
        self._partial: dict[int, bytes] = {}

    def attach(self, wire: Wire) -> None:
        """The connection is there."""
        self.wire = wire
        self.heard = self.came = time.monotonic()

    @property
    def ended(self) -> bool:
        """No more messages will come."""
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
        """Something is queued, and the connection still takes it."""
        return bool(self.outgoing) and self.wire is not None and not self._input_closed

    def flush(self) -> None:
        """Hand over what the connection takes now."""
        while self.wire is not None and self.outgoing and not self._input_closed:
            try:
                sent = os.write(self.wire.input, self.outgoing[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self.close_input()
                return
            del self.outgoing[:sent]

    @property
    def wants_room(self) -> bool:
        """Whether something waits for the connection to take it."""
        return bool(self.outgoing) and self.wire is not None and not self._input_closed and self.lost is None

    def close_input(self) -> None:
        """The agent takes a closed input as the end of its job."""
        if not self._input_closed:
            self._input_closed = True
            if self.wire is not None:
                self.wire.hang_up()

    def read(self, descriptor: int) -> tuple[list[dict[str, Any]], bool]:
        """-> (messages that have come on `descriptor`, whether it is still open).

        Lines that are no messages go to `noise` (output) and `complaints` (errors).
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
            data = b"\n" if self._partial.get(descriptor) else b""
        elif output:
            self.heard = time.monotonic()
        *lines, rest = (self._partial.get(descriptor, b"") + data).split(b"\n")
        if len(rest) > _LONGEST:  # not ours, and it may go on for ever
            lines, rest = [*lines, rest[:_CHUNK]], b""
        self._partial[descriptor] = rest
        messages = []
        for line in lines:
            message = _message(line) if output else None
            if message is not None:
                self.greeted = True
                messages.append(message)
            elif line.strip():
                text = line.decode("utf-8", "replace").rstrip()
                (self.noise if output else self.complaints).append(text)
        return messages, open_still

    def give_up(self, why: str) -> None:
        """Declare the host lost."""
        self.lost = self.lost or why

    def why_unreachable(self) -> str:
        """Why it was given up, and the last thing that was complained about; or how it ended."""
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
        if isinstance(message, dict) and "m" in message:
            return message
    return None
