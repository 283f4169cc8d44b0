"""What the hosts of one or more recipes need, from the recipes, the options and this machine."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core import families
from muster.core.errors import UsageError, refused
from muster.core.recipe import Recipe
from muster.core.recipes import WORDS
from muster.inputs.read import Inputs
from muster.prepare.pinned import Pinned, pinned_here, read_requirements
from muster.store.tree import fingerprint


@dataclass(frozen=True)
class Options:
    """How the hosts are prepared. `environment` False: they have one, which is only compared."""

    wheels: Path | None = None
    index: str | None = None
    python: str | None = None
    venv: str | None = None
    constraints: Path | None = None
    requirements: Path | None = None
    kernel_cache: str | None = None
    environment: bool = True
    warm: bool = True
    timeout: float = 7200.0


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine that hosts get at the same path. `what`: the recipe's path to which it belongs.
    """

    path: Path
    what: str
    size: int
    changed: int  # nanoseconds since 1970


@dataclass(frozen=True)
class PreparePlan:
    """What is to be done, as data: a dry run prints it."""

    pinned: Pinned | None
    key: str
    venv: str | None
    cache: str
    wheels: tuple[tuple[Path, str, int], ...]  # each with its SHA-256 and bytes
    local: tuple[str, ...]  # paths of this machine that the recipes name
    # (model, tokenizer or dataset; name, a data set's as name:subset), with the variables of what reads it
    hub: tuple[tuple[str, str], ...]
    hub_env: tuple[Mapping[str, str], ...]
    warm: tuple[Inputs, ...]  # recipes that are run for one step
    notes: tuple[str, ...]

    def files(self) -> tuple[LocalFile, ...]:
        """Return all files below the local paths, links followed. Raises UsageError for what is no file."""
        return tuple(LocalFile(*each) for what in self.local for each in _walk(Path(what), what, ()))


def make_plan(recipes: Sequence[Inputs], options: Options, later: Path | None = None) -> PreparePlan:
    """Plan what is to be done, from the recipes, the options and this machine. Raises UsageError.

    Below `later` are models that the steps of a pipeline will have trained by then: no host gets those.
    """
    if options.index is not None and not re.fullmatch(r"(https?|file)://\S+", options.index):
        raise UsageError("is not an index", where=options.index, hint="--index https://HOST/simple")
    if options.kernel_cache is not None and not options.kernel_cache.startswith("/"):
        raise UsageError(
            "is not an absolute path", where=options.kernel_cache, hint="--kernel-cache /scratch"
        )
    pinned = None
    if options.environment:
        given = options.requirements
        pinned = read_requirements(given) if given else pinned_here(options.constraints)
    wheels = _wheels(options.wheels) if options.wheels else ()
    digests = [(path.name, digest) for path, digest, _ in wheels]
    key = pinned.key(digests, options.python) if pinned else ""
    cache = (recipes[0].recipe.launch.workdir or "~/.cache/muster").rstrip("/")
    local: dict[str, None] = {}
    hub: dict[tuple[str, str], Mapping[str, str]] = {}
    notes: dict[str, None] = {}
    warm = []
    for inputs in recipes:
        names = [
            each for each in _named(inputs.recipe) if later is None or later not in Path(each[1]).parents
        ]
        _add_needs(inputs, names, local, hub, notes)
        if options.warm and inputs.recipe.trains and names == [*_named(inputs.recipe)]:
            warm.append(inputs)  # others start from a model that is not there yet
    venv = (options.venv or f"{cache}/venvs/{key}") if pinned else None
    return PreparePlan(
        pinned, key, venv, cache, wheels,
        tuple(local), tuple(hub), tuple(hub.values()), tuple(warm), tuple(notes),
    )  # fmt: skip


def _walk(path: Path, what: str, above: tuple[str, ...]) -> Iterator[tuple[Path, str, int, int]]:
    """Yield path, what, bytes and time of the last change of a file, or of all files below a folder."""
    with refused(UsageError, "read", path):
        about = path.stat()
        entries = sorted(path.iterdir()) if stat.S_ISDIR(about.st_mode) else None
    if entries is not None:
        real = os.path.realpath(path)
        for each in entries if real not in above else ():
            yield from _walk(each, what, (*above, real))
        return
    if not stat.S_ISREG(about.st_mode):
        raise UsageError("is neither a file nor a folder", where=str(path), hint="take it out of the folder")
    yield path, what, about.st_size, about.st_mtime_ns


def _add_needs(
    inputs: Inputs,
    names: Sequence[tuple[str, str]],
    local: dict[str, None],
    hub: dict[tuple[str, str], Mapping[str, str]],
    notes: dict[str, None],
) -> None:
    """Add what a recipe reads, each once: paths, things of the hub, and notes about the rest."""
    for kind, name in names:
        whole = name.partition(":")[0] if kind == "dataset" else name
        if not whole.startswith("/") and kind != "path":
            hub.setdefault((kind, name), inputs.env)
        elif not Path(whole).exists():
            notes[f"{whole} is not on this machine: the hosts have to have it"] = None
        elif not inputs.launcher.ONE_MACHINE:
            local[whole] = None
    data = inputs.recipe.data
    if data.embedded and not data.source:
        notes["the data is made on the spot: the first rank on each disk does that as a run begins"] = None


def _named(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (model, tokenizer, dataset or path; its name) of all that the recipe's ranks read."""
    model = recipe.model
    if model.name and (model.init != "random" or model.name.startswith("/")):
        yield "model", model.name
    elif model.name and families.size(model.name) is None:
        yield "tokenizer", model.name  # its configuration alone
    if model.tokenizer not in WORDS:
        yield "tokenizer", model.tokenizer
    for section, key in recipe.other_models:
        if name := getattr(getattr(recipe, section), key):
            yield "model", name
    for source in recipe.data.sources():
        if source.path:
            yield "path", source.path
        elif source.name:
            yield "dataset", f"{source.name}:{source.subset}" if source.subset else source.name
    for file in recipe.files():
        yield "path", file


def _wheels(folder: Path) -> tuple[tuple[Path, str, int], ...]:
    """Return the wheels of a folder, each with its SHA-256 and bytes."""
    if not folder.is_dir():
        raise UsageError("is not a folder", where=str(folder), hint="--wheels FOLDER of *.whl files")
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        with refused(UsageError, "read", path):
            _, digest, size = fingerprint(path)
        wheels.append((path.absolute(), digest, size))
    if not wheels:
        raise UsageError(
            "has no wheels", where=str(folder), hint="pip download -d FOLDER, or pip wheel -w FOLDER"
        )
    return tuple(wheels)


def plan_as_dict(plan: PreparePlan, recipes: Sequence[Inputs], options: Options) -> dict[str, Any]:
    """Return the plan for `--dry-run`: plain data, without the password of an index."""
    return {
        "hosts": list(recipes[0].inventory.names),
        "launcher": recipes[0].launcher_name,
        "environment": plan.venv,
        "source": plan.pinned.source if plan.pinned else "as it is on the hosts",
        "requirements": list(plan.pinned.requirements) if plan.pinned else [],
        "index": re.sub(r"//[^/@]*@", "//(hidden)@", options.index) if options.index else None,
        "wheels": [{"name": path.name, "size": size, "sha256": digest} for path, digest, size in plan.wheels],
        "copy": list(plan.local),
        "download": [{"kind": kind, "name": name} for kind, name in plan.hub],
        "warm": bool(plan.warm),
        "notes": list(plan.notes),
    }


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return the same for a person."""
    return json.dumps(plan, indent=2, ensure_ascii=False)
