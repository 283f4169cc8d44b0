"""Real data that is not part of the project: read where it lies beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.store.records import find_data, read_records

WIKISQL = Path(__file__).resolve().parents[3] / "shared" / "data" / "wikisql"


@pytest.mark.skipif(not WIKISQL.is_dir(), reason="no ../shared/data/wikisql beside the project")
def test_wikisql_is_read_whole() -> None:
    """Both parts, every line, with the published numbers of questions."""
    files = find_data(WIKISQL)
    assert files.validation is not None
    train = list(read_records(files.train, ("question", "sql")))
    validation = list(read_records(files.validation, ("question", "sql")))
    assert (len(train), len(validation)) == (56_355, 8_421)
    assert all(record["sql"].startswith("SELECT ") for record in train[:1000])
