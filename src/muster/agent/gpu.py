"""The NVIDIA GPUs of a host, as the driver's own library reports them."""

from __future__ import annotations

import ctypes
import os
import threading

from .talk import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

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
PATIENCE = 60.0  # seconds in which the driver has to answer
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
    """NVIDIA's management library, where it is installed. Every figure that it does not provide is None."""

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
        """Return the GPUs that this process may ask for; 0 where the library does not answer."""
        count = ctypes.c_uint()
        if self.lib is None:
            return 0
        code = self.lib.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if code:
            self.trouble = nvml_error(self.lib, code)
        return 0 if code else count.value

    def handles(self) -> List[Any]:
        """Return the GPUs, or the one slice of a GPU, that CUDA would number from 0 on. Raises Problem where
        one of them does not answer."""
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
        """Return the GPU of an entry of CUDA_VISIBLE_DEVICES: its number, its UUID or a slice's, or the
        beginning of one GPU's UUID. None: there is no such GPU. Raises Problem."""
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
        """Return the GPU of this number. Raises Problem where it does not answer."""
        handle = ctypes.c_void_p()
        code = self.lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if code:
            raise no_answer("GPU %d" % index, nvml_error(self.lib, code))
        return handle

    def one_slice(self, handles: List[Any]) -> List[Any]:
        """Return what CUDA uses of these: of a GPU in MIG mode one slice, the first that it may, and then no
        other GPU (NVIDIA's Multi-Instance GPU user guide, "CUDA Visible Devices")."""
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
        """Return what a call writes into a buffer, or None where it fails."""
        buffer = ctypes.create_string_buffer(96)
        failed = getattr(self.lib, name)(handle, buffer, ctypes.c_uint(96))
        return None if failed else buffer.value.decode("utf-8", "replace")

    def numbers(self, name: str, handle: Any, count: int, kind: Any, *before: Any) -> Optional[List[int]]:
        """Return `count` numbers of `kind` from a call, or None where it fails."""
        array = (kind * count)()
        function = getattr(self.lib, name, None)
        if function is None or function(handle, *before, ctypes.byref(array)) != 0:
            return None
        return [int(value) for value in array]

    def facts(self) -> List[Dict[str, Any]]:
        """Return name, memory in bytes and compute capability of each GPU. Raises Problem where one does not
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
        """Return how many processes compute on the GPU that are not among our `own`. None: the driver does
        not report them, or numbers processes in another way (those of a container)."""
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
    """Return NVIDIA's text for an error code."""
    lib.nvmlErrorString.restype = ctypes.c_char_p
    return "%s (NVML error %d)" % ((lib.nvmlErrorString(code) or b"").decode("utf-8", "replace"), code)


def no_answer(which: str, why: str) -> Problem:
    return Problem("%s does not answer: %s" % (which, why), DRIVER_HINT, "gpu_hardware")


def gpu_facts() -> List[Dict[str, Any]]:
    """Return facts about the GPUs. Raises Problem where the driver has more of them than it shows: a job must
    not move to the CPUs, or to fewer GPUs, because of that."""
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
    asking.join(PATIENCE)
    if not results:
        raise Problem("the NVIDIA driver did not answer within %d s" % PATIENCE, DRIVER_HINT, "gpu_hardware")
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
    """Return how many GPUs the kernel has for this process. `usable`: NVIDIA's library is installed, so that
    missing files in /dev would be made; without it this may be a container without GPUs."""
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


def gpu_mask() -> Optional[List[str]]:
    """Return the entries of CUDA_VISIBLE_DEVICES: GPUs that this process may use. None: all of them."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [word.strip() for word in value.split(",") if word.strip()]
