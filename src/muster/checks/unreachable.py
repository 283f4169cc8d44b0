"""Why a host did not answer: the stage that failed, from what ssh said and how it ended. Pure.

The texts are those of OpenSSH's client and of the shells that people have for a login.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

OLDEST_PYTHON = (3, 8)


class Stage(str, Enum):
    """The steps to a host's answer, in their order."""

    NAME = "name"
    TCP = "tcp"
    HOST_KEY = "host key"
    LOGIN = "login"
    PYTHON = "python"


@dataclass(frozen=True)
class Unreached:
    """A host that gave no answer. `remedy` may have {host}: see `remedy_for`."""

    stage: Stage
    problem: str  # the same words for every host with this trouble
    said: str  # the line that tells, as it came
    remedy: str


@dataclass(frozen=True)
class Ending:
    """How a connection ended that gave no answer."""

    code: int | None  # the client's exit code; None: it was ended here, out of patience
    said: Sequence[str] = ()  # lines on its standard error
    printed: Sequence[str] = ()  # lines on standard output that were not the probe's
    python: str | None = None  # version of the interpreter, where it came so far
    seconds: float = 0.0
    interpreter: str = "python3"


_RESOLVE = "getent hosts {host}; an entry in /etc/hosts or DNS, or HostName in ~/.ssh/config"
_START = "on {host}: sudo systemctl enable --now ssh || sudo systemctl enable --now sshd"
_ROUTE = "ping -c 3 {host}; nc -vz -w 5 {host} 22; then its power, its network and the firewall"
_BUSY = (
    "on {host}: journalctl -u ssh -u sshd -n 50; "
    "where it speaks of MaxStartups: MaxStartups 200 in /etc/ssh/sshd_config"
)
_CHANGED = (
    "compare with ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub on {host}; "
    "only where it is the same: ssh-keygen -R {host}; ssh-keyscan {host} >> ~/.ssh/known_hosts"
)
_UNKNOWN = (
    "ssh-keyscan {host} >> ~/.ssh/known_hosts; "
    "compare ssh-keygen -lF {host} with ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub on {host}"
)
_METHODS = "ssh -v {host} true shows what either side offers; bring OpenSSH up to date on both"
_COPY_KEY = "ssh-copy-id {host}"
_ONE_KEY = "IdentitiesOnly yes and IdentityFile in ~/.ssh/config; then ssh-copy-id {host}"
_ACCOUNT = "on {host}: getent passwd, chage -l and journalctl -u ssh -u sshd, for the user who logs in"
_CLIENT = "ssh -G {host} shows the client's settings; mend ~/.ssh/config or launch.ssh_options"
_PYTHON = "on {host}: sudo apt-get install -y python3 || sudo dnf install -y python3; or launch.python=PATH"

_CONNECT = r"ssh: connect to (?:host|address) .*: "
# What ssh itself says: how a line begins, and what it means. The first pattern that fits any line counts.
_SSH_SAYS: tuple[tuple[str, Stage, str, str], ...] = (
    (r"ssh: Could not resolve hostname ", Stage.NAME, "the name is not known here", _RESOLVE),
    (r"@\s+WARNING: REMOTE HOST IDENTIFICATION", Stage.HOST_KEY, "the host key has changed", _CHANGED),
    (r"No \S+ host key is known for ", Stage.HOST_KEY, "the host key is not known here", _UNKNOWN),
    (r"Host key verification failed", Stage.HOST_KEY, "the host key is not known here", _UNKNOWN),
    (r"Unable to negotiate with ", Stage.HOST_KEY, "ssh and sshd have no method in common", _METHODS),
    (_CONNECT + "Connection refused", Stage.TCP, "the ssh port is closed", _START),
    (_CONNECT + r"\w+ timed out", Stage.TCP, "nothing answers at the address", _ROUTE),
    (_CONNECT, Stage.TCP, "there is no way to the address", _ROUTE),
    (r"Connection (?:to .* )?timed out", Stage.TCP, "the connection is taken, and nothing is said", _BUSY),
    (r"(?:kex|ssh)_exchange_identification: ", Stage.TCP, "sshd hangs up at once", _BUSY),
    (r"banner exchange: |Bad remote protocol", Stage.TCP, "what answers there is not an sshd", _ROUTE),
    (r"channel \d+: open failed|stdio forwarding failed", Stage.TCP, "the jump host cannot reach it", _ROUTE),
    (r"(?:\S+: )?Permission denied[ (,]", Stage.LOGIN, "the login is refused", _COPY_KEY),
    (r".*: Too many authentication failures", Stage.LOGIN, "the login is refused", _ONE_KEY),
    (r".*: Bad configuration option", Stage.LOGIN, "the ssh client refuses its settings", _CLIENT),
    (r"Bad owner or permissions on ", Stage.LOGIN, "the ssh client refuses its settings", _CLIENT),
    (
        r"command-line[: ]|.*no argument after keyword",
        Stage.LOGIN,
        "the ssh client refuses its settings",
        _CLIENT,
    ),
    (r"Received disconnect|Disconnected from ", Stage.LOGIN, "sshd hangs up at the login", _ACCOUNT),
    (r"Connection (?:to \S+ )?(?:closed|reset) by ", Stage.LOGIN, "sshd hangs up at the login", _ACCOUNT),
)

_NO_PYTHON = re.compile(r"(?:: not found|command not found|No such file or directory|Unknown command)", re.I)
_CRASHED = re.compile(
    r"\w*(?:Error|Exception|Warning)\b|Fatal Python error|Unknown option: -|Could not find platform"
)
_HARMLESS = ("Warning: Permanently added", "debug1:", "** WARNING: connection is not using a post-quantum")


def explain(ending: Ending) -> Unreached:
    """The stage that failed, in whose words, and what to do."""
    said = [line for line in ending.said if line.strip() and not line.startswith(_HARMLESS)]
    if ending.python is not None:
        return _after_python(ending, said)
    if ending.code in (255, None):
        for pattern, stage, problem, remedy in _SSH_SAYS:
            for line in said:
                if re.match(pattern, line):
                    return Unreached(stage, problem, line.strip(), remedy)
    last = said[-1].strip() if said else ""
    if ending.code is None:
        quiet = f"no answer within {ending.seconds:.0f} s" + (f"; the last words: {last}" if last else "")
        return Unreached(Stage.LOGIN, "the login does not come to an end", quiet, "time ssh {host} true")
    if ending.code == 255:
        problem = "the connection broke before the login was done"
        return Unreached(Stage.LOGIN, problem, last or "ssh ended without a word", _ACCOUNT)
    return _at_the_shell(ending, said)


def _after_python(ending: Ending, said: Sequence[str]) -> Unreached:
    version = tuple(int(part) for part in re.findall(r"\d+", ending.python or "")[:2])
    if version < OLDEST_PYTHON:
        need = ".".join(map(str, OLDEST_PYTHON))
        return Unreached(
            Stage.PYTHON,
            f"its python is older than {need}",
            f"{ending.interpreter} is Python {ending.python}",
            f"launch.python=PATH of a Python {need} or later, on every host the same",
        )
    last = said[-1].strip() if said else f"exit code {ending.code}"
    problem = "the connection broke while the probe ran"
    if ending.code is None:
        problem = "the probe does not come to an end"
        last = f"no answer within {ending.seconds:.0f} s" + (f"; the last words: {last}" if said else "")
    return Unreached(Stage.PYTHON, problem, last, "ssh {host} " + shlex.quote(f"{ending.interpreter} -V"))


def _at_the_shell(ending: Ending, said: Sequence[str]) -> Unreached:
    """Logged in, and then no interpreter came to say a word."""
    lines = [*said, *ending.printed]
    missing = [line for line in lines if _NO_PYTHON.search(line)]
    if ending.code == 127 or (missing and ending.code in (1, 126)):
        words = (missing or lines or ["exit code 127"])[-1].strip()
        return Unreached(Stage.PYTHON, f"no {ending.interpreter} there", words, _PYTHON)
    crashed = [line for line in said if _CRASHED.match(line)]
    if crashed or ending.code == 126:
        words = (crashed or lines or ["exit code 126"])[-1].strip()
        return Unreached(Stage.PYTHON, f"{ending.interpreter} does not run there", words, _PYTHON)
    words = lines[-1].strip() if lines else f"it ended with exit code {ending.code}"
    return Unreached(Stage.LOGIN, "the login runs no commands", words, _ACCOUNT)


def remedy_for(remedy: str, addresses: Sequence[str]) -> str:
    """The remedy with its hosts in place. Commands that only name the host become a loop over several."""
    if "{host}" not in remedy:
        return remedy
    if len(addresses) == 1:
        return remedy.replace("{host}", addresses[0])
    if remedy.startswith("ssh-copy-id "):
        return f"for host in {' '.join(addresses)}; do ssh-copy-id $host; done"
    return remedy.replace("{host}", "HOST")
