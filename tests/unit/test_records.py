"""Samples in files: what is found in a folder, which fields are read, and every fault with its place."""

from __future__ import annotations

import codecs
import gzip
import json
import sys
from pathlib import Path

import pytest

from muster.core.errors import DataError, ReaderMissingError
from muster.inputs.read import check_data, read_recipe
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_on
from muster.runs.dry_run import _data
from muster.store import tokens
from muster.store.records import Splits, find_data, hold_out, read_rows
from muster.worker.data import hub
from muster.workloads.seq2seq.spec import PairRow
from muster.workloads.text2sql.spec import TextToSqlData

DATA = TextToSqlData()
GOOD = '{"question": "how many?", "sql": "SELECT 1", "more": [1]}'
LINE, BOM = f"{GOOD}\n".encode(), codecs.BOM_UTF8


def read(path: Path, data: TextToSqlData = DATA) -> list[PairRow]:
    return list(data.form.read([path]))


def failure(path: Path, data: TextToSqlData = DATA) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path, data)
    return caught.value


def test_the_limit_counts_samples_not_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{GOOD}\n\n{GOOD}\nnot json\n")
    assert len(list(DATA.form.read([path], limit=2))) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "no such file" in failure(tmp_path / "a.jsonl").what


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
        (LINE + b"x" * (20 << 20) + b"\n" + LINE, 2, "a line of 21.0 MB, where 16.8 MB is the most"),
        (LINE + b'{"question": "' + b"x" * (16 << 20) + b'", "sql": "x"}\n', 2, "a line of 16.8 MB"),
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
    assert "data.bad=skip" in (error.hint or "")


@pytest.mark.parametrize(
    ("splits", "train", "held_out"),
    [
        (Splits(words=("sft",)), "train_sft", "test_sft"),
        (Splits("train_gen"), "train_gen", "test_gen"),
        (Splits("train_gen", "test_sft"), "train_gen", "test_sft"),
        (Splits(), None, None),
    ],
)
def test_splits_of_a_hubs_data(
    splits: Splits, train: str | None, held_out: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"{part}_{kind}": [f"{part}_{kind}"] for part in ("train", "test") for kind in ("sft", "gen")}
    monkeypatch.setattr(hub, "load", lambda *_, **__: parts)
    if train is None:
        with pytest.raises(DataError, match="several train parts") as caught:
            hub.hub_parts("any", None, splits)
        assert "data.train_split" in str(caught.value.hint)
        return
    found = hub.hub_parts("any", None, splits)
    assert (found["train"], found["validation"]) == ([train], [held_out])


def test_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data"):
        find_data(tmp_path / "nowhere")


# A row of WikiSQL as the hub has it.
WIKISQL = {
    "phase": 1,
    "question": "What position does the player who played for Butler CC play?",
    "table": {
        "header": ["Player", "No."], "page_title": "Toronto Raptors", "page_id": "15621965",
        "types": ["text"], "id": "1-10015132-11",
        "section_title": "L", "caption": "L", "rows": [["Antonio Lang", "21"]],
        "name": "table_10015132_11",
    },
    "sql": {
        "human_readable": "SELECT Position FROM table WHERE School/Club Team = Butler CC (KS)", "sel": 3,
        "agg": 0, "conds": {"column_index": [5], "operator_index": [0], "condition": ["Butler CC (KS)"]},
    },
}  # fmt: skip


@pytest.fixture(params=["jsonl", "parquet"])
def wikisql(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The row in a file."""
    if request.param == "jsonl":
        (tmp_path / "train.jsonl").write_text(json.dumps(WIKISQL) + "\n")
        return tmp_path / "train.jsonl"
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([WIKISQL]), tmp_path / "train.parquet")
    return tmp_path / "train.parquet"


def test_a_field_with_parts_is_no_answer_but_its_text_is(wikisql: Path) -> None:
    for data in (DATA, TextToSqlData(target="sql.human_readable")):
        assert [(row.input, row.target, row.fields[1]) for row in read(wikisql, data)] == [
            (WIKISQL["question"], WIKISQL["sql"]["human_readable"], "sql.human_readable")
        ]
    error = failure(wikisql, TextToSqlData(target="sql.conds"))
    assert error.what == (
        "field 'sql.conds' is not text: it has the parts column_index, operator_index, condition"
    )
    error = failure(wikisql, TextToSqlData(input="sql"))
    assert error.what == "field 'sql' is not text: it has the parts human_readable, sel, agg, conds"
    assert (error.hint or "").startswith("data.question=sql.human_readable names one of them")
    assert "'sql.human' is missing" in failure(wikisql, TextToSqlData(target="sql.human")).what
    assert "'sql.sel' is not text but a number" in failure(wikisql, TextToSqlData(target="sql.sel")).what
    assert "is not text but a list" in failure(wikisql, TextToSqlData(target="table.header")).what


def test_columns_that_are_not_asked_for_are_named_in_the_error(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([{"a": {"b": "x"}, "c": ["y"]}]), tmp_path / "a.parquet")
    hint = failure(tmp_path / "a.parquet").hint or ""
    assert "the fields there are: a, c; data.question names the one to use" in hint
    both = TextToSqlData(input="a.b", target="a.b")
    assert [row.target for row in read(tmp_path / "a.parquet", both)] == ["x"]


def test_rows_that_cannot_be_read_are_passed_over_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3\n4,5\n")
    told: list[DataError] = []
    assert [row for _, row in read_rows(path, told.append)] == [{"a": "1", "b": "2"}, {"a": "4", "b": "5"}]
    assert [error.where for error in told] == [f"{path}:3"]


def test_every_line_that_an_open_quote_takes_along_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"3,4\n5,6\n7,8\n')
    left: list[DataError] = []
    assert [row for _, row in read_rows(path, left.append)] == [{"a": "1", "b": "2"}]
    assert [error.where for error in left] == [f"{path}:{line}" for line in (3, 4, 5)]


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "9" * 5000])
def test_a_list_that_python_cannot_hold(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'[{{"question": "q", "sql": {value}}}]')
    assert (failure(path).where, failure(path).what[:11]) == (str(path), "is not JSON")


@pytest.mark.parametrize("content", ['\n{"question": "q"}\n{}\n', "\nno JSON\nnor this\n"])
def test_where_no_row_can_be_used_the_first_fault_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        list(DATA.form.read([path], skip=lambda _: None))
    assert f"{path}:2" in (caught.value.hint or "")


def test_what_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not at all")
    assert "is not a Parquet file" in failure(tmp_path / "a.parquet").what
    assert "no such file" in failure(tmp_path / "b.parquet").what


def test_parquet_values_that_python_cannot_hold(tmp_path: Path) -> None:
    """A text that is not UTF-8, as some writers have it; and a date after the year 9999 that nobody reads."""
    arrow, path = pytest.importorskip("pyarrow"), tmp_path / "a.parquet"
    parquet = pytest.importorskip("pyarrow.parquet")
    stored = arrow.array([b"q", b"caf\xe9", b"r"], arrow.binary())
    texts = arrow.Array.from_buffers(arrow.string(), 3, stored.buffers())
    parquet.write_table(arrow.table({"question": texts, "sql": ["s"] * 3}), path)
    error = failure(path)
    assert "can't decode byte 0xe9" in error.what and error.where == f"{path}[1]"
    assert (error.hint or "").count("data.bad=skip") == 1
    left: list[DataError] = []
    rows = list(read_rows(path, left.append, fields=DATA.form.fields))
    assert [row["question"] for _, row in rows] == ["q", "r"]
    assert [place for place, _ in rows] == [f"{path}[0]", f"{path}[2]"]
    assert [each.where for each in left] == [f"{path}[1]"]
    late = arrow.array([0, 10**18], arrow.timestamp("us"))
    parquet.write_table(arrow.table({"question": ["q", "r"], "sql": ["s", "s"], "when": late}), path)
    assert [row for _, row in read_rows(path, fields=DATA.form.fields)] == [
        {"question": name, "sql": "s", "when": None} for name in "qr"
    ]
    with pytest.raises(DataError, match="out of range"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("name", "noted"),
    [("seq2seq", "pyarrow"), ("sft", "pyarrow"), ("gpt2-micro", None), ("vit-cifar10", "num_labels=N")],
)
def test_without_pyarrow_parquet_files_are_left_to_the_ranks(
    name: str, noted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that only types; the plan says what it does not know. `data.bad=skip` skips no file."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 not at all")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nothing learned"))
    recipe = read_recipe(name, [f"data.path={tmp_path}", *(["data.bad=skip"] if name == "sft" else [])])
    check_data(recipe, here=True)
    made = plan_on(recipe, "h200", UserFigures(), traced=False).plan
    assert noted is None or any(noted in note for note in (*made.data, *made.notes))
    assert "train.parquet" in str(_data(recipe))
    with pytest.raises(ReaderMissingError):
        next(read_rows(tmp_path / "train.parquet", lambda _: None))


def test_equal_questions_are_held_out_together() -> None:
    held = hold_out(["a", "b", "a", "c", "b"], 0.4, 1, None)
    assert len(held) == 1
    assert held == hold_out(["c", "b", "a"], 0.4, 1, None)
    with pytest.raises(DataError, match="too few to hold some out"):
        hold_out(["a", "a"], 0.4, 1, None)


def test_tokens_are_counted_of_fewer_samples_where_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start counts tokens for seconds, whatever the data are; the samples are drawn by chance, since data
    may have an order that repeats."""
    monkeypatch.setattr(tokens, "COUNTED", 100)
    monkeypatch.setattr(tokens, "CHARACTERS", 50)

    def chosen(count: int, length: int) -> list[int]:
        numbers = tokens.some_of(list(range(count)), lambda _: ["x" * length])
        assert len(numbers) * length <= max(50, length)
        return numbers

    assert chosen(7, 1) == [*range(7)]
    assert chosen(7, 0) == [*range(7)]
    some = chosen(1000, 1)
    assert some == sorted(set(some)) == chosen(1000, 1) and len(some) == 50
    assert 15 < sum(number % 2 for number in some) < 35 and 15 < sum(number < 500 for number in some) < 35
    assert len(chosen(10, 10)) == 5 and len(chosen(3, 1000)) == 1


def test_of_a_small_share_one_is_held_out() -> None:
    assert len(hold_out(["a", "b", "c"], 0.01, 1, None)) == 1


def test_bytes_are_counted_over_the_lines_that_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINE + b"\xff\n" + b"ab\xfe\n")
    left: list[DataError] = []
    assert len(list(read_rows(path, left.append))) == 1
    assert [f"at {len(LINE) + place} " in error.what for place, error in zip((0, 4), left, strict=True)] == [
        True
    ] * 2


def test_a_list_on_one_line(tmp_path: Path) -> None:
    """As json.dump writes it: of more than a line of JSON lines may have."""
    rows = [{"input": "x" * (1 << 20), "target": str(n)} for n in range(18)]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    assert [row for _, row in read_rows(tmp_path / "data.json")] == rows


def test_fields_in_capital_letters_are_columns_that_are_read() -> None:
    assert DATA.form.columns(["Question", "SQL", "id"]) == ["Question", "SQL"]
