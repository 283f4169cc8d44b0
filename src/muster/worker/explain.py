"""An error of a library as what a user can act on."""

from __future__ import annotations

import os
import re
import traceback

from muster.core.errors import NO_ROOM, JobError, MusterError, RecipeError, WorkerError

_NO_ROOM_WORDS = tuple(os.strerror(number) for number in NO_ROOM)  # safetensors' error is none of Python's
# torch.save says no more than that.
_TORN = re.compile(r"unexpected pos \d+ vs \d+|PytorchStreamWriter failed")


def explain(error: Exception) -> MusterError:
    """An error of a library as what a user can act on."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if "out of memory" in text.lower():
        return JobError(
            f"out of memory: {first}",
            hint="halve batch.micro and double batch.accumulation; then train.gradient_checkpointing=true, "
            "a higher engine.zero",
        )
    if "DeepSpeed config values that mismatch" in first:  # "- ds KEY=VALUE vs hf NAME=VALUE" lines follow
        found = [line[len("- ds ") :] for line in text.splitlines() if line.startswith("- ds ")]
        return RecipeError(
            "; ".join(found).replace(" vs hf ", ", but here "),
            where="engine.config",
            hint='"auto" in that file, or the same number in the recipe',
        )
    full = _no_room(error)
    if full or _TORN.search(text):
        return JobError(
            f"{'the disk is full' if full else 'a file was not written whole, is the disk full?'}: {first}",
            hint="lower checkpoint.keep, or choose another --output",
        )
    return WorkerError(f"{type(error).__name__}: {first}")


# Functions of Transformers and DeepSpeed that read a checkpoint, in all versions that are supported.
_READS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_scaler",
          "deepspeed_load_checkpoint", "load_checkpoint", "load_from_json", "load_fsdp_model",
          "load_fsdp_optimizer")  # fmt: skip


_NOT_ITS_FILES = ("out of memory", "distbackend", "nccl", "connection", "timed out", "timeout")


def from_checkpoint(error: BaseException) -> bool:
    """Whether it was raised while a checkpoint was read, and says something of its files: not of memory, a
    full disk or a peer that is gone."""
    text = f"{type(error).__name__}: {error}".lower()
    if any(words in text for words in _NOT_ITS_FILES) or _no_room(error):
        return False
    if isinstance(error, MemoryError | ConnectionError | MusterError):
        return False
    trace = error.__traceback__
    return any(frame.f_code.co_name in _READS for frame, _ in traceback.walk_tb(trace))


def _no_room(error: BaseException) -> bool:
    """Whether a disk, a quota or the shared memory was full, as the error says or those that led to it."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        if (isinstance(at, OSError) and at.errno in NO_ROOM) or any(
            words in str(at) for words in _NO_ROOM_WORDS
        ):
            return True
        seen.append(at)
        at = at.__cause__ or at.__context__
    return False
