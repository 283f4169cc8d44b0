"""Who is slow in a job of several hosts: what each rank does itself in its steps, and what it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.store import events
from tests.support import needs_torch, run, said, with_ranks

pytestmark = [pytest.mark.real, pytest.mark.alone, pytest.mark.timeout(280)]

ROOT = Path(__file__).resolve().parents[2]
SLEEP = 0.2
ENGINES = {
    "ddp": ["engine.name=ddp", "engine.zero=0"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
    "zero3": [
        "engine.name=deepspeed",
        "engine.zero=3",
        "engine.options={zero_optimization: {stage3_param_persistence_threshold: 0}}",  # so that it gathers
    ],
}


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_host_that_others_wait_for(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second host's rank sleeps in its forward passes. Steps take as long on both; what each computes by
    itself differs by the sleep, also where the other one waits for it within its own forward pass."""
    needs_torch()
    with_ranks(monkeypatch, "tests.real.slow_worker")
    planted = [f"env.PYTHONPATH={ROOT}", f"env.SLOW='1:{SLEEP}'"]
    settings = [*planted, "train.max_steps=21", "measure.window=3", "measure.warmup=6"]
    done, result = run(tmp_path / "run", "local:2x1", *ENGINES[engine], *settings, "batch.micro=2")
    assert result.status == "succeeded", result.failure
    fast, slow = (host.forward_seconds for host in result.hosts)
    assert fast is not None and slow is not None
    assert fast < SLEEP <= slow, "the waiting is not its own work"
    assert slow - fast == pytest.approx(SLEEP, rel=0.5)
    windows = [each for each in said(done, events.Window) if each.step > 6]
    steps = {rank: [s for w in windows if w.rank == rank for s in w.step_seconds] for rank in (0, 1)}
    assert min(min(each) for each in steps.values()) >= 0.9 * SLEEP, "all wait for the slowest"
    for each in windows:
        told = {"data": each.data_seconds or 0.0, **each.parts}
        assert set(told) == {"data", "forward", "backward", "optimizer", "waiting"}
        assert 0.8 * each.seconds < sum(told.values()) < 1.05 * each.seconds
        if each.rank == 0:
            assert each.parts["waiting"] > 0.7 * SLEEP * each.steps
    if engine == "ddp":  # six moments are few where steps vary, as those of the others do on two cores
        assert result.pace is not None
        (worst,) = result.pace.stragglers
        assert (worst.host, worst.part) == ("local1", "forward")
    assert result.hosts[1].parts["waiting"] < result.hosts[0].parts["waiting"]
