"""No step of any workload makes the host wait for the device, but at the end of a window.

What is seen here: numbers read, tensors copied to the host, results whose size is in the data. What is not:
copies from the host to the device, which on a CPU are none.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from muster.core.registry import load_plugin
from tests.real.test_contracts_worker import OWN, smallest_recipe
from tests.support import needs_torch, train_here

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("torch_here")]

STEPS = 6
# What is left, of whose code. Where answers are drawn, prompts are padded at their begin: Transformers asks
# whether a mask is needed in every forward pass.
MASK = ("transformers/masking_utils.py",)
# Answers are drawn until all have ended, which is asked for each of their tokens; they are cut and scored on
# the host, and TRL logs its figures of them.
DRAWN = (*MASK, "transformers/generation/")
BY_TRL = (*DRAWN, "trl/trainer/", "accelerate/utils/operations.py")
LEFT = {
    "grpo": BY_TRL, "rloo": BY_TRL,
    # Of a step: its prompts' numbers, their answers' tokens, how many these are.
    "ppo": (*DRAWN, "muster/dialogues/rollouts.py", "workloads/ppo/train.py"),
}  # fmt: skip
OWN_OF_PPO = 3


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


def waits_of_steps(
    folder: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, held: bool = False
) -> list[Counter[str]]:
    """Of each step but the first, where buffers grow, and the last, which ends the window; or of each batch
    that is `held` out, but the first, behind the end of the training."""
    from transformers import TrainerCallback

    from muster.worker.instruments import attach
    from tests.waits import Waits

    found: list[list[str]] = []
    waits = Waits()

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if not held:
                self.ended()

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            if held:
                self.ended()

        def ended(self) -> None:
            found.append(waits.places)
            waits.places = []

    instrument = attach.attach_instruments

    def instrumented(context: Any, built: Any) -> Any:
        made = instrument(context, built)
        built.trainer.add_callback(Ends())
        for each in (built.trainer.train_dataset, built.trainer.data_collator):
            pickle.dumps(each)  # a loader process is sent both
        return made

    monkeypatch.setattr(attach, "attach_instruments", instrumented)
    with waits.watching():
        train_here(folder, data)
    return [Counter(each) for each in (found[1:] if held else found[1:-1])]


@pytest.mark.parametrize("name", OWN)
def test_no_step_waits_for_the_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(load_plugin("muster.worker.workloads", name, "train"), "measure"):
        pytest.skip("it trains nothing")
    data = smallest_recipe(name)
    data["train"] |= {"max_steps": STEPS}
    data["evaluate"] |= {"every": None, "after": False}
    data["measure"] |= {"window": STEPS}
    data["checkpoint"] |= {"every": None, "model": False}
    for found in waits_of_steps(tmp_path, data, monkeypatch):
        own = {
            each: count
            for each, count in found.items()
            if not any(part in each for part in LEFT.get(name, ()))
        }
        assert not own
        muster = sum(count for each, count in found.items() if "muster/" in each or "workloads/" in each)
        assert muster <= (OWN_OF_PPO if name == "ppo" else 0)


@pytest.mark.parametrize("name", ["causal_lm", "dpo", "reward"])
def test_no_held_out_batch_waits_for_the_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = smallest_recipe(name)
    for source in data["data"].values():
        if isinstance(source, dict) and "validation" in source:
            source["validation"] = 12
    data["train"] |= {"max_steps": 1}
    data["evaluate"] |= {"every": None, "after": True, "limit": 12}
    data["checkpoint"] |= {"every": None, "model": False}
    found = waits_of_steps(tmp_path, data, monkeypatch, held=True)
    assert found and not any(found)


def test_a_windows_end_waits_for_the_window_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are read in one place, when the next step has been launched. The first
    window's operations are counted at its end."""
    from muster.worker import trainer
    from muster.worker.instruments.clock import DeviceClock

    monkeypatch.setattr(trainer, "AHEAD", ("cpu",))  # as if it computed while the host goes on
    waited: list[int] = []
    wait = DeviceClock.wait
    monkeypatch.setattr(DeviceClock, "wait", lambda clock: waited.append(1) or wait(clock))
    data = smallest_recipe("causal_lm")
    data["train"] |= {"max_steps": STEPS}
    data["evaluate"] |= {"every": None, "after": False}
    data["measure"] |= {"window": 1}
    data["checkpoint"] |= {"every": None, "model": False}
    for found in waits_of_steps(tmp_path, data, monkeypatch)[1:]:
        assert [place.split(":")[0] for place in found] == ["tolist muster/worker/later.py"]
        assert sum(found.values()) == 1
    assert len(waited) == 1 + 2  # the training's begin; the first window and the last one
