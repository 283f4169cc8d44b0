"""Samples a host while a job runs: processors, memory, GPUs, and what each rank does."""

from __future__ import annotations

import collections
import os
import threading
import time

from .gpu import Nvml
from .pace import PaceSampler
from .proc import meminfo, tree
from .talk import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Sequence


class Sampler(threading.Thread):
    """Samples the host in a thread of its own: a GPU that hangs must not hang the agent."""

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
