"""Ending every process of a job: the descendants of this process, and those with the job's token in their
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
    """Which processes have begun since this was made. The kernel gives numbers in turn, so that those of
    before need no look unless it may have gone round since: a machine has thousands of them."""

    def __init__(self) -> None:
        self.last, self.forks = self.now()

    def now(self) -> Tuple[int, int]:
        """The last number that was given, and how many there were since the machine's start; 0: not told."""
        words = from_proc("sys/kernel/ns_last_pid").split()
        counts = [line.split()[1] for line in from_proc("stat").splitlines() if line[:10] == b"processes "]
        return int(words[0]) if words else 0, int(counts[0]) if counts else 0

    def since(self) -> Set[int]:
        """All of the machine's where the kernel does not tell enough."""
        pids = process_ids()
        last, forks = self.now()
        countable = (
            self.last and last and 0 < forks - self.forks < int(from_proc("sys/kernel/pid_max") or 0) // 2
        )
        if not countable:
            return pids
        return {pid for pid in pids if pid > self.last or pid <= last < self.last}


def marked(token: str, births: Optional[Births] = None) -> Set[int]:
    """Every process with the job's token in its environment; one that has ended has none. `births`: of before
    the first of them."""
    mark = ("\0MUSTER_TOKEN=%s\0" % token).encode()
    pids = births.since() if births else process_ids()
    return {pid for pid in pids if mark in b"\0" + from_proc("%d/environ" % pid) + b"\0"}


def family(token: str, births: Optional[Births] = None) -> Set[int]:
    """The descendants of this process, and every process with the job's token; not this process."""
    return (marked(token, births) | descent(proc_table(offspring()))) - {os.getpid()}


def end_all(find: Callable[[], Set[int]], wait: Callable[[float], object] = time.sleep) -> bool:
    """End all processes that `find` finds: ask each, wait, force, and look again. -> whether all are gone.
    `wait` may return before its time, which grows, for a machine where a thousand end is busy."""
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
    """Between fork and exec: Linux ends the child when its parent is gone, even by SIGKILL."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


def adopt_orphans() -> None:
    """Processes whose parent dies become children of this one, so none slips out of the tree."""
    try:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except (OSError, AttributeError):
        pass


def guard(token: str, births: Births) -> Tuple[int, int]:
    """A process that ends all that carry the job's token when this one ends, however it ends: the children of
    a command do not die with their parent as ranks do. -> its id, and where a byte tells it that all of them
    are gone already; it leaves by itself."""
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
