"""How two sides prove to each other that they know a secret, without sending it. Pure.

One line each way, after the server's greeting:

    server   muster1 NONCE                     32 hex digits, new for every connection
    client   PROOF {"name":..., "nonce":...}   PROOF: HMAC-SHA256(secret, "client NONCE {...}"), 64 hex digits
    server   PROOF {...}                       PROOF: of "server NONCE {...}", with the client's nonce
         or  refused REASON

Each side's proof covers its message and a nonce of the other side, so that neither can be altered, replayed
or reflected. What follows on the connection is not covered.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from muster.agent.member import MAX_LINE, proof

_PROOF = re.compile(rb"[0-9a-f]{64}")
_NONCE = re.compile(r"[0-9a-f]{32}")


class Refusal(ValueError):
    """A line that is not accepted; `str()` is the reason, which the other side may read."""


def new_nonce() -> str:
    """Return 32 random hex digits."""
    return secrets.token_hex(16)


def greeting(nonce: str) -> bytes:
    """Return the server's first line."""
    return f"muster1 {nonce}\n".encode()


def read_claim(line: bytes, secret: str, nonce: str) -> dict[str, Any]:
    """Return the content of the client's line (without its line end), once proven. `nonce`: that of the
    greeting.

    Raises Refusal where it is not the protocol, or the secret is another one (a replay looks the same).
    """
    given, space, payload = line.partition(b" ")
    if not space or not _PROOF.fullmatch(given):
        raise Refusal("garbage")
    if not hmac.compare_digest(given, proof(secret, "client", nonce, payload)):
        raise Refusal("wrong secret")
    try:
        claim = json.loads(payload)
    except (ValueError, RecursionError):
        raise Refusal("garbage") from None
    if (
        not isinstance(claim, dict)
        or not isinstance(claim.get("name"), str)
        or not isinstance(claim.get("nonce"), str)
        or not _NONCE.fullmatch(claim["nonce"])
    ):
        raise Refusal("garbage")
    return claim


def answer(reply: Mapping[str, Any], secret: str, nonce: str) -> bytes:
    """Return the server's line to a client that has proven itself. `nonce`: the client's.

    Raises ValueError where the line would be longer than MAX_LINE.
    """
    payload = json.dumps(reply, separators=(",", ":")).encode()
    line = proof(secret, "server", nonce, payload) + b" " + payload + b"\n"
    if len(line) > MAX_LINE:
        raise ValueError(f"an answer of {len(line)} bytes does not fit in a line of {MAX_LINE}")
    return line


def refusal(reason: str) -> bytes:
    """Return the server's line to a client that it refuses: one line, whatever the reason contains."""
    return b"refused " + " ".join(reason.split()).encode()[: MAX_LINE - 9] + b"\n"
