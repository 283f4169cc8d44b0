"""Matrix products on one device: FLOP/s, best and sustained, and whether exact products are exact."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch

from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team

_CPU_SIZE = 1024
_GPU_SIZE = 8192
_SMALL_GPU_SIZE = 4096  # where memory is short
_BATCH_SECONDS = 0.02  # products between two synchronisations: so many that waiting does not count
_FEWEST = 24  # such batches, for up to three times the budget
_WINDOWS, _WIDTH = 8, 4  # of the second half, and their fewest batches: how steady it was
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_matmul(team: Team, say: Voice, budget: float) -> None:
    """Every precision that the device can do, each for its part of the time."""
    precisions = able(team)
    for precision in precisions:
        with torch.inference_mode():
            _measure(team, say, precision, budget / len(precisions))
    torch.set_float32_matmul_precision("highest")
    if team.on_gpu:
        torch.cuda.empty_cache()


def able(team: Team) -> list[str]:
    """Compute capability 8 has tf32 and bf16, 7 has fp16's tensor cores (NVIDIA's CUDA programming guide).
    A CPU is asked for bf16 only where it has instructions for it."""
    if team.on_gpu:
        major = torch.cuda.get_device_capability(team.device)[0]
        return ["fp32", *(["tf32", "bf16"] if major >= 8 else []), *(["fp16"] if major >= 7 else [])]
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        flags = ""
    return ["fp32", *(["bf16"] if "amx_bf16" in flags or "avx512_bf16" in flags else [])]


def _measure(team: Team, say: Voice, precision: str, seconds: float) -> None:
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype, n = _DTYPES[precision], _size(team)
    left = torch.randn(n, n, device=team.device).to(dtype)
    right = torch.randn(n, n, device=team.device).to(dtype)
    product = torch.empty(n, n, dtype=dtype, device=team.device)
    for _ in range(2):  # the first call chooses its kernel and allocates
        one = _timed(team, left, right, product, 1)
    batch = max(1, int(_BATCH_SECONDS / max(one, 1e-7)))
    began = time.perf_counter()
    times: list[float] = []
    while len(times) < 4 or time.perf_counter() - began < (seconds if len(times) >= _FEWEST else 3 * seconds):
        times.append(_timed(team, left, right, product, batch))
    flops = 2 * n**3
    half = times[len(times) // 2 :]
    size = max(_WIDTH, len(half) // _WINDOWS)
    windows = [statistics.fmean(half[at : at + size]) for at in range(0, len(half) - size + 1, size)]
    say(
        "matmul",
        precision=precision,
        n=n,
        threads=None if team.on_gpu else torch.get_num_threads(),
        best=flops / min(times),
        sustained=flops / statistics.median(half),
        variation=statistics.stdev(windows) / statistics.fmean(windows) if len(windows) > 2 else None,
        windows=len(windows),
        products=len(times) * batch,
        seconds=time.perf_counter() - began,
        right=_is_right(team, n, dtype),
    )


def _size(team: Team) -> int:
    if not team.on_gpu:
        return _CPU_SIZE
    free, _ = torch.cuda.mem_get_info(team.device)
    return _GPU_SIZE if free > 4 << 30 else _SMALL_GPU_SIZE


def _timed(team: Team, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, batch: int) -> float:
    """Seconds of one product, over so many of them."""
    team.sync()
    began = time.perf_counter()
    for _ in range(batch):
        torch.mm(left, right, out=product)
    team.sync()
    return (time.perf_counter() - began) / batch


def _is_right(team: Team, n: int, dtype: torch.dtype) -> bool:
    """A product of matrices of -1, 0 and 1 (1 in 8 is not 0), which is exact in every precision: sums stay
    far below 256, up to which bfloat16 has every whole number. Compared by its effect on a vector of whole
    numbers in float64 (Freivalds' check), row by row."""
    generator = torch.Generator().manual_seed(n)
    left, right = (sparse(n, generator).to(team.device) for _ in range(2))
    vector = torch.randint(-9, 10, (n, 1), generator=generator).to(team.device, torch.float64)
    product = torch.mm(left.to(dtype), right.to(dtype))
    return bool(torch.equal(product.double() @ vector, left.double() @ (right.double() @ vector)))


def sparse(n: int, generator: torch.Generator) -> torch.Tensor:
    """Elements of -1, 0 and 1; 1 in 8 is not 0."""
    dice = torch.randint(0, 16, (n, n), generator=generator, dtype=torch.int8)
    return (dice == 0).to(torch.float32) - (dice == 1).to(torch.float32)
