"""The two kinds of connection to an agent: a process's own streams, and a socket that the agent opened."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from muster.fleet.shell import Process


class PipeWire:
    """A process that belongs to one agent: ssh, or the agent itself. Nothing blocks, except `end`, for a
    moment.

    `input`: the descriptor that the agent reads; `output`, `errors`: those that it writes.
    """

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self.input = process.stdin.fileno()
        self.output = process.stdout.fileno()
        self.errors: int | None = process.stderr.fileno()
        for descriptor in (self.input, self.output, self.errors):
            os.set_blocking(descriptor, False)

    def hang_up(self) -> None:
        """Close the agent's input, which it takes as the end of its job."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def gone(self) -> bool:
        """Return whether the far side has left for good, as far as this side can know without reading."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Close the connection at once, and end a helper that a client may have started (ProxyCommand)."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(self._process.pid) == self._process.pid:
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def farewell(self) -> str:
        """Return how it ended, in words."""
        return f"the connection ended with exit code {self._process.poll()}"


class SocketWire:
    """A connection that the agent opened to this machine. Used as PipeWire is."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.input = self.output = connection.fileno()
        self.errors: int | None = None

    def hang_up(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def gone(self) -> bool:
        """Return whether the connection has ended: a socket reports nothing but the end of its output."""
        return True

    def end(self) -> None:
        self._connection.close()

    def farewell(self) -> str:
        return "the agent's connection closed"


Wire = PipeWire | SocketWire
