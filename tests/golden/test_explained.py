"""What `muster explain` says of logs of many tools (tests/golden/logs/explained.txt)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.documents import Documents, muster, sections, workplace

LOGS = sections(Path(__file__).parent / "logs" / "explained.txt")


def explained(name: str) -> str:
    """For people, then every field of --json; then what `muster judge` reads of it."""
    log = workplace() / f"{name}.log"
    log.write_text(LOGS[name], encoding="utf-8")
    told = str(muster("explain", log.name)), muster("explain", log.name, "--json").fields()
    judged = json.loads(muster("judge", log.name, "--json").out)
    log.unlink()
    return "\n".join([*told, *(as_job(job) for job in judged.get("jobs", ()))])


def as_job(job: dict[str, Any]) -> str:
    """How it ended, in a line."""
    names = ("outcome", "failure", "failed_hosts", "hosts", "steps", "skipped_steps", "reason", "notes")
    return json.dumps({name: job[name] for name in names if job[name]}, ensure_ascii=False)


DOCUMENTS = [Documents("explained", tuple(LOGS), explained)]


@pytest.mark.parametrize("name", LOGS)
def test_a_log(name: str) -> None:
    DOCUMENTS[0].check(name)
