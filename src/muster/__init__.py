"""Muster: from a list of machines to a trained model, with proof that each machine pulled its weight.

`import muster` offers the verbs as functions, which `muster.api` describes; each is imported at its first
use:

    import muster

    result = muster.train("digits", "local:2x1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "BrokenPluginError",
    "DataError",
    "HostError",
    "InventoryError",
    "JobError",
    "MusterError",
    "PluginWarning",
    "RecipeError",
    "RunFolderError",
    "UsageError",
    "WorkerError",
    "ask",
    "bench",
    "check",
    "explain",
    "judge",
    "note",
    "phase",
    "plan",
    "report",
    "step",
    "train",
]
_ERRORS = tuple(name for name in __all__ if name[0].isupper())
_PROGRESS = ("step", "phase", "note")  # of a script that `muster run` starts: progress.py

if TYPE_CHECKING:
    from muster import api as api
    from muster.api import ask, bench, check, explain, judge, plan, report, train
    from muster.core.errors import (
        BrokenPluginError,
        DataError,
        HostError,
        InventoryError,
        JobError,
        MusterError,
        PluginWarning,
        RecipeError,
        RunFolderError,
        UsageError,
        WorkerError,
    )
    from muster.progress import note, phase, step


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "api":
        return import_module("muster.api")
    if name not in __all__:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    home = "progress" if name in _PROGRESS else "core.errors" if name in _ERRORS else "api"
    value = getattr(import_module(f"muster.{home}"), name)
    if name in _PROGRESS:  # called in every step: the next time without this function
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
