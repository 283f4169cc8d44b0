"""A log that lies there twice is one job."""

from __future__ import annotations

import gzip
from pathlib import Path

from muster.judging.document import Judged
from muster.judging.logs import judge
from tests.unit.logs import chat_log, trainer_log
from tests.unit.test_judge import FLEET, noise, write


def fleet(folder: Path) -> Path:
    """A log of each host alone, one of them 4 % slow. -> its log."""
    for number, host in enumerate(FLEET):
        factor = 1.04 if number == 5 else 1
        write(folder / f"job{number}.log", chat_log([host], 0.2 * noise(number) * factor))
    return folder / "job5.log"


def of_host(found: Judged, host: str) -> tuple[str, int]:
    verdict = next(each for each in found.hosts if each.hosts == [host])
    return verdict.condition, len(verdict.evidence)


def test_copies_of_a_log_are_one_job(tmp_path: Path) -> None:
    slow = fleet(tmp_path)
    before = of_host(judge(tmp_path), FLEET[5])
    text = slow.read_bytes()
    (tmp_path / "job5_copy.log").write_bytes(text)
    (tmp_path / "job5.log.gz").write_bytes(gzip.compress(text))
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "job5.log").write_bytes(text)
    (tmp_path / "crlf.log").write_bytes(text.replace(b"\n", b"\r\n") + b"copied by hand\r\n")
    found = judge(tmp_path)
    assert of_host(found, FLEET[5]) == before == ("unknown", 1)
    assert any("4 logs are copies" in note for note in found.notes)
    assert sum(any("used instead" in note for note in job.notes) for job in found.jobs) == 4


def test_copies_without_a_time_of_day_are_one_job_and_other_jobs_are_not(tmp_path: Path) -> None:
    for number, host in enumerate(FLEET):
        write(tmp_path / "run1" / f"{host}.log", [trainer_log(step=2 * noise(number), steps=600)])
    write(tmp_path / "run2" / f"{FLEET[3]}.log", [trainer_log(step=2 * noise(3), steps=600)])
    write(tmp_path / "run2" / f"{FLEET[4]}.log", [trainer_log(step=2.01, steps=600)])
    found = judge(tmp_path)
    assert of_host(found, FLEET[3])[1] == 1 and of_host(found, FLEET[4])[1] == 2
    assert any("1 log is a copy" in note for note in found.notes)


def test_copies_of_files_of_ranks_are_the_same_job(tmp_path: Path) -> None:
    for number, host in enumerate(FLEET):
        for rank in (0, 1):
            for folder in ("logs", "logs-copy"):
                lines = chat_log([host], 0.2 * noise(number) * (1 + rank / 1000))
                write(tmp_path / folder / f"{host}.rank{rank}.log", lines)
    found = judge(tmp_path)
    assert {of_host(found, host)[1] for host in FLEET} == {1} and found.peers[0].jobs == len(FLEET)
