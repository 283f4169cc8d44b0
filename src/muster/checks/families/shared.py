"""Which hosts share a disk: each leaves a file, and looks for the files of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from muster.agent.probe import at_end
from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, absent, each, engine
from muster.core.hostlist import fold_hosts

CHECKS = (
    Check(
        "shared.folders",
        "The folders of runs and caches are shared by all hosts, or by none.",
        "Where most hosts share a folder, one that does not has probably lost a mount. FSDP's checkpoints "
        "need a "
        "shared folder. required: true fails hosts where not all share every folder.",
        {"required": False},
    ),
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Leave an empty file in each folder that exists; it goes when the probe does. Hosts that leave before
    the second round leave none: the others would count it or not, as it happens."""
    import os
    import time

    if ask["host"] not in (ask.get("hosts") or {}):
        return {"wrote": {}, "stays": False}
    own = ("TMPDIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")  # these need not be shared
    wrote: dict[str, Any] = {}
    files: list[str] = []

    def remove() -> None:
        for file in files:
            try:
                os.unlink(file)
            except OSError:
                pass

    def sweep(folder: str) -> None:
        """Remove what a probe has left that was killed a day ago or before."""
        for name in os.listdir(folder):
            file = os.path.join(folder, name)
            if name.startswith(".muster-check-") and time.time() - os.lstat(file).st_mtime > 86400:
                os.unlink(file)

    at_end(remove)
    for path in [path for name, path in (ask.get("folders") or {}).items() if name not in own]:
        folder = os.path.abspath(os.path.expanduser(path or "~"))
        while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        if folder in wrote or folder == "/":
            continue
        file = os.path.join(folder, ".muster-check-%s-%s" % (ask["token"], ask["host"]))
        files.append(file)
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            wrote[folder] = True
        except OSError as error:
            wrote[folder] = error.strerror or "cannot be written"
        try:
            sweep(folder)
        except OSError:
            pass
    return {"wrote": wrote, "stays": True}


def probe_peers(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Per folder: the first host, by name, whose file is here, and how many hosts' files are. That tells
    groups apart without a list of all hosts from every host."""
    import os

    sees: dict[str, Any] = {}
    prefix = ".muster-check-%s-" % ask["token"]
    for folder, wrote in ((ask.get("peers") or {}).get(ask["host"]) or {}).get("wrote", {}).items():
        if wrote is not True:
            continue
        try:
            hosts = [name[len(prefix) :] for name in os.listdir(folder) if name.startswith(prefix)]
        except OSError:
            continue
        sees[folder] = [min(hosts), len(hosts)] if hosts else None
    return {"sees": sees}


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Groups of hosts that share, per folder."""
    check = "shared.folders"
    if context.one_machine or len(answers) < 2:
        return each(check, answers, lambda at, a: at.not_applicable("there is only one host"))
    folders = sorted({folder for answer in peers.values() for folder in answer.get("sees") or {}})
    return each(check, answers, lambda at, a: _shares(at, folders, answers, peers, context))


def _shares(about: About, folders: list[str], answers: Answers, peers: Answers, context: Context) -> Finding:
    if about.host not in peers:
        return absent(about, answers[about.host])
    mine = peers[about.host].get("sees") or {}
    if not mine:
        words = ", ".join(f"{path}: {why}" for path, why in (answers[about.host].get("wrote") or {}).items())
        return about.unknown("no folder is writable", words)
    apart, alone, together = [], [], []
    for folder in folders:
        leaders = {host: (answer.get("sees") or {}).get(folder) for host, answer in peers.items()}
        groups = Counter(seen[0] for seen in leaders.values() if seen)
        seen = mine.get(folder)
        if len(groups) == 1 and seen:
            together.append(folder)
        elif seen and max(groups.values()) == 1:
            alone.append(folder)
        else:
            most = groups.most_common(1)[0][0]
            same = [host for host, other in leaders.items() if other and other[0] == most]
            if not seen or seen[0] != most:
                apart.append(f"{folder} is shared by {fold_hosts(same)}, and not with this host")
    if apart:
        return about.warn(
            "the host does not share a folder that the others share",
            "; ".join(apart),
            "mount | grep nfs; sudo mount -a",
        )
    kind = engine(context)
    needs = kind.one_disk and (context.recipe.get("checkpoint") or {}).get("every")
    words = "; ".join(
        text
        for text in (
            f"shared by all: {', '.join(together)}" if together else "",
            f"each host has its own: {', '.join(alone)}" if alone else "",
        )
        if text
    )
    if alone and context.expect(about.check, "required"):
        return about.fail(
            "a folder is not shared by the hosts", words, "mount a network file system on every host"
        )
    if alone and not together and needs:
        return about.warn(
            f"{kind.called}'s checkpoints need a folder that all hosts share",
            words,
            "--output on a shared disk",
        )
    return about.passed(words)
