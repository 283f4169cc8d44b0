"""What the path of a log contains: its hosts, its rank, and which other files are of the same job. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from muster.core.inventory import split_hosts

_ENDING = re.compile(r"\.(?:log|txt|out|err|csv|tsv|jsonl?|gz|xz|bz2|stdout|stderr)$", re.IGNORECASE)
# Hosts are guessed from parts of names: between dots, underscores and commas, since no host's name has those
# two; without the words of jobs, ranks and dates at their ends. What is left is a host if it begins with a
# letter, has a digit, and is no word of these with a number: of jobs, of settings, of models and devices.
_PART = re.compile(r"(?:[^._,+\[\]]|\[[^\]]*\])+")
# Those that only count: with their number they say when, where or how often, and not what was trained.
_COUNTS = (
    r"slurm|jobs?|pbs|lsf|run|seed|fold|attempt|version|restart|retry|try|repeat|rep|pass|round|wave|session|copy|"
    r"part|group|pair|cluster|rack|zone|site|logs?|out|output|train|training"
)
_WORDS = (
    rf"{_COUNTS}|exp|experiment|trial|step|epoch|iter|iteration|ckpt|checkpoint|batch|"
    r"(?:local[-_]?)?rank|(?:local[-_]?)?task|proc|process|err|error|std(?:out|err)|"
    r"trainer|eval|test|bench|benchmark|results?|metrics|chunk|"
    r"case|issue|sample|example|demo|debug|note|gist|page|doc|script|file|question|thread|post|report|bug|"
    r"shard|phase|stage|set|config|model|data|worker[-_]?logs"
)
_SETTINGS = (
    r"[mg]?bs|lr|wd|seq|ctx|len|zero|[tpdce]p|f?s?ddp|fsdp|fp|bf|int|gpus|nodes|hosts|ranks|k8s|"
    r"cuda|torch|py|python|gpt|llama|opt|bert|roberta|vit|resnet|resnext|vgg|qwen|mistral|mixtral|phi|gemma|"
    r"pythia|bloom|falcon|deepseek|olmo|gh|gb|mi|rtx|tpu"
)
# Devices, versions and seeds, and what batch systems put behind a name: train.o12345.
_SHORT = r"a10g?|a[3468]0|[abhvp][1238]00|h20|l40?s?|[teksv][1-9]\d?|[eo]\d{4,}"
_NO_HOST = re.compile(rf"(?:{_WORDS}|{_SETTINGS})(?:[-.]?\d[\w.-]*)?|{_SHORT}", re.IGNORECASE)
_BEFORE = re.compile(rf"^(?:{_WORDS})(?:-?\d+)?-", re.IGNORECASE)
_AFTER = re.compile(rf"-(?:(?:{_WORDS}|gpu)-?\d*|\d{{8}})$", re.IGNORECASE)
_SIZE = re.compile(r"(?:^|-)(?:\d+(?:\.\d+)?[kmbt]|\d+x[nN]?\d*)(?:-|$)", re.IGNORECASE)  # opt-13b, 2x8
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9-]*(?:\[[\d,-]+\][A-Za-z0-9-]*)?")
_NODE = re.compile(
    r"(?:^|-)((?:node|host|gpu|dgx|hgx|nid|compute|worker|server)-?[\d\[][\d\[\],-]*)$", re.IGNORECASE
)
# What nobody calls a host: UUIDs, hashes, dates, and what Kubernetes puts behind the name of a pod.
_RANDOM = re.compile(
    r"[0-9a-f]{7,}|.*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}.*|.*(?<![0-9])20[0-9]{6}(?![0-9]).*|"
    r".*-[bcdf-hj-np-tv-z2456789]{7,10}-[bcdf-hj-np-tv-z2456789]{5}"
)
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_ARCHIVE = re.compile(r"\.(?:tar|tgz|txz|tbz2?)(?:\.|$)", re.IGNORECASE)
_SLURM = re.compile(r"(?:^|[/._-])slurm[-_.]?\d", re.IGNORECASE)
# The end of a name, or all of it, that differs between files of one job. A rank of the job is told from one
# that begins again on every host.
_OWN = re.compile(
    r"(?:^|[-_.])(?:(?:rank|task)[-_.]?(?P<rank>\d{1,9})|(?:local_rank|local_task|gpu)[-_.]?\d+|"
    r"std(?:out|err)|out|err)$",
    re.IGNORECASE,
)
_OWN_FOLDER = re.compile(r"(?:rank[-_.]?(?P<rank>\d{1,9})|local_rank[-_.]?\d+|stdout|stderr)", re.IGNORECASE)
_COUNTED = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?:{_COUNTS})[-_.]?\d+|\d{{6,}}|\d{{4}}-\d\d-\d\d(?:[-_T]\d\d(?:[-_:.]?\d\d){{0,2}})?)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
# What counts waves, runs, passes, jobs, tasks or iterations; alone it may be a host's name.
_COUNTER = re.compile(r"[ijprtw]\d{1,3}", re.IGNORECASE)
_WAVE = re.compile(r"[jw]-?\d{1,3}(?:-\d{1,3})?", re.IGNORECASE)  # the same, and no model nor device
_LIST = re.compile(r"[A-Za-z][A-Za-z0-9-]*\[[\d,-]+\]")
_ATTEMPT = re.compile(r"attempt_\d+")
_DRAWN = re.compile(r"(?<=_)[a-z0-9_]{8}(?=/attempt_\d)")  # what torchrun puts behind the name of a run


class LogPlace(NamedTuple):
    """A path without rank and stream, and the rank that its name has."""

    job: str
    rank: int | None


def place_of(path: str) -> LogPlace:
    """Return which job a file is of: `a/node07.rank3.log`, `a/attempt_0/3/stdout.log` without the 3."""
    parts = list(PurePosixPath(path).parts)
    rank: int | None = None
    for number, part in enumerate(parts[:-1]):
        local = number and part.isdecimal() and _ATTEMPT.fullmatch(parts[number - 1])
        match = _OWN_FOLDER.fullmatch(part)
        if local or match:
            parts[number] = "*"
        if match and match["rank"]:
            rank = int(match["rank"])
    name, mark, row = parts[-1].partition("#") if parts else ("", "", "")  # of a table: whose rows
    kept = mark + row
    while name:
        if match := _OWN.search(name):
            rank = int(match["rank"]) if match["rank"] else rank
        elif match := _ENDING.search(name):
            kept = match[0] + kept
        else:
            break
        name = name[: match.start()]
    return LogPlace("/".join([*parts[:-1], name + kept]), rank)


def hosts_of_path(path: str) -> tuple[tuple[str, ...], str]:
    """Return the host that a path seems to name, and the part that names it: `node07.rank0.log`,
    `node07/0/stdout.log`; or several: `node[01-02].log`, `node01_node02.log`. A part that is recognisably a
    host's name comes first (`host-1/sft2/`), then the nearest, and last one that rather counts waves, runs,
    passes or jobs (`h100-07/w1.log`). None where it names jobs and settings alone.
    """
    found = []
    for number, part in enumerate(reversed(PurePosixPath(_DRAWN.sub("*", path)).parts)):
        hosts = () if _ARCHIVE.search(part) else _hosts_of_name(part.partition("#")[0])
        if hosts:
            found.append((hosts, "guess: folder name" if number else "guess: file name"))
    named = (each for each in found if all(map(is_node, each[0])))
    rather = (each for each in found if not all(map(_COUNTER.fullmatch, each[0])))
    return next(named, next(rather, found[0] if found else ((), "")))


def _hosts_of_name(name: str) -> tuple[str, ...]:
    while match := _ENDING.search(name):
        name = name[: match.start()]
    if _ADDRESS.fullmatch(name):
        return (name,)
    hosts = [host for part in _PART.findall(name) if (host := _host_of(part))]
    sure = [host for host in hosts if _NODE.search(host)] or hosts
    if len({re.sub(r"[0-9]+", "", host) for host in sure}) > 1:
        return ()  # of several kinds: nobody knows which are hosts
    return tuple(dict.fromkeys(host for each in sure for host in split_hosts(each)))


def _host_of(part: str) -> str:
    """Return the host in a part of a name; empty: there is none."""
    while (shorter := _BEFORE.sub("", _AFTER.sub("", part), count=1)) != part:
        part = shorter
    if not _HOST.fullmatch(part) or not re.search(r"\d", part) or _RANDOM.fullmatch(part):
        return ""
    if _SIZE.search(part) or _NO_HOST.fullmatch(part):
        node = _NODE.search(part)
        return node[1] if node else ""
    return part


def is_host(name: str) -> bool:
    """Return whether a word can be a host's name, and is no job, rank or setting with its number."""
    return bool(_host_of(name.partition(".")[0]))


def is_node(name: str) -> bool:
    """Return whether a name is recognisably a host's: node07, gpu-a-gpu12."""
    return _NODE.search(name) is not None


def is_slurm(path: str) -> bool:
    """Return whether a path has the number of a Slurm job."""
    return _SLURM.search(path) is not None


def folder_of(path: str, hosts: Sequence[str]) -> str:
    """Return the folder of a log, with a star for hosts and for what only counts: what logs of one kind
    share."""
    return "/".join(alike_parts(path, hosts)[:-1])


def alike_parts(path: str, hosts: Sequence[str]) -> list[str]:
    """Return the parts of a path without rank and stream, with a star for hosts, numbers, and words that
    count."""
    names = {name for host in hosts for name in (host, host.partition(".")[0]) if not name.isdecimal()}
    own = [
        re.compile(rf"(?<![A-Za-z0-9]){re.escape(each)}(?![A-Za-z0-9])") for each in sorted(names, key=len)
    ]
    parts = []
    for part in PurePosixPath(place_of(_DRAWN.sub("*", path)).job).parts:
        for each in (_LIST, *reversed(own), _COUNTED):
            part = each.sub("*", part)
        whole = _ENDING.sub("", part)
        only_counts = whole.isdecimal() or _WAVE.fullmatch(whole)  # 003.log, w3/
        parts.append("*" if only_counts else re.sub(r"\*(?:[-_,+]\*)+", "*", part))
    return parts
