"""A job's ranks, of which one sleeps in every forward pass: SLOW=RANK:SECONDS. For tests alone."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from muster.worker import __main__ as worker


def plant(rank: int, seconds: float) -> None:
    """Let a T5 encoder sleep, where it runs for training."""
    if int(os.environ["RANK"]) != rank:
        return
    from transformers.models.t5.modeling_t5 import T5Stack

    forward = T5Stack.forward

    def slow(stack: Any, *rest: Any, **named: Any) -> Any:
        if stack.training and not stack.is_decoder:
            time.sleep(seconds)
        return forward(stack, *rest, **named)

    T5Stack.forward = slow


if __name__ == "__main__":
    which, _, long = os.environ["SLOW"].partition(":")
    plant(int(which), float(long))
    sys.exit(worker.main())
