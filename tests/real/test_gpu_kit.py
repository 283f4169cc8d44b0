"""The kit for a GPU machine, with tiny models on a CPU: each kind of piece, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.gpu import page
from benchmarks.gpu.kit import Results, run_all
from benchmarks.gpu.pieces import pieces

TRIED = {
    "proof/smi", "proof/check", "proof/clock", "proof/zero2-bf16", "memory/opt-125m-8x512-bf16-ddp",
    "ceiling/matmul-fp32",
}  # fmt: skip


@pytest.mark.timeout(900)
def test_pieces_run_on_a_cpu_and_make_a_page(tmp_path: Path) -> None:
    chosen = [piece for piece in pieces() if piece.key in TRIED]
    assert {piece.key for piece in chosen} == TRIED
    results = Results(tmp_path)
    run_all(chosen, results, 14, True)
    ends = {
        f"{group}/{name}": entry
        for group in page.GROUPS
        for name, entry in results.read(group)["pieces"].items()
    }
    failed = {key: entry.get("error") for key, entry in ends.items() if entry["status"] != "passed"}
    assert set(failed) == {"proof/smi"} and ends["proof/smi"]["status"] == "not applicable", failed
    told = page.page(results)
    assert "Step times, predicted from the first point" not in told  # one point of each precision
    assert "Memory: median error" in told and "matmul" not in told.split("## Ceiling")[0]
