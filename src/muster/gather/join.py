"""Register this machine with a head: `muster join`. The work is done by muster/agent/member.py, which also
runs where there is no Muster."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from muster.agent import member
from muster.core.errors import HostError, JobError, UsageError
from muster.core.inventory import MAX_SLOTS
from muster.core.units import check_timeout


def script() -> str:
    """Return the same as a file for any python3 >= 3.8."""
    return resources.files("muster.agent").joinpath("member.py").read_text(encoding="utf-8")


def join(
    head: str,
    token: str,
    *,
    slots: int | None = None,
    address: str = "",
    timeout: float = 600.0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Register at `HEAD[,HEAD...]:PORT`, trying until a head answers there, and wait until all machines have
    registered. Return this machine's name there (`name`), and their number (`members`).

    Raises UsageError (bad input, another token), JobError (the head refuses) and HostError (not in time).
    """
    try:
        heads, port = member.parse_heads(head)
    except ValueError as error:
        raise UsageError(
            str(error), hint="use the command that muster gather printed, with HEAD such as node1:7000"
        ) from None
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"slots must be from 1 to {MAX_SLOTS}, not {slots}")
    check_timeout(timeout)
    try:
        return member.join(heads, port, token, member.about(slots, address), timeout, say)
    except member.Rejected as error:
        if error.wrong_token:
            raise UsageError(
                "the head has a different token", where=head, hint="each gather has its own token"
            ) from None
        raise JobError(str(error), where=head) from None
    except KeyboardInterrupt:
        raise JobError("stopped by Ctrl-C", where=head) from None
    except member.Unreachable as error:
        raise HostError(
            str(error), where=head, hint="check that the head is up and that no firewall blocks it"
        ) from None
