"""Tables, and the mappings that say what is in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.core.errors import UsageError
from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers._mapping import Mapping, load_mapping
from muster.readers.base import JobLog
from tests.unit.logs import LIGHTNING, MAPPINGS, one, read_log


def test_lightnings_metrics() -> None:
    job = one(LIGHTNING, "node07/lightning_logs/version_0/metrics.csv")
    assert (job.outcome, job.hosts, job.format) == ("succeeded", ("node07",), "table")
    assert job.rate == pytest.approx(32.0)


def mapped(lines: list[str], **keys: object) -> list[JobLog]:
    return read_log("results.csv", lines, [Mapping.model_validate(keys)])


def test_a_table_with_a_row_per_host_and_step() -> None:
    lines = ["host;iter;ms"] + [
        f"{host};{step};{ms}" for step in range(50) for host, ms in (("a", 100), ("b", 125))
    ]
    first, second = mapped(
        lines, columns={"host": "host", "step": "iter", "step_seconds": "ms"}, batch=32, unit=0.001
    )
    assert (first.path, first.hosts, second.hosts) == ("results.csv#a", ("a",), ("b",))
    assert first.rate == pytest.approx(320) and second.rate == pytest.approx(256)
    assert first.step_seconds == pytest.approx(0.1)


def test_a_table_of_rates() -> None:
    """The rate of the mean, not the mean of rates: half of the time at 100, half at 300 samples/s."""
    lines = [
        "t,speed",
        "0,100",
        *[f"{2 * n},100" for n in range(1, 25)],
        *[f"{48 + n},300" for n in range(1, 49)],
    ]
    (job,) = mapped(lines, columns={"seconds": "t", "samples_per_second": "speed"})
    assert job.measured and job.rate == pytest.approx(job.measured.samples / job.measured.seconds)
    assert 200 < (job.rate or 0) < 225  # the warm-up is taken from the slow half


def test_rates_beside_a_batch_tell_the_time_of_a_step() -> None:
    """900 samples/s at 192 samples a step: 0.213 s, whichever way the batch is known; a row in ten steps."""
    lines = ["step,speed,size,done"] + [f"{10 * n},900,192,{1920 * n}" for n in range(1, 30)]
    columns = {"step": "step", "samples_per_second": "speed"}
    for more in ({"batch": 192}, {"columns": {**columns, "batch": "size"}}):
        (job,) = mapped(lines, **{"columns": columns, **more})
        assert job.rate == pytest.approx(900) and job.step_seconds == pytest.approx(192 / 900)
        assert job.measured and job.measured.timed
        assert job.measured.seconds == pytest.approx(job.measured.steps * 192 / 900)
    (job,) = mapped(lines, columns={"samples_per_second": "speed", "samples": "done"})
    assert job.rate == pytest.approx(900) and job.measured and job.measured.timed
    (job,) = mapped([*lines, "999,0,192,0"], columns={**columns, "batch": "size"})  # no rate, no time
    assert job.rate == pytest.approx(900)


def test_rates_alone_tell_no_time() -> None:
    lines = ["step,speed"] + [f"{10 * n},{n % 2 * 200 + 800}" for n in range(1, 30)]
    (job,) = mapped(lines, columns={"step": "step", "samples_per_second": "speed"})
    assert job.rate == pytest.approx(900, rel=0.02)
    assert job.measured and not job.measured.timed and job.step_seconds is None
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert entry.samples_per_second == job.rate
    assert (entry.step_seconds, entry.measured_seconds, entry.measured_samples) == (None, None, None)


def test_rows_whose_steps_are_not_numbered_may_be_of_several() -> None:
    """Then the tool's own rate tells how many samples there were, unless they are counted."""
    columns = {"seconds": "t", "batch": "size", "samples_per_second": "speed"}
    lines = ["t,size,speed,done"] + [f"{4 * n},40,100,{400 * n}" for n in range(1, 30)]
    assert mapped(lines, columns=columns)[0].rate == pytest.approx(100)
    slow = [line.replace(",100,", ",99,") for line in lines]
    assert mapped(slow, columns={**columns, "samples": "done"})[0].rate == pytest.approx(100)


def test_a_rate_of_a_step_that_was_skipped_tells_no_time() -> None:
    """And does not keep others from telling theirs."""
    lines = ["n,speed,skipped"] + [f"{n},160,{min(n, 3)}" for n in range(1, 40)]
    columns = {"step": "n", "samples_per_second": "speed", "skipped": "skipped"}
    (job,) = mapped(lines, columns=columns, batch=32)
    assert job.step_seconds == pytest.approx(0.2) and job.skipped == 3
    line = r"(?P<step>\d+) at (?P<samples_per_second>\d+), (?P<skipped>\d)"
    (job,) = mapped([f"{n} at 160, {n < 4:d}" for n in range(1, 40)], line=line, batch=32)
    assert job.step_seconds == pytest.approx(0.2) and job.skipped == 3


def test_a_header_and_nothing_below_it() -> None:
    """A mapping names its columns: what is missing are rows."""
    for rows in ([], ["1,"], ["x,y"]):
        (job,) = mapped(["t,speed", *rows], columns={"seconds": "t", "samples_per_second": "speed"})
        assert job.outcome == "unreadable"
        assert job.reason == "has the columns that a mapping names, but no row with values in all of them"


def test_a_mapping_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    for text, what in (
        ("columns: {step: s}", "needs one of seconds, step_seconds, samples_per_second"),
        ("columns: {seconds: a, step_seconds: b}", "give one of seconds"),
        ("columns: {secons: a}", "unknown key 'columns.secons'"),
        ("columns: [a]", "columns"),
        ("batch: 0\ncolumns: {seconds: a}", "batch"),
        ("{", "not valid YAML"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=re.escape(what)):
            load_mapping(file)


def test_shipped_mappings_load() -> None:
    assert MAPPINGS and all(each.about for each in MAPPINGS)
