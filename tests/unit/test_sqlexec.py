"""Execution match: equal results are equal; a hostile prediction can't write, read elsewhere or hang."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from muster.worker.data import sqlexec
from muster.worker.data.sqlexec import QueryFailed, is_ordered, run_query, same_result
from muster.worker.quality import judge
from muster.worker.workloads.base import HeldOut

ALL = "SELECT name FROM person"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "it's #1 100%.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, pay REAL)")
        rows = [(1, "Ada", 36, 0.1 + 0.2), (2, "Bob", 50, 0.3), (3, "Cy", None, 5.0), (4, "Bob", 20, 1e9)]
        connection.executemany("INSERT INTO person VALUES (?, ?, ?, ?)", rows)
    return path


BOB = "SELECT pay, name FROM person WHERE id < 3"


@pytest.mark.parametrize(
    ("equal", "predicted", "expected"),
    [
        (True, ALL, ALL),
        (True, "SELECT name FROM person ORDER BY id DESC", ALL),
        (True, "SELECT name AS other FROM person;", ALL),
        (True, "WITH p AS (SELECT * FROM person) SELECT name FROM p", ALL),
        (True, "SELECT 0.3 + age * 0 FROM person WHERE id = 1", "SELECT 0.3"),
        (True, "SELECT pay FROM person WHERE id = 1", "SELECT pay FROM person WHERE id = 2"),
        (True, "SELECT 3", "SELECT 3.0"),
        (True, "SELECT avg(pay) FROM person", "SELECT sum(pay) / count(*) FROM person"),
        (True, BOB, f"{BOB} AND 1"),
        (True, "SELECT age FROM person ORDER BY age", "SELECT age FROM person ORDER BY age ASC"),
        (True, "SELECT x'00ff'", "SELECT x'00FF'"),
        (False, "SELECT DISTINCT name FROM person", ALL),  # a multiset: Bob is there twice
        (False, "SELECT name FROM person ORDER BY id DESC", "SELECT name FROM person ORDER BY id"),
        (False, "SELECT name, age FROM person", ALL),
        (False, "SELECT name, age FROM person WHERE 0", "SELECT name FROM person WHERE 0"),
        (False, "SELECT '3'", "SELECT 3"),
        (False, "SELECT NULL", "SELECT 0"),
        (False, "SELECT NULL", "SELECT 0.0"),
        (False, "SELECT 0.3001", "SELECT 0.3"),
        (False, "SELECT 9007199254740993", "SELECT 9007199254740992"),
        *((False, text, ALL) for text in ("SELECT nothing FROM person", "", "-- nothing", "SELEC name")),
    ],
)
def test_results_that_are_equal(database: Path, equal: bool, predicted: str, expected: str) -> None:
    assert same_result(database, predicted, expected) is equal


@pytest.mark.parametrize(
    "hostile",
    [
        "DROP TABLE person",
        "DELETE FROM person",
        "UPDATE person SET name = 'x' RETURNING name",
        "INSERT INTO person (name) VALUES ('x') RETURNING name",
        "CREATE TEMP TABLE t AS SELECT 1",
        "PRAGMA query_only = OFF",
        "PRAGMA table_info(person)",
        "SELECT name FROM pragma_table_info('person')",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT name FROM person; DROP TABLE person",
        "BEGIN",
        "EXPLAIN SELECT 1",
        "SELECT load_extension('x')",
        "SELECT hex(zeroblob(1000000000))",
        "SELECT randomblob(100000000)",
        "SELECT 'a\0b'",
        "SELECT '\ud800'",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    ],
)
def test_a_hostile_prediction_is_wrong_and_harmless(
    database: Path, hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, files = database.read_bytes(), sorted(tmp_path.iterdir())
    assert not same_result(database, hostile, ALL)
    assert database.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    "endless",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 'a' UNION ALL SELECT i || i FROM n) SELECT count(*) FROM n",
        "SELECT count(*) FROM " + ", ".join(f"person AS p{place}" for place in range(20)),
        "SELECT p0.name FROM " + ", ".join(f"person AS p{place}" for place in range(20)),
    ],
)
def test_an_endless_prediction_ends(database: Path, endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlexec, "STEPS", 200_000)
    assert not same_result(database, endless, ALL)


def test_the_time_limit_stands_behind_the_steps(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlexec, "SECONDS", -1.0)
    with pytest.raises(QueryFailed, match="interrupt"):
        run_query(database, "SELECT count(*) FROM " + ", ".join(f"person AS p{place}" for place in range(7)))


def test_faults_of_the_data_are_raised(database: Path, tmp_path: Path) -> None:
    with pytest.raises(QueryFailed, match="nothing"):
        same_result(database, ALL, "SELECT nothing FROM person")
    with pytest.raises(FileNotFoundError):
        same_result(tmp_path / "absent.sqlite", ALL, ALL)
    assert not (tmp_path / "absent.sqlite").exists()


def test_an_expected_query_that_cannot_be_run_leaves_its_own_question_unscored(
    database: Path, tmp_path: Path
) -> None:
    """Also where the answer is the same text: else exact answers alone would count."""
    wrong = "SELECT nothing FROM person"
    asked = [
        HeldOut("who?", ALL, str(database)),
        HeldOut("what?", wrong, str(database)),
        HeldOut("what?", wrong, str(database)),
        HeldOut("where?", ALL, str(tmp_path / "gone.sqlite")),
        HeldOut("when?", ALL),
    ]
    found = judge(asked, [f"{ALL} ORDER BY id", wrong, ALL, ALL, ALL])
    assert [each.executed for each in found] == [True, None, None, None, None]
    assert [each.exact for each in found] == [False, True, False, True, True]
    whys = [each.unscored or "" for each in found]
    assert "nothing" in whys[1] and "nothing" in whys[2]
    assert "gone.sqlite" in whys[3]
    assert (whys[0], whys[4]) == ("", "")


def test_only_the_outer_order_counts() -> None:
    assert is_ordered("SELECT a FROM t order  by a LIMIT 3")
    assert not is_ordered("SELECT a FROM (SELECT a FROM t ORDER BY (a))")
    assert not is_ordered("SELECT a FROM t WHERE b = 'ORDER BY it''s' -- order by")
