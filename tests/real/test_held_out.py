"""The held-out loss is of all that is held out, or of as much as evaluate.limit says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.store import events
from tests.real.test_contracts_worker import smallest_recipe
from tests.support import train_here

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

EASY, HARD = 2_050, 60  # rows: those behind the limit would make another loss


@pytest.mark.parametrize("limit", [None, EASY])
def test_pairs_that_count(limit: int | None, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    easy = [("copy one", "one")] * EASY
    rows = {
        "train": [("copy one", "one")] * 64,
        "validation": [*easy, *[("copy this", "two three four")] * HARD],
    }
    (tmp_path / "pairs").mkdir()
    for name, pairs in rows.items():
        lines = [json.dumps({"input": one, "target": other}) for one, other in pairs]
        (tmp_path / "pairs" / f"{name}.jsonl").write_text("\n".join(lines))
    data = smallest_recipe("seq2seq")
    data["data"] |= {"generated": None, "path": str(tmp_path / "pairs"), "limit": None}
    data["train"] |= {"max_steps": 4}
    data["evaluate"] |= {"limit": limit, "every": None, "after": True, "max_new_tokens": 1}
    told = train_here(tmp_path, data)
    counted = rows["validation"][:limit]
    read = next(each for each in told if isinstance(each, events.DataRead))
    assert read.validation == len(counted)
    words = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    summed, tokens = 0.0, 0
    for pair in sorted(set(counted)):
        inputs, labels = (words(text, return_tensors="pt").input_ids for text in pair)
        with torch.no_grad():
            loss = float(model(input_ids=inputs, labels=labels).loss)
        summed += loss * labels.numel() * counted.count(pair)
        tokens += labels.numel() * counted.count(pair)
    (evaluated,) = [each for each in told if isinstance(each, events.Evaluated)]
    assert evaluated.loss == pytest.approx(summed / tokens, rel=1e-4)
