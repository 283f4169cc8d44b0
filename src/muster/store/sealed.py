"""Sealed folders: a manifest of every file with its size and hash, and what no longer agrees with it.

Ranks seal checkpoints with it. The agent runs this very text on hosts to check them, so it uses the standard
library alone, Python >= 3.8, and imports nothing of muster.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Collection, Dict, List, Optional, Tuple

MANIFEST = "complete.json"
PIECE = 1 << 26  # bytes that one thread hashes; a file of many pieces has the hash of its pieces' hashes
BLOCK = 1 << 20
UNFINISHED = "it has no manifest: writing it was not finished"
UNREADABLE = "its manifest cannot be read"
ALTERED = "its manifest is not the one that the rank wrote"

Files = Dict[str, Dict[str, Any]]  # name -> {"bytes": size, "sha256": hash}


def files_of(folder: str) -> List[str]:
    """Return the names of all files below `folder`, except the manifest and those with a leading dot."""
    kept = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(place, name), folder)
            if path != MANIFEST and not name.startswith("."):
                kept.append(path)
    return sorted(kept)


def hashes(folder: str, names: Collection[str]) -> Files:
    """Return size and SHA-256 of each file, computed by as many threads as there are cores. Raises OSError.
    """
    sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names}
    pieces = [(name, start) for name in sizes for start in range(0, max(sizes[name], 1), PIECE)]
    with ThreadPoolExecutor(threads()) as pool:
        digests = list(pool.map(lambda piece: _digest(os.path.join(folder, piece[0]), piece[1]), pieces))
    by_name: Dict[str, List[bytes]] = {}
    for (name, _), digest in zip(pieces, digests):
        by_name.setdefault(name, []).append(digest)
    return {name: {"bytes": sizes[name], "sha256": _joined(parts)} for name, parts in by_name.items()}


def threads() -> int:
    """Return the number of cores that this process may use, 16 at most: more threads read no faster from a
    disk."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, own)


def _digest(path: str, start: int) -> bytes:
    digest, left = hashlib.sha256(), PIECE
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left:
            data = file.read(min(BLOCK, left))
            if not data:
                break
            digest.update(data)
            left -= len(data)
    return digest.digest()


def _joined(parts: List[bytes]) -> str:
    """Return the digest of a file's parts; of a single part its plain SHA-256, as sha256sum prints it."""
    return (parts[0] if len(parts) == 1 else hashlib.sha256(b"".join(parts)).digest()).hex()


def seal(folder: str) -> Tuple[str, Files]:
    """Return the manifest of a folder whose files are written: its text, and the files. Raises OSError."""
    names = files_of(folder)
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            os.fsync(file.fileno())
    files = hashes(folder, names)
    return json.dumps({"files": files}, indent=1, sort_keys=True) + "\n", files


def digest_of(text: bytes) -> str:
    """Return the digest that identifies a manifest."""
    return hashlib.sha256(text).hexdigest()


def manifest(folder: str) -> Tuple[Dict[str, Any], str]:
    """Return a folder's manifest: its files and its digest. Raises ValueError with what is wrong."""
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            text = file.read()
        files = dict(json.loads(text)["files"])
        for about in files.values():  # earlier manifests had sizes alone
            size, sha = (about["bytes"], about["sha256"]) if isinstance(about, dict) else (about, "")
            if not (isinstance(size, int) and isinstance(sha, str)):
                raise TypeError
        return files, digest_of(text)
    except FileNotFoundError:
        raise ValueError(UNFINISHED) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(UNREADABLE) from None


def what_is_missing(folder: str, files: Optional[Dict[str, Any]] = None) -> Optional[str]:
    """Return the first file that is absent or has another size; None: all files are as the manifest says.

    This costs next to nothing, since contents are not read. `files`: in place of the folder's own manifest.
    """
    try:
        files = manifest(folder)[0] if files is None else files
    except ValueError as error:
        return str(error)
    for name, about in sorted(files.items()):
        size = about["bytes"] if isinstance(about, dict) else about  # earlier manifests had sizes alone
        try:
            there = os.path.getsize(os.path.join(folder, name))
        except OSError:
            return "%s is missing" % name
        if there != size:
            return "%s has %d of %s bytes" % (name, there, size)
    return None


def what_is_wrong(
    folder: str, digests: Collection[str] = (), part: int = 0, parts: int = 1
) -> Tuple[Optional[str], int]:
    """Return the first file that differs from the manifest, and the bytes that were read. (None, ...): none
    does.

    `digests`: of manifests that the controller has recorded; none: the folder's own manifest counts. `part`
    of `parts`: of hosts that share the folder, each reads a part of its files.
    """
    try:
        files, digest = manifest(folder)
    except ValueError as error:
        return str(error), 0
    if digests and digest not in digests:
        return ALTERED, 0
    wrong = what_is_missing(folder, files)
    if wrong:
        return wrong, 0
    sealed = {name: about for name, about in files.items() if isinstance(about, dict)}
    strange = sorted(set(files_of(folder)) - set(files))
    if strange and sealed:
        return "%s is not in its manifest" % strange[0], 0
    return compare(folder, {name: sealed[name] for name in sorted(sealed)[part::parts]})


def compare(folder: str, files: Files) -> Tuple[Optional[str], int]:
    """Return the first of these files with another content, and the bytes that were read."""
    wrong = what_is_missing(folder, files)
    if wrong:
        return wrong, 0
    try:
        now = hashes(folder, list(files))
    except OSError as error:
        return "%s cannot be read: %s" % (error.filename or folder, error.strerror), 0
    total = sum(int(about["bytes"]) for about in files.values())
    for name in sorted(files):
        if now[name]["sha256"] != files[name]["sha256"]:
            return "%s is damaged: its content is not what was saved" % name, total
    return None, total
