"""The agent: starts a host's ranks, watches them, samples the hardware, and never outlives its job.

One file, standard library alone, Python >= 3.8: the launchers send this text to a bare host. It speaks JSON
lines:
  in   spec, verify, tree, blob, start, ping, look, stop
  out  hello, verified, lacks, brought, beat, event (a rank's own line, unchanged), log, hardware, looked,
       exit, error
It ends the ranks' whole process tree when its input closes, when the controller is silent for longer than the
lease, when it is signalled, when its parent is gone, or when its deadline passes. It kills by process id: the
descendants of this process, and processes that carry this job's token in their environment. Never by name.
"""

from __future__ import annotations

import binascii
import collections
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

# What every host imports before it answers is kept short: the rest is imported where it is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

TICK = 0.1  # seconds between two looks at what ranks write, where there is more to be read
GATHER = 0.6  # where there is not: a ping comes between two of them, so that both wake the agent once
MANY = 1 << 16  # bytes of a look after which there is more
BEAT = 1.0  # seconds between signs of life, which messages ask for
GRACE = 1.5  # seconds between SIGTERM and SIGKILL
# Bytes waiting to be sent above which files are not read further: they keep what is unsent.
OUT_LIMIT = 1 << 20
ORDERLY = ("stopped", "deadline")  # ends of a job whose controller is still there
LEAST_ROOM = 1 << 20  # free bytes below which a disk counts as full
PULSE = struct.Struct("<QQ48s")  # a rank's file rankN.pulse: its steps, signs of life, phase
BACKLOG = 4096  # ranks that may wait at the port at a time
# Of ranks on the CPU, where the recipe does not say otherwise. If torch sees a GPU, it asks for the GPU's
# random state at every checkpoint, and takes memory there. An empty list hides all GPUs of CUDA, HIP, ROCm.
ON_CPU = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
}
# What mpirun and srun tell the one process that they started: its ranks are others.
NOT_THEIRS = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "SLURM_PROCID", "SLURM_LOCALID")
# What mpirun, srun, and the launchers of MPICH and Intel MPI call torchrun's variables.
NAMES = {
    "ompi": {
        "OMPI_COMM_WORLD_RANK": "RANK",
        "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
        "OMPI_COMM_WORLD_NODE_RANK": "LOCAL_RANK",  # among the host's, of all jobs there
        "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
        "OMPI_UNIVERSE_SIZE": "WORLD_SIZE",
    },
    "slurm": {
        "SLURM_PROCID": "RANK",
        "SLURM_NTASKS": "WORLD_SIZE",
        "SLURM_NPROCS": "WORLD_SIZE",
        "SLURM_LOCALID": "LOCAL_RANK",
        "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
        "SLURM_NODEID": "NODE_RANK",
        "SLURM_NNODES": "NNODES",
    },
    "pmi": {
        "PMI_RANK": "RANK",
        "PMI_SIZE": "WORLD_SIZE",
        "MPI_LOCALRANKID": "LOCAL_RANK",
        "MPI_LOCALNRANKS": "LOCAL_WORLD_SIZE",
    },
}
PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "datasets",
    "peft",
    "trl",
    "pydantic",
    "tokenizers",
    "numpy",
)


KEPT_DAYS = 30  # that a file of code is kept on a host after it was used last
SETUP_SECONDS = 60.0  # that launch.setup may take
# Shells that nobody logs in to often lack `module` and `conda activate`, though the host has them.
SETUP = r"""
setup=$MUSTER_SETUP; unset MUSTER_SETUP; out=$1; set --
type module >/dev/null 2>&1 || for f in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh \
    /etc/profile.d/z00_lmod.sh /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    if [ -r "$f" ]; then . "$f"; break; fi
done
if [ "$(type -t conda)" != function ]; then
    f=${CONDA_EXE:-$(command -v conda)}; f=${f%/*/*}/etc/profile.d/conda.sh
    if [ -r "$f" ]; then . "$f"; fi
fi
set -e
if [ -f "$setup" ]; then . "$setup"; else eval "$setup"; fi
env -0 >&"$out"
"""

# Packages' versions as the ranks will see them, by the names of the folders that tell them: the library's own
# way, of which the import alone takes longer, is for what an older installer left. Not of the folder where it
# begins.
VERSIONS = r"""
import os, sys
sys.path = [p for p in sys.path if p]
plain = lambda name: name.lower().replace("-", "_").replace(".", "_")
found, old = {}, []
for folder in sys.path:
    for entry in os.listdir(folder) if os.path.isdir(folder) else []:
        if entry.endswith(".dist-info"):
            name, _, version = entry[:-10].rpartition("-")
            found.setdefault(plain(name), version)
        elif ".egg" in entry:
            old.append(plain(entry))
print("python", sys.version.split()[0], sep="	")
for name in sys.argv[1:]:
    version = found.get(plain(name), "")
    if not version and any(entry.startswith(plain(name)) for entry in old):
        from importlib import metadata
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    print(name, version, sep="	")
"""


class Problem(Exception):
    """Something that the user can mend: what, a hint, and its id in the table of failures."""

    def __init__(self, what: str, hint: Optional[str] = None, failure: Optional[str] = None) -> None:
        super().__init__(what)
        self.hint, self.failure = hint, failure


class Tail:
    """Reads the complete lines that a growing file has gained."""

    def __init__(self, path: str, kind: str, rank: Optional[int]) -> None:
        self.path, self.kind, self.rank = path, kind, rank
        self.offset = 0

    def left(self) -> int:
        """Bytes that were not read yet; a file that is not there has none."""
        try:
            return max(0, os.stat(self.path).st_size - self.offset)
        except OSError:
            return 0

    def read(self, final: bool = False, limit: int = 256 * 1024) -> List[str]:
        """New lines since the last call; `final` takes an unfinished last line too."""
        if not self.left():
            return []
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(limit)
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        if self.kind == "log":  # a progress bar's lines end with CR alone; a last one may be half of CRLF
            end = max(end, data.rfind(b"\r", 0, max(0, len(data) - 1)) + 1)
        if end == 0 and self.kind == "event" and len(data) == limit:
            return self.read(final, limit * 4)  # an event is sent whole, however long
        if end == 0 and self.kind == "log" and (final or len(data) == limit):
            end = len(data)
        self.offset += end
        text = data[:end].decode("utf-8", "replace")
        if self.kind == "log":
            return text.splitlines()
        return text.split("\n")[:-1]  # JSON may hold other line ends, such as U+2028


# NVIDIA's management library: by name, and where the loader does not look (Kubernetes, Colab, WSL).
NVML = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib64-nvidia/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
)
DRIVER_HINT = (
    "nvidia-smi on that host; after a driver's upgrade reboot it; CUDA_VISIBLE_DEVICES leaves GPUs out; "
    "launch.device=cpu for CPUs alone"
)
# SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown. A power limit that is reached is how it is set.
SLOWED = 0x08 | 0x20 | 0x40 | 0x80


class GpuProcess(ctypes.Structure):
    """nvml.h: nvmlProcessInfo_v2_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("part", ctypes.c_uint),
    ]


class Nvml:
    """NVIDIA's management library, where there is one. Every figure it cannot give is None."""

    def __init__(self, only: Optional[List[int]] = None) -> None:
        self.only = only  # numbers of GPUs as CUDA has them; None: all
        self.lib = None  # type: Any
        self.trouble = "%s is not found" % NVML[0]  # type: Optional[str]
        for name in NVML:
            try:
                lib = ctypes.CDLL(name)
            except OSError:
                continue
            code = lib.nvmlInit_v2()
            self.lib, self.trouble = (None, nvml_error(lib, code)) if code else (lib, None)
            break

    def count(self) -> int:
        """GPUs that this process may ask for; 0 where the library does not say."""
        count = ctypes.c_uint()
        if self.lib is None:
            return 0
        code = self.lib.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if code:
            self.trouble = nvml_error(self.lib, code)
        return 0 if code else count.value

    def handles(self) -> List[Any]:
        """The GPUs, or the one slice of a GPU, that CUDA would number from 0 on. Raises Problem where one of
        them does not answer."""
        count, mask = self.count(), gpu_mask()
        listed = []  # type: List[Any]
        for word in mask if mask is not None else map(str, range(count)):
            handle = self.named(word, count)
            if handle is None:
                break  # CUDA ends its list at the first entry that it does not know
            listed.append(handle)
        listed = self.one_slice(listed)
        return [handle for index, handle in enumerate(listed) if self.only is None or index in self.only]

    def named(self, word: str, count: int) -> Any:
        """The GPU of an entry of CUDA_VISIBLE_DEVICES: its number, its UUID or a slice's, or the beginning of
        one GPU's UUID. None: there is no such GPU. Raises Problem."""
        if word.isdigit():
            return self.at(int(word)) if int(word) < count else None
        handle = ctypes.c_void_p()
        if self.lib is None or not word.startswith(("GPU-", "MIG-")):
            return None
        if self.lib.nvmlDeviceGetHandleByUUID(word.encode(), ctypes.byref(handle)) == 0:
            return handle
        begin = []
        for index in range(count if word.startswith("GPU-") else 0):
            try:
                handle = self.at(index)
            except Problem:  # this entry may name another one
                continue
            if (self.text("nvmlDeviceGetUUID", handle) or "").startswith(word):
                begin.append(handle)
        return begin[0] if len(begin) == 1 else None

    def at(self, index: int) -> Any:
        """The GPU of this number. Raises Problem where it does not answer."""
        handle = ctypes.c_void_p()
        code = self.lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if code:
            raise no_answer("GPU %d" % index, nvml_error(self.lib, code))
        return handle

    def one_slice(self, handles: List[Any]) -> List[Any]:
        """CUDA uses one slice of a GPU in MIG mode, the first that it may, and then nothing beside it
        (NVIDIA's Multi-Instance GPU user guide, "CUDA Visible Devices")."""
        whole = []
        for handle in handles:
            part = ctypes.c_uint()
            asked = getattr(self.lib, "nvmlDeviceIsMigDeviceHandle", None)
            if asked is not None and asked(handle, ctypes.byref(part)) == 0 and part.value:
                return [handle]
            modes = (ctypes.c_uint * 2)()  # now, and after the next reset
            asked = getattr(self.lib, "nvmlDeviceGetMigMode", None)
            if asked is None or asked(handle, ctypes.byref(modes), ctypes.byref(modes, 4)) or not modes[0]:
                whole.append(handle)
                continue
            for index in range(
                (self.numbers("nvmlDeviceGetMaxMigDeviceCount", handle, 1, ctypes.c_uint) or [0])[0]
            ):
                slice_ = ctypes.c_void_p()
                if self.lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, index, ctypes.byref(slice_)) == 0:
                    return [slice_]
        return whole

    def text(self, name: str, handle: Any) -> Optional[str]:
        """What a call writes into a buffer, or None where it fails."""
        buffer = ctypes.create_string_buffer(96)
        failed = getattr(self.lib, name)(handle, buffer, ctypes.c_uint(96))
        return None if failed else buffer.value.decode("utf-8", "replace")

    def numbers(self, name: str, handle: Any, count: int, kind: Any, *before: Any) -> Optional[List[int]]:
        """A call that fills `count` numbers of `kind`, or None where it fails."""
        array = (kind * count)()
        function = getattr(self.lib, name, None)
        if function is None or function(handle, *before, ctypes.byref(array)) != 0:
            return None
        return [int(value) for value in array]

    def facts(self) -> List[Dict[str, Any]]:
        """Name, memory in bytes and compute capability of each GPU. Raises Problem where one does not
        answer."""
        gpus = []
        for index, handle in enumerate(self.handles()):
            name = self.text("nvmlDeviceGetName", handle)
            memory = self.numbers("nvmlDeviceGetMemoryInfo", handle, 3, ctypes.c_ulonglong)
            if name is None and memory is None:
                code = self.lib.nvmlDeviceGetMemoryInfo(handle, (ctypes.c_ulonglong * 3)())
                among = "" if gpu_mask() is None else " of those in CUDA_VISIBLE_DEVICES"
                raise no_answer("GPU %d%s" % (index, among), nvml_error(self.lib, code))
            able = (ctypes.c_int * 2)()
            asked = self.lib.nvmlDeviceGetCudaComputeCapability
            answered = asked(handle, ctypes.byref(able), ctypes.byref(able, 4)) == 0
            gpus.append(
                {
                    "name": name,
                    "memory_total": memory[0] if memory else None,
                    "capability": list(able) if answered else None,
                }
            )
        return gpus

    def strangers(self, handle: Any, own: Set[int]) -> Optional[int]:
        """How many processes compute on the GPU that are not among our `own`. None: the driver does not say,
        or names processes by numbers that are not ours (a container's are others)."""
        function = getattr(self.lib, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        count, entries = ctypes.c_uint(64), (GpuProcess * 64)()
        if function is None or function(handle, ctypes.byref(count), entries) != 0:
            return None
        pids = {each.pid for each in entries[: count.value]}
        return len(pids - own) if pids & own else None

    def sample(self, handles: List[Any], own: Set[int]) -> List[Dict[str, Optional[int]]]:
        samples = []
        for handle in handles:
            use = self.numbers("nvmlDeviceGetUtilizationRates", handle, 2, ctypes.c_uint)
            memory = self.numbers("nvmlDeviceGetMemoryInfo", handle, 3, ctypes.c_ulonglong)
            heat = self.numbers("nvmlDeviceGetTemperature", handle, 1, ctypes.c_uint, 0)
            power = self.numbers("nvmlDeviceGetPowerUsage", handle, 1, ctypes.c_uint)
            clock = self.numbers("nvmlDeviceGetClockInfo", handle, 1, ctypes.c_uint, 1)
            why = self.numbers("nvmlDeviceGetCurrentClocksThrottleReasons", handle, 1, ctypes.c_ulonglong)
            samples.append(
                {
                    "percent": use[0] if use else None,
                    "memory_used": memory[2] if memory else None,
                    "celsius": heat[0] if heat else None,
                    "milliwatts": power[0] if power else None,
                    "sm_mhz": clock[0] if clock else None,
                    "slowed": why[0] & SLOWED if why else None,
                    "strangers": self.strangers(handle, own),
                }
            )
        return samples


def nvml_error(lib: Any, code: int) -> str:
    """What NVIDIA's library calls an error."""
    lib.nvmlErrorString.restype = ctypes.c_char_p
    return "%s (NVML error %d)" % ((lib.nvmlErrorString(code) or b"").decode("utf-8", "replace"), code)


def no_answer(which: str, why: str) -> Problem:
    return Problem("%s does not answer: %s" % (which, why), DRIVER_HINT, "gpu_hardware")


def gpu_facts(patience: float = 60.0) -> List[Dict[str, Any]]:
    """What GPUs there are. Raises Problem where the driver knows of more than it shows: a job must not move
    to the CPUs, or to fewer GPUs, because of that."""
    if gpu_mask() == []:
        return []
    results = []  # type: List[Any]

    def ask() -> None:
        nvml = Nvml()
        try:
            results.append((nvml.facts(), nvml.count(), gpu_files(nvml.lib is not None), nvml.trouble))
        except Problem as problem:
            results.append(problem)
        except Exception as error:  # a library that lacks what is asked for
            results.append(Problem("NVIDIA's library cannot be asked: %s" % error, DRIVER_HINT, "no_gpu"))

    asking = threading.Thread(target=ask, daemon=True)  # a driver that hangs must not hang the agent
    asking.start()
    asking.join(patience)
    if not results:
        raise Problem("the NVIDIA driver did not answer within %d s" % patience, DRIVER_HINT, "gpu_hardware")
    if isinstance(results[0], Problem):
        raise results[0]
    gpus, count, there, trouble = results[0]
    if count < there:
        what = "the kernel has %d NVIDIA GPU%s, and the driver shows %s" % (
            there,
            "s"[: there > 1],
            count or "none",
        )
        raise Problem("%s: %s" % (what, trouble) if trouble else what, DRIVER_HINT, "no_gpu")
    return list(gpus)


def gpu_files(usable: bool, dev: str = "/dev", proc: str = "/proc/driver/nvidia/gpus") -> int:
    """How many GPUs the kernel has for this process. `usable`: NVIDIA's library is there, so that files in
    /dev that are not made yet would be made; without it this may be a container without GPUs."""
    names = [name for name in os.listdir(dev) if name[:6] == "nvidia" and name[6:].isdigit()]
    if not names:
        return len(os.listdir(proc)) if usable and os.path.isdir(proc) else 0
    there = 0
    for name in names:
        try:
            os.close(os.open(os.path.join(dev, name), os.O_RDWR | os.O_NONBLOCK))
        except PermissionError:  # Slurm's and Docker's control groups leave the file and refuse its use
            continue
        except OSError:
            pass
        there += 1
    return there


class Sampler(threading.Thread):
    """Samples the host in a thread of its own: a GPU that hangs must not hang the agent."""

    def __init__(self, seconds: float, gpus: Optional[List[int]] = None, pace: Any = None) -> None:
        super().__init__(daemon=True)
        self.seconds = seconds
        self.pace = pace  # samples the ranks: pace.py
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
            at, activity = time.monotonic(), self.pace.sample(pids) if self.pace else {}
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


def gpu_mask() -> Optional[List[str]]:
    """The entries of CUDA_VISIBLE_DEVICES: GPUs that are ours to use. None: all of them."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [word.strip() for word in value.split(",") if word.strip()]


def cpu_times(path: str = "/proc/stat") -> Optional[List[float]]:
    """Seconds of the cores that this process may use: idle, in all, of processes, and those that a virtual
    machine's own host gave to others (proc(5), /proc/stat); None where the kernel does not say.

    What processes used is what is left of the clock: most kernels count `user` and `system` by looking at
    each tick, which was 14 % too much where a quota stops processes between ticks. Idle time they measure."""
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


def free_bytes(folder: str) -> Optional[int]:
    """Of the file system that a folder is on; None where there is no such folder."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def meminfo() -> Dict[str, int]:
    """/proc/meminfo in bytes; empty where there is none."""
    lines = (read_text("/proc/meminfo") or "").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if "kB" in line}


def system() -> str:
    """As `platform.platform()` says it, which starts a process for it."""
    about = os.uname()
    try:
        library = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    except (ValueError, OSError):
        library = ""
    return "-".join([about.sysname, about.release, about.machine] + (["with", library] if library else []))


def processor(path: str = "/proc/cpuinfo") -> Optional[str]:
    """The processor's model; None where the kernel does not report it."""
    try:
        with open(path, errors="replace") as file:
            named = (line.split(":", 1)[1] for line in file if line.startswith("model name") and ":" in line)
            return " ".join(next(named, "").split()) or None
    except OSError:
        return None


def memory_groups(root: str, own: str, first: str, second: str) -> List[str]:
    """Files of this process's control groups for memory and of those above them, the innermost first. Version
    1 calls the file `first`, version 2 `second`."""
    paths = []
    groups = [line.split(":", 2) for line in (read_text(own) or "").splitlines()]
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if not controllers or "memory" in controllers.split(","):
            top, name = (root + "/memory", first) if controllers else (root, second)
            parts = [part for part in path.split("/") if part]
            paths += [os.path.join(top, *parts[:depth], name) for depth in range(len(parts), -1, -1)]
    return paths


def memory_limit(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Optional[int]:
    """The least memory that this process's control groups, or those above them, allow; None: no limit."""
    files = memory_groups(root, own, "memory.limit_in_bytes", "memory.max")
    texts = [(read_text(file) or "").strip() for file in files]
    # Version 1 says 1 << 60 or more where there is no limit.
    return min((int(text) for text in texts if text.isdigit() and int(text) < 1 << 60), default=None)


class KernelWatch:
    """What the kernel says of its out-of-memory killer: how many processes it has ended since this was made.

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
        """Of the log since then, those that name a process that was killed."""
        if self.log is None:
            return None
        kills = []
        for _ in range(100000):
            try:
                record = os.read(self.log, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the kernel has written over what was not read yet
                    continue
                break
            if not record:
                break
            text = record.split(b"\n", 1)[0].partition(b";")[2].decode("utf-8", "replace")
            if "Killed process" in text or "oom-kill:" in text:
                kills.append(text[:300])
        return kills[-20:]

    def look(self) -> Dict[str, Any]:
        """-> {"group": kills or None, "machine": kills or None, "log": lines or None}."""
        now, changes = self.counts(), {}  # type: Dict[str, Optional[int]], Dict[str, Any]
        for name, before in self.before.items():
            after = now[name]
            changes[name] = None if before is None or after is None else max(0, after - before)
        changes["log"] = self.lines()
        return changes


def group_counter(root: str, own: str) -> Optional[str]:
    """The file in which this process's control group counts what the out-of-memory killer ended."""
    files = memory_groups(root, own, "memory.oom_control", "memory.events")
    return next(
        (file for file in files if oom_kills(file) is not None), None
    )  # a container may see the top only


def oom_kills(path: str) -> Optional[int]:
    for line in (read_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
            return int(words[1])
    return None


def process_ids() -> Set[int]:
    """Of everything on this machine."""
    return {int(name) for name in (os.listdir("/proc") if os.path.isdir("/proc") else []) if name.isdigit()}


def proc_stats(pids: Optional[Set[int]] = None) -> Dict[int, List[bytes]]:
    """Process id -> the fields of its /proc/PID/stat, from its state on; of all, or of these."""
    stats = {}
    for pid in process_ids() if pids is None else pids:
        fields = from_proc("%d/stat" % pid).rpartition(b")")[2].split()
        if fields:
            stats[pid] = fields
    return stats


def from_proc(name: str) -> bytes:
    """A file of /proc; empty where the process has ended, or is not to be read. Without Python's own files,
    which cost more than the reading where there are thousands of processes."""
    parts = []  # type: List[bytes]
    try:
        file = os.open("/proc/" + name, os.O_RDONLY)
        try:
            while not parts or len(parts[-1]) == MANY:
                parts.append(os.read(file, MANY))
        finally:
            os.close(file)
    except OSError:
        pass
    return b"".join(parts)


def offspring() -> Optional[Set[int]]:
    """This process and its descendants by the kernel's own lists, which cost no look at every process of the
    machine; one that begins or ends in this moment may be missing. None: this kernel keeps no lists."""
    family, waiting = set(), [os.getpid()]  # type: Set[int], List[int]
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


def proc_table(pids: Optional[Set[int]] = None) -> Dict[int, int]:
    """Process id -> parent's id, of everything that lives (zombies left out), or of what lives of these."""
    stats = proc_stats(pids).items()
    return {pid: int(each[1]) for pid, each in stats if len(each) > 1 and each[0] not in (b"Z", b"X")}


def descent(table: Dict[int, int]) -> Set[int]:
    """This process and its descendants."""
    family = {os.getpid()}
    while True:
        more = {pid for pid, parent in table.items() if parent in family and pid not in family}
        if not more:
            return family
        family |= more


def tree() -> Tuple[Set[int], float]:
    """This process and its descendants; and the seconds that these have run, with their children that have
    ended."""
    listed = offspring()
    stats = {pid: each for pid, each in proc_stats(listed).items() if len(each) > 14}
    pids = listed or descent({pid: int(each[1]) for pid, each in stats.items()})
    ticks = sum(int(field) for pid in pids if pid in stats for field in stats[pid][11:15])
    return pids, ticks / os.sysconf("SC_CLK_TCK")


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
    asked = {}  # type: Dict[int, float]
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


def new_folder(path: str) -> None:
    """An empty folder. What is there is left from before, and none of it may be taken for this job's."""
    try:
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.makedirs(path)
    except OSError as error:
        raise Problem("%s cannot be made anew: %s" % (path, error.strerror), "remove it there")


def full_disk(error: Exception) -> Optional[str]:
    """disk_full where that is why; else None."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "disk_full" if full else None


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def reached_at() -> Optional[str]:
    """This host's own address of the connection that it was reached by: the one it dialled, or ssh's.

    In this order: Slurm gives a job the environment of where it was submitted, SSH_CONNECTION included.
    """
    try:
        with socket.socket(fileno=os.dup(0)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                address = str(connection.getsockname()[0])
                return address[7:] if address.startswith("::ffff:") else address
    except OSError:
        pass
    ssh = os.environ.get("SSH_CONNECTION", "").split()
    return ssh[2] if len(ssh) == 4 else None


def source_address(peer: str, port: int) -> Optional[str]:
    """The address from which this host reaches `peer`. Sends nothing: a datagram socket is only connected."""
    for info in _resolve(peer, port):
        probe = socket.socket(info[0], socket.SOCK_DGRAM)
        try:
            probe.connect(info[4])
            return str(probe.getsockname()[0])
        except OSError:
            continue
        finally:
            probe.close()
    return None


def _resolve(name: str, port: int) -> List[Any]:
    try:
        return socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    except OSError:
        return []


def check_address(name: str, port: int) -> None:
    """Raise Problem for a rendezvous that this host cannot look up: its ranks would ask again for minutes."""
    for wait in (1.0, 0.0):  # a name server may have missed one question
        if _resolve(name, port):
            return
        time.sleep(wait)
    raise Problem(
        "launch.address: this host cannot look up %r" % name,
        "a name or an address of the first host that every host knows",
    )


def interface_of(address: str) -> Optional[str]:
    """The network interface that has an IPv4 address (SIOCGIFADDR), or None."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                packed = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(packed[20:24]) == address:
                return name
    return None


def network_speeds(address: Optional[str]) -> Dict[str, Any]:
    """Mbit/s that the kernel states for the card with this address, and for the fastest InfiniBand (or RoCE)
    port that is up; None where it states none, as for most virtual cards."""
    name = interface_of(address) if address else None
    speed = first_number(read_text("/sys/class/net/%s/speed" % name)) if name else None
    fastest = None  # type: Optional[float]
    root = "/sys/class/infiniband"
    for device in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        ports = os.path.join(root, device, "ports")
        for port in sorted(os.listdir(ports)) if os.path.isdir(ports) else []:
            state = read_text(os.path.join(ports, port, "state")) or ""
            rate = first_number(read_text(os.path.join(ports, port, "rate")))  # "200 Gb/sec (4X HDR)"
            if "ACTIVE" in state and rate and rate > 0:
                fastest = max(fastest or 0.0, 1000.0 * rate)
    return {
        "interface": name,
        "megabits": speed if speed and speed > 0 else None,
        "infiniband_megabits": fastest,
    }


def read_text(path: str) -> Optional[str]:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):  # a card that is down answers with EINVAL
        return None


def first_number(text: Optional[str]) -> Optional[float]:
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def bound(family: int, port: int) -> socket.socket:
    """A listening socket on every address of a family. Raises OSError."""
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", port))
        holder.listen(1)
    except OSError:
        holder.close()
        raise
    return holder


def port_problem(port: int, error: OSError) -> Problem:
    return Problem(
        "port %d cannot be used: %s" % (port, error.strerror),
        "leave launch.port out: a free one is found",
        failure="port_in_use" if error.errno == errno.EADDRINUSE else None,
    )


def environment_after(setup: str) -> Dict[str, str]:
    """The environment after a line of bash, or a file of it, has run here. Raises Problem with its output."""
    path = os.path.expanduser(setup)
    if os.path.isfile(path):
        setup = os.path.abspath(path)
    elif path.startswith(("/", ".")) and not path.split()[1:]:
        raise Problem("launch.setup: no such file: %s" % path, "a file that this host has, or a line of bash")
    # Files, since whatever the line leaves in the background may hold a pipe open for ever.
    import tempfile

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as variables:
        try:
            shell = subprocess.Popen(
                ["bash", "-c", SETUP, "bash", str(variables.fileno())],
                env=dict(os.environ, MUSTER_SETUP=setup),  # every user reads the words of a process
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[variables.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise Problem("launch.setup: bash cannot be started: %s" % error.strerror)
        try:
            shell.wait(SETUP_SECONDS)
            what = "failed with exit code %d" % shell.returncode if shell.returncode else ""
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            what = "did not end within %g s" % SETUP_SECONDS
        output.seek(0)
        lines = [
            line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()
        ]
        variables.seek(0)
        pairs = [pair.partition("=") for pair in os.fsdecode(variables.read()).split("\0") if pair]
    if what or not pairs:
        what = what or "left the shell"
        words = "; ".join(lines[-5:])[-1000:] or "it printed nothing"
        raise Problem("launch.setup %s: %s" % (what, words), "bash runs it on every host, before the ranks")
    own = {name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
    return dict({name: os.environ[name] for name in ("PWD", "SHLVL") if name in os.environ}, **own)


class Agent:
    """One host's part of one job."""

    def __init__(self) -> None:
        self.spec = {}  # type: Dict[str, Any]
        self.usual_python = shutil.which("python3")
        self.inbox = b""
        self.outbox: Deque[bytes] = collections.deque()
        self.out_bytes = 0
        self.parent = os.getppid()
        self.signalled = None  # type: Optional[int]
        self.ranks = {}  # type: Dict[int, subprocess.Popen[bytes]]  # of a command per host: its first rank
        self.births = None  # type: Optional[Births]
        self.guard = 0  # the process that ends the job's others should this one be killed
        self.redirected = ""  # where torchrun puts what its ranks print
        self.looked = 0.0  # when new files there were looked for
        self.due = 0.0  # when files of ranks are looked at again
        self.asked = False  # for a sign of life
        self.wakes = []  # type: List[int]  # a pipe: a child that ended, a signal, or a thread writes to it
        self.ended = {}  # type: Dict[int, int]  # ranks that have ended by themselves: their exit codes
        self.tails = []  # type: List[Tail]
        self.logs = collections.deque()  # type: Deque[Tail]
        self.sampler = None  # type: Optional[Sampler]
        self.port_holder = None  # type: Optional[socket.socket]
        self.heard = self.beaten = time.monotonic()
        self.deadline = None  # type: Optional[float]
        self.why = None  # type: Optional[str]
        self.mute = False
        self.place = ""
        self.handed_over = False  # everything that the ranks wrote was sent
        self.kernel = KernelWatch()
        self.keep = False  # the controller could not write it down
        self.sealed = {}  # type: Dict[str, Any]
        self.beats = {}  # type: Dict[int, int]  # of each rank, its signs of life as they were told last
        self.without_group = []  # type: List[int]
        self.told = collections.deque()  # type: Deque[Dict[str, Any]]  # by threads, to be said
        self.tree = {}  # type: Dict[str, Any]  # the code that is brought
        self.lacks = set()  # type: Set[str]
        self.kept = ""  # where contents of files stay from job to job

    # --- talking -------------------------------------------------------------------------------------------

    def say(self, message: str, **content: Any) -> None:
        content["m"] = message
        line = json.dumps(content).encode() + b"\n"
        self.outbox.append(line)
        self.out_bytes += len(line)

    def flush(self) -> None:
        """Send what the other side takes now; never wait for it: a cut link must not stop the clock."""
        while self.outbox and not self.mute:
            line = self.outbox[0]
            try:
                sent = os.write(1, line)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR):
                    self.mute = True
                    self.why = self.why or "output closed"
                return
            self.out_bytes -= sent
            if sent < len(line):
                self.outbox[0] = line[sent:]
                return
            self.outbox.popleft()

    def listen(self, seconds: float) -> List[Dict[str, Any]]:
        """Messages that have come, after waiting for at most `seconds`, or until a child ends."""
        if 0 in self.wait(seconds, [0], [1] if self.outbox and not self.mute else []):
            try:
                data = os.read(0, MANY)
            except (BlockingIOError, InterruptedError):
                return []
            except OSError:
                data = b""
            if not data:
                self.why = self.why or "input closed"
                return []
            self.inbox += data
            self.heard = time.monotonic()
            if b"\n" not in data:
                return []
        lines = self.inbox.split(b"\n")
        self.inbox = lines.pop()
        return [json.loads(line) for line in lines if line.strip()]

    def wait(self, seconds: float, read: Sequence[int] = (), write: Sequence[int] = ()) -> List[int]:
        """Until one of these can be read or written, something wakes this process, or the time is over. ->
        which can be read."""
        try:
            ready = select.select([*read, *self.wakes[:1]], write, [], seconds)[0]
        except OSError:
            return []
        if self.wakes and self.wakes[0] in ready:
            os.read(self.wakes[0], 1 << 12)
        return ready

    def tell(self, message: Dict[str, Any]) -> None:
        """Have it said, from another thread."""
        self.told.append(message)
        if self.wakes:
            os.write(self.wakes[1], b"\0")

    # --- before the start ----------------------------------------------------------------------------------

    def prepare(self, spec: Dict[str, Any]) -> None:
        """Take the job's description, look at the host, and answer with what was found."""
        self.spec = spec
        if spec.get("timeout"):
            self.deadline = time.monotonic() + spec["timeout"]
        if spec.get("setup"):  # first: it may say which GPUs are to be seen
            made = environment_after(spec["setup"])
            os.environ.clear()
            os.environ.update(made)
        shared = os.path.join(spec["run_root"], spec["nonce"])
        facts = self.facts()
        facts["shared"] = spec["shared"] = os.path.exists(shared)
        base = spec["run_dir"] if facts["shared"] else os.path.expanduser(spec["workdir"])
        facts["base"] = self.base = os.path.abspath(base)
        holder = self.base
        while not os.path.isdir(holder) and os.path.dirname(holder) != holder:
            holder = os.path.dirname(holder)
        facts["disk_free"] = shutil.disk_usage(holder).free
        checkpoints = self.checkpoints()
        facts["checkpoints"] = sorted(step for step, wrong in checkpoints.items() if wrong is None)
        facts["damaged_checkpoints"] = {str(step): wrong for step, wrong in checkpoints.items() if wrong}
        self.python = self.find_python()
        facts["python"] = self.python
        self.check_command()
        facts["versions"] = self.versions()
        if spec["node_rank"] == 0:
            facts["port"] = self.hold_port(spec.get("port") or 0)
        self.say("hello", facts=facts)

    def facts(self) -> Dict[str, Any]:
        memory = meminfo()
        address = reached_at()
        return {
            "hostname": socket.gethostname(),
            "machine": (read_text("/proc/sys/kernel/random/boot_id") or "").strip() or None,
            "system": system(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "shm": free_bytes("/dev/shm"),
            "processor": processor(),
            "memory_total": memory.get("MemTotal"),
            "memory_limit": memory_limit(),
            "gpus": [] if self.spec.get("device") == "cpu" else gpu_facts(),
            "agent_python": sys.version.split()[0],
            "address": address,
            "network": network_speeds(address),
        }

    def find_python(self) -> str:
        """The interpreter for the ranks: as asked, else launch.setup's, else the controller's own path if it
        is here, else ours."""
        asked = self.spec.get("python")
        if asked:
            path = shutil.which(os.path.expanduser(asked))
            if not path:
                raise Problem("no interpreter %s" % asked, "set launch.python to one that every host has")
            return str(path)
        candidate = shutil.which("python3")
        if candidate and candidate != self.usual_python:  # launch.setup has changed which it is
            return candidate
        own = self.spec.get("controller_python") or ""
        return own if own and os.access(own, os.X_OK) else sys.executable

    def versions(self) -> Dict[str, Optional[str]]:
        """The packages' versions as the ranks will see them, without importing any."""
        done = subprocess.run(
            [self.python, "-c", VERSIONS, *PACKAGES, *self.spec.get("packages", ())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=30,
        )
        if done.returncode != 0:
            raise Problem(
                "%s does not run: %s" % (self.python, done.stderr.decode("utf-8", "replace")[-200:].strip())
            )
        pairs = [line.split("\t") for line in done.stdout.decode().splitlines() if line.count("\t") == 1]
        return {name: version or None for name, version in pairs}

    def check_command(self) -> None:
        """Whether a command's folder, program and script are here. Raises Problem."""
        folder, program, script = (self.spec.get(name) for name in ("cwd", "program", "script"))
        hint = "`--sync DIR` brings a folder to every host; `--workdir DIR` names one that each of them has"
        if folder and not os.path.isdir(folder):
            raise Problem("there is no folder %s" % folder, hint)
        if program:
            path = os.path.join(folder or "/", program) if "/" in program else program
            if not shutil.which(path):
                raise Problem(
                    "no program %s" % program,
                    "it is looked for in PATH, or by its path; it must be executable",
                )
        if script and not os.path.isfile(os.path.join(folder or "/", script)):
            place = "" if os.path.isabs(script) else " in %s" % folder
            raise Problem("there is no script %s%s" % (script, place), hint)

    def checkpoints(self) -> Dict[int, Optional[str]]:
        """Steps of the checkpoints on this host; None: complete by its sizes, or what is wrong with one.

        Only a job that goes on from one asks: it sends the code that ranks seal them with.
        """
        steps = {}  # type: Dict[int, Optional[str]]
        if not self.spec.get("sealed"):
            return steps
        exec(self.spec["sealed"], self.sealed)
        folder = os.path.join(self.base, "checkpoints")
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            step = name[len("checkpoint-") :]
            if step.isdecimal() and len(step) < 19 and name == "checkpoint-%d" % int(step):
                steps[int(step)] = self.sealed["what_is_missing"](os.path.join(folder, name))
        return steps

    def verify(self, order: Dict[str, Any]) -> None:
        """Read a checkpoint's files and compare them with its manifest, beside the signs of life."""
        folder = os.path.join(self.base, "checkpoints", "checkpoint-%d" % order["step"])

        def look() -> None:
            began = time.monotonic()
            try:
                wrong, size = self.sealed["what_is_wrong"](
                    folder, order["digests"], order["part"], order["parts"]
                )
            except Exception as error:  # whatever is wrong with a checkpoint is no reason to end the job
                wrong, size = "it cannot be checked: %s: %s" % (type(error).__name__, error), 0
            seconds = time.monotonic() - began
            report = {"step": order["step"], "wrong": wrong, "bytes": size, "seconds": seconds}
            self.tell(dict(report, m="verified"))

        threading.Thread(target=look, daemon=True).start()

    # --- code that is brought -------------------------------------------------------------------------------

    def bring(self, order: Dict[str, Any]) -> None:
        """Take a list of files, and say which contents this host has not kept from before."""
        self.tree = order
        self.kept = os.path.join(os.path.dirname(os.path.expanduser(self.spec["workdir"])), "code")

        def look() -> None:
            os.makedirs(self.kept, exist_ok=True)
            self.lacks = {each[2] for each in order["files"] if not self.has(each[2])}
            self.tell({"m": "lacks", "digests": sorted(self.lacks)})
            if not self.lacks:
                self.assemble()

        self.beside(look)

    def kept_at(self, digest: str) -> str:
        return os.path.join(self.kept, digest)

    def part_of(self, digest: str) -> str:
        """Where it is until it is whole: of this job alone, for hosts may share the folder."""
        return "%s.%s" % (self.kept_at(digest), self.spec["token"])

    def has(self, digest: str) -> bool:
        """Whether the content was kept; it is from now on, for as long as any."""
        try:
            os.utime(self.kept_at(digest))
        except OSError:
            return False
        return True

    def blob(self, order: Dict[str, Any]) -> None:
        """A part of a file's content."""
        digest = order["digest"]
        part = self.part_of(digest)
        with open(part, "ab") as file:
            file.write(binascii.a2b_base64(order["data"]))
        if not order["last"]:
            return
        os.replace(part, self.kept_at(digest))  # whole, or not at all
        self.lacks.discard(digest)
        if not self.lacks:
            self.beside(self.assemble)

    def assemble(self) -> None:
        """Write the files in their folder, each content checked; forget what was not used for long."""
        import hashlib

        place = os.path.join(self.base, "code")
        new_folder(place)
        for path, mode, digest, _ in self.tree["files"]:
            if self.why is not None:  # the job has ended, and its folder may be gone
                return
            target = os.path.join(place, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            kept, made = self.kept_at(digest), hashlib.sha256()
            if not os.path.exists(kept):
                what = "%s is gone: another command that brought the same file has removed it" % kept
                raise Problem(what, "start again: it is sent anew")
            with open(kept, "rb") as source, open(target, "wb") as copy:
                for block in iter(lambda: source.read(1 << 20), b""):
                    made.update(block)
                    copy.write(block)
            if made.hexdigest() != digest:
                remove(kept)
                raise Problem("%s came damaged" % path, "start again: it is sent anew")
            os.chmod(target, mode)
        limit = time.time() - KEPT_DAYS * 86400
        for entry in os.scandir(self.kept):
            try:
                if entry.stat().st_mtime < limit:
                    os.unlink(entry.path)
            except OSError:  # another job's agent was here before
                pass
        self.tell({"m": "brought"})

    def beside(self, work: Callable[[], None]) -> None:
        """Do it beside the signs of life; what goes wrong is said."""

        def run() -> None:
            try:
                work()
            except Problem as problem:
                self.tell({"m": "error", "what": str(problem), "hint": problem.hint, "id": None})
            except Exception as error:
                what = "files cannot be written: %s: %s" % (type(error).__name__, error)
                self.tell({"m": "error", "what": what, "hint": None, "id": full_disk(error)})

        threading.Thread(target=run, daemon=True).start()

    def hold_port(self, wanted: int) -> int:
        """A port for the rendezvous, which no other job can take from now on: the first rank gets it open."""
        try:
            self.port_holder = bound(socket.AF_INET6, wanted)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise port_problem(wanted, error)
            try:  # a kernel without IPv6
                self.port_holder = bound(socket.AF_INET, wanted)
            except OSError as second:
                raise port_problem(wanted, second)
        return int(self.port_holder.getsockname()[1])

    # --- the ranks -----------------------------------------------------------------------------------------

    def own_place(self) -> str:
        """The folder of this host's part of the attempt."""
        return os.path.join(self.base, "hosts", "%s.attempt%d" % (self.spec["folder"], self.spec["attempt"]))

    def start(self, order: Dict[str, Any]) -> None:
        """Write the ranks' files and start the ranks."""
        spec = self.spec
        spec.update(order["host"])
        self.check_command()  # of code that was brought, which was not here before
        check_address(order["address"], order["port"])
        self.place = place = self.own_place()
        new_folder(place)
        os.chmod(place, 0o700)  # logs of ranks, as they were written
        code = os.path.join(place, "code.zip")
        with open(code, "wb") as file:
            file.write(binascii.a2b_base64(spec["code"]))
        rank_spec = dict(order["job"], base=self.base, place=place, shared=spec["shared"])
        secret = os.open(os.path.join(place, "spec.json"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(secret, "w") as file:  # it may hold tokens of the recipe's env
            json.dump(rank_spec, file)
        once = spec.get("each") == "host"  # a command that starts the host's ranks itself
        for rank in spec["ranks"]:
            self.tails.append(Tail(os.path.join(place, "rank%d.events.jsonl" % rank), "event", rank))
            if not once:
                self.tails.append(Tail(os.path.join(place, "rank%d.log" % rank), "log", rank))
        if once:
            self.tails.append(Tail(os.path.join(place, "host.log"), "log", None))
        self.logs.extend(tail for tail in self.tails if tail.kind == "log")
        env = self.environment(place, code, order)
        if self.port_holder and "each" in spec:
            self.port_holder.close()  # a command opens it by itself
            self.port_holder = None
        if self.port_holder:
            self.port_holder.listen(BACKLOG)  # others come before the first rank has imported
        self.births = Births()
        self.guard, self.unguard = guard(spec["token"], self.births)
        for local, rank in enumerate(spec["ranks"][:1] if once else spec["ranks"]):
            own, files = self.one_of(env, rank, local, order)
            with open(os.path.join(place, "host.log" if once else "rank%d.log" % rank), "ab") as log:
                try:
                    self.ranks[rank] = subprocess.Popen(
                        spec["argv"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=spec.get("cwd") or place,
                        env=own,
                        pass_fds=files,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                except OSError as error:
                    raise Problem("%s cannot be started: %s" % (spec["argv"][0], error.strerror))
        if self.port_holder:
            self.port_holder.close()
        program = {}  # type: Dict[str, Any]
        exec(spec.get("pace", ""), program)
        pace = program["PaceSampler"](spec["ranks"]) if program.get("PaceSampler") else None
        self.sampler = Sampler(
            spec["hardware_seconds"], spec.get("visible_gpus") or spec.get("used_gpus"), pace
        )
        self.sampler.start()

    def one_of(
        self, env: Dict[str, str], rank: int, local: int, order: Dict[str, Any]
    ) -> Tuple[Dict[str, str], List[int]]:
        """A rank's environment, by torchrun's names, and the files that it gets. Rank 0 gets the port at
        which all meet: MUSTER_RENDEZVOUS."""
        own = dict(
            env,
            WORLD_SIZE=str(self.spec["world_size"]),
            LOCAL_WORLD_SIZE=str(len(self.spec["ranks"])),
            NODE_RANK=str(self.spec["node_rank"]),
            MASTER_ADDR=order["address"],
            MASTER_PORT=str(order["port"]),
        )
        if "each" in self.spec:
            own["NNODES"] = str(order["nodes"])
        if self.spec.get("each") == "host":
            return own, []
        own.update(RANK=str(rank), LOCAL_RANK=str(local))
        for names in self.spec.get("names", ()):
            own.update((name, own[usual]) for name, usual in NAMES[names].items())
        if rank or not self.port_holder:
            return own, []
        return dict(own, MUSTER_RENDEZVOUS=str(self.port_holder.fileno())), [self.port_holder.fileno()]

    def look_at_ranks(self) -> Optional[int]:
        """None: they go on. 0: all have ended well. Else the exit code of one that did not; of several, one
        that a signal ended, since the others may have ended only because they missed it.

        Where ranks end each by itself (`apart`), what they ended with stands in their events, and all are
        waited for.
        """
        for rank, process in self.ranks.items():
            code = process.poll()
            if code is None or rank in self.ended:
                continue
            self.ended[rank] = code
            if code and self.spec.get("apart"):
                note = {"kind": "ended", "rank": rank, "time": time.time(), "code": code}
                with open(os.path.join(self.place, "rank%d.events.jsonl" % rank), "a") as file:
                    file.write("\n%s\n" % json.dumps(note))  # after a line that it may not have finished
        bad = {} if self.spec.get("apart") else {rank: code for rank, code in self.ended.items() if code}
        if bad:
            return bad[self.first_of(bad)]
        return 0 if self.ranks and len(self.ended) == len(self.ranks) else None

    def first_of(self, bad: Dict[int, int]) -> int:
        """The rank that ended first, as far as that can be told from how they ended."""
        return min(bad, key=lambda rank: (bad[rank] == -signal.SIGTERM, bad[rank] >= 0, rank))

    def environment(self, place: str, code: str, order: Dict[str, Any]) -> Dict[str, str]:
        """The ranks' environment: the host's, Muster's defaults where the host has none, the recipe's on
        top."""
        spec = self.spec
        env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_THEIRS)}
        env["PYTHONUNBUFFERED"] = "1"
        if spec.get("each") != "host" or spec.get("torchrun"):
            env["OMP_NUM_THREADS"] = str(spec["threads"])
        env.setdefault("TOKENIZERS_PARALLELISM", "false")
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # NVML's numbers are CUDA's
        if spec.get("visible_gpus") is not None:
            mask = gpu_mask()
            picked = spec["visible_gpus"]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(mask[i] if mask else str(i) for i in picked)
        if spec["device"] == "cpu":
            env.update(ON_CPU)
        env.update(spec["env"])
        # Last, so that nobody's variables take the place of the job's own code and token.
        env.update({"MUSTER_TOKEN": spec["token"], "MUSTER_SPEC": os.path.join(place, "spec.json")})
        if spec.get("watched"):  # what a rank says when it is asked where it stands: agent/inside.py
            env["MUSTER_WITNESS"] = place
            env.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # entries of PyTorch's flight recorder
        if "each" in spec:  # a command, whose program may call muster.step
            first = spec["ranks"][0]  # of a program that knows no rank of its own
            env.update(MUSTER_EVENTS=place, MUSTER_RANK=str(first), MUSTER_ATTEMPT=str(spec["attempt"]))
        if spec.get("torchrun"):  # its option --log-dir, and all that ranks print into files there
            self.redirected = env["PET_LOG_DIR"] = os.path.join(place, "torchrun")
            env["PET_REDIRECTS"] = "3"
        env["PYTHONPATH"] = os.pathsep.join(p for p in (code, env.get("PYTHONPATH")) if p)
        if "GLOO_SOCKET_IFNAME" not in env:  # gloo looks up the host's own name, which often means loopback
            address = source_address(order["address"], order["port"])
            interface = interface_of(address) if address else None
            if interface:
                env["GLOO_SOCKET_IFNAME"] = interface
        return env

    def find_logs(self) -> None:
        """Follow what torchrun's ranks print: DIR/RUN/attempt_N/LOCAL_RANK/stdout.log and stderr.log."""
        followed = {tail.path for tail in self.logs}
        for folder, _, files in os.walk(self.redirected):
            local = os.path.basename(folder)
            for name in sorted(files):
                path = os.path.join(folder, name)
                if name.endswith(".log") and local.isdigit() and path not in followed:
                    rank = self.spec["ranks"][0] + int(local)
                    self.logs.append(Tail(path, "log", rank if rank in self.spec["ranks"] else None))

    def read_tails(self, final: bool = False, logs: bool = True) -> bool:
        """Forward what the ranks wrote, or of it their events alone. False when everything was read."""
        more = False
        if self.redirected and (final or time.monotonic() - self.looked > BEAT):
            self.looked = time.monotonic()
            self.find_logs()
        for tail in self.tails:  # events first, whole: what a rank says must not wait for what it chatters
            if tail.kind == "event":
                lines = tail.read(final)
                if lines:
                    more = True
                    self.say(tail.kind, rank=tail.rank, lines=lines)
        for _ in range(len(self.logs) if logs else 0):
            if self.out_bytes > OUT_LIMIT:
                return True
            tail = self.logs[0]
            self.logs.rotate(-1)
            lines = tail.read(final)
            if lines:
                more = True
                self.say(tail.kind, rank=tail.rank, lines=lines)
        return more

    def end_ranks(self) -> None:
        """End every process of this job on this host."""
        token = self.spec.get("token") or ""

        def wait(seconds: float) -> None:
            self.wait(seconds)
            self.reap()
            self.flush()

        def found() -> Set[int]:  # every process of the machine is looked at once ours are gone
            table = proc_table(offspring())
            return descent(table) - {os.getpid(), self.guard} or family(token, self.births) - {self.guard}

        if token and end_all(found, wait) and self.guard:
            os.write(self.unguard, b".")

    def pulses(self) -> List[List[Any]]:
        """[rank, steps, signs of life, phase] of ranks that have done something since the last call."""
        news = []
        for rank in self.spec.get("ranks", ()) if self.place else ():
            try:
                with open(os.path.join(self.place, "rank%d.pulse" % rank), "rb") as file:
                    steps, beats, phase = PULSE.unpack(file.read(PULSE.size))
            except (OSError, struct.error):
                continue
            if self.beats.get(rank) != beats:
                self.beats[rank] = beats
                news.append([rank, steps, beats, phase.rstrip(b"\0").decode("utf-8", "replace")])
        return news

    def ungrouped(self) -> List[int]:
        """Ranks that have imported torch.distributed and called no init_process_group (inside.py)."""
        bases = {r: os.path.join(self.place, "rank%d" % r) for r in self.spec.get("ranks", ()) if self.place}
        return [r for r, b in bases.items() if os.path.exists(b + ".dist") and not os.path.exists(b + ".ask")]

    def look(self, order: Dict[str, Any]) -> None:
        """Find out where the ranks stand, by the program that came with the question."""

        def do() -> None:
            answer = {"ranks": [], "xid": []}  # type: Dict[str, Any]
            try:
                program = {}  # type: Dict[str, Any]
                exec(order["program"], program)
                answer = program["look"](self.place, self.spec["token"], self.spec["ranks"], self.python)
            except Exception as error:  # what cannot be seen is no reason to end the job
                answer["trouble"] = "%s: %s" % (type(error).__name__, error)
            self.tell(dict(answer, m="looked", number=order["number"]))

        threading.Thread(target=do, daemon=True).start()

    def reap(self) -> None:
        """Collect adopted orphans that have ended."""
        for process in self.ranks.values():
            process.poll()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass

    # --- the loop ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One look at everything."""
        # Muster's own ranks tell of each step, which is not to wait until lines of logs have gathered.
        tells = self.ranks and "each" not in self.spec
        soon = max(0.0, min(self.due, self.beaten + 1.2 * BEAT) - time.monotonic())
        for message in self.listen(min(soon, TICK) if tells else soon):
            op = message.get("op")
            self.asked = True
            if op == "spec":
                self.say("beat")  # reached: a driver that is slow to load is another matter
                self.flush()
                self.prepare(message)
                self.heard = time.monotonic()  # looking took its time; messages lie unread, not unsent
            elif op == "verify":
                self.verify(message)
            elif op == "tree":
                self.bring(message)
            elif op == "blob":
                self.blob(message)
            elif op == "start":
                self.start(message)
                self.heard = time.monotonic()
            elif op == "look":
                self.look(message)
            elif op == "stop":
                self.why = self.why or "stopped"
                self.keep = bool(message.get("keep"))
        now = time.monotonic()
        if now - self.beaten >= (BEAT / 2 if self.asked else 1.2 * BEAT):
            self.beaten, self.asked = now, False
            news, ungrouped = self.pulses(), self.ungrouped()
            news_of_ranks = {"pulses": news} if news else {}  # type: Dict[str, Any]
            if ungrouped != self.without_group:
                self.without_group = news_of_ranks["ungrouped"] = ungrouped
            self.say("beat", **news_of_ranks)
        while self.told:
            news_of_ranks = self.told.popleft()
            self.say(news_of_ranks.pop("m"), **news_of_ranks)
        if self.sampler:
            while self.sampler.samples:
                self.say("hardware", sample=self.sampler.samples.popleft())
        if now > self.due - GATHER / 2:
            before = self.out_bytes
            self.read_tails()
            self.due = now + (TICK if self.out_bytes > min(before + MANY, OUT_LIMIT) else GATHER)
        elif tells:
            self.read_tails(logs=False)
        self.flush()
        if self.signalled is not None:
            self.why = self.why or "signal %d" % self.signalled
        elif os.getppid() != self.parent:
            self.why = self.why or "parent gone"
        elif self.spec and now - self.heard > self.spec["lease"]:
            self.why = self.why or "controller silent"
        elif self.deadline is not None and now > self.deadline:
            self.why = self.why or "deadline"

    def run(self) -> int:
        """Until the ranks end or the job does. The exit code: 0 where they have ended well, else 1."""
        os.set_blocking(1, False)
        self.outbox.append(b"\n")  # ends whatever a login script printed without one
        self.out_bytes += 1
        adopt_orphans()
        self.wakes = list(os.pipe())
        for end in self.wakes:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wakes[1], warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        code = None  # type: Optional[int]
        try:
            while self.why is None and code is None:
                self.turn()
                code = self.look_at_ranks()
            # Stopped: another host may have missed these ranks first.
            if code or (self.ranks and self.why == "stopped"):
                self.look_at_disk()
        except Problem as problem:
            self.why = "error"
            self.say("error", what=str(problem), hint=problem.hint, id=problem.failure)
        except Exception as error:  # the last line of defence: say it, and still clean up
            self.why = "error"
            what = "the agent failed: %s: %s" % (type(error).__name__, error)
            self.say("error", what=what, hint=None, id=full_disk(error))
        self.end_ranks()
        self.drain()
        for digest in self.lacks:
            remove(self.part_of(digest))
        if (self.place or self.tree) and self.spec.get("scratch"):  # of this job alone, not worth keeping
            shutil.rmtree(self.base, ignore_errors=True)
        bad = {rank: code for rank, code in self.ended.items() if code}
        first = self.first_of(bad) if code else None
        self.say(
            "exit",
            code=code,
            why=self.why,
            kernel=self.kernel.look(),
            rank=None if self.spec.get("each") == "host" else first,
            pid=None if first is None else self.ranks[first].pid,
        )
        self.send_all(min(10.0, float(self.spec.get("lease", 5))))
        if self.handed_over and not self.outbox and not self.keep and self.why in (None, *ORDERLY):
            for tail in self.tails + list(self.logs):  # the controller has them, without secrets
                remove(tail.path)
            for rank in self.spec.get("ranks", ()):
                # What a rank says of where it stands.
                for kind in ("pulse", "ask", "dist", "flight", "stacks"):
                    remove(os.path.join(self.place, "rank%d.%s" % (rank, kind)))
        return 0 if code == 0 else 1

    def look_at_disk(self) -> None:
        """After a bad end: ranks without room on the disk had none for their last words either."""
        try:
            free = shutil.disk_usage(self.base).free
        except OSError:
            return
        if free < LEAST_ROOM:
            self.say(
                "error",
                what="the disk is full: %d bytes are free for %s" % (free, self.base),
                hint=None,  # the controller has the remedy
                id="disk_full",
            )

    def drain(self) -> None:
        """Forward the rest of the files while the other side takes it: all events, logs for 30 s at most.

        What is not forwarded of a log stays on the host, and the controller is told so.
        """
        limit = time.monotonic() + 30
        while self.read_tails(final=True) and not self.mute:
            if time.monotonic() > limit:
                left = sum(tail.left() for tail in self.logs)
                words = "muster: the rest of the logs, %d bytes, is in %s" % (left, self.place)
                self.say("log", rank=None, lines=[words])
                return
            self.flush()
            if self.out_bytes > OUT_LIMIT:
                select.select([], [1], [], TICK)
        self.handed_over = not self.mute

    def send_all(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while self.outbox and not self.mute and time.monotonic() < limit:
            self.flush()
            if self.outbox:
                select.select([], [1], [], TICK)

    def on_signal(self, number: int, frame: Any) -> None:
        self.signalled = number


if __name__ == "__main__":
    os._exit(Agent().run())  # nothing is left to be done, and taking an interpreter apart takes time
