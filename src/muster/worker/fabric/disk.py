"""One file, written, synced and read back: past the page cache where the file system lets us."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import time
from pathlib import Path

from muster.core.errors import WorkerError
from muster.core.fabric.asked import MIB
from muster.worker.fabric.place import Place, Voice

_BLOCK = 4 * MIB
_OF_FREE = 0.05  # of the free space, at most


def check_disk(place: Place, say: Voice, budget: float) -> None:
    """The host's first rank alone. Raises WorkerError where the folder cannot be written or read."""
    if place.local_rank != 0:
        return
    folder = Path(place.asked.disk_folder).expanduser() if place.asked.disk_folder else place.base
    path = folder / f".muster-disk-{place.folder.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        blocks = int(min(place.asked.disk_bytes, _OF_FREE * shutil.disk_usage(folder).free)) // _BLOCK
        if blocks < 1:
            raise WorkerError("too little free space to measure", where=str(folder))
        _measure(path, folder, blocks, say, budget)
    except OSError as error:
        raise WorkerError(f"{error.strerror or error}", where=str(folder)) from None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _measure(path: Path, folder: Path, blocks: int, say: Voice, budget: float) -> None:
    pattern = os.urandom(_BLOCK - 8)  # random: some disks compress; each block has its number before it
    descriptor, direct = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        with mmap.mmap(-1, _BLOCK) as block:  # page-aligned, as O_DIRECT wants it
            block[8:] = pattern
            written, writing = _write(descriptor, block, blocks, budget / 2)
            dropped = direct or _drop(descriptor)
            right, reading = _read(descriptor, block, written, pattern)
    finally:
        os.close(descriptor)
    say(
        "disk",
        folder=str(folder),
        bytes=written * _BLOCK,
        write_seconds=writing,
        read_seconds=reading,
        method="O_DIRECT" if direct else "page cache, fsync, then dropped",
        cached=not dropped or _in_memory(folder),
        right=right,
    )


def _open(path: Path, flags: int) -> tuple[int, bool]:
    """Past the cache where it can be: some file systems refuse (EINVAL)."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError:
        path.unlink(missing_ok=True)  # some have made the file before they refuse
        return os.open(path, flags, 0o600), False


def _write(descriptor: int, block: mmap.mmap, blocks: int, seconds: float) -> tuple[int, float]:
    """-> (blocks written, seconds with the final fsync). Stops when the time is up."""
    began = time.perf_counter()
    written = 0
    while written < blocks and (not written or time.perf_counter() - began < seconds):
        block[:8] = written.to_bytes(8, "little")
        _all(os.write(descriptor, block))
        written += 1
    os.fsync(descriptor)
    return written, time.perf_counter() - began


def _all(count: int) -> None:
    if count != _BLOCK:
        raise OSError(28, "No space left on device")


def _drop(descriptor: int) -> bool:
    """Ask the kernel to forget the file's pages. Whether it took the request."""
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return True


def _read(descriptor: int, block: mmap.mmap, blocks: int, pattern: bytes) -> tuple[bool, float]:
    """-> (whether every block is what was written, seconds of reading alone)."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    right, seconds = True, 0.0
    for number in range(blocks):
        began = time.perf_counter()
        count = os.readv(descriptor, [block])
        seconds += time.perf_counter() - began
        intact = count == _BLOCK and int.from_bytes(block[:8], "little") == number
        right = right and intact and block[8:] == pattern
    return right, seconds


def _in_memory(folder: Path) -> bool:
    """Whether the folder lies on a file system that has no disk (tmpfs, ramfs)."""
    real = str(folder.resolve())
    best, kind = "", ""
    try:
        for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            mount = words[1].encode().decode("unicode_escape")
            if len(mount) >= len(best) and (real == mount or real.startswith(mount.rstrip("/") + "/")):
                best, kind = mount, words[2]
    except (OSError, IndexError):
        return False
    return kind in ("tmpfs", "ramfs")
