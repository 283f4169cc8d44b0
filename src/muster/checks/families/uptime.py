"""How long the host has been up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Finding
from muster.checks.kinds import Case, host_check
from muster.core.units import format_seconds


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds since boot."""
    words = (text("/proc/uptime") or "").split()
    return {"seconds": float(words[0]) if words else None}


@host_check(
    "uptime.since_boot",
    "Seconds since the host was started: at_least and at_most (0: not asked).",
    "A host that restarted by itself may do so again; one that has been up for a year lacks updates.",
    at_least=0,
    at_most=0,
)
def since_boot(case: Case) -> Finding:
    """Against the profile's bounds."""
    seconds = case.answer.get("seconds")
    if seconds is None:
        return case.unknown("the time since boot could not be read")
    least, most = case.expect("at_least"), case.expect("at_most")
    evidence = f"up for {format_seconds(seconds)}"
    if seconds < least:
        remedy = "last -x reboot | head; journalctl -b -1 -e"
        return case.note("the host was restarted recently", evidence, remedy)
    if most and seconds > most:
        remedy = "sudo reboot, when no job runs"
        return case.note("the host has not been restarted for a long time", evidence, remedy)
    return case.passed(evidence)


CHECKS = (since_boot,)
