"""The table of failures: how tools report them, who is to blame, why they happen and what helps. Pure.

`failures.json` has one entry per failure, in the order of trial: the first whose phrase fits a text claims
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from muster.core.errors import NO_ROOM, JobError

# Where a failure shows: the stages to a host's answer, then those of a job.
Phase = Literal[
    "name", "tcp", "host key", "login", "python",
    "submit", "launch", "init", "training", "checkpoint", "resume",
]  # fmt: skip
# host: the one that says it. peer: another one, which this one waited for. work: the recipe, its data or its
# program. setup: what all hosts share, such as the environment or the network's settings.
Blame = Literal["host", "peer", "work", "setup", "scheduler", "unknown", "nobody"]
# once: again as it is. changed: with the remedy. elsewhere: without the host. by cause: as what it echoes.
Retry = Literal["no", "once", "changed", "elsewhere", "by cause"]
# How much a line explains, the most first. A symptom says that something else has happened: it decides where
# nothing else does. A notice says nothing of how a job ends.
Weight = Literal[
    "cause", "scheduler", "limit", "killed", "external", "crash", "exception", "symptom", "exit", "notice"
]
# Where a phrase stands: in a line of a log, in the text of an error that a rank caught, on ssh's stderr.
Source = Literal["log", "error", "ssh"]


@dataclass(frozen=True)
class Phrase:
    """A tool's words for a failure.

    `example`: as it was really printed. `hint`: words in every line that the pattern fits, so that most lines
    need no expression. `problem` and `remedy`: more specific than those of its entry.
    """

    pattern: str
    example: str
    hint: str = ""
    of: Source = "log"
    weight: Weight = "cause"
    problem: str = ""
    remedy: str = ""

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Compiled at its first use: most never are."""
        return re.compile(self.pattern)


@dataclass(frozen=True)
class KnownFailure:
    """An entry. `shared`: many hosts may have it for one cause; else it is a fact about each.

    `proof`: an expression for what no program can bring about, and a host's hardware alone can. `check`: the
    one of `muster check` that sees it before the start. `remedy` may have {host} in it.
    """

    id: str
    phase: Phase
    blame: Blame
    retry: Retry
    cause: str
    remedy: str
    source: str
    says: tuple[Phrase, ...]
    shared: bool = True
    proof: str | None = None
    check: str | None = None

    @property
    def is_echo(self) -> bool:
        """Whether it only follows from the failure of something else, or of another rank."""
        return self.blame == "peer" or self.retry == "by cause"

    def remedy_on(self, host: str | None) -> str:
        """Return the remedy as it is shown to people. `host`: where it failed; None: not known."""
        return self.remedy.replace("{host}", host or "HOST")


class Recognised(NamedTuple):
    """The entry and the phrase that fit a text."""

    failure: KnownFailure
    phrase: Phrase
    line: str

    @property
    def remedy(self) -> str:
        """The remedy for people who see on which host it was."""
        return self.phrase.remedy.replace("{host}", "HOST")


SHARED_GPU = "gpu_shared"
_UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_PROCESS = re.compile(r"Process \d+ has ([\d.]+) ([KMG]iB) memory in use")
_BESIDES = 0.25  # of a GPU, which a process has besides what PyTorch allocates: its context, NCCL, libraries
_MOST_OF_OTHERS = 0.1  # of a GPU, which a process's own context takes as well


def others_hold(text: str) -> float | None:
    """Return the bytes of a GPU that other processes hold, by PyTorch's message about a full one; None: few,
    or not known."""

    def told(pattern: str) -> float | None:
        match = re.search(pattern.replace("#", r"([\d.]+) ([KMG]iB)"), text)
        return float(match[1]) * _UNITS[match[2]] if match else None

    total = told("total capacity of #") or told("# total capacity")
    free = told("of which # is free") or told("# free")
    own = told("this process has # memory in use") or told("# reserved in total by PyTorch")
    if own is None and (own := told("# is allocated by PyTorch")) is not None:
        # In a container the driver knows this process by another number: it is the least that fits.
        own += told("# is reserved by PyTorch") or 0.0
        named = (float(n) * _UNITS[unit] for n, unit in _PROCESS.findall(text))
        own = min((each for each in named if own <= each <= own + _BESIDES * (total or 0.0)), default=own)
    if total is None or free is None or own is None:
        return None
    held = total - free - own
    return held if held > _MOST_OF_OTHERS * total else None


@cache
def known_failures() -> Mapping[str, KnownFailure]:
    """Return all entries by id, in the order of trial."""
    text = resources.files("muster.failures").joinpath("failures.json").read_text(encoding="utf-8")
    entries = [
        KnownFailure(**{**entry, "says": tuple(Phrase(**phrase) for phrase in entry["says"])})
        for entry in json.loads(text)
    ]
    return {entry.id: entry for entry in entries}


@cache
def phrases(*sources: Source) -> tuple[tuple[KnownFailure, Phrase], ...]:
    """Return all phrases of these sources, in the order of trial, each with its remedy or else its entry's.
    """
    return tuple(
        (entry, phrase if phrase.remedy else replace(phrase, remedy=entry.remedy))
        for entry in known_failures().values()
        for phrase in entry.says
        if phrase.of in sources
    )


def find(text: str, *sources: Source) -> Recognised | None:
    """Return the first failure that claims a text; None: no known one. `sources`: a line of a log by default.
    """
    for entry, phrase in phrases(*(sources or ("log",))):
        if phrase.hint in text and phrase.expression.search(text):
            if entry.id == SHARED_GPU and not others_hold(text):
                continue
            return Recognised(entry, phrase, text)
    return None


def id_of(text: str, *sources: Source) -> str | None:
    """Return the id of the failure that claims a text, as `find` does."""
    match = find(text, *sources)
    return match.failure.id if match else None


def find_ssh(lines: Sequence[str]) -> Recognised | None:
    """Return the first phrase of ssh's with which any line begins."""
    return next(
        (
            Recognised(entry, phrase, line)
            for entry, phrase in phrases("ssh")
            for line in lines
            if phrase.expression.match(line)
        ),
        None,
    )


def disk_full(error: OSError, where: Path | str | None = None) -> JobError | None:
    """Return the error of a write that found no room; None: it is another one."""
    if error.errno not in NO_ROOM:
        return None
    entry = known_failures()["disk_full"]
    where = str(where or error.filename or "") or None
    return JobError(f"the disk is full: {error.strerror}", where=where, hint=entry.remedy, failure=entry.id)


def blame_of(failure: str | None) -> Blame:
    """Return who is to blame, by a failure's id."""
    entry = known_failures().get(failure or "")
    return entry.blame if entry else "unknown"


def why_lost(words: str) -> str:
    """Return the id of why a host cannot be reached, by the last message."""
    match = find(words)
    return match.failure.id if match and match.failure.blame == "host" else "ssh_unreachable"


def is_hardware(failure: str | None, text: str | None) -> bool:
    """Return whether a line reports a host's broken hardware, and nothing else."""
    entry = known_failures().get(failure or "")
    return bool(entry and entry.proof and re.search(entry.proof, text or ""))
