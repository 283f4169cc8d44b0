"""When checkpoints are due, how many lie on a disk, and which of them go."""

from __future__ import annotations

import ast
import inspect
import json
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.checks.families.disk import checkpoint_bytes
from muster.core import families
from muster.core.checkpoints import UNKNOWN, bytes_needed, due, scheduled
from muster.core.errors import UsageError
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.runs.checkpoints import Start, WantedCheckpoint, choose
from muster.runs.requirements import disk_needed
from muster.store import events, sealed
from muster.store.runfolder import RunFolder
from muster.store.sealed import UNFINISHED, what_is_missing, what_is_wrong

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


def test_a_recipe_keeps_its_schedule(tmp_path: Path) -> None:
    """From the command line, through the frozen file, to the rank."""
    recipe = load_recipe("demo", ["checkpoint.every=[[50, 500], [1000, null]]", "checkpoint.keep=all"])
    assert recipe.checkpoint.every == [(50, 500), (1000, None)]
    frozen = recipe_from(json.loads(json.dumps(recipe.as_dict())))
    assert frozen.checkpoint == recipe.checkpoint


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
    from muster.worker.instruments.checkpoint_callback import prune

    for step in (10, 20, 30, 40, 50, 60):
        checkpoint(tmp_path, step, complete=step not in (20, 60))
    prune(tmp_path, keep, newest)
    assert names(tmp_path) == left


def test_the_keeper_asks_where_one_is_due(tmp_path: Path) -> None:
    """And clears the place of what is left there, whose files would else mix with the new ones."""
    pytest.importorskip("transformers")
    from muster.worker.instruments.checkpoint_callback import CheckpointCallback

    recipe = load_recipe("demo", ["checkpoint.every=[[2,4],[3,null]]"])
    for attempt in (1, 2):
        stale = checkpoint(tmp_path, 6)
        context = SimpleNamespace(
            recipe=recipe,
            attempt=attempt,
            saver=True,
            checkpoint=lambda step: tmp_path / f"checkpoint-{step}",
        )
        asked = []
        for step in range(1, 13):
            control = SimpleNamespace(should_save=step == 11)  # the trainer's own wish stays
            CheckpointCallback(context).on_step_end(None, SimpleNamespace(global_step=step), control)  # type: ignore[arg-type]
            asked += [step] if control.should_save else []
        assert asked == [2, 4, 6, 9, 11, 12]
        assert not stale.exists()


def test_a_disk_that_is_full_at_the_manifest_leaves_none(tmp_path: Path) -> None:
    """Half a manifest would make the checkpoint count as whole where old ones are dropped."""
    pytest.importorskip("transformers")
    from muster.worker.instruments.checkpoint_callback import seal

    (tmp_path / "trainer_state.json").write_text("{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))  # bytes of a file: fewer than a manifest has
    try:
        with pytest.raises(OSError, match="File too large"):
            seal(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["trainer_state.json"]
    seal(tmp_path)
    assert what_is_wrong(str(tmp_path))[0] is None


def test_what_is_missing_from_a_checkpoint(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path, 1)
    assert what_is_missing(str(whole)) is None
    (whole / "weights").write_bytes(b"1234")
    assert what_is_missing(str(whole)) == "weights has 4 of 5 bytes"
    (whole / "weights").unlink()
    assert what_is_missing(str(whole)) == "weights is missing"
    broken = (
        '{"files": {"weights": {}}}',
        '{"files": {"weights": {"bytes": "x", "sha256": ""}}}',
        "[" * 200_000,
    )
    for content in ("{", "[]", '{"files": 3}', "{}", '{"files": {"weights": [5]}}', *broken):
        (whole / "complete.json").write_text(content)
        assert what_is_missing(str(whole)) == "its manifest cannot be read"
    (whole / "complete.json").unlink()
    assert "was not finished" in (what_is_missing(str(whole)) or "")


def sealed_folder(folder: Path) -> str:
    """A sealed folder with a file of several pieces. -> its manifest's digest."""
    (folder / "global_step1").mkdir(parents=True)
    (folder / "global_step1" / "rank0.pt").write_bytes(bytes(range(256)) * 16)
    (folder / "empty").touch()
    (folder / "latest").write_text("global_step1")
    text, files = sealed.seal(str(folder))
    (folder / "complete.json").write_text(text)
    assert set(files) == {"global_step1/rank0.pt", "empty", "latest"}
    return sealed.digest_of(text.encode())


def test_one_flipped_bit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any piece of a file, and whichever host of those that share the folder reads it."""
    monkeypatch.setattr(sealed, "PIECE", 1000)
    digest = sealed_folder(tmp_path)
    file = tmp_path / "global_step1" / "rank0.pt"
    good = file.read_bytes()
    assert what_is_wrong(str(tmp_path), [digest]) == (None, len(good) + len("global_step1"))
    for place in (0, 999, 1000, 2500, len(good) - 1):
        file.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        assert what_is_missing(str(tmp_path)) is None
        told = [what_is_wrong(str(tmp_path), [digest], part, 3)[0] for part in range(3)]
        assert [words for words in told if words] == [
            "global_step1/rank0.pt is damaged: its content is not what was saved"
        ]


def test_who_can_write_the_folder_cannot_swap_file_and_manifest(tmp_path: Path) -> None:
    """The controller has the digest of the manifest that the rank wrote."""
    digest = sealed_folder(tmp_path)
    (tmp_path / "global_step1" / "rank0.pt").write_bytes(b"a pickle that runs something")
    (tmp_path / "complete.json").write_text(sealed.seal(str(tmp_path))[0])
    assert what_is_wrong(str(tmp_path))[0] is None
    assert what_is_wrong(str(tmp_path), [digest])[0] == sealed.ALTERED
    (tmp_path / "complete.json").write_text(json.dumps({"files": {"latest": 12}}))  # as before hashes
    assert what_is_wrong(str(tmp_path), [digest])[0] == sealed.ALTERED


def test_a_file_that_was_added_is_found(tmp_path: Path) -> None:
    digest = sealed_folder(tmp_path)
    (tmp_path / "global_step1" / "rank1.pt").write_bytes(b"a pickle that runs something")
    assert what_is_wrong(str(tmp_path), [digest])[0] == "global_step1/rank1.pt is not in its manifest"


def test_any_host_can_run_what_checks_a_checkpoint() -> None:
    """The agent executes its text: Python 3.8, and nothing but what comes with it."""
    tree = ast.parse(inspect.getsource(sealed), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_a_file_of_one_piece_has_its_plain_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sealed.hashes(str(tmp_path), ["a"]) == {"a": {"bytes": 3, "sha256": known}}


# --- which one a run goes on from ------------------------------------------------------------------------


class Hosts:
    """Stands in for hosts that read a checkpoint's files: what is wrong with each step on each host."""

    def __init__(self, wrong: dict[tuple[int, str], str] | None = None) -> None:
        self.wrong = wrong or {}
        self.read: list[tuple[int, str, int, int]] = []
        self.digests: list[list[str]] = []

    def verify(self, orders: dict[str, dict[str, Any]]) -> dict[str, str | None]:
        for host, order in orders.items():
            self.read.append((order["step"], host, order["part"], order["parts"]))
            self.digests.append(order["digests"])
        return {host: self.wrong.get((order["step"], host)) for host, order in orders.items()}


def facts(*checkpoints: list[int], shared: bool = True, damaged: dict[str, str] | None = None) -> Any:
    return {
        f"n{index}": {"checkpoints": there, "damaged_checkpoints": damaged, "shared": shared, "base": "/b"}
        for index, there in enumerate(checkpoints, start=1)
    }


def recorded(folder: Path, *saved: int, resumed: int | None = None) -> RunFolder:
    """A run whose ranks saved these steps; then one more attempt began."""
    run = RunFolder(folder)
    told: list[Any] = [
        events.Saved(time=1.0, step=step, path="p", bytes=1, seconds=1, manifest=f"m{step}") for step in saved
    ]
    if resumed is not None:
        told.append(events.JobState(time=2.0, attempt=2, state="begin", detail={"resume_step": resumed}))
    run.events.write_text("".join(events.to_line(event) + "\n" for event in told))
    return run


def chosen(
    run: RunFolder, about: Any, hosts: Any, wanted: WantedCheckpoint | None = None, engine: str = "ddp"
) -> Start:
    recipe = load_recipe("demo", [f"engine.name={engine}", "engine.zero=0"])
    copied: list[tuple[int, str, str]] = []
    start = choose(run, recipe, hosts, about, wanted or WantedCheckpoint(), lambda *told: copied.append(told))
    hosts.copied = copied
    return start


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    """Each host of a shared folder reads a part; older checkpoints than the chosen one are not read."""
    run, hosts = recorded(tmp_path, 10, 20, 30), Hosts({(30, "n2"): "optimizer.pt is damaged"})
    start = chosen(run, facts([10, 20, 30], [10, 20, 30]), hosts)
    assert start.step == 20
    assert [(d.field, d.why) for d in start.notes] == [("checkpoint-30", "optimizer.pt is damaged on n2")]
    assert hosts.read == [(30, "n1", 0, 2), (30, "n2", 1, 2), (20, "n1", 0, 2), (20, "n2", 1, 2)]
    hosts = Hosts()
    chosen(run, facts([10, 20, 30], [10, 20, 30], shared=False), hosts)
    assert hosts.read == [(30, "n1", 0, 1), (30, "n2", 0, 1)]  # a disk of its own is read whole
    hosts, about = Hosts(), facts([30], [30], [30])
    about["n1"]["shared"] = False
    chosen(run, about, hosts)
    assert hosts.read == [(30, "n1", 0, 1), (30, "n2", 0, 2), (30, "n3", 1, 2)]


def test_one_that_hosts_see_to_be_short_is_named_as_well(tmp_path: Path) -> None:
    """Its files are not read; only what an attempt did not finish is no loss."""
    run, hosts = recorded(tmp_path, 10, 20), Hosts()
    start = chosen(run, facts([10], [10], damaged={"20": "optimizer.pt is 3 of 7 bytes"}), hosts)
    assert (start.step, {step for step, *_ in hosts.read}) == (10, {10})
    why = "optimizer.pt is 3 of 7 bytes on n1"
    assert [(d.field, d.why) for d in start.notes] == [("checkpoint-20", why)]
    with pytest.raises(UsageError, match="cannot go on: checkpoint-20"):
        chosen(run, facts([], damaged={"20": "optimizer.pt is 3 of 7 bytes"}), hosts)


def test_nothing_is_begun_anew_while_checkpoints_are_there(tmp_path: Path) -> None:
    """A job that started over would remove them one by one."""
    run, hosts = recorded(tmp_path, 20), Hosts({(20, "n1"): "rank0.pt is damaged"})
    with pytest.raises(UsageError, match=r"checkpoint-20: rank0.pt is damaged on n1") as refused:
        chosen(run, facts([20]), hosts)
    assert "--step 0" in (refused.value.hint or "")
    assert chosen(run, facts([20]), hosts, WantedCheckpoint(step=0)) == Start()
    unfinished = facts([], damaged={"10": "it has no manifest: writing it was not finished"})
    (tmp_path / "new").mkdir()
    new = recorded(tmp_path / "new")
    assert chosen(new, unfinished, Hosts()).step is None  # killed while it wrote its first
    assert chosen(new, facts([]), Hosts()) == Start()


@pytest.mark.parametrize("engine", ["ddp", "deepspeed"])
@pytest.mark.parametrize("there", [[], [30]])
def test_nothing_is_begun_anew_where_no_host_shows_what_was_sealed(
    there: list[int], engine: str, tmp_path: Path
) -> None:
    """A disk that is not mounted; what an attempt had not finished is there nevertheless."""
    run, hosts = recorded(tmp_path, 10, 20), Hosts()
    about = facts([], damaged={str(step): UNFINISHED for step in there})
    with pytest.raises(UsageError, match="sealed checkpoint-20, and no host has it") as refused:
        chosen(run, about, hosts, engine=engine)
    assert "--step 0" in (refused.value.hint or "") and refused.value.where == run.id
    assert chosen(run, about, hosts, WantedCheckpoint(0)).step is None


def test_a_newer_one_that_no_host_shows_is_passed_over_and_named(tmp_path: Path) -> None:
    """One disk of two is mounted, or somebody removed it. Older ones go by themselves."""
    run = recorded(tmp_path, 10, 20, 30, 40)
    start = chosen(run, facts([20], damaged={"30": "it is short"}), Hosts())
    assert start.step == 20
    assert [each.field for each in start.notes] == ["checkpoint-30", "checkpoint-40"]
    assert chosen(run, facts([20]), Hosts(), WantedCheckpoint(step=20)).notes == ()
    (tmp_path / "new").mkdir()
    again = recorded(tmp_path / "new", 10, 20, 30, resumed=20)  # which gave up what came later
    assert chosen(again, facts([20]), Hosts()).notes == ()


def test_a_step_that_is_asked_for(tmp_path: Path) -> None:
    run = recorded(tmp_path, 10, 20, 30)
    assert chosen(run, facts([10, 20, 30]), Hosts(), WantedCheckpoint(step=10)).step == 10
    with pytest.raises(UsageError, match="no checkpoint of step 15") as refused:
        chosen(run, facts([10, 20, 30]), Hosts(), WantedCheckpoint(step=15))
    assert "10, 20, 30" in (refused.value.hint or "")
    with pytest.raises(UsageError, match="checkpoint-20: a is damaged on n1"):  # and no other instead
        chosen(run, facts([10, 20, 30]), Hosts({(20, "n1"): "a is damaged"}), WantedCheckpoint(step=20))


def test_one_that_failed_to_load_is_passed_over(tmp_path: Path) -> None:
    run = recorded(tmp_path, 10, 20)
    start = chosen(run, facts([10, 20]), Hosts(), WantedCheckpoint(avoid={20: "rank 0: invalid header"}))
    assert (start.step, start.notes[0].why) == (10, "rank 0: invalid header")


def test_what_an_abandoned_attempt_left_is_not_gone_on_from(tmp_path: Path) -> None:
    """Attempt 2 went back to step 10: what attempt 1 saved later belongs to another training."""
    run = recorded(tmp_path, 10, 20, 30, resumed=10)
    start = chosen(run, facts([10, 20, 30]), Hosts())
    assert start.step == 10
    assert all("did not go on from" in decision.why for decision in start.notes)
    assert chosen(run, facts([10, 20, 30]), Hosts(), WantedCheckpoint(step=30)).step == 30


def test_a_step_that_two_attempts_saved_is_the_later_ones(tmp_path: Path) -> None:
    """A disk that still has the first attempt's: a mixture of two trainings."""
    run, hosts = recorded(tmp_path, 10, 20, resumed=10), Hosts()
    again = events.Saved(time=3.0, step=20, path="p", bytes=1, seconds=1, manifest="later")
    with run.events.open("a") as file:
        file.write(events.to_line(again) + "\n")
    assert chosen(run, facts([10, 20], [10, 20], shared=False), hosts).step == 20
    assert hosts.digests == [["later"], ["later"]]


@pytest.mark.parametrize(("engine", "step"), [("deepspeed", 10), ("ddp", 20)])
def test_pickles_that_nobody_saw_being_saved_are_not_run(engine: str, step: int, tmp_path: Path) -> None:
    """Step 20 appeared in the folder; no rank told the controller of it."""
    run = recorded(tmp_path, 10)
    assert chosen(run, facts([10, 20]), Hosts(), engine=engine).step == step
    assert chosen(run, facts([10, 20]), Hosts(), WantedCheckpoint(step=20), engine=engine).step == 20


def test_a_host_that_lacks_it_is_told_what_to_copy(tmp_path: Path) -> None:
    run, about = recorded(tmp_path, 20), facts([20], [], shared=False)
    with pytest.raises(UsageError) as refused:
        chosen(run, about, Hosts())
    assert "copy n1:/b/checkpoints/checkpoint-20 to n2:/b/checkpoints/checkpoint-20" in str(refused.value)
    assert "--copy" in (refused.value.hint or "")
    hosts: Any = Hosts()
    assert chosen(run, about, hosts, WantedCheckpoint(copy=True)).step == 20
    assert hosts.copied == [(20, "n1", "n2")]
    chosen(run, facts([], [20], [], shared=False), hosts, WantedCheckpoint(copy=True))
    assert hosts.copied == [(20, "n2", "n1"), (20, "n2", "n3")]
