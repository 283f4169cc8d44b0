"""A job started by the real command line in a process of its own, for tests that interrupt it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import TINY, wait_until

PATIENCE = 120.0  # seconds until a job on a loaded machine has done its first steps
# Seconds within which nothing of a job may be left; beside other tests the machine is slower than that.
ENDED = 5.0 if "PYTEST_XDIST_WORKER" not in os.environ else 30.0
LONG = ["train.max_steps=100000", "measure.window=2", "engine.name=ddp", "engine.zero=0", "batch.micro=4"]


class Job:
    """`muster train` in a child process. A context manager: what is left of it is ended by id.

    `before`: a command that runs it, such as salloc.
    """

    def __init__(
        self,
        folder: Path,
        hosts: str,
        *overrides: str,
        recipe: str = "demo",
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        # The id tells its processes from those of a job of the same name beside it (pytest-xdist).
        folder = folder.with_name(f"{folder.name}-{os.getpid()}")
        self.run = RunFolder(folder)
        argv = [
            *before,
            sys.executable,
            "-m",
            "muster",
            "train",
            recipe,
            "--hosts",
            hosts,
            "--output",
            str(folder),
            "--json",
        ]
        self.process = subprocess.Popen(
            [*argv, *TINY, *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if env is None else dict(env),
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Inside, its ranks stand still, which takes nothing from others; what ends them would end them as it
        does afterwards. With `hang.seconds=off`."""
        ranks = [pid for pid in self.local_processes() if b"muster.worker" in self._words(pid)]
        try:
            for pid in ranks:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in ranks:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @staticmethod
    def _words(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it has ended
            return b""

    def goes_on(self) -> bool:
        """Whether it trains."""
        before = self.windows()
        return wait_until(lambda: self.windows() > before, 60)

    def windows(self) -> int:
        """Measured windows so far."""
        return sum(isinstance(event, events.Window) for event in events.read_events(self.run.events))

    def wait_for_steps(self, count: int = 1) -> None:
        """Until training is under way on every rank."""
        reached = wait_until(lambda: self.windows() >= count or self.process.poll() is not None, PATIENCE)
        assert reached and self.process.poll() is None, self.said()

    def said(self) -> str:
        """What the process printed, for a failing test's message."""
        if self.process.poll() is None:
            return "still running"
        out, err = self.process.communicate()
        return f"exit code {self.process.returncode}\n{out[-2000:]}\n{err[-2000:]}"

    def finish(self, seconds: float = 60) -> tuple[int, dict]:
        """Wait for the end: exit code and the document on stdout."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, json.loads(out) if out.strip() else {"stderr": err}

    def local_processes(self) -> list[int]:
        """Living processes of this machine that carry the job's token or id, but for the controller."""
        found = []
        for name in (entry.name for entry in Path("/proc").iterdir()):
            if not name.isdigit() or int(name) in (os.getpid(), self.process.pid):
                continue
            try:
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                known = (
                    Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
                )
            except OSError:
                continue
            if state not in "ZX" and self.run.id.encode() in known:
                found.append(int(name))
        return found

    def gone_within(self, seconds: float = ENDED) -> bool:
        """Whether nothing of the job is left on this machine soon enough."""
        began = time.monotonic()
        gone = wait_until(lambda: not self.local_processes(), seconds + 10)
        return gone and time.monotonic() - began <= seconds
