"""What a check is. A family of checks is a module with

    CHECKS: tuple[Check, ...]                 its questions, as `muster check --list` explains them
    probe(ask) -> dict                        runs on every host; optional
    probe_peers(ask) -> dict                  the same, in the second round, among hosts that stay connected;
                                              optional
    judge(answers, peers, context)            pure: what the hosts said -> one Finding per host and check;
                                              without a probe each host's answer is empty. Not needed where
                                              every check has a judge of its own (see kinds.py)
    SECONDS: float                            for the first round's probe, where the usual time (15) is too
                                              short; optional
    judge_group(data, context)                pure, optional: the same for what real ranks on the hosts
                                              measured (core.fabric.GroupFabric as plain data)

A probe is shipped as its own source: Python 3.8, the standard library alone, every import inside it, nothing
of Muster. Its answer is plain JSON. Where a probe raises or is not done in time, the family's checks are
UNKNOWN there, and `judge` does not see that host; an answer of `error` alone means the same. A probe may call
what muster.agent.probe ships with it, by these names:

    text(path) -> str | None                  a file's text, stripped; None where it cannot be read
    run(argv, seconds) -> (code, out, err)    a program; code None: it did not start, or was killed as slow
    at_end(function)                          called before the probe leaves: remove files, close ports

`ask` is one dict, the same for every family:

    host, address    this host's label, and its name as the connection uses it
    hosts            {label: address}: the hosts that stay for the second round, as the user gave them
    slots            this host's slots as given, or None
    world_size       planned ranks, or None where that depends on what the hosts have
    token            hex digits that no other run has: for names of files, and for what peers say to each
                     other
    launcher         ssh, local, ...
    one_machine      whether the hosts are pretend hosts of one machine
    python           the ranks' interpreter where the recipe names one, else None
    controller_python  taken where `python` is None and this file is there; else it is the probe's own
    packages         names of the packages whose versions are asked for
    folders          {name: path}: where checkpoints, caches and temporary files go, by the variable that
                     moves them (HF_HOME, TMPDIR ...), `work` or `here`; `~` is not expanded yet
    timeout          seconds that the family's probe has
    port             the recipe's rendezvous port, or None
    peers            second round: label -> the family's own first answer, of all hosts that stayed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Answers = Mapping[str, Mapping[str, Any]]  # host's label -> the family's answer


class Level(str, Enum):
    """How a check ended on a host. NOTE: a fact that needs no action. UNKNOWN: it could not be found out,
    which is not a pass."""

    PASS = "pass"
    NOT_APPLICABLE = "not applicable"
    NOTE = "note"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """A question. `expects` has the defaults that a profile overrides: numbers stay numbers."""

    name: str  # topic.question, such as limits.open_files
    asks: str  # what is looked at, one sentence
    why: str  # what happens to a job otherwise
    expects: Mapping[str, Any] = field(default_factory=dict)
    judge: Callable[[Answers, Answers, Context], list[Finding]] | None = None  # None: its family judges

    @property
    def topic(self) -> str:
        """The first part of the name, by which checks are listed."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Finding:
    """The answer to one check on one host (or between hosts: then `host` is the one to repair).

    `problem` is the kind of trouble: the same text for every host that has it, so that hosts fold into one
    line.
    """

    check: str
    host: str
    level: Level
    problem: str = ""
    evidence: str = ""  # what was seen on this host
    remedy: str | None = None  # a command or setting that one can paste


@dataclass(frozen=True)
class Transport:
    """How a host was reached: the facts of the connection itself."""

    seconds: float  # from the first byte to the first answer
    noise: tuple[str, ...] = ()  # lines that the login printed, and not the probe
    clock_offset: float | None = None  # seconds that the host's clock is ahead of this machine's
    clock_error: float | None = None  # half the round trip: the offset is no better known than this
    python: str | None = None  # version of the interpreter that ran the probe


@dataclass(frozen=True)
class Context:
    """What judges need besides the answers."""

    expects: Mapping[str, Mapping[str, Any]]  # check -> expectations: defaults with the profile's on top
    slots: Mapping[str, int | None]  # host -> slots as given; None: one per GPU
    world_size: int | None  # planned ranks; None: not known before the hosts have answered
    gpus_expected: bool | None  # None: found out from what the hosts have
    transport: Mapping[str, Transport]
    recipe: Mapping[str, Any]  # as plain data
    launcher: str
    one_machine: bool = False  # pretend hosts of one machine

    def expect(self, check: str, key: str) -> Any:
        """Return an expectation. Raises KeyError for one that neither the check nor the profile has."""
        return self.expects[check][key]
