"""Tiny wheels, the program of a host, and the verb `muster prepare`, for tests that need no index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
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


def run_program(
    folder: Path, op: str, brought: Mapping[str, bytes] | None = None, **order: Any
) -> dict[str, Any]:
    """The program of a host, run to its end with an order -> its report, or how it failed. `brought`:
    contents that its agent has taken, by their digests."""
    (folder / "job" / "code").mkdir(parents=True, exist_ok=True)
    for digest, content in (brought or {}).items():
        (folder / "job" / "code" / digest).write_bytes(content)
    with start_program(folder, op, **{"brought": brought is not None, **order}) as process:
        assert process.wait() == 0
    return dict(json.loads((folder / "rank0.events.jsonl").read_text().splitlines()[-1]))


def start_program(folder: Path, op: str, **order: Any) -> subprocess.Popen[bytes]:
    """The same, begun."""
    plain = {"environment": None, "uv": None, "wheels": {}, "files": [], "hub": [], "brought": False}
    cache, base = str(folder / "cache dir"), str(folder / "job")
    spec = {"base": base, "order": {"op": op, "cache": cache, **plain, **order}}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "rank0.events.jsonl").unlink(missing_ok=True)
    variables = {"MUSTER_SPEC": str(folder / "spec.json"), "MUSTER_EVENTS": str(folder), "MUSTER_RANK": "0"}
    environ = {**os.environ, "HOME": str(folder), **variables}
    return subprocess.Popen([sys.executable, "-m", "muster.agent.provision"], env=environ)


def environment(venv: Path, key: str = "k") -> dict[str, Any]:
    """An environment of nothing."""
    return {"path": str(venv), "key": key, "requirements": "", "constraints": None, "index": None}
