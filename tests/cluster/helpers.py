"""What the cluster's own tests share."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .registry import ProcessId, identify, is_alive

PATIENCE = 60.0


def ssh(cluster: Cluster, node: str, *argv: str) -> str:
    done = subprocess.run(cluster.ssh_argv(node, argv), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done
    return done.stdout


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def spaces_of(pid: int | str) -> set[str]:
    """The namespaces of a process that a cluster has its own of, such as `pid:[4026532180]`."""
    try:
        return {
            str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("mnt", "uts", "ipc", "net", "pid")
        }
    except OSError:  # it has ended
        return set()


def inhabitants(cluster: Cluster, node: str) -> list[ProcessId]:
    """Every process of this machine that is in a namespace of that host.

    Processes, because the kernel gives the number of an ended namespace to the next one.
    """
    spaces = spaces_of(cluster.init_pid(node)) - spaces_of("self")
    pids = [folder.name for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    found = [identify(int(pid)) for pid in pids if spaces_of(pid) & spaces]
    return [process for process in found if process is not None]


def index_of(link: str) -> str | None:
    """Which link it is that has this name: a later one of the same name has another index."""
    try:
        return Path(f"/sys/class/net/{link}/ifindex").read_text(encoding="ascii").strip()
    except OSError:
        return None


@dataclass(frozen=True)
class Trace:
    """Everything by which a cluster can be found on the machine."""

    processes: list[tuple[int, int]]  # PID and start time
    spaces: list[str]
    links: dict[str, str | None]
    base: str

    def left(self) -> dict[str, Any]:
        """What is still there of it."""
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        found = {
            "processes": [pid for pid, started in self.processes if is_alive(ProcessId(pid, started))],
            "links": [
                link for link, index in self.links.items() if index is not None and index_of(link) == index
            ],
            "mounts": [line for line in mounts if self.base in line],
        }
        return {key: value for key, value in found.items() if value}


def trace(cluster: Cluster) -> Trace:
    names = [node.name for node in cluster.hosts]
    inits = [cluster.init_pid(name) for name in names]
    stats = [
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split() for pid in inits
    ]
    outer = [identify(int(fields[1])) for fields in stats]  # the `unshare` processes
    processes = [process for name in names for process in inhabitants(cluster, name)]
    processes += [process for process in outer if process is not None]
    links = [*(node.link for node in cluster.hosts), cluster.hosts[0].link.rpartition("n")[0]]
    found = Trace(
        processes=[(process.pid, process.started) for process in processes],
        spaces=sorted(set().union(*(spaces_of(pid) for pid in inits)) - spaces_of("self")),
        links={link: index_of(link) for link in links},
        base=str(cluster.base),
    )
    assert set(found.left()) == {"processes", "links"}, found
    return found
