"""Whether the hosts' clocks agree with this machine's, as far as the connection can tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, each

CHECKS = (
    Check(
        "clock.skew",
        "The host's clock against this machine's, in seconds, less what the connection's delay can explain.",
        "Builds on a shared disk start over, munge and tokens expire, and events of ranks are out of order.",
        {"warn": 0.5, "fail": 5.0},
    ),
)


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """From Transport.clock_offset and clock_error: |offset| - error is certain, and is what counts."""
    hosts: Answers = answers or {host: {} for host in context.transport}  # there is no probe
    return each("clock.skew", hosts, lambda about, answer: _skew(about, answer, context))


def _skew(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    transport = context.transport.get(about.host)
    offset = transport.clock_offset if transport else None
    if transport is None or offset is None:
        return about.unknown("the host's clock could not be read")
    error = transport.clock_error or 0.0
    certain = max(0.0, abs(offset) - error)
    evidence = f"{abs(offset):.2f} s {'ahead' if offset > 0 else 'behind'}, within {error:.2f} s"
    warn, fail = (float(context.expect(about.check, key)) for key in ("warn", "fail"))
    if certain < warn:
        return about.passed(evidence)
    remedy = "sudo timedatectl set-ntp true; chronyc tracking"
    if certain >= fail:
        return about.fail("the clock is far off", evidence, remedy)
    return about.warn("the clock is off", evidence, remedy)
