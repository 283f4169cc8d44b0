"""One host of `muster prepare`: jobs of its agent that run muster/agent/provision.py there."""

from __future__ import annotations

import base64
import io
import json
import platform
import secrets
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from muster.core.errors import HostError, InventoryError, JobError, MusterError, refused
from muster.core.inventory import Host
from muster.core.job import place
from muster.core.units import counted
from muster.failures.table import id_of, why_lost
from muster.fleet.supervisor import Listener, Outcome, Supervisor
from muster.inputs.read import Inputs
from muster.prepare.plan import Options, PreparePlan
from muster.store.tree import Tree, TreeFile, fingerprint

PACKAGE = "muster_agent"
Progress = Callable[[str, str], None]  # host, what it does


class Contents:
    """Files of this machine by the digests of their contents, each read once. A context manager: its folder
    is removed at the end. It has links, from which agents are sent files, and the warm jobs' own folders."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muster-prepare-"))
        self._lock = threading.Lock()
        self._files: dict[Path, TreeFile] = {}

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def of(self, path: Path) -> TreeFile:
        """Return a file under its digest. Raises JobError where it cannot be read."""
        with self._lock:
            if path not in self._files:
                with refused(JobError, "read", path):
                    mode, digest, size = fingerprint(path)
                link = self.folder / digest
                if not link.is_symlink():
                    link.symlink_to(path)
                self._files[path] = TreeFile(digest, mode, digest, size)
            return self._files[path]

    def tree(self, paths: Iterable[Path]) -> Tree:
        """Return some of the files in the form in which agents take them."""
        return Tree(self.folder, tuple({each.digest: each for each in map(self.of, paths)}.values()))


@dataclass
class HostJobs:
    """The jobs of one host, one after the other. The options' timeout is that of all of them, without the
    time in which the host waits for others between two."""

    host: Host
    inputs: Inputs
    plan: PreparePlan
    options: Options
    progress: Progress
    stop: Callable[[], str | None]
    spent: float = field(default=0.0, init=False)  # seconds of the timeout

    @property
    def python(self) -> str | None:
        """What runs the program, and makes the environment where there is none yet."""
        return self.options.python if self.plan.pinned else self.inputs.recipe.launch.python

    def run(
        self, op: str, tree: Tree | None = None, env: Mapping[str, str] | None = None, **order: Any
    ) -> dict[str, Any]:
        """Run the program with an order, after its agent has taken the files of `tree`. Return its report.
        `env`: its variables, in place of the first recipe's.

        Raises HostError, and JobError where all is stopped.
        """
        label, launch = self.host.label, self.inputs.recipe.launch
        places = place([(self.host, 1)])
        launch = launch.model_copy(update={"python": self.python})
        job_id = f"prepare-{secrets.token_hex(4)}"
        report: dict[str, Any] | None = None
        failed: dict[str, Any] | None = None
        last, began = "", time.monotonic()

        def event(_: str, line: str) -> None:
            nonlocal report, failed
            content = json.loads(line)
            kind = content.pop("kind")
            if kind == "progress":
                self.progress(label, str(content["text"]))
            elif kind == "failed":
                failed = content
            else:
                report = content

        def log(_: str, rank: int | None, lines: list[str]) -> None:
            nonlocal last
            last = next((line for line in reversed(lines) if line.strip()), last)

        try:
            with Supervisor(places, self.inputs.launcher, launch, job_id, self.stop) as supervisor:
                facts = supervisor.greet({label: self._greeting(job_id)})[label]
                if tree is not None:
                    self.progress(label, f"copying {counted(len(tree.files), 'file')}")
                    supervisor.bring(tree, [label])
                orders = {label: self._orders(facts, {"op": op, "cache": self.plan.cache, **order}, env)}
                listener = Listener(event, log, lambda host, sample: None, self.stop)
                outcome = supervisor.run(orders, listener)
        except InventoryError as error:  # its hint names hosts of other jobs
            raise HostError(error.what, host=label, failure=error.failure) from None
        except HostError:
            raise
        except MusterError as error:
            if self.stop():
                raise
            raise HostError(error.what, host=label, hint=error.hint, failure=error.failure) from None
        finally:
            self.spent += time.monotonic() - began
        if failed is not None:
            what = str(failed["what"])
            raise HostError(what, host=label, hint=failed["hint"], failure=id_of(what))
        if report is None:
            raise self._why(outcome, last)
        return report

    def _greeting(self, job_id: str) -> dict[str, Any]:
        """Return what the agent needs before it can report what it has."""
        launch, nonce = self.inputs.recipe.launch, secrets.token_hex(8)
        return {
            "run_root": "/",
            "run_dir": "/",
            "nonce": f".muster-{nonce}",
            "workdir": f"{self.plan.cache}/{job_id}",
            "scratch": True,
            "node_rank": 0,
            "python": self.python,
            "controller_python": None if self.plan.pinned else sys.executable,
            "setup": launch.setup,
            "device": "cpu",
            "timeout": max(1.0, self.options.timeout - self.spent),
            "lease": launch.lease,
            "folder": self.host.label,
            "attempt": 1,
            "token": f"{job_id}.{nonce}",
        }

    def _orders(
        self, facts: Mapping[str, Any], order: Mapping[str, Any], env: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """Return the start order of the program."""
        return {
            "nodes": 1,
            "address": "127.0.0.1",
            "port": facts["port"],
            "job": {"order": order},
            "host": {
                "argv": [facts["python"], "-m", f"{PACKAGE}.provision"],
                "each": "host",
                "ranks": [0],
                "world_size": 1,
                "threads": 1,
                "device": "cpu",
                "env": dict(self.inputs.env if env is None else env),
                "hardware_seconds": 3600,
                "code": _code(),
            },
        }

    def _why(self, outcome: Outcome, last: str) -> MusterError:
        """Return the error that says why there is no report."""
        label = self.host.label
        if outcome.stopped:
            return JobError(outcome.stopped)
        if label in outcome.lost:
            why = outcome.lost[label]
            return HostError(f"was lost: {why}", host=label, failure=why_lost(why))
        if label in outcome.problems:
            problem = outcome.problems[label]
            return HostError(problem.what, host=label, hint=problem.hint, failure=problem.id)
        code, end = outcome.exits[label]
        if end == "deadline":
            return HostError(f"not done within {self.options.timeout:g} s (--timeout)", host=label)
        return HostError(f"ended with exit code {code}: {last or end}", host=label)


@cache
def _code() -> str:
    """Return the program, with what it uses of the agent's package, as a base64 zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("__init__", "talk", "files", "provision"):
            text = resources.files("muster.agent").joinpath(f"{name}.py").read_bytes()
            archive.writestr(f"{PACKAGE}/{name}.py", text)
    return base64.b64encode(buffer.getvalue()).decode()


def own_uv() -> Path | None:
    """Return uv of this machine, for hosts of the same kind that have none."""
    path = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    return Path(path).resolve() if path and platform.system() == "Linux" else None
