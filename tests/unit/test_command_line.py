"""The command line as it is typed: verbs, words in any order, near names, empty values, completion, lists."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.cli import main
from muster.cli.options import split_words
from muster.cli.output import out_console, print_row
from muster.core.errors import UsageError
from muster.core.recipes import shipped_pipelines, shipped_recipes
from muster.core.state import State
from muster.store.queries import runs_table
from muster.store.runfolder import named_run_folder

LONG = "20261123-055338-image-classification-custom-6d0a"


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return int(ended.value.code or 0), shown.out, shown.err


def test_nothing_typed_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys)
    assert (code, err) == (0, "")
    assert out == typed(capsys, "--help")[1]
    assert "  train " in out


def test_an_option_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """What else is refused stands in tests/golden/documents/refused.txt."""
    code, out, err = typed(capsys, "train", "--hots", "x")
    assert (code, out) == (2, "")
    assert "--hots" in err.splitlines()[0] and "muster train --help" in err.splitlines()[1]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "digits", "HOSTS", "train.max_steps=3", "--dry-run"],
        ["train", "digits", "train.max_steps=3", "HOSTS", "--dry-run"],
        ["bench", "scaling", "HOSTS", "train.max_steps=3", "--dry-run"],
        ["plan", "digits", "HOSTS", "--quick"],
    ],
)
def test_hosts_by_place_or_by_name(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    by_place = typed(capsys, *[word.replace("HOSTS", "local:2x1") for word in words], "--json")
    by_name = typed(capsys, *[word for word in words if word != "HOSTS"], "--hosts", "local:2x1", "--json")
    first, second = (json.loads(each[1]) for each in (by_place, by_name))
    assert by_place[0] == by_name[0] == 0
    assert sorted(first) == sorted(second)


def test_hosts_and_a_recipe_by_place_or_by_name() -> None:
    order = ("HOSTS", "RECIPE")
    assert split_words(["n1", "demo", "a.b=1"], "", order)[0] == "n1"
    hosts, named, changes = split_words(["demo", "a.b=1"], "n1", order)
    assert (hosts, named["RECIPE"], changes) == ("n1", "demo", ["a.b=1"])
    with pytest.raises(UsageError, match="one word too many"):
        split_words(["n1", "demo"], "n1", order)


def test_recipes_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "recipes")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {*shipped_recipes(), *shipped_pipelines()}
    assert all(len(line.split()) > 4 for line in out.splitlines())
    told = json.loads(typed(capsys, "recipes", "--json")[1])
    assert {each["name"] for each in told} == {*shipped_recipes(), *shipped_pipelines()}


def completed(words: str, folder: Path) -> list[str]:
    """What bash is offered for the last of the words."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    env = os.environ | {"_MUSTER_COMPLETE": "bash_complete"} | asked
    argv = [sys.executable, "-m", "muster"]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("re", ["resume", "report", "recipes"]),
        ("train text2sql-w", ["text2sql-wikisql"]),
        ("train mi", ["mine.yaml"]),
        ("show fi", ["first"]),
        ("show --runs other ", ["last", "second"]),
        ("train --host", ["--hosts"]),
        ("train digits --hosts loc", ["local:2", "local:2x1", "localhost"]),
        ("train digits train.epochs=", []),
    ],
)
def test_a_shell_completes_verbs_recipes_and_runs(words: str, offered: list[str], tmp_path: Path) -> None:
    made(tmp_path / "runs" / "first", {"status": "succeeded"})
    made(tmp_path / "other" / "second", {"status": "succeeded"})
    (tmp_path / "mine.yaml").write_text("")
    assert completed(f"muster {words}", tmp_path) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "completion", shell)
    assert code == 0
    assert f"_MUSTER_COMPLETE={shell}_complete" in out


# --- lists of runs ---------------------------------------------------------------------------------------


def made(folder: Path, result: dict[str, Any] | str | None, job: dict[str, Any] | None = None) -> None:
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job or {}))
    if result is not None:
        (folder / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))


RESULT = {
    "status": "succeeded", "engine": "deepspeed ZeRO-1", "world_size": 16, "steps": 1000, "loss_final": 0.25,
    "throughput": {"samples_per_second": 1234.5}, "quality": {"exact_match": 0.5, "execution_match": 0.6},
    "seconds": {"total": 3700.0}, "hosts": [{"host": "a"}, {"host": "b"}],
}  # fmt: skip


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_ids_and_states_are_never_cut(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / LONG, RESULT)
    monkeypatch.setattr("muster.cli.output.terminal_width", lambda **_: width)
    monkeypatch.setattr("muster.cli.ls.terminal_width", lambda **_: width)
    code, out, err = typed(capsys, "ls", "--runs", str(tmp_path))
    head, line = out.splitlines()
    assert code == 0
    assert line.split()[:2] == [LONG, "succeeded"]
    assert max(map(len, out.splitlines())) <= max(width, len(LONG) + 11)
    shown = [name for name in ("loss", "samples/s", "steps", "engine", "same rows") if name in head]
    assert shown == ["loss", "samples/s", "steps", "engine", "same rows"][: len(shown)]
    assert ("same rows" in err) == ("same rows" not in head)


def test_a_damaged_result_is_listed_and_the_others_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "good", RESULT)
    made(tmp_path / "cut", json.dumps(RESULT)[:40])
    made(tmp_path / "list", "[]")
    made(tmp_path / "odd", {"status": "failed", "steps": "many", "hosts": 3, "seconds": 5})
    states = {row["id"]: row["status"] for row in runs_table(tmp_path)}
    assert states == {"good": "succeeded", "cut": State.DAMAGED, "list": State.DAMAGED, "odd": "failed"}
    code, out, _ = typed(capsys, "ls", "--runs", str(tmp_path))
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(states)
    assert "result.json" in next(row["failure"] for row in runs_table(tmp_path) if row["id"] == "cut")


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("status = 'failed'", ["b"]),
        ("engine LIKE 'deepspeed%' AND samples_per_second > 100", ["a"]),
        ("loss_final IS NULL", ["b", "c"]),
        ("world_size >= 8 OR status = 'interrupted'", ["a", "c"]),
        ("hosts = 2 -- and nothing else", ["a"]),
        *((where, None) for where in ("stauts = 'failed'", "1; DROP TABLE runs", "", "status =")),
    ],
)
def test_a_condition_over_runs(where: str, ids: list[str] | None, tmp_path: Path) -> None:
    """None: it is no condition. A run has the name that it is given."""
    made(named_run_folder(tmp_path, "a").path, RESULT)
    made(tmp_path / "b", {"status": "failed", "failure": {"what": "out of memory"}})
    made(tmp_path / "c", None, {"world_size": 2})
    if ids is None:
        with pytest.raises(UsageError, match="is not a condition"):
            runs_table(tmp_path, where)
    else:
        assert sorted(row["id"] for row in runs_table(tmp_path, where)) == ids


def test_runs_beside_each_other_as_markdown_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = {"allocator_peak": 33_780_000_000, "resident_peak": 2**30}
    made(tmp_path / "a", {**RESULT, "model": "t5|small", "memory": memory})
    made(tmp_path / "b", {"status": "failed", "seconds": {"total": "long"}})
    code, out, _ = typed(capsys, "ls", "--runs", str(tmp_path), "--markdown")
    heads, rule, *rows = [[cell.strip() for cell in line.split(" | ")] for line in out.splitlines()]
    assert code == 0 and {len(each) for each in (heads, rule, *rows)} == {len(heads)}
    first = dict(zip(heads, rows[0], strict=True))
    assert first["model"] == "t5\\|small" and first["device memory"] == "33.8 GB"
    assert first["technique"] == RESULT["engine"] and "perplexity" not in heads
    code, out, _ = typed(capsys, "ls", "--runs", str(tmp_path), "--csv")
    table = list(csv.DictReader(io.StringIO(out)))
    assert [row["id"] for row in table] == ["a", "b"]
    assert (table[0]["allocator_peak"], table[1]["allocator_peak"]) == ("33780000000", "")
    assert float(table[0]["seconds"]) == RESULT["seconds"]["total"] and table[0]["model"] == "t5|small"


def test_what_counts_no_steps_shows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "fabric", {**RESULT, "model": None, "steps": 0, "world_size": 4})
    made(tmp_path / "broken", {**RESULT, "model": "t5-small", "steps": 0, "world_size": 4})
    made(tmp_path / "early", None, {"recipe": {"workload": "digits"}})
    code, out, _ = typed(capsys, "ls", "--runs", str(tmp_path))
    cells = {line.split()[0]: line.split() for line in out.splitlines()}
    assert code == 0 and cells["fabric"].count("0") == 0 and cells["broken"].count("0") == 1
    code, out, _ = typed(capsys, "ls", "--runs", str(tmp_path), "--json")
    assert sorted(row["steps"] or 0 for row in json.loads(out)) == [0, 0, 0]
    code, out, err = typed(capsys, "show", "early", "--runs", str(tmp_path), "--csv")
    assert code == 0 and out.count("\n") == 1 and "no step" in err


def test_words_are_wrapped_at_spaces(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recipes, errors and rows of results: no word is cut, and none is lost."""
    typed_words = (["recipes"], ["train", "digits", "local", "data=x" * 40])
    whole = [typed(capsys, *words) for words in typed_words]
    monkeypatch.setattr("muster.cli.output.terminal_width", lambda **_: 60)
    narrow = [typed(capsys, *words) for words in typed_words]
    for before, after in zip(whole, narrow, strict=True):
        assert [text.split() for text in before[1:]] == [text.split() for text in after[1:]]
    assert max(map(len, narrow[0][1].splitlines())) <= 60
    console = out_console()
    with console.capture() as caught:
        print_row(console, "note", "word " * 40)
    lines = caught.get().splitlines()
    assert len(lines) > 1 and all(len(line) <= 60 and line.startswith(" " * 25) for line in lines[1:])
