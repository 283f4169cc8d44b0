"""`batch.micro` from the command line to the start order: the recipe is read once, few files pass it on."""

from __future__ import annotations

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
    files |= {"core/batch.py", "core/job.py", "fleet/supervisor.py", "agent/agent.py"}
    assert len(files) <= MOST, sorted(files)
    text = PAGE.read_text(encoding="utf-8").partition("How one value travels")[2].partition("\n## ")[0]
    assert files - {"agent/agent.py"} <= set(re.findall(r"`([a-z_/]+\.py)`", text))
