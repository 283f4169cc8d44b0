"""The first process of one host of the test cluster: run by path, standard library alone.

`unshare` starts it as PID 1 of fresh network, mount, UTS, IPC and PID namespaces. It says which process it
is, is told who it is, makes itself a host (name, disks, link, sshd) and then only waits: for orphans to bury,
and for the end of the process that owns the cluster. When PID 1 ends, by itself or by SIGKILL, the kernel
ends every process of the host.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC = 2, 4, 8, 4096, 8192, 16384
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    """mount(2), so that no `mount` process and no /etc/mtab is involved."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    if LIBC.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def mount_run(scratch: Path) -> None:
    """Give the host its own /run; the folders that the machine has there stay visible in it."""
    mount("tmpfs", str(scratch), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for entry in Path("/run").iterdir():
        inside = scratch / entry.name
        if entry.is_symlink():
            inside.symlink_to(entry.readlink())
        elif entry.is_dir():
            inside.mkdir()
            mount(str(entry), str(inside), flags=MS_BIND | MS_REC)
    (scratch / "sshd").mkdir(mode=0o755, exist_ok=True)
    mount(str(scratch), "/run", flags=MS_MOVE)


def mount_sys() -> None:
    """A fresh sysfs, or /sys/class/net would show the machine's links; the cgroup tree is carried over."""
    parked, cgroup = Path("/run/.cgroup"), Path("/sys/fs/cgroup")
    has_cgroup = cgroup.is_dir()
    if has_cgroup:
        parked.mkdir()
        mount(str(cgroup), str(parked), flags=MS_BIND | MS_REC)
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if has_cgroup:
        mount(str(parked), str(cgroup), flags=MS_MOVE)
        parked.rmdir()


def settle(config: dict[str, Any]) -> None:
    """Name, disks and link."""
    socket.sethostname(config["name"])
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount_run(Path(config["scratch"]))
    mount_sys()
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount(
        "tmpfs",
        config["private_dir"],
        "tmpfs",
        MS_NOSUID | MS_NODEV,
        f"mode=755,size={config['private_size']}",
    )
    for source, target in config["binds"]:
        mount(source, target, flags=MS_BIND)
    lines = "".join(f"{line}\n" for line in config["ip_batch"])
    subprocess.run([config["ip"], "-batch", "-"], input=lines, text=True, check=True)


def start_sshd(config: dict[str, Any]) -> int:
    with Path(config["sshd_log"]).open("ab") as log:
        process = subprocess.Popen(config["sshd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
    process.returncode = 0  # watch() buries every child, this one too: Popen shall not wait for it
    return process.pid


def bury() -> None:
    """Reap every child that has ended."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def watch(owner: int, wakeup: int) -> None:
    """Return when the owner has ended; until then reap orphans."""
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    while True:
        bury()
        for descriptor, _ in poller.poll():
            if descriptor == owner:
                return
            os.read(wakeup, 4096)


def main() -> int:
    owner = int(sys.argv[1])  # a pidfd: it becomes readable when the owner has ended, however that happened
    os.set_inheritable(owner, False)
    # /proc is still the machine's here, so this is the PID by which the owner knows us.
    print(json.dumps({"pid": int(str(Path("/proc/self").readlink()))}), flush=True)
    text = sys.stdin.read()  # to the end: the owner made our link before it answered
    if not text:
        return 1
    config: dict[str, Any] = json.loads(text)
    settle(config)
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    print(json.dumps({"sshd": start_sshd(config)}), flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    watch(owner, reader)
    return 0


if __name__ == "__main__":
    sys.exit(main())
