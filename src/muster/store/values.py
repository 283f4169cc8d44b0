"""Values of variables that were removed from files which people share, kept for their owner alone.

They are in `$XDG_STATE_HOME/muster/values` (~/.local/state/muster/values), outside of every run folder, each
under the key that a recipe's `env_kept` names.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core.recipes import dump_yaml
from muster.store.atomic import write_text
from muster.store.secrets import shareable


def _file(key: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "muster/values" / f"{key}.json"


def keep(values: Mapping[str, Any], key: str | None = None) -> str | None:
    """Store `values` for this user alone. Return their key; None: they cannot be stored here."""
    key = key or secrets.token_hex(8)
    try:
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(file, json.dumps(dict(values)), private=True)
    except (OSError, RuntimeError):  # no home, or none that can be written to
        return None
    return key


def kept(key: str | None) -> dict[str, Any]:
    """Return what was stored under a key; an empty dict where there is nothing, as on another machine."""
    try:
        content = json.loads(_file(key).read_text(encoding="utf-8")) if key else {}
    except (OSError, RuntimeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def forget(key: str | None) -> None:
    """Delete values that are no longer needed."""
    try:
        if key:
            _file(key).unlink(missing_ok=True)
    except (OSError, RuntimeError):
        pass


def recipe_file(recipe: Mapping[str, Any], key: str | None = None) -> str:
    """Return a recipe as the text of a file that may be shared."""
    return dump_yaml(without_values(recipe, key))


def without_values(recipe: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
    """Return a recipe as it may be shared. Its secrets are stored under `key`, or a new one."""
    data, taken = shareable(recipe)
    if taken:
        data["env_kept"] = keep(taken, key)
    return data
