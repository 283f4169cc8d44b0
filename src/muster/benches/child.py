"""One job of a bench: `muster train` in a separate process, so that its failure stays its own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from muster.benches.document import JobRecord
from muster.benches.schedule import Task
from muster.core.errors import RunFolderError
from muster.core.result import Result
from muster.core.state import JobEnd, State
from muster.fleet.shell import Process
from muster.runs.recorder import machine_id
from muster.store.runfolder import RunFolder

ASKED = 30.0  # seconds after SIGINT, in which a job stops cleanly on all its hosts; then SIGTERM
TOLD = 5.0  # seconds after SIGTERM; then SIGKILL, upon which the agents end their ranks by themselves
_KEPT = 1 << 20  # bytes of standard output that are kept: a result has some KB
_SAMPLE = 0.5  # seconds between the first two samples of what it uses; then a twentieth of its age


@dataclass
class Child:
    """A running job. `read` and `tick` are called a few times a second."""

    task: Task
    process: Process
    run: RunFolder
    log: IO[bytes]
    started: float = field(default_factory=time.time)
    begun: float = field(default_factory=time.monotonic)
    words: str = ""  # its last line of progress, until it is asked to end
    out: bytearray = field(default_factory=bytearray)
    stopped: str | None = None  # why it was asked to end
    timed_out: str | None = None  # why it was ended for want of time
    late: bool = False  # that was because jobs alike take a fraction of it
    used: list[tuple[float, float]] = field(default_factory=list)  # when, core-seconds by then
    _sampled: float = field(default=0.0, init=False)
    _rest: bytes = field(default=b"", init=False)
    # When, and which signal, if it is not gone by then.
    _next: tuple[float, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.used.append((self.started, 0.0))
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def pipes(self) -> list[IO[bytes]]:
        """The pipes that it writes to."""
        return [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe is not None]

    def read(self, pipe: IO[bytes]) -> bool:
        """Read what is there. Return False at the end."""
        while True:
            try:
                data = os.read(pipe.fileno(), 65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            if pipe is self.process.stdout:
                self.out = (self.out + data)[-_KEPT:]
            else:
                self._note(data)

    def _note(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk: the job goes on
            self.log.write(data)
            self.log.flush()
        lines = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()[-4096:]
        printed = [line.strip() for line in lines if line.strip()]
        if printed and self.stopped is None:
            self.words = printed[-1].decode("utf-8", "replace")[:200]

    def stop(self, why: str) -> None:
        """Ask it to end cleanly; `tick` makes sure that it does."""
        if self.stopped is None and self.process.poll() is None:
            self.stopped = why
            self.process.send_signal(signal.SIGINT)
            self._next = (time.monotonic() + ASKED, signal.SIGTERM)

    def time_out(self, why: str, *, late: bool = False) -> None:
        """End it for want of time, and record why."""
        if self.stopped is None:
            self.timed_out, self.late = why, late
            self.stop(why)

    def tick(self) -> None:
        """Check the clock: what it uses, a timeout, and ends that were asked for and did not come."""
        now = time.monotonic()
        if now > self._sampled:
            self._sampled = now + max(_SAMPLE, (now - self.begun) / 20)
            seconds = processor_seconds(self.process.pid)
            self.used += [(time.time(), seconds)] if seconds is not None else []
        if now - self.begun > self.task.timeout:
            self.time_out(f"timeout: not over after {self.task.timeout:g} s")
        if self._next and now > self._next[0] and self.process.poll() is None:
            last = self._next[1] == signal.SIGTERM
            self.process.send_signal(self._next[1])
            self._next = (now + TOLD, signal.SIGKILL) if last else None

    def kill(self) -> None:
        """Kill it: nothing of the bench may stay behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Close its pipes."""
        for pipe in (*self.pipes, self.log):
            with suppress(OSError):
                pipe.close()


def processor_seconds(pid: int) -> float | None:
    """Return the processor seconds of the process itself, without what it started (proc(5)); None: it is
    gone, or this is not Linux."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def finished(child: Child, run: str) -> JobRecord | None:
    """Return the record of a process that has ended. None: it was stopped by the user, so the job is not
    over.

    `run`: the run folder's path in the bench's.
    """
    code = child.process.poll()
    assert code is not None
    result, damaged = _result(child.run)
    if child.stopped and not child.timed_out and not (result and result.status.good):
        return None
    outcome: JobEnd = State.FAILED
    facts: dict[str, Any]
    if result is not None and result.status.good:
        outcome, facts = State.SUCCEEDED, {}
    elif child.timed_out or (result is not None and result.status is State.TIMEOUT):
        outcome, facts = State.TIMEOUT, _late(child, result)
    elif result is not None:
        facts = _of_result(result)
    else:
        facts = _of_words(child, code, damaged)
    return JobRecord(
        **child.task.row,
        outcome=outcome,
        run=run,
        started=child.started,
        ended=time.time(),
        exit_code=code,
        cut=outcome is State.TIMEOUT and child.late,
        devices=devices_of(child.run, result),
        result=result,
        machine=machine_id(),
        controller_use=child.used,
        **facts,
    )


def adopted(task: Task, folder: RunFolder, run: str) -> JobRecord | None:
    """Return the record of a job that ended well while no bench watched it. None: it did not."""
    result, _ = _result(folder)
    if result is None or not result.status.good:
        return None
    return JobRecord(
        **task.row,
        outcome=State.SUCCEEDED,
        run=run,
        started=result.started,
        ended=result.ended,
        devices=devices_of(folder, result),
        result=result,
    )


def devices_of(run: RunFolder, result: Result | None) -> dict[str, str]:
    """Return the device of each host's ranks: only like is compared with like."""
    if result is None:
        return {}
    on_gpus = True
    with suppress(RunFolderError):
        on_gpus = run.read_json(run.job).get("device") != "cpu"
    devices = {}
    for each in result.hosts:
        gpus = each.facts.get("gpus") or []
        names = sorted({str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)})
        cores = each.facts.get("cores")
        devices[each.host] = ", ".join(names) if names and on_gpus else f"cpu, {cores} cores"
    return devices


def _result(run: RunFolder) -> tuple[Result | None, str | None]:
    """Return its result, or what is wrong with the file."""
    try:
        return run.read_result(), None
    except RunFolderError as error:
        return None, str(error)


def _late(child: Child, result: Result | None) -> dict[str, Any]:
    """Return the progress of a job that did not end in time."""
    steps = f"after {result.steps} steps" if result is not None and result.steps else None
    stood = steps or (f"it had said: {child.words}" if child.words else "it had said nothing")
    why = child.timed_out or f"timeout: not over after {child.task.timeout:g} s"
    return {"reason": f"{why}; {stood}"}


def _of_result(result: Result) -> dict[str, Any]:
    failure = result.failure
    if failure is None:
        return {"reason": result.status}
    what = f"{failure.where}: {failure.what}" if failure.where else failure.what
    usage = failure.usage or result.status is State.STOPPED
    facts = {"reason": what, "hint": failure.hint, "failed_host": failure.host, "failure": failure.id}
    return {**facts, "usage": usage}


def _of_words(child: Child, code: int, damaged: str | None) -> dict[str, Any]:
    """Return what a job without a result printed, or how it ended."""
    try:
        error = json.loads(bytes(child.out))["error"]
        host = error.get("host") if error.get("host") in child.task.hosts else None
        usage = code == 2 and host is None
        facts = {"reason": error["message"], "hint": error["hint"], "failure": error.get("id")}
        return {**facts, "failed_host": host, "usage": usage}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    if damaged:
        return {"reason": damaged}
    if code < 0:
        name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else str(-code)
        return {"reason": f"muster train was ended by {name}", "hint": child.words or None}
    return {"reason": f"muster train ended with exit code {code}", "hint": child.words or None}
