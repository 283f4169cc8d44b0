"""A checkpoint counts as complete only when every rank has written its part, and old ones go.

The callback asks for a checkpoint where the recipe's schedule has one; the trainer writes it, and one of its
last step; the callback then waits for all ranks and writes, last, a manifest of the files with their sizes
and hashes (store/sealed.py). A folder without its manifest, or with a file that differs from it, is never
resumed from. The manifest's own hash goes to the controller with the event.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from muster.core.checkpoints import due
from muster.core.errors import WorkerError
from muster.store import events
from muster.store.atomic import write_text
from muster.store.sealed import MANIFEST, digest_of
from muster.store.sealed import seal as seal_folder
from muster.worker.context import CHECKPOINT, Context
from muster.worker.together import barrier

STATE = "trainer_state.json"


class CheckpointCallback(TrainerCallback):  # type: ignore[misc]
    """Asks for checkpoints, marks them complete and keeps the last `keep` of them, or all."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.began = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a checkpoint where one is due, and remember when saving may begin."""
        if due(self.context.recipe.checkpoint.every, state.global_step):
            control.should_save = True
        self.began = time.perf_counter()
        if control.should_save:
            if self.context.saver:  # left from before, as of an attempt that went further: not to be mixed
                drop(self.context.checkpoint(state.global_step))
            barrier()

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Seal the folder once all ranks have written, then drop the oldest."""
        folder = self.context.checkpoint(state.global_step)
        if self.context.saver and not self.context.main:
            self.context.engine.complete(folder, model)
        barrier()
        if self.context.saver:
            written = time.perf_counter()
            digest, size = seal(folder)
            now = time.perf_counter()
            self.context.emit(
                events.Saved,
                step=state.global_step,
                path=str(folder),
                bytes=size,
                seconds=now - self.began,
                sealing=now - written,
                manifest=digest,
            )
        barrier()  # no old checkpoint goes before the new one is complete on every disk
        if self.context.saver:
            prune(self.context.checkpoints, self.context.recipe.checkpoint.keep, state.global_step)


def seal(folder: Path) -> tuple[str, int]:
    """Write the manifest, when all files are on disk. -> (the manifest's digest, bytes of all files)."""
    if not (folder / STATE).is_file():
        raise WorkerError(f"{STATE} is missing: nothing could go on from it", where=str(folder))
    text, files = seal_folder(str(folder))
    write_text(folder / MANIFEST, text)
    return digest_of(text.encode()), sum(int(about["bytes"]) for about in files.values())


def prune(folder: Path, keep: int | str, newest: int) -> None:
    """Remove all but the last `keep` complete checkpoints up to step `newest`, and older incomplete ones.

    What is newer is of an attempt that went further: not this one's, and replaced when it comes there.
    """
    numbered = sorted(
        (int(path.name.removeprefix(CHECKPOINT)), path)
        for path in folder.glob(f"{CHECKPOINT}*")
        if path.name.removeprefix(CHECKPOINT).isdigit()
    )
    past = [(step, path) for step, path in numbered if step <= newest]
    complete = [step for step, path in past if (path / MANIFEST).is_file()]
    kept = set(complete if isinstance(keep, str) else complete[-keep:])
    for step, path in past:
        if step not in kept and step < newest:
            drop(path)


def drop(folder: Path) -> None:
    """Remove a checkpoint, where there is one."""
    (folder / MANIFEST).unlink(missing_ok=True)  # first: from here on it is incomplete
    shutil.rmtree(folder, ignore_errors=True)
