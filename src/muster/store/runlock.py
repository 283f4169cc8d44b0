"""Which process controls a run: a lock for this machine, and signs of life for others."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from muster.core.errors import RunFolderError, refused
from muster.store.atomic import write_json

STALE = 60.0  # seconds after which a controller on another machine counts as gone
SIGN_OF_LIFE = 5.0


@dataclass
class Claim:
    """A run that this process controls. A context manager; `touch` shows other machines that it is still
    held."""

    lock: IO[str]
    sign: Path
    touched: float = 0.0

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # other machines see no lock: to them an old sign is the end
            os.utime(self.sign, (0, 0))
        self.lock.close()

    def touch(self) -> None:
        """Give a sign of life, at most every few seconds."""
        if time.monotonic() - self.touched > SIGN_OF_LIFE:
            self.touched = time.monotonic()
            with contextlib.suppress(OSError):
                self.sign.touch()


def take(lock_file: Path, sign: Path, run: str, batch_job: str | None = None) -> Claim:
    """Hold the run until the claim is released, or this process ends. Raises RunFolderError where another
    process holds it, or nothing can be written."""
    with refused(RunFolderError, "written", lock_file.parent):
        lock = lock_file.open("a")
    for left in (2, 1, 0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if left:  # `is_held` has it for a moment
                time.sleep(0.05)
                continue
            lock.close()
            raise RunFolderError(
                "another process supervises it", where=run, hint=f"`muster stop {run}` first"
            ) from None
    with refused(RunFolderError, "written", sign):
        write_json(sign, {"pid": os.getpid(), "machine": os.uname().nodename, "batch_job": batch_job})
    return Claim(lock, sign)


def is_held(lock_file: Path, sign: Path) -> bool | None:
    """Return whether a process holds the run. None: one of another machine, by its signs of life.

    On this machine the lock decides, whatever happened to process ids; elsewhere the age of the sign.
    """
    try:
        data = json.loads(sign.read_text(encoding="utf-8"))
        age = time.time() - sign.stat().st_mtime
    except (OSError, ValueError):
        return False
    if not isinstance(data, dict):
        return False
    if data.get("machine") == os.uname().nodename:
        try:
            with lock_file.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError:
            pass  # a file system without locks
    return None if age < STALE else False
