"""The messages of `muster check` to a host, and its answers. Pure."""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import MAGIC_NUMBER
from typing import Any

from muster.checks.base import Transport
from muster.core.job import Placement
from muster.fleet.launchers.base import MAKE, compiled, texts_of

# The first words over there, for any Python: the launchers' bootstrap runs it, and left r(n), which reads n
# bytes. The newline ends what a login script printed without one.
_GREETING = (
    MAKE.encode()
    + b"""
import gc, sys, time
gc.disable()
v = sys.version_info
magic = getattr(sys.modules.get("_frozen_importlib_external"), "MAGIC_NUMBER", b"")
magic = "".join("%02x" % c for c in bytearray(magic))
line = '\\n{"m": "hello", "python": "%d.%d.%d", "magic": "%s", "time": %r}\\n'
os.write(1, (line % (v[0], v[1], v[2], magic, time.time())).encode())
if v[:2] < (3, 8):
    raise SystemExit(3)
kind = r(1)
heard = time.time()
body = r(int(r(10)))
if kind == b"m":
    import marshal
    parts, families = marshal.loads(body)
else:
    import json
    parts, families = json.loads(body.decode())
make(parts).probe.main(families, heard)
"""
)
_PARTS = ("talk", "probe")  # of the agent's package
OPENING = b"%010d" % len(_GREETING) + _GREETING
_MAGIC = MAGIC_NUMBER.hex()


@dataclass(frozen=True)
class Patience:
    """Seconds for each step of a host, and how many sessions are opened at once."""

    connect: float = 20.0  # connection, login, and python's first word
    probe: float = 15.0  # all probes of a round, but for those that have longer
    fanout: int = 64


@dataclass(frozen=True)
class HostAnswers:
    """A host's answers. `peers` is None where it was not asked a second time, or did not answer then."""

    transport: Transport
    answers: Mapping[str, Mapping[str, Any]]  # family -> its probe's answer, or {"error": ...}
    peers: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Questions:
    """The questions. `first` and `second` name the families that have a probe for the round."""

    sources: Mapping[str, str]  # family -> the text of its probes
    first: tuple[str, ...]
    second: tuple[str, ...]
    ask: Callable[[Placement], dict[str, Any]]
    interpreter: str = "python3"
    longer: Mapping[str, float] = field(default_factory=dict)  # family -> seconds, where that is too short

    def program(self, magic: str) -> bytes:
        """Return the probe and the families; compiled where the host's Python is of our kind."""
        return self._compiled if magic == _MAGIC else self._text

    @cached_property
    def _text(self) -> bytes:
        return _framed(b"s", json.dumps([texts_of(_PARTS), dict(self.sources)]).encode())

    @cached_property
    def _compiled(self) -> bytes:
        families = {
            name: compile(source, f"muster-{name}", "exec", dont_inherit=True)
            for name, source in self.sources.items()
        }
        return _framed(b"m", marshal.dumps((compiled(texts_of(_PARTS)), families)))


def well_formed(answers: Any, families: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return a host's answers in their proper form: one dict per family, whatever arrived."""
    given = answers if isinstance(answers, dict) else {}
    return {
        name: given[name] if isinstance(given.get(name), dict) else {"error": "not an answer"}
        for name in families
    }


def failed(answer: Mapping[str, Any]) -> bool:
    """Return whether the probe itself broke, or was not done in time: then there is only `error`."""
    return set(answer) == {"error"}


def clock(stamp: float, came: float, sent: float, arrival: float) -> tuple[float, float]:
    """Return (offset, error) in seconds of a host's clock, as NTP computes it.

    The host sent `stamp` by its clock, and it arrived at `came` by ours: offset >= stamp - came. What was
    sent at `sent` by ours arrived at `arrival` by the host's: offset <= arrival - sent.
    """
    low, high = stamp - came, arrival - sent
    return (low + high) / 2, abs(high - low) / 2


def _framed(kind: bytes, body: bytes) -> bytes:
    return b"%s%010d" % (kind, len(body)) + body
