"""When checkpoints are due, how many lie on a disk, and which of them go."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent.agent import what_is_wrong
from muster.checks.disk import checkpoint_bytes
from muster.core import families
from muster.core.checkpoints import UNKNOWN, bytes_needed, due, most_on_disk, scheduled
from muster.core.errors import RecipeError
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.planner.decide import disk_needed

MISTRAL = [(50, 500), (100, 2000), (1000, None)]


def steps(schedule: Any, last: int) -> list[int]:
    return [step for step in range(1, last + 1) if due(schedule, step)]


def test_dense_first_and_sparse_later() -> None:
    dense = list(range(50, 501, 50))
    sparse = list(range(600, 2001, 100))
    assert steps(MISTRAL, 5000) == [*dense, *sparse, 3000, 4000, 5000]
    assert steps([[2, 4], [3, 9]], 30) == [2, 4, 6, 9]  # nothing after the last `until`
    assert steps([[4, 10], [5, 25]], 30) == [4, 8, 15, 20, 25]  # 10 is the first pair's, and no multiple
    assert steps(7, 30) == [7, 14, 21, 28]
    assert steps(None, 30) == []


@pytest.mark.parametrize("schedule", [MISTRAL, [(2, 4), (3, 9)], [(4, 10), (5, 25)], [(7, 20)], 1, 13, None])
@pytest.mark.parametrize("last", [0, 1, 4, 8, 9, 10, 24, 499, 500, 501, 2400, 3000])
def test_the_number_is_that_of_the_steps(schedule: Any, last: int) -> None:
    assert scheduled(schedule, last) == len(steps(schedule, last))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "an empty list is no schedule"),
        ("[[50, null], [100, 200]]", "nothing can come after it"),
        ("[[50, 500], [100, 500]]", r"\[100, 500\] ends at step 500, and the pair before it at 500"),
        ("[[50, 500], [100, 400]]", r"\[100, 400\] ends at step 400"),
        ("[[600, 500]]", "steps 1 to 500 hold no multiple of 600"),
        ("[[50, 500], [1000, 900]]", "steps 501 to 900 hold no multiple of 1000"),
        ("[50, 500]", "50 is no pair"),
        ("[[50]]", r"\[50\] is no pair"),
        ("[[50, 500, 5]]", "is no pair"),
        ("[[0, 500]]", "is no pair"),
        ("[[50, -1]]", "is no pair"),
        ("[[true, 500]]", "is no pair"),
        ("[[2.5, 500]]", "is no pair"),
        ("[[null, 500]]", "is no pair"),
        ("0", "greater than or equal to 1"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, what: str) -> None:
    with pytest.raises(RecipeError, match=what) as caught:
        load_recipe("demo", [f"checkpoint.every={text}"])
    assert "checkpoint.every" in str(caught.value)


def test_a_recipe_keeps_its_schedule(tmp_path: Path) -> None:
    """From the command line, through the frozen file, to the rank."""
    recipe = load_recipe("demo", ["checkpoint.every=[[50, 500], [1000, null]]", "checkpoint.keep=all"])
    assert recipe.checkpoint.every == [(50, 500), (1000, None)]
    frozen = recipe_from(json.loads(json.dumps(recipe.as_dict())))
    assert frozen.checkpoint == recipe.checkpoint
    with pytest.raises(RecipeError, match=r"checkpoint.keep"):
        load_recipe("demo", ["checkpoint.keep=some"])


@pytest.mark.parametrize(
    ("schedule", "keep", "max_steps", "most"),
    [
        (None, 2, 1000, 0),
        (10, 2, None, 3),  # a new one is whole before an old one goes
        (10, 2, 1000, 3),
        (10, 5, 25, 3),  # 10, 20 and the last step
        (10, 5, 20, 2),
        (10, "all", 1000, 100),
        (10, "all", 1005, 101),
        (10, "all", None, None),
        (MISTRAL, "all", 400_000, 10 + 15 + 398),
        ([(2, 4), (3, 9)], "all", None, 5),  # the schedule ends; and the last step
    ],
)
def test_how_many_lie_on_a_disk(schedule: Any, keep: Any, max_steps: int | None, most: int | None) -> None:
    assert most_on_disk(schedule, keep, max_steps) == most


def test_the_room_for_them() -> None:
    """The planner and the check of the disks say the same; a resumed run has some already."""
    assert bytes_needed(1, 10, "all", 1000) == 4 + 16 * 100
    assert bytes_needed(1, 10, "all", 1000, present=60) == 4 + 16 * 40
    assert bytes_needed(1, 10, "all", 1000, present=200) == 4 + 16  # the next one, all the same
    assert bytes_needed(1, 10, "all", None) == 4 + 16 * UNKNOWN
    assert bytes_needed(1, None, "all", 1000) == 4
    recipe = load_recipe(
        "text2sql-t5-small",
        ["checkpoint.every=[[5,20],[10,null]]", "checkpoint.keep=all", "train.max_steps=45"],
    )
    count = families.parameters(families.size("t5-small") or {})
    assert count and checkpoint_bytes(recipe.as_dict()) == disk_needed(count, recipe) == count * (4 + 16 * 7)


def checkpoint(folder: Path, step: int, *, complete: bool = True) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(b"12345")
    if complete:
        (place / "complete.json").write_text(json.dumps({"files": {"weights": 5}}))
    return place


def names(folder: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("keep", "newest", "left"),
    [
        (2, 40, {30, 40, 50, 60}),
        (1, 40, {40, 50, 60}),
        ("all", 40, {10, 30, 40, 50, 60}),
        (9, 40, {10, 30, 40, 50, 60}),
        (2, 10, {10, 20, 30, 40, 50, 60}),
    ],
)
def test_what_pruning_leaves(keep: Any, newest: int, left: set[int], tmp_path: Path) -> None:
    """20 is incomplete. 50 and 60 are of an attempt that went further: they take nobody's place."""
    pytest.importorskip("transformers")
    from muster.worker.instruments.keeper import prune

    for step in (10, 20, 30, 40, 50, 60):
        checkpoint(tmp_path, step, complete=step not in (20, 60))
    prune(tmp_path, keep, newest)
    assert names(tmp_path) == left


def test_the_keeper_asks_where_one_is_due(tmp_path: Path) -> None:
    """And clears the place of what is left there, whose files would else mix with the new ones."""
    pytest.importorskip("transformers")
    from muster.worker.instruments.keeper import Keeper

    recipe = load_recipe("demo", ["checkpoint.every=[[2,4],[3,null]]"])
    for attempt in (1, 2):
        stale = checkpoint(tmp_path, 6)
        context = SimpleNamespace(recipe=recipe, attempt=attempt, saver=True, checkpoints=tmp_path)
        asked = []
        for step in range(1, 13):
            control = SimpleNamespace(should_save=step == 11)  # the trainer's own wish stays
            Keeper(context).on_step_end(None, SimpleNamespace(global_step=step), control)  # type: ignore[arg-type]
            asked += [step] if control.should_save else []
        assert asked == [2, 4, 6, 9, 11, 12]
        assert not stale.exists()


def test_what_is_wrong_with_a_checkpoint(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path, 1)
    assert what_is_wrong(str(whole)) is None
    (whole / "weights").write_bytes(b"1234")
    assert what_is_wrong(str(whole)) == "weights has 4 of 5 bytes"
    (whole / "weights").unlink()
    assert what_is_wrong(str(whole)) == "weights is missing"
    for content in ("{", "[]", '{"files": 3}', "{}"):
        (whole / "complete.json").write_text(content)
        assert what_is_wrong(str(whole)) == "its manifest cannot be read"
    (whole / "complete.json").unlink()
    assert "was not finished" in (what_is_wrong(str(whole)) or "")
