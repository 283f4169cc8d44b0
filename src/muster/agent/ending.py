"""End every process of a job: the descendants of this process, and those with the job's token in their
environment. By process id, never by name."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from .proc import descent, from_proc, offspring, proc_table, process_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Optional, Set, Tuple

GRACE = 1.5  # seconds between SIGTERM and SIGKILL


class Births:
    """The processes that were started since this was made. The kernel assigns ids in turn, so earlier ones
    need no check unless ids may have wrapped around since: a machine has thousands of them."""

    def __init__(self) -> None:
        self.last, self.forks = self.now()

    def now(self) -> Tuple[int, int]:
        """Return the last id that was assigned, and how many there were since the machine's start; 0: not
        available."""
        words = from_proc("sys/kernel/ns_last_pid").split()
        counts = [line.split()[1] for line in from_proc("stat").splitlines() if line[:10] == b"processes "]
        return int(words[0]) if words else 0, int(counts[0]) if counts else 0

    def since(self) -> Set[int]:
        """Return the processes since then; all of the machine's where the kernel does not provide enough."""
        pids = process_ids()
        last, forks = self.now()
        countable = (
            self.last and last and 0 < forks - self.forks < int(from_proc("sys/kernel/pid_max") or 0) // 2
        )
        if not countable:
            return pids
        return {pid for pid in pids if pid > self.last or pid <= last < self.last}


def marked(token: str, births: Optional[Births] = None) -> Set[int]:
    """Return every process with the job's token in its environment; one that has ended has none. `births`:
    made before the first of them."""
    mark = ("\0MUSTER_TOKEN=%s\0" % token).encode()
    pids = births.since() if births else process_ids()
    return {pid for pid in pids if mark in b"\0" + from_proc("%d/environ" % pid) + b"\0"}


def family(token: str, births: Optional[Births] = None) -> Set[int]:
    """Return the descendants of this process, and every process with the job's token; not this process."""
    return (marked(token, births) | descent(proc_table(offspring()))) - {os.getpid()}


def end_all(find: Callable[[], Set[int]], wait: Callable[[float], object] = time.sleep) -> bool:
    """End all processes that `find` returns: terminate each, wait, kill, and look again. Return whether all
    are gone. `wait` may return before its time, which grows, since a machine on which a thousand end is busy.
    """
    limit = time.monotonic() + 2 * GRACE + 10
    short = pause = 0.05
    asked: Dict[int, float] = {}
    while True:
        pids, now = find(), time.monotonic()
        if not pids:
            return True
        new = pids - set(asked)
        send_signal(new, signal.SIGTERM)
        send_signal({pid for pid in pids if now > asked.setdefault(pid, now) + GRACE}, signal.SIGKILL)
        if now > limit:
            return False  # unkillable: in the kernel, on a dead device
        pause = short if new else min(2 * pause, 0.4)
        force = min(asked[pid] for pid in pids) + GRACE - now  # seconds until some are to be forced
        wait(min(pause, force + short) if force > 0 else short)


def send_signal(pids: Set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def die_with_parent() -> None:
    """Have Linux end the child when its parent is gone, even by SIGKILL. To be called between fork and exec.
    """
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


def adopt_orphans() -> None:
    """Make processes whose parent dies children of this one, so that none leaves the tree."""
    try:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except (OSError, AttributeError):
        pass


def guard(token: str, births: Births) -> Tuple[int, int]:
    """Start a process that ends all that carry the job's token when this one ends, however it ends: the
    children of a command do not die with their parent as ranks do. Return its id, and a descriptor: a byte
    written to it says that all of them are gone already, and the process leaves."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ours)  # the other end stays open for as long as this process lives
        return pid, theirs
    try:
        os.setsid()
        os.close(theirs)
        for name in os.listdir("/proc/self/fd"):
            if int(name) != ours:
                try:
                    os.close(int(name))
                except OSError:
                    pass
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(ours, 1):
            end_all(lambda: marked(token, births))
    finally:
        os._exit(0)
