"""Traces of compiled models: what PyTorch's partitioner keeps, what fused kernels move, an H100's runs."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compiled_loop

from tests.real.traced import Real, asked, traced
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
H100 = json.loads((ROOT / "benchmarks" / "results" / "h100.json").read_text())


@pytest.mark.parametrize(
    ("kind", "arithmetic", "checkpointing"),
    [
        ("gpt2", "autocast", False),
        ("vit", "fp32", False),
        ("llama", "fp32", True),
    ],
)
def test_what_compiled_code_keeps(kind: str, arithmetic: Any, checkpointing: bool) -> None:
    """As much as the allocator says of graphs that PyTorch partitions itself, and less than eager code."""
    quiet = {name: 0.0 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop") if kind == "gpt2"}
    eager = asked(kind, arithmetic=arithmetic, checkpointing=checkpointing, config=quiet)
    request = replace(eager, compiled=True)
    found, real, plain = traced(request), Real(request), traced(eager)
    for samples in (3, 8):
        end, _, _ = real.allocated(samples)
        at = found.at(samples)
        assert at.saved + at.copies == pytest.approx(end, rel=0.02)
        assert at.saved <= plain.at(samples).saved
        assert at.moved < 0.8 * plain.at(samples).moved
        assert at.flops - at.again == plain.at(samples).flops - plain.at(samples).again
        assert at.flops == pytest.approx(plain.at(samples).flops, rel=0.02 if checkpointing else 0.0)
        assert at.attention > 0 and bool(at.again) == checkpointing


# Of PyTorch built for CUDA where there is no device: entering FakeTensorMode makes one up. A build for CPUs
# takes a device of Python's in its place, for which autograd starts a thread as well.
BUILT_FOR_CUDA = """
import torch

class Device(torch._C._acc.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1

device = Device()
torch._C._ensureCUDADeviceGuardSet = lambda: torch._C._acc.register_python_privateuseone_device_guard(device)
from tests.real.traced import asked, traced
print(traced(asked("gpt2", compiled=True)).passes[0].flops)
"""


def test_a_build_for_cuda_without_a_device_traces_compiled_models() -> None:
    needs_torch()
    command = [sys.executable, "-c", BUILT_FOR_CUDA]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0


def test_the_cause_is_kept_of_what_a_compiler_wraps() -> None:
    """One line: the exception that a backend raised, not that it raised one."""
    needs_torch()
    import torch

    from muster.worker.tracing.tracing import cause_of, side_by_side

    def backend(*_: Any) -> Any:
        raise ValueError("no kernel for it\nin any library")

    def task() -> Any:
        return torch.compile(torch.relu, backend=backend)(torch.ones(2))

    with pytest.raises(RuntimeError) as raised:
        side_by_side([task])
    assert cause_of(raised.value) == "ValueError: no kernel for it"


def test_what_is_connected_is_one_kernel() -> None:
    """It reads its inputs once, writes what is used elsewhere, and ends at a product."""
    needs_torch()
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from muster.worker.tracing.graphs import kernels_of

    def function(x: Any, w: Any) -> Any:
        first = torch.relu(x) * 2 + x  # one kernel, of which the last value alone leaves
        second = first @ w
        return torch.tanh(second).exp() + first  # another, of two inputs

    traced_graph = make_fx(function)(torch.randn(4, 4), torch.randn(4, 4)).graph
    kernels = kernels_of(traced_graph)
    names = {node.name: times for node, times in kernels.moves.items()}
    assert {node.name for node in kernels.inside} == {"relu", "mul", "tanh", "exp"}
    assert names == {"x_1": 1, "add": 2, "mm": 1, "add_1": 1}  # written and read: add
    assert kernels.count == 3


def test_a_plain_compiled_loop_took_what_is_counted() -> None:
    """GPT-2 on an H100, its loss in the graph: the allocator's peak within 1 %, the step within 5 %."""
    needs_torch()
    counted = compiled_loop.counted()
    measured = H100["compiled_loop"]
    assert counted.peak == pytest.approx(measured["allocator_peak"], rel=0.01)
    assert counted.step_seconds == pytest.approx(measured["step_seconds"], rel=0.05)


def test_a_compiled_run_fits_where_its_plan_says_so(tmp_path: Path) -> None:
    """On an H100: its device's peak is below every memory that the plan would call enough, and its step
    within the range."""
    needs_torch()
    from benchmarks import published

    from muster.planner.memory.fit import MARGIN

    (row,) = published.run(tmp_path / "none.json", ["M1"])
    assert row["planned_memory"] / (1 - MARGIN) > row["memory"]
    assert row["planned_memory"] < 1.15 * row["memory"]
    assert row["inside"]


def test_compiled_runs_took_what_their_plans_say(tmp_path: Path) -> None:
    """Of an H200: the allocator's peak within 2 %, where the gradient of the logits is written over them, and
    the step within the range."""
    needs_torch()
    from benchmarks import published

    for row in published.run(tmp_path / "none.json", ["M9", "M10"]):
        assert row["planned_memory"] == pytest.approx(row["memory"], rel=0.02), row["id"]
        assert row["inside"], row["id"]


def test_a_gradient_is_written_over_what_nothing_else_holds() -> None:
    """Over what the forward pass keeps for the backward pass alone, not over what it gave away, too."""
    needs_torch()
    import torch

    from muster.worker.tracing.graphs import compiling
    from muster.worker.tracing.ledger import Ledger

    weight = torch.randn(32, 64, requires_grad=True)
    logits = 4 * 16 * 64

    def loss(x: Any) -> Any:
        return torch.nn.functional.cross_entropy(x @ weight, torch.arange(16), reduction="sum")

    def both(x: Any) -> Any:
        made = x @ weight
        return torch.nn.functional.cross_entropy(made, torch.arange(16), reduction="sum"), made

    peaks = []
    for function in (loss, both):
        with compiling() as account:
            run = account.compiled(function)
            ledger = Ledger([weight], [x := torch.randn(16, 32)], classes=64)
            for account.ledger in (None, ledger):
                weight.grad = None
                with ledger if account.ledger else nullcontext():
                    made = run(x)
                    (made[0] if isinstance(made, tuple) else made).backward()
                del made
        peaks.append(max(ledger.peaks(set()).values()))
    assert peaks[1] - peaks[0] == logits
