"""What the path of a log tells: its hosts, its rank, and which other files are of the same job. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from muster.core.errors import UsageError
from muster.core.inventory import parse_hosts

# Names of files and folders that say nothing about a host.
_GENERIC = re.compile(
    r"(?:\d+|attempt_\d+|version_\d+|(?:local_)?rank[-_.]?\d+|none_\w+|(?:std)?(?:out|err)(?:put)?|error|"
    r"logs?|metrics|train(?:ing|er)?(?:[-_.]?log)?|console|results?|throughput|events|run|jobs?|"
    r"lightning_logs|\.{0,2}|.*\.(?:tar|tgz|txz|tbz2?))",
    re.IGNORECASE,
)
_ENDING = re.compile(r"\.(?:log|txt|out|err|csv|tsv|jsonl?|gz|xz|bz2|stdout|stderr)$", re.IGNORECASE)
_RANK = re.compile(r"[-_.](?:local_)?(?:rank|gpu|task)[-_.]?\d+$", re.IGNORECASE)
_BEFORE = re.compile(r"(?:slurm-\d+|train(?:ing)?|bench(?:mark)?|log|job-?\d*)[-_.]", re.IGNORECASE)
# The end of a name, or all of it, that differs between files of one job. A rank of the job is told from one
# that begins again on every host.
_OWN = re.compile(
    r"(?:^|[-_.])(?:(?:rank|task)[-_.]?(?P<rank>\d{1,9})|(?:local_rank|local_task|gpu)[-_.]?\d+|"
    r"std(?:out|err)|out|err)$",
    re.IGNORECASE,
)
_OWN_FOLDER = re.compile(r"(?:rank[-_.]?(?P<rank>\d{1,9})|local_rank[-_.]?\d+|stdout|stderr)", re.IGNORECASE)
_ATTEMPT = re.compile(r"attempt_\d+")


class Place(NamedTuple):
    """A path without rank and stream, and the rank that its name has."""

    job: str
    rank: int | None


def place_of(path: str) -> Place:
    """Which job a file is of: `a/node07.rank3.log`, `a/attempt_0/3/stdout.log` without the 3."""
    parts = list(PurePosixPath(path).parts)
    rank: int | None = None
    for number, part in enumerate(parts[:-1]):
        local = number and part.isdecimal() and _ATTEMPT.fullmatch(parts[number - 1])
        found = _OWN_FOLDER.fullmatch(part)
        if local or found:
            parts[number] = "*"
        if found and found["rank"]:
            rank = int(found["rank"])
    name, mark, row = parts[-1].partition("#") if parts else ("", "", "")  # of a table: whose rows
    kept = mark + row
    while name:
        if found := _OWN.search(name):
            rank = int(found["rank"]) if found["rank"] else rank
        elif found := _ENDING.search(name):
            kept = found[0] + kept
        else:
            break
        name = name[: found.start()]
    return Place("/".join([*parts[:-1], name + kept]), rank)


def hosts_of_path(path: str) -> tuple[str, ...]:
    """The host that a path names: `logs/node07.rank0.log`, `node07/attempt_0/0/stdout.log`; or several, as
    `node[01-02].log`, `node01,node02.log`. Empty: all its parts are words such as `train` and `stdout`."""
    for part in reversed(PurePosixPath(path).parts):
        name = part
        while match := _ENDING.search(name):
            name = name[: match.start()]
        name = _BEFORE.sub("", _RANK.sub("", name), count=1) or name
        if not _GENERIC.fullmatch(name) and not name.startswith("/"):
            return split_hosts(name)
    return ()


def split_hosts(text: str) -> tuple[str, ...]:
    """The hosts of a list; of what is none, itself."""
    try:
        return tuple(host.label for host in parse_hosts(text.replace("+", ",")).hosts)
    except UsageError:
        return (text,)
