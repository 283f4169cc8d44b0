"""What was taken out of files that people share: values of variables, kept for their owner alone.

They lie in `$XDG_STATE_HOME/muster/values` (~/.local/state/muster/values), outside of every run folder, each
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
    """Write `values` down for this user alone. -> their key; None: they cannot be kept here."""
    key = key or secrets.token_hex(8)
    try:
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(file, json.dumps(dict(values)), private=True)
    except (OSError, RuntimeError):  # no home, or none that can be written to
        return None
    return key


def kept(key: str | None) -> dict[str, Any]:
    """What was kept under a key; nothing where there is none, as on another machine."""
    try:
        content = json.loads(_file(key).read_text(encoding="utf-8")) if key else {}
    except (OSError, RuntimeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def forget(key: str | None) -> None:
    """They are not needed any more."""
    try:
        if key:
            _file(key).unlink(missing_ok=True)
    except (OSError, RuntimeError):
        pass


def recipe_file(recipe: Mapping[str, Any], key: str | None = None) -> str:
    """A recipe as the text of a file that may be shared."""
    return dump_yaml(without_values(recipe, key))


def without_values(recipe: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
    """A recipe as it may be shared. What is secret in it is kept under `key`, or a new one."""
    data, taken = shareable(recipe)
    if taken:
        data["env_kept"] = keep(taken, key)
    return data
