"""Bandwidth formulas against hand-computed and published figures, stated peaks, and who talks with whom."""

from __future__ import annotations

import itertools

import pytest

from muster.core.hardware.devices import entries
from muster.core.hardware.peaks import stated_peak
from muster.workloads.fabric.request import (
    QUESTIONS,
    FabricRequest,
    rounds,
)

# Printed by nccl-tests itself: (operation, ranks, bytes, microseconds, algbw, busbw in GB/s). The first three
# are from an issue of NVIDIA/nccl-tests (number 44, two RTX 2080 Ti), the others from a run on eight GPUs.


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
