"""Pairs padded to few shapes train as those padded to their own longest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.store import events
from tests.real.test_contracts_worker import smallest_recipe
from tests.support import needs_torch, train_here

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("torch_here")]


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


def told(folder: Path, padding: str) -> list[events.Event]:
    folder.mkdir()
    data: dict[str, Any] = smallest_recipe("seq2seq")
    data["data"] |= {"padding": padding}
    data["model"]["config"] |= {"dropout_rate": 0.0}
    data["train"] |= {"max_steps": 20}
    data["evaluate"] |= {"every": 10, "after": False}
    data["checkpoint"] |= {"every": None, "model": False}
    return train_here(folder, data)


def test_losses_are_those_of_dynamic_padding(tmp_path: Path) -> None:
    """Over an epoch and a bit, held-out losses too; what is padded more is counted as padding."""
    found = {padding: told(tmp_path / padding, padding) for padding in ("dynamic", "buckets")}
    losses, tokens, padded = (
        {padding: [get(each) for each in all_ if isinstance(each, kind)] for padding, all_ in found.items()}
        for kind, get in (
            ((events.Log, events.Evaluated), lambda each: each.loss),
            (events.Window, lambda each: (each.samples, each.tokens)),
            (events.Window, lambda each: each.padded_tokens),
        )
    )
    assert len(losses["dynamic"]) == 22
    assert losses["buckets"] == pytest.approx(losses["dynamic"], rel=1e-5)
    assert tokens["buckets"] == tokens["dynamic"]
    assert all(more >= less for more, less in zip(padded["buckets"], padded["dynamic"], strict=True))
    assert 1 < len(set(padded["buckets"])) <= 8 < len(set(padded["dynamic"]))
    started = next(each for each in found["buckets"] if isinstance(each, events.Started))
    (note,) = [each for each in started.notes if each.startswith("padded to")]
    assert note.count(" x ") == 8
