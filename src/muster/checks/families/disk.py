"""Room and rights where checkpoints, caches and temporary files go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.files import REMOTE
from muster.agent.probe import text
from muster.checks.base import Finding
from muster.checks.kinds import Case, host_check
from muster.core import families
from muster.core.checkpoints import bytes_needed
from muster.core.recipe import recipe_class
from muster.core.units import format_bytes


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return statvfs of each folder, or of the nearest existing one above it, and its file system's kind."""
    import os

    home = os.path.expanduser("~")
    given = dict(ask.get("folders") or {})
    special = (
        ("TMPDIR", "/tmp", "temporary"),
        ("TRITON_CACHE_DIR", home + "/.triton/cache", "kernels"),
        ("TORCH_EXTENSIONS_DIR", home + "/.cache/torch_extensions", "kernels"),
    )
    moved = [(given.pop(name, None) or os.environ.get(name) or usual, use) for name, usual, use in special]
    wanted = [*((path, "data") for path in given.values()), *moved]
    mounts = {}
    for line in (text("/proc/self/mounts") or "").splitlines():
        words = line.split()
        if len(words) > 2:
            mounts[words[1].replace("\\040", " ")] = words[2]  # a later mount hides an earlier one
    folders: list[dict[str, Any]] = []
    for path, use in wanted:
        path = os.path.abspath(os.path.expanduser(path or "~"))
        if any(path == before["path"] for before in folders):
            continue
        holder = path
        while not os.path.isdir(holder) and os.path.dirname(holder) != holder:
            holder = os.path.dirname(holder)
        place = os.path.realpath(holder)
        while place not in mounts and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        about: dict[str, Any] = {"path": path, "use": use, "kind": mounts.get(place)}
        try:
            stat = os.statvfs(holder)
            about["free"] = stat.f_bavail * stat.f_frsize
            about["inodes"] = stat.f_favail if stat.f_files else None  # 0: a file system that has no limit
            about["writable"] = os.access(holder, os.W_OK | os.X_OK) and not stat.f_flag & 1  # ST_RDONLY
            about["read_only"] = bool(stat.f_flag & 1)
        except (OSError, AttributeError) as error:
            about["error"] = str(error)
        folders.append(about)
    return {"folders": folders}


def checkpoint_bytes(recipe: Mapping[str, Any]) -> int | None:
    """Return the bytes of the model in fp32 and of the checkpoints that exist at once, as the planner counts
    them; None: the model's size is not known here, or there is no recipe."""
    model, kept = recipe.get("model") or {}, recipe.get("checkpoint") or {}
    base = families.size(model.get("name"))
    if base is None and (model.get("name") or not model.get("config")):
        return None
    usual = recipe_class(recipe.get("workload")).usual_type()
    kind = {"model_type": usual} if usual else {}
    try:
        count = families.parameters(
            {**kind, "vocab_size": model.get("vocab_size"), **(base or {}), **(model.get("config") or {})}
        )
    except (KeyError, TypeError, ValueError):
        return None
    if count is None:
        return None
    steps = (recipe.get("train") or {}).get("max_steps")
    model = bool(kept.get("model", True))
    return bytes_needed(count, kept.get("every"), kept.get("keep", 2), steps, model=model)


def _data(case: Case, key: str) -> list[Mapping[str, Any]]:
    return [each for each in case.answer["folders"] if each["use"] != "kernels" and each.get(key) is not None]


@host_check("disk.space", at_least=512 << 20)
def space(case: Case) -> Finding:
    """Free bytes where checkpoints, caches and temporary files go, against the recipe's checkpoints and model
    where their size is known.

    A run that fills the disk fails while it saves, and leaves a broken checkpoint.
    """
    folders = _data(case, "free")
    if not folders:
        return case.unknown("the free space could not be read")
    need = int(case.expect("at_least"))
    computed = max(need, checkpoint_bytes(case.context.recipe) or 0)
    short = []
    for folder in folders:
        wanted = need if folder["use"] == "temporary" else computed
        if folder["free"] < wanted:
            free = format_bytes(folder["free"])
            short.append(f"{free} free at {folder['path']}, {format_bytes(wanted)} needed")
    if short:
        return case.fail(
            "too little free space for checkpoints, caches or temporary files",
            "; ".join(short),
            "make room there, or launch.workdir=FOLDER, --output FOLDER or TMPDIR=FOLDER on a larger disk",
        )
    least = min(folders, key=lambda folder: int(folder["free"]))
    return case.passed(f"{format_bytes(least['free'])} free at {least['path']}")


@host_check("disk.inodes", at_least=10_000)
def inodes(case: Case) -> Finding:
    """Free inodes: the number of files that can still be created there.

    A disk without free inodes is full, however many bytes are free.
    """
    folders = _data(case, "inodes")
    if not folders:
        return case.not_applicable("the file systems do not limit the number of files")
    least = min(folders, key=lambda folder: int(folder["inodes"]))
    evidence = f"{least['inodes']} more files at {least['path']}"
    if least["inodes"] >= case.expect("at_least"):
        return case.passed(evidence)
    remedy = "remove many small files there: find FOLDER -xdev -printf '%h\\n' | sort | uniq -c | sort -n"
    return case.fail("almost no free inodes", evidence, remedy)


@host_check("disk.writable")
def writable(case: Case) -> Finding:
    """The folders' file systems are mounted for writing, and the user may write there.

    A disk that the kernel has remounted read-only after an error looks healthy until the first write.
    """
    folders = case.answer["folders"]
    broken = [f"{folder['path']}: {folder['error']}" for folder in folders if folder.get("error")]
    if broken:
        return case.fail("a file system does not respond", broken[0], "umount -l and mount it again")
    fixed = [folder["path"] for folder in folders if folder.get("read_only")]
    if fixed:
        remedy = "sudo dmesg | grep -i remount; then sudo mount -o remount,rw MOUNTPOINT"
        return case.fail("a folder is on a file system that is mounted read-only", ", ".join(fixed), remedy)
    barred = [folder["path"] for folder in folders if not folder.get("writable")]
    if barred:
        return case.fail("the user may not write to a folder", ", ".join(barred), "sudo chown $USER FOLDER")
    return case.passed()


@host_check("disk.kernel_cache")
def kernel_cache(case: Case) -> Finding:
    """Compiled kernels (Triton, torch extensions) are kept on a disk of the host's own.

    On a shared one, hosts that start together build the same kernel at once and wait for each other's locks:
    the first GPU idles, the others spin.
    """
    env = case.context.recipe.get("env") or {}
    if "TRITON_CACHE_DIR" in env and "TORCH_EXTENSIONS_DIR" in env:
        return case.passed("the recipe sets the folders")
    folders = [folder for folder in case.answer["folders"] if folder["use"] == "kernels"]
    shared = [folder for folder in folders if (folder.get("kind") or "").startswith(REMOTE)]
    if not any(folder.get("kind") for folder in folders):
        return case.unknown("the kinds of file systems could not be read")
    if not shared or len(case.context.slots) < 2:  # one host waits for no other
        return case.passed(", ".join(sorted({str(folder.get("kind")) for folder in folders})))
    return case.warn(
        "compiled kernels are kept on a network disk",
        ", ".join(f"{folder['path']} ({folder['kind']})" for folder in shared),
        "env.TRITON_CACHE_DIR=/tmp/muster-triton env.TORCH_EXTENSIONS_DIR=/tmp/muster-torch",
    )


CHECKS = (space, inodes, writable, kernel_cache)
