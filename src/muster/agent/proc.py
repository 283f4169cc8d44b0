"""What the kernel reports of processes, of memory and of itself: /proc, control groups and the kernel's log.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

BLOCK = 1 << 16  # bytes that are read at a time


def read_text(path: str) -> Optional[str]:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):  # a card that is down answers with EINVAL
        return None


def process_ids() -> Set[int]:
    """Return the ids of all processes on this machine."""
    return {int(name) for name in (os.listdir("/proc") if os.path.isdir("/proc") else []) if name.isdigit()}


def proc_stats(pids: Optional[Set[int]] = None) -> Dict[int, List[bytes]]:
    """Return the fields of /proc/PID/stat by process id, from the state on; of all processes, or of these."""
    stats = {}
    for pid in process_ids() if pids is None else pids:
        fields = from_proc("%d/stat" % pid).rpartition(b")")[2].split()
        if fields:
            stats[pid] = fields
    return stats


def from_proc(name: str) -> bytes:
    """Return a file of /proc; empty where the process has ended, or may not be read. It does without Python's
    file objects, which cost more than the reading where there are thousands of processes."""
    parts = []  # type: List[bytes]
    try:
        file = os.open("/proc/" + name, os.O_RDONLY)
        try:
            while not parts or len(parts[-1]) == BLOCK:
                parts.append(os.read(file, BLOCK))
        finally:
            os.close(file)
    except OSError:
        pass
    return b"".join(parts)


def offspring(root: int = 0) -> Optional[Set[int]]:
    """Return a process (0: this one) and its descendants by the kernel's own lists, which avoids reading
    every process of the machine; one that begins or ends at this moment may be missing. None: this kernel
    keeps no lists."""
    family, waiting = set(), [root or os.getpid()]  # type: Set[int], List[int]
    if not os.path.exists("/proc/thread-self/children"):
        return None
    while waiting:
        pid = waiting.pop()
        if pid in family:
            continue
        family.add(pid)
        try:
            for task in os.listdir("/proc/%d/task" % pid):
                waiting += map(int, from_proc("%d/task/%s/children" % (pid, task)).split())
        except OSError:
            pass
    return family


def environ(pid: int) -> List[bytes]:
    """Return the environment with which a process was started, as NAME=VALUE; its program may overwrite it.
    """
    return from_proc("%d/environ" % pid).split(b"\0")


def rank_in(words: List[bytes]) -> Optional[int]:
    """Return the rank in an environment."""
    value = next((each[5:] for each in words if each.startswith(b"RANK=")), b"")
    return int(value) if value.isdigit() else None


def opened(pid: int) -> List[str]:
    """Return what a process has open: paths, and names such as socket:[inode]."""
    names, folder = [], "/proc/%d/fd" % pid
    try:
        for each in os.listdir(folder):
            try:
                names.append(os.readlink(folder + "/" + each))
            except OSError:  # closed meanwhile
                continue
    except OSError:  # it is gone, or another user's
        pass
    return names


def sockets_of(pid: int) -> Set[int]:
    """Return the inodes of a process's sockets."""
    return {int(name[8:-1]) for name in opened(pid) if name.startswith("socket:[")}


def threads(pid: int) -> Dict[int, int]:
    """Return, by thread, the nanoseconds in which it had a processor, or waited for one: on a loaded machine
    that tells a thread that computes from one that rests."""
    spent = {}  # type: Dict[int, int]
    for task in tasks(pid):
        words = from_proc("%d/task/%d/schedstat" % (pid, task)).split()
        if len(words) > 1:  # it lives, and the kernel counts
            spent[task] = int(words[0]) + int(words[1])
    return spent


def tasks(pid: int) -> List[int]:
    """Return the threads of a process; none where it has ended."""
    try:
        return [int(task) for task in os.listdir("/proc/%d/task" % pid)]
    except OSError:
        return []


def proc_table(pids: Optional[Set[int]] = None) -> Dict[int, int]:
    """Return parents by process id, of all living processes (zombies left out), or of the living among these.
    """
    stats = proc_stats(pids).items()
    return {pid: int(each[1]) for pid, each in stats if len(each) > 1 and each[0] not in (b"Z", b"X")}


def descent(table: Dict[int, int]) -> Set[int]:
    """Return this process and its descendants."""
    family = {os.getpid()}
    while True:
        more = {pid for pid, parent in table.items() if parent in family and pid not in family}
        if not more:
            return family
        family |= more


def tree() -> Tuple[Set[int], float]:
    """Return this process and its descendants; and the seconds that these have run, with their children that
    have ended."""
    listed = offspring()
    stats = {pid: each for pid, each in proc_stats(listed).items() if len(each) > 14}
    pids = listed or descent({pid: int(each[1]) for pid, each in stats.items()})
    ticks = sum(int(field) for pid in pids if pid in stats for field in stats[pid][11:15])
    return pids, ticks / os.sysconf("SC_CLK_TCK")


def meminfo() -> Dict[str, int]:
    """Return /proc/meminfo in bytes; empty where there is none."""
    lines = (read_text("/proc/meminfo") or "").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if "kB" in line}


def memory_groups(root: str, own: str, first: str, second: str) -> List[str]:
    """Return files of this process's control groups for memory and of those above them, the innermost first.
    Version 1 calls the file `first`, version 2 `second`."""
    paths = []
    groups = [line.split(":", 2) for line in (read_text(own) or "").splitlines()]
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if not controllers or "memory" in controllers.split(","):
            top, name = (root + "/memory", first) if controllers else (root, second)
            parts = [part for part in path.split("/") if part]
            paths += [os.path.join(top, *parts[:depth], name) for depth in range(len(parts), -1, -1)]
    return paths


def memory_limit(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Optional[int]:
    """Return the least memory that this process's control groups, or those above them, allow; None: no limit.
    """
    files = memory_groups(root, own, "memory.limit_in_bytes", "memory.max")
    texts = [(read_text(file) or "").strip() for file in files]
    # Version 1 says 1 << 60 or more where there is no limit.
    return min((int(text) for text in texts if text.isdigit() and int(text) < 1 << 60), default=None)


class KernelWatch:
    """Watches the kernel's out-of-memory killer: how many processes it has ended since this was made.

    Of this control group and those below it, of the whole machine, and the lines of the kernel's log; each is
    None where it cannot be read.
    """

    def __init__(self, root: str = "/sys/fs/cgroup", proc: str = "/proc", log: str = "/dev/kmsg") -> None:
        self.counters = {
            "group": group_counter(root, os.path.join(proc, "self/cgroup")),
            "machine": os.path.join(proc, "vmstat"),
        }
        self.before = self.counts()
        self.log = None  # type: Optional[int]
        try:
            self.log = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.log, 0, os.SEEK_END)
        except OSError:
            pass

    def counts(self) -> Dict[str, Optional[int]]:
        return {name: oom_kills(path) if path else None for name, path in self.counters.items()}

    def lines(self) -> Optional[List[str]]:
        """Return the log's lines since then that name a killed process."""
        if self.log is None:
            return None
        kills = [text for text in records(self.log) if "Killed process" in text or "oom-kill:" in text]
        return [text[:300] for text in kills[-20:]]

    def look(self) -> Dict[str, Any]:
        """Return {"group": kills or None, "machine": kills or None, "log": lines or None}."""
        now, changes = self.counts(), {}  # type: Dict[str, Optional[int]], Dict[str, Any]
        for name, before in self.before.items():
            after = now[name]
            changes[name] = None if before is None or after is None else max(0, after - before)
        changes["log"] = self.lines()
        return changes


def group_counter(root: str, own: str) -> Optional[str]:
    """Return the file in which this process's control group counts what the out-of-memory killer ended."""
    files = memory_groups(root, own, "memory.oom_control", "memory.events")
    return next(
        (file for file in files if oom_kills(file) is not None), None
    )  # a container may see the top only


def records(log: int) -> Iterator[str]:
    """Yield the lines of the kernel's log, /dev/kmsg, that were not read yet."""
    for _ in range(100000):
        try:
            record = os.read(log, 8192)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the kernel has written over what was not read yet
                continue
            return
        if not record:
            return
        yield record.split(b"\n", 1)[0].partition(b";")[2].decode("utf-8", "replace")


def oom_kills(path: str) -> Optional[int]:
    for line in (read_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
            return int(words[1])
    return None
