"""Judging the Xid events that the kernel has logged since boot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.checks._gpu_told import RESET
from muster.checks._judging import About
from muster.checks.base import Context, Finding
from muster.core.units import format_seconds

# Events that mean broken hardware (NVIDIA's catalogue of Xid errors; the health gates of A100 clusters), with
# uncontained memory errors (95, 140) and a GPU system processor that does not answer (119, 120).
FATAL = [48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120, 140]
# Seconds since boot within which no driver has been loaded: a log that begins so early has every event.
_EARLY = 5.0


def judge_xid(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    """Fails for an event of broken hardware; passes only where the log reaches back to the boot."""
    events = answer.get("xids")
    if events is None:
        return about.unknown(
            "no permission to read the kernel's log",
            remedy="sudo sysctl kernel.dmesg_restrict=0, or sudo usermod -aG systemd-journal $USER",
        )
    fatal = {int(number) for number in context.expect(about.check, "fatal")}
    bad = [event for event in events if event["xid"] in fatal]
    if bad:
        return about.fail(
            "the kernel has reported a GPU hardware fault (Xid)",
            "; ".join(_words(event) for event in bad[:4]),
            f"{RESET}; the kernel's log keeps the event until a reboot",
        )
    seen = f"{len(events)} other Xid errors" if events else "none"
    begins = answer.get("log_from", 0.0)
    if begins is None or begins > _EARLY:
        start = "the beginning is missing"
        if begins is not None:
            start = f"it begins {format_seconds(begins)} after the boot"
        return about.unknown(
            "the kernel's log since boot is not complete",
            f"{seen}, but {start}",
            "sudo usermod -aG systemd-journal $USER; without a journal, log_buf_len=16M for the kernel",
        )
    return about.passed(seen)


def _words(event: Mapping[str, Any]) -> str:
    words = f"Xid {event['xid']} at {event['bus']} ({event['count']}x): {event['text']}"
    if event.get("last") is None:
        return words
    ago = f", {format_seconds(event['ago'])} ago" if event.get("ago") is not None else ""
    return f"{words} (last {format_seconds(event['last'])} after the boot{ago})"
