"""The only place on the control side that starts a process.

Commands are argument lists, never strings for a shell.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.core.errors import JobError

Process = subprocess.Popen[bytes]  # a started process with byte pipes


class NotStarted(JobError):
    """A program that the system could not start."""


def start(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
    """Start `argv` with pipes on all three streams, in its own session: Ctrl-C then reaches the
    controller alone, which stops the job."""
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_start(argv[0], error) from None


def run(
    argv: Sequence[str],
    *,
    input: bytes | None = None,
    timeout: float | None = None,
    output: Path | None = None,
) -> tuple[int, bytes, bytes]:
    """Run `argv` to its end. Return its exit code, stdout and stderr. `output`: a file for a large
    stdout."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(output.open("wb")) if output else subprocess.PIPE
        try:
            done = subprocess.run(
                list(argv),
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                stdout=out,
                stderr=subprocess.PIPE,
                timeout=timeout,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise JobError(f"{argv[0]} did not answer within {timeout:g} s") from None
        except OSError as error:
            raise _cannot_start(argv[0], error) from None
    return done.returncode, done.stdout or b"", done.stderr


_HINTS = {
    errno.ENOENT: "is it installed?",
    errno.EMFILE: "raise the limit of open files here: ulimit -n",
    errno.ENFILE: "this machine has reached its limit of open files",
    errno.EAGAIN: "raise the limit of processes here: ulimit -u",
    errno.E2BIG: "the command is too long for this machine: fewer hosts, or launch.launcher=ssh",
}


def _cannot_start(program: str, error: OSError) -> NotStarted:
    return NotStarted(
        f"cannot start {program}: {error.strerror}",
        hint=_HINTS.get(error.errno or 0),
        failure={errno.ENOENT: "launcher_not_installed", errno.EMFILE: "nofile"}.get(error.errno or 0),
    )


def more_files(count: int) -> None:
    """Raise this process's soft limit of open files, as far as it may, by `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
