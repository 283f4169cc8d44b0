"""What `train.fused_loss` costs and saves: seconds and bytes of an output layer and its loss, both passes.

    .venv/bin/python benchmarks/fused_loss.py [--rounds 10] [SHAPE ...]     # SHAPE: ROWSxWIDTHxCLASSES

In turns, in one process: PyTorch's linear layer and cross entropy; the same layer and Muster's loss, which
works through many logits in parts; and both fused. On the GPU in bf16 where there is one, else on the CPU in
fp32. Prints and writes, for each shape, the median of the rounds' ratios to PyTorch's with quartiles, and the
most memory beside the layer and its input (GPU: the allocator's peak; CPU: the process's, over what it was).
Writes benchmarks/results/fused_loss.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from hardware import processor

from muster.core import loss_parts as losses
from muster.worker.loss import TokenLoss, fused

RESULTS = Path(__file__).parent / "results" / "fused_loss.json"
SHAPES = ["1024x512x32128", "4096x768x50304", "8192x1024x50272", "8192x2048x128256"]
WAYS = ("torch", "parts", "fused")


class Work:
    """A layer, its input and the labels."""

    def __init__(self, shape: str) -> None:
        rows, width, classes = (int(each) for each in shape.split("x"))
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        kind = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(width, classes, bias=False, device=self.device, dtype=kind)
        self.hidden = torch.randn(rows, width, device=self.device, dtype=kind, requires_grad=True)
        self.labels = torch.randint(0, classes, (rows,), device=self.device)
        self.head = fused(self.layer, always=True)

    def run(self, way: str) -> float:
        """Forward and backward. -> the loss."""
        loss = TokenLoss(head=self.head if way == "fused" else None)
        few = losses.SMALL_ON_CPU, losses.SMALL
        if way == "torch":
            losses.SMALL_ON_CPU = losses.SMALL = 1 << 62
        elif way == "parts":
            losses.SMALL_ON_CPU = 0
        try:
            with loss.expecting(self.labels):
                outputs = (self.layer(self.hidden),)
            value = loss(outputs, self.labels)
            value.backward()
        finally:
            losses.SMALL_ON_CPU, losses.SMALL = few
        self.layer.weight.grad = self.hidden.grad = None
        return float(value.detach())

    def seconds(self, way: str) -> float:
        """Of one pass; reading the loss waits for the device."""
        began = time.perf_counter()
        self.run(way)
        return time.perf_counter() - began


def peak(shape: str, way: str) -> int:
    """The most bytes beside the layer and its input."""
    work = Work(shape)
    if work.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work.run(way)
        return int(torch.cuda.max_memory_allocated() - before)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    work.run(way)
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured(shape: str, rounds: int) -> dict[str, Any]:
    """Ratios of each way's time to PyTorch's, and peaks, each of a process of its own."""
    work = Work(shape)
    loss = {way: work.run(way) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 else reversed(WAYS):
            times[way].append(work.seconds(way))
    found: dict[str, Any] = {"shape": shape, "seconds": statistics.median(times["torch"])}
    for way in WAYS:
        ratios = [own / base for own, base in zip(times[way], times["torch"], strict=True)]
        argv = [sys.executable, __file__, "--peak", way, shape]
        found[way] = {
            "ratio": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2],
            "bytes": int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout),
            "loss_apart": abs(loss[way] / loss["torch"] - 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(peak(options.shapes[0], options.peak))
        return
    rows = []
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    for shape in options.shapes:
        rows.append(measured(shape, options.rounds))
        last = [rows[-1][way] for way in WAYS]
        told = [
            f"{way} {row['ratio']:.2f} and {row['bytes'] / 1e9:.2f} GB"
            for way, row in zip(WAYS, last, strict=True)
        ]
        print(f"{shape}: of PyTorch's time {', '.join(told)}", flush=True)
        document = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
        document["rows"] = rows
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
