"""Which clusters exist on this machine, and whose they are.

One file per cluster in REGISTRY, written before its first link is made and removed after its last one has
gone. It names the owner by PID, start time and boot, so a PID that was used again is never taken for the
owner. Whoever starts a cluster first clears what dead owners left. The folder itself carries the lock and
goes with the last cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .namespaces import ClusterError, addresses, delete_links, link_names

REGISTRY = Path("/run/muster-test-cluster")
PREFIX = "mstc"  # every link of every cluster is named mstc<number>...


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from a later one with the same PID."""

    pid: int
    started: int


@dataclass
class Entry:
    number: int
    boot: str
    owner: ProcessId
    temporary: str | None = None  # a folder to remove with the cluster
    inits: list[ProcessId] = field(default_factory=list)

    @property
    def bridge(self) -> str:
        return f"{PREFIX}{self.number}"

    @property
    def path(self) -> Path:
        return REGISTRY / f"{self.number}.json"

    def write(self) -> None:
        partial = self.path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(self.path)

    def owner_lives(self) -> bool:
        return self.boot == boot_id() and is_alive(self.owner)


def read_entry(path: Path) -> Entry:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Entry(
        number=raw["number"],
        boot=raw["boot"],
        owner=ProcessId(**raw["owner"]),
        temporary=raw["temporary"],
        inits=[ProcessId(**each) for each in raw["inits"]],
    )


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> ProcessId | None:
    """The process with this PID, or None where there is none or only its corpse."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else ProcessId(pid, int(fields[19]))


def is_alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def end_process(process: ProcessId, seconds: float = 10) -> None:
    """Kill a process and see it gone. For a host's first one that means every process of the host."""
    deadline = time.monotonic() + seconds
    while is_alive(process):
        if time.monotonic() > deadline:
            raise ClusterError(f"process {process.pid} does not end")
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.01)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the registry; it's made where it's missing and removed where it's empty."""
    while True:
        REGISTRY.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(REGISTRY, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            break
        os.close(descriptor)  # it was removed while we waited for it
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: other clusters live
            REGISTRY.rmdir()
        os.close(descriptor)


def claim(temporary: Path | None) -> Entry:
    """Clear what the dead left, then reserve a number (and so a subnet and link names) for this process."""
    owner = identify(os.getpid())
    assert owner is not None
    with locked():
        sweep()
        names, used = link_names(), addresses()
        for number in range(256):
            entry = Entry(number, boot_id(), owner, None if temporary is None else str(temporary))
            taken = entry.path.exists() or any(name.startswith(entry.bridge) for name in names)
            if not taken and not any(address.startswith(f"10.77.{number}.") for address in used):
                entry.write()
                return entry
    raise ClusterError("all 256 subnets 10.77.x.0/24 are in use on this machine")


def release(entry: Entry) -> None:
    with locked():
        entry.path.unlink(missing_ok=True)


def sweep() -> None:
    """Remove what clusters of dead owners left behind. Only under the lock."""
    for path in sorted(REGISTRY.iterdir()):
        if path.suffix == ".json" and path.stem.isdigit():
            entry = read_entry(path)
            if entry.owner_lives():
                continue
            bury(entry)
            path.unlink()
        elif path.suffix == ".tmp" and identify(int(path.suffixes[-2][1:])) is None:
            path.unlink()


def bury(entry: Entry) -> None:
    """Remove the links and the folder of a dead owner's cluster; its hosts ended by themselves, or do now."""
    if entry.boot == boot_id():
        for init in entry.inits:
            end_process(init)
        prefixes = (f"{entry.bridge}n",)
        delete_links([name for name in link_names() if name == entry.bridge or name.startswith(prefixes)])
    if entry.temporary is not None:
        shutil.rmtree(entry.temporary, ignore_errors=True)
