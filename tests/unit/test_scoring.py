"""What answers are worth, and wrong SQL beside the right one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import DataError, RecipeError
from muster.core.recipe import recipe_from
from muster.dialogues.rows import Dialogue, Turn, Wanted
from tests.support import needs_torch


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "towns.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE town (name TEXT, size INTEGER)")
        made.executemany("INSERT INTO town VALUES (?, ?)", [("A", 1), ("B", 2), ("C", 3)])
    return path


def asked(database: Path | None, answer: str | None = "SELECT name FROM town WHERE size > 1") -> Dialogue:
    return Dialogue((Turn("user", "Which?"),), answer, None, "x:1", str(database) if database else None)


@pytest.mark.parametrize(
    ("expected", "said", "right"),
    [
        ("SELECT name FROM town WHERE size > 1", "SELECT name FROM town WHERE size >= 2", True),
        ("SELECT name FROM town WHERE size > 1", "SELECT name FROM town", False),
        ("SELECT name FROM town WHERE size > 1", "no SQL", False),
        # Of nothing, and of zeros, much wrong SQL gives the same.
        ("SELECT name FROM town WHERE size > 9", "SELECT name FROM town WHERE size > 8", False),
        ("SELECT name FROM town WHERE size > 9", "SELECT  name FROM town WHERE size > 9", True),
        ("SELECT count(*) FROM town WHERE size > 9", "SELECT count(*) FROM town WHERE name = 'Z'", False),
        ("SELECT count(*) FROM town WHERE size > 1", "SELECT count(size) FROM town WHERE size > 1", True),
    ],
)
def test_sql_that_is_run(database: Path, expected: str, said: str, right: bool) -> None:
    from muster.dialogues.scoring import _executes

    assert _executes(asked(database, expected), said) is right


def test_expected_sql_that_cannot_be_run_is_the_datas_fault(database: Path) -> None:
    from muster.dialogues.scoring import _executes

    with pytest.raises(DataError, match="cannot be run") as found:
        _executes(asked(database, "SELECT x FROM nowhere"), "SELECT 1")
    assert found.value.where == "x:1"


def scorer(tmp_path: Path, body: str, **reward: Any) -> Any:
    from muster.dialogues.scoring import Scorer
    from muster.worker.data.tokenizer import train_tokenizer

    file = tmp_path / "rewards.py"
    file.write_text(f"def reward(prompts, answers, expected):\n    {body}\n")
    given = {"function": f"{file}:reward", **reward}
    recipe: Any = recipe_from({"workload": "grpo", "reward": given})
    tokenizer = train_tokenizer(["SELECT name FROM town"] * 9, 300)
    context: Any = SimpleNamespace(device="cpu", recipe=recipe, precision="fp32", local_rank=0)
    return Scorer(context, recipe, tokenizer)


def test_rewards_are_added_up(tmp_path: Path, database: Path) -> None:
    body = "return [len(each) + (want is not None) for each, want in zip(answers, expected)]"
    found = scorer(tmp_path, body, execution=True)
    right = "SELECT name FROM town WHERE size > 1"
    answers = [found.tokenizer(text)["input_ids"] for text in (right, "SELECT name FROM town")]
    assert found([asked(database)] * 2, answers) == [len(right) + 1 + 1, len("SELECT name FROM town") + 1]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return [1.0]", "gave 1 rewards for 2 answers"),
        ("return None", "gave no rewards for 2 answers"),
        ("return ['good', 'bad']", "gave 'good' for an answer to the prompt of x:1"),
        ("return [0, 10**400]", "gave 1000.* for an answer to the prompt of x:1"),
        ("return [float('inf'), 0]", "gave inf for an answer to the prompt of x:1"),
        ("raise KeyError('oh')", "raised KeyError: 'oh' \\(.*rewards.py:2\\)"),
    ],
)
def test_a_function_that_goes_wrong(tmp_path: Path, body: str, what: str) -> None:
    found = scorer(tmp_path, body)
    with pytest.raises(DataError, match=what) as told:
        found([asked(None)] * 2, [[5], [6]])
    assert str(told.value.where).endswith("rewards.py:reward")


@pytest.mark.parametrize(("body", "name"), [("syntax error", "reward"), ("pass", "nowhere")])
def test_a_function_that_cannot_be_loaded(tmp_path: Path, body: str, name: str) -> None:
    from muster.dialogues.scoring import load_function

    (tmp_path / "rewards.py").write_text(f"def reward(a, b, c):\n    {body}\n")
    with pytest.raises(RecipeError, match="cannot be loaded"):
        load_function(f"{tmp_path}/rewards.py:{name}")


def test_a_reward_model_reads_the_same_tokens(tmp_path: Path) -> None:
    from muster.dialogues.scoring import check_tokenizer
    from muster.worker.data.tokenizer import train_tokenizer

    one, other = (train_tokenizer([text] * 9, 320) for text in ("SELECT name FROM town", "what is it, then?"))
    one.save_pretrained(str(tmp_path))
    check_tokenizer(str(tmp_path), one, "reward.model")
    with pytest.raises(RecipeError, match="another tokenizer") as found:
        check_tokenizer(str(tmp_path), other, "reward.model")
    assert found.value.where == "reward.model"


def test_wrong_sql_gives_other_rows(database: Path) -> None:
    from muster.worker.data.sqlexec import same_result
    from muster.worker.data.sqlgen.wrong import wrong_queries

    right = [
        "SELECT name FROM town WHERE size > 1", "SELECT max(size) FROM town", "SELECT name FROM town",
        "SELECT count(*) FROM town WHERE name = 'A'",
    ]  # fmt: skip
    pairs = [(sql, database) for sql in right] * 5
    found = wrong_queries(pairs, seed=3)
    assert found == wrong_queries(pairs, seed=3) != wrong_queries(pairs, seed=4)
    assert len(found) == len(pairs)
    assert not any(same_result(database, wrong, sql) for wrong, (sql, _) in zip(found, pairs, strict=True))


def test_a_hubs_rows_are_read_by_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the sets of DeepSpeed-Chat have them; a row that cannot be used is told, or left out."""
    from muster.dialogues import load
    from muster.dialogues.spec import Source

    rows = [
        {"prompt": "\n\nHuman: A\n\nAssistant:", "response": " r", "chosen": " b", "rejected": " c"},
        {"prompt": "\n\nHuman: B\n\nAssistant:", "response": " r", "chosen": " b", "rejected": " b"},
    ]
    monkeypatch.setattr(load, "hub_parts", lambda *_: {"train": rows, "test": rows[:1]})
    source, wanted = Source(name="Dahoas/rm-static"), Wanted(pairs=True)
    with pytest.raises(DataError, match="is the chosen one") as told:
        load._from_hub(source, wanted, None)
    assert told.value.where == "Dahoas/rm-static, train[1]"
    errors: list[DataError] = []
    train, held = load._from_hub(source, wanted, errors.append)
    assert len(train) == len(held) == len(errors) == 1
    assert (train[0].answer, train[0].rejected) == (" b", " c")
    assert json.dumps(train[0].question).startswith('"\\n\\nHuman: A')
