"""Why a host did not answer: the stage that failed, from ssh's messages and how it ended. Pure.

The messages of OpenSSH's client are in the table of failures; the other texts are those of login shells.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from muster.failures.table import find_ssh, known_failures

OLDEST_PYTHON = (3, 8)


class Stage(str, Enum):
    """The steps to a host's answer, in their order."""

    NAME = "name"
    TCP = "tcp"
    HOST_KEY = "host key"
    LOGIN = "login"
    PYTHON = "python"


@dataclass(frozen=True)
class UnreachableHost:
    """A host that gave no answer. `remedy` may have {host}: see `remedy_for`."""

    stage: Stage
    problem: str  # the same words for every host with this trouble
    evidence: str  # the line that tells, as it came
    remedy: str
    failure: str | None = None  # its id in the table of failures


@dataclass(frozen=True)
class ConnectionEnd:
    """How a connection without an answer ended."""

    code: int | None  # the client's exit code; None: it was ended here, out of patience
    errors: Sequence[str] = ()  # lines on its standard error
    printed: Sequence[str] = ()  # lines on standard output that were not the probe's
    python: str | None = None  # version of the interpreter, where it came so far
    seconds: float = 0.0
    interpreter: str = "python3"


_NO_PYTHON = re.compile(r"(?:: not found|command not found|No such file or directory|Unknown command)", re.I)
_CRASHED = re.compile(
    r"\w*(?:Error|Exception|Warning)\b|Fatal Python error|Unknown option: -|Could not find platform"
)
_HARMLESS = ("Warning: Permanently added", "debug1:", "** WARNING: connection is not using a post-quantum")


def explain(ending: ConnectionEnd) -> UnreachableHost:
    """Return the stage that failed, whose message shows it, and what to do."""
    lines = [line for line in ending.errors if line.strip() and not line.startswith(_HARMLESS)]
    if ending.python is not None:
        return _after_python(ending, lines)
    if ending.code in (255, None) and (match := find_ssh(lines)):
        failure, phrase = match.failure, match.phrase
        return UnreachableHost(
            Stage(failure.phase), phrase.problem, match.line.strip(), phrase.remedy, failure.id
        )
    last = lines[-1].strip() if lines else ""
    if ending.code is None:
        quiet = f"no answer within {ending.seconds:.0f} s" + (f"; the last words: {last}" if last else "")
        return UnreachableHost(
            Stage.LOGIN, "the login does not come to an end", quiet, "time ssh {host} true"
        )
    if ending.code == 255:
        problem = "the connection broke before the login was done"
        return UnreachableHost(
            Stage.LOGIN, problem, last or "ssh ended without a word", _remedy("ssh_closed")
        )
    return _at_the_shell(ending, lines)


def _after_python(ending: ConnectionEnd, lines: Sequence[str]) -> UnreachableHost:
    version = tuple(int(part) for part in re.findall(r"\d+", ending.python or "")[:2])
    if version < OLDEST_PYTHON:
        need = ".".join(map(str, OLDEST_PYTHON))
        return UnreachableHost(
            Stage.PYTHON,
            f"its python is older than {need}",
            f"{ending.interpreter} is Python {ending.python}",
            f"launch.python=PATH of a Python {need} or later, on every host the same",
        )
    last = lines[-1].strip() if lines else f"exit code {ending.code}"
    problem = "the connection broke while the probe ran"
    if ending.code is None:
        problem = "the probe does not come to an end"
        last = f"no answer within {ending.seconds:.0f} s" + (f"; the last words: {last}" if lines else "")
    return UnreachableHost(
        Stage.PYTHON, problem, last, "ssh {host} " + shlex.quote(f"{ending.interpreter} -V")
    )


def _at_the_shell(ending: ConnectionEnd, spoken: Sequence[str]) -> UnreachableHost:
    """Explain a login after which no interpreter started."""
    lines = [*spoken, *ending.printed]
    missing = [line for line in lines if _NO_PYTHON.search(line)]
    if ending.code == 127 or (missing and ending.code in (1, 126)):
        words = (missing or lines or ["exit code 127"])[-1].strip()
        problem, remedy = f"no {ending.interpreter} there", _remedy("remote_python_missing")
        return UnreachableHost(Stage.PYTHON, problem, words, remedy, failure="remote_python_missing")
    crashed = [line for line in spoken if _CRASHED.match(line)]
    if crashed or ending.code == 126:
        words = (crashed or lines or ["exit code 126"])[-1].strip()
        problem = f"{ending.interpreter} does not run there"
        return UnreachableHost(Stage.PYTHON, problem, words, _remedy("remote_python_missing"))
    words = lines[-1].strip() if lines else f"it ended with exit code {ending.code}"
    return UnreachableHost(Stage.LOGIN, "the login runs no commands", words, _remedy("ssh_closed"))


def _remedy(failure: str) -> str:
    return known_failures()[failure].remedy


def remedy_for(remedy: str, addresses: Sequence[str]) -> str:
    """Return the remedy with its hosts in place. Commands that only name the host become a loop over several.
    """
    if "{host}" not in remedy:
        return remedy
    if len(addresses) == 1:
        return remedy.replace("{host}", addresses[0])
    if remedy.startswith("ssh-copy-id "):
        return f"for host in {' '.join(addresses)}; do ssh-copy-id $host; done"
    return remedy.replace("{host}", "HOST")
