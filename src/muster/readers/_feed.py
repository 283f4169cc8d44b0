"""Feed a file's lines to its readers, sifted by the words in them. Pure."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, takewhile
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import OnErrorOmit, StringConstraints, TypeAdapter

from muster.core.errors import BrokenPluginError
from muster.core.registry import broken, fits, guarded, load_plugin, package_of, plugin_names, warn
from muster.failures.launchers import RANK_MARK, SENDER
from muster.failures.sign import Sign
from muster.failures.table import find
from muster.failures.wording import (
    CHAINED,
    NOTHING_CAME,
    complains,
    follows,
    goes_on,
    has_bare_exception,
    is_exception,
    is_logged,
    outside_asides,
)
from muster.failures.wording import HINTS as SIGN_HINTS
from muster.readers._counters import NEXT_RUN, Counters, counts, ended_well
from muster.readers._frame import FOR_FACTS, FOR_READERS, FOR_SIGNS, Frame, own_stamp, uncoloured
from muster.readers._frame import HINTS as FRAME_HINTS
from muster.readers._paths import is_host
from muster.readers.base import LineReader, Reading
from muster.store.logfiles import Lines

PACKAGE = "muster.readers"
ENOUGH = 100  # lines before a sign, and before a block's end, that show whether a job goes on
Made = Callable[[Frame], LineReader]
CLOSE = 10  # lines before a sign, or at a log's end, in which a program says why it ends
_APART = 3  # lines between two in which a program says why it ends: it is another one
_FEW = 8  # lines before a block's end that are enough where nothing tells of a failure
_BACK = 200  # lines before it that are looked at
# torch's own mark before what a rank raises; torchrun's redirects (a rank of its host); mpirun; srun --label,
# unlike Rust's list of what led to an error.
_RANK = re.compile(
    r"(?! {4}\d: |\S*sh: \d+: )(?:\S+: )?"
    r"(?:\[rank(\d{1,9})\]:|\[(?:prterun-\S+@)?\d+,(\d{1,9})\]<std|\s*(\d{1,6}): )"
)
_PREFIX = re.compile(
    r"(?:\S+: )?(?:\[rank\d+\]:|\[(?:prterun-\S+@)?\d+,\d+\]<std\w+>:|\[default\d+\]:|\s*\d{1,6}: )"
)
_LOCAL = re.compile(r"(?:\S+: )?\[default(\d{1,9})\]:")  # torchrun's --tee and --redirects
_FRAME = re.compile(r"  File \"([^\"]+)\", line (\d+)(?:, in (.+))?")
# What torch's own sys.excepthook puts before a line, whoever else does so before it: programs' and launchers'
# own marks have no blank there.
_HOOK = re.compile(r"(?:\S+: |\[\w+\]:)?\[rank\d{1,9}\]: [^\W\d]")
_SOURCE = re.compile(r"File \"[^\"]+\", line \d+, in ")
_BEGINS = ("<module>", "_run_module_as_main")  # where a program does
_BUFFER = 8192  # bytes that Python holds back of what it prints to a file or a pipe
_NAMED = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?:_?[A-Z]|(?<=\.)[a-z])\w*(?:: .*)?"
)  # an exception's class, and what it says
# What a program prints around a text that a model wrote, or right before it; and how long such a text is.
_SAMPLE = re.compile(
    r"\s*[-=#*~<>_]{2,}\s*(?P<end>(?:end|/)\b)?[^:]*\b(?:samples?|generat(?:ed|ions?)|completions?|prompts?|"
    r"outputs?|responses?)\b[^:]*$",
    re.IGNORECASE,
)
_SPOKEN = re.compile(
    r"\W*(?:completion|answer|response|generated|generation|sample|prediction|assistant|output)s?"
    r"(?: text)?[\s#\d\[\]()]*: *\S",
    re.IGNORECASE,
)
_LONG = 20  # lines
_TRACED = re.compile(r"[\w.]*(?:Traceback|StackTrace)\b")  # how JAX says that it left frames out
_VLLM = re.compile(r"\b(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w/]+\.py:\d+\] ")  # its logger
_OTHERS = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen ",
    ".pyx",
    ".pxi",
)  # no line of the user's


@functools.cache
def _readers() -> tuple[tuple[tuple[str, ...], Made], ...]:
    """Return (hints, reader) of every format, by name."""
    readers = []
    for name in sorted(plugin_names(PACKAGE)):
        try:
            module = load_plugin(PACKAGE, name)
            readers.append(guarded_reader(name, module))
        except BrokenPluginError as error:
            warn(str(error))
    return tuple(readers)


@functools.cache
def _sieve() -> KeywordFilter:
    """Return a filter for the frame (FOR_FACTS, FOR_SIGNS), then for each reader that does not want every
    line."""
    some = [hints for hints, _ in _readers() if "" not in hints]
    return KeywordFilter([FRAME_HINTS, SIGN_HINTS, *some])


class LineFeed:
    """The readers of one job, and their lines."""

    def __init__(self, frame: Frame | None = None, *, brief: bool = False) -> None:
        self.brief = brief
        self.frame = frame or Frame()
        self.ends: list[Sequence[str]] = []  # its last blocks: of three in a row two can be short
        self.counters = Counters(self.frame)
        self.made = [(hints, make(self.frame)) for hints, make in _readers()]

    def again(self) -> LineFeed:
        """Return a feed for another job of the same file."""
        return LineFeed(Frame(self.frame.later, self.frame.user), brief=self.brief)

    def readings(self) -> list[Reading]:
        """Return all readings."""
        return [reading for _, reader in self.made for reading in reader.readings()]

    def faults(self) -> list[str]:
        """Return why readers of third parties were left out."""
        made = (reader for _, reader in self.made if isinstance(reader, GuardedReader))
        return [f"{reader.fault}: it is left out" for reader in made if reader.fault]

    def take(self, blocks: Iterator[Sequence[str]]) -> Iterator[Sequence[str]] | None:
        """Give every line of interest to the frame, and to the readers that want it. Return what is left,
        where another job begins."""
        frame, sieve = self.frame, _sieve()
        whole = [reader for hints, reader in self.made if "" in hints]
        some = [(hints, reader) for hints, reader in self.made if "" not in hints]
        bits = [(1 << number, hints, reader) for number, (hints, reader) in enumerate(some, FOR_READERS)]
        before: Sequence[str] = ()
        for block in blocks:
            fed, counted, first = 0, 0, block.first if isinstance(block, Lines) else 0
            sieved = sieve.telling(block)
            # The first block has the settings; a short one may be the last, which has the end.
            if self.brief and before and len(sieved) > ENOUGH:
                sieved = _thinned(sieved)
            for place, telling, shape in sieved:
                line, number = block[place], first + place
                signs = frame.signs
                if telling == FOR_SIGNS and (
                    signs.again(line, shape, number) or signs.idle(line, shape, number)
                ):
                    continue
                if telling & FOR_FACTS and frame.another(line):
                    own, rest = _cut(block, place)
                    self.ends = [*self.ends[-2:], own]
                    return chain([rest], blocks)
                if telling & FOR_SIGNS:
                    self._count(block, counted, place, before)
                    counted = place
                frame.signs.spot = LinePlace(block, place, before)
                whole = _feed_whole(whole, block[fed : place + 1]) if whole else whole
                fed = place + 1
                text = frame.line(line, telling, shape)
                ended = frame.signs.finished
                for bit, hints, reader in bits:
                    # A prefix or a colour that was taken off can have hidden a word, or had one in it.
                    wanted = telling & bit or "\x1b" in line
                    if wanted and not reader.closed and any(hint in text for hint in hints):
                        frame.content = hash((frame.content, text))
                        reader.line(text)
                if frame.signs.finished and not ended:
                    self._count(block, counted, place, before, ended)
                    counted = place
            ended = frame.signs.finished
            whole = _feed_whole(whole, block[fed:]) if whole else whole
            self._count(block, counted, len(block), before, ended)
            before = block
            self.ends = [*self.ends[-2:], block]
        return None

    def _count(
        self, block: Sequence[str], begin: int, end: int, before: Sequence[str], ended: bool = True
    ) -> None:
        """Look for progress in lines of no known format: in those before a sign, before a block's end, and
        after what ended a process, since they may be another run's. `ended`: whether the training was over
        before them; a line after them may have said so."""
        signs = self.frame.signs
        pending = [*signs.now.values(), *signs.earlier.values()]
        near = ENOUGH if pending or end < len(block) else _FEW
        middle = min(begin + ENOUGH, end) if any(each.final for each in pending) else begin
        after = signs.finished and not ended and not self.frame.steps
        signs.finished = signs.finished and not after
        for place in chain(range(begin, middle), range(max(middle, end - near), end)):
            if self.counters.closed:
                break
            signs.spot = LinePlace(block, place, before)
            self.counters.line(self.frame.bare(block[place]))
        if after:
            signs.spot = LinePlace(block, end, before)
            self.frame.finish()

    def backwards(self) -> Iterator[str]:
        """Yield the job's last lines, the last one first."""
        return (line for block in reversed(self.ends) for line in reversed(block))

    def complaint(self, most: int) -> Sign | None:
        """Return the line in which the last program says why it ends: the first of those that stand together
        among so many at the log's end; None: there is none, or steps follow."""
        first, after = None, 0
        for number, (spot, text) in enumerate(islice(self._last(), most + _APART)):
            if complains(text) and (first or number < most):
                first, after = Sign("exit", None, text.strip(), None, spot.rank, spot.number), number
            elif counts(text) or (first and number - after == _APART):
                break
        return first

    def late_complaint(self) -> Sign | None:
        """Return the first line, among the last CLOSE ones, in which a program that was begun after a
        training's good end says why it ends; None: there is none, or no such end."""
        end, first = self.frame.signs.last_end, None
        for number, (spot, text) in enumerate(islice(self._last(), ENOUGH)):
            if ended_well([text]) or (end and (spot.number or 0) <= end):
                return first
            if end is None and counts(text):
                break
            if number < CLOSE and complains(text):
                first = Sign("exit", None, text.strip(), None, spot.rank, spot.number)
        return None

    def _last(self) -> Iterator[tuple[LinePlace, str]]:
        """Yield the place and the text of the job's last lines that are not blank, the last one first."""
        places = (LinePlace(block, place) for block in self.ends[::-1] for place in range(len(block))[::-1])
        spots = (spot for spot in places if spot.block[spot.place].strip())
        return ((spot, self.frame.bare(spot.block[spot.place])) for spot in spots)

    def raised(self) -> Sign | None:
        """Return the exception that ended the job, of a name that the sieve does not know, or of which no
        traceback is there; None: there is none, or a line is more specific."""
        signs = self.frame.signs
        best = signs.decisive()
        if best is None and not signs.raising and (last := self._bare_exception()):
            return last
        if not signs.raising or (best and best.weight not in ("symptom", "exit", "killed")):
            return None
        sign = last_exception(self.frame, self.ends)
        return None if sign and best and best.weight == "killed" and not best.follows(sign) else sign

    def _bare_exception(self) -> Sign | None:
        """Return the exception at which the log of a training ends though no traceback is above it; None: its
        last line is none, or an aside."""
        trained = self.frame.steps and not self.frame.signs.finished
        lines = list(islice(self._last(), _FEW)) if trained else []
        if not lines or lines[0][1] not in outside_asides(text for _, text in lines[::-1]):
            return None
        spot, text = lines[0]
        head, _, rest = text.partition(": ")
        host = head if is_exception(rest) and is_host(head) else None
        text = rest if host else text
        entry = find(text)
        if not has_bare_exception([text]) or (entry and entry.phrase.weight == "symptom"):
            return None
        return Sign("exception", entry.failure.id if entry else None, text, host, spot.rank, spot.number)

    def overtaken(self, best: Sign | None) -> Sign | None:
        """Return the last exception that steps follow which may have been printed before it: two streams, or
        what a program that ends has left in its buffer. None: there is none, or another sign says why."""
        signs, over = self.frame.signs, self.frame.signs.got_over
        silent = best is None or (over and signs.ended_by(over) and (best.weight == "exit" or best.is_echo))
        return over if over and silent and self._may_be_late(over.text) else None

    def _may_be_late(self, text: str) -> bool:
        """Return whether what follows an exception is no more than a buffer, and nothing caught it."""
        left, ends = _BUFFER, (uncoloured(line) for line in self.backwards())
        for line in ends:
            left -= len(line) + 1
            if left < 0:
                return False
            if text in line:
                above = takewhile(lambda each: "Traceback (most recent call last)" not in each, ends)
                frames = [each for each in islice(above, _BACK) if _SOURCE.search(each)]
                return bool(frames) and frames[-1].rstrip().endswith(_BEGINS)
        return False


def _cut(block: Sequence[str], place: int) -> tuple[Sequence[str], Sequence[str]]:
    """Return a block's lines before and from an index."""
    if isinstance(block, Lines):
        return block.until(place), block.since(place)
    return block[:place], block[place:]


def _thinned(sieved: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the lines without most of those that only show progress: how often it was marked does not
    matter. The first ones after a sign may show that the steps are counted anew."""
    signs = [number for number, (_, telling, _) in enumerate(sieved) if telling & FOR_SIGNS]
    if len(sieved) < len(signs) + ENOUGH:
        return list(sieved)
    kept: list[tuple[int, int, str]] = []
    begin = 0
    for end in [*signs, len(sieved)]:
        kept += sieved[begin : min(begin + ENOUGH, end + 1)]
        kept += sieved[max(begin + ENOUGH, end - ENOUGH) : end + 1]
        begin = end + 1
    return kept


def _feed_whole(readers: Sequence[LineReader], lines: Sequence[str]) -> list[LineReader]:
    """Give these lines to readers of every line. Return those that want more."""
    for reader in readers:
        for line in lines:
            if reader.closed:
                break
            reader.line(line)
    return [reader for reader in readers if not reader.closed]


def sign_of(blocks: Iterable[Sequence[str]]) -> Sign | None:
    """Return the line that explains most how the last job of a log ended; None: there is none. `blocks`: its
    lines, some at a time, read once."""
    feed = LineFeed()
    rest = feed.take(iter(blocks))
    while rest is not None:  # another job begins in the same log
        feed = feed.again()
        rest = feed.take(rest)
    best = feed.raised() or feed.frame.signs.decisive()
    late = feed.overtaken(best)
    return late if late and feed.frame.signs.ended_by(late) else best


# ----------------------------------------------------------------------------------------------------
# Readers of third parties: one that fails is left out, and the others go on.


def guarded_reader(name: str, module: ModuleType) -> tuple[tuple[str, ...], Made]:
    """Return hints and a function that makes the reader of a file. Raises BrokenPluginError where a third
    party's HINTS are no texts."""
    if package_of(PACKAGE, name) is None:
        return module.HINTS, module.Reader
    if not fits(module.HINTS, tuple[str, ...]):
        raise broken(PACKAGE, name, "its HINTS are no tuple of texts", module.__file__)
    return tuple(module.HINTS), lambda frame: GuardedReader(name, module, frame)


def _is_sound(reading: Reading) -> bool:
    """Return whether each field is of its type, and each number finite."""
    values = [(getattr(reading, name), kind) for name, kind in get_type_hints(Reading).items()]
    return all(fits(value, kind) for value, kind in values) and all(
        math.isfinite(value) for value, _ in values if isinstance(value, float)
    )


class GuardedReader:
    """A third party's reader of one file, up to its first failure."""

    def __init__(self, name: str, module: ModuleType, frame: Frame) -> None:
        self.name, self.place = name, module.__file__
        self.fault = ""  # why it was left out
        self.reader = self._guarded(lambda: module.Reader(frame))

    @property
    def closed(self) -> bool:
        """Whether it needs no more lines; a reader may leave that out."""
        return self.reader is None or bool(getattr(self.reader, "closed", False))

    def line(self, text: str) -> None:
        """Give it a line."""
        if self.reader is not None:
            self._guarded(lambda: self.reader.line(text))

    def readings(self) -> list[Reading]:
        """Return its readings, if they are of the right type."""
        answer = self._guarded(lambda: self.reader.readings()) if self.reader is not None else None
        if answer is not None and not (fits(answer, list[Reading]) and all(map(_is_sound, answer))):
            what = f"readings answers {answer!r:.60}, no list of sound Readings"
            self._leave_out(broken(PACKAGE, self.name, what, self.place))
            return []
        return list(answer or ())

    def __deepcopy__(self, memo: dict[int, Any]) -> GuardedReader:
        """Return a copy that is asked for readings while the reader goes on."""
        other = copy.copy(self)
        other.reader = self._guarded(lambda: copy.deepcopy(self.reader, memo))
        return other

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            with guarded(PACKAGE, self.name, "failed"):
                return call()
        except BrokenPluginError as error:
            self._leave_out(error)
            return None

    def _leave_out(self, error: BrokenPluginError) -> None:
        self.reader, self.fault = None, str(error)
        warn(self.fault)


# ----------------------------------------------------------------------------------------------------
# Where a line stands, and what the lines around it tell: its number, rank, time, and the program's own line
# behind an exception.


class LinePlace(NamedTuple):
    """A line, by its index in a block of lines. `before`: the block before that."""

    block: Sequence[str]
    place: int
    before: Sequence[str] = ()

    @property
    def number(self) -> int | None:
        """The number of the line, from 1; None: its source does not count lines."""
        return self.block.number(self.place) if isinstance(self.block, Lines) else None

    @property
    def rank(self) -> int | None:
        """The rank that wrote the line, where it is named."""
        match = _RANK.match(_sent(self.block[self.place])[1])
        return next((int(group) for group in match.groups() if group), None) if match else None

    @property
    def local_rank(self) -> int | None:
        """The local rank that wrote the line, where only that is named."""
        match = _LOCAL.match(_sent(self.block[self.place])[1])
        return int(match[1]) if match else None

    @property
    def when(self) -> float | None:
        """Its time stamp, or the last one before it."""
        return next((stamp for line in self._back() if (stamp := own_stamp(line)) is not None), None)

    @property
    def code(self) -> str | None:
        """The innermost line of the user's program in the traceback that ends here, or else of any."""
        frames = self._frames()
        own = next((each for each in frames if not any(part in each[1] for part in _OTHERS)), None)
        best = own or next(iter(frames), None)
        return f"{best[1]}:{best[2]}" + (f" in {best[3].strip()}" if best[3] else "") if best else None

    @property
    def uncaught(self) -> bool:
        """Whether nothing caught the exception of the traceback that ends here: that begins where a program
        does, or a shell goes on right below it."""
        frames, below = self._frames(), next(filter(str.strip, self.below), "")
        begins = bool(frames) and (frames[-1][3] or "").strip() in _BEGINS
        return begins or self.hooked or (bool(frames) and bool(NEXT_RUN.match(below)))

    @property
    def hooked(self) -> bool:
        """Whether torch's own hook printed the line: the exception ended its process."""
        return bool(_HOOK.match(_sent(self.block[self.place])[1]))

    @property
    def own(self) -> bool:
        """Whether the traceback that ends here ends in a line of the user's own program."""
        innermost = next(iter(self._frames()), None)
        return innermost is not None and not any(part in innermost[1] for part in _OTHERS)

    @property
    def heading(self) -> str:
        """The line right above the traceback that ends here, or above all that led to it, by the same sender;
        empty: there is none."""
        prefix, begun = _prefix(self.block[self.place]), False
        for line in filter(str.strip, self._back()):
            if _prefix(line) != prefix:
                continue
            if begun and not CHAINED.search(line):
                return uncoloured(line)
            begun = "Traceback (most recent call last)" in line
        return ""

    @property
    def serving(self) -> bool:
        """Whether vLLM wrote the line, or its traceback goes through vLLM."""
        own = _VLLM.search(self.block[self.place])
        return bool(own) or any("/vllm/" in each[1] for each in self._frames())

    @property
    def innermost(self) -> str:
        """The innermost frame of the traceback that ends here: its file, its function and its line of code;
        empty: there is none."""
        innermost = next(self._framed(), None)
        return "" if innermost is None else f"{innermost[0][1]} {innermost[0][3] or ''}: {innermost[1]}"

    @property
    def quoted(self) -> Literal["no", "perhaps", "yes"]:
        """Whether a model wrote what stands here: a mark above says that a sample of text begins. `yes`: and
        one below that it ends there; `perhaps`: no end is near, or a traceback is right below such words."""
        begun = False
        for line in map(_unprefixed, filter(str.strip, islice(self._back(), 1, _LONG))):
            if mark := _SAMPLE.match(line):
                ends = (match for each in self.below if (match := _SAMPLE.match(_unprefixed(each))))
                return "no" if mark["end"] else "yes" if any(match["end"] for match in ends) else "perhaps"
            if begun and _SPOKEN.match(line):
                return "perhaps"
            if counts(line):
                return "no"
            begun = "Traceback (most recent call last)" in line
        return "no"

    def further(self, text: str) -> Sequence[str]:
        """Return the next lines of the same sender, without what stands there before `text`, which is the end
        of this one."""
        line, prefix = _unprefixed(self.block[self.place]), _prefix(self.block[self.place])
        head = line.partition(text)[0] if text in line else ""
        lines = [_unprefixed(line) for line in self.below if _prefix(line) == prefix]
        return [line[len(head) :] for line in lines if line.startswith(head.rstrip())]

    @property
    def below(self) -> Sequence[str]:
        """The next lines, as far as they are of the same block."""
        return self.block[self.place + 1 : self.place + 1 + _FEW]

    @property
    def above(self) -> tuple[str, LinePlace] | None:
        """The last line of the traceback above this one, and its place; None where the sieve lets it through
        or it has no words, as a StopIteration."""
        prefix, last = _prefix(self.block[self.place]), None
        here = (self._replace(place=place) for place in range(self.place - 1, -1, -1))
        back = (LinePlace(self.before, place) for place in range(len(self.before) - 1, -1, -1))
        for spot in islice(chain(here, back), _BACK):
            line = spot.block[spot.place]
            if _prefix(line) != prefix or not (text := _unprefixed(line)).strip():
                continue
            if not text[0].isspace():
                last = text, spot
            elif last:
                break
        return last if last and ": " in last[0] and _is_missed(last[0]) else None

    def _frames(self) -> list[re.Match[str]]:
        """Return the frames of the traceback that ends here, the innermost first."""
        return [frame for frame, _ in self._framed()]

    def _framed(self) -> Iterator[tuple[re.Match[str], str]]:
        """Yield the frames of the traceback that ends here, the innermost first, each with its line of code,
        which is the line below."""
        prefix, below, task = _prefix(self.block[self.place]), "", False
        for line in self._back():
            if _prefix(line) != prefix:
                continue
            if match := _FRAME.search(uncoloured(line)):
                yield match, below
            elif "Traceback (most recent call last)" in uncoloured(line) or (
                task and not _unprefixed(line)[:1].isspace()
            ):
                return
            task = task or "RayTaskError(" in line  # whose traceback has no other first line
            below = line

    def _back(self) -> Iterator[str]:
        """Yield this line and those before it, the last one first."""
        here = (self.block[each] for each in range(self.place, -1, -1))
        return islice(chain(here, reversed(self.before)), _BACK)


def last_exception(frame: Frame, blocks: Sequence[Sequence[str]]) -> Sign | None:
    """Return the exception at which the last traceback of these lines ends, whatever its name is, and that is
    no echo of another rank; None: there is none, or the sieve of words lets it through, which misses
    `StopIteration` and classes of users."""
    sign, waits, prefix = None, False, ""
    echo = linked = False  # whether it lost another rank, and what follows was raised because of that
    for number, block in enumerate(blocks):
        for place, line in enumerate(block):
            if "Traceback (most recent call last)" in line:
                waits, prefix, echo, linked = True, _prefix(line), echo and linked, False
            elif follows(line):
                linked = True
                sign = None if sign and NOTHING_CAME.match(sign.text) else sign
            elif waits and _prefix(line) == prefix:
                text = RANK_MARK.sub("", frame.bare(line))
                if not text.strip() or text[0].isspace():
                    continue
                waits, entry = False, find(text)
                spot = LinePlace(block, place, blocks[number - 1] if number else ())
                heading = spot.heading
                logged = is_logged(heading) and not spot.uncaught
                if entry is not None and entry.phrase.weight == "symptom":
                    echo = entry.failure.is_echo
                    continue
                if logged and goes_on(heading):
                    continue
                sign = None
                if _is_missed(text) and not echo:
                    place_of = (spot.rank, spot.number, spot.when, spot.code, spot.uncaught, spot.local_rank)
                    sign = Sign(
                        "exception", None, text, None, *place_of, spot.own, spot.hooked, logged=logged
                    )
    return sign


def _is_missed(text: str) -> bool:
    """Return whether a traceback's last line has a name that the sieve of words misses."""
    named = _NAMED.fullmatch(text.strip())
    return bool(named) and not is_exception(text) and not _TRACED.match(text) and find(text) is None


def _unprefixed(line: str) -> str:
    text = _sent(line)[1]
    match = _PREFIX.match(text)
    return text[match.end() :].removeprefix(" ") if match else text


def _sent(line: str) -> tuple[str, str]:
    """Return the sender of a line, by the prefix of kubectl, Ray or syslog; and the rest."""
    text = uncoloured(line)
    match = SENDER.match(text)
    return (" ".join(filter(None, match.groups())), text[match.end() :]) if match else ("", text)


def _prefix(line: str) -> str:
    sender, text = _sent(line)
    match = _PREFIX.match(text)
    return sender + (match[0].strip() if match else "")


# ----------------------------------------------------------------------------------------------------
# Which lines say something to whom, by words that stand in them. Pure.
#
# Most lines of a log differ from one that was seen before in their digits alone: those are known by what is
# left without them, their shape. So what the sieve says is that a line *may* have one of the words; whoever
# gets it looks again.

_DIGITS = b"0123456789"
_MOST = 4 << 20  # bytes of shapes that are remembered; then it begins anew
_EACH = 64  # bytes that remembering one takes besides


def _with_any(words: Iterable[str]) -> Callable[[list[str]], list[str]]:
    """Return a function that picks the lines with one of the words. Pydantic's regular expressions, which are
    Rust's, look for two hundred words as fast as for one; Python's, and a search for each, take twenty times
    as long."""
    pattern = "|".join(map(re.escape, words))
    return TypeAdapter(list[OnErrorOmit[Annotated[str, StringConstraints(pattern=pattern)]]]).validate_python


class KeywordFilter:
    """Tells which lines may have a word of which group (group n has bit n). An empty word is in every line.
    It caches, so one is to be kept for all files."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        bare = [{_shapes([word])[0] for word in words} for words in groups]
        self._every = sum(1 << number for number, words in enumerate(bare) if "" in words)
        self._any = _with_any({word for words in bare for word in words} - {""})
        self._groups = [(1 << number, _with_any(words)) for number, words in enumerate(bare)]
        self._known: dict[str, int] = {}
        self._size = 0

    def telling(self, lines: Sequence[str]) -> list[tuple[int, int, str]]:
        """Return (index, bits, shape) of the lines that may have a word of any group. No line has a line end
        in it."""
        shapes = _shapes(lines)
        if new := list(set(shapes).difference(self._known)):
            if self._size > _MOST:
                self._known.clear()
                self._size, new = 0, list(set(shapes))
            self._learn(new)
        bits = [self._known[shape] for shape in shapes]
        return [(place, bits[place], shapes[place]) for place in compress(range(len(bits)), bits)]

    def _learn(self, shapes: list[str]) -> None:
        self._known.update(dict.fromkeys(shapes, self._every))
        telling = self._any(shapes)
        for bit, with_any in self._groups:
            for shape in with_any(telling):
                self._known[shape] |= bit
        self._size += sum(map(len, shapes)) + _EACH * len(shapes)


def _shapes(lines: Iterable[str]) -> list[str]:
    """Return lines without their digits."""
    return "\n".join(lines).encode("utf-8", "replace").translate(None, _DIGITS).decode().split("\n")
