"""No step of any workload makes the host wait for the device, but at the end of a window."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from muster.core.registry import load_plugin
from tests.real.test_contracts_worker import OWN, smallest_recipe
from tests.support import needs_torch, train_here

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("torch_here")]

STEPS, ACCUMULATED = 6, 2


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


def waits_of_steps(folder: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """Of each step but the first, where buffers grow, and the last, which ends the window."""
    from transformers import TrainerCallback

    from muster.worker import main
    from tests.waits import Waits

    found: list[list[str]] = []
    waits = Waits()

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            found.append(waits.places)
            waits.places = []

    instrument = main._instrument

    def instrumented(context: Any, built: Any) -> Any:
        made = instrument(context, built)
        built.trainer.add_callback(Ends())
        return made

    monkeypatch.setattr(main, "_instrument", instrumented)
    with waits.watching():
        train_here(folder, data)
    return [Counter(each) for each in found[1:-1]]


@pytest.mark.parametrize("name", OWN)
def test_no_step_waits_for_the_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(load_plugin("muster.worker.workloads", name, "train"), "measure"):
        pytest.skip("it trains nothing")
    data = smallest_recipe(name)
    data["train"] |= {"max_steps": STEPS}
    data["evaluate"] |= {"every": None, "after": False}
    data["measure"] |= {"window": STEPS}
    data["checkpoint"] |= {"every": None, "model": False}
    for each in waits_of_steps(tmp_path, data, monkeypatch)[:1]:
        print("WAITS", name, *sorted(each.items()), sep="\n   ")
        assert not each
