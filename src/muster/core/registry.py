"""Plug-ins: every module or folder of a package, and entry points of third parties. Entry points append,
never replace."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeVar

from muster.core.errors import BrokenPluginError, UsageError
from muster.core.near import did_you_mean

T = TypeVar("T")

ENGINES = "muster.worker.engines"
WORKLOADS = "muster.worker.workloads"
# Entry-point group -> the package of Muster's own plug-ins of that kind; others have the group's name.
PACKAGES = {
    "muster.checks": "muster.checks.families",
    "muster.launchers": "muster.fleet.launchers",
    "muster.readers": "muster.readers",
    ENGINES: "muster.engines",
    WORKLOADS: "muster.workloads",
}
FOLDERS = (ENGINES, WORKLOADS)  # whose plug-ins are folders: what the control side asks, what ranks run


@cache
def own_plugins(group: str) -> Mapping[str, str]:
    """Name -> module path of Muster's own plug-ins of `group` (such as muster.launchers), without importing
    them: modules of its package, or folders, whose name does not start with an underscore and is not
    `base`."""
    package = PACKAGES.get(group, group)
    root = importlib.import_module(package)
    return {
        info.name: f"{package}.{info.name}"
        for info in pkgutil.iter_modules(root.__path__)
        if (info.ispkg or group not in FOLDERS) and not info.name.startswith("_") and info.name != "base"
    }


def plugin_names(group: str) -> dict[str, str]:
    """The same with those of third parties: entry points of the group, whose value is a module or folder."""
    found = dict(own_plugins(group))
    for name, module in _entry_points(group, tuple(sys.path)):
        found.setdefault(name, module)
    return found


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Of every installed distribution, which takes time: once for each state of sys.path."""
    return tuple((point.name.replace("-", "_"), point.value) for point in entry_points(group=group))


def load_plugin(group: str, name: str, part: str | None = None) -> ModuleType:
    """The plug-in's module; of one that is a folder, its module `part`. `-` and `_` are the same in a name.
    Raises UsageError with near names, and BrokenPluginError for a third party's that cannot be imported."""
    inner = load_part(group, name, part) if part else None
    path = find_plugin(group, name)
    with loading(group, name):
        return inner or importlib.import_module(path)


def load_part(group: str, name: str, part: str) -> ModuleType | None:
    """The module `part` of a plug-in that is a folder; None: it has no such part, or is one module, which is
    not imported. Raises as `load_plugin`."""
    path = find_plugin(group, name)
    with loading(group, name):
        about = importlib.util.find_spec(path)
        if about is None:
            raise ModuleNotFoundError(f"No module named {path!r}")
        if about.submodule_search_locations is None:
            return None
        inside = f"{path}.{part}"  # looked for without importing the folder, which may be for ranks alone
        there = PathFinder.find_spec(inside, about.submodule_search_locations)
        return importlib.import_module(inside) if there else None


def declared(group: str, name: str, attribute: str, kind: type[T]) -> type[T]:
    """The class derived from `kind` that a plug-in's spec.py calls `attribute`; `kind` itself where it has no
    spec.py. Raises as `load_plugin`."""
    spec = load_part(group, name, "spec")
    found = getattr(spec, attribute, None) if spec else kind
    if isinstance(found, type) and issubclass(found, kind):
        return found
    raise BrokenPluginError(
        f"its spec.py has no {attribute} that is derived from {kind.__name__}", where=_called(group, name)
    )


@contextmanager
def loading(group: str, name: str) -> Iterator[None]:
    """What a third party's modules raise inside, and what they lack, as one error."""
    try:
        yield
    except BrokenPluginError:
        raise
    except Exception as error:
        if name.replace("-", "_") in own_plugins(group):
            raise
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise BrokenPluginError(
            f"cannot be loaded: {type(error).__name__}: {reason}",
            where=_called(group, name),
            hint="the package that offers it is broken, or lacks what it needs",
        ) from error


def _called(group: str, name: str) -> str:
    return f"{_kind(group)} {name}"


def _kind(group: str) -> str:
    """One plug-in of a group, in words: workload, engine."""
    return group.rpartition(".")[2].removesuffix("s")


def find_plugin(group: str, name: str) -> str:
    """The plug-in's module path. Raises UsageError with near names."""
    key = name.replace("-", "_")
    names = own_plugins(group)
    names = names if key in names else plugin_names(group)
    if key not in names:
        known = [known.replace("_", "-") for known in names]
        raise UsageError(
            f"unknown {_kind(group)} {name!r}",
            hint=did_you_mean(name, known) or f"known: {', '.join(sorted(known))}",
        )
    return names[key]
