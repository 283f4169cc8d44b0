"""docs/python.md, run from its first line to its last, with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import muster
from tests.pages import ROOT, blocks

pytestmark = pytest.mark.real


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / "python.md"):
        if block.language == "python":
            exec(compile(block.text, block.where, "exec"), names)
    assert names["result"].status == "succeeded"  # type: ignore[attr-defined]
    assert 0 <= names["answers"].exact_match <= 1  # type: ignore[attr-defined]
    assert Path(str(names["page"])).read_text().startswith("<!")


def test_an_inspection_of_this_machine() -> None:
    found = muster.check("local:2x1", group=False)
    assert [each.host for each in found.hosts] == ["local0", "local1"]
