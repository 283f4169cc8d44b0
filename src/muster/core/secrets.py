"""Values of environment variables that are nobody else's business: told by names, hidden in words. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from muster.core.recipes import parse_override

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE", re.IGNORECASE)
_ENV = re.compile(r"(?:[A-Za-z0-9][\w.\-]*:)?\s*env(?:\.(?P<name>.*))?", re.DOTALL)  # a bench's ENTRY: first
HIDDEN = "(hidden)"


def is_secret(name: str) -> bool:
    """Whether a variable of this name is likely to hold a secret."""
    return bool(_SECRET.search(name))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with secrets hidden."""
    return {name: HIDDEN if is_secret(name) else value for name, value in env.items()}


def masked_override(text: str) -> str:
    """A word of a command: env.NAME=VALUE and env={NAME: VALUE} with secrets hidden, others as they are."""
    key, equals, raw = text.partition("=")
    variable = _ENV.fullmatch(key.rstrip())
    if not equals or not variable:
        return text
    if variable["name"] is not None:
        return f"{key}={HIDDEN}" if is_secret(variable["name"]) else text
    env = parse_override(f"env={raw}")["env"]
    if not isinstance(env, Mapping):  # no recipe has such an env: nobody knows what is in it
        return text if env is None else f"{key}={HIDDEN}"
    if not any(is_secret(str(name)) for name in env):
        return text
    hidden = masked({str(name): value for name, value in env.items()})
    return f"{key}={json.dumps(hidden, ensure_ascii=False, default=str)}"
