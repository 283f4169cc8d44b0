"""A job's ranks, which write down where each step, and each held-out batch, would wait for a device, to
WAITS/RANK.jsonl. For tests alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from muster.worker import __main__ as worker


def watched() -> int:
    from transformers import TrainerCallback

    from muster.worker.instruments import attach
    from tests.waits import Waits

    waits = Waits()
    file = Path(os.environ["WAITS"]) / f"{os.environ['RANK']}.jsonl"
    instrument = attach.attach_instruments

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.write("step")

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            self.write("held out")

        def write(self, what: str) -> None:
            with file.open("a") as stream:
                stream.write(json.dumps([what, waits.places]) + "\n")
            waits.places = []

    def instrumented(context: Any, built: Any) -> Any:
        made = instrument(context, built)
        built.trainer.add_callback(Ends())
        return made

    attach.attach_instruments = instrumented
    with waits.watching():
        return worker.main()


if __name__ == "__main__":
    sys.exit(watched())
