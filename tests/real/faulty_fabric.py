"""Ranks of the group checks, or of a job, with a fault in one of them: FAULT=KIND:RANK. For tests alone."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from muster.worker import __main__ as worker
from muster.workloads.fabric import __main__ as fabric


def plant(kind: str, rank: int) -> None:
    """Wrap a collective of torch in this process."""
    import torch.distributed as dist

    reduce, send = dist.all_reduce, dist.send

    def wrong_sum(tensor: Any, *args: Any, **options: Any) -> Any:
        done = reduce(tensor, *args, **options)
        if tensor.numel() == 1023 and dist.get_rank() == rank:
            tensor[17] += 1
        return done

    def wrong_message(tensor: Any, *args: Any, **options: Any) -> Any:
        if tensor.numel() > 1000 and dist.get_rank() == rank:
            tensor = tensor.clone()
            tensor[5] += 2
        return send(tensor, *args, **options)

    def stopped(tensor: Any, *args: Any, **options: Any) -> Any:
        if tensor.numel() == 1023 and dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        return reduce(tensor, *args, **options)

    def unsupported(*args: Any, **options: Any) -> Any:
        raise RuntimeError("ProcessGroupNone does not support reduce_scatter")

    def once(tensor: Any, *args: Any, **options: Any) -> Any:
        if tensor.numel() == 1023 and dist.get_rank() == rank:
            raise RuntimeError("planted: broken once")
        return reduce(tensor, *args, **options)

    faults = {"sum": wrong_sum, "stop": stopped, "once": once}
    if kind in faults:
        dist.all_reduce = faults[kind]
    elif kind == "message":
        dist.send = wrong_message
    elif kind == "unsupported":
        dist.reduce_scatter_tensor = unsupported


if __name__ == "__main__":
    kind, _, rank = os.environ["FAULT"].partition(":")
    plant(kind, int(rank))
    checked = "asked" in json.loads(Path(os.environ["MUSTER_SPEC"]).read_text(encoding="utf-8"))
    sys.exit(fabric.main() if checked else worker.main())
