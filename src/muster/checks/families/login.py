"""What a login says that nobody asked for."""

from __future__ import annotations

from muster.checks.base import Finding
from muster.checks.kinds import Case, host_check
from muster.core.units import counted


@host_check(
    "login.noise",
    "Lines that the login shell prints when a command runs over the connection.",
    "scp, rsync, sftp and launchers that read a command's output take these lines for part of it.",
    allowed=0,
)
def noise(case: Case) -> Finding:
    """From Transport.noise."""
    transport = case.context.transport.get(case.host)
    if transport is None:
        return case.unknown("what the login printed could not be read")
    lines = transport.noise
    if len(lines) <= case.expect("allowed"):
        return case.passed("silent" if not lines else counted(len(lines), "line"))
    return case.warn(
        "the login shell prints lines of its own",
        f"{counted(len(lines), 'line')}, such as {lines[0].strip()[:120]!r}",
        "put this at the top of ~/.bashrc or of the file that prints: case $- in *i*) ;; *) return ;; esac",
    )


CHECKS = (noise,)
