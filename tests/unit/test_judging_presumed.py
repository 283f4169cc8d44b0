"""Logs that lie in numbered files, or have stamps that are whole by chance."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from muster.readers._frame import stamp
from muster.readers._paths import alike_parts
from muster.readers._read import read_blocks


@pytest.mark.parametrize("path", ["out.1.log", "log_7.txt", "003.log", "training-2.log"])
def test_a_number_of_a_file_only_counts(path: str) -> None:
    assert alike_parts(path, ["n1"]) == alike_parts(path.translate(str.maketrans("1237", "9999")), ["n1"])


@pytest.mark.parametrize("folder", ["w1", "W2", "w-03", "j12", "w3-11"])
def test_a_folder_that_counts_waves_or_jobs(folder: str) -> None:
    assert alike_parts(f"{folder}/train.log", ["n1"]) == ["*", "train.log"]


@pytest.mark.parametrize("path", ["lr1.log", "gpt2.log", "model_7.log", "t5.log", "p4.log", "r1.log"])
def test_a_number_of_a_setting_or_model_does_not_only_count(path: str) -> None:
    assert alike_parts(path, ["n1"]) == [path]


def test_a_stamp_with_a_comma() -> None:
    assert stamp("2023-06-29,15:44:40 | INFO") == stamp("2023-06-29 15:44:40 | INFO")


def test_stamps_that_are_whole_by_chance_are_no_coarser() -> None:
    begin = datetime(2026, 5, 18, 16)
    model = "Model llama3 debugmodel size: 6 total parameters"
    lines = [f"[titan] 2026-05-18 15:59:00,500 - root - INFO - {model}"]
    for number in range(60):
        at = begin + timedelta(milliseconds=1000 * number + number // 6)
        text = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}"
        lines.append(f"[titan] {text} - root - INFO - step: {number + 1}  loss:  3.2  tps: 8,192  mfu: 0.17%")
    (log,) = read_blocks("n1.log", [lines])
    assert log.measured is not None and (log.measured.error or 0.0) < 0.001
