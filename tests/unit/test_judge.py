"""muster judge: from folders of logs to verdicts, documents and exit codes."""

from __future__ import annotations

import csv
import json
import math
import random
import statistics
from pathlib import Path

import pytest

from muster.benches.judge import save_table
from muster.cli.app import main
from muster.core.errors import UsageError
from muster.judging.document import Judged
from muster.judging.logs import judge, load_baselines
from tests.unit.logs import chat_log

FLEET = [f"node-{number:03d}" for number in range(1, 17)]


def noise(number: int) -> float:
    """A healthy job's own: up to 0.3 % either way, the same every time."""
    return 1 + ((number * 7919) % 61 - 30) / 10_000


def write_fleet(folder: Path, slow: dict[str, float] | None = None, *, pairs: bool = True) -> None:
    """A log of each host alone, and of each pair of neighbours."""
    slow = slow or {}
    for number, host in enumerate(FLEET):
        write(
            folder / "alone" / f"job{number}.log", chat_log([host], 0.2 * noise(number) * slow.get(host, 1))
        )
    for number in range(0, len(FLEET), 2) if pairs else ():
        hosts = FLEET[number : number + 2]
        worst = max(slow.get(host, 1.0) for host in hosts)
        write(folder / "pairs" / f"job{number}.log", chat_log(hosts, 0.205 * noise(number + 40) * worst))


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def conditions(found: Judged) -> dict[str, str]:
    return {each.hosts[0]: each.condition for each in found.hosts}


def test_a_host_that_is_too_fast_is_named_in_a_note(tmp_path: Path) -> None:
    for usual in (1.1, 0.9):
        write_fleet(tmp_path / str(usual), {"node-003": usual}, pairs=False)
        assert not any("node-003" in note for note in judge(tmp_path / str(usual)).notes)
    write_fleet(tmp_path / "fast", {"node-003": 0.5}, pairs=False)
    found = judge(tmp_path / "fast")
    assert set(conditions(found).values()) == {"fit"}
    assert [note for note in found.notes if "node-003" in note]


def test_few_hosts_need_a_baseline(tmp_path: Path) -> None:
    write_fleet(tmp_path / "fleet")
    document = judge(tmp_path / "fleet").model_dump(mode="json")
    baseline = tmp_path / "fleet.json"
    baseline.write_text(json.dumps(document))
    for name, step in (("a", 0.212), ("b", 0.2122)):  # one slow job alone may be chance
        write(tmp_path / "new" / f"{name}.log", chat_log(["new-1"], step))
    assert conditions(judge(tmp_path / "new")) == {"new-1": "unknown"}
    (verdict,) = judge(tmp_path / "new", baseline=baseline).hosts
    assert verdict.condition == "slow" and "than the baseline" in verdict.reason
    for text in ("[]", "{", '{"peers": [1]}', "\x00"):
        baseline.write_text(text)
        with pytest.raises(UsageError, match="is not the output of muster judge --json"):
            load_baselines(baseline)


def test_many_files_are_read_by_several_processes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path, {"node-009": 1.04})
    alone = judge(tmp_path)
    monkeypatch.setattr("muster.judging.logs.MANY", 2)
    assert judge(tmp_path) == alone


def test_the_csv_has_the_benchmarks_columns(tmp_path: Path) -> None:
    write_fleet(tmp_path / "logs", {"node-006": 1.05})
    write(tmp_path / "logs" / "more.log", chat_log(["node-004", "node-005"], 0.205))
    (tmp_path / "logs" / "empty.log").touch()
    save_table(judge(tmp_path / "logs"), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["Hostnames", "Throughput (samples/sec)", "Status"]
    assert {"job", "recipe", "group", "seconds", "reason", "memory", "spread"} <= set(rows[0])
    pair = next(row for row in rows if row["job"] == "pairs/job4.log")
    assert pair["Hostnames"] == "node-005,node-006" and pair["verdicts"] == "fit slow"
    assert float(pair["Throughput (samples/sec)"]) == pytest.approx(384 / (0.205 * 1.05), rel=0.01)
    assert next(row for row in rows if row["job"] == "empty.log")["Status"] == "unreadable"


# ---- the command line --------------------------------------------------------------------------------------


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fleet(tmp_path / "logs")
    with pytest.raises(SystemExit) as left:
        main(["judge", str(tmp_path / "logs"), "--json", "--output", str(tmp_path / "out.csv")])
    assert left.value.code == 0
    found = Judged.model_validate(json.loads(capsys.readouterr().out))
    assert found.summary["fit"] == 16 and (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("scale", [0.004, 0.02, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_what_healthy_jobs_differ_by_is_their_standard_deviation(
    tmp_path: Path, scale: float, seed: int
) -> None:
    """Of all of them, also where they are few and two happen to be alike; a slow host's and one that was
    slowed once are not among them."""
    drawn = random.Random(seed)
    paces = [0.2 * math.exp(drawn.gauss(0, scale)) for _ in range(16)]
    for number, host in enumerate(FLEET[:8]):
        for wave in range(2):
            slow = 2.0 if number == 5 else 2.5 if (number, wave) == (2, 1) else 1.0
            write(tmp_path / f"{number}-{wave}.log", chat_log([host], slow * paces[2 * number + wave]))
    (peers,) = judge(tmp_path).peers
    healthy = [math.log(pace) for place, pace in enumerate(paces) if place not in (5, 10, 11)]
    assert peers.jobs == 13
    assert peers.deviation == pytest.approx(statistics.stdev(healthy), rel=0.02)
