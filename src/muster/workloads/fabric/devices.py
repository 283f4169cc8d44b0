"""What a rank measures by itself: matrix products, copies between host and device, the disk."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import statistics
import time
from pathlib import Path

import torch

from muster.core.errors import WorkerError
from muster.core.robust import variation
from muster.worker.mounts import file_system
from muster.workloads.fabric.group import RankGroup, Report
from muster.workloads.fabric.request import MIB

# ----------------------------------------------------------------------------------------------------
# Matrix products on one device: FLOP/s, best and sustained, and whether exact products are exact.

_CPU_SIZE = 1024
_GPU_SIZE = 8192
_SMALL_GPU_SIZE = 4096  # where memory is short
_BATCH_SECONDS = 0.02  # products between two synchronisations: so many that waiting does not count
_FEWEST = 24  # such batches, for up to three times the budget
_WINDOWS, _WIDTH = 8, 4  # of the second half, and their fewest batches: how steady it was
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_matmul(group: RankGroup, report: Report, budget: float) -> None:
    """Measure every precision that the device supports, each for its part of the time."""
    precisions = able(group)
    for precision in precisions:
        with torch.inference_mode():
            _measure(group, report, precision, budget / len(precisions))
    torch.set_float32_matmul_precision("highest")
    if group.on_gpu:
        torch.cuda.empty_cache()


def able(group: RankGroup) -> list[str]:
    """Return the precisions of the device. Compute capability 8 has tf32 and bf16, 7 has fp16's tensor cores
    (NVIDIA's CUDA programming guide). A CPU is asked for bf16 only where it has instructions for it."""
    if group.on_gpu:
        major = torch.cuda.get_device_capability(group.device)[0]
        return ["fp32", *(["tf32", "bf16"] if major >= 8 else []), *(["fp16"] if major >= 7 else [])]
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        flags = ""
    return ["fp32", *(["bf16"] if "amx_bf16" in flags or "avx512_bf16" in flags else [])]


def _measure(group: RankGroup, report: Report, precision: str, seconds: float) -> None:
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype, n = _DTYPES[precision], _size(group)
    left = torch.randn(n, n, device=group.device).to(dtype)
    right = torch.randn(n, n, device=group.device).to(dtype)
    product = torch.empty(n, n, dtype=dtype, device=group.device)
    for _ in range(2):  # the first call chooses its kernel and allocates
        one = _timed(group, left, right, product, 1)
    batch = max(1, int(_BATCH_SECONDS / max(one, 1e-7)))
    began = time.perf_counter()
    times: list[float] = []
    while len(times) < 4 or time.perf_counter() - began < (seconds if len(times) >= _FEWEST else 3 * seconds):
        times.append(_timed(group, left, right, product, batch))
    flops = 2 * n**3
    half = times[len(times) // 2 :]
    size = max(_WIDTH, len(half) // _WINDOWS)
    windows = [statistics.fmean(half[at : at + size]) for at in range(0, len(half) - size + 1, size)]
    report(
        "matmul",
        precision=precision,
        n=n,
        threads=None if group.on_gpu else torch.get_num_threads(),
        best=flops / min(times),
        sustained=flops / statistics.median(half),
        variation=variation(windows, least=3),
        windows=len(windows),
        products=len(times) * batch,
        seconds=time.perf_counter() - began,
        right=_is_right(group, n, dtype),
    )


def _size(group: RankGroup) -> int:
    if not group.on_gpu:
        return _CPU_SIZE
    free, _ = torch.cuda.mem_get_info(group.device)
    return _GPU_SIZE if free > 4 << 30 else _SMALL_GPU_SIZE


def _timed(
    group: RankGroup, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, batch: int
) -> float:
    """Seconds of one product, over so many of them."""
    group.sync()
    began = time.perf_counter()
    for _ in range(batch):
        torch.mm(left, right, out=product)
    group.sync()
    return (time.perf_counter() - began) / batch


def _is_right(group: RankGroup, n: int, dtype: torch.dtype) -> bool:
    """Check a product of matrices of -1, 0 and 1 (1 in 8 is not 0), which is exact in every precision: sums
    stay far below 256, up to which bfloat16 has every whole number. It is compared by its effect on a vector
    of whole numbers in float64 (Freivalds' check), row by row."""
    generator = torch.Generator().manual_seed(n)
    left, right = (sparse(n, generator).to(group.device) for _ in range(2))
    vector = torch.randint(-9, 10, (n, 1), generator=generator).to(group.device, torch.float64)
    product = torch.mm(left.to(dtype), right.to(dtype))
    return bool(torch.equal(product.double() @ vector, left.double() @ (right.double() @ vector)))


def sparse(n: int, generator: torch.Generator) -> torch.Tensor:
    """Elements of -1, 0 and 1; 1 in 8 is not 0."""
    dice = torch.randint(0, 16, (n, n), generator=generator, dtype=torch.int8)
    return (dice == 0).to(torch.float32) - (dice == 1).to(torch.float32)


# ----------------------------------------------------------------------------------------------------
# Copies between host and device, in both directions, from pinned memory. CUDA alone.

_BYTES = 256 * MIB
_COPIES = 10


def check_copy(group: RankGroup, report: Report, budget: float) -> None:
    """Measure each direction for half the time, or ten times. A CPU has nothing to copy to, and reports
    nothing."""
    if not group.on_gpu:
        return
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_BYTES, dtype=torch.uint8, device=group.device)
    to_device = _repeat(group, device, host, budget / 2)
    to_host = _repeat(group, host, device, budget / 2)
    report("copy", bytes=_BYTES, to_device=to_device, to_host=to_host)


def _repeat(group: RankGroup, target: torch.Tensor, source: torch.Tensor, seconds: float) -> list[float]:
    target.copy_(source, non_blocking=True)
    limit = time.perf_counter() + seconds
    times: list[float] = []
    while len(times) < 3 or (len(times) < _COPIES and time.perf_counter() < limit):
        group.sync()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        group.sync()
        times.append(time.perf_counter() - began)
    return times


# ----------------------------------------------------------------------------------------------------
# One file, written, synced and read back: past the page cache where the file system lets us.

_BLOCK = 4 * MIB
_OF_FREE = 0.05  # of the free space, at most


def check_disk(group: RankGroup, report: Report, budget: float) -> None:
    """Measure the disk, on the host's first rank alone. Raises WorkerError where the folder cannot be written
    or read."""
    if group.local_rank != 0:
        return
    folder = Path(group.asked.disk_folder).expanduser() if group.asked.disk_folder else group.base
    path = folder / f".muster-disk-{group.folder.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        blocks = int(min(group.asked.disk_bytes, _OF_FREE * shutil.disk_usage(folder).free)) // _BLOCK
        if blocks < 1:
            raise WorkerError("too little free space to measure", where=str(folder))
        _measure_disk(path, folder, blocks, report, budget)
    except OSError as error:
        raise WorkerError(f"{error.strerror or error}", where=str(folder)) from None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _measure_disk(path: Path, folder: Path, blocks: int, report: Report, budget: float) -> None:
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
    report(
        "disk",
        folder=str(folder),
        bytes=written * _BLOCK,
        write_seconds=writing,
        read_seconds=reading,
        method="O_DIRECT" if direct else "page cache, fsync, then dropped",
        cached=not dropped or file_system(folder) in ("tmpfs", "ramfs"),  # which have no disk
        right=right,
    )


def _open(path: Path, flags: int) -> tuple[int, bool]:
    """Open a file, past the cache where that is possible: some file systems refuse (EINVAL)."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError:
        path.unlink(missing_ok=True)  # some have made the file before they refuse
        return os.open(path, flags, 0o600), False


def _write(descriptor: int, block: mmap.mmap, blocks: int, seconds: float) -> tuple[int, float]:
    """Write until the time is up. Return the blocks written, and the seconds with the final fsync."""
    began = time.perf_counter()
    written = 0
    while written < blocks and (not written or time.perf_counter() - began < seconds):
        block[:8] = written.to_bytes(8, "little")
        if os.write(descriptor, block) != _BLOCK:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += 1
    os.fsync(descriptor)
    return written, time.perf_counter() - began


def _drop(descriptor: int) -> bool:
    """Ask the kernel to forget the file's pages. Return whether it took the request."""
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return True


def _read(descriptor: int, block: mmap.mmap, blocks: int, pattern: bytes) -> tuple[bool, float]:
    """Return whether every block is what was written, and the seconds of reading alone."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    right, seconds = True, 0.0
    for number in range(blocks):
        began = time.perf_counter()
        count = os.readv(descriptor, [block])
        seconds += time.perf_counter() - began
        intact = count == _BLOCK and int.from_bytes(block[:8], "little") == number
        right = right and intact and block[8:] == pattern
    return right, seconds
