"""Where a log has two clocks or two rates: time stamps win, and unlike units do not contradict each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from muster.readers._read import contradicting
from muster.readers.base import MeasuredWindows, Reading
from tests.golden.documents import sections

LOGS = sections(Path(__file__).parents[1] / "golden" / "logs" / "formats.txt")
MEGATRON = f"\n{LOGS['megatron']}"
DONE = "[after training is done] datetime: 2024-08-01 09:44:58\n"  # as above, of another run


def test_formats_that_count_unlike_things_do_not_contradict_each_other() -> None:
    steps = MeasuredWindows(steps=10, skipped=0, samples=10.0, seconds=10.0, unit="steps")
    samples = replace(steps, samples=640.0, unit="samples")
    first, other = Reading("a", unit="steps"), Reading("b", sure=False)
    assert contradicting([(first, steps), (other, samples)]) is None
    assert contradicting([(first, replace(samples, samples=700.0)), (other, samples)]) == 64.0
