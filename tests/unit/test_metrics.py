"""A training's metrics as CSV, and what its end says of attention."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from muster.core.result import AttentionExtremes, Extreme
from muster.results.figures import figures
from muster.results.fold import fold
from muster.results.metrics import COLUMNS, metrics_csv
from muster.store import events
from tests.unit.test_report import a_result


def window(step: int, rank: int, seconds: float, **more: Any) -> events.Window:
    fields = {"samples": 40, "tokens": 400, "padded_tokens": 500, "step_seconds": [seconds / 10] * 10}
    return events.Window(
        time=100.0 + step, rank=rank, attempt=1, step=step, steps=10, seconds=seconds, **{**fields, **more}
    )


def test_a_row_per_step() -> None:
    """The slowest rank's time, all ranks' samples, the highest peaks; unknown cells are empty."""
    stream = [
        events.Log(time=1, rank=0, attempt=1, step=10, epoch=0.5, loss=2.5, learning_rate=0.1),
        window(10, 0, 2.0, resident_peak=7), window(10, 1, 4.0, resident_peak=9),
        events.Log(time=2, rank=0, attempt=1, step=20, loss=math.nan),
        window(20, 0, 2.0),
        window(30, 0, 2.0, profiled=True), window(30, 1, 2.0),
        window(40, 0, 2.0, skipped=5), window(40, 1, 2.0, skipped=5),
        events.Evaluated(time=3, rank=0, attempt=1, step=15, loss=1.5, perplexity=4.5),
        events.Attention(
            time=4, rank=0, attempt=1, step=20, layers=["a", "b", "c"], largest=[1.0, 3.0, 2.0],
            smallest=[-2.0, None, -5.0], seconds=0.1,
        ),
    ]  # fmt: skip
    text = metrics_csv(fold(stream), 2)
    rows = {int(row["step"]): row for row in csv.DictReader(io.StringIO(text))}
    assert list(rows) == [10, 15, 20, 30, 40]
    assert tuple(rows[10]) == COLUMNS
    first = {name: rows[10][name] for name in ("loss", "samples_per_second", "step_seconds", "resident_peak")}
    assert first == {"loss": "2.5", "samples_per_second": "20.0", "step_seconds": "0.4", "resident_peak": "9"}
    assert (rows[10]["tokens_per_second"], rows[10]["time"]) == ("200.0", "110.0")
    assert (rows[15]["evaluation_loss"], rows[15]["perplexity"], rows[15]["loss"]) == ("1.5", "4.5", "")
    assert (rows[20]["loss"], rows[20]["samples_per_second"]) == ("", "")  # nan; one rank has not told
    assert (rows[20]["attention_largest"], rows[20]["attention_smallest"]) == ("3.0", "-5.0")
    assert (rows[30]["profiled"], rows[30]["samples_per_second"]) == ("1", "")
    assert (rows[40]["skipped_steps"], rows[40]["step_seconds"]) == ("5", "0.4")
    assert metrics_csv(fold([]), None).splitlines() == [",".join(COLUMNS)]


def test_attention_extremes_in_words() -> None:
    largest = Extreme(logit=31.25, layer="layers.1", step=20)
    some = AttentionExtremes(largest=largest, smallest=None, windows=2, seconds=0.1, share=None)
    none = some.model_copy(update={"largest": None})

    def logits(attention: AttentionExtremes) -> list[tuple[str, str]]:
        listed = figures(a_result(attention=attention))
        return [(each.name, each.words) for each in listed if each.name.startswith("Attention")]

    assert logits(some) == [("Attention logit, largest", "31.25 (layers.1, step 20)")]
    assert logits(none) == [("Attention logits", "none was finite")]
