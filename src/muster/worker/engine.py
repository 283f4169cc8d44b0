"""What ranks run of an engine: each call with its usual answer. Its runtime.py derives a class and calls it
RUNTIME. What is asked before a rank starts: engines/base.py."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from muster.core.registry import ENGINES, broken, load_plugin

if TYPE_CHECKING:
    from muster.worker.context import Context


class EngineRuntime:
    """Spread a model over the ranks. `join` and `arguments` have no usual answer."""

    shards_as_made: ClassVar[bool] = False  # `sharded` cuts modules as they are made

    def join(self, context: Context) -> None:
        """Meet the other ranks."""
        raise NotImplementedError

    def arguments(self, context: Context) -> dict[str, Any]:
        """Return the keyword arguments of Transformers' TrainingArguments that spread the model."""
        raise NotImplementedError

    def before_trainer(self) -> None:
        """Prepare for the trainer, which is made next; TrainingArguments exist already."""

    def adapt(self, model: Any) -> None:
        """Change a model in place before it is spread over several ranks."""

    def sharded(self, context: Context) -> AbstractContextManager[None]:
        """Cut models that are made inside into shards."""
        return nullcontext()

    def gathered(self, parameter: Any) -> AbstractContextManager[bool]:
        """Hold a parameter whole inside. Yield whether this rank changes it, for all."""
        return nullcontext(True)

    def readable(self, context: Context, checkpoint: Path) -> AbstractContextManager[Path]:
        """Yield the folder of the checkpoint as these ranks can load it."""
        return nullcontext(checkpoint)

    def complete(self, folder: Path, model: Any) -> None:
        """Write what a checkpoint lacks on a disk that the first rank does not see."""

    def skipped_steps(self, trainer: Any) -> int | None:
        """Count the steps that the engine's own loss scaler skipped; None: it has none."""
        return None

    def written(self, context: Context) -> dict[str, Path]:
        """Name what the engine wrote by itself -> the file or folder."""
        return {}


@cache
def runtime_of(name: str) -> EngineRuntime:
    """Return what ranks run of the engine of this name. Raises UsageError with near names, and
    BrokenPluginError."""
    module = load_plugin(ENGINES, name, "runtime")
    runtime = module.RUNTIME
    if not (isinstance(runtime, type) and issubclass(runtime, EngineRuntime)):
        raise broken(ENGINES, name, "its RUNTIME is not derived from EngineRuntime", module.__file__)
    return runtime()
