"""Follow a run that another process controls, on any machine, until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from muster.core.errors import JobError, RunFolderError
from muster.core.job import Job, read_job
from muster.core.result import Result
from muster.core.state import State
from muster.fleet.interrupts import interrupts
from muster.runs.recorder import Watcher
from muster.runs.slurm_queue import (
    QueueState,
    cancel,
    ended_without_result,
    is_submitted,
    waits,
    whereabouts,
)
from muster.runs.train import ignore
from muster.store import events
from muster.store.runfolder import RunFolder

_LOOK = 0.3  # seconds between two looks at the run folder
_ASK = 5.0  # seconds between two questions to Slurm
_SILENCE = 300.0  # seconds that Slurm may be away: its controller restarts, and the job goes on
_LATE = 30.0  # seconds in which the last files of a job that is over may still appear on a shared disk


class EventTail:
    """The whole lines that were appended to events.jsonl."""

    def __init__(self, run: RunFolder) -> None:
        self._path = run.events
        self._offset = 0

    def read(self) -> list[events.Event]:
        """Return the events since the last call; lines of another version are left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        fresh = []
        for line in data[:end].decode("utf-8", "replace").split("\n"):
            try:
                fresh += [events.parse_event(line)] if line.strip() else []
            except ValueError:
                continue
        return fresh


def follow(
    run: RunFolder,
    *,
    watch: Watcher = ignore,
    announce: Callable[[Job], None] = ignore,
    say: Callable[[str], None] = ignore,
    stops: bool = False,
) -> Result | None:
    """Show the run's events as they arrive, until it has its result.

    `stops`: Ctrl-C stops the job; otherwise it ends the following alone, and None is returned. `say` gets
    changes in the queue. Raises JobError where the job is over without a result, and RunFolderError where no
    controller runs it.
    """
    tail = EventTail(run)
    announced = False
    queue = _Queue(run, say) if is_submitted(run) else None
    with interrupts() as wish:
        while True:
            if not announced and run.job.exists():
                job = read_job(run.read_json(run.job))
                announced = True
                if job is not None:
                    announce(job)
            for event in tail.read() if announced else []:
                watch(event)
            result = run.read_result()
            if result is not None and (result.status.good or queue is None or queue.over()):
                for event in tail.read():
                    watch(event)
                return result
            if wish.stop and not stops:
                return None
            if wish.stop:
                wish.stop = None
                if waits(run):
                    cancel(run)
                    raise JobError("cancelled while it waited for Slurm", where=run.id)
                say("stopping ...")
                run.stop_request.touch()
            if result is None and queue is not None:
                queue.look()
            elif result is None and run.state() is State.INTERRUPTED:
                raise RunFolderError(
                    "has no result, and no controller supervises it",
                    where=run.id,
                    hint=f"`muster resume {run.word}`",
                )
            time.sleep(_LOOK)


class _Queue:
    """Slurm's view of the run, asked for from time to time."""

    def __init__(self, run: RunFolder, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._asked: float | None = None
        self._state: QueueState | None = None
        self._silent_since: float | None = None
        self._words: str | None = None
        self._over_since: float | None = None

    def over(self) -> bool:
        """Return whether Slurm will not start the job again: a requeued job continues with what it left.
        Where Slurm does not answer, what the job left counts as its end."""
        about = self._about()
        return about is None or self._silent_since is not None or about.over

    def look(self) -> None:
        """Ask Slurm. Raises JobError where the job has been over for a while, or Slurm has not answered for
        long."""
        about = self._about()
        now = time.monotonic()
        if about is None or not about.over:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now
        elif now - self._over_since > _LATE or about.state == "CANCELLED":
            raise ended_without_result(self._run, about)

    def _about(self) -> QueueState | None:
        now = time.monotonic()
        if self._asked is not None and now - self._asked < _ASK:
            return self._state
        self._asked = now
        try:
            self._state = whereabouts(self._run)
            self._silent_since = None
            self._tell(str(self._state))
        except JobError as error:
            self._silent_since = self._silent_since or now
            if now - self._silent_since > _SILENCE:
                raise
            self._tell(f"Slurm does not answer ({error}); the job is not touched by that")
        return self._state

    def _tell(self, text: str) -> None:
        if text != self._words:
            self._words = text
            self._say(text)
