"""Documents that hold what Muster says: a text file of each kind, with a section for each case.

A test compares what the code says now with its section. What is to change is renewed, all of it or a kind:

    python -m tests.golden.renew [KIND ...]

and reviewed as a diff. Nothing of this machine stands in them (`plain`).
"""

from __future__ import annotations

import difflib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from muster import __version__

FOLDER = Path(__file__).parent / "documents"
HEAD = "=== "  # begins the line above a section
DIGITS = 5  # significant ones of a figure that the test computes: the last bits are the processor's
NOTHING = 1e-12  # what is left of two figures that are alike

# --- where a document is made ----------------------------------------------------------------------------

# A terminal's width and colours, the user's files and the time zone are nobody's.
UNSET = (
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "MUSTER_DEBUG",
    "_MUSTER_COMPLETE",
    "HF_HOME",
    "HF_TOKEN",
)
SET = {"TZ": "UTC", "COLUMNS": "100", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
HOMES = ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


@lru_cache
def workplace() -> Path:
    """A folder of this process, in which documents are made."""
    holder = tempfile.TemporaryDirectory(prefix="muster-golden-")
    workplace.holder = holder  # type: ignore[attr-defined]  # removed with it, at the end of the process
    return Path(holder.name).resolve()


@contextmanager
def anywhere(place: Path) -> Iterator[None]:
    """Inside, this process works in `place`, and sees nothing of its user and machine."""
    before = Path.cwd()
    home = workplace() / "home"
    home.mkdir(exist_ok=True)
    with mock.patch.dict(os.environ, {**SET, **dict.fromkeys(HOMES, str(home))}):
        for name in UNSET:
            os.environ.pop(name, None)
        os.chdir(place)
        time.tzset()
        try:
            yield
        finally:
            os.chdir(before)
    time.tzset()


@dataclass(frozen=True)
class Printed:
    """What a command printed, and its exit code."""

    out: str
    err: str
    code: int

    def __str__(self) -> str:
        return self.behind(self.out)

    def behind(self, text: str) -> str:
        """A text of what is on stdout, then the exit code where it is not 0, then stderr if there is any."""
        text += f"[exit code {self.code}]\n" if self.code else ""
        return f"{text}[stderr]\n{self.err}" if self.err else text

    def fields(self, digits: int = 17) -> str:
        """Of the JSON on stdout every field that has a value, a line each, with that many digits."""
        return self.behind("".join(f"{line}\n" for line in lines(rounded(json.loads(self.out), digits))))


def muster(*words: str, place: Path | None = None) -> Printed:
    """Run a command in this process."""
    from muster.cli.app import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with anywhere(place or workplace()), redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as leave:
            code = int(leave.code or 0)
    # How far it is stands there where the machine is slow.
    errors = re.sub(r"(?m)^[0-9]+ of [0-9]+ files read\n", "", err.getvalue())
    return Printed(out.getvalue(), errors, code)


# --- what of it stands in a document ---------------------------------------------------------------------


def plain(text: str) -> str:
    """A text without what is this machine's or this version's."""
    for value, name in (
        (str(workplace()), "{place}"),
        (sys.executable, "{python}"),
        (f"muster {__version__}", "muster {version}"),
    ):
        text = text.replace(value, name)
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n")) + "\n"


def rounded(value: Any, digits: int) -> Any:
    """Data with figures of so many significant digits, and without empty fields."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if abs(value) > NOTHING else 0.0
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items() if each not in (None, "", [], {})}
    return [rounded(each, digits) for each in value] if isinstance(value, list | tuple) else value


def lines(value: Any, place: str = "") -> Iterator[str]:
    """Data as lines that a diff shows one by one: the place of a value, and the value."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from lines(each, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        for number, each in enumerate(value):
            yield from lines(each, f"{place}[{number}]")
    else:
        yield f"{place}: {json.dumps(value, ensure_ascii=False)}"


class _Text(HTMLParser):
    """The text of a page: a line for each block; cells apart; of a picture its label."""

    BLOCKS = frozenset((
        "p", "h1", "h2", "h3", "li", "tr", "div", "section", "header", "figure", "figcaption", "dl", "ul",
        "table", "pre", "summary", "details", "footer", "br",
    ))  # fmt: skip
    SILENT = frozenset(("style", "script", "svg"))

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.silent = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "svg" and given.get("aria-label"):
            self.parts.append(f"\n[{given['aria-label']}]\n")
        if tag == "a" and given.get("href"):
            self.parts.append(f"[{given['href']}] ")
        if tag == "mark":
            self.parts.append("<")
        self.silent += tag in self.SILENT
        if tag in self.BLOCKS:
            self.parts.append("\n")
        elif tag in ("td", "th", "dt", "dd"):
            self.parts.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "mark":
            self.parts.append(">")
        self.silent -= tag in self.SILENT
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(data)


SAME = "How to read this"  # begins what is the same on all pages


def text_of(html: str, *, whole: bool = True) -> str:
    """A page as text; `whole`: with what is the same on all pages."""
    text = "".join(_Text(html).parts)
    told = (re.sub(r"\s+", " ", line).strip() for line in text.split("\n"))
    kept = [line.removeprefix("| ") for line in told if line.strip(" |")]
    return "\n".join(kept if whole or SAME not in kept else kept[: kept.index(SAME)]) + "\n"


# --- the documents ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Documents:
    """Documents of one kind, in one file: `make(case)` is what the code says of a case now."""

    kind: str
    cases: tuple[str, ...]
    make: Callable[[str], str]

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.kind}.txt"

    def now(self, case: str) -> str:
        """A case's section as the code makes it."""
        made = plain(self.make(case))
        assert not re.search(f"^{HEAD}", made, re.MULTILINE), (
            f"{case}: a line begins as a section's head does"
        )
        return made

    def check(self, case: str) -> None:
        """Fail with the difference where the code says something else than the document."""
        held, now = sections(self.file).get(case), self.now(case)
        if held != now:
            difference = difflib.unified_diff(
                (held or "").splitlines(),
                now.splitlines(),
                f"{self.file.name}: {case}",
                "now",
                lineterm="",
                n=1,
            )
            shown = "\n".join(list(difference)[:60])
            pytest.fail(
                f"{shown}\n\nwhere that is right: python -m tests.golden.renew {self.kind}", pytrace=False
            )

    def renew(self) -> None:
        """Write what the code says now."""
        FOLDER.mkdir(exist_ok=True)
        self.file.write_text(
            "".join(f"{HEAD}{case}\n{self.now(case)}\n" for case in self.cases), encoding="utf-8"
        )


@lru_cache
def sections(file: Path) -> dict[str, str]:
    """The sections of a document by their heads."""
    text = "\n" + file.read_text(encoding="utf-8") if file.exists() else ""
    parts = [part.partition("\n") for part in text.split(f"\n{HEAD}")[1:]]
    return {name: body.rstrip("\n") + "\n" for name, _, body in parts}
