"""Samples a host while a job runs: processors, memory, GPUs, and the values that show which host holds the
others up.

Those are what each rank does itself, and how fast its bytes leave, seen from outside: nothing in the ranks is
changed or stopped.
  - The kernel counts for each thread how long it ran and how long it waited for a core
    (/proc/PID/task/TID/schedstat). The rest it slept: a rank that trains waits for others then, or for a
    GPU, a disk or its loader. A quota that stops a process counts as waiting for a core.
  - It counts for each TCP connection the bytes that have arrived, and how long any were on their way
    (tcp_info: tcpi_bytes_acked, tcpi_busy_time less tcpi_rwnd_limited; sock_diag(7)). Their ratio is the
    speed of the link whenever it is used, however seldom that is.
"""

from __future__ import annotations

import collections
import os
import socket
import struct
import threading
import time

from .gpu import Nvml
from .proc import environ, from_proc, meminfo, rank_in, sockets_of, threads, tree
from .talk import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, Iterable, List, Optional, Sequence, Set, Tuple

    Ends = Tuple[str, str]  # addresses: this one, the other one
    Counters = Dict[int, Tuple[Ends, int, int]]  # inode -> ends, bytes, microseconds

MOST = 16  # other ends of connections that are told of a host: those that got most
DUMP, BY_FAMILY, SOCK_DIAG = 0x301, 20, 4
ESTABLISHED = 1 << 1
INFO = 2  # INET_DIAG_INFO
ACKED, BUSY = 120, 168  # where they stand in struct tcp_info


class Sampler(threading.Thread):
    """Samples the host in its own thread: a GPU that hangs must not hang the agent."""

    def __init__(self, seconds: float, gpus: Optional[List[int]] = None, ranks: Sequence[int] = ()) -> None:
        super().__init__(daemon=True)
        self.seconds = seconds
        self.pace = PaceSampler(ranks)
        self.sampled = None  # type: Optional[float]
        self.gpus = gpus
        self.samples: Deque[Dict[str, Any]] = collections.deque(maxlen=100)
        self.last = cpu_times()
        self.own = tree()[1]

    def run(self) -> None:
        nvml = Nvml(self.gpus)
        try:
            handles = nvml.handles()
        except Problem:  # the ranks will say it
            handles = []
        while True:
            time.sleep(self.seconds)
            now, before = cpu_times(), self.last
            (pids, own), self.last = tree(), now
            spent = [max(0.0, each) for each in map(float.__sub__, now, before)] if now and before else []
            memory = meminfo()
            total, free = memory.get("MemTotal"), memory.get("MemAvailable")
            at, activity = time.monotonic(), self.pace.sample(pids)
            seconds = None if self.sampled is None else at - self.sampled
            self.sampled = at
            self.samples.append(
                {
                    "seconds": seconds,
                    **activity,
                    "time": time.time(),
                    "cpu_percent": max(0.0, 100.0 * (1 - spent[0] / spent[1]))
                    if spent and spent[1] > 0
                    else None,
                    "cpu_busy": spent[2] if spent else None,
                    "cpu_own": max(0.0, own - self.own),
                    "cpu_stolen": spent[3] if spent else None,
                    "memory_used": total - free if total and free else None,
                    "memory_total": total,
                    "gpus": nvml.sample(handles, pids),
                }
            )
            self.own = own


def cpu_times(path: str = "/proc/stat") -> Optional[List[float]]:
    """Return seconds of the cores that this process may use: idle, in all, of processes, and those that a
    virtual machine's own host gave to others (proc(5), /proc/stat); None where the kernel does not report
    them.

    What processes used is the rest of the clock: most kernels count `user` and `system` by looking at each
    tick, which was 14 % too much where a quota stops processes between ticks. Idle time they measure.
    """
    idle, kernel, stolen = 0.0, 0.0, 0.0
    try:
        tick = os.sysconf("SC_CLK_TCK")
        cores, seen = os.sched_getaffinity(0), 0
        with open(path) as file:
            for line in file:
                words = line.split()
                if words[0][:3] == "cpu" and words[0][3:].isdigit() and int(words[0][3:]) in cores:
                    fields = [int(word) / tick for word in words[1:9]]
                    seen += 1
                    idle += fields[3] + fields[4]
                    kernel += fields[5] + fields[6]
                    stolen += fields[7]
        clock = time.monotonic() * seen
        return [idle, clock, clock - idle - kernel - stolen, stolen] if seen else None
    except (OSError, ValueError, IndexError, AttributeError):
        return None


class PaceSampler:
    """Samples the ranks of a host. `ranks`: those that it has."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = set(ranks)
        self.threads = {}  # type: Dict[Tuple[int, int], int]  # (process, thread) -> nanoseconds
        self.sockets = {}  # type: Counters

    def sample(self, pids: Iterable[int]) -> Dict[str, Any]:
        """Return what was done since the last call. `pids`: the job's processes."""
        seen = {pid: about(pid) for pid in pids}  # each time: a process becomes another one by exec
        mine = {pid: rank for pid, (rank, _, _) in seen.items() if rank in self.ranks}
        # A child with the same rank and program is a loader's worker; below a shell it is the rank itself.
        workers = {
            pid
            for pid, (rank, parent, program) in seen.items()
            if (rank, program) == seen.get(parent, (None, 0, None))[::2]
        }
        tops = {pid: rank for pid, rank in mine.items() if pid not in workers}
        return {"own": self.own(tops), "links": self.links(set(mine))}

    def own(self, mine: Dict[int, int]) -> Dict[int, float]:
        """Return, by rank, the seconds of the thread that wanted a core longest: with several threads each
        waits for the slowest."""
        now, by_rank = {}, {}  # type: Dict[Tuple[int, int], int], Dict[int, float]
        for pid, rank in mine.items():
            for thread, spent in threads(pid).items():
                now[pid, thread] = spent
                if (pid, thread) in self.threads:
                    more = (spent - self.threads[pid, thread]) / 1e9
                    by_rank[rank] = max(more, by_rank.get(rank, 0.0))
        self.threads = now
        return by_rank

    def links(self, mine: Set[int]) -> List[Dict[str, Any]]:
        """Return the traffic to each other host."""
        inodes = {inode for pid in mine for inode in sockets_of(pid)}
        now = {
            inode: each
            for inode, each in (connections() if inodes else {}).items()
            if inode in inodes and each[0][0] != each[0][1] and not each[0][1].startswith("127.")
        }
        sums = {}  # type: Dict[Ends, List[int]]
        for inode, (ends, acked, busy) in now.items():
            _, acked_before, busy_before = self.sockets.get(inode, (ends, 0, 0))
            both = sums.setdefault(ends, [0, 0])
            both[0] += max(0, acked - acked_before)
            both[1] += max(0, busy - busy_before)
        self.sockets = now
        busiest = sorted(((got, busy, ends) for ends, (got, busy) in sums.items() if got), reverse=True)[
            :MOST
        ]
        return [{"at": at, "to": to, "bytes": got, "busy": busy / 1e6} for got, busy, (at, to) in busiest]


def about(pid: int) -> Tuple[int, int, str]:
    """Return a process's rank, by the environment with which it was started, or -1; its parent; its program.
    """
    rank, parent, program = rank_in(environ(pid)), 0, ""
    try:
        parent = int(from_proc("%d/stat" % pid).rpartition(b")")[2].split()[1])
        program = os.readlink("/proc/%d/exe" % pid)
    except (OSError, IndexError):  # it has ended
        pass
    return -1 if rank is None else rank, parent, program


def connections() -> Counters:
    """Return all TCP connections of this host."""
    counters = {}  # type: Counters
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as link:
                link.settimeout(2)
                asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, ESTABLISHED)
                asked += bytes(48)
                link.send(struct.pack("=IHHII", 16 + len(asked), BY_FAMILY, DUMP, 1, 0) + asked)
                while read(link.recv(1 << 18), counters):
                    pass
        except (OSError, AttributeError, struct.error):  # not Linux, or no such module in its kernel
            pass
    return counters


def read(data: bytes, counters: Counters) -> bool:
    """Read one answer's connections. Return whether more answers follow."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind != BY_FAMILY or length < 16:
            return False
        message = data[at + 16 : at + length]
        at += (length + 3) & ~3
        size = 4 if message[0] == socket.AF_INET else 16
        here, there = (socket.inet_ntop(message[0], message[i : i + size]) for i in (8, 24))
        (inode,) = struct.unpack_from("=I", message, 68)
        place = 72
        while place + 4 <= len(message):
            size, kind = struct.unpack_from("=HH", message, place)
            info = message[place + 4 : place + size]
            if kind == INFO and len(info) >= BUSY + 16:
                (acked,) = struct.unpack_from("=Q", info, ACKED)
                busy, closed = struct.unpack_from("=QQ", info, BUSY)
                ends = (here.replace("::ffff:", ""), there.replace("::ffff:", ""))
                counters[inode] = (ends, acked, max(0, busy - closed))
            place += max(4, (size + 3) & ~3)
    return True
