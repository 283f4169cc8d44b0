"""Keep a run or bench folder for the documents: python -m tests.golden.pack FOLDER [FOLDER ...]

What verbs read of it goes to tests/golden/runs/NAME.tar.xz: no weights, short logs, and neither the names nor
the folders of the machine that recorded it.
"""

from __future__ import annotations

import io
import lzma
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

RUNS = Path(__file__).parent / "runs"
# Nothing reads them, or they are the machine's, or a command writes them again.
LEFT_OUT = (
    "tensorboard", "hosts", "profile", "code", "data", "report.html", "controller.json", "controller.lock",
    ".room", "bench.lock",
)  # fmt: skip
LONGEST = 6_000  # bytes of a log; of other files the most that is no weights
SMALL = 100_000
KEPT_OF_MODELS = ("config.json", "complete.json")


def kept(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a folder that verbs read, by their paths in it."""
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        inside_model = {"model", "checkpoints"} & set(path.parts)
        if not file.is_file() or set(path.parts) & set(LEFT_OUT):
            continue
        if file.stat().st_size > SMALL or (inside_model and file.name not in KEPT_OF_MODELS):
            continue
        data = file.read_bytes()
        if file.suffix == ".log" and len(data) > LONGEST:
            data = data[: LONGEST // 2] + b"\n...\n" + data[-LONGEST // 2 :]
        yield str(path), data


def scrubbed(data: bytes, folder: Path) -> bytes:
    """Without this machine's name and folders."""
    for value, name in (
        (str(Path(sys.prefix)), "/home/ada/venv"),
        (str(folder.parent.parent), "/home/ada/work"),
        (socket.gethostname(), "box"),
    ):
        if len(value) > 2:
            data = data.replace(value.encode(), name.encode())
    return data


def pack(folder: Path, started: int) -> Path:
    """Write the archive. `started`: seconds, by which `muster ls` orders runs."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for path, data in kept(folder):
            entry = tarfile.TarInfo(f"{folder.name}/{path}")
            data = scrubbed(data, folder)
            entry.size, entry.mtime = len(data), started
            archive.addfile(entry, io.BytesIO(data))
    RUNS.mkdir(exist_ok=True)
    target = RUNS / f"{folder.name}.tar.xz"
    target.write_bytes(lzma.compress(whole.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return target


if __name__ == "__main__":
    for given in sys.argv[1:]:
        at = Path(given).resolve()
        began = next(iter(sorted(int(file.stat().st_mtime) for file in at.rglob("job.json"))), 0)
        print(pack(at, began))
