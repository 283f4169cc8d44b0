"""Slurm's daemons: started so that they end with their owner, and ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.warm import REAL

from .boot import Node
from .cluster import Cluster
from .namespaces import TOOL_PATH, ClusterError, Process, enter_argv, tool
from .registry import ProcessId, end_process, identify
from .slurm_files import HEAD, Files, munged_argv

START_SECONDS = 30.0
INIT = Path(__file__).with_name("slurm_head.py")
STEPS = {"slurmd", "stepd", "slurmstepd"}  # slurmd, and what a step's first process is called


@dataclass(frozen=True)
class Head:
    """The controlling side's first process by this machine's PID, and the `unshare` above it."""

    unshare: subprocess.Popen[str]
    init: ProcessId

    def end(self) -> None:
        """End every daemon of the controlling side; on return the last one is gone."""
        end_process(self.init)
        self.unshare.wait(10)


def start_head(files: Files, env: Mapping[str, str]) -> Head:
    """munged and slurmctld, in namespaces that end with this process. Raises ClusterError."""
    owner = os.pidfd_open(os.getpid())
    argv = [tool("unshare"), "--mount", "--uts", "--pid", "--propagation", "private", "--fork"]
    argv += ["--kill-child", "--", REAL, "-I", "-S", str(INIT), str(owner)]
    try:
        with files.log(HEAD).open("ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                env={"PATH": TOOL_PATH, **env},
                pass_fds=(owner,),
                start_new_session=True,  # a Ctrl-C is for the owner, which then takes Slurm down
            )
    finally:
        os.close(owner)
    try:
        init = identify(int(_hear(files, process)["pid"]))
        if init is None:
            raise ClusterError(f"Slurm's {HEAD} ended as it began: {files.log_tail(HEAD)}")
        _tell(files, process)
    except BaseException:
        process.kill()  # its child goes with it
        process.wait()
        raise
    finally:
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None and not stream.closed:
                    stream.close()
    return Head(process, init)


def _hear(files: Files, process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else ""
    if not line:
        raise ClusterError(f"Slurm's {HEAD} did not start: {files.log_tail(HEAD)}")
    said: dict[str, Any] = json.loads(line)
    return said


def _tell(files: Files, process: subprocess.Popen[str]) -> None:
    """Say what to run; on return munged has made its socket, and slurmctld begins."""
    munged = {"argv": munged_argv(files), "log": str(files.log("munged")), "makes": str(files.socket)}
    slurmctld = {"argv": [tool("slurmctld"), "-D"], "log": str(files.log("slurmctld")), "makes": None}
    config = {"name": HEAD, "hosts": str(files.hosts), "daemons": [munged, slurmctld]}
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(config))
        process.stdin.close()
    except BrokenPipeError as error:
        raise ClusterError(f"Slurm's {HEAD} did not start: {files.log_tail(HEAD)}") from error
    _hear(files, process)


def start_slurmd(files: Files, env: Mapping[str, str], cluster: Cluster, node: Node) -> None:
    """A host's slurmd, as a daemon there. It ends with the host. Raises ClusterError."""
    argv = [tool("slurmd"), "-N", node.name, "-d", str(files.stepd)]
    log_name = f"slurmd-{node.name}"
    with files.log(log_name).open("ab") as log:
        done = subprocess.run(
            enter_argv(cluster.init_pid(node), argv, Path("/")),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": TOOL_PATH, **env},
            timeout=START_SECONDS,
        )
    if done.returncode != 0:
        raise ClusterError(f"{node.name}: slurmd does not start: {files.log_tail(log_name)}")


def has_slurmd(cluster: Cluster, node: Node) -> bool:
    return any(each.name == "slurmd" and each.state not in "ZX" for each in cluster.processes(node))


def end_slurmd(cluster: Cluster, node: Node) -> None:
    """End a host's slurmd and every step, with all that its processes have started.

    Where slurmctld has ended, nothing more comes in the meantime.
    """
    deadline = time.monotonic() + 10
    while True:
        steps, below = _steps(cluster.processes(node))
        if not steps:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"{node.name}: Slurm's processes {steps} do not end")
        # A step's first process goes last: it inherits what loses its parent, and so keeps it in sight.
        pids = [str(pid) for pid in below or steps]
        cluster.run(node, [tool("kill"), "-KILL", *pids])


def _steps(processes: list[Process]) -> tuple[list[int], list[int]]:
    """slurmd and the first processes of all steps, and every process below one of them."""
    alive = [process for process in processes if process.state not in "ZX"]
    steps = [process.pid for process in alive if process.name in STEPS]
    below: set[int] = set()
    while True:
        more = {process.pid for process in alive if process.ppid in below or process.ppid in steps}
        if more - set(steps) <= below:
            return steps, sorted(below)
        below |= more - set(steps)
