"""Whether the hosts' clocks agree with this machine's, as far as the connection can tell."""

from __future__ import annotations

from muster.checks.base import Finding
from muster.checks.kinds import Case, host_check


@host_check(
    "clock.skew",
    "The host's clock against this machine's, in seconds, less what the connection's delay can explain.",
    "Builds on a shared disk start over, munge and tokens expire, and events of ranks are out of order.",
    warn=0.5,
    fail=5.0,
)
def skew(case: Case) -> Finding:
    """From Transport.clock_offset and clock_error: |offset| - error is certain, and is what counts."""
    transport = case.context.transport.get(case.host)
    offset = transport.clock_offset if transport else None
    if transport is None or offset is None:
        return case.unknown("the host's clock could not be read")
    error = transport.clock_error or 0.0
    certain = max(0.0, abs(offset) - error)
    evidence = f"{abs(offset):.2f} s {'ahead' if offset > 0 else 'behind'}, within {error:.2f} s"
    if certain < case.expect("warn"):
        return case.passed(evidence)
    remedy = "sudo timedatectl set-ntp true; chronyc tracking"
    if certain >= case.expect("fail"):
        return case.fail("the clock is far off", evidence, remedy)
    return case.warn("the clock is off", evidence, remedy)


CHECKS = (skew,)
