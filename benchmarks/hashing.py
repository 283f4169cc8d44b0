"""What it costs to seal a checkpoint with hashes, beside writing it, and to verify it before a resume.

    .venv/bin/python benchmarks/hashing.py [--gigabytes 4] [--folder FOLDER]

Writes a checkpoint's two large files (weights, and an optimizer's state of twice the size) with fsync, seals
them as the saving rank does, and reads them again as a host does before a resume: with the page cache, as
right after saving, and from the disk, where the cache can be dropped (root). Then each hash on one thread,
out of memory: those of Python's library, and xxhash and blake3 where they are installed.
Writes benchmarks/results/hashing.json.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardware import processor

from muster.store import sealed

RESULTS = Path(__file__).parent / "results"
GB = 10**9


def seconds(what: Callable[[], Any]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def write(folder: Path, total: int) -> None:
    """Two files of random bytes, on the disk when it returns."""
    block = os.urandom(1 << 24)
    for name, size in (("model.safetensors", total // 3), ("optimizer.pt", total - total // 3)):
        with (folder / name).open("wb") as file:
            while size > 0:
                size -= file.write(block[:size])
            file.flush()
            os.fsync(file.fileno())


def drop_cache() -> bool:
    """Whether the next read comes from the disk."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def algorithms() -> dict[str, float]:
    """GB/s of each hash on one thread."""
    data = os.urandom(1 << 20) * 256
    calls: dict[str, Callable[[], Any]] = {
        name: lambda name=name: hashlib.new(name, data).digest() for name in ("sha256", "blake2b")
    }
    calls["crc32"] = lambda: zlib.crc32(data)
    for module, make in (("xxhash", "xxh3_128"), ("blake3", "blake3")):
        try:
            kind = getattr(importlib.import_module(module), make)
        except ImportError:
            continue
        calls[f"{module} {make}"] = lambda kind=kind: kind(data).digest()
    return {
        name: round(len(data) / GB / min(seconds(call) for _ in range(3)), 2) for name, call in calls.items()
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the system's own")
    wanted = parser.parse_args()
    total = int(wanted.gigabytes * GB)
    with tempfile.TemporaryDirectory(dir=wanted.folder) as name:
        folder = Path(name)
        writing = seconds(lambda: write(folder, total))
        text: list[str] = []
        sealing = seconds(lambda: text.append(sealed.seal(name)[0]))
        (folder / sealed.MANIFEST).write_text(text[0])
        cached = seconds(lambda: sealed.what_is_wrong(name))
        from_disk = seconds(lambda: sealed.what_is_wrong(name)) if drop_cache() else None
    found = {
        "processor": processor(),
        "threads": sealed.threads(),
        "gigabytes": wanted.gigabytes,
        "seconds": {
            "writing": writing, "sealing": sealing, "verifying": cached, "verifying_from_disk": from_disk,
        },
        "sealing_beside_writing": sealing / writing,
        "sealing_gigabytes_per_second": wanted.gigabytes / sealing,
        "one_thread_gigabytes_per_second": algorithms(),
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "hashing.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
