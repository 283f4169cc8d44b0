"""How a rank's loader processes start."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the server of loader processes, which is not started."""
    from muster.worker.data import loading

    asked: list[Any] = []
    monkeypatch.setattr(multiprocessing, "set_forkserver_preload", asked.append)
    monkeypatch.setattr(loading, "ensure_running", lambda: asked.append("started"))
    return asked


def test_without_loader_processes_nothing_starts(server: list[Any]) -> None:
    from muster.worker.data.loading import loader_arguments

    assert loader_arguments(0, "a.module") == {"dataloader_num_workers": 0}
    assert server == []


def test_loader_processes_are_no_forks_of_the_rank(
    server: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Transformers' argument where it has one, else for all of the process."""
    from muster.worker.data import loading

    kept = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    method: list[Any] = []
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda name, force: method.append((name, force)))
    monkeypatch.setattr(loading.TrainingArguments, "__dataclass_fields__", {loading.CONTEXT: None})
    assert loading.loader_arguments(2, "a.module") == {**kept, loading.CONTEXT: "forkserver"}
    assert method == []
    monkeypatch.setattr(loading.TrainingArguments, "__dataclass_fields__", {})
    assert loading.loader_arguments(2, "a.module") == kept
    assert method == [("forkserver", True)]
    assert server == [["a.module"], "started"] * 2
