"""A run that an earlier version left, of before rooms were features: it shows, counts and reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from muster.cli.app import app
from muster.core.errors import UsageError
from muster.core.recipe import recipe_from
from muster.store.runfolder import RunFolder
from muster.workloads.command.spec import CommandRecipe

OLD = Path(__file__).resolve().parents[1] / "golden" / "old_run"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "runs" / "old"))


def test_report_is_another_name_for_show_html(old: Path, tmp_path: Path) -> None:
    pages = []
    for verb, option in (("show", "--html"), ("report", "--output")):
        for file in (None, tmp_path / f"{verb}.html"):
            words = [option, str(file)] if file else [option] if verb == "show" else []
            done = CliRunner().invoke(app, [verb, "old", *words, "--json", "--runs", str(old.parent)])
            page = file or old / "report.html"
            assert json.loads(done.output) == {"id": "old", "report": str(page)}
            pages.append(page.read_bytes())
            page.unlink()
    assert len(set(pages)) == 1


@pytest.mark.parametrize("words", [["--csv"], ["--follow"]])
def test_a_page_is_neither_steps_nor_progress(words: list[str], old: Path) -> None:
    done = CliRunner().invoke(app, ["show", "old", "--html", *words, "--runs", str(old.parent)])
    assert isinstance(done.exception, UsageError) and done.exception.where == "--html"
    assert not (old / "report.html").exists()


@pytest.mark.parametrize("verb", ["show", "report"])
def test_a_failure_without_an_id(verb: str, old: Path) -> None:
    """Failures have had ids since there is a table of them."""
    path = old / "result.json"
    told = {
        "what": "the host was lost: silent",
        "where": None,
        "host": "local1",
        "hint": None,
        "usage": False,
    }
    result = {**json.loads(path.read_text(encoding="utf-8")), "status": "failed", "failure": told}
    path.write_text(json.dumps(result), encoding="utf-8")
    done = CliRunner().invoke(app, [verb, "old", "--runs", str(old.parent)])
    assert "Traceback" not in done.output and not isinstance(done.exception, ValueError)
    found = RunFolder(old).read_result()
    assert found is not None and found.failure is not None and found.failure.id is None


@pytest.mark.parametrize("line", [None, "step (?P<step>.*)", ["step (?P<step>.*)", "loss (?P<loss>.*)"]])
def test_a_commands_recipe_from_when_there_were_mapping_files(line: object) -> None:
    """A bench that goes on reads the recipes that it froze."""
    frozen: dict[str, Any] = {
        "workload": "command",
        "command": ["true"],
        "run": {"start": "rank", "line": line},
    }
    recipe = recipe_from({**frozen, "run": {**frozen["run"], "metrics": None}})
    assert isinstance(recipe, CommandRecipe) and recipe == recipe_from(frozen)
    assert len(recipe.user_format().lines) == (0 if line is None else 1 if isinstance(line, str) else 2)
    with pytest.raises(ValidationError, match="metrics"):
        recipe_from({**frozen, "run": {"metrics": "lines.yaml"}})
