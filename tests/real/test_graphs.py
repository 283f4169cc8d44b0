"""Traces of compiled models: what PyTorch's partitioner keeps, what fused kernels move, an H100's runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compiled_loop

from tests.real.traced import Real, asked, traced
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

H100 = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "h100.json").read_text())


@pytest.mark.parametrize(
    ("kind", "arithmetic", "checkpointing"),
    [
        ("gpt2", "autocast", False),
        ("llama", "autocast", False),
        ("opt", "fp32", False),
        ("vit", "fp32", False),
        ("llama", "fp32", True),
    ],
)
def test_what_compiled_code_keeps(kind: str, arithmetic: Any, checkpointing: bool) -> None:
    """As much as the allocator says of graphs that PyTorch partitions itself, and less than eager code."""
    quiet = {name: 0.0 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop") if kind == "gpt2"}
    quiet |= {"dropout": 0.0} if kind == "opt" else {}
    eager = asked(kind, arithmetic=arithmetic, checkpointing=checkpointing, config=quiet)
    request = replace(eager, compiled=True)
    found, real, plain = traced(request), Real(request), traced(eager)
    for samples in (3, 8):
        end, _, _ = real.allocated(samples)
        at = found.at(samples)
        assert at.saved + at.copies == pytest.approx(end, rel=0.02)
        assert at.saved <= plain.at(samples).saved
        assert at.moved < 0.8 * plain.at(samples).moved
        assert at.flops == plain.at(samples).flops or (checkpointing and at.flops < plain.at(samples).flops)


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


@pytest.mark.parametrize("name", ["M1", "M2", "M3"])
def test_a_compiled_run_fits_where_its_plan_says_so(name: str, tmp_path: Path) -> None:
    """On an H100: its device's peak is below every memory that the plan would call enough, and its step
    within the range."""
    needs_torch()
    from benchmarks import published

    from muster.planner.memory.fit import MARGIN

    (row,) = published.run(tmp_path / "none.json", [name])
    assert row["planned_memory"] / (1 - MARGIN) > row["memory"]
    assert row["planned_memory"] < 1.15 * row["memory"]
    assert row["inside"]
