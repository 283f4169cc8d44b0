"""Why a job failed, from its log: the first line that decides. Pure.

Few patterns, of failures that name themselves; their ids are those of the catalogue of failures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from muster.judging.readers._paths import split_hosts

Weight = Literal["cause", "scheduler", "limit", "killed", "external", "crash", "exception", "symptom", "exit"]
LONGEST = 300  # characters of a reason

# In the order of trial. A symptom says that something else has happened: it decides where nothing else does.
PATTERNS: tuple[tuple[str, Weight, str, str], ...] = (
    # id, weight, hint that a line must contain, pattern
    ("cuda_oom", "cause", "ut of memory", r"OutOfMemoryError|CUDA out of memory"),
    ("slurm_oom", "scheduler", "oom", r"Detected \d+ oom[-_]kill event"),
    ("slurm_time_or_node", "scheduler", "DUE TO", r"CANCELLED(?: AT \S+)? DUE TO NODE FAILURE"),
    ("slurm_time_or_node", "scheduler", "Node failure on", r"error: Node failure on \S"),
    ("host_oom_killed", "killed", "exit", r"exits with return code = -9\b|exitcode\s*: -9\b"),
    ("host_oom_killed", "cause", "ut of memory", r"Out of memory: Killed process|[Cc]group out of memory"),
    (
        "gpu_hardware",
        "cause",
        "",
        r"uncorrectable ECC error|NVRM: Xid|has fallen off the bus|Unable to determine the device handle|"
        r"CUDA error: (?:unspecified launch failure|hardware stack error)",
    ),
    ("illegal_memory_access", "cause", "CUDA error", r"an illegal memory access|device-side assert"),
    ("no_gpu", "cause", "", r"no GPU resources available|No CUDA GPUs are available|invalid device ordinal"),
    ("driver_too_old", "cause", "river", r"driver on your system is too old|driver version is insufficient"),
    ("no_kernel_image", "cause", "no kernel image", r"no kernel image is available"),
    ("ssh_permission_denied", "cause", "Permission denied", r"Permission denied \((?:publickey|password)"),
    ("ssh_host_key", "cause", "ost ", r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ("ssh_unreachable", "cause", "ssh: connect", r"ssh: connect to host \S+ port \d+: "),
    ("dns_unresolved", "cause", "resolve hostname", r"Could not resolve hostname"),
    ("ds_hostfile_unreachable", "cause", "not reachable via ssh", r"was not reachable via ssh"),
    ("port_in_use", "cause", "ddress", r"EADDRINUSE|Address already in use"),
    ("disk_full", "cause", "No space left", r"No space left on device"),
    ("nofile", "cause", "Too many open files", r"Too many open files"),
    ("remote_module_missing", "cause", "No module", r"(?:ModuleNotFoundError|python[\d.]*): No module named"),
    ("ds_batch_mismatch", "cause", "train_batch_size is not equal", r"Check batch related parameters"),
    ("loss_scale_min", "cause", "loss scale already at minimum", r"loss scale already at minimum"),
    ("op_build_failed", "cause", "rror building extension", r"Error building extension"),
    ("nccl_watchdog_timeout", "symptom", "Watchdog", r"Watchdog caught collective operation timeout"),
    ("nccl_remote_error", "symptom", "emote", r"ncclRemoteError|Connection closed by remote peer"),
    ("peer_collapse", "symptom", "closed by peer", r"Connection closed by peer"),
    ("nccl_system_error", "symptom", "ystem", r"ncclSystemError|unhandled system error"),
    ("rdzv_clients_missing", "symptom", "waiting for clients", r"Timed out after \d+ seconds waiting"),
    ("rdzv_connect_timeout", "symptom", "has timed out after", r"client socket has timed out after"),
    ("peer_collapse", "symptom", "", r"Connection reset by peer|Broken pipe|exits with return code = -6\b"),
    ("elastic_child_failed", "symptom", "ChildFailedError", r"ChildFailedError"),
)
_COMPILED = tuple((name, weight, hint, re.compile(pattern)) for name, weight, hint, pattern in PATTERNS)
HINTS = tuple(
    sorted(
        ({hint for _, _, hint, _ in PATTERNS} - {"", "exit"})
        | {"rror", "Exception", "Traceback", "exit code", "exitcode", "exits with", "signal", "SIGTERM"}
        | {"SIGINT", "CANCELLED", "Xid", "fallen off"}
        | {"no GPU", "No CUDA", "device ordinal", "device handle", "Broken pipe", "reset by peer"}
        | {"Terminated", "Interrupt", "walltime", "TERM_RUNLIMIT", "Segmentation", "Bus error", "exited with"}
        | {"  host      : "}
    )
)
_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?=: |$)"
)
_EXITS = re.compile(
    r"exits with return code = (?P<code>-?\d{1,9})|"
    r"srun: error: .*[Ee]xited with exit code (?P<slurm>\d{1,9})|"
    r"pdsh@\S+: \S+: ssh exited with exit code (?P<pdsh>\d{1,9})|"
    r"(?:failed \(exitcode|exitcode +): (?P<elastic>-?\d{1,9})\b"
)
# A signal that a program brings upon itself: 4, 5, 7, 8 and 11.
_CRASH = re.compile(
    r"(?:exits with return code =|exitcode *:) -(?:4|5|7|8|11)\b|exited on signal (?:4|5|7|8|11)\b|"
    r"srun: error: \S+: tasks? [\d,-]+: (?:Segmentation fault|Bus error|Illegal instruction)"
)
# What a scheduler says of a time that is over; and the signals that it sends, or others do.
_TIME = re.compile(
    r"CANCELLED(?: AT \S+)? DUE TO (?:TIME LIMIT|PREEMPTION)|job killed: walltime|TERM_RUNLIMIT"
)
_EXTERNAL = re.compile(
    r"Main process received SIG(?:TERM|INT), exiting|got signal: (?:15|2)\b|killed by signal: Terminated|"
    r"CANCELLED AT \S+ \*\*\*|timeout: sending signal|"
    r"Received (?:Signals\.)?(?:SIGTERM|SIGINT|15|2) death signal|^(?:Terminated|KeyboardInterrupt)\b"
)
# Hosts that a line itself names: "srun: error: node07: task 3: ...", "srun: error: Node failure on node07",
# "pdsh@head: node07: ssh exited ...", "ssh: connect to host node07 port 22: ...", Open MPI's "on node n7".
_WHO = re.compile(
    r"srun: error: (?P<srun>[\w.,\[\]-]+): tasks? [\d,-]+: |error: Node failure on (?P<node>[\w.,\[\]-]+)|"
    r"pdsh@\S+: (?P<pdsh>[\w.-]+): ssh exited|ssh: connect to host (?P<ssh>\S+) port|"
    r"on node (?P<mpi>\S+) exited on signal"
)
_ELASTIC = re.compile(r"\s+host +: (\S+)")  # torchrun's account of a process: its host, then its exit code
# What no program can be the cause of, among gpu_hardware: others of its signs, such as Xid 13 and 31 and an
# unspecified launch failure, are seen after a program's own errors as well.
_BROKEN = re.compile(
    r"uncorrectable ECC error|Xid \([^)]*\): (?:48|63|64|74|79|94|95)\b|has fallen off the bus|"
    r"Unable to determine the device handle"
)
_ORDER: dict[Weight, int] = {weight: number for number, weight in enumerate(get_args(Weight))}
# Ways to end that one host does not cause in another: a host with one of them failed by itself.
_ALIKE: tuple[frozenset[Weight], ...] = (frozenset(("killed", "crash")),)
_MOST = 10_000  # hosts whose signs are kept


@dataclass(frozen=True)
class Sign:
    """A line that may be why."""

    weight: Weight
    failure: str | None
    text: str
    host: str | None


@dataclass
class Signs:
    """What speaks for a failure, as lines come in.

    A job that goes on was not ended by what was written before: of each weight and host, the first sign
    counts that came after the last but one mark of progress (ranks' lines may arrive out of order).
    """

    now: dict[tuple[Weight, str | None], Sign] = field(default_factory=dict)
    earlier: dict[tuple[Weight, str | None], Sign] = field(default_factory=dict)  # before the last mark
    traceback: bool = False
    broke: bool = False  # it says in so many words that a process of the job did not end well
    elastic: str | None = None  # the host of the process that torchrun gives account of

    def line(self, text: str, host: str | None) -> None:
        """Look at a line, without its host's prefix."""
        for hint in HINTS:
            if hint in text:
                self._look(text, host)
                return

    def progress(self) -> None:
        """Another step was done."""
        if self.now or self.earlier:
            self.now, self.earlier = {}, self.now

    def decisive(self) -> Sign | None:
        """The one that explains most: a cause before what it led to; None: there is no sign.

        What the scheduler says comes before the signals that it sent; a signal that a host's program brought
        upon itself before the exceptions of others.
        """
        return min(self._all(), key=lambda sign: _ORDER[sign.weight], default=None)

    def by_themselves(self) -> tuple[tuple[str, str | None], ...]:
        """(host, failure) of all hosts that ended in the decisive way, and not because of another."""
        best = self.decisive()
        if best is None:
            return ()
        alike = next((each for each in _ALIKE if best.weight in each), frozenset((best.weight,)))
        found: dict[str, str | None] = {}
        for sign in [best, *(sign for sign in self._all() if sign.weight in alike)]:
            if sign.host:
                found.setdefault(sign.host, sign.failure)
        return tuple(found.items())

    def _all(self) -> list[Sign]:
        """The earliest first. Where a program raised an exception and then crashed, it is the exception."""
        signs = self.earlier | {key: sign for key, sign in self.now.items() if key not in self.earlier}
        return [
            sign
            for (weight, host), sign in signs.items()
            if weight != "crash" or ("exception", host) not in signs
        ]

    def _add(self, weight: Weight, failure: str | None, text: str, hosts: Sequence[str | None]) -> None:
        for host in hosts:
            if len(self.now) < _MOST:
                self.now.setdefault((weight, host), Sign(weight, failure, text, host))

    def _look(self, text: str, host: str | None) -> None:
        if "Traceback (most recent call last)" in text:
            self.traceback = True
            return
        if match := _ELASTIC.match(text):
            self.elastic = match[1]
            return
        left = _EXITS.search(text)
        code = next((int(code) for code in left.groups() if code), 0) if left else 0
        if code and code not in (-15, -2):  # those were ended because of another
            self.broke = True
        named = _WHO.search(text)
        who = next((name for name in named.groups() if name), "") if named else ""
        hosts: Sequence[str | None] = split_hosts(who) if who else (host or (self.elastic if left else None),)
        said = {weight for weight, _ in (*self.now, *self.earlier)}
        if _TIME.search(text):
            # What had failed by itself is ended then as well: that is no timeout.
            if not {"cause", "exception", "crash"} & said:
                self._add("limit", None, text, (None,))
            return
        if _EXTERNAL.search(text):
            if not {"cause", "exception", "crash", "killed"} & said:
                self._add("external", None, text, hosts)
            return
        for name, weight, hint, pattern in _COMPILED:
            if hint in text and pattern.search(text):
                # Slurm says on which host the step was, and not which failed.
                nobody = weight == "scheduler" and "CANCELLED" in text
                self._add(weight, name, text, (None,) if nobody else hosts)
                return
        if _CRASH.search(text):
            self.broke = True
            self._add("crash", None, text, hosts)
        elif self.traceback and _EXCEPTION.match(text):
            self._add("exception", None, text, hosts)
        elif code:
            self._add("exit", None, text, hosts)


def of_hardware(failure: str | None, reason: str | None) -> bool:
    """Whether a failure is an error of a host's hardware, and of nothing else."""
    return failure == "gpu_hardware" and _BROKEN.search(reason or "") is not None


def weight_of(failure: str | None) -> int:
    """How much a failure explains: a cause, before an exception (which has no name), before a symptom."""
    if failure is None:
        return _ORDER["exception"]
    return next((_ORDER[weight] for name, weight, *_ in PATTERNS if name == failure), _ORDER["cause"])


def shortened(text: str) -> str:
    """A line as a reason: without blanks at its ends, and of a long one both ends, LONGEST in all."""
    line = " ".join(text.split())
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[: half - 3]} ... {line[2 - half :]}"
