"""Names of environment variables whose values are nobody else's business. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE", re.IGNORECASE)
HIDDEN = "(hidden)"


def is_secret(name: str) -> bool:
    """Whether a variable of this name is likely to hold a secret."""
    return bool(_SECRET.search(name))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with secrets hidden."""
    return {name: HIDDEN if is_secret(name) else value for name, value in env.items()}
