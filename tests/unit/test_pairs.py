"""Questions and answers as ranks read them: a hub's data set, and what is said of where they are from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import DataError
from muster.workloads.text2sql.spec import TextToSqlData
from tests.unit.test_records import WIKISQL

pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
parquet = pytest.importorskip("pyarrow.parquet")

from pyarrow import Table  # noqa: E402

from muster.store.records import LoadedSamples  # noqa: E402
from muster.workloads.seq2seq.train import TextPair, load_pairs  # noqa: E402


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of WikiSQL's shape on the hub, as its Parquet files lie there."""
    folder = tmp_path / "wikisql"
    folder.mkdir()
    for part, count in (("train", 5), ("validation", 2), ("test", 1)):
        rows = [{**WIKISQL, "question": f"{part} {number}"} for number in range(count)]
        parquet.write_table(Table.from_pylist(rows), folder / f"{part}-00000-of-00001.parquet")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    return folder


def load(tmp_path: Path, **data: Any) -> LoadedSamples[TextPair]:
    return load_pairs(TextToSqlData(**data), tmp_path / "cache", may_write=True, seed=0)


@pytest.mark.parametrize("source", ["name", "path"])
@pytest.mark.parametrize("sql", ["sql", "sql.human_readable"])
def test_a_hub_data_set_whose_answers_have_parts(hub: Path, tmp_path: Path, source: str, sql: str) -> None:
    """By its name as the datasets library loads it, or its files: the same text, and a note."""
    found = load(tmp_path, **{source: str(hub)}, sql=sql)
    assert [pair.question for pair in found.train] == [f"train {number}" for number in range(5)]
    assert [pair.question for pair in found.held_out] == ["validation 0", "validation 1"]
    assert {pair.expected for pair in (*found.train, *found.held_out)} == {WIKISQL["sql"]["human_readable"]}
    assert found.about.endswith("answers: field sql.human_readable")
    assert "validation" in found.about


@pytest.mark.parametrize("source", ["name", "path"])
def test_a_limit_and_any_part_of_a_column(hub: Path, tmp_path: Path, source: str) -> None:
    """`limit` leaves the held-out part whole."""
    found = load(tmp_path, **{source: str(hub)}, question="table.caption", limit=1)
    assert [pair.question for pair in found.train] == ["L"]
    assert len(found.held_out) == 2


def test_a_database_lies_beside_its_file(tmp_path: Path) -> None:
    (folder := tmp_path / "pairs").mkdir()
    (folder / "geo.sqlite").touch()
    rows = [{"question": name, "sql": "SELECT 1", "database": name} for name in ("geo.sqlite", "none.sqlite")]
    for part in ("train", "validation"):
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load(tmp_path, path=str(folder))
    for part in (found.train, found.held_out):
        assert [pair.database for pair in part] == [str(folder / "geo.sqlite"), None]  # type: ignore[attr-defined]
    assert found.about.endswith("no such database, so not executed: none.sqlite")


@pytest.mark.parametrize("source", ["name", "path"])
def test_a_field_that_is_no_text(hub: Path, tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match="it has the parts human_readable, sel, agg, conds") as caught:
        load(tmp_path, **{source: str(hub)}, question="sql")
    assert "data.question=sql.human_readable names one of them" in (caught.value.hint or "")
    with pytest.raises(DataError, match=r"'sql\.sel' is not text but a number"):
        load(tmp_path, **{source: str(hub)}, sql="sql.sel")


def test_a_hub_data_set_that_is_a_script(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library refuses scripts; the hub has a copy of each such data set as Parquet files."""
    script = tmp_path / "scripted"
    script.mkdir()
    (script / "scripted.py").write_text("")
    real, asked = datasets.load_dataset, []

    def by_revision(path: str, revision: str | None = None, **options: Any) -> Any:
        asked.append(revision)
        return real(path if revision is None else str(hub), **options)

    monkeypatch.setattr(datasets, "load_dataset", by_revision)
    assert len(load(tmp_path, name=str(script)).train) == 5
    assert asked == [None, "refs/convert/parquet"]


def test_columns_of_a_hub_data_set_that_nobody_reads_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the pair's, as far as a dot leads into them, nor those that name a database."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    rows = [{"id": n, "question": f"q{n}", "sql": {"human_readable": "s"}, "db_id": "x"} for n in range(4)]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "train-00000-of-00001.parquet")
    notes = load(tmp_path, name=str(tmp_path)).notes
    assert [note.rpartition(": ")[2] for note in notes if "not read" in note] == ["id"]
