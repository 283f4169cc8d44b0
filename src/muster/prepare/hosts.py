"""Provision's hosts: which are still in, what became of each, and the same program on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from muster.core.errors import MusterError
from muster.core.inventory import Host
from muster.core.job import place
from muster.core.registry import load_plugin
from muster.fleet.shell import Shell
from muster.inputs.read import Inputs
from muster.prepare.plan import Options, PreparePlan
from muster.prepare.result import PreparedHost
from muster.prepare.session import Copied, Crew, Progress, Remote, Steps

HERE = "this-machine"
T = TypeVar("T")


class Hosts:
    """Connections to all hosts of one call. A context manager: when it is left, all have left."""

    def __init__(
        self,
        inputs: Inputs,
        options: Options,
        plan: PreparePlan,
        progress: Progress,
        shell: Shell,
        tick: Callable[[], str | None],
    ) -> None:
        self.inputs, self.options, self.plan = inputs, options, plan
        self.progress, self.shell, self.tick = progress, shell, tick
        self.token = secrets.token_hex(4)
        self.crew = self._connect(inputs.inventory.hosts, inputs.launcher, tick)
        self.reports = {host.label: PreparedHost(host.label) for host in inputs.inventory.hosts}
        self.facts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Hosts:
        self.crew.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crew.__exit__(kind, error, trace)

    def _connect(self, hosts: tuple[Host, ...], launcher: ModuleType, tick: Callable[[], str | None]) -> Crew:
        """Connections by the interpreter that makes the environment: the ranks' may not be there yet."""
        launch = self.inputs.recipe.launch.model_copy(update={"python": self.options.python})
        return Crew(
            place([(host, 1) for host in hosts]),
            launcher,
            launch,
            f"prepare-{self.token}",
            self.shell,
            progress=self.progress,
            patience=self.options.timeout,
            tick=tick,
        )

    def alive(self) -> dict[str, Remote]:
        """The hosts that have not failed."""
        return {h: r for h, r in self.crew.remotes.items() if self.reports[h].failure is None}

    def each(self, work: Callable[[Remote], Steps[T]]) -> dict[str, T]:
        """Do something on every host that has not failed; what it returned, where it did not fail now."""
        good = {}
        for host, result in self.crew.together({h: work(r) for h, r in self.alive().items()}).items():
            if isinstance(result, MusterError):
                self.fail(host, result)
            else:
                good[host] = result
        return good

    def one(self, host: str, steps: Steps[T]) -> T:
        """Do something on one host. Raises MusterError; the host is not failed by it."""
        result = self.crew.together({host: steps})[host]
        if isinstance(result, MusterError):
            raise result
        return result

    def here(self, op: str, **content: Any) -> dict[str, Any]:
        """One request to the same program on this machine: it hashes and downloads as the hosts' do.

        Raises MusterError.
        """

        def tick() -> str | None:
            self.crew.keep()  # the hosts wait meanwhile, and want to hear that we are there
            return self.tick()

        def steps(remote: Remote) -> Steps[dict[str, Any]]:
            yield from remote.ask("hello", **self.greeting(), python=None)
            return (yield from remote.ask(op, **content))

        with self._connect((Host(HERE),), load_plugin("muster.launchers", "local"), tick) as crew:
            result = crew.together({HERE: steps(crew.remotes[HERE])})[HERE]
        if isinstance(result, MusterError):
            raise result
        return result

    def greeting(self) -> dict[str, Any]:
        """What the program is told first."""
        launch = self.inputs.recipe.launch
        return {"cache": self.plan.cache, "env": self.inputs.env, "lease": launch.lease}

    def fail(self, host: str, error: MusterError) -> None:
        """Leave a host behind; its first failure stays."""
        report = self.reports[host]
        if report.failure is None:
            report.failure = {**error.as_dict(), "host": host}
            self.progress(host, f"failed: {error.what}", 0, 0)

    def fail_all(self, error: MusterError) -> None:
        """What fails every host that has not failed."""
        for host in self.alive():
            self.fail(host, error)

    def note_copy(self, host: str, what: str, size: int, copied: Copied) -> None:
        """Write down what a host took; `size` is the whole tree's, in bytes."""
        status = "copied" if copied.files else "present"
        self.reports[host].copied.append({"what": what, "status": status, "size": size, **asdict(copied)})
