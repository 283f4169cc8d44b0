"""Versions of installed packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Name -> version of those that are installed here."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
