"""muster judge --at-least: a speed that every job must reach, whatever its peers do."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import UsageError
from muster.core.units import parse_rate
from muster.judging.document import Gate, Judged
from muster.judging.logs import judge
from tests.unit.logs import chat_log
from tests.unit.test_judge import FLEET, conditions, noise, write


def test_rates_as_people_write_them() -> None:
    assert parse_rate("800samples/s", "x") == (800.0, "samples_per_second", "job")
    assert parse_rate(" 1,200 samples/s/host ", "x") == (1200.0, "samples_per_second", "host")
    assert parse_rate("1.5k tokens/s/rank", "x") == (1500.0, "tokens_per_second", "slot")
    assert parse_rate("2.5Mtokens/sec", "x") == (2.5e6, "tokens_per_second", "job")
    for wrong in (
        "",
        "800",
        "800 samples",
        "fast samples/s",
        "-1 samples/s",
        "0 samples/s",
        "1e999 samples/s",
    ):
        with pytest.raises(UsageError, match="--at-least"):
            parse_rate(wrong, "--at-least")


def fleet(
    folder: Path, slow: dict[str, float], pairs: tuple[tuple[int, int], ...] = (), alone: bool = True
) -> Path:
    """960 samples/s on a host, 1,873 on two; `slow`: host -> how many times as long."""
    for number, host in enumerate(FLEET if alone else ()):
        write(folder / f"{number}.log", chat_log([host], 0.2 * noise(number) * slow.get(host, 1)))
    for a, b in pairs:
        hosts = [FLEET[a], FLEET[b]]
        worst = max(slow.get(host, 1.0) for host in hosts)
        write(folder / f"{a}-{b}.log", chat_log(hosts, 0.205 * worst))
    return folder


def below(found: Judged) -> set[str]:
    return {host for host, condition in conditions(found).items() if condition == "below"}


def test_a_fleet_whose_hosts_are_all_alike_and_all_too_slow(tmp_path: Path) -> None:
    logs = fleet(tmp_path, dict.fromkeys(FLEET, 1.5))
    assert judge(logs).gate is Gate.FIT
    found = judge(logs, at_least="800samples/s")
    assert below(found) == set(FLEET) and found.gate is Gate.BAD and found.summary["below"] == 16
    assert all(job.misses for job in found.jobs)
    told = CliRunner().invoke(app, ["judge", str(logs), "--at-least", "800samples/s"], standalone_mode=False)
    assert told.return_value == 1 and told.output.startswith("All 16 hosts are below")
    assert "640" in told.output  # what they reach
    assert judge(logs, at_least="600samples/s").gate is Gate.FIT


def test_the_document_says_what_was_asked(tmp_path: Path) -> None:
    found = judge(fleet(tmp_path, {FLEET[0]: 2}), at_least="900samples/s")
    assert Judged.model_validate(json.loads(found.model_dump_json())).at_least == "900 samples/s"


def test_the_csv_says_which_jobs_miss_it(tmp_path: Path) -> None:
    """`Status` is what a benchmark's table is read by: a job below the bar is none that succeeded."""
    logs = fleet(tmp_path / "logs", {FLEET[2]: 1.5})
    out = tmp_path / "out.csv"
    CliRunner().invoke(app, ["judge", str(logs), "--at-least", "800samples/s", "--output", str(out)])
    with out.open() as file:
        rows = {row["Hostnames"]: row for row in csv.DictReader(file)}
    assert {host for host, row in rows.items() if row["Status"] == "below"} == {FLEET[2]}
    assert "800" in rows[FLEET[2]]["reason"] and not rows[FLEET[3]]["reason"]
    assert {row["Status"] for host, row in rows.items() if host != FLEET[2]} == {"succeeded"}


def test_jobs_of_a_slow_host_are_not_nobodys(tmp_path: Path) -> None:
    logs = fleet(tmp_path, {FLEET[2]: 1.5})
    said = CliRunner().invoke(app, ["judge", str(logs), "--at-least", "800samples/s"]).output
    assert f"slow: {FLEET[2]}" in said and "missed" not in said


def test_tokens_of_a_device_are_not_held_against_a_bar_of_a_job(tmp_path: Path) -> None:
    head = "[titan] 2025-08-22 07:5{}:{:02d},000 - root - INFO - "
    for host in ("node1", "node2"):
        lines = [f"{head.format(n // 60, n % 60)}step: {n}  loss:  3.2  tps: 5,461" for n in range(1, 120)]
        write(tmp_path / f"{host}.log", lines)
    with pytest.raises(UsageError, match="no log states tokens/s") as refused:
        judge(tmp_path, at_least="40ktokens/s")
    assert "one device" in (refused.value.hint or "")
