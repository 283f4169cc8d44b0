"""What a benchmark ran on."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

BEAT = """
import time, torch
torch.set_num_threads(1)
matrix, memory = torch.ones(256, 256), torch.zeros(1 << 19)
while True:
    began = time.process_time()
    for _ in range(3):
        torch.mm(matrix, matrix)
        memory.add_(1.0)
    print(time.monotonic(), time.process_time() - began, flush=True)
    time.sleep(0.2)
"""


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def ticks() -> tuple[int, int]:
    """Of all processors together, until now: in all, and those that a virtual machine wanted and its host
    gave to others (proc(5), /proc/stat)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[7]


def stolen(since: tuple[int, int]) -> float:
    """The share of the machine's time that its host has given to others since then."""
    (now, gone), (before, gone_before) = ticks(), since
    return (gone - gone_before) / max(1, now - before)


class Pulse:
    """How fast the machine's processor is, all the time: CPU seconds of a little work, five times a second.

    What else runs on the same processor, outside this machine, is seen in nothing but this.
    """

    def __init__(self) -> None:
        self.beats: list[tuple[float, float]] = []

    def __enter__(self) -> Pulse:
        self._process = subprocess.Popen([sys.executable, "-c", BEAT], stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            when, took = line.split()
            self.beats.append((float(when), float(took)))

    def speed(self, since: float, until: float) -> float:
        """Between two moments of time.monotonic(), over the usual one: the median of all until now."""
        during = [took for when, took in self.beats if since <= when <= until]
        usual = statistics.median(took for _, took in self.beats)
        return usual / statistics.fmean(during) if during else 1.0

    def wait(self, beats: int) -> None:
        """Until so many have been counted."""
        while len(self.beats) < beats:
            if self._process.poll() is not None:
                raise SystemExit("the processor's speed cannot be measured")
            time.sleep(0.2)
