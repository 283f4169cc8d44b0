"""The trained model, as its first host keeps it."""

from __future__ import annotations

import shutil
import time
from typing import Any

from muster.store import events
from muster.store.sealed import files_of, hashes
from muster.worker.adapters import has_adapters, save_merged
from muster.worker.context import Context
from muster.worker.together import barrier
from muster.worker.workloads.base import Built


def save_model(context: Context, built: Built) -> float:
    """Save the trained model in the Hugging Face format, whole, on the first host. -> seconds."""
    trainer: Any = built.trainer
    began = time.perf_counter()
    partial = context.model.with_name("model.partial")
    if has_adapters(trainer):
        save_merged(trainer, partial, main=context.main)
    else:
        trainer.save_model(str(partial))
    barrier()
    if context.main:
        for pickled in partial.rglob("training_args.bin"):
            pickled.unlink()
        if built.finish:
            built.finish(partial)
        shutil.rmtree(context.model, ignore_errors=True)  # of an earlier attempt
        partial.replace(context.model)
        written = time.perf_counter()
        files = hashes(str(context.model), files_of(str(context.model)))
        now = time.perf_counter()
        context.emit(
            events.Saved,
            step=None,
            path=str(context.model),
            bytes=sum(int(about["bytes"]) for about in files.values()),
            seconds=now - began,
            sealing=now - written,
            files=files,
        )
    barrier()
    return time.perf_counter() - began
