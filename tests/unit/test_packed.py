"""Packing, synthetic tokens and the loss: nothing lost, nothing twice, the same everywhere."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from muster.core import loss_parts as losses
from muster.worker.engine import EngineRuntime
from muster.worker.heldout import PaddedRows
from muster.worker.loss import IGNORED, LossSums, TokenLoss, summed_cross_entropy
from muster.worker.trainer import wired
from muster.workloads.causal_lm.sources import joined
from muster.workloads.causal_lm.tokens import Packed, SyntheticTokens, collate, count_batch


def packed(folder: Path, tokens: int, sequence: int, limit: int | None = None) -> Packed:
    path = folder / "train.bin"
    np.arange(tokens, dtype="uint16").tofile(path)
    return Packed(path, "uint16", tokens, sequence, limit)


def test_rows_are_full_and_follow_each_other(tmp_path: Path) -> None:
    rows = packed(tmp_path, 103, 10)
    assert (len(rows), rows.left_out) == (10, 3)
    assert np.concatenate([rows[i]["tokens"] for i in range(10)]).tolist() == list(range(100))
    assert rows[3]["tokens"].dtype == np.int64
    for index in (-1, 10):
        with pytest.raises(IndexError):
            rows[index]
    assert len(packed(tmp_path, 103, 10, limit=4)) == 4
    assert len(packed(tmp_path, 9, 10)) == 0


def test_a_loaders_process_gets_the_path_alone(tmp_path: Path) -> None:
    rows = packed(tmp_path, 60_000, 10)
    rows[0]
    sent = pickle.dumps(rows)
    assert len(sent) < 1000
    assert pickle.loads(sent)[5]["tokens"].tolist() == list(range(50, 60))


def test_a_batch_counts_every_token_and_predicts_all_but_the_first(tmp_path: Path) -> None:
    rows = packed(tmp_path, 100, 10)
    batch = collate([rows[2], rows[5]])
    assert batch["input_ids"].tolist() == [list(range(20, 30)), list(range(50, 60))]
    assert batch["labels"].tolist() == [[IGNORED, *range(21, 30)], [IGNORED, *range(51, 60)]]
    counts = count_batch(batch)
    assert (counts.samples, counts.tokens, counts.padded_tokens) == (2, 20, 20)


@given(st.integers(1, 40), st.integers(1, 12))
def test_held_out_rows_are_filled_up_with_rows_that_do_not_count(count: int, unit: int) -> None:
    rows = PaddedRows(SyntheticTokens(count, 4, 50, 0, held_out=True), unit)
    assert len(rows) % unit == 0
    assert 0 <= len(rows) - count < unit
    labels = collate([rows[index] for index in range(len(rows))])["labels"]
    assert (labels != IGNORED).any(1).sum() == count


def test_held_out_rows_are_whole_batches_for_every_rank() -> None:
    """Else accelerate deals some of them twice, and the held-out loss depends on the number of ranks."""
    train = SimpleNamespace(label_smoothing=0.0, fused_loss=False, compiled=False, seed=0)
    recipe = SimpleNamespace(
        train=train, engine=SimpleNamespace(stage=0), keeps_half=False, computes_half=False,
        precision="bf16", dropout=True,
    )  # fmt: skip
    context: Any = SimpleNamespace(
        recipe=recipe, engine=EngineRuntime(), batch=SimpleNamespace(global_=6), world_size=3,
        spec=SimpleNamespace(shards_weights=lambda stage, ranks: False),
    )  # fmt: skip
    rows, arguments = (
        SyntheticTokens(8, 4, 50, 0, held_out=True),
        SimpleNamespace(per_device_eval_batch_size=2),
    )
    more = {"train": rows, "held_out": rows, "lengths": [4] * 8, "collator": collate, "processing": None}
    trainer = wired(SimpleNamespace, context, object(), arguments, **more)  # type: ignore[arg-type]
    assert len(trainer.eval_dataset) == 12


def test_synthetic_tokens_depend_on_seed_part_and_row_alone() -> None:
    def row(index: int, count: int = 100, seed: int = 7, held_out: bool = False) -> list[int]:
        made: list[int] = SyntheticTokens(count, 64, 51_200, seed, held_out=held_out)[index][
            "tokens"
        ].tolist()
        return made

    assert all(row(index) == row(index, count=5000) for index in (99, 0, 41))
    assert row(41) not in (row(41, seed=8), row(41, held_out=True), row(40))
    # The stream itself, so that no version of NumPy changes a benchmark unnoticed.
    stream = SyntheticTokens(1, 4, 51_200, 0, held_out=False)[0]["tokens"].tolist()
    assert stream == [47259, 1458, 9849, 40156]
    SyntheticTokens(1, 4, 51_200, -3, held_out=False)[0]


def test_synthetic_tokens_use_the_whole_vocabulary() -> None:
    tokens = np.concatenate(
        [SyntheticTokens(100, 512, 300, 0, held_out=False)[i]["tokens"] for i in range(100)]
    )
    counts = np.bincount(tokens, minlength=300)
    assert len(counts) == 300
    assert counts.min() > 100 and counts.max() < 260  # 171 each on average, standard deviation 13


def test_rows_of_lines_are_one_document() -> None:
    rows = ["", " = Title = \n", "", "text\n", "the end", "another"]
    assert ["".join(document) for document in joined(rows)] == [" = Title = \ntext\nthe end", "another"]


# --- the loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_parts_is_pytorchs_own(
    smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 97, dtype=dtype)
    labels = torch.randint(0, 97, (50,))
    labels[::7] = IGNORED
    found = []
    for most in (1 << 24, 300):
        monkeypatch.setattr(losses, "SMALL", most)
        monkeypatch.setattr(losses, "SMALL_ON_CPU", most)
        given_logits = logits.clone().requires_grad_()
        summed = summed_cross_entropy(given_logits, labels, smoothing)
        (summed / 3).backward()
        assert given_logits.grad is not None
        found.append((summed.item(), given_logits.grad))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1])
    assert found[0][1].abs().sum() > 1


def test_each_token_is_predicted_from_those_before_it() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(3, 8, 11), torch.randint(0, 11, (3, 8))
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    plain = functional.cross_entropy(logits[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))
    tally = LossSums()
    loss = TokenLoss(moved=True, tally=tally)
    assert loss({"logits": logits}, labels).item() == pytest.approx(plain.item(), rel=1e-6)
    assert loss({"logits": logits}, labels, torch.tensor(42)).item() == pytest.approx(
        plain.item() * 21 / 42, rel=1e-6
    )
    assert tally.count == 0  # those had a gradient: they are training
    with torch.no_grad():
        for rows in (slice(0, 2), slice(2, 3)):
            loss({"logits": logits[rows]}, labels[rows])
    assert float(tally.loss / tally.count) == pytest.approx(plain.item(), rel=1e-6)
