"""What the device can do at best: matrix products by precision and size, and copies.

The best of ROUNDS rounds and the median of them; each round runs for about a tenth of a second, between two
synchronisations. Random data: products of zeros are faster than any training is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.kit import Figures, Machine, Piece

ROUNDS = 8
SIZES = (1024, 2048, 4096, 8192, 16384)


def pieces() -> list[Piece]:
    """Each precision, the device's own memory, and the way from and to the host."""
    return [
        *(
            Piece("ceiling", f"matmul-{name}", 60, _matmul(name), 10, parts=None)
            for name in ("bf16", "fp16", "tf32", "fp32")
        ),
        Piece("ceiling", "copy", 30, copy, 6, parts=None),
        Piece("ceiling", "host", 30, host, 6, parts=None),
    ]


def _rounds(machine: Machine, work: Callable[[], Any], amount: float) -> dict[str, float]:
    """Per second, `amount` for each `work()`: its best, median and spread ((best - worst) / median)."""
    import torch

    wait = torch.cuda.synchronize if machine.device == "cuda" else (lambda: None)

    def timed(count: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(count):
            work()
        wait()
        return (time.perf_counter() - began) / count

    timed(2)
    count = max(1, round((0.01 if machine.tiny else 0.1) / max(timed(2), 1e-6)))
    rates = [amount / timed(count) for _ in range(ROUNDS)]
    middle = statistics.median(rates)
    return {"best": max(rates), "median": middle, "spread": (max(rates) - min(rates)) / middle}


def _matmul(name: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        """FLOP/s by size: a product of two square matrices is 2 n^3 operations."""
        import torch

        if name in ("tf32", "fp16"):
            machine.needs_cuda()
        if machine.device == "cuda":
            torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
        found = {}
        for size in (128, 256) if machine.tiny else SIZES:
            a, b = (torch.randn(size, size, device=machine.device).to(kind) for _ in range(2))
            found[str(size)] = _rounds(machine, lambda a=a, b=b: torch.mm(a, b), 2.0 * size**3)  # type: ignore[misc]
        return {"flops_per_second": found}

    return run


def copy(machine: Machine) -> Figures:
    """Bytes read and written per second, within the device's memory."""
    import torch

    size = 1 << (20 if machine.tiny else 32)
    a = torch.empty(size, dtype=torch.uint8, device=machine.device)
    b = torch.empty_like(a)
    return {"bytes_per_second": _rounds(machine, lambda: b.copy_(a), 2.0 * size), "bytes": size}


def host(machine: Machine) -> Figures:
    """Bytes per second between pinned host memory and the device."""
    import torch

    machine.needs_cuda()
    size = 1 << 30
    here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    return {
        "to_device": _rounds(machine, lambda: there.copy_(here, non_blocking=True), float(size)),
        "to_host": _rounds(machine, lambda: here.copy_(there, non_blocking=True), float(size)),
    }
