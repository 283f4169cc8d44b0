"""Plug-ins: every module or folder of a package, and entry points of third parties. Entry points append,
never replace."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType

from muster.core.errors import UsageError
from muster.core.near import did_you_mean

ENGINES = "muster.worker.engines"
# Entry-point group -> the package of Muster's own plug-ins of that kind; others have the group's name.
PACKAGES = {
    "muster.checks": "muster.checks.families",
    "muster.launchers": "muster.fleet.launchers",
    "muster.readers": "muster.judging.readers",
    ENGINES: "muster.engines",
}
FOLDERS = (ENGINES,)  # groups whose plug-ins are folders: what the control side asks them, and what ranks run


def own_plugins(group: str) -> dict[str, str]:
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
    """The same with those of third parties: entry points of the group whose value is a module."""
    found = own_plugins(group)
    for point in entry_points(group=group):
        found.setdefault(point.name.replace("-", "_"), point.value)
    return found


def load_plugin(group: str, name: str) -> ModuleType:
    """The plug-in's module. `-` and `_` are the same in a name. Raises as `find_plugin`."""
    return importlib.import_module(find_plugin(group, name))


def load_part(group: str, name: str, part: str) -> ModuleType | None:
    """The module `part` of a plug-in that is a folder; None: it has no such part, or is one module, which is
    not imported. Raises as `find_plugin`."""
    path = find_plugin(group, name)
    about = importlib.util.find_spec(path)
    if about is None or about.submodule_search_locations is None:
        return None
    inside = f"{path}.{part}"
    return importlib.import_module(inside) if importlib.util.find_spec(inside) else None


def find_plugin(group: str, name: str) -> str:
    """The plug-in's module path. Raises UsageError with near names."""
    key = name.replace("-", "_")
    names = own_plugins(group)
    if key not in names:
        names = plugin_names(group)  # looks into every installed distribution
    if key not in names:
        kind = group.rpartition(".")[2].removesuffix("s")
        known = [known.replace("_", "-") for known in names]
        raise UsageError(
            f"unknown {kind} {name!r}", hint=did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
        )
    return names[key]
