"""Stale locks of PyTorch's extensions: what goes, and what stays."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from muster.worker import locks
from muster.worker.locks import OLD, clear_stale_locks, extensions_folder, stale_locks


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two locks: as TORCH_EXTENSIONS_DIR has them, and as the default folder does."""
    folder = tmp_path / "kernels [x]"
    made = (folder / "fused_adam" / "lock", folder / "py311_cpu" / "cpu_adam" / "lock")
    for lock in made:
        lock.parent.mkdir(parents=True)
        lock.touch()
    return made


@contextmanager
def another_holds(lock: Path) -> Iterator[None]:
    """A living process has the file open."""
    code = "import sys; f = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout and holder.stdout.readline()
        yield
    finally:
        holder.communicate()


def test_a_lock_that_nobody_holds_goes(pair: tuple[Path, Path]) -> None:
    """One that a living process holds stays, also when this very process does."""
    held, stale = pair
    with another_holds(held):
        assert list(stale_locks(held.parents[1])) == [(stale, True)]
        assert (held.exists(), stale.exists()) == (True, False)
    with held.open():
        assert list(stale_locks(held.parents[1])) == []
    assert list(stale_locks(held.parents[1])) == [(held, True)]
    assert list(stale_locks(held.parents[1])) == []


@pytest.mark.parametrize(
    ("all_seen", "age", "removed"), [(True, 0, True), (False, 0, False), (False, OLD + 60, True)]
)
def test_without_leases_proc_tells(
    all_seen: bool, age: float, removed: bool, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young lock stays where its owner may live in another container."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EINVAL, "no leases here")

    held, stale = pair
    os.utime(stale, (time.time() - age,) * 2)
    os.utime(held, (time.time() - age,) * 2)
    monkeypatch.setattr(locks.fcntl, "fcntl", refuse)
    name = str(Path("/proc/self/ns/pid").readlink())
    monkeypatch.setattr(locks, "FIRST_PID_NAMESPACE", name if all_seen else "another")
    with another_holds(held):
        assert list(stale_locks(held.parents[1])) == ([(stale, True)] if removed else [])
        assert (held.exists(), stale.exists()) == (True, not removed)


def test_one_who_opens_a_lock_while_it_is_looked_at_ends_nobody(pair: tuple[Path, Path]) -> None:
    """The kernel sends whoever holds the lease a signal, whose usual action is the end."""
    code = """
import fcntl, subprocess, sys, time
from pathlib import Path
from muster.worker import locks
real, opener = fcntl.fcntl, []
def lease(file, what, *rest):
    done = real(file, what, *rest)
    if what == fcntl.F_SETLEASE:
        told = "print(flush=True); open(__import__('sys').argv[1])"
        opener.append(subprocess.Popen([sys.executable, "-c", told, sys.argv[1]], stdout=subprocess.PIPE))
        opener[0].stdout.readline()
        time.sleep(0.5)
    return done
locks.fcntl.fcntl = lease
print(locks._remove(Path(sys.argv[1]), True))
opener[0].communicate()
"""
    done = subprocess.run([sys.executable, "-c", code, pair[1]], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_on_a_network_disk_nothing_is_removed(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine may hold it; an old one is spoken of."""
    young, old = pair
    os.utime(old, (time.time() - OLD - 60,) * 2)
    monkeypatch.setattr(locks, "file_system", lambda _: "nfs4")
    said: list[str] = []
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(young.parents[1]))
    for local_rank in (0, 1):
        clear_stale_locks(SimpleNamespace(local_rank=local_rank, emit=lambda kind, text: said.append(text)))  # type: ignore[arg-type]
    assert young.exists() and old.exists()
    assert len(said) == 1 and str(old) in said[0] and "remove it" in said[0]


def test_the_folder_is_pytorchs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch.utils import cpp_extension

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    for cache in (None, str(tmp_path)):
        monkeypatch.setenv("XDG_CACHE_HOME", cache) if cache else monkeypatch.delenv("XDG_CACHE_HOME", False)
        assert str(extensions_folder()) == cpp_extension.get_default_build_root()
    assert locks.file_system(Path("/proc/self")) == "proc"
    assert fcntl.F_SETLEASE
