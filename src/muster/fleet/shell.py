"""The only place on the control side that starts a process; with a fake for tests.

Commands are argument lists, never strings for a shell.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from muster.core.errors import JobError


class Process(Protocol):
    """A started process with byte pipes."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    pid: int

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it at once."""


class Shell(Protocol):
    """Starts processes."""

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        """Start `argv` with pipes on all three streams, in a session of its own."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        output: Path | None = None,
    ) -> tuple[int, bytes, bytes]:
        """Run `argv` to its end -> (exit code, stdout, stderr). `output`: a file for a large stdout."""


class RealShell:
    """The system's processes."""

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        """See Shell. A session of its own: Ctrl-C reaches the controller alone, which then stops the job."""
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
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        output: Path | None = None,
    ) -> tuple[int, bytes, bytes]:
        """See Shell."""
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


def _cannot_start(program: str, error: OSError) -> JobError:
    return JobError(
        f"cannot start {program}: {error.strerror}",
        hint=_HINTS.get(error.errno or 0),
        failure={errno.ENOENT: "launcher_not_installed", errno.EMFILE: "nofile"}.get(error.errno or 0),
    )


def more_files(count: int) -> None:
    """Raise this process's soft limit of open files, as far as it may, so that `count` more are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


@dataclass
class FakeShell:
    """Records what would run; answers from a function. For tests."""

    answer: Callable[[Sequence[str]], Process] | None = None
    answer_run: Callable[[Sequence[str]], tuple[int, bytes, bytes]] | None = None
    started: list[list[str]] = field(default_factory=list)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        """See Shell."""
        self.started.append(list(argv))
        if self.answer is None:
            raise AssertionError(f"nothing should have been started, but {list(argv)} was")
        return self.answer(argv)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        output: Path | None = None,
    ) -> tuple[int, bytes, bytes]:
        """See Shell."""
        self.started.append(list(argv))
        if self.answer_run is None:
            raise AssertionError(f"nothing should have been run, but {list(argv)} was")
        code, out, err = self.answer_run(argv)
        if output:
            output.write_bytes(out)
            out = b""
        return code, out, err
