"""Read why a job failed, line by line, from its log. Pure.

The table of failures has what tools print about failures, launchers.py what is printed about a process's end,
and wording.py what a line says by its words; of the signs that are kept here evidence.py finds the one that
decides.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from muster.core.inventory import split_hosts
from muster.failures import launchers
from muster.failures.collectives import HINTS as COLLECTIVES
from muster.failures.collectives import Collectives
from muster.failures.events import OVER, PodEvent, event_of
from muster.failures.evidence import KeptSigns, Key
from muster.failures.sign import MET, POINTS, LineSpot, Sign, shape_of, shortened
from muster.failures.table import Recognised, Weight, find, known_failures
from muster.failures.wording import (
    ASIDE,
    CAUSED,
    EXCEPTION,
    GOING_ON,
    HANDLED,
    HINTS,
    LEVEL,
    NOTHING_CAME,
    ONWARD,
    RAISING,
    REASONS,
    USUAL,
    echo_of,
    goes_on,
    is_advice,
    is_exception,
    is_got_over,
    is_logged,
    is_plain,
    unquoted,
)

BAD_ROW = "dataset_row"
_CAUGHT = re.compile(r": Caught \w+ in DataLoader worker process \d")
# What ended a process in C++: an exception, and what glog found not to hold.
_WHAT = re.compile(r"\s*what\(\): +\S|\[?F\d{3,4} \d\d:\d\d:\d\d\.\d+ .*\] Check failed: ")
# Where a line begins to show what somebody asks or a model answers, a record of data, or a program's text.
_DATA = re.compile(
    r"(?:^|\s)(?-i:raise [A-Za-z_][\w.]*\([rf]*[\"'])|"
    r"(?:^|[\s\])|>-])(?:prompt|question|instruction|answer|response|completion|generated|generation|sample|"
    r"example|predicted|user|assistant|human)s?[\s#\d\[\]()]*: |"
    r"[\"'](?:prompt|question|instruction|answer|response|completion|chosen|rejected|content|text)"
    r"[\"']: ?[\"'\[]",
    re.IGNORECASE,
)
# pytest's last account of a test that failed, before what it raised.
_TEST = re.compile(r"(?:FAILED|ERROR) \S+\.py(?:::\S+)? - ")
# What a sentence begins with that says what to do, or may be done.
_PROPOSES = re.compile(r"\W*(?:To|Use|Try|Please|Consider|You (?:can|may|should))\b")
_REASON = re.compile(r"\s*Reason: ")  # a word, of which a message may tell more
# Exceptions that programs handle by another way to the same: of those nothing more is said.
_FALLBACK = re.compile(
    r"(?:[a-z_]\w*\.)*(?:Key|Attribute|Import|ModuleNotFound|FileNotFound|Lookup|NotImplemented)Error\b"
)
# What shows where to look, beside the exception or the cause that is told: what a shell, a cluster's manager
# or a library met before it. No failure by itself, as long as steps follow.
_CLUE = re.compile(
    r": line \d+: \S+: (?:command not found|No such file or directory)$|\bLost executor \S+ on \S|"
    r"\bWorker process \d+ was killed by signal|\bexceeded \d+% memory budget|\bCUDA initialization: "
)
# Messages that go on in the lines below.
_RAY_MEMORY = "the node running low on memory"
_NCCL_FAILED, _OF_FILES, _LLM_C = "NCCL error in: ", "DatasetGenerationCastError: ", "[CUDA ERROR] at file "
_KERAS = "Exception encountered when calling "
# Entries that say that no program can use the GPU; and those that only one says that uses it.
_NO_GPU = frozenset(("fabric_manager", "driver_mixed", "driver_too_old", "no_gpu", "container_gpu"))
_COMPUTED = frozenset((
    "illegal_memory_access", "index_out_of_range", "cuda_oom", "generation_memory", "cublas_alloc",
    "gpu_hardware",
))  # fmt: skip
_FULL, _SERVED = "cuda_oom", "generation_memory"  # of a GPU; where vLLM found it
_REFUSED, _ON_CPU = "host_memory_refused", "Falling back to cpu"  # where JAX says that it computes there
# What the innermost frame of a traceback tells of a failure: of Python's shared memory, of a program that is
# started, of what is removed or renamed, and of memory of the host that is pinned.
_SHARED = re.compile(r"/multiprocessing/(?:synchronize|shared_memory|reductions)\.py ")
_GONE = (
    ("shared_memory_gone", _SHARED),
    ("no_such_program", re.compile(r"/subprocess\.py |\bos\.(?:exec|spawn|posix_spawn)\w*\(")),
    (
        "file_gone",
        re.compile(
            r"\b(?:os|shutil)\.(?:remove|unlink|rmdir|removedirs|renames?|replace|rmtree|move)\(|\.unlink\(|"
            r"/shutil\.py \w*(?:rmtree|move)|/pathlib\S* (?:unlink|rmdir|rename|replace)\b"
        ),
    ),
)
_AT: dict[str, tuple[tuple[str, re.Pattern[str]], ...]] = {
    "disk_full": (("dev_shm_dataloader", _SHARED),),
    "cuda_oom": (("pinned_memory", re.compile(r"\bpin_memory\b|HostAlloc|MallocHost")),),
    **dict.fromkeys(("no_such_file", "temporary_gone", "file_gone", "no_such_program"), _GONE),
}
_PREEMPTED = "preempted"  # of which a program is told some steps before
_EVICTED = "pod_evicted"  # of which a message tells why
_MORE = 8  # digits that another one's may have more
_MOST = 10_000  # ranks and hosts whose signs are kept
_LAST = 64  # signs of a rank's chain of exceptions
_SHAPES = 1000  # of echoes
_AFTER = 3  # lines after an exception in which a program says that it goes on
NEAR = 50  # lines that launchers still print after an exception that ended a program
_FEW = 5  # signs of earlier runs, and clues
_KILLED = 64  # processes of which the kernel tells
_NEAR = 20  # lines that launchers print when they are ended
_ASIDE_LINES = 8  # that may be a failure's, among those of what is said aside
_GAP = 10_000  # lines without a sign, after which a program that tells no steps has gone on


@dataclass
class _Echo:
    """Lines of one shape that only say that something else has failed. `heard`: how those begin whose sign is
    kept already, as far as that names their sender."""

    failure: str
    search: Callable[[str], object]
    begin: int
    heard: set[str] = field(default_factory=set)


@dataclass
class Signs(KeptSigns):
    """The evidence of a failure, as lines come in.

    A job that goes on was not ended by what was written before: of each weight, host and rank, the first sign
    counts that came after the last but one mark of progress (ranks' lines may arrive out of order).
    """

    got_over: Sign | None = None  # the last exception of a traceback after which it went on
    run_begin: int = 0  # the number of the first of the last signs that stand close together, and of the last
    run_end: int = 0
    met: dict[Key, Sign] = field(default_factory=dict)  # what the program says that it got over, or handled
    account: bool = False  # a process's own traceback is part of torchrun's account of it
    aside: int = 0  # lines in which what a program says aside may end
    forced: bool = False  # a launcher says that it ends the processes itself
    ends: int = 0  # of processes, that were told
    elastic: str | None = None  # the host of the process that torchrun gives account of
    elastic_rank: int | None = None
    node: str | None = None  # of the pod that kubectl describes
    status: str = ""  # of that pod
    pods: int = 0  # that it has described
    normal: list[PodEvent] = field(default_factory=list)  # what went well with pods
    kernel: dict[str, tuple[str, str, LineSpot]] = field(default_factory=dict)  # by process: failure, line
    clues: dict[str, Sign] = field(default_factory=dict)  # by their shape
    on_cpu: bool = False  # JAX says that it computes on the host's processor
    reports: int = 0  # LSF's, of which each is another job's
    succeeded: bool = False  # that pod: what is said of its containers' earlier states ended nothing
    verdict: bool = False  # what ran all says that it went well, whatever its attempts met
    attempted: bool = False  # torchrun tells of a process that failed, and not yet that it gives up
    relaunched: bool = False  # it began the training again after that
    snippet: tuple[int, int] | None = None  # the rank whose exception Ray shows, and after which line
    exited: bool = False  # a process ended by an exit code of its own
    task: tuple[str, int] | None = None  # the host of a Ray task, and the line that its traceback follows
    root: bool = False  # the account of the process that failed first begins
    spot: LineSpot | None = None  # of the line that is looked at
    onward: LineSpot | None = None  # of the last mark of progress
    last: str = ""  # the last sign of any kind
    last_number: int = 0
    marked: bool = False  # it tells its steps
    chains: dict[int | None, deque[str]] = field(default_factory=dict)  # by rank: signs of its last chain
    caused: set[int | None] = field(default_factory=set)  # ranks whose next exception is of the same chain
    # By rank: the echo that its last exception was, where the next one follows from it; and for that one.
    linked: dict[int | None, str] = field(default_factory=dict)
    lost: dict[int | None, str] = field(default_factory=dict)
    symptoms: dict[str, _Echo] = field(default_factory=dict)  # by their shape
    idles: set[str] = field(default_factory=set)  # shapes that tell of no failure, whatever their digits
    echoes: int = 0  # lines that say only that something else has failed
    collectives: Collectives = field(default_factory=Collectives)
    finished: bool = False  # the training has ended; what comes is the end of the program
    counted: bool = False  # by the number of its last step, and by no word
    late: str = ""  # the first line that says that a process crashed after that
    shapes: set[str] = field(default_factory=set)  # of all lines that may be a reason, also of earlier ones

    def line(self, text: str, host: str | None, raw: str = "", shape: str = "") -> None:
        """Read a line, without its host's prefix. What it quotes of others does not concern this job. `raw`:
        with it and with colours; `shape`: that without its digits."""
        if any(hint in text for hint in COLLECTIVES):
            self.collectives.line(text, self._rank(), self.spot.below if self.spot else ())
        echo = self.symptoms.get(shape)
        if echo and echo.search(text):
            self._add("symptom", echo.failure, text, (host,))
            if len(echo.heard) < _MOST and "\x1b" not in raw:
                echo.heard.add(raw[: echo.begin])
            return
        if any(hint in text for hint in HINTS):
            before = self.echoes
            if quoted := _DATA.search(text):
                text = text[: quoted.start()]
            text = unquoted(text)
            if self._look(text, host) and len(self.idles) < _SHAPES and is_plain(raw, text):
                self.idles.add(shape)
            if shape and self.echoes > before and not quoted and len(raw) < USUAL:
                entry = find(text)
                if entry and entry.phrase.weight == "symptom" and not launchers.NAMED_HOSTS.search(text):
                    self._remember(entry, raw, shape)

    def idle(self, raw: str, shape: str, number: int) -> bool:
        """Return whether a line reports no failure, as one of its shape did not, or says only that the
        program goes on; and nothing right before it was caught: data loaders print millions of these."""
        if self.aside or number - self.last_number <= _AFTER:
            return False
        if shape in self.idles:
            return True
        only = any(word in raw for word in ONWARD) and not any(hint in raw for hint in REASONS)
        if only and shape and len(self.idles) < _SHAPES:
            self.idles.add(shape)
        return only

    def again(self, raw: str, shape: str, number: int) -> bool:
        """Return whether a line repeats what its rank has printed, as those of thousands do that lost another
        one: then it is counted, and nothing in it is new."""
        echo = self.symptoms.get(shape)
        if echo is None or raw[: echo.begin] not in echo.heard or not echo.search(raw):
            return False
        if number - self.last_number > _GAP and not self.marked:
            return False
        self.echoes += 1
        self._run_on(number)
        self.last, self.last_number = raw, number
        return True

    def restart(self) -> None:
        """Begin another run: steps are counted anew. What ended a process ended the run before."""
        for sign in (*self.earlier.values(), *self.now.values()):
            if sign.final and sign not in self.before and len(self.before) < _FEW:
                self.before.append(sign)
        if self.attempted:
            self.relaunched, self.attempted, self.broke = True, False, False
        self._keep(math.inf)

    def progress(self) -> None:
        """Record another step."""
        self.marked, self.finished, self.onward = True, False, self.spot
        self.since += 1
        self.met.clear()
        self.clues.clear()
        self._drop([each for each in (*self.now.values(), *self.earlier.values()) if each.quoted])
        if self.kept and self.spot:
            self._keep((self.spot.number or 0) - NEAR)
        if self.now or self.earlier:
            raised = [each for each in self.earlier.values() if each.code]
            self.got_over = raised[-1] if raised else self.got_over
            self.now, self.earlier, self.echoes = {}, self.now, 0
            self.collectives, self.exited = Collectives(), False
            self.forget()

    def _drop(self, dropped: Sequence[Sign]) -> None:
        """Forget signs that are of another job, or of a text that a model wrote."""
        if dropped:
            self.now = {key: sign for key, sign in self.now.items() if sign not in dropped}
            self.earlier = {key: sign for key, sign in self.earlier.items() if sign not in dropped}

    def overrule(self) -> None:
        """Take the word that all went well in the end: what ended attempts before that ended nothing."""
        self.restart()
        self.now, self.earlier, self.got_over, self.late, self.verdict = {}, {}, None, "", True
        self.broke = self.traceback = False

    def _keep(self, since: float) -> None:
        """Keep LSF's word on the end, and of what a program is told before its end that since this line."""
        lasting = {key: sign for key, sign in self.kept.items() if (sign.number or 0) >= since}
        self.kept = lasting | {
            key: sign for key, sign in self.kept.items() if sign.text.startswith(launchers.LSF_TERM)
        }

    def finish(self) -> None:
        """Record that the training has ended as it should."""
        if self.spot and not self.finished:
            self.last_end = self.spot.number
            self.end = self.last_end if self.end is None else self.end
        self.finished = True

    def _add(
        self,
        weight: Weight,
        failure: str | None,
        text: str,
        hosts: Sequence[str | None],
        rank: int | None = None,
        of: str | None = None,
    ) -> None:
        """Keep a sign. `of`: the pod that it is about, where that is named."""
        self.last = text = launchers.RANK_MARK.sub("", text)
        hosts = (self.node,) if weight == "scheduler" and self.node and not any(hosts) else hosts
        spot = self.spot
        if spot is not None:
            rank = spot.rank if rank is None else rank
            number = spot.number or 0
            if rank is None and self.snippet and number - self.snippet[1] <= NEAR and weight in MET:
                rank = self.snippet[0]
            self._run_on(number)
            if not self.marked and number - self.last_number > _GAP:
                self.now = {}
                self.forget()
            self.last_number = number
        if weight == "exception" and rank in self.lost:
            weight, failure = "symptom", self.lost[rank]
        self.echoes += weight in ("symptom", "exit")
        self.ends += weight in ("killed", "crash", "exit", "external")
        for host in hosts:
            key = weight, of or host, rank
            old = self.now.get(key) if weight in ("cause", "scheduler", "exception") else None
            vague = old and old.failure in (failure, _EVICTED) and _REASON.match(old.text)
            if vague and not _REASON.match(text):
                del self.now[key]
            elif old and weight == "cause" and self._outdone(old, failure, text):
                self.met[key] = self.now.pop(key)
            elif old and old.points and not POINTS.search(text):
                del self.now[key]
            if key not in self.now and len(self.now) < _MOST:
                quoted = spot.quoted if spot and weight in ("cause", "exception") else "no"
                if quoted == "yes":
                    continue
                if weight in MET and len(self.shapes) < _SHAPES:
                    self.shapes.add(shape_of(text, host))
                raised = weight == "exception" or (self.traceback and EXCEPTION.match(text))
                place = (spot.number, spot.when, None, False, spot.local_rank) if spot else ()
                sign = replace(Sign(weight, failure, text, host, rank, *place), more=self._further(text))
                if spot and raised:
                    sign = replace(sign, code=spot.code, uncaught=spot.uncaught, own=spot.own)
                    sign = replace(sign, hooked=spot.hooked, quoted=quoted == "perhaps")
                    ways, innermost = _AT.get(failure or "", ()), spot.innermost if failure in _AT else ""
                    own = next((each for each, at in ways if at.search(innermost)), failure)
                    sign = replace(sign, failure=own)
                    heading = spot.heading if sign.code and not sign.uncaught else ""
                    sign = replace(sign, logged=is_logged(heading))
                    if sign.logged and goes_on(heading):
                        self.met[key] = sign
                        continue
                self.now[key] = sign
                self.ends += sign.uncaught
                limit = find(text) if weight == "limit" else None
                if text.startswith(launchers.LSF_TERM) or (limit and limit.failure.id == _PREEMPTED):
                    self.kept.setdefault(key, sign)
        if rank in self.chains:
            self.chains[rank].append(text)

    def _further(self, text: str) -> str:
        """Return what the lines below say of the same exception; empty: nothing that is known to."""
        below = [line.strip() for line in self.spot.further(text) if line.strip()] if self.spot else []
        last = next((place for place, line in enumerate(below) if line == "Last error:"), None)
        if _NCCL_FAILED in text:
            below = below[last : last + 2] if last is not None else []
        elif _OF_FILES in text:
            below = list(takewhile(lambda line: not line.startswith("Please"), below))
        elif launchers.PRRTE_NOTICED.search(text):
            below = below[:1]
        elif _LLM_C in text or _KERAS in text or (is_exception(text) and text.rstrip().endswith(":")):
            below = [line for line in below[:1] if not launchers.tells_an_end(line)]
        else:  # Java's exception, below that of Python's
            below = [line for line in below[:1] if line.startswith(": ")]
        return shortened(" ".join(below).removeprefix(": ")) if re.search(r"\w", "".join(below)) else ""

    def _run_on(self, number: int) -> None:
        """Add a sign to those that are close together, or begin other ones."""
        if number - self.run_end > NEAR:
            self.run_begin = number
        self.run_end = number

    def _outdone(self, old: Sign, failure: str | None, text: str) -> bool:
        """Return whether another line of the same weight is the cause: it was raised, where the first only
        mentions a failure; or the GPU has computed, though a line says that there is none; or the program was
        training already when it was raised, and what was mentioned in passing is of its start."""
        if old.failure in _NO_GPU and failure in _COMPUTED and re.search(r"CUDA|\.cu:\d", text):
            return True
        if not (is_exception(text) and self.traceback):
            return False
        before, after = old.entry, known_failures().get(failure or "")
        start = before is not None and before.phase not in ("training", "checkpoint", "resume")
        later = start and after is not None and after.phase in ("training", "checkpoint")
        passing = not old.code and not is_exception(old.text) and not LEVEL.search(old.text)
        return self.in_a_sentence(old) or (later and passing)

    def _asked_till_now(self) -> str | None:
        """Return the failure that the program did not get past before it was ended from outside: its last
        message, where that is no echo of another rank's; None: there is none."""
        entry = find(self.last) if self.last and self.spot else None
        if entry is None or entry.phrase.weight != "symptom" or self.spot is None:
            return None
        own = not entry.failure.is_echo
        return entry.failure.id if own and (self.spot.number or 0) - self.last_number <= _NEAR else None

    def _rank(self) -> int | None:
        """Return the rank that wrote the line; None: it is not named."""
        return self.spot.rank if self.spot else None

    def _handled(self) -> None:
        """Drop the exception that a rank printed last, and those that led to it: the program caught them, and
        failed by another one. But no program means to catch a full device, or a row that cannot be read."""
        rank = self._rank()
        for key, sign in list(self.now.items()):
            entry = sign.entry
            kept = entry is not None and (entry.phase in ("training", "checkpoint") or entry.id == BAD_ROW)
            own = sign.rank == rank and sign.text in self.chains.get(rank, ())
            if own and sign.weight in ("cause", "exception") and not kept:
                del self.now[key]
                if not _FALLBACK.match(sign.text):
                    self.met[key] = sign

    def _get_over(self) -> None:
        """Drop what its rank printed last: right after it, the program says that it goes on."""
        spot, rank = self.spot, self._rank()
        if spot is None or (spot.number or 0) - self.last_number > _AFTER:
            return
        for key, sign in list(self.now.items()):
            last = sign.rank == rank and sign.text == self.last
            if last and sign.weight in ("cause", "exception"):
                self.met[key] = self.now.pop(key)

    def _hosts(self, text: str, host: str | None, account: bool) -> Sequence[str | None]:
        """Return the hosts that a line names, or else the one that wrote it. `account`: of a process's end.
        """
        named, number = launchers.NAMED_HOSTS.search(text), (self.spot.number or 0) if self.spot else 0
        if named is None and _RAY_MEMORY in text and self.spot:
            named = next(filter(None, map(launchers.NAMED_HOSTS.search, self.spot.further(text))), None)
        if host is None and self.task and number - self.task[1] <= NEAR and is_exception(text):
            host, self.task = self.task[0], None  # what the driver raises because of it is its own
        if named is None:
            nccl = launchers.NCCL_WARNING.match(text)
            return (host or (nccl[1] if nccl else self.elastic if account else None),)
        hosts = split_hosts(next(name for name in named.groups() if name))
        if named["tasks"] and len(hosts) == 1:
            for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", named["tasks"]):
                for task in range(int(first), min(int(last or first), int(first) + _MOST) + 1):
                    if self.elastic is None:  # under torchrun tasks are no ranks
                        self._place(task, hosts[0])
        return hosts

    def _place(self, rank: int | None, host: str | None) -> None:
        """Assign what a rank has printed to the host that a launcher's report of its end names."""
        for signs in (self.now, self.earlier):
            for key, sign in signs.items():
                if sign.rank == rank and sign.host is None:
                    signs[key] = replace(sign, host=host)

    def _remember(self, entry: Recognised, raw: str, shape: str) -> None:
        if len(self.symptoms) < _SHAPES and (match := launchers.SENDERS.match(raw)):
            search = entry.phrase.expression.search
            self.symptoms[shape] = _Echo(entry.failure.id, search, match.end() + _MORE)

    def forget(self) -> None:
        """Forget whose echoes were read: they may have other hosts by now, or other signs are kept."""
        for echo in self.symptoms.values():
            echo.heard.clear()

    def _is_late(self, code: int, signal: bool) -> bool:
        """Return whether a process's end, or what follows from it, comes after a training that ended well."""
        if not self.finished or not (code or signal) or self.broke:
            return False
        weights = {weight for weight, *_ in (*self.now, *self.earlier)}
        crash = signal or code in launchers.OWN_SIGNAL_CODES
        return (crash and not {"cause", "exception"} & weights) or bool(self.late)

    def _leads(self, text: str) -> bool:
        """Return whether a line only introduces those after it: a traceback, a report on a process; or
        belongs to an aside, or to what went well."""
        if ASIDE.search(text):
            self.aside = _ASIDE_LINES
            return True
        if self.aside:
            self.aside -= 1
            if EXCEPTION.match(text):
                self.aside = 0
            if self.aside == 0 or "Traceback (most recent call last)" in text or text[:1].isspace():
                return True
        if "Traceback (most recent call last)" in text:
            self.account = text.startswith(launchers.ACCOUNT_TRACEBACK)
            self._begin_traceback()
        elif CAUSED in text:
            self._lead()
            self._link()
            self.caused.add(self._rank())
        elif HANDLED in text:
            self._lead()
            self._link()
            self._handled()
        elif self.traceback and RAISING.match(text):
            pass
        elif "Root Cause (first observed" in text:
            self.root = True
        elif (match := launchers.RAY_TASK.search(text)) and self.spot is not None:
            self._begin_traceback()
            self.task = match[1], self.spot.number or 0
        elif launchers.HELPER_PROGRAM.search(text):
            pass
        elif lsf := launchers.LSF_REPORT.match(text):
            self._begin_report(well=lsf[1] == "Done")
        elif match := launchers.ACCOUNT_HOST.match(text):
            self.elastic = match[1]
        elif match := launchers.POD_NODE.match(text):
            self.node, self.succeeded, self.status, self.pods = match[1], False, "", self.pods + 1
        elif (event := self._event(text)) and self._went_well(event):
            pass
        elif match := launchers.POD_STATUS.match(text):
            self.status, self.succeeded = match[1], match[1] == "Succeeded"
        elif self.succeeded and launchers.POD_FIELD.match(text):
            pass
        elif (match := launchers.RAY_SNIPPET.search(text)) and self.spot is not None:
            self.snippet = int(match[1]), self.spot.number or 0
        elif match := launchers.ACCOUNT_RANK.match(text):
            self.elastic_rank = int(match[1])
            if self.root:
                self.root, self.first = False, self.elastic_rank
                self._place(self.first, self.elastic)
        else:
            return False
        return True

    def _begin_report(self, well: bool) -> None:
        """Read how LSF reports another job of the same log: its words on the jobs before are of those."""
        self.succeeded, self.reports = well, self.reports + 1
        if self.reports > 1:
            self.restart()
            ended = [each for each in self.kept.values() if each.text.startswith(launchers.LSF_TERM)]
            self.before = [*ended, *self.before][:_FEW]
            self.kept.clear()
            if well:
                self.now, self.earlier, self.broke, self.got_over = {}, {}, False, None
            else:
                self._drop(ended)

    def _event(self, text: str) -> PodEvent | None:
        return event_of(text, f"#{self.pods}")

    def _went_well(self, event: PodEvent) -> bool:
        """Return whether all went well with a pod, and drop the earlier warnings of that; or whether it did
        after this warning, by their ages: lists of events are in no order."""
        if not event.normal or not event.stage:
            return any(each.ends(event, later=False) for each in self.normal)
        if len(self.normal) < _MOST:
            self.normal.append(event)
        for signs in (self.now, self.earlier, self.kept):
            for key, sign in list(signs.items()):
                warning = event_of(sign.text, key[1] or "")
                if warning and not (warning.normal and warning.stage) and event.ends(warning, later=True):
                    del signs[key]
        self.succeeded = self.succeeded or (event.stage == OVER and not event.of.startswith("pod/"))
        return True

    def _begin_traceback(self) -> None:
        self.traceback, self.since = True, 0
        if self.spot is not None:
            self._run_on(self.spot.number or 0)
        rank = self._rank()
        self.lost.pop(rank, None)
        if echo := self.linked.pop(rank, None):
            self.lost[rank] = echo
        if rank not in self.caused and (rank in self.chains or len(self.chains) < _MOST):
            self.chains[rank] = deque(maxlen=_LAST)
        self.caused.discard(rank)

    def _lead(self) -> None:
        """Take the exception above, which led to another one, where its name is none that the sieve knows."""
        here, above = self.spot, self.spot.above if self.spot else None
        if above and not NOTHING_CAME.match(above[0]):
            text, self.spot = above
            self._add("exception", None, text, (None,))
            self.spot = here

    def _link(self) -> None:
        """Remember that what its rank raises next follows from the loss of another one."""
        rank = self._rank()
        echo = echo_of((self.chains.get(rank) or [self.last])[-1]) or self.lost.get(rank)
        if echo:
            self.linked[rank] = echo

    def _follows(self, text: str) -> bool:
        """Return whether a line belongs to those before it: the program goes on after an exception, or it is
        the exception of a process that torchrun reports on."""
        if GOING_ON.search(text) and not (is_exception(text) or _PROPOSES.match(text) or find(text)):
            self._get_over()
            return True
        if not (self.account and text[:2] == "  " and EXCEPTION.match(text[2:])):
            return False
        self.account, match = False, find(text[2:])
        weight: Weight = match.phrase.weight if match else "exception"
        self._add(weight, match.failure.id if match else None, text[2:], (self.elastic,), self.elastic_rank)
        return True

    def _look(self, text: str, host: str | None) -> bool:
        """Read a line. Return whether it reports no failure."""
        self.on_cpu = self.on_cpu or _ON_CPU in text
        if self._leads(text) or self._follows(text):
            return False
        hosts: Sequence[str | None]
        test = _TEST.match(text)
        text = text[test.end() :] if test else text
        left, failed = launchers.EXIT_CODE.search(text), False
        codes = {name: int(code) for name, code in left.groupdict().items() if code} if left else {}
        crashed_rank = next((codes.pop(name) for name in launchers.RANK_GROUPS if name in codes), None)
        name, code = next(iter(codes.items()), ("", 0))
        code = -code if name in launchers.SIGNAL_GROUPS else code
        if name == "elastic":
            self.attempted = not launchers.ACCOUNT_EXIT_CODE.match(text)
        self.forced = self.forced or bool(launchers.LAUNCHER_ENDS.search(text))
        if self.forced and launchers.COMPOSE_EXIT.match(text):
            return False
        shell = None if self.forced else launchers.SHELL_SIGNAL.search(text)
        match = None if self.forced and launchers.SHELL_SIGNAL.search(text) else find(text)
        if match is None and (_LLM_C in text or _NCCL_FAILED in text or launchers.PRRTE_NOTICED.search(text)):
            match = find(f"{text} {self._further(text)}")
        if _CLUE.search(text) and len(self.clues) < _FEW and self.spot:
            clue = Sign("symptom", match.failure.id if match else None, text, None, None, self.spot.number)
            self.clues.setdefault(shape_of(text), clue)
        if match and launchers.SRUN_KILLED.search(text) and (self.forced or self.now):
            match, failed = None, True  # srun ends the other tasks of a step itself
        native = match is None and _WHAT.match(text)
        hangs = "watchdog hang" in text
        broken = hangs or (match is not None and match.phrase.weight == "crash")
        crashed = bool(
            native or broken or launchers.CRASH_SIGNAL.search(text) or (shell and shell["how"] != "Killed")
        )
        if self._is_late(code, crashed):
            self.late = self.late or text
            return False
        failed = failed or bool(launchers.PROCESS_FAILED.search(text))
        if shell or failed or (code and code not in (-15, -2)):  # those were ended because of another
            self.broke = True
        hosts = self._hosts(text, host, left is not None)
        weights = {weight for weight, *_ in (*self.now, *self.earlier)}
        rank = self.elastic_rank if launchers.ACCOUNT_EXIT_CODE.match(text) else crashed_rank
        self._by_number(text, match, hosts, rank)
        if (match and match.phrase.weight == "limit") or launchers.LIGHTNING_TIMER in text:
            # What had failed by itself is ended then as well: that is no timeout.
            if not {"cause", "exception", "crash"} & weights:
                self._add("limit", None, text, (None,))
            return False
        sent = match.failure.id if match and match.phrase.weight == "external" else None
        if sent or launchers.ENDED_FROM_OUTSIDE.search(text):
            consequence = self.exited or (self.broke and launchers.CANCELLED_BY_SLURM.search(text))
            if not (consequence or {"cause", "exception", "crash", "killed"} & weights):
                asked = self._asked_till_now()
                weight: Weight = "cause" if asked else "external"
                self._add(weight, asked or sent, self.last if asked else text, hosts)
            return False
        if match and match.phrase.weight in ("cause", "symptom") and is_got_over(text, match):
            match = None
        if match and match.phrase.weight in MET and is_advice(text, match):
            match = None
        raised = _WHAT.match(text) or ((self.traceback or test) and EXCEPTION.match(text))
        if match and match.phrase.weight == "exception" and not raised:
            match = None  # the program says what it met, and goes on
        if match and match.phrase.weight == "symptom" and launchers.CRASH_SIGNAL.search(text):
            match = None  # Python's words for a program that it started
        if match and match.phrase.weight != "notice":
            # Slurm says on which host the step was, and not which failed.
            nobody = match.phrase.weight == "scheduler" and "CANCELLED" in text
            failure, spot, event = match.failure.id, self.spot, self._event(text)
            of = event.of if event and event.stage < OVER else None
            if failure == _FULL and self.on_cpu and "RESOURCE_EXHAUSTED" in text:
                failure = _REFUSED
            elif failure == _FULL and spot and spot.serving:
                failure = _SERVED
            self._add(match.phrase.weight, failure, text, (None,) if nobody else hosts, rank, of)
            return False
        if launchers.CRASH_SIGNAL.search(text) or (shell and shell["how"] != "Aborted"):
            self.broke = True
            illegal = "illegal_instruction" if launchers.ILLEGAL_INSTRUCTION.search(text) else "crashed"
            entry = "bus_error" if launchers.BUS_ERROR.search(text) else illegal
            self._add("crash", entry, text, hosts, rank)
        elif raised:  # a loader's exception is told once more by the rank, before the loader's own traceback
            self._add("symptom" if _CAUGHT.search(text) else "exception", None, text, hosts)
        elif code or shell or failed:
            self.exited = self.exited or (code > 0 and code not in (130, 143) and not self.forced)
            self._add("exit", None, text, hosts, rank)
        else:
            return match is None
        return False

    def _by_number(
        self, text: str, match: Recognised | None, hosts: Sequence[str | None], rank: int | None
    ) -> None:
        """Remember what the kernel says of a process by its number; and where a launcher or a shell tells of
        that one's end, say so of its host and rank, though steps were told in between."""
        if (
            match
            and match.phrase.weight == "cause"
            and self.spot
            and (process := launchers.KERNEL_PROCESS.search(text))
        ):
            if len(self.kernel) < _KILLED:
                self.kernel[process[1]] = match.failure.id, text, self.spot
            return
        ended = launchers.PROCESS_NUMBER.search(text) if self.kernel else None
        if ended and (word := self.kernel.get(ended[ended.lastindex or 0])):
            failure, line, there = word
            if rank is None and any(sign.text == line and sign.host for sign in self.now.values()):
                return
            self.now = {key: sign for key, sign in self.now.items() if sign.text != line}
            here, self.spot = self.spot, there
            self._add("cause", failure, line, hosts, rank)
            self.spot = here
