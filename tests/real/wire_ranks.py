"""Ranks that call each collective once, and rank 0 tells what the loopback carried meanwhile.

To be run where nothing else uses the loopback. Prints one line: [[operation, bytes of the array, bytes
sent]].
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

SIZE = 3 * 2**22  # bytes of the array


def sent() -> int:
    """Bytes that went over the loopback."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)
    return int(line.partition(":")[2].split()[8])


def main() -> None:
    dist.init_process_group("gloo")
    n = dist.get_world_size()
    whole, part = torch.ones(SIZE // 4), torch.ones(SIZE // 4 // n)
    operations: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }
    found = []
    for name, call in operations.items():
        call()  # connections are made at first use
        dist.barrier()
        time.sleep(0.3)
        before = sent()
        dist.barrier()
        call()
        dist.barrier()
        time.sleep(0.3)
        found.append((name, SIZE, sent() - before))
        dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
