"""Slurm on the hosts of a test cluster: one slurmctld beside this machine, one slurmd per host.

    with Cluster(size=3) as cluster, Slurm(cluster) as slurm:
        slurm.run(["srun", "-N3", "hostname"])
        slurm.run(["sbatch", "job.sh"], on="node1")

Partitions: `main`, the default, with every host, and `short`, the first two for at most two minutes. Each
host has 8 CPUs and 2 GPUs (`--gres=gpu:1`) that are only names; hosts with an odd number have the feature
`odd`, the others `even`. Slurm writes only below the cluster's `base`, and ends with the process that owns
the cluster, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from .boot import Node
from .cluster import Cluster
from .namespaces import TOOL_PATH, ClusterError
from .slurm_boot import START_SECONDS, Head, end_slurmd, has_slurmd, start_head, start_slurmd
from .slurm_files import HEAD, Files, write_files

__all__ = ["Slurm", "unavailable"]

TOOLS = ("munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "squeue", "scancel", "scontrol")
NOW = ("srun", "--immediate=10")  # seconds for which it waits for its hosts; then it fails
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"}


def unavailable() -> str | None:
    """Why there can be no Slurm here, or None where there can."""
    missing = [name for name in TOOLS if shutil.which(name, path=TOOL_PATH) is None]
    return f"Slurm needs {', '.join(missing)}" if missing else None


class Slurm:
    """Slurm for all hosts of a running cluster. A host that is revived gets its slurmd again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.files = Files(cluster.base / "slurm")
        # Add these to an environment, and Slurm's commands in it mean this Slurm: here and on every host.
        self.env: dict[str, str] = {"SLURM_CONF": str(self.files.conf)}
        self._owner = os.getpid()
        self._head: Head | None = None

    def __enter__(self) -> Slurm:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start every daemon; on return every host is idle. Raises ClusterError."""
        atexit.register(self.close)
        try:
            write_files(self.files, self.cluster.number, self.cluster.address, self.cluster.hosts)
            self._head = start_head(self.files, self.env)
            for node in self.cluster.hosts:
                self._start_slurmd(node)
            self.cluster.on_boot.append(self._start_slurmd)
            self._await_idle(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every daemon, job and step, and remove the files. Harmless again, or in a forked child."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        with contextlib.suppress(ValueError):
            self.cluster.on_boot.remove(self._start_slurmd)
        if self._head is not None:  # first, so that it starts nothing more
            self._head.end()
            self._head = None
        for node in self.cluster.hosts:
            if self.cluster.is_alive(node):
                end_slurmd(self.cluster, node)
        shutil.rmtree(self.files.folder, ignore_errors=True)

    # What one does with it.

    def run(
        self,
        argv: Sequence[str],
        *,
        on: str | Node | None = None,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: Path = Path("/"),
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that means this Slurm: on the machine, or in a host's namespaces."""
        variables = {**(clean_environment() if env is None else env), **self.env}
        if on is not None:
            return self.cluster.run(on, argv, timeout=timeout, env=variables, cwd=cwd)
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=variables,
            cwd=cwd,
        )

    def jobs(self) -> list[str]:
        """The ids of all jobs that have not ended, those that are ending included."""
        return self._ask(["squeue", "--noheader", "--format=%A"]).split()

    def job(self, number: str | int) -> dict[str, str]:
        """What `scontrol show job` tells about a job. Raises ClusterError where it is not known."""
        return parse_fields(self._ask(["scontrol", "--oneliner", "show", "job", str(number)]).strip())

    def wait_job(self, number: str | int, states: Iterable[str], timeout: float = 60) -> dict[str, str]:
        """Wait until a job is in one of the states. Raises ClusterError where it ended in another."""
        wanted, deadline = set(states), time.monotonic() + timeout
        while True:
            job = self.job(number)
            state = job["JobState"]
            if state in wanted:
                return job
            if state in ENDED or time.monotonic() > deadline:
                raise ClusterError(f"job {number} is {state}, not {' or '.join(sorted(wanted))}: {job}")
            time.sleep(0.1)

    def requeue(self, number: str | int) -> None:
        """End a job's run and let it start again, without the two minutes of rest that Slurm gives it."""
        self._ask(["scontrol", "requeue", str(number)])
        self.wait_job(number, ["PENDING"])
        # slurmd counts whole seconds: a start in the one of the end would be refused as revoked.
        self._ask(["scontrol", "update", f"JobId={number}", "StartTime=now+2seconds"])

    def states(self) -> dict[str, str]:
        """Each host's state as sinfo says it, such as "idle" or "down*"."""
        lines = self._ask(["sinfo", "--noheader", "--Node", "--format=%N %T"]).splitlines()
        return dict(line.split() for line in lines)

    def heal(self, timeout: float = 60) -> None:
        """Cancel every job and have all hosts that live idle again. Raises ClusterError."""
        deadline, begun = time.monotonic() + timeout, []
        for node in self.cluster.hosts:
            if self.cluster.is_alive(node) and not has_slurmd(self.cluster, node):
                self._start_slurmd(node)
                begun.append(node.name)
        self._await_idle(timeout)
        for name in begun:  # slurmctld may call it idle from before, while nobody listens there yet
            while self.run([*NOW, f"--nodelist={name}", "true"]).returncode and time.monotonic() < deadline:
                time.sleep(0.2)
                self._await_idle(timeout)

    # How it comes about.

    def log_tail(self) -> str:
        names = [HEAD, "munged", "slurmctld", *(f"slurmd-{node.name}" for node in self.cluster.hosts)]
        return "\n".join(f"{name}: {self.files.log_tail(name)}" for name in names)

    def _ask(self, argv: list[str]) -> str:
        done = self.run(argv)
        if done.returncode != 0:
            raise ClusterError(f"{argv}: {done.stderr.strip()}\n{self.log_tail()}")
        return done.stdout

    def _start_slurmd(self, node: Node) -> None:
        start_slurmd(self.files, self.env, self.cluster, node)

    def _await_idle(self, timeout: float) -> None:
        """Cancel what there is, and bring back what Slurm gave up, until every living host is idle."""
        names = {node.name for node in self.cluster.hosts if self.cluster.is_alive(node)}
        deadline, cancelled = time.monotonic() + timeout, set[str]()
        while True:
            jobs, states = self.jobs(), self.states()
            if not jobs and all(states.get(name) == "idle" for name in names):
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"Slurm does not come to rest: jobs {jobs}, hosts {states}\n{self.log_tail()}"
                )
            if fresh := set(jobs) - cancelled:
                self.run(["scancel", *sorted(fresh)])
                cancelled |= fresh
            for name in sorted(names):
                if states.get(name, "").startswith(("down", "drain", "fail")):
                    self.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            time.sleep(0.1)


def clean_environment() -> dict[str, str]:
    """This process's environment without what an enclosing Slurm has put there."""
    prefixes = ("SLURM", "SBATCH", "SRUN", "SALLOC", "SQUEUE", "SCANCEL", "SINFO", "SCONTROL")
    return {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}


def parse_fields(line: str) -> dict[str, str]:
    """`A=b C=d e F=` as a dictionary: a value lasts until the next word with an equals sign."""
    parts = re.split(r"(?:^| )([A-Za-z][A-Za-z0-9_:/]*)=", line)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
