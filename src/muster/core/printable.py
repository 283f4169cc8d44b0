"""Text that may be shown: without terminal controls, and without secrets that are recognisable as such. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = "(hidden)"

# Controls of both kinds but for line end and tab, ends of lines of other kinds, what turns the direction of
# writing round, and bytes that are no text.
_COMMANDS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# What is a secret wherever it stands. The first group of each is kept, or the second.
_KNOWN = re.compile(
    r"(?P<url>\b[A-Za-z][A-Za-z0-9+.\-]*:/{1,2}[^\s/@:\"'\\<>]*:)[^\s/\"'\\<>]+(?=@)"
    r"|(?P<query>[?&](?:access_|auth_|api_)?(?:token|key|apikey|password|secret|sig|signature)=)[^\s&#\"'\\]+"
    r"|(?P<bearer>\b(?:Bearer|Basic) )[A-Za-z0-9._~+/\-]{16,}=*"
    r"|(?<![A-Za-z0-9])(?P<prefix>gh[pousr]_|github_pat_|glpat-|hf_|xox[a-z]-|A[KS]IA|AIza|wandb_v1_|npm_|pypi-"
    r"|sk-(?=[A-Za-z_\-]*[0-9]))(?:(?<=hf_)[A-Za-z0-9]{16,}|(?<!hf_)[A-Za-z0-9_\-]{10,})"
)


def printable(text: str) -> str:
    """Return text without what a terminal would take for a command, such as to set its title or to clear
    itself."""
    return _COMMANDS.sub("?", text)


def spelt_out(text: str) -> str:
    """Return a JSON document in which such characters are escaped: the same data."""
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def scrubbed(text: str) -> str:
    """Return text without passwords in URLs and without tokens that their first letters identify."""
    return _KNOWN.sub(_masked_known, text) if _KNOWN.search(text) else text


def _masked_known(match: re.Match[str]) -> str:
    kept = next(part for part in match.group("url", "query", "bearer", "prefix") if part is not None)
    return kept + HIDDEN


def scrubbed_data(data: Any, scrub: Callable[[str], str] = scrubbed) -> Any:
    """Return plain data with every text in it scrubbed."""
    if isinstance(data, str):
        return scrub(data)
    if isinstance(data, Mapping):
        return {key: scrubbed_data(value, scrub) for key, value in data.items()}
    return [scrubbed_data(value, scrub) for value in data] if isinstance(data, list | tuple) else data


def clean(text: str) -> str:
    """Return text of another author as a terminal may show it: printable and scrubbed."""
    return printable(scrubbed(text))
