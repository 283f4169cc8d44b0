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
from tests.unit.logs import chat_log, metaseq_log
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


def test_only_the_host_that_misses_it_and_slow_ones_stay_slow(tmp_path: Path) -> None:
    """5 % is slow beside its peers, and 912 samples/s are enough."""
    pairs = tuple((number, number + 1) for number in range(15))
    logs = fleet(tmp_path, {FLEET[2]: 1.05, FLEET[7]: 1.5}, pairs)
    found = conditions(judge(logs, at_least="800 samples/s"))
    assert found.pop(FLEET[2]) == "slow" and found.pop(FLEET[7]) == "slow" and set(found.values()) == {"fit"}
    entries = {job.hosts[0]: job.misses for job in judge(logs, at_least="800 samples/s").jobs}
    assert entries[FLEET[7]] and not entries[FLEET[2]]


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        (((0, 1), (2, 3)), {0, 1}),  # nothing shows which of the two it is
        (((0, 1), (1, 2)), {0}),  # the other reached it with somebody else
    ],
)
def test_of_a_group_only_hosts_that_reached_it_nowhere(
    tmp_path: Path, pairs: tuple[tuple[int, int], ...], named: set[int]
) -> None:
    found = judge(fleet(tmp_path, {FLEET[0]: 1.5}, pairs, alone=False), at_least="1500samples/s")
    assert below(found) == {FLEET[number] for number in named} and found.gate is Gate.BAD


def test_per_job_host_and_rank(tmp_path: Path) -> None:
    """A bound is of a job, as large as it is; per host and per rank it holds for jobs of all sizes."""
    logs = fleet(tmp_path, {}, ((0, 1), (2, 3)))
    assert judge(logs, at_least="930samples/s").gate is Gate.FIT
    assert judge(logs, at_least="930samples/s/host").gate is Gate.FIT
    assert {len(job.hosts) for job in judge(logs, at_least="1000samples/s").jobs if job.misses} == {1}
    assert {len(job.hosts) for job in judge(logs, at_least="940samples/s/host").jobs if job.misses} == {2}
    assert {len(job.hosts) for job in judge(logs, at_least="117.5samples/s/rank").jobs if job.misses} == {2}


def test_tokens_where_the_log_tells_them(tmp_path: Path) -> None:
    write(tmp_path / "node-001" / "train.log", metaseq_log())
    (job,) = judge(tmp_path).jobs
    assert job.tokens_per_second
    assert judge(tmp_path, at_least=f"{job.tokens_per_second * 1.01:.0f}tokens/s").gate is Gate.BAD
    assert judge(tmp_path, at_least=f"{job.tokens_per_second * 0.99:.0f}tokens/s").gate is not Gate.BAD
    fleet(tmp_path / "chat", {})
    found = judge(tmp_path, at_least="1tokens/s")
    assert any("16 jobs" in note and "tokens/s" in note for note in found.notes)
    with pytest.raises(UsageError, match="tokens/s"):
        judge(tmp_path / "chat", at_least="1tokens/s")


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
