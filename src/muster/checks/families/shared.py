"""Which hosts share a disk: each leaves a file, and looks for the files of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import at_end
from muster.checks.base import Answers, Context, Finding
from muster.checks.kinds import Case, Judge, absent, engine, group_check
from muster.core.hostlist import fold_hosts


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Leave an empty file in each folder that exists; it is removed when the probe ends. Hosts that leave
    before the second round leave none: the others would count it or not, by chance."""
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
        """Remove files of a probe that was killed a day ago or earlier."""
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
    """Return per folder the first host, by name, whose file is here, and how many hosts' files are. That
    tells groups apart without a list of all hosts from every host."""
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


@group_check("shared.folders", required=False)
def folders(answers: Answers, peers: Answers, context: Context) -> Judge:
    """The folders of runs and caches are shared by all hosts, or by none.

    Where most hosts share a folder, one that does not has probably lost a mount. FSDP's checkpoints need a
    shared folder. required: true fails hosts where not all share every folder.
    """
    views = {host: answer.get("sees") or {} for host, answer in peers.items()}
    groups: dict[str, dict[str, list[str]]] = {}  # folder -> first host -> those that share it
    for host, seen in views.items():
        for folder, sharing in seen.items():
            group = groups.setdefault(folder, {})
            if sharing:
                group.setdefault(sharing[0], []).append(host)

    def judge(case: Case) -> Finding:
        if context.one_machine or len(answers) < 2:
            return case.not_applicable("there is only one host")
        if case.host not in peers:
            return absent(case)
        if not views[case.host]:
            wrote = case.answer.get("wrote") or {}
            return case.unknown(
                "no folder is writable", ", ".join(f"{path}: {why}" for path, why in wrote.items())
            )
        return _shares(case, views[case.host], groups)

    return judge


def _shares(case: Case, mine: Mapping[str, Any], groups: Mapping[str, Mapping[str, list[str]]]) -> Finding:
    apart, alone, together = [], [], []
    for folder in sorted(groups):
        most = max(groups[folder], key=lambda first: len(groups[folder][first]))
        seen = mine.get(folder)
        if seen and len(groups[folder]) == 1:
            together.append(folder)
        elif seen and len(groups[folder][most]) == 1:
            alone.append(folder)
        elif not seen or seen[0] != most:
            apart.append(f"{folder} is shared by {fold_hosts(groups[folder][most])}, and not with this host")
    if apart:
        problem = "the host does not share a folder that the others share"
        return case.warn(problem, "; ".join(apart), "mount | grep nfs; sudo mount -a")
    words = "; ".join(
        f"{what}: {', '.join(paths)}"
        for what, paths in (("shared by all", together), ("each host has its own", alone))
        if paths
    )
    if alone and case.expect("required"):
        remedy = "mount a network file system on every host"
        return case.fail("a folder is not shared by the hosts", words, remedy)
    kind = engine(case.context)
    if (
        alone
        and not together
        and kind.one_disk
        and (case.context.recipe.get("checkpoint") or {}).get("every")
    ):
        problem = f"{kind.called}'s checkpoints need a folder that all hosts share"
        return case.warn(problem, words, "--output on a shared disk")
    return case.passed(words)


CHECKS = (folders,)
