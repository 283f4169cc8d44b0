"""Pieces, each in a process of its own with a time limit; what each came to is written when it ends.

A group of pieces is a file of results, DIR/GROUP.json. A piece that passed is not run again in the same DIR;
one that failed or ran out of time is run again once the code that it rests on has changed (sources.py).
schedule.py says which piece is run when, and calls.py does so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "gpu"  # of the page in docs/: a folder for each machine
TURN = Path(__file__).resolve().parent / "turn"  # of sitecustomize.py, for PYTHONPATH
GROUPS = ("proof", "speed", "profile", "levers", "memory", "ceiling", "cost")  # the most valuable first
sys.path.insert(0, str(ROOT / "src"))  # a GPU machine may have this checkout and no installation
MOST = 20_000  # characters of an error that are kept: its last
PATIENCE = 15.0  # seconds between SIGTERM and SIGKILL: Muster ends its ranks meanwhile

Figures = dict[str, Any]


class NotApplicable(Exception):
    """This machine cannot run the piece; the text says why."""


@dataclass(frozen=True)
class Machine:
    """What a piece may use. `tiny`: models so small that a CPU runs every piece in minutes."""

    device: str  # "cuda" or "cpu"
    tiny: bool
    folder: Path  # of this piece alone; removed afterwards
    results: Results  # of the pieces before it
    seconds: float = 600.0  # that the piece may take

    def turn(self, after: int, until: int = 0) -> dict[str, str]:
        """The environment of a process that is timed alone on the GPU, from its step `after` to its step
        `until`, or to its end (turn/sitecustomize.py)."""
        lock = (self.results.folder / "turn.lock").resolve()
        return {
            "MUSTER_TURN": f"{after} {until} {lock}",
            "PYTHONPATH": joined(str(TURN), os.environ.get("PYTHONPATH")),
        }

    def needs_cuda(self) -> None:
        """Raises NotApplicable without a GPU."""
        if self.device != "cuda":
            raise NotApplicable("needs a GPU")


@dataclass(frozen=True)
class Piece:
    """`run` returns figures, or raises: NotApplicable, or anything else for a failure."""

    group: str
    name: str
    limit: float  # seconds, after which it is ended
    run: Callable[[Machine], Figures]
    usual: float = 0.0  # seconds, where it was never measured; 0: half of the limit
    shared: bool = False  # nothing of it is timed: others may use the GPU meanwhile
    gigabytes: float = 8.0  # of the device, if it is shared
    after: str = ""  # the piece of its group whose figures it reads
    parts: tuple[str, ...] | None = ("*",)  # of the code: sources.py

    @property
    def key(self) -> str:
        """As it is named on the command line."""
        return f"{self.group}/{self.name}"


def device() -> str:
    """The one that this machine has."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def described(tiny: bool) -> dict[str, Any]:
    """The machine and the versions that results belong to."""
    import platform

    import torch
    from benchmarks.hardware import processor

    from muster.core.registry import versions_of

    packages = ("torch", "transformers", "accelerate", "deepspeed", "peft", "triton", "liger-kernel")
    found: dict[str, Any] = {
        "device": device(),
        "tiny": tiny,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions_of(packages),
    }
    if torch.cuda.is_available():
        asked = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem"
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        found["memory"] = torch.cuda.get_device_properties(0).total_memory
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        found["nvidia_smi"] = output(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]).strip()
    return found


def output(argv: Sequence[str]) -> str:
    """What a program printed; its error where there is none of it, or where it failed."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout if done.returncode == 0 else done.stdout + done.stderr


def commit() -> str | None:
    """The version of the code, with a + where files differ from it: of the variable MUSTER_COMMIT, else of
    the repository; None: this is a copy without one."""
    if given := os.environ.get("MUSTER_COMMIT"):
        return given
    try:
        argv = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


class Results:
    """The files of DIR. Raises SystemExit where they are of another machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, group: str) -> dict[str, Any]:
        """{"machine": ..., "pieces": {name: entry}} of a group; no pieces where none was run."""
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.folder / f"{group}.json").read_text())
            return found
        return {"machine": None, "pieces": {}}

    def add(self, piece: Piece, machine: dict[str, Any], entry: dict[str, Any]) -> None:
        """Write what a piece came to, whole or not at all."""
        from muster.store.atomic import write_text

        data = self.read(piece.group)
        data["machine"] = machine
        data["pieces"][piece.name] = entry
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / f"{piece.group}.json", json.dumps(data, indent=1, default=str) + "\n")

    def entries(self, pieces: Sequence[Piece]) -> dict[str, dict[str, Any]]:
        """What pieces came to, by their keys."""
        groups = {group: self.read(group)["pieces"] for group in {piece.group for piece in pieces}}
        return {p.key: groups[p.group][p.name] for p in pieces if p.name in groups[p.group]}

    def check(self, machine: dict[str, Any], groups: Sequence[str]) -> None:
        """Figures of two machines do not belong into one table."""
        for group in groups:
            before = self.read(group)["machine"]
            if before and _kind(before) != _kind(machine):
                raise SystemExit(
                    f"{self.folder / group}.json is of {_kind(before)}, and this is {_kind(machine)}: "
                    "give another --out"
                )

    def begin_with(self, folder: Path, machine: dict[str, Any]) -> list[Path]:
        """Take over what earlier calls wrote below another folder, as far as this one lacks it; -> the files
        that are of another machine, which stay there."""
        from muster.store.atomic import write_text

        others = []
        for group in GROUPS:
            for earlier in every_result(folder):
                read = earlier.read(group)
                if not read["pieces"] or (self.folder / f"{group}.json").exists():
                    continue
                if _kind(read["machine"]) != _kind(machine):
                    others.append(earlier.folder / f"{group}.json")
                    continue
                self.folder.mkdir(parents=True, exist_ok=True)
                write_text(self.folder / f"{group}.json", json.dumps(read, indent=1) + "\n")
        return others


def every_result(folder: Path) -> list[Results]:
    """The results in a folder, and in each folder in it."""
    return [Results(each) for each in (folder, *sorted(folder.iterdir())) if each.is_dir()]


def _kind(machine: dict[str, Any]) -> str:
    kind = ", ".join(machine.get("gpus") or [machine["processor"]])
    kind += f" with torch {machine['versions'].get('torch')}"
    return f"{kind} and tiny models" if machine.get("tiny") else kind


def run_piece(piece: Piece, results: Results, limit: float, tiny: bool, cut: bool) -> dict[str, Any]:
    """Run one in a process of its own. `cut`: `limit` is what was left of the whole, not the piece's own."""
    argv = [sys.executable, "-m", "benchmarks.gpu", "piece", piece.key, *(["--tiny"] if tiny else [])]
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="muster-gpu-") as place:
        told, log = Path(place) / "told.json", Path(place) / "log"
        env = os.environ | {
            "PYTHONPATH": joined(str(ROOT / "src"), os.environ.get("PYTHONPATH")),
            "PYTHONUNBUFFERED": "1",
        }
        if tiny:  # pieces share the cores, and threads of small tensors wait for each other
            env["OMP_NUM_THREADS"] = "1"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [
                    *argv, "--told", str(told), "--folder", place, "--out", str(results.folder.resolve()),
                    "--seconds", f"{limit:.0f}",
                ],
                cwd=ROOT, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            late = not _wait(process, limit)
        seconds = round(time.time() - began, 1)
        try:
            entry: dict[str, Any] = json.loads(told.read_text())
        except (FileNotFoundError, ValueError):
            entry = {"status": "failed", "error": f"exit code {process.returncode}"}
        if late:
            entry = {"status": "cut short" if cut else "timed out", "error": f"ended after {limit:.0f} s"}
        if entry["status"] not in ("passed", "not applicable"):
            printed = log.read_text(errors="replace")
            entry["error"] = (printed + "\n" + entry.get("error", ""))[-MOST:]
    return {**entry, "seconds": seconds, "began": round(began), "command": " ".join(argv[1:])}


def joined(*parts: str | None) -> str:
    """A search path."""
    return os.pathsep.join(part for part in parts if part)


def _wait(process: subprocess.Popen[bytes], limit: float) -> bool:
    """True: it ended in time. Else it is ended, with what it started in its session."""
    try:
        process.wait(limit)
        return True
    except subprocess.TimeoutExpired:
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return False


def child(
    piece: Piece, tiny: bool, told: Path, folder: Path, results: Results, seconds: float = 600.0
) -> None:
    """In the piece's process: run it and write what it came to."""
    entry: dict[str, Any]
    with _home(folder):
        try:
            machine = Machine("cpu" if tiny else device(), tiny, folder, results, seconds)
            entry = {"status": "passed", "figures": piece.run(machine)}
        except NotApplicable as why:
            entry = {"status": "not applicable", "error": str(why)}
        except Exception:
            entry = {"status": "failed", "error": traceback.format_exc()[-MOST:]}
    told.write_text(json.dumps(entry, default=str))


@contextlib.contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Nothing that was learned before, and nothing from a hub."""
    os.environ |= {
        "XDG_DATA_HOME": str(folder / "data"), "XDG_STATE_HOME": str(folder / "state"),
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
