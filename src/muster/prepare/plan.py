"""Provision's plan: what the hosts of a recipe need, from the recipe, the options and this machine."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core import families
from muster.core.errors import UsageError, refused
from muster.core.recipe import Recipe
from muster.core.recipes import WORDS
from muster.inputs.read import Inputs
from muster.prepare.pinned import Pinned, pinned_here, read_requirements
from muster.prepare.session import PackedFile


@dataclass(frozen=True)
class Options:
    """How the hosts are made ready. `environment` False: they have one, which is only compared."""

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
class PreparePlan:
    """What is to be done, as data: a dry run prints it."""

    pinned: Pinned | None
    key: str
    venv: str | None
    cache: str
    wheels: tuple[PackedFile, ...]
    local: tuple[str, ...]  # paths of this machine that the recipe names
    hub: tuple[tuple[str, str], ...]  # (model, tokenizer or dataset; name, a data set's as name:subset)
    notes: tuple[str, ...]


def make_plan(inputs: Inputs, options: Options) -> PreparePlan:
    """What is to be done, from the recipe, the options and this machine. Raises UsageError."""
    if options.index is not None and not re.fullmatch(r"(https?|file)://\S+", options.index):
        raise UsageError("is not an index", where=options.index, hint="--index https://HOST/simple")
    if options.kernel_cache is not None and not options.kernel_cache.startswith("/"):
        raise UsageError(
            "is not an absolute path", where=options.kernel_cache, hint="--kernel-cache /scratch"
        )
    if options.environment:
        given = options.requirements
        pinned = read_requirements(given) if given else pinned_here(options.constraints)
    else:
        pinned = None
    wheels = _wheels(options.wheels) if options.wheels else ()
    key = pinned.key([(e.path, e.sha256) for e in wheels], options.python) if pinned else ""
    cache = (inputs.recipe.launch.workdir or "~/.cache/muster").rstrip("/")
    local, hub, notes = _needs(inputs)
    venv = (options.venv or f"{cache}/venvs/{key}") if pinned else None
    return PreparePlan(pinned, key, venv, cache, wheels, local, hub, notes)


def _needs(inputs: Inputs) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """What a recipe reads: paths, things of the hub, and notes about the rest."""
    recipe, data = inputs.recipe, inputs.recipe.data
    local, hub, notes = [], [], []
    for kind, name in _named(recipe):
        whole = name.partition(":")[0] if kind == "dataset" else name
        if whole.startswith("/") or kind == "path":
            if not Path(whole).exists():
                notes.append(f"{whole} is not on this machine: the hosts have to have it")
            elif not inputs.launcher.ONE_MACHINE:
                local.append(whole)
        else:
            hub.append((kind, name))
    if data.embedded and not data.source:
        notes.append("the data is made on the spot: the first rank on each disk does that as a run begins")
    return tuple(dict.fromkeys(local)), tuple(dict.fromkeys(hub)), tuple(notes)


def _named(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(model, tokenizer, dataset or path; its name) of all that the recipe's ranks read."""
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


def _wheels(folder: Path) -> tuple[PackedFile, ...]:
    """The wheels of a folder, each below a part of its hash: the hosts' store may hold many sets."""
    if not folder.is_dir():
        raise UsageError("is not a folder", where=str(folder), hint="--wheels FOLDER of *.whl files")
    found = [make_wheel(path) for path in sorted(folder.glob("*.whl"))]
    if not found:
        raise UsageError(
            "has no wheels", where=str(folder), hint="pip download -d FOLDER, or pip wheel -w FOLDER"
        )
    return tuple(found)


def make_wheel(path: Path) -> PackedFile:
    digest = hashlib.sha256()
    with refused(UsageError, "read", path):
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        size = path.stat().st_size
    return PackedFile(
        f"{digest.hexdigest()[:16]}/{path.name}", size, digest.hexdigest(), source=path.absolute()
    )


def own_pip() -> tuple[PackedFile, ...]:
    """The wheel of pip that this machine's Python carries, for hosts whose Python has none."""
    import ensurepip

    bundled = Path(ensurepip.__file__).parent / "_bundled"
    found = [*bundled.glob("pip-*.whl"), *Path("/usr/share/python-wheels").glob("pip-*.whl")]
    return (make_wheel(found[0]),) if found else ()


def plan_as_dict(plan: PreparePlan, inputs: Inputs, options: Options) -> dict[str, Any]:
    """The plan for `--dry-run`: plain data, without the password of an index."""
    return {
        "hosts": list(inputs.inventory.names),
        "launcher": inputs.launcher_name,
        "environment": plan.venv,
        "source": plan.pinned.source if plan.pinned else "as it is on the hosts",
        "requirements": list(plan.pinned.requirements) if plan.pinned else [],
        "index": re.sub(r"//[^/@]*@", "//(hidden)@", options.index) if options.index else None,
        "wheels": [{"name": Path(e.path).name, "size": e.size, "sha256": e.sha256} for e in plan.wheels],
        "copy": list(plan.local),
        "download": [{"kind": kind, "name": name} for kind, name in plan.hub],
        "warm": options.warm and inputs.recipe.trains,
        "notes": list(plan.notes),
    }


def plan_text(plan: Mapping[str, Any]) -> str:
    """The same for a person."""
    return json.dumps(plan, indent=2, ensure_ascii=False)
