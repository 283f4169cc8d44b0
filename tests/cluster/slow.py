"""A host that gets a part of a core: its processes in a control group with a CPU quota."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .cluster import Cluster
from .helpers import inhabitants

PERIOD = 100_000  # microseconds
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def quota_root() -> Path | None:
    """Where groups with a CPU quota can be made; None where they cannot."""
    if (V1 / "cpu.cfs_quota_us").exists() or (V1 / "cpu.shares").exists():
        return V1
    try:
        return V2 if "cpu" in (V2 / "cgroup.subtree_control").read_text().split() else None
    except OSError:
        return None


def _group(node: str) -> Path:
    root = quota_root()
    assert root is not None
    return root / f"muster-{os.getpid()}-{node}"


def give(node: str, cores: float, period: int = PERIOD, weight: float = 1.0) -> None:
    """So much of a core from now on, to a host that is slowed."""
    group, quota = _group(node), int(cores * period)
    if quota_root() == V1:
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cpu.shares").write_text(str(max(2, int(weight * cores * 1024))))
    else:
        (group / "cpu.max").write_text(f"{quota} {period}")
        (group / "cpu.weight").write_text(str(max(1, min(10_000, int(weight * cores * 100)))))


@contextlib.contextmanager
def slowed(
    cluster: Cluster, node: str, cores: float, weight: float = 1.0, period: int = PERIOD
) -> Iterator[None]:
    """What runs on the host, and what will be started there, gets at most so much of a core; and where others
    want the core as well, so much of what a process gets that is not slowed.

    `weight`: times that; `period`: microseconds after which it gets its part anew.
    Afterwards the processes that are still there are back in the group at the root.
    """
    root = quota_root()
    assert root is not None
    group = _group(node)
    group.mkdir()
    try:
        give(node, cores, period, weight)
        for process in inhabitants(cluster, node):
            (group / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        limit = time.monotonic() + 10
        while time.monotonic() < limit and group.exists():
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # it has ended
                    (root / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):  # a process has come since
                group.rmdir()
