"""What `muster judge` finds in folders of logs: made-up fleets, and a log of each tool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.documents import DIGITS, Documents, muster, rounded, sections, workplace
from tests.golden.fleets import FLEETS

FORMATS = sections(Path(__file__).parent / "logs" / "formats.txt")
# Of what there are many: a line each, of these fields.
FIELDS = {
    "hosts": ("hosts", "condition", "kind", "slower", "within", "at_most", "confidence", "subjects"),
    "links": ("hosts", "condition", "kind", "slower", "within", "confidence"),
    "switches": ("switch", "condition", "kind", "slower", "within", "confidence"),
    "peers": ("hosts", "jobs", "step_seconds", "deviation", "samples_per_second", "stored", "least"),
    "drifted": ("slower", "within"),
    "jobs": (
        "job", "outcome", "failure", "failed_hosts", "samples_per_second", "step_seconds", "slower", "judged",
        "misses",
    ),
}  # fmt: skip


def reduced(text: str) -> str:
    """A judged document: a line for each host, link, kind of peers and job, and one for all else."""
    found: dict[str, Any] = rounded(json.loads(text), DIGITS)
    told = [json.dumps({key: value for key, value in found.items() if key not in FIELDS}, ensure_ascii=False)]
    for name, fields in FIELDS.items():
        told += [f"{name}: {' '.join(values(each, fields))}" for each in found.get(name, ())]
    return "".join(f"{line}\n" for line in told)


def values(each: dict[str, Any], fields: tuple[str, ...]) -> Iterator[str]:
    """What it has of these fields."""
    for name in fields:
        if name == "subjects":
            yield from (
                f"{one['name']}={list(one.values())[1:]}".replace(" ", "") for one in each.get(name, ())
            )
        elif name in each:
            yield f"{name}={each[name]}".replace(" ", "")


def fleet(case: str) -> str:
    """The document, and what is printed for people."""
    place = workplace() / "fleet"
    make, words = FLEETS[case]
    (place / "logs").mkdir(parents=True)
    try:
        make(place / "logs")
        printed = muster("judge", "logs", *words, place=place)
        told = muster("judge", "logs", "--json", *words, place=place)
    finally:
        shutil.rmtree(place)
    return f"{printed}\n{reduced(told.out)}"


def log(case: str) -> str:
    """What is read of a log: of the document its one job, unless nothing can be read of it."""
    place = workplace() / "one"
    place.mkdir()
    try:
        (place / "node-1.log").write_text(FORMATS[case], encoding="utf-8")
        told = muster("judge", ".", "--json", place=place)
    finally:
        shutil.rmtree(place)
    jobs = json.loads(told.out).get("jobs")
    return (
        told.out
        if jobs is None
        else "".join(f"{json.dumps(rounded(job, DIGITS), indent=1)}\n" for job in jobs)
    )


DOCUMENTS = [Documents("judged", tuple(FLEETS), fleet), Documents("logs-of-tools", tuple(FORMATS), log)]


@pytest.mark.parametrize("case", FLEETS)
def test_a_fleet(case: str) -> None:
    DOCUMENTS[0].check(case)


@pytest.mark.parametrize("case", FORMATS)
def test_a_log_of_a_tool(case: str) -> None:
    DOCUMENTS[1].check(case)
