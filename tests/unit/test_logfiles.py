"""Files of others: whatever is in them, lines or one reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.errors import UsageError
from muster.store.logfiles import (
    LONGEST_LINE,
    BrokenFile,
    LogFile,
    blocks,
    blocks_of,
    find_logs,
    members_of,
)


def lines(raw: IO[bytes]) -> Iterator[str]:
    return chain.from_iterable(blocks(raw))


def lines_of(file: LogFile) -> Iterator[str]:
    return chain.from_iterable(blocks_of(file))


@given(st.binary(max_size=4000))
def test_any_bytes(data: bytes) -> None:
    try:
        found = list(lines(io.BytesIO(data)))
    except BrokenFile as error:
        assert str(error)
    else:
        assert all("\n" not in line and "\r" not in line for line in found)


@given(st.lists(st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=30), max_size=20),
       st.sampled_from(["\n", "\r", "\r\n"]))  # fmt: skip
def test_lines_are_what_was_written(written: list[str], end: str) -> None:
    written = [line.replace("\ufeff", "") for line in written]
    data = end.join(written).encode()
    assert [line for line in lines(io.BytesIO(data)) if line] == [line for line in written if line]


@pytest.mark.parametrize("piece", [7, 40, 1 << 20])
def test_a_file_of_dockers_json_driver(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line has its own number; what a bar overwrote is a line of its own."""
    monkeypatch.setattr("muster.store.logfiles.CHUNK", piece)
    monkeypatch.setattr("muster.store.logfiles._HEAD", max(piece, 8))
    printed = ['caf\u00e9 "1"', "\r 1/2 [00:01<\r 2/2 [00:02<", "\x1b[32mok"]
    data = "".join(
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": f"2024-07-08T05:52:0{n}.123456789Z"},
                   separators=(",", ":")) + "\n"
        for n, line in enumerate(printed)
    )  # fmt: skip
    found = [(line, block.number(place)) for block in blocks(io.BytesIO(data.encode()))
             for place, line in enumerate(block)]  # fmt: skip
    assert [each for each in found if each[0]] == [
        ("caf\u00e9 \"1\"", 1), (" 1/2 [00:01<", 2), (" 2/2 [00:02<", 2), ("\x1b[32mok", 3)
    ]  # fmt: skip


@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_a_file_of_dockers_json_driver_that_was_cut(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its first and its last line, as head, tail and a full disk do: what is left of their texts is
    shown, and nothing else."""
    monkeypatch.setattr("muster.store.logfiles.CHUNK", piece)
    rows = [
        {"log": f"{text}\n", "stream": "stderr", "time": "2024-07-08T05:52:01Z"} for text in ("ab", 'x\\é"')
    ]
    data = "\n".join(json.dumps(row, separators=(",", ":")) for row in [rows[0], *rows])
    last = data.rindex("\n") + 1
    for begin in range(8, 10):
        for end in range(last + 1, len(data) + 1):
            first, whole, *rest = lines(io.BytesIO(data[begin:end].encode()))
            assert (first, whole) == ("ab"[begin - 8 :], "ab")
            assert not rest or 'x\\é"'.startswith("".join(rest))


def test_invalid_utf8_is_replaced() -> None:
    assert list(lines(io.BytesIO(b"caf\xe9 1\nstep \xff 2\n"))) == ["caf\ufffd 1", "step \ufffd 2"]


def test_what_powershell_writes() -> None:
    assert list(lines(io.BytesIO("step 1\r\nstep 2\r\n".encode("utf-16")))) == ["step 1", "step 2"]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_files_whatever_their_name(pack: object, tmp_path: Path) -> None:
    whole = pack(b"step 1\n" * 50_000)  # type: ignore[operator]
    file = tmp_path / "a.log"
    file.write_bytes(whole)
    (found,) = find_logs(tmp_path)
    assert sum(1 for _ in lines_of(found)) == 50_000
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenFile, match="to its end"):
        list(lines_of(found))


@pytest.mark.parametrize("data", [bytes(range(256)) * 40, b"\x7fELF" + bytes(5000)])
def test_binaries(data: bytes) -> None:
    with pytest.raises(BrokenFile, match="is no text"):
        list(lines(io.BytesIO(data)))


def test_a_line_without_end_takes_little_memory(tmp_path: Path) -> None:
    """64 MiB of one line, and a line after it."""
    file = tmp_path / "a.log"
    with file.open("wb") as out:
        for _ in range(64):
            out.write(b"x" * (1 << 20))
        out.write(b"\nstep 2")
    (found,) = find_logs(file)
    tracemalloc.start()
    try:
        sizes = [len(line) for line in lines_of(found)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [LONGEST_LINE, 6]
    assert peak < 16 << 20


def test_what_a_folder_has(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.log").write_text("x")
    (tmp_path / "a.log").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "log").write_text("x")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert [each.shown for each in find_logs(tmp_path)] == ["a.log", "b/x.log"]


def test_nothing_to_read(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError):
            find_logs(where)


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x")
    (found,) = find_logs(tmp_path)
    (tmp_path / "a.log").unlink()
    with pytest.raises(BrokenFile, match="cannot be read: No such file"):
        list(lines_of(found))


def archive(path: Path, mode: str) -> Path:
    with tarfile.open(path, mode) as out:  # type: ignore[call-overload]
        for name in ("./jobs/a.log", "jobs/.b.swp", "jobs/c.log"):
            info = tarfile.TarInfo(name)
            info.size = 7 * 3000
            out.addfile(info, io.BytesIO(b"step 1\n" * 3000))
    return path


@pytest.mark.parametrize(("name", "mode"), [("l.tar.xz", "w:xz"), ("l.tgz", "w:gz"), ("l.tar", "w")])
def test_archives_are_read_as_they_are(name: str, mode: str, tmp_path: Path) -> None:
    (found,) = find_logs(archive(tmp_path / name, mode))
    assert found.archive
    read = {path: sum(map(len, text)) for path, text in members_of(found)}
    assert read == {f"{name}/jobs/a.log": 3000, f"{name}/jobs/c.log": 3000}


@pytest.mark.parametrize("cut", [60, 100, 150])
@pytest.mark.parametrize(("name", "mode"), [("l.tar.xz", "w:xz"), ("l.tgz", "w:gz")])
def test_an_archive_that_is_cut(name: str, mode: str, cut: int, tmp_path: Path) -> None:
    file = archive(tmp_path / name, mode)
    file.write_bytes(file.read_bytes()[:-cut])
    told = []
    for path, text in members_of(find_logs(file)[0]):
        try:
            told.append((path, sum(map(len, text))))
        except BrokenFile as error:
            told.append((path, str(error)))  # type: ignore[arg-type]
    assert any("cannot be read to its end" in str(what) for _, what in told)


MEMBER = 512 + 42 * 512  # bytes: its header, and 21,000 of text in whole blocks


@pytest.mark.parametrize("kept", [2 * MEMBER, 2 * MEMBER + 100, 3 * MEMBER])
def test_a_plain_archive_that_is_cut_between_its_members(kept: int, tmp_path: Path) -> None:
    file = archive(tmp_path / "l.tar", "w")
    file.write_bytes(file.read_bytes()[:kept])
    *members, (path, text) = members_of(find_logs(file)[0])
    assert [name for name, _ in members] == ["l.tar/jobs/a.log", "l.tar/jobs/c.log"][: kept // MEMBER - 1]
    assert path == "l.tar"
    with pytest.raises(BrokenFile, match="without the mark of an archive's end"):
        list(text)


@pytest.mark.parametrize("zeros", [1, 2])
def test_few_zeros_end_an_archive_too(zeros: int, tmp_path: Path) -> None:
    """Not every tool fills up with as many as tar does."""
    file = archive(tmp_path / "l.tar", "w")
    file.write_bytes(file.read_bytes()[: 3 * MEMBER + zeros * 512])
    assert [path for path, _ in members_of(find_logs(file)[0])] == ["l.tar/jobs/a.log", "l.tar/jobs/c.log"]
