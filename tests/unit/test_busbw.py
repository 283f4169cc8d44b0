"""Bandwidth formulas against hand-computed and published figures, stated peaks, and who talks with whom."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from muster.core.errors import UsageError
from muster.core.fabric import spread
from muster.core.hardware.devices import entries
from muster.core.hardware.peaks import stated_peak
from muster.workloads.fabric.request import (
    COLLECTIVES,
    POINT_TO_POINT,
    QUESTIONS,
    FabricRequest,
    algbw,
    bus_factor,
    busbw,
    rounds,
    sweep_sizes,
)

# Printed by nccl-tests itself: (operation, ranks, bytes, microseconds, algbw, busbw in GB/s). The first three
# are from an issue of NVIDIA/nccl-tests (number 44, two RTX 2080 Ti), the others from a run on eight GPUs.
PUBLISHED = [
    ("all-reduce", 2, 65_536, 16.42, 3.99, 3.99),
    ("all-reduce", 2, 131_072, 23.17, 5.66, 5.66),
    ("all-reduce", 2, 262_144, 29.13, 9.00, 9.00),
    ("all-reduce", 8, 1_048_576, 27.76, 37.78, 66.11),
    ("all-reduce", 8, 8_388_608, 81.16, 103.36, 180.88),
    ("all-reduce", 8, 33_554_432, 195.40, 171.72, 300.51),
]


@pytest.mark.parametrize(("operation", "ranks", "size", "micros", "algorithm", "bus"), PUBLISHED)
def test_what_nccl_tests_prints(
    operation: str, ranks: int, size: int, micros: float, algorithm: float, bus: float
) -> None:
    assert algbw(size, micros * 1e-6) / 1e9 == pytest.approx(algorithm, rel=1e-3)
    assert busbw(operation, size, micros * 1e-6, ranks) / 1e9 == pytest.approx(bus, rel=1e-3)


def test_by_hand() -> None:
    """4 ranks, 1,000,000 bytes in 1 ms: 1 GB/s; an all-reduce moves 2 x 3/4 of it over each rank's link."""
    found = {name: busbw(name, 1_000_000, 0.001, 4) for name in (*COLLECTIVES, POINT_TO_POINT)}
    assert found == pytest.approx(
        {
            "all-reduce": 1.5e9, "all-gather": 0.75e9, "reduce-scatter": 0.75e9,
            "broadcast": 1e9, "point-to-point": 1e9,
        }
    )  # fmt: skip
    assert bus_factor("all-reduce", 1) == 0.0  # nothing is moved


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda: algbw(1, 0), ValueError, "above zero"),
        (lambda: bus_factor("all-reduce", 0), ValueError, "at least one rank"),
        (lambda: bus_factor("all-to-none", 2), ValueError, "no bus bandwidth"),
        (lambda: spread([]), ValueError, "no repeats"),
        (lambda: FabricRequest(questions=("valus",)), UsageError, "unknown question 'valus'"),
        (lambda: FabricRequest(pairs="some"), UsageError, "ring or all"),
        (lambda: FabricRequest(seconds=0), UsageError, "seconds must be above zero"),
    ],
)
def test_nonsense_is_refused(ask: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        ask()
    assert "valus" not in words or getattr(caught.value, "hint", "") == "did you mean values?"


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H200", "fp32", 67.0),
        ("NVIDIA H200 NVL", "fp16", 835.5),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156.0),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA L40S", "fp32", 91.6),
        ("Tesla V100-SXM2-16GB", "bf16", None),  # it has none
        ("NVIDIA A10G", "bf16", 70.0),  # not an A10
        ("GRID A100-10C", "bf16", None),  # a share of one, as the next
        ("NVIDIA A10-24Q", "bf16", None),
        ("GRID A100-4-20CME", "bf16", None),
        ("GRID P40-2B4", "fp32", None),
        ("GRID T4-16A", "fp16", None),
        ("Tesla P4", "fp32", 5.5),
        ("NVIDIA GeForce GTX 1070", "fp32", 6.5),
        ("NVIDIA GeForce GTX 1070 Ti", "fp32", 8.2),
        ("NVIDIA GeForce RTX 3070", "fp32", 20.3),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA GeForce RTX 4090 D", "bf16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("AMD EPYC 7742 64-Core Processor", "fp32", None),
    ],
)
def test_stated_peaks(device: str, precision: str, tflops: float | None) -> None:
    found = stated_peak(device, precision)
    assert (found.flops / 1e12 if found else None) == (pytest.approx(tflops) if tflops else None)
    assert found is None or "NVIDIA" in found.source


def test_every_peak_has_its_source_and_is_ordered() -> None:
    """Lower precision is never slower, and no entry hides another."""
    for entry in entries():
        assert entry["source"] and entry["tflops"]
        rates = [entry["tflops"][p] for p in ("fp32", "tf32", "bf16") if p in entry["tflops"]]
        assert rates == sorted(rates), entry
        found = stated_peak(" ".join(entry["words"]), "fp32")
        assert found is not None and found.flops == pytest.approx(entry["tflops"]["fp32"] * 1e12)


@pytest.mark.parametrize("count", range(2, 18))
@pytest.mark.parametrize("pairs", ["ring", "all"])
def test_rounds(count: int, pairs: str) -> None:
    """Everyone at most once a round; every pair exactly once; no more rounds than it takes."""
    members = [10 * number for number in range(count)]
    plan = rounds(members, pairs)
    for together in plan:
        busy = [rank for pair in together for rank in pair]
        assert len(busy) == len(set(busy))
    met = [frozenset(pair) for together in plan for pair in together]
    neighbours = {frozenset((members[i], members[(i + 1) % count])) for i in range(count)}
    everyone = {frozenset(pair) for pair in itertools.combinations(members, 2)}
    assert set(met) == (neighbours if pairs == "ring" else everyone)
    assert len(met) == len(set(met))
    most = (2 + count % 2 if count > 2 else 1) if pairs == "ring" else count - 1 + count % 2
    assert len(plan) == most


def test_asked() -> None:
    asked = FabricRequest()
    assert sum(asked.share(question) for question in QUESTIONS) == pytest.approx(asked.seconds)
    assert asked.grown(1024).patience == pytest.approx(20 + 102.4)
    assert asked.grown(1024).limit > asked.limit + 200
    assert sweep_sizes(1024, 70_000) == [1024, 4096, 16_384, 65_536]
    assert sweep_sizes(1024, 10) == [1024]
    assert rounds([], "all") == rounds([3], "ring") == []


def test_spread() -> None:
    found = spread([1.0, 3.0, 2.0])
    assert (found.median, found.best, found.variation) == (2.0, 1.0, pytest.approx(0.5))
    assert spread([4.0]).variation is None
