"""The generated set: deterministic, disjoint, over real databases, with held-out values in validation."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from muster.worker.data.sqlexec import run_query, same_result
from muster.worker.data.sqlgen import SHAPES, build
from muster.worker.data.sqlgen import generate as generate_module
from muster.worker.data.sqlgen.schemas import SCHEMAS

TRAIN, VALIDATION = 4000, 345
LITERAL = re.compile(r"'([^']*)'|\b(\d+)\b")
WORD = re.compile(r"\w+")
Lines = list[dict[str, str]]


def literals(sql: str) -> list[str]:
    """The values in a statement: quoted strings and whole numbers."""
    return [text or number for text, number in LITERAL.findall(sql)]


def unseen_share(train: Iterable[tuple[str, str]], validation: Iterable[tuple[str, str]]) -> float:
    """Of the validation (question, SQL) pairs that hold a value: the share with one no training pair holds.

    A value of several words ("Red Solwood") is seen when its words are: it counts only with an unseen word.
    """
    words: set[str] = set()
    for question, sql in train:
        words.update(WORD.findall(question))
        words.update(WORD.findall(sql))
    found = [[word for value in literals(sql) for word in WORD.findall(value)] for _, sql in validation]
    valued = [group for group in found if group]
    return sum(any(word not in words for word in group) for group in valued) / max(1, len(valued))


def read(folder: Path, name: str) -> Lines:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sqlgen") / "deep" / "set"
    build(folder, seed=7, train=TRAIN, validation=VALIDATION)
    return folder


@pytest.fixture(scope="module")
def train(folder: Path) -> Lines:
    return read(folder, "train.jsonl")


@pytest.fixture(scope="module")
def validation(folder: Path) -> Lines:
    return read(folder, "validation.jsonl")


def test_the_sizes_fields_and_shapes(folder: Path, train: Lines, validation: Lines) -> None:
    """Questions are disjoint, and none is double."""
    every = train + validation
    assert (len(train), len(validation)) == (TRAIN, VALIDATION)
    assert len({line["question"] for line in every}) == len(every)
    assert all(list(line) == ["question", "sql", "database", "shape"] for line in every)
    assert set(Counter(line["shape"] for line in validation).values()) == {VALIDATION // len(SHAPES)}
    assert {line["shape"] for line in train} == set(SHAPES)
    assert {line["database"] for line in train} == {f"databases/{schema.name}.sqlite" for schema in SCHEMAS}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set"]


def test_equal_questions_never_mean_different_sql(tmp_path: Path) -> None:
    meaning: dict[str, tuple[str, str]] = {}
    for seed in range(6):
        build(tmp_path / str(seed), seed=seed, train=4000, validation=0)
        for line in read(tmp_path / str(seed), "train.jsonl"):
            said = (line["sql"], line["database"])
            assert meaning.setdefault(line["question"], said) == said, line["question"]


def test_most_validation_values_are_in_no_training_question(train: Lines, validation: Lines) -> None:
    sql = "SELECT t1.name FROM t1 WHERE a = 'Red Sun' AND b2 > 34 LIMIT 3"
    assert literals(sql) == ["Red Sun", "34", "3"]
    few = [("", "SELECT 'Red Sun'"), ("", "SELECT 1"), ("", "SELECT a")]
    assert unseen_share([("Red?", "SELECT 1")], few) == 0.5
    pairs = [[(line["question"], line["sql"]) for line in lines] for lines in (train, validation)]
    assert unseen_share(*pairs) > 0.6
    assert unseen_share(pairs[0], pairs[0]) == 0.0


def test_every_statement_runs_and_validation_answers_are_not_empty(
    folder: Path, train: Lines, validation: Lines
) -> None:
    for line in train[::8]:
        run_query(folder / line["database"], line["sql"])
    for line in validation:
        _, rows = run_query(folder / line["database"], line["sql"])
        assert any(cell not in (None, 0) for row in rows for cell in row), line


def test_answers_tell_questions_apart(folder: Path, validation: Lines) -> None:
    """Another question's SQL must seldom give the right answer, or execution match would prove little."""
    by_shape: dict[tuple[str, str], Lines] = {}
    for line in validation:
        by_shape.setdefault((line["shape"], line["database"]), []).append(line)
    tried = lucky = 0
    for lines in by_shape.values():
        for one, other in pairwise(lines):
            if one["sql"] != other["sql"]:
                tried += 1
                lucky += same_result(folder / one["database"], one["sql"], other["sql"])
    assert tried > 100
    assert lucky / tried < 0.05


def test_the_databases_have_rows_and_sound_foreign_keys(folder: Path) -> None:
    for schema in SCHEMAS:
        with closing(sqlite3.connect(folder / "databases" / f"{schema.name}.sqlite")) as connection:
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            links = 0
            for table in schema.tables:
                assert connection.execute(f"SELECT count(*) FROM {table.name}").fetchone() == (table.rows,)
                links += len(connection.execute(f"PRAGMA foreign_key_list({table.name})").fetchall())
            assert len(schema.tables) >= 2
            assert links == len(schema.links) >= 1


def test_the_seed_alone_decides(folder: Path, tmp_path: Path) -> None:
    build(tmp_path / "same", seed=7, train=TRAIN, validation=VALIDATION)
    build(tmp_path / "other", seed=8, train=TRAIN, validation=VALIDATION)
    for name in ("train.jsonl", "validation.jsonl"):
        assert (tmp_path / "same" / name).read_bytes() == (folder / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()
    for path in (folder / "databases").iterdir():
        assert dump(path) == dump(tmp_path / "same/databases" / path.name)


def test_the_lines_are_those_of_every_python(tmp_path: Path) -> None:
    """Pins the bytes: a change here must come with a new `generate.FORMAT`."""
    build(tmp_path / "set", seed=1, train=500, validation=46)
    text = (tmp_path / "set/train.jsonl").read_bytes() + (tmp_path / "set/validation.jsonl").read_bytes()
    assert (
        hashlib.sha256(text).hexdigest() == "b79a6e8aa640680333328d8af8436695154aa0a8235c2b1544ab4f89a9dfd272"
    )


def test_a_complete_folder_is_left_alone_and_another_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()  # an empty one is as good as none
    build(folder, seed=1, train=100, validation=23)
    stamp = (folder / "train.jsonl").stat().st_mtime_ns
    build(folder, seed=1, train=100, validation=23)
    assert (folder / "train.jsonl").stat().st_mtime_ns == stamp
    with pytest.raises(FileExistsError, match="'seed': 2"):
        build(folder, seed=2, train=100, validation=23)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.jsonl").write_text("keep me")
    with pytest.raises(FileExistsError):
        build(tmp_path / "mine", seed=1, train=100, validation=23)
    assert (tmp_path / "mine/train.jsonl").read_text() == "keep me"


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_module, "SHAPES", {"having": SHAPES["having"]})
    with pytest.raises(ValueError, match="different questions"):
        build(tmp_path / "set", seed=1, train=100_000, validation=23)
    assert list(tmp_path.iterdir()) == []
