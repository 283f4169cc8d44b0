"""Progress in logs of no known format: counters that grow from line to line. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise, takewhile

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
# What runs others, and again what failed, says of the whole: Jenkins, Kaldi's run.pl and queue.pl, Metaflow,
# YARN, Dagster, Snakemake, Determined.
_VERDICT = re.compile(
    r"^(?:\[[^\]]*\] )?Finished: SUCCESS\s*$|^# Ended \(code 0\) at |^\d{4}-\d\d-\d\d [\d:.]+ Done!\s*$|"
    r"^\s*final status: SUCCEEDED\s*$| - RUN_SUCCESS - |^(?P<all>\d+) of (?P=all) steps \(100%\) done\s*$|"
    r"\|\| INFO: Trial \d+ \(Experiment \d+\) has completed\s*$"
)
_WELL = re.compile(
    r"worker group successfully finished|\bLocal worker group finished \((?:WorkerState\.)?SUCCEEDED\)|"
    r"(?<![A-Z] \()\bexit(?:ed)?(?: with)?(?: exit| return)?[ -](?:code|status)[ :=]*0\b|"
    r"\brc[ =:]+0\b|^exit_status\s+0\s*$|^LAUNCH INFO .* Exit code 0\b|\bProcess Exiting with Code: +0\b|"
    r"\bCompleted - Training job completed\b|\bset from RUNNING to SUCCEEDED\b|"  # SageMaker, GCP Batch
    r"\b[Tt]raining (?:of experiment )?(?:is |has |run )?(?:been )?"
    r"(?:complete|completed|finished|done)\b(?! with| but)|"
    r"\b[Ff]inished [Tt]raining\b|\bApplication shutdown complete\b|"
    r"\b(?:[Jj]ob|[Rr]un|[Tt]raining)(?: '[^']*')? succeeded\b|"
    r"\b(?:[Jj]ob|[Tt]ask|[Rr]un|[Tt]raining) (?:completed|finished|ended) successfully\b|"
    r"^\s*Exit Status:\s+0\s*$|\bLoss for final step: \S|"  # PBS, TensorFlow's estimators
    r"^\s*Reason: +Completed\b|\[State Transition\] \w+ -> FINISHED\b|^Result\(.*\berror=None\b|"
    r"^Trial status: \d+ TERMINATED\s*$|\bReporting training SUCCESS\b|^EXIT_CODE=0\s*$|"
    r"^Successfully completed\.\s*$|"
    r"\bMarking task as SUCCESS\b|\bmsg=\"sub-process exited\" argo=true error=\"<nil>\"|"  # Airflow, Argo
    r"\bjobset completed successfully\b|\bjob-controller +Job completed\b|"  # Kubernetes
    r"^\s*\"?phase\"?: \"?Succeeded\b|"
    r"\bJobState=COMPLETED\b|^State: COMPLETED \(exit code 0\)|"  # Slurm: scontrol and seff
    r"\bFinal validation metrics: |^# Out of bounds values : 0 OK\b|"  # verl, nccl-tests
    r"^(?:=+ )?\d+ passed\b(?!.*\d (?:failed|error)).* in [\d.]+s\b|"  # pytest
    rf"{_VERDICT.pattern}",
)
# The whole of a line that a program ends with, or what it is said by; and what begins something else.
_CLOSING = re.compile(
    r"(?:^|[\])|:>.-] |\bINFO (?:[a-z][\w.]* )?)\W*(?:all )?(?:done|finished|completed?|success)\W*"
    r"(?:$| (?:in|after|at) )|"
    r"`Trainer\.fit` stopped: `max_\w+=\S+` reached",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    r"\b(?:start(?:s|ed|ing)?|begin\w*|load(?:s|ing)|resum\w+|evaluating|running|saving|uploading|"
    r"(?<!\bdone )waiting|fold|trial|phase|stage|initiali[sz]\w+|building|rendezvous\w*)\b|"
    r"\d ?%(?! of )|\w \.{4,} \S",
    re.IGNORECASE,
)
_USAGE = re.compile(r"\b(?:[Uu]tili[sz]ation|savings): +[\d.]+ ?%")  # in an account of a job's resources
_SOFTLY = re.compile(
    r"^\W*(?:all )?(?:done|finished|success)\b|\b(?:model|weights) saved\b|"
    r"(?<!not )(?<!not run )\bsuccessfully\b",
    re.IGNORECASE,
)
# "Loading data... Done." is the end of that part alone, unless it is one that comes last; an exit code may be
# that of a check, or of one of several ranks.
_PART_DONE = re.compile(r"\.{2,}\W*(?:done|finished|completed?|success)\W*$", re.IGNORECASE)
_LAST_PART = re.compile(r"\b(?:sav|writ|export|upload|clean|clos)\w*(?!.*(?:checkpoint|ckpt))", re.IGNORECASE)
_CHECK = re.compile(r"\b(?:\w*check|probe|prolog|hook|init container)\b.*\b(?:code|rc)\b", re.IGNORECASE)
# What scripts print before the next of several runs; and what a shell prints (`set -x`) before a program.
BANNER = re.compile(
    r"[#=*-]{2,}(?!.*\b(?:done|finished|completed?|ended|results?|summary|score)\b)"
    r".*(?:\b(?:task|job|run|attempt|seed|fold|stage|trial)\b\W*\d|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d)",
    re.IGNORECASE,
)
NEXT_RUN = re.compile(
    r"\++ (?:\S+/)?(?:python\S*|torchrun|accelerate|deepspeed|srun|mpirun|ba?sh|\./\S+)(?: |$)|"
    rf"{BANNER.pattern}",
    re.IGNORECASE,
)
# A program begins to save, and has saved.
_SAVES = re.compile(
    r"(?:^|[\])|:>-] |\bINFO )\W*"
    r"(?:(?:now )?(?:saving|writing|exporting|uploading)|scheduled async checkpoint save)\b",
    re.IGNORECASE,
)
# Merging LoRA weights...; and what a program does to end is no work that it leaves open.
_DOING = re.compile(
    r"\W*(?:\[[\w.]+\] (?=\w+ \w+ \w))?"
    r"(?!(?:shutt|clos|clean|exit|stopp|end|quitt|destroy|finali[sz]|finish|flush|terminat|tear|releas|free|"
    r"remov|delet|disconnect|leav|join)ing\b)"
    r"(?:[A-Za-z]+ing [^.]|(?<=\] )[A-Z]).*[\w)`'\"]\.{3}\s*$",
    re.IGNORECASE,
)
_SAVED = re.compile(r"\b(?:saved|wrote|written|exported|uploaded|done|finished|took)\b|100 ?%", re.IGNORECASE)
_TRACKER = re.compile(r"(?:\(\w+ pid=\d+(?:, ip=[^)]*)?\) )?wandb:")
# What syslog puts before a program's lines, and systemd's word on a unit that ended.
_PROGRAM = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ ([\w./@-]+)\[(\d+)\]: ")
_UNIT = re.compile(r"\bsystemd\[1\]: \S+\.service: Deactivated successfully\.")
_CODE = re.compile(r"\b(?:code|status|rc)\b", re.IGNORECASE)
_ONE = re.compile(r"\b(rank|worker|process|replica|task|node)\W{0,3}(\d{1,9})\b", re.IGNORECASE)
# A bar as tqdm and Rich draw it, and any counter: what is done, and what there is.
_BAR = re.compile(r"(?:\d%\|[^|]*\||[\u2501\u2578\u257a])\s*([\d.]+\w{0,3}) ?/ ?([\d.]+\w{0,3})[ ,]")
# Parts of something that is moved, and how many there are.
_PARTS = re.compile(r"(?<![\d./])(\d+)/(\d+) (?:files|shards|parts|chunks|objects|tensors)\b")
_OF = re.compile(r"(?<![\d./])(\d{1,12}) ?(?:/|of) ?(\d{1,12})\b(?!/)")
# A step and how many there shall be.
_PLACE = re.compile(
    r"(?<![A-Za-z])(?:global[ _-]?step|step|iter(?:ation)?)s?\b[\s:=#\[(|]*"
    r"(\d{1,12}) ?(?:/|of) ?(\d{1,12})\b(?!/)",
    re.IGNORECASE,
)
# What is moved, and how much of it there is.
_MOVED = re.compile(
    r"(\d+(?:\.\d+)?) ?([kKMGT]?i?B) ?(?:of|/) ?(\d+(?:\.\d+)?) ?([kKMGT]?i?B) (?:uploaded|downloaded|copied|"
    r"transferred|sent)\b"
)
_FENCED = re.compile(r"[#=*-]{2,} ?(?=.*[A-Za-z]).*\d")  # what a script prints before and after each run
_FEW = 2  # lines of work
_KIND = 40  # characters, without digits, by which lines are of a kind
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
        """Whether the log has a known format, or its training has ended: what counts after that is another
        run where an exception that nothing caught lies between."""
        signs = self.frame.signs
        ended = signs.finished and not any(each.uncaught for each in signs.now.values())
        return self.frame.steps > 0 or ended

    def line(self, text: str) -> None:
        """Read a line."""
        kind, now = _counted(text)
        if not now:
            return
        last = self.highest.get(kind)
        if last is None and len(self.highest) >= _MOST:
            return
        self.highest[kind] = now
        if last is not None and now < last:
            self.frame.signs.restart()
        if now > last if last is not None else _LOSS.search(text):
            self.frame.signs.progress()


def _counted(text: str) -> tuple[str, tuple[float, ...]]:
    """Return the counters of a line, and its kind; none: it tells of no work."""
    numbers, kind = [], ""
    for match in _COUNTER.finditer(text):
        numbers.append(_number(match[match.lastgroup or 0]))
        kind = kind or re.sub(r"\d+", "", text[: match.start(match.lastgroup or 0)])[-40:]
        if len(numbers) == _EACH:
            break
    if not numbers or text[:1].isspace() or _OTHER.search(text):
        return kind, ()
    return kind, tuple(numbers)


def _number(digits: str) -> float:
    return float(digits.replace(",", "")[:18])


def counts(line: str) -> bool:
    """Return whether a line counts steps."""
    return bool(_COUNTER.search(line)) and not _OTHER.search(line)


def ended_well(lines: Iterable[str]) -> bool:
    """Return whether one of these lines says that the program ended as it should."""
    return any(_WELL.search(line) for line in lines)


def overrules(ends: Iterable[str]) -> bool:
    """Return whether what ran all says at a log's end that it went well, and nothing was begun after that.
    `ends`: its last lines, the last one first."""
    for line in islice(ends, _LAST):
        if _VERDICT.search(line):
            return True
        if _BEGUN.search(line) or NEXT_RUN.match(line) or counts(line):
            return False
    return False


def closes(ends: Iterable[str]) -> bool:
    """Return whether a log's end says that the program ended as it should, and nothing was begun after that.
    `ends`: its last lines, the last one first."""
    written = [line for line in ends if line.strip()]
    others = [line for line in written if not _TRACKER.match(line)]
    lines = others[:_LAST]
    for number, line in enumerate(lines):
        if ended_well([line]):
            whole = not _CODE.search(line) or all_ended(line, others)
            after = written.index(line)
            return whole and not (_CHECK.search(line) or left_open(written[:after], written[after + 1 :]))
        if number == 0 and _CLOSING.search(line):
            place = next(filter(None, map(_PLACE.search, lines)), None)
            above = next((each for each in lines[1:2] if each.rstrip().endswith("...")), "")
            together = f"{above} {line}"  # "Processing..." and "Done!" below it
            part = bool(_LAST_PART.search(together)) if place is None else place[1] == place[2]
            return part or not _PART_DONE.search(together)
        if _UNIT.search(line):  # it is of what printed right before it, as far as a journal tells
            by = _PROGRAM.match(next(iter(lines[number + 1 :]), ""))
            return by is not None and by[1] not in ("systemd", "CRON", "sshd")
        begun = _BEGUN.search(line) or NEXT_RUN.match(line)
        if (begun or counts(line)) and not _USAGE.search(line):
            return False
    return False


def killed_another(text: str, ends: Sequence[str]) -> bool:
    """Return whether the kernel killed another program than the one whose steps a journal has, which goes on
    after that. `text`: what the kernel says; `ends`: the last lines, the last one first."""
    killed = re.search(r"Killed process (\d+) \((.+?)\)", text)
    if killed is None:
        return False
    lines = [(match, line) for line in ends if (match := _PROGRAM.match(line))]
    at_work = {match[2]: match[1][:15] for match, line in lines if _counted(line[match.end() :])[1]}
    if killed[1] in at_work or killed[2] in at_work.values():
        return False
    after = map(_PROGRAM.match, takewhile(lambda line: text not in line, ends))
    return any(match[2] in at_work for match in after if match)


def all_ended(last: str, lines: Iterable[str]) -> bool:
    """Return whether what ended well is no single rank or worker, of several that lines name."""
    one = _ONE.search(last)
    if one is None:
        return True
    others = {match[2]: False for line in lines for match in _ONE.finditer(line) if match[1] == one[1]}
    for line in lines:
        match = _ONE.search(line)
        if match and match[1] == one[1] and ended_well([line]):
            others[match[2]] = True
    return all(others.values())


def left_open(after: Sequence[str], before: Iterable[str]) -> str:
    """Return the line at which what was begun after a training's end breaks off: a bar that has not come to
    its own total, steps of any kind, or that it begins; empty: at none. `after`: the lines after that end,
    `before`: those before it, the last one first."""
    last = next(filter(str.strip, after), "")
    if (moved := _MOVED.search(last)) and (moved[2] != moved[4] or float(moved[1]) < float(moved[3])):
        return last
    lines = [line for line in after if line.strip() and not _TRACKER.match(line)]
    if not lines:
        return ""
    if bar := _BAR.search(lines[0]):
        done, *kind = _bar(lines[0], bar)
        earlier = (_bar(line, match) for line in before if (match := _BAR.search(line)))
        own = next((each for each, *other in earlier if other == kind), done + 2)
        return "" if bar[1] == bar[2] or 0 <= done - own <= 1 else lines[0]  # the training's own, drawn again
    begun = _BEGUN.search(lines[0]) and lines[0].rstrip().endswith("...")
    if begun or NEXT_RUN.match(lines[0]) or _DOING.match(lines[0]):
        return lines[0]
    shape = re.sub(r"[\d.]+", "", lines[0])
    alike = list(takewhile(lambda line: re.sub(r"[\d.]+", "", line) == shape, lines))
    figures = [[*map(_number, re.findall(r"\d+", line))] for line in alike[:_GROWN]]
    growing = len(figures) == _GROWN and all(later > each for later, each in pairwise(figures))
    if growing and any(map(_DOING.match, lines[len(alike) : len(alike) + 1])):
        return lines[0]
    if (parts := _PARTS.search(lines[0])) and int(parts[1]) < int(parts[2]):
        return lines[0]
    if _SAVES.search(lines[0]) and not _SAVED.search(lines[0]) and not _never_saved(lines[0], before):
        return lines[0]
    place = next((number for number, line in enumerate(lines[:_REST]) if _counted(line)[1]), None)
    whole = None if place is None else _OF.search(lines[place])
    if place is None or ended_well(lines[:place]) or (whole and whole[1] == whole[2]):
        return ""
    steps = [now for kind, now in map(_counted, lines) if kind == _counted(lines[place])[0]]
    higher = sum(later > step for later, step in pairwise(steps))
    return lines[place] if higher >= _FEW else ""


def ran_again(before: Iterable[str], after: Iterable[str]) -> bool:
    """Return whether a script that marks each of its runs by a line has begun another one: such a line stands
    after others of its kind, with other numbers."""
    marks = {line for line in before if _FENCED.match(line)}
    kinds = {re.sub(r"\d+", "", line) for line in marks}
    return any(re.sub(r"\d+", "", line) in kinds and line not in marks for line in after)


def _never_saved(begun: str, before: Iterable[str]) -> bool:
    """Return whether a program that began to save as this line says went on before without a word that it
    had saved. `before`: the last line first."""
    kind, later = re.sub(r"\d+", "", begun)[:_KIND], deque[str](maxlen=_REST)
    for line in before:
        if re.sub(r"\d+", "", line)[:_KIND] == kind:
            return not any(map(_SAVED.search, later))
        later.append(line)
    return False


def mentions_an_end(lines: Iterable[str]) -> bool:
    """Return whether one of these lines is a program's word of its end."""
    return any(_WELL.search(line) or _CLOSING.search(line) for line in lines)


def _bar(line: str, bar: re.Match[str]) -> tuple[float, str, str]:
    """Return what is done of a bar, its total and what it is of."""
    return float(re.sub(r"\D", "", bar[1])), bar[2], re.sub(r"\d+", "", line[: bar.start()]).strip()


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
