"""What logs of all formats share: the sender of a line, the hosts, the command, the batch, how it went. Pure.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timezone

from muster.core.errors import UsageError
from muster.core.inventory import parse_hosts
from muster.failures.launchers import SENDER
from muster.failures.signs import Signs
from muster.readers._paths import is_host
from muster.readers._user import UserFormat
from muster.readers.base import FIGURE, number

MOST_HOSTS = 100_000
_MOST_PREFIXES = 16  # of tracebacks
_TRACEBACK = "Traceback (most recent call last)"
OWN = 100  # characters of a line, in which its own time stamp stands
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# srun --label, mpirun --tag-output, torchrun's redirects
_LABEL = re.compile(r"(?:\s*\d{1,6}: |\[(?:prterun-\S+@)?\d+,\d+\]<std(?:out|err)>: ?|\[default\d+\]: ?)+")
_HOSTFILE = re.compile(r"(\S+)\s+slots\s*=\s*(\d{1,5})(?:\s+max_slots\s*=\s*\d+)?\s*")
_WORLD_INFO = re.compile(r"--world_info[= ]([A-Za-z0-9+/_=-]+)")
_NODELIST = re.compile(r"SLURM_(?:JOB_|STEP_)?NODELIST\s*[=:]\s*(\S+)")
_NCCL = re.compile(r"([\w.-]+):\d+:\d+ \[\d+\] NCCL (?:INFO|WARN)(?:.* n[rR]anks (\d{1,9})\b)?")
# Whose log it is, as environments and fairseq print it; of how many hosts it is; that Slurm has a part in it.
_HERE = re.compile(r"(?<!\w)(?:SLURMD_NODENAME=|HOSTNAME=|initialized host )([\w.-]+)")
_NODES = re.compile(r"(?<![\w-])(?:nnodes=|SLURM_NNODES[=:] ?|SLURM_JOB_NUM_NODES[=:] ?|nNodes )(\d{1,6})\b")
_LOCAL = ("localhost", "localhost.localdomain", "127.0.0.1", "::1", "local")  # names of no host
# A whole word; with \b before it, a pattern is tried at every character instead of being searched for.
_BATCH = re.compile(rf"train_batch_size(?<![\w-]train_batch_size)[^\w+-]+({FIGURE})(?!\w)")
# What pdsh puts before each line of a host, where the line itself begins as those of a training do. That the
# name has a digit, is_host says: asked for here, it takes a minute of a word of 100,000 characters.
_PDSH = re.compile(
    r"[A-Za-z][\w.-]*: "
    r"(?= ?\[?\d{4}-\d\d-\d\d[ T]|\[(?:INFO|WARNING|rank\d|default\d)| iteration +\d|Traceback \()"
)
# What stands there as well, and is of one host: its devices, and processes by their number (gpu07 is a host).
_DEVICE = re.compile(
    r"(?!.*0\d)(?:gpu|cuda|npu|xpu|device|worker|actor|trainer|learner)[-_]?\d{1,2}", re.IGNORECASE
)
_OLMO = re.compile(r"\d{4}-\d\d-\d\d [\d:.,]+\t([\w.-]+):\d{1,6}\tolmo")  # a host, and its local rank
_WORLD = re.compile(
    rf"(?<!\w)(?:dist_|distributed_)?world[_ ]size['\"]?\s*(?:\.{{2,}}|[=:])\s*({FIGURE})(?!\w)"
)
_DEVICES = re.compile(r"\bNum_devices: (\d+), shape ")  # MaxText: of all of its processes
_STAMP = re.compile(
    r"(?:(\d{4})[-/](\d\d)[-/](\d\d)|(?<!\d)(\d\d)/(\d\d)/(\d{4}))"
    r"[ T_,](\d\d):(\d\d):(\d\d)(?:[,.](\d{1,6}))?"
)
_HALF_DAY = re.compile(r"(\d{1,2}):(\d\d:\d\d(?:\.\d{1,6})?) ?([aApP])[mM]")  # 11:58:10 PM
# A process of the job begins anew where an earlier one was: torchrun, and whoever loads a checkpoint.
_ANEW = re.compile(
    r"will restart worker group|Rendezvous'ing worker group|"
    r"\b[Rr]esum(?:ing|ed) (?:training |run )?(?:from|at)\b|"
    r"\b(?:[Rr]estor|[Ll]oad)(?:ing|ed) (?:\w+ ){0,3}checkpoint\b"
)
_WORKERS = re.compile(r"\[multinode_runner\.py:.*\] Running on the following workers: ([\w.,-]+)")
_PROCESS = re.compile(r"\[launch\.py:[^\]]*\] [Pp]rocess \d+ (spawned|exits successfully)")
_RUNNER = re.compile(r"\[runner\.py:[^\]]*\] cmd = (.*)")
_LAUNCHER = " -m deepspeed.launcher.launch "  # what stands behind it: its own options, then the training
_PYTHON = re.compile(r"(?:\S*/)?python[\d.]*")
# Arguments that differ between jobs of one recipe: places, ports, names of runs, who is who.
_PLACES = re.compile(
    r"--?(?:local[-_]rank|node[-_]rank|master[-_]\w+|rdzv\w*|output\w*|log\w*|run[-_]name|save\w*|"
    r"tensorboard\w*|\w*cache\w*|data_output_path|hostfile|world_info|enable_each_rank_log|resume\w*)$"
)
_MODEL = re.compile(r"--?(?:actor_)?model(?:_name_or_path|_name|_id|_path)?$|--?arch$")
HINTS = (
    "slots", "WORLD INFO", "world_info", "NODELIST", " NCCL ", "train_batch_size", "world_size",
    "world size", "[launch.py:", "] cmd = ", "nnodes=", "SLURM_NNODES", "NUM_NODES", "SLURM_JOB_ID",
    "SLURM_JOBID", "NODENAME=", "HOSTNAME=", "initialized host", "\tolmo", "worker group", "esuming ",
    "esumed ", " checkpoint", "following workers", "Num_devices",
)  # fmt: skip
# To whom a line may say something, as bits; readers' begin at bit 2.
FOR_FACTS, FOR_SIGNS, FOR_READERS = 1, 2, 2


class Frame:
    """A file's lines, one after the other. `line` returns each without the prefix of its sender."""

    def __init__(self, slots: Mapping[str, int | None] | None = None, user: UserFormat | None = None) -> None:
        self.user = user or UserFormat()
        self.slots = dict(slots or {})  # host -> its ranks; in their order
        self.later: dict[str, int | None] = {}  # the same of a hostfile after the launcher: of the next job
        self.content = 0  # a digest of the lines that readers took
        self.spoken: dict[str, None] = {}  # hosts whose own lines there are, as NCCL's
        self.prefixed: set[str] = set()  # hosts whose names stand before their lines
        self.launched = False  # DeepSpeed's launcher itself said which hosts it takes
        self.nodes: int | None = None  # hosts of the job, where their number is said
        self.slurm = False  # it is the log of a Slurm job
        self.most = 0  # ranks that NCCL or a launcher on this host alone count
        self.batch: float | None = None
        self.world_size: int | None = None
        self.workload = ""
        self.recipe = ""
        self.runner = ""  # the recipe by the runner's line; the launcher's can have other quotes
        self.spawned = 0  # processes that the launcher names with their command
        self.exits: Counter[str | None] = Counter()  # processes that exited successfully, by their host
        self.steps = 0  # of the last mark of progress
        self.loads = 0  # lines that say that a process begins where an earlier one was
        self.arrived: float | None = None  # when the lines of a job that runs came; None: they lie in a file
        self.prefixes: dict[str, re.Pattern[str]] = {}  # what stood before the first line of a traceback
        self.signs = Signs()

    def line(self, raw: str, telling: int = FOR_FACTS | FOR_SIGNS, shape: str = "") -> str:
        """Read a line, and return it without prefix and colours. `telling`: the groups whose words it may
        have; `shape`: the line without its digits."""
        text = raw
        if "\x1b" in raw:
            text, telling = _COLOUR.sub("", raw), FOR_FACTS | FOR_SIGNS  # a colour within a word hides it
        host, text = None, _LABEL.sub("", text, count=1) if _LABEL.match(text) else text
        if text[:1].isalpha():
            head, colon, rest = text.partition(": ")
            if colon and (head in self.slots or self._is_pdsh(head, text)):
                host = head
                text = rest[label.end() :] if (label := _LABEL.match(rest)) else rest
        before = text
        if _TRACEBACK in text:
            self._learn(text.partition(_TRACEBACK)[0])
        if self.prefixes:
            text = self._without_prefix(text)
        if telling & FOR_FACTS and any(hint in text for hint in HINTS):
            self._facts(text, host)
            self.signs.forget()
        if telling & FOR_SIGNS:
            sender = SENDER.match(before)
            named = sender["pod"] or sender["node"] or sender["ip"] or sender["machine"] if sender else None
            host = host or named or None
            own = before[sender.end() :] if sender and text == before else text
            self.signs.line(own, host, raw, shape)
        return text

    def _is_pdsh(self, head: str, text: str) -> bool:
        """Return whether a line begins with the name of a host that no hostfile names, in pdsh's form."""
        if head in self.prefixed:
            return True
        if self.slots or len(self.prefixed) >= MOST_HOSTS or not _PDSH.match(text):
            return False
        if not is_host(head) or _DEVICE.fullmatch(head):
            return False
        self.prefixed.add(head)
        self._speaks(head)
        return True

    def _learn(self, prefix: str) -> None:
        """Learn the prefix of a traceback, which kubectl, Ray, pdsh, compose or journald puts before every
        line of a program, with any numbers in place of its own."""
        if prefix == "  traceback : ":  # torchrun's account of a process
            return
        logger = prefix[: prefix.rfind("] ") + 2]  # words of the program may stand behind its own
        for each in (prefix, logger if re.search(r"\d", logger) else ""):
            if each.strip() and len(each) <= OWN and len(self.prefixes) < _MOST_PREFIXES:
                pattern = re.sub(r"\d+", r"\\d+", re.escape(each))
                self.prefixes.setdefault(pattern, re.compile(pattern))

    def _without_prefix(self, text: str) -> str:
        matches = (pattern.match(text) for pattern in self.prefixes.values())
        return next((text[match.end() :] for match in matches if match), text)

    def bare(self, raw: str) -> str:
        """Return a line without colours and the prefixes of its sender, as far as they are learned."""
        text = uncoloured(raw)
        text = text[label.end() :] if (label := _LABEL.match(text)) else text
        head, colon, rest = text.partition(": ")
        text = rest if colon and (head in self.slots or head in self.prefixed) else text
        return self._without_prefix(text)

    def another(self, text: str) -> bool:
        """Return whether a line begins another job: this one ran, and a launcher or Slurm names other hosts,
        or another training. Another attempt at the same training is the same job."""
        if not (self.steps or self.left or self.signs.decisive()):
            return False
        hosts: Collection[str] = ()
        if match := _RUNNER.search(text):
            recipe = described(training_of(match[1]))[1]
            if self.runner and recipe != self.runner:
                return True
        if "world_info" in text or "WORLD INFO" in text:
            hosts = self.later or _world_of(text)
        elif match := _NODELIST.search(text):
            hosts = _nodes_of(match[1])
        return (
            bool(self.slots)
            and bool(hosts)
            and set(hosts) != set(self.slots)
            and not set(hosts) & set(_LOCAL)
        )

    def progress(self, step: int) -> None:
        """Record that a reader has seen the job work."""
        if step < self.steps:
            self.signs.restart()
        self.steps = step
        self.signs.progress()

    def finish(self, *, counted: bool = False) -> None:
        """Record that a reader has seen the training's end. `counted`: by the number of its last step."""
        self.signs.counted = counted and (self.signs.counted or not self.signs.finished)
        self.signs.finish()

    @property
    def restarts(self) -> int:
        """A number that grows where a process of the job ends or begins anew: what lies between two steps is
        then more than a step."""
        return self.loads + self.signs.ends

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that the log names, as launchers or, without one, NCCL name them."""
        return tuple(self.slots or self.spoken)

    @property
    def ranks(self) -> int | None:
        """The job's ranks, as far as known."""
        if self.world_size:
            return self.world_size
        slots = list(self.slots.values())
        return sum(count or 0 for count in slots) if slots and None not in slots else self.most or None

    @property
    def left(self) -> int:
        """The processes that exited successfully."""
        return self.exits.total()

    @property
    def all_left(self) -> bool:
        """Whether all that DeepSpeed's launcher started exited successfully; where nothing says how many they
        are, as many on each of several hosts."""
        if whole := self.spawned or self.most:
            return self.left >= whole
        alike = len(set(self.exits.values())) == 1 and None not in self.exits
        return alike and len(self.exits) > 1 and set(self.exits) >= {*self.slots, *self.prefixed}

    @property
    def begun(self) -> bool:
        """Whether this is the log of a job at all, however it ended."""
        return bool(self.launched or self.spawned or self.recipe or self.steps)

    def _facts(self, text: str, host: str | None) -> None:
        match = _HOSTFILE.fullmatch(text) if "slots" in text else None
        if match:
            slots = self.later if self.launched else self.slots
            if len(slots) < MOST_HOSTS and match[1] not in _LOCAL:
                slots[match[1]] = int(match[2])
            return
        if (match := _WORKERS.search(text)) and not self.slots:
            self.slots = dict.fromkeys(match[1].split(","))
        if "WORLD INFO DICT" in text or (not self.launched and "world_info" in text):
            self._world(_world_of(text))
        if "NODELIST" in text and not self.slots and (match := _NODELIST.search(text)):
            self.slots = dict.fromkeys(_nodes_of(match[1]))
        if " NCCL " in text and (match := _NCCL.match(text)):
            self._speaks(match[1])
            self.most = max(self.most, int(match[2] or 0))
        if "\tolmo" in text and (match := _OLMO.match(text)):
            self._speaks(match[1])
        if ("HOSTNAME=" in text or "NODENAME=" in text or "initialized host" in text) and (
            match := _HERE.search(text)
        ):
            self._speaks(match[1])
        if ("odes" in text or "NODES" in text) and (match := _NODES.search(text)):
            self.nodes = int(match[1]) or self.nodes
        self.slurm = self.slurm or "SLURM_JOB" in text
        self.loads += bool(_ANEW.search(text))
        if "train_batch_size" in text and (match := _BATCH.search(text)):
            self.batch = number(match[1]) or self.batch
        if "world" in text and (match := _WORLD.search(text)):
            # Megatron says it of all ranks, and DeepSpeed then of one that has its own part of the model.
            self.world_size = max(int(number(match[1]) or 0), self.world_size or 0) or None
        if "Num_devices" in text and (match := _DEVICES.search(text)):
            self.world_size = int(match[1]) or None
        if "[launch.py:" in text:
            self._process(text, host)
        elif "] cmd = " in text and not self.recipe and (match := _RUNNER.search(text)):
            self.workload, self.recipe = described(training_of(match[1]))
            self.runner = self.recipe

    def _world(self, hosts: dict[str, int]) -> None:
        """Take the hosts of DeepSpeed's launcher; without a hostfile its one host is localhost."""
        if hosts:
            if self.exits:  # those of an earlier launch
                self.exits, self.spawned = Counter(), 0
            self.launched, self.nodes, self.most = True, len(hosts), sum(hosts.values())
            if not set(hosts) & set(_LOCAL):
                self.slots = dict(hosts)

    def _speaks(self, host: str) -> None:
        if host not in _LOCAL and len(self.spoken) < MOST_HOSTS:
            self.spoken.setdefault(host)

    def _process(self, text: str, host: str | None) -> None:
        match = _PROCESS.search(text)
        if match is None:
            return
        if match[1] != "spawned":
            self.exits[host] += 1
            self.signs.last_end = self.signs.spot.number if self.signs.spot else None
            if self.steps:  # no rank leaves well while another one trains
                self.finish()
            return
        self.spawned += 1
        command = _literal(text.partition("with command: ")[2]) if self.spawned == 1 else None
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            self.workload, self.recipe = described(command)


def described(command: list[str]) -> tuple[str, str]:
    """Return what a training command trains, for people; and the command without what differs from job to
    job."""
    start = next(
        (n for n, word in enumerate(command) if word.endswith(".py") or command[max(0, n - 1)] == "-m"), 0
    )
    words, model, skip = [], "", False
    for place, word in enumerate(command[start + 1 :], start + 1):
        name, equals, value = word.partition("=")
        following = command[place + 1] if place + 1 < len(command) else ""
        if skip:
            skip = False
        elif _PLACES.fullmatch(name):
            skip = not equals and bool(following) and not following.startswith("-")
        else:
            words.append(word)
            if _MODEL.fullmatch(name) and not model:
                model = value if equals else following
    script = command[start].rpartition("/")
    stem = script[2].removesuffix(".py")
    if stem in ("main", "train", "run") and script[0]:
        stem = script[0].rpartition("/")[2]
    return (f"{model} ({stem})" if model else stem), " ".join([stem, *words])


def training_of(command: str) -> list[str]:
    """Return the words of the training within the command that DeepSpeed's runner prints, without those that
    start it on the hosts."""
    _, launcher, rest = command.partition(_LAUNCHER)
    text = rest or command
    try:
        words = shlex.split(text) if "'" in text or '"' in text else text.split()
    except ValueError:  # a quote that does not end: old versions print words as they are
        words = text.split()
    if launcher:
        return words[next((n for n, word in enumerate(words) if not word.startswith("-")), len(words)) :]
    return words[max((n for n, word in enumerate(words) if _PYTHON.fullmatch(word)), default=0) :]


def uncoloured(text: str) -> str:
    """Return a text without a terminal's colours."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def stamp(text: str) -> float | None:
    """Return the seconds of the first date and time in a line, by its writer's clock; None: there is none."""
    dated = ":" in text and ("-" in text or "/" in text)  # these two searches are faster than the pattern's
    match = _STAMP.search(text) if dated else None
    if match is None:
        return None
    year, month, day, month_first, day_next, year_last, hours, minutes, seconds = (
        int(part or 0) for part in match.groups()[:9]
    )
    if not year:
        year, month, day = year_last, month_first, day_next
    try:
        then = datetime(year, month, day, hours, minutes, seconds, tzinfo=timezone.utc)
    except ValueError:
        return None
    return then.timestamp() + (number(f"0.{match[10]}") or 0.0 if match[10] else 0.0)


def moment(text: str) -> float | None:
    """Return the seconds of a time: a number of them, an ISO 8601 date and time, or a time of day; None: it
    is none."""
    if (value := number(text)) is not None:
        return value
    text = text.replace(",", ".").removesuffix("Z")
    if match := _HALF_DAY.fullmatch(text):
        text = f"{int(match[1]) % 12 + 12 * (match[3] in 'pP'):02d}:{match[2]}"
    try:
        then = datetime.fromisoformat(f"1970-01-01T{text}" if text[2:3] == ":" else text)
        return then.replace(tzinfo=then.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


def own_stamp(text: str) -> float | None:
    """Return the same, where it is the line's own: near its beginning."""
    return stamp(text[:OWN])


def _world_of(text: str) -> dict[str, int]:
    """Return the ranks of each host, from DeepSpeed's {host: [local ranks]} in a line; empty: there are none.
    """
    match = _WORLD_INFO.search(text)
    info = _decoded(match[1]) if match else _literal(text.partition("DICT:")[2])
    if not isinstance(info, Mapping) or len(info) > MOST_HOSTS:
        return {}
    sound = all(isinstance(host, str) and isinstance(ranks, list) for host, ranks in info.items())
    return {host: len(ranks) for host, ranks in info.items()} if sound else {}


def _nodes_of(text: str) -> list[str]:
    """Return the hosts of a folded list; empty: it is none."""
    try:
        return [host.label for host in parse_hosts(text.strip("'\"")).hosts]
    except UsageError:
        return []


def _literal(text: str) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a backslash in a stranger's text
            return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _decoded(text: str) -> object:
    try:
        return json.loads(base64.urlsafe_b64decode(text))
    except (ValueError, binascii.Error, RecursionError):
        return None
