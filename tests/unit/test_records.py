"""JSON-lines data: what is found in a folder, and every fault with its file and line."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path

import pytest

from muster.core.errors import DataError
from muster.store.records import find_data, read_records

FIELDS = ("question", "sql")
GOOD = '{"question": "how many?", "sql": "SELECT 1", "more": [1]}'
LINE, BOM = f"{GOOD}\n".encode(), codecs.BOM_UTF8


def read(path: Path) -> list[dict[str, object]]:
    return list(read_records(path, FIELDS))


def failure(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path)
    return caught.value


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_reads_every_object(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    second = {"question": "è\u2028", "sql": "x"}
    text = f"{GOOD}\n\n  \n{json.dumps(second, ensure_ascii=False)}"  # no last newline
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert read(path) == [
        {"question": "how many?", "sql": "SELECT 1", "more": [1]},
        second,
    ]


def test_the_limit_counts_samples_not_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{GOOD}\n\n{GOOD}\nnot json\n")
    assert len(list(read_records(path, FIELDS, limit=2))) == 2


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("{'question': 1}", "is not JSON", "one JSON object per line"),
        (GOOD[:-1], "is not JSON", "one JSON object per line"),
        ("[1, 2]", "is not a JSON object but list", None),
        ('"text"', "is not a JSON object but str", None),
        ('{"question": "q"}', "field 'sql' is missing or not text", "the fields of this line are: question"),
        ('{"question": "q", "sql": 3}', "field 'sql' is missing or not text", "question, sql"),
        ('{"question": " ", "sql": "x"}', "field 'question' is missing or not text", "question, sql"),
        (
            '{"text": "q", "sql": "x"}',
            "field 'question' is missing or not text",
            "data.question and data.sql",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, what: str, hint: str | None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    error = failure(path)
    assert what in error.what
    assert error.where == f"{path}:3"
    assert (hint or "") in (error.hint or "")


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_a_file_without_samples(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert str(failure(path)) == f"{path}: has no samples"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "no such file" in failure(tmp_path / "a.jsonl").what


def broken_gzip(where: slice) -> bytes:
    data = bytearray(gzip.compress(f"{GOOD}\n".encode() * 200))
    data[where] = b"\xff" * len(data[where])
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", b"plain text"),
        ("a.jsonl.gz", gzip.compress(GOOD.encode() * 50)[:-20]),
        ("a.jsonl.gz", broken_gzip(slice(12, 40))),
        ("a.jsonl.gz", broken_gzip(slice(-8, -4))),
    ],
    ids=["not gzip", "cut short", "damaged", "checksum"],
)
def test_a_damaged_archive(tmp_path: Path, name: str, content: bytes) -> None:
    """It has no line to look at."""
    path = tmp_path / name
    path.write_bytes(content)
    error = failure(path)
    assert "cannot be read" in error.what
    assert error.where == str(path)


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"\xff\xfe{}", 1, "is not UTF-8: byte 0xff at 0 of the file"),
        (BOM + b"{\xff}", 1, "is not UTF-8: byte 0xff at 4 of the file"),
        (
            LINE + LINE + b"\n" + LINE[:9] + b"\xe9 " + LINE,
            4,
            f"is not UTF-8: byte 0xe9 at {2 * len(LINE) + 10} of",
        ),
        (LINE * 300 + b"\xff\n", 301, f"is not UTF-8: byte 0xff at {300 * len(LINE)} of the file"),
        (LINE + LINE[:-3] + b"\xc3", 2, "is not UTF-8: byte 0xc3"),
        (LINE + b"x" * (20 << 20) + b"\n" + LINE, 2, "a line of 20.0 MiB, where 16.0 MiB is the most"),
        (LINE + b'{"question": "' + b"x" * (16 << 20) + b'", "sql": "x"}\n', 2, "a line of 16.0 MiB"),
        (LINE + b'{"question": "q", "sql": "\\ud800"}\n', 2, "is not Unicode text"),
        (LINE + b"[" * 200_000, 2, "is not JSON"),
    ],
    ids=[
        "utf-16",
        "after a mark",
        "one byte",
        "far down",
        "cut short",
        "long",
        "just too long",
        "half a pair",
        "deep",
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_damaged_file(tmp_path: Path, name: str, content: bytes, line: int, what: str) -> None:
    """The file and the line, and the byte where there is one."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    error = failure(path)
    assert error.where == f"{path}:{line}"
    assert error.what.startswith(what)
    assert "data.bad" not in (error.hint or "")  # such data has no choice


def test_a_mark_at_the_beginning_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(BOM + LINE)
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    ("names", "train", "held_out"),
    [
        (["train.jsonl", "validation.jsonl", "test.jsonl"], "train.jsonl", "validation.jsonl"),
        (["Train.jsonl.gz", "dev.json"], "Train.jsonl.gz", "dev.json"),
        (["train.ndjson", "README.md"], "train.ndjson", None),
        (["wikisql.jsonl", "notes.txt"], "wikisql.jsonl", None),
        (["test.jsonl"], "test.jsonl", None),
    ],
)
def test_what_is_found_in_a_folder(
    tmp_path: Path, names: list[str], train: str, held_out: str | None
) -> None:
    for name in names:
        (tmp_path / name).touch()
    found = find_data(tmp_path)
    assert found.train == tmp_path / train
    assert found.validation == (tmp_path / held_out if held_out else None)


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "odd.name").touch()
    assert find_data(tmp_path / "odd.name").train == tmp_path / "odd.name"


@pytest.mark.parametrize("names", [[], ["a.jsonl", "b.jsonl"], ["train.csv", "test.csv"]])
def test_a_folder_without_a_train_file(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"no train\.jsonl in the folder") as caught:
        find_data(tmp_path)
    there = ", ".join(name for name in names if name.endswith("jsonl")) or "none"
    assert (caught.value.hint or "").endswith(f"JSON-lines files there: {there}")


def test_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data"):
        find_data(tmp_path / "nowhere")
