"""A job's ranks, of which the last is killed in the training pass after DIES_AFTER steps. For tests alone."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from muster.worker import __main__ as worker


def die_after(steps: int) -> None:
    """By then all ranks have exchanged gradients after that step's checkpoint, so that it is whole."""
    import transformers

    passes = transformers.Trainer.training_step

    def passing(self: Any, *args: Any, **named: Any) -> Any:
        if self.state.global_step == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return passes(self, *args, **named)

    transformers.Trainer.training_step = passing


if __name__ == "__main__":
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        die_after(int(os.environ["DIES_AFTER"]))
    sys.exit(worker.main())
