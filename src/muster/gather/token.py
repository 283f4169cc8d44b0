"""The token of a gather: made, kept and found without being in any process's arguments."""

from __future__ import annotations

import os
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import UsageError, refused
from muster.store.atomic import write_text

VARIABLE = "MUSTER_JOIN_TOKEN"
SHORTEST = 16  # letters: who has recorded a handshake could guess a shorter one at leisure


@dataclass(frozen=True)
class Token:
    """`before` and `after` enclose a member's command and give it the token."""

    text: str
    before: str = ""
    after: str = ""


def head_token(file: Path | None) -> Token:
    """Return the token of `file`, which is made where it does not exist; or of the environment; or a new one.

    One from another source is not written there again. Raises UsageError.
    """
    if file is not None:
        after = f" --token-file {shlex.quote(str(file))}"
        if file.exists():
            return Token(_read(file), after=after)
        text = secrets.token_hex(16)
        with refused(UsageError, "written", file):
            write_text(file, f"{text}\n", private=True)
        return Token(text, after=after)
    if os.environ.get(VARIABLE):
        return Token(_sound(os.environ[VARIABLE].strip(), VARIABLE), f"{VARIABLE}=${VARIABLE} ")
    text = secrets.token_hex(16)
    return Token(text, f"{VARIABLE}={text} ")


def member_token(file: Path | None) -> str:
    """Return the token from a file or the environment. Raises UsageError."""
    if file is not None:
        return _read(file)
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        raise UsageError(
            "no token was given", hint=f"set {VARIABLE} or give --token-file, as muster gather says"
        )
    return _sound(text, VARIABLE)


def _read(file: Path) -> str:
    with refused(UsageError, "read", file):
        return _sound(file.read_text(encoding="utf-8").strip(), str(file))


def _sound(text: str, where: str) -> str:
    if len(text) < SHORTEST:
        raise UsageError(f"a token has at least {SHORTEST} letters", where=where)
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the environment that are not text
        raise UsageError("a token is text in UTF-8", where=where) from None
    return text
