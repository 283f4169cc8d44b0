"""The packages of an environment: pinned, so that every host gets the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from muster.core.errors import UsageError, refused

DISTRIBUTION = "passmuster"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[A-Za-z0-9._, -]*\])?\s*"
    r"===?\s*(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*(?:;[^\n]*)?"
)
_RANKS_TOO = ("pydantic",)  # of the control side's requirements: what ranks import as well


@dataclass(frozen=True)
class Pinned:
    """Requirements in pip's form, and their source, for people."""

    requirements: tuple[str, ...]
    constraints: str | None
    source: str

    def key(self, wheels: Iterable[tuple[str, str]], python: str | None) -> str:
        """Return the environment's key: another set, other wheels or another interpreter make another one."""
        content = [sorted(self.requirements), self.constraints, sorted(wheels), python]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def read_requirements(path: Path) -> Pinned:
    """Read a requirements file of pinned versions alone. Raises UsageError with the line of anything else."""
    lines = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        if not _PINNED.fullmatch(text):
            raise UsageError(
                f"{text!r} is not a pinned requirement",
                where=f"{path}:{number}",
                hint="NAME==VERSION on each line, so that all hosts get the same; options have flags here",
            )
        lines.append(text)
    if not lines:
        raise UsageError("has no requirements", where=str(path))
    return Pinned(tuple(lines), None, str(path))


def pinned_here(constraints: Path | None) -> Pinned:
    """Return what ranks need, in this machine's own versions, or in those of a constraints file.

    Raises UsageError where neither states a version.
    """
    wanted = _needed()
    if constraints is not None:
        text = _read(constraints)
        held = {_plain(match["name"]) for match in map(_PINNED.match, text.splitlines()) if match}
        loose = [name for name in wanted if name not in held]
        if loose:
            raise UsageError(
                f"has no version of {', '.join(loose)}", where=str(constraints), hint="NAME==VERSION"
            )
        return Pinned(tuple(wanted.values()), text, str(constraints))
    missing = [name for name in wanted if _installed(name) is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not installed here, so there is no version to take from here",
            hint="--constraints constraints.txt or --requirements FILE; or pip install " + " ".join(missing),
        )
    pins = [f"{name}=={_installed(name)}" for name in sorted(_closure(wanted))]
    return Pinned(tuple(pins), None, "the versions of this machine")


def _needed() -> dict[str, str]:
    """Return, by name, the requirements of what ranks import: the `train` extra, and a little of the rest."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        raise UsageError(
            f"{DISTRIBUTION} itself is not installed, so it cannot say what ranks need",
            hint="--requirements FILE",
        ) from None
    needed = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = _name(requirement)
        if ("extra" in marker and "train" in marker) or ("extra" not in marker and name in _RANKS_TOO):
            needed[name] = requirement.strip()
    return needed


def _closure(names: Iterable[str]) -> set[str]:
    """Return these, and everything that they require here, whatever the markers say."""
    closed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in closed or _installed(name) is None:
            continue
        closed.add(name)
        lines = [line for line in requires(name) or [] if not re.search(r";.*\bextra\s*==", line)]
        waiting += [_name(line) for line in lines]
    return closed


def _installed(name: str) -> str | None:
    """Return the version without its local part: 2.13.0+cpu is a build that another machine's index may not
    have."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def _name(requirement: str) -> str:
    match = _NAME.match(requirement.strip())
    return _plain(match[0]) if match else ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _read(path: Path) -> str:
    with refused(UsageError, "read", path):
        return path.read_text(encoding="utf-8")
