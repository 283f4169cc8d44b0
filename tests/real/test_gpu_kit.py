"""The kit for a GPU machine, with tiny models on a CPU: each kind of piece, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.gpu import page
from benchmarks.gpu.calls import run_all
from benchmarks.gpu.kit import ROOT, Results
from benchmarks.gpu.pieces import pieces

from muster.core.profile import StepProfile
from tests import warm

TRIED = {
    "proof/smi", "proof/check", "proof/clock", "proof/ddp-fp32", "proof/zero2-bf16", "proof/cpu-job",
    "memory/opt-125m-8x512-bf16-ddp", "memory/opt-125m-32x512-bf16-ddp", "ceiling/matmul-fp32",
    "levers/opt-350m", "profile/gpt2-124m", "speed/t5-small-text2sql", "speed/opt-350m-sft", "speed/vit-b16",
    "cost/instruments-digits", "cost/sync-text2sql",
}  # fmt: skip


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces, their ranks and their peers come as forks: what imports read is as pieces set it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if sys.executable == warm.REAL:  # nothing is warm here
        yield
        return
    interpreter = warm.Interpreter()
    monkeypatch.setattr(sys, "executable", str(interpreter.path))
    yield
    interpreter.close()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("offline")
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
    assert set(failed) == {"proof/smi", "cost/sync-text2sql"}, failed
    assert {ends[key]["status"] for key in failed} == {"not applicable"}, failed
    shown = ends["proof/cpu-job"]["figures"]["environment"]
    assert set(shown.values()) == {""} and "CUDA_VISIBLE_DEVICES" in shown
    points = [ends[f"memory/opt-125m-{batch}x512-bf16-ddp"]["figures"] for batch in (8, 32)]
    assert points[0]["run"] and not points[0]["step_error"] and points[1]["step_error"] is not None
    rows = ends["levers/opt-350m"]["figures"]["rows"]
    losses = {row["lever"]: row["loss"] for row in rows if "loss" in row}
    assert len(losses) > 8 and max(losses.values()) - min(losses.values()) < 2e-3 * max(losses.values())
    text = page.page(results)
    assert "Step times, predicted from the first point" in text and "Memory of the device: median" in text
    assert "| zero2 |" in text and "no mask, CUDA graphs" in text
    assert "| vit-b16 |" in text and "held-out loss" in text and "ms a step without instruments" in text
    profiles = ends["profile/gpt2-124m"]["figures"]
    for side in ("muster", "peer"):
        found = StepProfile.model_validate(profiles[side])
        assert found.last_step - found.first_step == 9 and len(found.kernels) == 10 and found.usual_seconds
        assert f"gpt2-124m, {side}:" in text and found.verdict in text


WATCHED = """
import sys
from pathlib import Path
from benchmarks.gpu.cost import SYNCED, waits
from benchmarks.gpu.kit import ROOT
watch = waits("cpu", "fp32", *SYNCED["text2sql"], folder=Path(sys.argv[1]))
print(len(watch.steps), watch.waits)
"""


def test_a_watched_rank_trains_and_nothing_waits_on_a_cpu(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WATCHED, str(tmp_path / "rank")]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.split()[-2:] == ["40", "0"], done.stdout + done.stderr
