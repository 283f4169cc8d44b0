"""What a rank says of its end: errors of libraries in words, and no room on the disk for them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import JobError, RecipeError, WorkerError
from muster.store import events
from muster.worker import main
from muster.worker.context import Emitter
from muster.worker.explain import explain

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def torn(context: BaseException | None = None) -> RuntimeError:
    """As torch.save says it."""
    error = RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598")
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FULL, "the disk is full: [Errno 28]"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "the disk is full: [Errno 122]"),
        (
            Exception('IoError(Os { code: 28, message: "No space left on device" })'),
            "the disk is full: IoError",
        ),
        (torn(FULL), "the disk is full: [enforce"),
        (torn(), "a file was not written whole, is the disk full?: [enforce"),
    ],
)
def test_a_full_disk_is_recognised(error: Exception, words: str) -> None:
    known = explain(error)
    assert isinstance(known, JobError)
    assert known.what.startswith(words)
    assert "--output" in (known.hint or "")


def test_what_is_known_of_an_error_goes_with_it() -> None:
    """Its id and its remedy; a peer that is gone is one, and the far end of a download is none."""
    memory = explain(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert (memory.failure, "batch.micro" in (memory.hint or "")) == ("cuda_oom", True)
    assert explain(FULL).failure == explain(torn(FULL)).failure == "disk_full"
    assert explain(torn()).failure == "write_failed"
    assert explain(ConnectionError("Connection reset by peer")).failure == "peer_collapse"
    hub = "HTTPSConnectionPool(host='huggingface.co', port=443): Connection reset by peer"
    assert explain(ConnectionError(hub)).failure == "hf_offline"
    try:
        exec(compile("raise ConnectionError('Connection reset by peer')", "urllib/request.py", "exec"))
    except ConnectionError as error:
        assert explain(error).failure is None
    assert explain(KeyError("x")).failure is None


def test_what_is_raised_because_another_rank_is_lost_follows_from_that() -> None:
    """Not what a rank met before that, nor a cause of its own that it met then."""
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7575")
    wrapped = RuntimeError("training failed on this rank")
    wrapped.__cause__ = lost
    again = ValueError("no result")
    again.__context__ = wrapped
    assert explain(lost).failure == explain(wrapped).failure == explain(again).failure == "peer_collapse"
    assert explain(again).what == "ValueError: no result"
    assert explain(torn(lost)).failure == "write_failed"
    wrapped.__cause__ = KeyError("x")
    assert explain(wrapped).failure is None


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), ValueError("unexpected position")])
def test_other_errors_are_no_full_disk(error: Exception) -> None:
    known = explain(error)
    assert isinstance(known, WorkerError)
    assert "full" not in known.what


class NoRoom:
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise FULL

    def flush(self) -> None:
        raise FULL


@pytest.mark.parametrize(("error", "code"), [(RecipeError("is bad"), 2), (FULL, 1)])
def test_no_room_for_the_last_words_keeps_the_exit_code(
    error: Exception, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = Emitter(tmp_path / "events", rank=0, attempt=1)
    monkeypatch.setattr(emit, "_file", NoRoom())
    ends(error, emit, monkeypatch)
    monkeypatch.setattr("sys.stderr", NoRoom())
    assert main.run({}) == code


def test_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends(
        RecipeError("is bad", where="train", hint="mend it", failure="hf_ds_mismatch"),
        Emitter(tmp_path / "e", rank=0, attempt=1),
        monkeypatch,
    )
    assert main.run({}) == 2
    [failed] = events.read_events(tmp_path / "e")
    assert isinstance(failed, events.Failed)
    assert (failed.what, failed.where, failed.hint, failed.usage) == ("is bad", "train", "mend it", True)
    assert failed.id == "hf_ds_mismatch"
    assert failed.traceback is not None
    assert "in ended" in failed.traceback
    assert failed.traceback in capsys.readouterr().err


def ends(error: Exception, emit: Emitter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose work ends so."""

    def ended(context: Any) -> None:
        raise error

    monkeypatch.setattr(main, "read_context", lambda spec: SimpleNamespace(emit=emit, resume_step=None))
    monkeypatch.setattr(main, "_run", ended)
