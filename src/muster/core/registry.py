"""Plug-ins: every module of a package, and entry points of third parties. Entry points append, never
replace."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType

from muster.core.errors import UsageError
from muster.core.near import did_you_mean

# Entry-point group -> the package of Muster's own plug-ins of that kind; others have the group's name.
PACKAGES = {
    "muster.checks": "muster.checks.families",
    "muster.launchers": "muster.fleet.launchers",
    "muster.readers": "muster.judging.readers",
}


def plugin_names(group: str) -> dict[str, str]:
    """Name -> module path of the plug-ins of `group` (such as muster.launchers), without importing them.

    A plug-in is a module of the group's package whose name does not start with an underscore and is not
    `base`, or an entry point of the group whose value is a module.
    """
    package = PACKAGES.get(group, group)
    root = importlib.import_module(package)
    found = {
        info.name: f"{package}.{info.name}"
        for info in pkgutil.iter_modules(root.__path__)
        if not info.name.startswith("_") and info.name != "base"
    }
    for point in entry_points(group=group):
        found.setdefault(point.name.replace("-", "_"), point.value)
    return found


def load_plugin(group: str, name: str) -> ModuleType:
    """The plug-in's module. `-` and `_` are the same in a name. Raises UsageError with near names."""
    names = plugin_names(group)
    key = name.replace("-", "_")
    if key not in names:
        kind = group.rpartition(".")[2].removesuffix("s")
        known = [known.replace("_", "-") for known in names]
        raise UsageError(
            f"unknown {kind} {name!r}", hint=did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
        )
    return importlib.import_module(names[key])
