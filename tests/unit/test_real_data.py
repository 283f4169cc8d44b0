"""Real data that is not part of the project: read where it lies beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.store.records import find_data
from muster.workloads.text2sql.spec import TextToSqlData

WIKISQL = Path(__file__).resolve().parents[3] / "shared" / "data" / "wikisql"


@pytest.mark.skipif(not WIKISQL.is_dir(), reason="no ../shared/data/wikisql beside the project")
def test_wikisql_is_read_whole() -> None:
    """Both parts, every line, with the published numbers of questions."""
    files = find_data(WIKISQL)
    train = list(TextToSqlData().form.read(files.train))
    validation = list(TextToSqlData().form.read(files.validation))
    assert (len(train), len(validation)) == (56_355, 8_421)
    assert all(row.target.startswith("SELECT ") for row in train[:1000])
