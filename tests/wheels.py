"""Tiny wheels, the program of a host, and the verb `muster prepare`, for tests that need no index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[1] / "src/muster/agent/provision.py"


def make_wheel(
    folder: Path, name: str, version: str, *, code: str = "", requires: Sequence[str] = ()
) -> Path:
    """A pure-Python wheel with one module of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": code or f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)
    return path


def prepare_argv(hosts: str, *words: str, recipe: str = "demo") -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "muster", "prepare", hosts, recipe, *words, "--json"]


def start(argv: Sequence[str], home: Path) -> subprocess.Popen[str]:
    """`muster prepare` in a process of its own, with a home folder of its own."""
    environ = {**os.environ, "HOME": str(home), "NO_COLOR": "1"}
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        environ.pop(name, None)
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str], seconds: float = 200) -> tuple[int, dict, str]:
    """Wait for its end: exit code, the document on stdout, and what it said meanwhile."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return process.returncode, json.loads(out) if out.strip() else {}, err


def by_host(document: dict) -> dict[str, dict]:
    """The hosts' reports by name."""
    return {report["host"]: report for report in document["hosts"]}


class Host:
    """The program as a host runs it, asked step by step. `source`: its text, changed for a test."""

    def __init__(self, home: Path, source: str | None = None) -> None:
        self.cache = home / "cache dir"
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.read_text() if source is None else source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(home)},
        )
        self.number = 0
        self.ask("hello", cache=str(self.cache), env={}, lease=60, python=None)

    def send(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def ask(self, op: str, **content: Any) -> dict[str, Any]:
        """A request and its reply."""
        self.request(op, **content)
        return self.reply()

    def request(self, op: str, **content: Any) -> None:
        self.number += 1
        self.send(json.dumps({"op": op, "id": self.number, **content}).encode() + b"\n")

    def reply(self) -> dict[str, Any]:
        assert self.process.stdout
        for line in self.process.stdout:
            message = json.loads(line) if line.strip() else {}
            if message.get("m") == "reply":
                assert message["id"] == self.number
                return message
        raise AssertionError("it ended")

    def put(self, index: int, data: bytes) -> None:
        self.send(json.dumps({"op": "put", "file": index, "bytes": len(data)}).encode() + b"\n" + data)

    def close(self) -> int:
        """Hang up -> its exit code."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


def environment(venv: Path, key: str = "k") -> dict[str, Any]:
    """The request for an environment of nothing."""
    return {
        "path": str(venv), "key": key, "requirements": "", "constraints": None, "wheels": [], "offline": True,
        "index": None, "python": sys.executable, "version": "3.11.0", "lacks": None,
    }  # fmt: skip
