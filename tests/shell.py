"""A shell that starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster.fleet import shell
from muster.fleet.shell import Process

REAL = shell.start, shell.run


@dataclass
class FakeShell:
    """Records what would run; answers from a function. From `use` on, until the test ends, nothing else is
    started by the control side."""

    answer: Callable[[Sequence[str]], Process] | None = None
    answer_run: Callable[[Sequence[str]], tuple[int, bytes, bytes]] | None = None
    started: list[list[str]] = field(default_factory=list)

    def use(self) -> FakeShell:
        shell.start, shell.run = self.start, self.run
        return self

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
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
        self.started.append(list(argv))
        if self.answer_run is None:
            raise AssertionError(f"nothing should have been run, but {list(argv)} was")
        code, out, err = self.answer_run(argv)
        if output:
            output.write_bytes(out)
            out = b""
        return code, out, err
