"""The first weights of a model in shards: who draws what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("first", [True, False])
def test_only_the_first_rank_draws_weights_and_each_one_makes_what_has_none(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedConfig, PreTrainedModel

    from muster.engines.deepspeed import runtime

    class Positions(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(4))

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.out, self.places = torch.nn.Linear(3, 3), Positions()

    class Model(PreTrainedModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(PreTrainedConfig())
            self.block = Block()

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, Positions):
                module.table.fill_(1.0)
            if isinstance(module, Block):  # its child's, which has to be gathered with it
                assert id(module.out.weight) in gathered
                module.out.weight.data.fill_(2.0)

    gathered: set[int] = set()

    @contextmanager
    def as_on(parameters: list[Any]) -> Iterator[bool]:
        gathered.update(map(id, parameters))
        yield first
        gathered.clear()

    monkeypatch.setattr(runtime, "_gathered", as_on)
    model = Model()
    before = model.block.out.weight.detach().clone()
    runtime._draw_weights(model)
    assert torch.equal(model.block.places.table, torch.ones(4))
    assert torch.equal(model.block.out.weight, torch.full((3, 3), 2.0) if first else before)
