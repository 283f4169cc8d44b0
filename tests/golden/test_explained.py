"""What `muster explain` says of logs of many tools (tests/golden/logs/explained.txt)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.documents import Documents, muster, sections, workplace

LOGS = sections(Path(__file__).parent / "logs" / "explained.txt")


def explained(name: str) -> str:
    """For people, then every field of --json."""
    log = workplace() / f"{name}.log"
    log.write_text(LOGS[name], encoding="utf-8")
    told = str(muster("explain", log.name)), muster("explain", log.name, "--json").fields()
    log.unlink()
    return "\n".join(told)


DOCUMENTS = [Documents("explained", tuple(LOGS), explained)]


@pytest.mark.parametrize("name", LOGS)
def test_a_log(name: str) -> None:
    DOCUMENTS[0].check(name)
