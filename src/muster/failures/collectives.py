"""Find the rank that waits in another collective than the others, by NCCL's watchdog and PyTorch's flight
recorder. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

MISMATCH = "collective_mismatch"  # in the table of failures
HINTS = (
    "WorkNCCL(", "ast enqueued", "missing ranks: ", "Culprit rank ", "monitoredBarrier", "Missing ranks:",
    "Stalled ranks:",
)  # fmt: skip
_MOST = 10_000  # ranks and groups that are kept
# ProcessGroupNCCL's log prefix: "[Rank 3]", "[PG 0 Rank 3]", "[PG ID 0 PG GUID 0(default_pg) Rank 3]". Of
# groups without a GUID only the default one is the same in all ranks.
_WHO = re.compile(r"\[(?:PG (?:ID )?(?P<group>\d+)(?: PG GUID (?P<guid>[^\]]*?))? )?Rank (?P<rank>\d{1,6})\]")
_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w+), NumelIn=(\d{1,18})")
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (\d{1,12})\b")
_MISSING = re.compile(r"missing ranks: \{?(\d{1,6})[}\]]")  # PyTorch's, and Horovod's
_STALLED = re.compile(r"(?:Missing|Stalled) ranks:\s*$")  # Horovod's, each in a line below
_LISTED = re.compile(r"(?:\[\d+,\d+\]<std\w+>: ?)?(\d{1,6})!?: \[")
_BARRIER = re.compile(r"\bRank (\d{1,6}) failed to pass monitoredBarrier")
_CULPRIT = re.compile(r"Culprit rank (\d{1,6}); Error type: (\w+)")
_UNEVEN = frozenset(("SEND", "RECV", "COALESCED"))  # operations that pair with others
_SIZED = frozenset(("ALLREDUCE", "_ALLREDUCE_SPARSE", "BROADCAST", "REDUCE"))  # of one size in all ranks


@dataclass(frozen=True)
class _Work:
    """The collective in which a rank waited when its time was over. `size`: elements that it gave."""

    number: int
    operation: str
    size: int

    def __str__(self) -> str:
        return f"{self.operation} of {self.size} elements (SeqNum {self.number})"

    def unlike(self, other: _Work) -> bool:
        """Return whether two ranks of a group cannot both be right."""
        if self.number != other.number or {self.operation, other.operation} & _UNEVEN:
            return False
        sizes = self.operation in _SIZED and self.size != other.size
        return self.operation != other.operation or sizes


@dataclass(frozen=True)
class Odd:
    """A rank that waits elsewhere than the others. `rank`: which; None: one of two, and not known which.
    `failure`: the failure's id, where the program certainly took different ways."""

    words: str
    rank: int | None = None
    failure: str | None = None


@dataclass
class Collectives:
    """The collectives in which ranks waited, by process group."""

    works: dict[str, dict[int, _Work]] = field(default_factory=dict)
    enqueued: dict[str, dict[int, int]] = field(default_factory=dict)
    reported: Odd | None = None  # by the flight recorder itself

    def line(self, text: str, rank: int | None, below: Sequence[str] = ()) -> None:
        """Read a line that has one of the HINTS. `rank`: the one that wrote it, where that is named before
        it."""
        if match := _MISSING.search(text):
            self.reported = Odd(f"rank {match[1]} did not come to a collective of the others", int(match[1]))
        elif _STALLED.match(text):
            listed = [int(each[1]) for each in takewhile(bool, map(_LISTED.match, below)) if each]
            if len(listed) == 1:
                words = f"rank {listed[0]} did not come to a collective of the others"
                self.reported = Odd(words, listed[0])
        elif match := _BARRIER.search(text):
            self.reported = Odd(f"rank {match[1]} did not come to a barrier of the others", int(match[1]))
        elif match := _CULPRIT.search(text):
            words = f"rank {match[1]} does not fit the others in a collective ({match[2]})"
            self.reported = self.reported or Odd(words, int(match[1]))
        elif (who := _WHO.search(text)) and (who["guid"] or who["group"] in (None, "0")):
            group = (who["guid"] or "0").removesuffix("(default_pg)")  # which some lines leave out
            number = int(who["rank"]) if rank is None else rank
            if work := _WORK.search(text):
                works = self.works.setdefault(group, {})
                if len(works) < _MOST:
                    works.setdefault(number, _Work(int(work[1]), work[2], int(work[3])))
            if last := _ENQUEUED.search(text):
                enqueued = self.enqueued.setdefault(group, {})
                if len(enqueued) < _MOST:
                    enqueued.setdefault(number, int(last[1]))

    def odd(self) -> Odd | None:
        """Return the rank that differs from the others; None: none does, or no line shows it."""
        return self.reported or next(self._differing(), None)

    def _differing(self) -> Iterator[Odd]:
        for group, works in self.works.items():
            common = Counter(works.values()).most_common()
            (usual, count), others = common[0], common[1:]
            for other, times in others:
                failure = MISMATCH if other.unlike(usual) else None
                alone = times == 1 and count > 1 and len(others) == 1
                if not alone and failure is None:
                    continue
                rank, first = (next(each for each in works if works[each] == work) for work in (other, usual))
                if alone:
                    yield Odd(f"rank {rank} waits in {other}, {count} others in {usual}", rank, failure)
                else:
                    yield Odd(f"rank {rank} waits in {other}, rank {first} in {usual}", None, failure)
            last = self.enqueued.get(group, {})
            behind = [each for each in last if last[each] < usual.number and each not in works]
            if not others and count > 1 and len(behind) == 1:
                words = f"rank {behind[0]} had come to collective {last[behind[0]]} only"
                yield Odd(f"{words}, {count} others wait in {usual}", behind[0])


def merged(parts: Iterable[Collectives]) -> Collectives:
    """Merge the collectives of several logs of one job."""
    whole = Collectives()
    for part in parts:
        whole.reported = whole.reported or part.reported
        for group, works in part.works.items():
            whole.works.setdefault(group, {}).update(works)
        for group, last in part.enqueued.items():
            whole.enqueued.setdefault(group, {}).update(last)
    return whole
