"""A sign: a line that may tell why a job failed, and how much it explains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from muster.failures.launchers import CANCELLED_BY_SLURM, MPI_KILLED
from muster.failures.table import Blame, KnownFailure, Weight, known_failures

LONGEST = 300  # characters of a reason
# Exceptions that a mistake in a program raises, and nothing of its surroundings.
MISTAKE = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:Value|Type|Key|Attribute|Index|Name|Assertion|ZeroDivision|Overflow|"
    r"NotImplemented|UnboundLocal|Recursion)Error\b"
)
# What one of those says where something else than the program may be why: a part that another version of a
# package has, or what is around it; an assertion without words may be of that too.
_ELSEWHERE = re.compile(
    r"AssertionError\W*$|\bmodule '[\w.]+' has no attribute\b|"
    r"\bunexpected keyword argument\b|\b(?:cuda|gpus?|nccl|nvidia|hosts?|nodes?|network|connect\w*|"
    r"time[d -]*out|permission|versions?|install\w*|environment|cluster|server|token|port|"
    r"devices?|drivers?|disk|memory|mount\w*)\b",
    re.IGNORECASE,
)
# What an exception says that only tells where its cause is told.
POINTS = re.compile(
    r"\bTrials did not complete\b|\b[Cc]heck the print statements above\b|\blook up to see its traceback\b|"
    r"\b(?:[Ss]ee|[Ll]ook at|[Cc]heck) (?:the )?(?:\w+ )?"
    r"(?:errors?|exceptions?|stack ?trace|traceback|logs?|root cause)\b"
    r".{0,9}\b(?:above|for (?:the |more )?(?:root cause|details))\b"
)
ORDER: dict[Weight, int] = {weight: number for number, weight in enumerate(get_args(Weight))}
MET: tuple[Weight, ...] = ("cause", "exception", "symptom")  # what a program can meet and get over
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+")  # what differs from rank to rank in a message
_ALIKE_SO_FAR = 80  # characters in which messages are alike


@dataclass(frozen=True)
class Sign:
    """A line that may be the cause."""

    weight: Weight
    failure: str | None
    text: str
    host: str | None
    rank: int | None = None
    number: int | None = None  # of its line, from 1
    when: float | None = None  # seconds since 1970, by the clock of who wrote the log
    code: str | None = None  # an exception's: where in the program it was raised
    uncaught: bool = False  # its traceback begins where the program does, or torch's own hook printed it
    local_rank: int | None = None  # on its host, where torchrun's --tee says that
    own: bool = False  # its traceback ends in a line of the user's own program
    hooked: bool = False  # torch's own hook printed it: its process ended
    more: str = ""  # of its message: what the lines below say
    logged: bool = False  # a logger printed its traceback, which does not begin where the program does
    quoted: bool = False  # it may be of a text that a model wrote: then the training goes on

    @property
    def words(self) -> str:
        """Its whole message."""
        return f"{self.text} {self.more}".rstrip()

    @property
    def blame(self) -> Blame:
        """Who is to blame for an exception that has no entry: what a mistake alone raises, and in a line of
        the user's own program, is the program's; of others nobody knows."""
        mistake = self.own and MISTAKE.match(self.text) and not _ELSEWHERE.search(self.text)
        return "work" if mistake else "unknown"

    @property
    def entry(self) -> KnownFailure | None:
        """The table's entry, where it is one of its failures."""
        return known_failures().get(self.failure or "")

    @property
    def is_echo(self) -> bool:
        """Whether it only reports that something else, or another rank, has failed."""
        return self.entry is not None and self.entry.is_echo

    @property
    def final(self) -> bool:
        """Whether it surely ended a process."""
        return self.uncaught or self.weight in ("killed", "crash")

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler says that it ended the job: its time was over, or it was cancelled."""
        return self.weight == "limit" or (
            self.weight == "external" and bool(CANCELLED_BY_SLURM.search(self.text))
        )

    def follows(self, raised: Sign) -> bool:
        """Return whether it is a SIGKILL of which MPI's launcher gives account, that ended a process because
        of an exception which nothing caught before."""
        account = MPI_KILLED.search(self.text) if self.weight == "killed" else None
        sure = raised.uncaught and account is not None and bool(raised.own or account["all"])
        return sure and (raised.number or 0) < (self.number or 0)

    @property
    def way(self) -> tuple[Weight, str | None, str]:
        """What is the same of two that ended the same way: of an exception without an entry its class, and
        what it says without the names in it."""
        named = self.weight == "exception" and self.failure is None
        return self.weight, self.failure, _NAMES.sub("", self.text)[:_ALIKE_SO_FAR] if named else ""

    @property
    def points(self) -> bool:
        """Whether it is an exception that only tells where its cause is told."""
        return self.weight == "exception" and bool(POINTS.search(self.text))

    @property
    def order(self) -> tuple[int, bool]:
        """How little it explains."""
        return ORDER[self.weight], self.points


class LineSpot(Protocol):
    """The place of a line, and what follows from it."""

    @property
    def number(self) -> int | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def when(self) -> float | None: ...
    @property
    def code(self) -> str | None: ...
    @property
    def uncaught(self) -> bool: ...
    @property
    def local_rank(self) -> int | None: ...
    @property
    def own(self) -> bool: ...
    @property
    def hooked(self) -> bool: ...
    @property
    def below(self) -> Sequence[str]: ...
    @property
    def above(self) -> tuple[str, LineSpot] | None: ...
    @property
    def serving(self) -> bool: ...
    @property
    def innermost(self) -> str: ...
    @property
    def quoted(self) -> Literal["no", "perhaps", "yes"]: ...
    def further(self, text: str) -> Sequence[str]: ...
    @property
    def heading(self) -> str: ...


def shape_of(text: str, *hosts: str | None) -> str:
    """Return a reason without its numbers and hosts: the same line in another job's log has it too."""
    for host in filter(None, hosts):
        text = text.replace(host, "")
    return re.sub(r"\d+", "", shortened(text))


def order(weight: Weight) -> int:
    """Return how little a line of this weight explains."""
    return ORDER[weight]


def weight_of(failure: str | None) -> int:
    """Return how much a failure explains: a cause, before an exception (which has no name), before a symptom.
    """
    if failure is None:
        return ORDER["exception"]
    entry = known_failures().get(failure)
    weights = [phrase.weight for phrase in entry.says if phrase.of == "log"] if entry else []
    return ORDER[weights[0] if weights else "cause"]


def shortened(text: str) -> str:
    """Return a line as a reason: without blanks at its ends, and of a long one both ends, LONGEST in all."""
    line = " ".join(text.split())
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[: half - 3]} ... {line[2 - half :]}"
