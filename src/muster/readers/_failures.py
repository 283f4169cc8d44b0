"""Why a job failed, from its log: the first line that decides. Pure.

Few patterns, of failures that name themselves; their ids are those of the catalogue of failures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Weight = Literal["cause", "exception", "symptom", "exit", "external"]
LONGEST = 300  # characters of a reason

# In the order of trial. A symptom says that something else has happened: it decides where nothing else does.
PATTERNS: tuple[tuple[str, Weight, str, str], ...] = (
    # id, weight, hint that a line must contain, pattern
    ("cuda_oom", "cause", "ut of memory", r"OutOfMemoryError|CUDA out of memory"),
    ("host_oom_killed", "cause", "exit", r"exits with return code = -9\b|exitcode\s*: -9\b"),
    ("host_oom_killed", "cause", "ut of memory", r"Out of memory: Killed process|[Cc]group out of memory"),
    ("slurm_oom", "cause", "oom", r"Detected \d+ oom[-_]kill event"),
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
    ("slurm_time_or_node", "cause", "DUE TO", r"CANCELLED AT \S+ DUE TO NODE FAILURE"),
    ("nccl_watchdog_timeout", "symptom", "Watchdog", r"Watchdog caught collective operation timeout"),
    ("nccl_remote_error", "symptom", "emote", r"ncclRemoteError|Connection closed by remote peer"),
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
        | {"Terminated", "Interrupt"}
    )
)
_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?=: |$)"
)
_EXITS = re.compile(
    r"exits with return code = (?P<code>-?\d{1,9})|"
    r"srun: error: .*[Ee]xited with exit code (?P<slurm>\d{1,9})|"
    r"failed \(exitcode: (?P<elastic>-?\d{1,9})\)"
)
_EXTERNAL = re.compile(
    r"Main process received SIG(?:TERM|INT), exiting|"
    r"CANCELLED AT \S+ DUE TO (?:TIME LIMIT|PREEMPTION)|"
    r"timeout: sending signal|Received (?:Signals\.)?(?:SIGTERM|SIGINT|15|2) death signal|"
    r"^(?:Terminated|KeyboardInterrupt)\b"
)
# What no program can be the cause of, among gpu_hardware: others of its signs, such as Xid 13 and 31 and an
# unspecified launch failure, are seen after a program's own errors as well.
_BROKEN = re.compile(
    r"uncorrectable ECC error|Xid \([^)]*\): (?:48|63|64|74|79|94|95)\b|has fallen off the bus|"
    r"Unable to determine the device handle"
)
_ORDER: dict[Weight, int] = {"cause": 0, "external": 1, "exception": 2, "symptom": 3, "exit": 4}


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

    A job that goes on was not ended by what was written before: of each weight, the first sign counts that
    came after the last but one mark of progress (ranks' lines may arrive out of order).
    """

    now: dict[Weight, Sign] = field(default_factory=dict)
    earlier: dict[Weight, Sign] = field(default_factory=dict)  # before the last mark of progress
    traceback: bool = False
    broke: bool = False  # it says in so many words that a process of the job did not end well

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
        """The one that explains most: a cause before what it led to; None: there is no sign."""
        signs = {**self.now, **self.earlier}
        return min(signs.values(), key=lambda sign: _ORDER[sign.weight]) if signs else None

    def _look(self, text: str, host: str | None) -> None:
        if "Traceback (most recent call last)" in text:
            self.traceback = True
            return
        left = _EXITS.search(text)
        code = next((int(code) for code in left.groups() if code), 0) if left else 0
        if code and code not in (-15, -2):  # those were ended because of another
            self.broke = True
        if _EXTERNAL.search(text):
            # What had failed by itself is ended then as well: that is no timeout.
            if not {"cause", "exception"} & {*self.now, *self.earlier}:
                self.now.setdefault("external", Sign("external", None, text, host))
            return
        for name, weight, hint, pattern in _COMPILED:
            if hint in text and pattern.search(text):
                self.now.setdefault(weight, Sign(weight, name, text, host))
                return
        if self.traceback and _EXCEPTION.match(text):
            self.now.setdefault("exception", Sign("exception", None, text, host))
        elif code:
            self.now.setdefault("exit", Sign("exit", None, text, host))


def of_hardware(failure: str | None, reason: str | None) -> bool:
    """Whether a failure is an error of a host's hardware, and of nothing else."""
    return failure == "gpu_hardware" and _BROKEN.search(reason or "") is not None


def weight_of(failure: str | None) -> int:
    """How much a failure explains: a cause, before an exception (which has no name), before a symptom."""
    if failure is None:
        return _ORDER["exception"]
    return next((_ORDER[weight] for name, weight, *_ in PATTERNS if name == failure), _ORDER["cause"])


def shortened(text: str) -> str:
    """A line as a reason: without blanks at its ends, and not longer than a person reads."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
