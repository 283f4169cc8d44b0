"""Locks that killed compilations of PyTorch's extensions left: whoever comes next waits for them for ever.

torch.utils.cpp_extension makes a file `lock` in an extension's folder, holds it open while it compiles, and
removes it at the end (FileBaton); waiting is looking whether the file is still there. DeepSpeed compiles its
kernels so, when a rank first needs them. A lock that no process has open has lost its owner.

The kernel knows whether a file is open: it grants a write lease (fcntl(2), F_SETLEASE) only where no other
process has, in this container or another. Where there are no leases, /proc shows the processes that can be
seen. On network file systems that cannot be found out, and nothing is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from muster.store import events
from muster.worker.context import Context
from muster.worker.mounts import file_system

OLD = 600.0  # seconds; a lock that is younger may belong to a builder that cannot be seen
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # Linux, proc_ns.h: from there every process can be seen
# How the types of file systems begin that several machines may share; the same as in agent/files.py.
REMOTE = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "9p", "afs", "gluster", "pvfs2",
    "orangefs", "panfs", "weka", "virtiofs", "fuse.gluster", "fuse.sshfs", "fuse.ceph", "fuse.juicefs",
)  # fmt: skip


def clear_stale_locks(context: Context) -> None:
    """Remove the locks without an owner, and note them; the first rank of each host does it.

    Call before the ranks meet: a rank that waits for such a lock already takes its end for the end of a
    build, and fails.
    """
    if context.local_rank != 0:
        return
    for path, removed in stale_locks(extensions_folder()):
        what = "removed the lock" if removed else "there is an old lock"
        then = "" if removed else "; if no other job is compiling, remove it: the ranks wait for it"
        context.emit(events.Noted, text=f"{what} of a compilation that was killed: {path}{then}")


def extensions_folder() -> Path:
    """Return where PyTorch compiles extensions (torch/utils/cpp_extension.py)."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions").expanduser()


def stale_locks(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Remove locks below `folder` without an owner. -> (path, whether it was removed). Those of living
    builders stay."""
    locks = [path for each in ("*/lock", "*/*/lock") for path in sorted(folder.glob(each)) if path.is_file()]
    remote = bool(locks) and file_system(folder).startswith(REMOTE)
    for path in locks:
        old = False
        try:
            old = time.time() - path.stat().st_mtime > OLD
            if not remote and _remove(path, old):
                yield path, True
            elif remote and old:
                yield path, False
        except FileNotFoundError:  # its builder is done
            continue
        except OSError:  # another user's
            if old:
                yield path, False


def _remove(path: Path, old: bool) -> bool:
    """Remove a lock that no process has open. -> whether it was removed. Raises OSError where it is not
    ours."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # for who opens it now; SIGIO would end us
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
            all_seen = str(Path("/proc/self/ns/pid").readlink()) == FIRST_PID_NAMESPACE
            if not (all_seen or old) or _seen_open(path):
                return False
        if path.stat().st_ino != os.fstat(file).st_ino:
            return False  # released, and made anew by the next builder
        path.unlink()
        return True
    finally:
        os.close(file)


def _seen_open(path: Path) -> bool:
    """Return whether a process that can be seen has the file open, this one aside."""
    real = path.resolve()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if descriptor.readlink() == real and descriptor.parts[2] != str(os.getpid()):
                return True
        except OSError:  # it is closed by now, or another user's
            continue
    return False
