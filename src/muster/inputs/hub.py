"""Models, tokenizers and data sets that a recipe names: whether this machine has them or can fetch them.

Checked before ranks start on this machine; of other hosts only their ranks can tell.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from muster.core import families
from muster.core.errors import RecipeError
from muster.core.near import did_you_mean
from muster.core.recipe import Recipe
from muster.core.recipes import WORDS
from muster.store.tokens import snapshots

PATIENCE = 5.0  # seconds for a connection to the hub
DATA = ("data.name", "data.mix")  # keys that name data sets
WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_PLAIN = re.compile(r"[^a-z0-9]")


def check_names(recipe: Recipe, env: Mapping[str, str], *, hub: bool = True) -> None:
    """Raise RecipeError for what is neither here nor available. `env`: the ranks' variables. `hub`: False
    checks folders only, since a dry run may be made where there is no network."""
    env = {**os.environ, **env}
    for key, name, files in _needed(recipe):
        if name.startswith("/"):
            _check_folder(key, Path(name), files)
        elif hub and not _cached(key, name, files, env) and (why := _out_of_reach(key, env)):
            raise RecipeError(
                f"{name} is not in this machine's Hugging Face cache, and {why}",
                where=key,
                hint=_ways(key, name),
            )


def _ways(key: str, name: str) -> str:
    """Return what to do without a hub."""
    if key in DATA:
        return "where there is a network, `muster prepare` fetches it; or data.path=FILE or FOLDER"
    ways = "a local folder works without network access"
    if key == "model.name":
        ways += "; model.init=random needs no weights"
        near = did_you_mean(name, families.sizes()) if families.size(name) is None else None
        ways = f"{near} {ways}" if near else ways
    return ways


def _needed(recipe: Recipe) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (key, name, patterns of which a file has to be there) of what is read by its name."""
    model = recipe.model
    if recipe.launch.setup:
        return  # it may say where the ranks' cache is
    if not recipe.trains or type(recipe) is Recipe:  # what its ranks read is not known here
        return
    if model.name and (model.init == "pretrained" or model.name.startswith("/")):
        yield "model.name", model.name, WEIGHTS if model.init == "pretrained" else ("config.json",)
    elif model.name and families.size(model.name) is None:
        yield "model.name", model.name, ("config.json",)
    if model.tokenizer not in WORDS:
        yield "model.tokenizer", model.tokenizer, ("*",)
    for section, key in recipe.other_models:
        if name := getattr(getattr(recipe, section), key):
            yield f"{section}.{key}", name, WEIGHTS
    for source in recipe.data.sources():
        if source.name:
            yield "data.mix" if source.name != recipe.data.name else "data.name", source.name, ("*",)


def _check_folder(key: str, folder: Path, patterns: tuple[str, ...]) -> None:
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise RecipeError(f"{folder}: {what}", where=key, hint="a folder, or a name on the hub")
    if key == "model.name" and not (folder / "config.json").is_file():
        raise RecipeError(f"{folder} has no config.json", where=key, hint="the folder of a saved model")
    if not _has(folder, patterns):
        raise RecipeError(
            f"{folder} has no weights", where=key, hint="model.init=random takes its configuration alone"
        )


def _has(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _cached(key: str, name: str, patterns: tuple[str, ...], env: Mapping[str, str]) -> bool:
    """Return whether the hub's cache, or that of the datasets library, has it."""
    kind = "datasets" if key in DATA else "models"
    if any(_has(each, patterns) for each in snapshots(name, kind, env)):
        return True
    if key not in DATA:
        return False
    base = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(env.get("HF_HOME") or f"{base}/huggingface").expanduser()
    made = Path(env.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()
    plain = _PLAIN.sub("", name.lower())  # the library changes capitals and dashes in the folder's name
    return made.is_dir() and any(_PLAIN.sub("", each.name.lower()) == plain for each in made.iterdir())


def _out_of_reach(key: str, env: Mapping[str, str]) -> str | None:
    """Return why the hub cannot be reached; None: it can, or that is not known (there is a proxy)."""
    names = (*_OFFLINE, "HF_DATASETS_OFFLINE") if key in DATA else _OFFLINE
    offline = next((name for name in names if env.get(name, "").upper() in ("1", "TRUE", "YES", "ON")), None)
    if offline:
        return f"{offline} is set"
    if any(env.get(name) for name in _PROXIES):
        return None
    hub = urlsplit(env.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), PATIENCE).close()
    except (OSError, ValueError) as error:
        return f"{hub.hostname} cannot be reached ({getattr(error, 'strerror', None) or error})"
    return None
