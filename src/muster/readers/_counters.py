"""Progress in logs of no known format: counters that grow from line to line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from muster.readers._frame import Frame

_WORD = r"(?:global[ _-]?step|step|iter(?:ation)?|epoch|(?:micro[ _-]?)?batch|update|round|episode)s?"
_COUNTER = re.compile(
    rf"(?<![A-Za-z]){_WORD}\b[\"']?[\s:=#\[(|]*(?P<after>\d[\d,]*(?:\.\d+)?)(?![\d.]*[eE]-)|"
    rf"(?<![\d.])(?P<before>\d[\d,]*)(?:st|nd|rd|th)? {_WORD}\b|"
    r"(?<![\d./])(?P<part>\d+)/\d+(?![\d/])(?=.*loss)|"
    r"(?<![\d.])(?P<bar>\d+)/\d+ \[\d+:\d",
    re.IGNORECASE,
)
# What speaks of the program's start, end and retries instead of its work: numbers grow there as well.
_OTHER = re.compile(
    r"error|exception|fail|waiting|retr(?:y|ies)|attempt|saving|saved|checkpoint|resum|restor|\b(?:down|re)?load|wandb:|"
    r"stopp|shut|kill|exit|abort|timed? ?out|traceback|oom\b|out of memory|skipping",
    re.IGNORECASE,
)
_LOSS = re.compile(r"loss", re.IGNORECASE)
_MOST = 64  # kinds of lines with counters
_EACH = 4  # counters of a line
# Lines of work that is done, in any words; and what says that the program ended well.
_WORK = re.compile(
    r"\d ?%|\b\d+/\d+\b|/s\b|loss|\b(?:processed|done|completed|finished|generated|evaluated|tokenized|wrote|"
    r"written|fetched|served|heartbeat|ok)\b",
    re.IGNORECASE,
)
_WHOSE = re.compile(
    r"\b(?:local_rank|rank|worker|pid|process|gpu|cuda|node|device|actor|host|thread|peer|trainer|port|frame|line)"
    r"\W{0,3}\d+|\d{4}[-/]\d\d[-/]\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?|0x[0-9a-f]+|\d+(?:\.\d+){2,}",
    re.IGNORECASE,
)
_WELL = re.compile(
    r"worker group successfully finished|\bexit(?:ed)?(?: with)?(?: exit)? (?:code|status)[ :=]*0\b|"
    r"\b[Tt]raining (?:is |has |run )?(?:been )?(?:complete|completed|finished|done)\b(?! with| but)|"
    r"\b[Ff]inished [Tt]raining\b|\bApplication shutdown complete\b|"
    r"\b(?:[Jj]ob|[Rr]un|[Tt]raining)(?: '[^']*')? succeeded\b|"
    r"^\s*Reason: +Completed\b|\[State Transition\] \w+ -> FINISHED\b|^Result\(.*\berror=None\b|"
    r"^Trial status: \d+ TERMINATED\s*$|\bReporting training SUCCESS\b|^EXIT_CODE=0\s*$|"
    r"^Successfully completed\.\s*$",
)
# The whole of a line that a program ends with, or what it is said by; and what begins something else.
_CLOSING = re.compile(
    r"(?:^|[\])|:>.-] |\bINFO )\W*(?:all )?(?:done|finished|completed?|success)\W*(?:$| (?:in|after|at) )|"
    r"`Trainer\.fit` stopped: `max_\w+=\S+` reached",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    r"\b(?:start(?:s|ed|ing)?|begin\w*|load(?:s|ing)|resum\w+|evaluating|running|saving|uploading|waiting|"
    r"fold|trial|phase|stage)\b|\d ?%",
    re.IGNORECASE,
)
_SOFTLY = re.compile(
    r"^\W*(?:all )?(?:done|finished|success)\b|\b(?:model|weights) saved\b|\bsuccessfully\b",
    re.IGNORECASE,
)
# A step and how many there shall be.
_PLACE = re.compile(
    r"(?<![A-Za-z])(?:global[ _-]?step|step|iter(?:ation)?)s?\b[\s:=#\[(|]*"
    r"(\d{1,12}) ?(?:/|of) ?(\d{1,12})\b(?!/)",
    re.IGNORECASE,
)
_FEW = 2  # lines of work
_REST = 5  # lines after the last step of a program that was killed
_LAST = 50  # lines that launchers and trackers still print after a program's word of its end
_GROWN = 3  # times that a kind of line has to grow


class Counters:
    """Marks progress wherever a step, an iteration or a batch has a higher number than before; only until a
    reader of a format finds steps."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.highest: dict[str, tuple[float, ...]] = {}  # by the kind of line

    @property
    def closed(self) -> bool:
        """Whether the log has a known format."""
        return self.frame.steps > 0 or self.frame.signs.finished

    def line(self, text: str) -> None:
        """Read a line."""
        numbers, kind = [], ""
        for match in _COUNTER.finditer(text):
            numbers.append(_number(match[match.lastgroup or 0]))
            kind = kind or re.sub(r"\d+", "", text[: match.start(match.lastgroup or 0)])[-40:]
            if len(numbers) == _EACH:
                break
        if not numbers or text[:1].isspace() or _OTHER.search(text):
            return
        now, last = tuple(numbers), self.highest.get(kind)
        if last is None and len(self.highest) >= _MOST:
            return
        self.highest[kind] = now
        if last is not None and now < last:
            self.frame.signs.restart()
        if now > last if last is not None else _LOSS.search(text):
            self.frame.signs.progress()


def _number(digits: str) -> float:
    return float(digits.replace(",", "")[:18])


def counts(line: str) -> bool:
    """Return whether a line counts steps."""
    return bool(_COUNTER.search(line)) and not _OTHER.search(line)


def ended_well(lines: Iterable[str]) -> bool:
    """Return whether one of these lines says that the program ended as it should."""
    return any(_WELL.search(line) for line in lines)


def closes(ends: Iterable[str]) -> bool:
    """Return whether a log's end says that the program ended as it should, and nothing was begun after that.
    `ends`: its last lines, the last one first."""
    written = (line for line in ends if line.strip() and not line.startswith("wandb:"))
    for number, line in enumerate(islice(written, _LAST)):
        if ended_well([line]) or (number == 0 and _CLOSING.search(line)):
            return True
        if _BEGUN.search(line) or counts(line):
            return False
    return False


def trained(ends: Iterable[str]) -> bool:
    """Return whether a log says that its training came to its end, and nothing was begun after that: in so
    many words, or by any word of an end after its last step. `ends`: its last lines, the last one first."""
    lines = list(islice(filter(str.strip, ends), _LAST))
    return closes(lines) and (ended_well(lines) or reached_last(lines))


def reached_last(ends: Iterable[str]) -> bool:
    """Return whether the last step that is told is the last of all. `ends`: as above."""
    place = next(filter(None, map(_PLACE.search, ends)), None)
    return place is not None and place[1] == place[2]


def stops_short(ends: Iterable[str]) -> tuple[int, int] | None:
    """Return the step at which a log breaks off, and the number of all; None: at none, or the next one to be
    printed would be beyond the last. `ends`: its lines, the last one first."""
    after: list[str] = []
    steps: list[int] = []
    total = 0
    for line in ends:
        match = _PLACE.search(line)
        if match is None:
            if not steps and line.strip():
                after.append(line)
            if len(after) > _REST:
                return None
            continue
        step, whole = int(match[1]), int(match[2])
        if steps and (whole != total or step > steps[-1]):
            break
        total = whole
        if not steps or step < steps[-1]:
            steps.append(step)
    if len(steps) < 2 or ended_well(after) or seems_done(after):
        return None
    every = steps[0] - steps[1]
    due = steps[0] + every + (steps[-1] != every)  # those that are counted from 0 have no line of the last
    return (steps[0], total) if due <= total else None


def seems_done(lines: Iterable[str]) -> bool:
    """Return whether one of these lines mentions a good end, as scripts do also when one of their programs
    failed."""
    return any(_SOFTLY.search(line) for line in lines)


def goes_on(lines: Iterable[str]) -> bool:
    """Return whether some of these lines report work that was done, and no failure."""
    return sum(bool(_WORK.search(line)) and not _OTHER.search(line) for line in lines) >= _FEW


def works_on(lines: Sequence[str]) -> bool:
    """Return whether lines of one kind repeat with higher numbers, as of a program at work. `lines`: the
    earliest first."""
    last: dict[str, tuple[float, ...]] = {}
    grown: dict[str, int] = {}
    for line in lines:
        if line[:1].isspace() or _OTHER.search(line) or not _WORK.search(line):
            continue
        bare = _WHOSE.sub("", line)
        kind = re.sub(r"\d+", "", bare)
        numbers = tuple(map(_number, re.findall(r"\d+", bare)[:_EACH]))
        if numbers and numbers > last.get(kind, numbers):
            grown[kind] = grown.get(kind, 0) + 1
            if grown[kind] == _GROWN:
                return True
        last[kind] = numbers
    return False
