"""What a login says that nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, each
from muster.core.units import counted

CHECKS = (
    Check(
        "login.noise",
        "Lines that the login shell prints when a command runs over the connection.",
        "scp, rsync, sftp and launchers that read a command's output take these lines for part of it.",
        {"allowed": 0},
    ),
)


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """From Transport.noise."""
    hosts: Answers = answers or {host: {} for host in context.transport}  # there is no probe
    return each("login.noise", hosts, lambda about, answer: _noise(about, answer, context))


def _noise(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    transport = context.transport.get(about.host)
    if transport is None:
        return about.unknown("what the login printed could not be read")
    lines = transport.noise
    if len(lines) <= int(context.expect(about.check, "allowed")):
        return about.passed("silent" if not lines else counted(len(lines), "line"))
    return about.warn(
        "the login shell prints lines of its own",
        f"{counted(len(lines), 'line')}, such as {lines[0].strip()[:120]!r}",
        "put this at the top of ~/.bashrc or of the file that prints: case $- in *i*) ;; *) return ;; esac",
    )
