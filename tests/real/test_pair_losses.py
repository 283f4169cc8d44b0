"""Losses of pairs of answers beside TRL's own, whose figures every micro-batch would wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.core.registry import load_plugin
from muster.store import events
from tests.real.test_contracts_worker import smallest_recipe
from tests.support import needs_torch, train_here

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("torch_here")]


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


def logs(folder: Path, name: str, **given: Any) -> list[events.Log]:
    folder.mkdir()
    data = smallest_recipe(name) | given
    data["train"] |= {"max_steps": 6}
    data["checkpoint"] |= {"every": None, "model": False}
    data["evaluate"] |= {"every": None, "after": False}
    return [each for each in train_here(folder, data) if isinstance(each, events.Log)]


@pytest.mark.parametrize("name", ["reward", "dpo"])
def test_losses_and_figures_are_trls(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trl

    own = logs(tmp_path / "own", name)
    trainer = load_plugin("muster.worker.workloads", name, "train")._Trainer
    base = {"reward": trl.RewardTrainer, "dpo": trl.DPOTrainer}[name]
    unknown = {"reward": {"completion_mask"}, "dpo": set[str]()}[name]

    def theirs(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **named: Any) -> Any:
        given = {key: each for key, each in inputs.items() if key not in unknown}
        return base.compute_loss(self, model, given, *args, **named)

    monkeypatch.setattr(trainer, "compute_loss", theirs)
    for one, other in zip(own, logs(tmp_path / "theirs", name), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one.figures.keys() == other.figures.keys()
        assert one.figures == pytest.approx(other.figures, rel=1e-4, abs=1e-6)


def test_a_pair_may_be_in_the_wrong_order(tmp_path: Path) -> None:
    """Conservative DPO by hand: at the first step both models are one, and every margin is 0."""
    plain, smooth = (
        logs(tmp_path / str(share), "dpo", dpo={"beta": 0.5, "label_smoothing": share})
        for share in (0.0, 0.3)
    )
    assert plain[0].loss == pytest.approx(smooth[0].loss)  # log 2
    assert all(one.loss != other.loss for one, other in zip(plain[1:], smooth[1:], strict=True))
