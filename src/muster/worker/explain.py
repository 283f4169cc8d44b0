"""An error of a library as what a user can act on."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator
from itertools import islice

from muster.core.errors import NO_ROOM, MusterError, RecipeError, WorkerError
from muster.failures.table import Recognised, find

_NO_ROOM_WORDS = tuple(os.strerror(number) for number in NO_ROOM)  # safetensors' error is none of Python's
_DOWNLOAD = re.compile(r"https?:|huggingface|urllib|HTTPS?Connection", re.IGNORECASE)


def explain(error: Exception) -> MusterError:
    """Turn a library's error into one that a user can act on."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    match = known_error(error)
    if match is None:
        return WorkerError(f"{type(error).__name__}: {first}")
    hint, failure = match.remedy, match.failure.id
    if failure == "hf_ds_mismatch":  # "- ds KEY=VALUE vs hf NAME=VALUE" lines follow
        differences = [line[len("- ds ") :] for line in text.splitlines() if line.startswith("- ds ")]
        what = "; ".join(differences).replace(" vs hf ", ", but here ")
        return RecipeError(what, where="engine.config", hint=hint, failure=failure)
    what = f"{match.phrase.problem or type(error).__name__}: {first}"
    return WorkerError(what, hint=hint, failure=failure)


def known_error(error: BaseException) -> Recognised | None:
    """Find an error in the table of failures; None: it is not there. What was raised because another rank was
    lost is known by that."""
    match = _found(error)
    if match is None:
        led = (_found(each) for each in islice(_led_to(error), 1, None))
        match = next((each for each in led if each and each.failure.blame == "peer"), None)
    if (match is None or match.failure.id in ("disk_full", "write_failed")) and _no_room(error):
        match = find(os.strerror(errno.ENOSPC))
    if match is None or match.phrase.weight == "notice":
        return None
    if match.failure.blame == "peer" and _DOWNLOAD.search("".join(traceback.format_exception(error))):
        return None  # a download's peer is no rank
    return match


def _found(error: BaseException) -> Recognised | None:
    """Find an error by its text. Its first line names the problem, and is matched with less care than what
    libraries print behind it."""
    text = f"{type(error).__name__}: {str(error).strip()}"
    return find(text.partition("\n")[0], "log", "error") or find(text)


# Functions of Transformers and DeepSpeed that read a checkpoint, in all versions that are supported.
_READS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_scaler",
          "deepspeed_load_checkpoint", "load_checkpoint", "load_from_json", "load_fsdp_model",
          "load_fsdp_optimizer")  # fmt: skip


_NOT_ITS_FILES = ("distbackend", "nccl", "connection", "timed out", "timeout")


def from_checkpoint(error: BaseException) -> bool:
    """Return whether an error was raised while a checkpoint was read, and is about its files: not about
    memory, a full disk or a peer that is gone."""
    text = f"{type(error).__name__}: {error}".lower()
    match = known_error(error)
    if any(words in text for words in _NOT_ITS_FILES) or (match and match.failure.phase != "resume"):
        return False
    if isinstance(error, MemoryError | ConnectionError | MusterError):
        return False
    trace = error.__traceback__
    return any(frame.f_code.co_name in _READS for frame, _ in traceback.walk_tb(trace))


def _no_room(error: BaseException) -> bool:
    """Return whether a disk, a quota or the shared memory was full, by the error or those that led to it."""
    return any(
        (isinstance(each, OSError) and each.errno in NO_ROOM)
        or any(words in str(each) for words in _NO_ROOM_WORDS)
        for each in _led_to(error)
    )


def _led_to(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised from, or that were being handled then."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        yield at
        seen.append(at)
        at = at.__cause__ or at.__context__
