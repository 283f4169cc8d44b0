"""How long the host has been up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, each
from muster.core.units import format_seconds

CHECKS = (
    Check(
        "uptime.since_boot",
        "Seconds since the host was started: at_least and at_most (0: not asked).",
        "A host that restarted by itself may do so again; one that has been up for a year lacks updates.",
        {"at_least": 0, "at_most": 0},
    ),
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds since boot."""
    words = (text("/proc/uptime") or "").split()
    return {"seconds": float(words[0]) if words else None}


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Against the profile's bounds."""
    return each("uptime.since_boot", answers, lambda at, a: _since(at, a, context))


def _since(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    seconds = answer.get("seconds")
    if seconds is None:
        return about.unknown("the time since boot could not be read")
    least, most = (float(context.expect(about.check, key)) for key in ("at_least", "at_most"))
    evidence = f"up for {format_seconds(seconds)}"
    if seconds < least:
        return about.warn(
            "the host was restarted recently", evidence, "last -x reboot | head; journalctl -b -1 -e"
        )
    if most and seconds > most:
        return about.warn(
            "the host has not been restarted for a long time", evidence, "sudo reboot, when no job runs"
        )
    return about.passed(evidence)
