"""From the command line to the rank: few files pass a value on, and a third one has the line that trains."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import muster
from muster.core.recipe import Recipe
from muster.inputs.read import read_inputs
from muster.planner import orders, ways
from muster.runs.requirements import needed
from muster.runs.train import Attempt, agree
from muster.store.runfolder import RunFolder
from tests.support import TINY

SOURCE = Path(next(iter(muster.__path__)))
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST = 12  # files between the command line and the rank


def passing() -> set[str]:
    """Files of muster whose functions are being called now."""
    found, frame = set[str](), sys._getframe(1)
    while frame is not None:
        if SOURCE in (path := Path(frame.f_code.co_filename)).parents:
            found.add(str(path.relative_to(SOURCE)))
        frame: FrameType | None = frame.f_back
    return found


def test_the_way_of_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, validated = set[str](), []
    resolve, start, validate = ways.resolve_batch, orders.start_orders, Recipe.model_validate.__func__  # type: ignore[attr-defined]

    def resolved(*given: Any, **more: Any) -> Any:
        files.update(passing())
        return resolve(*given, **more)

    def told(*given: Any) -> Any:
        files.update(passing())
        return start(*given)

    def read(kind: type[Recipe], data: Any) -> Recipe:
        files.update(passing())
        validated.append(kind)
        return validate(kind, data)

    monkeypatch.setattr(ways, "resolve_batch", resolved)
    monkeypatch.setattr(orders, "start_orders", told)
    monkeypatch.setattr(Recipe, "model_validate", classmethod(read))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # nothing learned
    inputs = read_inputs("demo", "local:2x1", [*TINY, "batch.micro=4"])
    about: dict[str, Any] = {"gpus": [], "cores": 2, "python": "python3", "port": 1}
    about |= {"shared": True, "versions": dict.fromkeys(needed(inputs.recipe), "1")}
    decided = agree(
        inputs, RunFolder(tmp_path / "run"), dict.fromkeys(("local0", "local1"), about), Attempt()
    )

    assert len(validated) == 1
    for order in decided.orders.values():
        assert order["job"]["job"]["batch"] == {"micro": 4, "accumulation": 1, "global": 8}
    # Those that define what carries it, or send it, are on the way as well.
    files |= {"core/batch.py", "core/job.py", "fleet/supervisor.py", "agent/ranks.py"}
    assert len(files) <= MOST, sorted(files)
    text = PAGE.read_text(encoding="utf-8").partition("How one value travels")[2].partition("\n## ")[0]
    assert files <= set(re.findall(r"`([a-z_/]+\.py)`", text))


def test_the_line_that_trains_is_found_in_three_files() -> None:
    """Each function that the page names is there, and names what the next file begins with."""
    text = PAGE.read_text(encoding="utf-8").partition("From the command line to the line")[2]
    listed = [
        (re.findall(r"`([a-z_/]+\.py)`", item)[0], re.findall(r"`(_?[a-z]+)`", item))
        for item in re.split(r"\n\d\. ", text.partition("\n## ")[0])[1:]
    ]
    assert [len(functions) for _, functions in listed] == [2, 3, 2]
    named: list[set[str]] = []
    for file, functions in listed:
        there = {
            each.name: each
            for each in ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
            if isinstance(each, ast.FunctionDef)
        }
        named.append(
            {
                ast.unparse(each)
                for name in functions
                for each in ast.walk(there[name])
                if isinstance(each, ast.Name | ast.Attribute)
            }
        )
    assert "run_train" in named[0] and {"agree", "_run", "supervisor.run"} <= named[1]
    assert "trainer.train" in named[2]
    entry = (SOURCE / "worker" / "__main__.py").read_text(encoding="utf-8")
    assert "from muster.worker.main import run" in entry and "code = run(spec)" in entry
