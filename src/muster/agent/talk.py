"""The connection to the controller: JSON lines on descriptors 0 and 1, never waiting for the other side."""

from __future__ import annotations

import collections
import errno
import json
import os
import select
import signal
import time

# What every host imports before it answers is kept short: the rest is imported where it is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Sequence

TICK = 0.1  # seconds between two looks at what ranks write, where there is more to be read
# Bytes waiting to be sent above which files are not read further: they keep what is unsent.
OUT_LIMIT = 1 << 20


class Problem(Exception):
    """An error that the user can fix: what, a hint, and its id in the table of failures."""

    def __init__(self, what: str, hint: Optional[str] = None, failure: Optional[str] = None) -> None:
        super().__init__(what)
        self.hint, self.failure = hint, failure


class Channel:
    """Messages to and from the controller."""

    def __init__(self) -> None:
        self.inbox = b""
        self.outbox: Deque[bytes] = collections.deque()
        self.out_bytes = 0
        self.posts: Deque[Dict[str, Any]] = collections.deque()  # by threads, to be said
        self.wakes = []  # type: List[int]  # a pipe: a child that ended, a signal, or a thread writes to it
        self.heard = time.monotonic()
        self.mute = False  # nothing can be sent any more
        self.closed = None  # type: Optional[str]  # which side of it is

    def open(self) -> None:
        """Open the channel, which never waits for the other side; children that end interrupt a wait."""
        os.set_blocking(1, False)
        self.outbox.append(b"\n")  # ends whatever a login script printed without one
        self.out_bytes += 1
        self.make_wakes()
        signal.set_wakeup_fd(self.wakes[1], warn_on_full_buffer=False)

    def make_wakes(self) -> None:
        """Have `wake` interrupt a wait."""
        self.wakes = list(os.pipe())
        for end in self.wakes:
            os.set_blocking(end, False)

    def wake(self) -> None:
        if self.wakes:
            os.write(self.wakes[1], b"\0")

    def say(self, message: str, **content: Any) -> None:
        content["m"] = message
        line = json.dumps(content).encode() + b"\n"
        self.outbox.append(line)
        self.out_bytes += len(line)

    def flush(self) -> None:
        """Send what the other side accepts now; never wait for it: a cut link must not stop the clock."""
        while self.outbox and not self.mute:
            line = self.outbox[0]
            try:
                sent = os.write(1, line)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR):
                    self.mute = True
                    self.closed = self.closed or "output closed"
                return
            self.out_bytes -= sent
            if sent < len(line):
                self.outbox[0] = line[sent:]
                return
            self.outbox.popleft()

    def listen(self, seconds: float) -> List[Dict[str, Any]]:
        """Return messages that have arrived, after waiting for at most `seconds`, or until a child ends."""
        if 0 in self.wait(seconds, [0], [1] if self.outbox and not self.mute else []):
            try:
                data = os.read(0, 1 << 16)
            except (BlockingIOError, InterruptedError):
                return []
            except OSError:
                data = b""
            if not data:
                self.closed = self.closed or "input closed"
                return []
            self.inbox += data
            self.heard = time.monotonic()
            if b"\n" not in data:
                return []
        lines = self.inbox.split(b"\n")
        self.inbox = lines.pop()
        return [json.loads(line) for line in lines if line.strip()]

    def wait(self, seconds: float, read: Sequence[int] = (), write: Sequence[int] = ()) -> List[int]:
        """Wait until one of these can be read or written, something wakes this process, or the time is over.
        Return which can be read."""
        try:
            ready = select.select([*read, *self.wakes[:1]], write, [], seconds)[0]
        except OSError:
            return []
        if self.wakes and self.wakes[0] in ready:
            os.read(self.wakes[0], 1 << 12)
        return ready

    def post(self, message: str, **content: Any) -> None:
        """Send a message from another thread."""
        self.posts.append(dict(content, message=message))
        self.wake()

    def say_posts(self) -> None:
        while self.posts:
            self.say(**self.posts.popleft())

    def send_all(self, seconds: float) -> None:
        """Send what is queued, for at most so many seconds."""
        limit = time.monotonic() + seconds
        while self.outbox and not self.mute and time.monotonic() < limit:
            self.flush()
            if self.outbox:
                select.select([], [1], [], TICK)
