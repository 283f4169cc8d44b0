"""What `muster explain` says of logs, a line for each: for the room `explains` of test_rooms."""

from __future__ import annotations

import io
import json
import lzma
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from muster.failures.table import known_failures
from muster.runs.explain import Explanation, explain_logs, explain_stream
from tests.golden.documents import workplace

WIDTH = 72  # of a text that the document has
OF_TABLE = ("phase", "blame", "retry", "check", "remedy")


@lru_cache
def parts() -> dict[str, list[str]]:
    """Lines of healthy jobs, by their tools."""
    packed = (Path(__file__).parent / "rooms" / "logs.json.xz").read_bytes()
    found: dict[str, list[str]] = json.loads(lzma.decompress(packed))
    return found


def unpacked(log: list[Any]) -> list[str]:
    """The lines of a log. In place of lines stand {"part": NAME, "lines": [FIRST, LAST]} of logs.json.xz, and
    {"each": LINE, "n": [FIRST, LAST, STEP]}: a line with its {n} counted."""
    lines: list[str] = []
    for each in log:
        if isinstance(each, str):
            lines.append(each)
        elif "part" in each:
            lines += parts()[each["part"]][slice(*each.get("lines", (None,)))]
        else:
            lines += [each["each"].replace("{n}", str(n)) for n in range(*each["n"])]
    return lines


def explained(log: Any) -> Explanation:
    """A log as it comes out of a pipe, or files of a folder."""
    if isinstance(log, list):
        return explain_stream(io.BytesIO("\n".join([*unpacked(log), ""]).encode()))
    folder = workplace() / "room" / "job"
    for name, lines in log.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join([*unpacked(lines), ""]), encoding="utf-8")
    try:
        return explain_logs(folder / next(iter(log)) if len(log) == 1 else folder)
    finally:
        for name in log:
            (folder / name).unlink()


def short(value: Any) -> str:
    """A text that a line has room for: of a long one its begin and its end."""
    text = re.sub(r"\s+", " ", str(value).replace(str(workplace()), "{place}"))
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 25]}…{text[-24:]}"


def fields(found: Explanation) -> Iterator[str]:
    """What is said. Of an entry of the table only what differs from it."""
    failure = found.failure
    entry = known_failures().get(failure.id or "") if failure else None
    what = failure.what if failure else ""
    yield f"{found.answer} {entry.id if entry else ''}".rstrip()
    if failure:
        yield from (short(each) for each in (what, failure.where, failure.host) if each)
        line = failure.evidence
        own = line.model_dump(exclude_defaults=True, exclude={"text"}) if line else {}
        doubled = (None, failure.host, failure.where)
        yield from (
            words
            for name, each in own.items()
            if each not in doubled and (words := f"{name} {short(each)}") not in doubled
        )
        yield from ([f"text {short(line.text)}"] if line and line.text != what else ())
    of_entry = (
        {name: getattr(entry, name) for name in OF_TABLE}
        | {"remedy": entry.remedy_on(failure.host if failure else None)}
        if entry
        else {}
    )
    for name in OF_TABLE:
        if (own_word := getattr(found, name)) != of_entry.get(name):
            yield f"{name} {short(own_word)}"
    if found.blamed and "no line says" in found.blamed:
        yield "no line says which host"
    says = found.says.replace(what, "{what}") if what else found.says
    yield from ([] if entry and says == entry.cause else [f"says {short(says)}"])
    yield from (f"{name} {each}" for name in ("alike", "echoes") if (each := getattr(found, name)))
    yield from (f"other {each.line} {short(each.text)}" for each in found.others)
    yield from (f"note {short(each)}" for each in found.notes)
    if found.lines:
        yield f"{len(found.lines)} lines: {short(found.lines[0])} .. {short(found.lines[-1])}"


def explains(*logs: Any) -> Iterator[str]:
    """A line for each log, or for all of which the same is said. A text among the logs is a heading."""
    same: dict[str, list[str]] = {}  # what is said -> the logs' numbers
    number = 0
    for log in [*logs, ""]:
        if isinstance(log, str):
            yield from (f"{', '.join(numbers)}: {words}" for words, numbers in same.items())
            same = {}
            yield from ([f"# {log}"] if log else [])
            continue
        number += 1
        same.setdefault("; ".join(fields(explained(log))), []).append(f"{number}")
