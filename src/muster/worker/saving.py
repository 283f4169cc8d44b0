"""The trained model, as its first host keeps it.

One that was trained with adapters is saved whole: merged into its base, so that it loads without it. The base
may be nowhere else (built from a configuration), or on a hub that cannot be reached. The adapter lies beside,
in `adapter/`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core.errors import WorkerError
from muster.store import events
from muster.store.sealed import files_of, hashes
from muster.worker.context import Context
from muster.worker.together import barrier
from muster.worker.workloads.base import Built

COMPILED = "_orig_mod."  # the module that torch.compile has wrapped


def save_model(context: Context, built: Built) -> float:
    """Save the trained model in the Hugging Face format, whole, on the first host. -> seconds."""
    trainer: Any = built.trainer
    began = time.perf_counter()
    partial = context.model.with_name("model.partial")
    if hasattr(trainer.model, "peft_config"):
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


def save_merged(trainer: Any, folder: Path, *, main: bool) -> None:
    """Save the merged model, and the adapter beside it. Every rank takes part, since parameters may be
    sharded; the main one writes."""
    trainer.save_model(str(folder / "adapter"))
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not main:
        return
    if getattr(trainer.model, "is_quantized", False):
        _merge_anew(trainer.model, folder)
    else:
        write_merged(trainer.model, weights, folder)
    if trainer.processing_class is not None:
        trainer.processing_class.save_pretrained(str(folder))


def _merge_anew(model: Any, folder: Path) -> None:
    """Save adapters merged into the checkpoint's own weights: in the few bits of the trained model a part of
    what was learned would be lost."""
    import torch
    from peft import PeftModel

    base = model.get_base_model()
    whole = type(base).from_pretrained(base.config._name_or_path, dtype=torch.bfloat16)
    merged = PeftModel.from_pretrained(whole, str(folder / "adapter")).merge_and_unload()
    merged.save_pretrained(str(folder))


def write_merged(model: Any, weights: Mapping[str, Any], folder: Path) -> None:
    """Save a PEFT model with these weights, merged into its base. Raises WorkerError."""
    from peft import get_peft_model

    base = model.get_base_model()
    twin = get_peft_model(type(base)(base.config), model.peft_config["default"])
    _load(twin, weights)
    whole = twin.merge_and_unload()
    if base.can_generate():
        whole.generation_config = base.generation_config
    whole.save_pretrained(str(folder))


def _load(twin: Any, weights: Mapping[str, Any]) -> None:
    """Load weights. Tied ones may be there under one of their names, and all under those that torch.compile
    gives them. Raises WorkerError where any is missing."""
    weights = {name.replace(COMPILED, ""): weight for name, weight in weights.items()}
    outcome = twin.load_state_dict(weights, strict=False)
    held = dict(twin.named_parameters(remove_duplicate=False))
    given = {id(held[name]) for name in weights if name in held}
    lacking = [name for name in outcome.missing_keys if name not in held or id(held[name]) not in given]
    if lacking or outcome.unexpected_keys:
        which = (lacking + list(outcome.unexpected_keys))[0]
        raise WorkerError(f"the trained adapter cannot be merged: {which} does not match its base")
