"""Find out from outside where the ranks of a host are: processes, Python stacks, collectives.

The controller sends this text to its agents when a job makes no progress, and each runs `look` with its own
modules at hand. Nothing here waits for a process that is stuck; one that computes is stopped for some
milliseconds, to read its native stack.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from .proc import environ, offspring, opened, process_ids, rank_in, records, sockets_of, tasks, threads

SAMPLES = 5  # of each rank
EACH = 0.5  # seconds between two of them
NUMBER = 62  # the signal of inside.py
PATIENCE = 5.0  # seconds for a program that reads a stack, or for the rank's own answer
NATIVE = 10.0  # seconds for one that reads a stack of C++ as well: it reads the libraries' symbols first
# Libraries in which an interpreter runs that does nothing but interpret.
PLAIN = re.compile(
    r"/(?:libpython|libc[.-]|libm[.-]|libpthread|ld-|lib-dynload/|python[\d.]*$|\[v)|/Modules/"
)
OPEN = ("01", "02")  # states of a connection: established, and one that waits for the first answer
PROBED, UNUSED = 8, 1  # hosts that a host tries to reach; a port that nobody has used for decades
AGAIN = 3  # times in a row that data are sent again: for over a second there was no answer
DEEPEST = 40  # frames of a stack that are told
XID = re.compile(r"NVRM: Xid .*")
TICK = os.sysconf("SC_CLK_TCK")


def look(place: str, token: str, ranks: List[int], python: str) -> Dict[str, Any]:
    """Return what is seen of each rank: {"ranks": [...], "xid": lines of the kernel's log}."""
    looked = [Rank(rank, pid, place) for rank, pid in sorted(processes(place, token, ranks).items())]
    reader = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(python))
    limit = time.monotonic() + PATIENCE
    while any(is_read(tracer(each.pid)) for each in looked) and time.monotonic() < limit:
        time.sleep(0.05)  # an earlier look's reader holds a process for longer where a machine is busy
    asking = threading.Thread(target=in_parallel, args=(looked, lambda each: each.ask()), daemon=True)
    asking.start()
    answers = {}  # type: Dict[str, bool]
    probing = threading.Thread(target=lambda: answers.update(reach(peers(looked))), daemon=True)
    probing.start()
    for number in range(SAMPLES):
        began = time.monotonic()
        in_parallel(looked, lambda each: each.sample(reader))
        if number + 1 < SAMPLES:
            time.sleep(max(0.0, EACH - (time.monotonic() - began)))
    if reader:  # it stops a process for a moment, which the samples would show
        busy = [each for each in looked if each.samples and each.samples[-1]["state"] == "R"]
        recording = threading.Thread(target=in_parallel, args=(busy, lambda each: each.record(reader)))
        recording.daemon = True
        recording.start()
        in_parallel(busy, lambda each: each.read_native(reader))
        recording.join(PATIENCE)
    asking.join(PATIENCE)
    in_parallel([each for each in looked if each.flights and each.flights[0]], lambda each: each.ask())
    probing.join(PATIENCE)
    answers_of_ranks = [each.told() for each in looked]
    reached, unreached = ([each for each in list(answers) if answers[each] is how] for how in (True, False))
    return {"ranks": answers_of_ranks, "xid": xids(), "reached": reached, "unreached": unreached}


def is_read(tracer: Optional[str]) -> bool:
    """Return whether the process that holds a rank is a look's own reader."""
    return (tracer or "").startswith("py-spy")


def in_parallel(ranks: List["Rank"], work: Any) -> None:
    """Do the work for all ranks at the same time; a rank that cannot be probed delays no other."""
    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in ranks]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + 2 * PATIENCE
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))


def processes(place: str, token: str, ranks: List[int]) -> Dict[int, int]:
    """Return the process of each rank: the uppermost of those with the job's token and RANK in their
    environment, since loader workers and other children inherit both. A program that writes its title over
    its environment still has the file open that inside.py writes stacks to."""
    pids, mark = {}, b"MUSTER_TOKEN=" + token.encode()  # type: Dict[int, int], bytes
    bare = []  # type: List[int]
    for pid in process_ids():
        words = environ(pid)
        own = rank_in(words)
        if mark in words and own in ranks:
            pids[pid] = own
        elif own is None:
            bare.append(pid)
    paths = {os.path.realpath(os.path.join(place, "rank%d.stacks" % rank)): rank for rank in ranks}
    files = {path: rank for path, rank in paths.items() if rank not in pids.values()}
    for pid in bare if files else ():
        pids.update((pid, files[each]) for each in opened(pid) if each in files)
    tops = {}  # type: Dict[int, int]
    for pid, rank in pids.items():
        parent = (stat(pid) or {}).get("parent")
        if pids.get(parent or 0) != rank:
            tops[rank] = min(pid, tops.get(rank, pid))
    return tops


class Rank:
    """A rank's process during a probe."""

    def __init__(self, rank: int, pid: int, place: str) -> None:
        self.rank, self.pid = rank, pid
        self.base = os.path.join(place, "rank%d" % rank)
        self.samples = []  # type: List[Dict[str, Any]]
        self.flights = []  # type: List[Optional[List[Dict[str, Any]]]]
        self.library = None  # type: Optional[str]  # that it computes in
        self.functions = None  # type: Optional[int]  # stacks of them that were seen
        self.how, self.why = "", ""  # by what its stacks were read, or why not

    def ask(self) -> None:
        """Read the rank's own flight recorder, as far as it answers."""
        ask, answer = self.base + ".ask", self.base + ".flight"
        try:
            os.unlink(answer)
        except OSError:
            pass
        try:
            os.close(os.open(ask, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody waits there: it has formed no group
            self.flights.append(None)
            return
        limit = time.monotonic() + PATIENCE / 2
        while not os.path.exists(answer) and time.monotonic() < limit:
            time.sleep(0.05)
        self.flights.append(flight(read(answer)))

    def sample(self, reader: Optional[str]) -> None:
        """Sample the state of its process. The main thread's state is the rank's."""
        about = stat(self.pid, self.pid) or {}
        whole = stat(self.pid) or {}
        family = [self.pid, *children(self.pid)]
        state, held_by = about.get("state"), tracer(self.pid)
        if state == "t" and held_by is None:  # it may have been let go since, or be held from outside
            state = (stat(self.pid, self.pid) or {}).get("state")
        if is_read(held_by):  # an earlier look still reads it: what it does is not known
            state = None
        self.samples.append(
            {
                "at": time.monotonic(),
                "state": state,
                "tracer": held_by,
                "cpu": sum((stat(pid) or {}).get("all_cpu", 0.0) for pid in family),
                "own_cpu": whole.get("cpu", 0.0),
                "io": sum(io(pid) for pid in family),
                "wanted": wanted(family[:1]),
                "wanted_below": wanted(family[1:]),
                "disk": waited_for(family),
                "wchan": (read("/proc/%d/task/%d/wchan" % (self.pid, self.pid)) or b"").decode(),
                "threads": self.stacks(reader),
            }
        )

    def stacks(self, reader: Optional[str]) -> List[Dict[str, Any]]:
        """Return its threads' Python stacks, the innermost frame first; the main thread comes first."""
        if reader and not self.how:
            threads = self.by_py_spy(reader)
            if threads is not None:
                return threads
        return self.by_signal() or []

    def by_py_spy(self, reader: str) -> Optional[List[Dict[str, Any]]]:
        argv = [reader, "dump", "--nonblocking", "--json", "--pid", str(self.pid)]
        for _ in range(2):  # a process that runs on meanwhile may be read in mid-change
            try:
                done = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, timeout=PATIENCE, check=False
                )
                threads = json.loads(done.stdout) if done.returncode == 0 else None
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                self.why = "py-spy: %s" % error
                continue
            if threads is None:
                self.why = done.stderr.decode("utf-8", "replace").strip()[-200:]
                continue
            threads.sort(key=lambda each: each["os_thread_id"] != self.pid)
            return [
                {
                    "name": str(each["thread_name"]),
                    "frames": [[f["name"], f["filename"], f["line"]] for f in each["frames"][:DEEPEST]],
                }
                for each in threads
            ]
        return None

    def read_native(self, reader: str) -> None:
        """Find the library in which the main thread computes, if any. The process is stopped for some
        milliseconds."""
        argv = [reader, "dump", "--native", "--json", "--pid", str(self.pid)]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, timeout=NATIVE)
            threads = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return
        for each in threads:
            if each["os_thread_id"] in (None, self.pid):
                self.library = library_of(each["frames"]) or ""

    def record(self, reader: str) -> None:
        """Count how many different stacks the main thread shows in two seconds of frequent samples."""
        argv = [reader, "record", "--nonblocking", "--threads", "--duration", "2", "--rate", "40"]
        argv += ["--format", "raw", "--output", "/dev/stdout", "--pid", str(self.pid)]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, timeout=NATIVE)
        except (OSError, subprocess.TimeoutExpired):
            return
        # thread (7): MainThread;<module> (train.py:9);step (train.py:5) 12
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        mine = [each for each in lines if each.startswith("thread (%d)" % self.pid)]
        stacks = {re.sub(r":\d+\)(?=;| \d+$)", "", each).rpartition(" ")[0] for each in mine}
        self.functions = len(stacks) or None

    def by_signal(self) -> Optional[List[Dict[str, Any]]]:
        """Return the stacks by faulthandler, where inside.py has registered it: no other process gets the
        signal."""
        caught = re.search(rb"SigCgt:\s*([0-9a-f]+)", read("/proc/%d/status" % self.pid) or b"")
        path = self.base + ".stacks"
        if not caught or not int(caught[1], 16) >> (NUMBER - 1) & 1 or not os.path.exists(path):
            return None
        self.how = "faulthandler"
        before = os.path.getsize(path)
        os.kill(self.pid, NUMBER)
        limit, size = time.monotonic() + PATIENCE / 5, before
        while time.monotonic() < limit:
            time.sleep(0.05)
            now = os.path.getsize(path)
            if now > before and now == size:
                break
            size = now
        with open(path, "rb") as file:
            file.seek(before)
            return dumped(file.read().decode("utf-8", "replace"))

    def told(self) -> Dict[str, Any]:
        """Return what is sent to the controller."""
        first, last = (self.samples[0], self.samples[-1]) if self.samples else ({}, {})
        seconds = max(1e-6, last.get("at", 0.0) - first.get("at", 0.0))
        flights = [*self.flights, None, None]
        threads = last.get("threads") or []
        ends = [each for each in connections([self.pid, *children(self.pid)]) if each[0] != each[1]]
        return {
            "rank": self.rank,
            "pid": self.pid,
            "states": [each["state"] for each in self.samples],
            "cpu": (last.get("cpu", 0.0) - first.get("cpu", 0.0)) / seconds,
            "own_cpu": (last.get("own_cpu", 0.0) - first.get("own_cpu", 0.0)) / seconds,
            "io": flow([each["io"] for each in self.samples]),
            "wants": share(first.get("wanted", {}), last.get("wanted", {}), seconds),
            "wants_below": share(first.get("wanted_below", {}), last.get("wanted_below", {}), seconds),
            "disk": last.get("disk", {}),
            "disk_moves": any(map(differs, self.samples, self.samples[1:])),
            "wchan": last.get("wchan") or "",
            "tracer": last.get("tracer"),
            "library": self.library,
            "functions": self.functions,
            "mains": [each["threads"][0]["frames"] if each["threads"] else [] for each in self.samples],
            "others": threads[1:9],
            "stopped": odd(self.pid),
            "addresses": sorted({here for here, _, _ in ends})[:20],
            "silent": sorted([here, there] for here, there, again in ends if again >= AGAIN)[:50],
            "before": flights[0],
            "after": flights[1],
            "unread": "" if threads else self.why or "no Python stack can be read",
        }


def connections(family: List[int]) -> List[List[Any]]:
    """Return these processes' TCP connections (proc(5), /proc/net/tcp): this end and the other, and how often
    in a row the kernel has sent the same data again without an answer."""
    inodes = {inode for pid in family for inode in sockets_of(pid)}
    listed = []
    for table in ("tcp", "tcp6"):
        for line in (read("/proc/%d/net/%s" % (family[0], table)) or b"").decode().splitlines()[1:]:
            _, here, there, state, _, timer, again, _, _, inode = line.split()[:10]
            if int(inode) in inodes and state in OPEN:
                times = int(again, 16) if timer.startswith("01:") else 0
                listed.append([address(here), address(there), times])
    return listed


def peers(ranks: List["Rank"]) -> List[str]:
    """Return some of the hosts that these ranks are connected to, those first that do not answer."""
    times = {}  # type: Dict[str, int]
    for each in ranks:
        for here, there, again in connections([each.pid, *children(each.pid)]):
            if here != there:
                times[there] = max(again, times.get(there, 0))
    return sorted(times, key=lambda there: (-times[there], random.random()))[:PROBED]


def reach(addresses: List[str]) -> Dict[str, bool]:
    """Return which of these hosts answer: a host that is up refuses a connection to an unused port."""
    waits, answers = {}, {}  # type: Dict[int, Any], Dict[str, bool]
    poll = select.poll()
    for each in addresses:
        one = socket.socket(socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM)
        one.setblocking(False)
        error = one.connect_ex((each, UNUSED))
        answers[each] = error in (0, errno.ECONNREFUSED)
        if error == errno.EINPROGRESS:
            waits[one.fileno()] = each, one
            poll.register(one, select.POLLOUT)
        else:
            one.close()
    limit = time.monotonic() + PATIENCE / 2
    while waits and time.monotonic() < limit:
        for number, _ in poll.poll(100):
            each, one = waits.pop(number)
            poll.unregister(one)
            error = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            answers[each] = error in (0, errno.ECONNREFUSED)
            one.close()
    for _, one in waits.values():
        one.close()
    return answers


def address(text: str) -> str:
    """Return an address of /proc/net/tcp: words of four bytes in the machine's order, and the port."""
    raw = bytes.fromhex(text.partition(":")[0])
    order = -1 if sys.byteorder == "little" else 1
    raw = b"".join(raw[at : at + 4][::order] for at in range(0, len(raw), 4))
    if raw.startswith(bytes(10) + b"\xff\xff"):  # IPv4 in an IPv6 socket
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def flow(totals: List[int]) -> int:
    """Return the bytes that went through, from the totals at each sample. A single burst, such as the rank's
    answer to the agent, is no flow: the amount that most intervals have counts."""
    gains = sorted(totals[at] - totals[at - 1] for at in range(1, len(totals)))
    return gains[len(gains) // 2] * len(gains) if gains else 0


def library_of(frames: List[Dict[str, Any]]) -> Optional[str]:
    """Return the innermost library that is not the interpreter's own, above the innermost Python frame; None:
    the interpreter itself runs."""
    for each in frames:
        module = str(each["module"] or "")
        if not module:
            return None
        if not PLAIN.search(module) and "/Modules/" not in each["filename"]:
            return os.path.basename(module)
    return None


def dumped(text: str) -> List[Dict[str, Any]]:
    """Return the stacks that faulthandler wrote: the calling thread last ("Current thread"), each with its
    innermost frame first. The current thread is the main one: it has taken the signal."""
    threads = []  # type: List[Dict[str, Any]]
    for line in text.splitlines():
        head = re.match(r"(Current thread|Thread) (\S+)", line)
        frame = re.match(r'  File "(.*)", line (\d+|\?+) in (.+)', line)
        if head:
            threads.append({"name": head[2], "frames": [], "main": head[1] != "Thread"})
        elif frame and threads and len(threads[-1]["frames"]) < DEEPEST:
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1]["frames"].append([frame[3], frame[1], number])
    threads.sort(key=lambda each: not each.pop("main"))
    return threads


def flight(data: Optional[bytes]) -> Optional[List[Dict[str, Any]]]:
    """Return each group's last collectives from PyTorch's flight recorders: those that have not ended, and
    the newest one; * in place of a backend: nothing was begun in that group. None: no answer."""
    try:
        records = [json.loads(line) for line in (data or b"-").splitlines()]
        groups = groups_of([entry for each in records for entry in each["entries"]])
        begun = {each["group"].partition(" ")[2] for each in groups}
        others = [name for each in records for name in each.get("groups", ()) if name not in begun]
        return groups + [{"group": "* %s" % name, "last": 0, "p2p": 0, "calls": []} for name in others]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def groups_of(entries: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return each process group's name, the number of its last collective, and the calls of interest."""
    groups = {}  # type: Dict[str, Dict[str, Any]]
    for each in entries:
        # A group has a backend for each kind of device, and each of these counts for itself.
        backend = str(each.get("profiling_name")).partition(":")[0]
        name = "%s %s" % (backend, (each.get("process_group") or [each.get("pg_id")])[0])
        group = groups.setdefault(name, {"group": name, "last": 0, "p2p": 0, "calls": []})
        group["last"] = max(group["last"], each["collective_seq_id"])
        if each.get("is_p2p"):
            group["p2p"] = max(group["p2p"], each.get("p2p_seq_id") or 0)
            continue
        done = each.get("retired") or each.get("state") == "completed"
        group["calls"].append(
            {
                "number": each["collective_seq_id"],
                "name": str(each.get("profiling_name")),
                "sizes": each.get("input_sizes"),
                "pending": not done,
                "started": each.get("state") == "started",
            }
        )
    for group in groups.values():
        pending = [each for each in group["calls"] if each["pending"]]
        group["calls"] = pending[:20] or group["calls"][-1:]
    return list(groups.values())


def read(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def stat(pid: int, thread: Optional[int] = None) -> Optional[Dict[str, Any]]:
    """Return state, parent and processor seconds of a process, or of one thread of it (proc(5)); `all_cpu`:
    with those of its children that have ended."""
    path = "/proc/%d/stat" % pid if thread is None else "/proc/%d/task/%d/stat" % (pid, thread)
    fields = (read(path) or b"").rpartition(b")")[2].split()
    if len(fields) < 15:
        return None
    own, ended = (sum(map(int, fields[at : at + 2])) / TICK for at in (11, 13))
    return {"state": fields[0].decode(), "parent": int(fields[1]), "cpu": own, "all_cpu": own + ended}


def wanted(pids: List[int]) -> Dict[int, float]:
    """Return, by thread, the seconds in which it had a processor, or waited for one."""
    return {task: spent / 1e9 for pid in pids for task, spent in threads(pid).items()}


def share(before: Dict[int, float], after: Dict[int, float], seconds: float) -> float:
    """Return the same of the busiest thread, as a share of the time that has passed."""
    gains = [spent - before[task] for task, spent in after.items() if task in before]
    return max(gains, default=0.0) / seconds


def waited_for(pids: List[int]) -> Dict[str, str]:
    """Return, by thread in uninterruptible sleep, what its disk has done so far, where that is known."""
    every = [(pid, task) for pid in pids for task in tasks(pid)]
    waits = [each for each in every if (stat(*each) or {}).get("state") == "D"]
    return {str(task): done for pid, task in waits for done in [disk_of(pid, task)] if done}


def differs(one: Dict[str, Any], other: Dict[str, Any]) -> bool:
    """Return whether, from a sample to the next, a disk has worked for a thread that waits for it all the
    time."""
    both = one["disk"].keys() & other["disk"].keys()
    return any(one["disk"][task] != other["disk"][task] for task in both)


def disk_of(pid: int, task: int) -> Optional[str]:
    """Return what the disk, or the server, of the file in a thread's call has read and written so far; None:
    it is not known. Nothing here asks the file system itself, which may never answer."""
    call = (read("/proc/%d/task/%d/syscall" % (pid, task)) or b"").split()
    if len(call) < 2 or not call[0].isdigit():
        return None
    info = read("/proc/%d/fdinfo/%d" % (pid, int(call[1], 16))) or b""
    number = re.search(rb"mnt_id:\s*(\d+)", info)
    lines = (read("/proc/%d/mountinfo" % pid) or b"").splitlines()
    mount = next((each.split() for each in lines if number and each.split()[0] == number[1]), None)
    if mount is None:
        return None
    done = b" ".join((read("/sys/dev/block/%s/stat" % mount[2].decode()) or b"").split()[:8])
    mount_words = (read("/proc/%d/mountstats" % pid) or b"").partition(b" on %s with" % mount[4])[2]
    done = done or mount_words.partition(b"\ndevice ")[0].partition(b"bytes:")[2].partition(b"\n")[0]
    return done.decode() or None


def io(pid: int) -> int:
    """Return the bytes that a process has read and written so far; 0 where the kernel does not report them.
    Bytes from a disk are added: a program that maps a file, as safetensors does, reads it without a call."""
    counters = read("/proc/%d/io" % pid) or b""
    counts = re.findall(rb"^(?:[rw]char|(?:read|write)_bytes): (\d+)", counters, re.MULTILINE)
    return sum(map(int, counts))


def children(pid: int) -> List[int]:
    """Return all processes below one."""
    return sorted((offspring(pid) or {pid}) - {pid})


def odd(pid: int) -> List[Dict[str, Any]]:
    """Return children that are stopped, in a debugger, or in uninterruptible sleep."""
    listed = []
    for child in children(pid):
        state = (stat(child) or {}).get("state")
        if state in ("T", "t", "D"):
            name = (read("/proc/%d/comm" % child) or b"").decode("utf-8", "replace").strip()
            listed.append({"pid": child, "state": state, "name": name})
    return listed


def tracer(pid: int) -> Optional[str]:
    """Return the program that traces a process, such as a debugger."""
    match = re.search(rb"TracerPid:\s*(\d+)", read("/proc/%d/status" % pid) or b"")
    if not match or match[1] == b"0":
        return None
    name = (read("/proc/%d/comm" % int(match[1])) or b"?").decode("utf-8", "replace").strip()
    return "%s (process %d)" % (name, int(match[1]))


def xids() -> List[str]:
    """Return what the NVIDIA driver has logged of its GPUs' errors, the newest last."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        matches = [XID.search(each) for each in records(log)]
    finally:
        os.close(log)
    return [each[0][:300] for each in matches if each][-5:]
