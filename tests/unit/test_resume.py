"""Resume: what a run goes on with is its own, and it goes on as the job that it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import RunFolderError, UsageError
from muster.core.inventory import Host
from muster.core.job import Job, place
from muster.core.recipe import recipe_from
from muster.core.recipes import dump_yaml
from muster.core.result import Failure, Result
from muster.core.state import State
from muster.inputs.read import Inputs, read_inputs
from muster.runs import resume as resuming
from muster.runs import train as stage
from muster.runs.ask import ask
from muster.runs.checkpoints import Start, WantedCheckpoint
from muster.runs.continuing import continued, divided, on_other_hosts, same_batch, without
from muster.runs.train import Attempt, agree
from muster.store import events
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import RunFolder
from tests.support import TINY
from tests.unit.benches import made


class Asked(Exception):
    """Hosts were told what they must know: no test here goes further."""


class Supervisor:
    """Stands in for the hosts: keeps what they were told."""

    told: list[dict[str, dict[str, Any]]]

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def greet(self, specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        self.told.append(specs)
        return {}

    def meanwhile(self, work: Callable[[], Any]) -> Any:
        return work()


@pytest.fixture
def workdirs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What the hosts of a run are told to name its folder, where they do not share it."""

    def stop(*_: object) -> None:
        raise Asked

    monkeypatch.setattr(stage, "Supervisor", Supervisor)
    monkeypatch.setattr(stage, "agree", lambda *_: None)
    monkeypatch.setattr(stage, "_run", stop)
    monkeypatch.setattr(Supervisor, "told", [], raising=False)

    def ask(run: RunFolder, attempt: Attempt | None = None) -> str:
        inputs = read_inputs("demo", "local:1", [*TINY, "launch.workdir=/w"])
        with pytest.raises(Asked):
            stage.train(inputs, run, attempt=attempt)
        return str(next(iter(Supervisor.told[-1].values()))["workdir"])

    return ask


def test_hosts_keep_a_run_apart_from_others_of_its_name(workdirs: Callable[..., str], tmp_path: Path) -> None:
    """The same --output again, or that of another project: what lies on the hosts is not this run's."""
    first, other = RunFolder(tmp_path / "a" / "final"), RunFolder(tmp_path / "b" / "final")
    begun = workdirs(first)
    assert begun == f"/w/{first.elsewhere}"
    assert begun.startswith("/w/final-")
    assert workdirs(first, Attempt(2)) == begun
    assert workdirs(other) != begun
    first.path.rename(tmp_path / "gone")
    assert workdirs(RunFolder(first.path)) != begun


def test_a_run_of_before_goes_on_where_it_was(workdirs: Callable[..., str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "final")
    run.create()
    assert workdirs(run, Attempt(2)) == "/w/final"


# --- the same job ----------------------------------------------------------------------------------------


def job(
    slots: int, size: int, precision: str = "bf16", device: str = "cuda", engine: str = "ddp", hosts: int = 1
) -> Job:
    places = place([(Host(f"n{number}", slots), slots) for number in range(1, hosts + 1)])
    ranks = slots * hosts
    return Job(
        id="one",
        launcher="ssh",
        placements=places,
        batch=Batch(min(4, size // ranks), max(1, size // ranks // 4), size),
        precision=precision,
        device=device,
        recipe=recipe_from({"engine": {"name": engine}}).as_dict(),
        resume_step=100,
    )


def begun(folder: Path, before: Job) -> RunFolder:
    run = RunFolder(folder / "one")
    run.create()
    write_json(run.job, before.as_dict())
    return run


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (job(4, 32), "on 4 ranks with a global batch of 32 in bf16 on cuda"),
        (job(8, 64, precision="fp32"), "in fp32 on cuda"),
        (job(8, 64, device="cpu"), "in bf16 on cpu"),
    ],
)
def test_another_job_is_not_gone_on_with(again: Job, words: str, tmp_path: Path) -> None:
    run = begun(tmp_path, job(8, 64))
    with pytest.raises(UsageError) as refused:
        continued(run, again)
    said = str(refused.value)
    assert "one: was begun on 8 ranks with a global batch of 64 in bf16 on cuda, and would go on " in said
    assert words in said
    assert "muster train" in (refused.value.hint or "")


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_the_same_global_batch_may_go_on_on_fewer_ranks(engine: str, tmp_path: Path) -> None:
    run, again = begun(tmp_path, job(8, 64)), job(4, 64, engine=engine)
    (said,) = continued(run, again).decisions
    assert (said.field, said.value) == ("ranks", 4)
    assert said.why.startswith("begun on 8: ")
    assert continued(run, job(8, 64)).decisions == ()


def about(checkpoints: list[int]) -> dict[str, Any]:
    """What a host without GPUs says of itself."""
    names = ("torch", "transformers", "accelerate", "pydantic")
    return {
        "versions": dict.fromkeys(names, "1"), "python": "python3", "gpus": [], "cores": 2, "shared": True,
        "disk_free": None, "checkpoints": checkpoints, "port": 1, "memory_total": None, "memory_limit": None,
    }  # fmt: skip


def test_hosts_are_asked_before_anything_is_written(tmp_path: Path) -> None:
    """Where a checkpoint is there to go on from; from the beginning, any job will do."""
    run, before = begun(tmp_path, job(8, 64)), (tmp_path / "one" / "job.json").read_text()
    inputs = read_inputs("demo", "local:2", [*TINY, "engine.name=ddp", "engine.zero=0"])
    with pytest.raises(UsageError, match="would go on on 2 ranks"):
        agree(inputs, run, {"local": about([100])}, Attempt(2), start=Start(100))
    assert run.job.read_text() == before
    decided = agree(inputs, run, {"local": about([])}, Attempt(2), start=Start())
    assert decided.job.resume_step is None


# --- other hosts ------------------------------------------------------------------------------------------


def now(hosts: str, *overrides: str, engine: str = "ddp") -> Inputs:
    zero = "1" if engine == "deepspeed" else "0"
    return read_inputs("demo", hosts, [*TINY, f"engine.name={engine}", f"engine.zero={zero}", *overrides])


def each(inputs: Inputs, *, shared: bool = True) -> dict[str, Any]:
    return {host: {**about([100]), "shared": shared} for host in inputs.inventory.names}


@pytest.mark.parametrize(
    ("hosts", "micro", "accumulation"),
    [("n1:8", 4, 2), ("n1:8,n3:8", 4, 1), ("n1:1", 4, 16), ("n1:32", 2, 1), ("n1:16,n2:16,n3:32", 1, 1)],
)
def test_the_global_batch_stays_on_other_ranks(
    hosts: str, micro: int, accumulation: int, tmp_path: Path
) -> None:
    """What the recipe derived from the number of ranks at the start is not derived anew."""
    run = begun(tmp_path, job(8, 64))
    inputs = now(hosts)
    batch = same_batch(run, inputs, each(inputs)).recipe.batch
    assert (batch.micro, batch.accumulation, batch.global_) == (micro, accumulation, 64)


@pytest.mark.parametrize(
    ("hosts", "setting", "micro"),
    [
        ("n1:8", "batch.micro=auto", 4),
        ("n1:4", "batch.micro=auto", None),
        ("n1:4", "batch.micro=2", 4),
        ("n1:4", "launch.device=cpu", 4),
    ],
)
def test_the_micro_batch_is_decided_anew_where_memory_may_have_changed(
    hosts: str, setting: str, micro: int | None, tmp_path: Path
) -> None:
    """On other numbers of GPUs, unless the recipe says it."""
    run, inputs = begun(tmp_path, job(8, 64)), now(hosts, "launch.device=auto", setting)
    gpus = [{"name": "NVIDIA A100-SXM4-40GB", "memory_total": 40 << 30, "capability": [8, 0]}] * 8
    facts = {host: {**told, "gpus": gpus} for host, told in each(inputs).items()}
    assert same_batch(run, inputs, facts).recipe.batch.micro == micro


def test_a_global_batch_that_cannot_be_divided(tmp_path: Path) -> None:
    run, inputs = begun(tmp_path, job(8, 64)), now("n1:6")
    with pytest.raises(UsageError, match="64, which cannot be divided among 6 ranks") as refused:
        same_batch(run, inputs, each(inputs))
    assert "such as 1, 2, 4, 8" in (refused.value.hint or "")
    assert divided(Batch(6, 2, 48), 3, "one") == Batch(4, 4, 48)


@pytest.mark.parametrize(
    ("slots", "hosts", "refused"), [(8, "n1:4", False), (8, "n1:1", True), (1, "n1:4", True)]
)
def test_fsdp_goes_on_where_it_shards(slots: int, hosts: str, refused: bool, tmp_path: Path) -> None:
    """Accelerate saves and reads other files where there is one rank alone."""
    run, inputs = begun(tmp_path, job(slots, 64, engine="fsdp")), now(hosts, engine="fsdp")
    if refused:
        with pytest.raises(UsageError, match=f"begun on {slots} ranks"):
            same_batch(run, inputs, each(inputs))
    else:
        assert same_batch(run, inputs, each(inputs)).recipe.batch.global_ == 64


def test_deepspeed_goes_on_where_its_parts_are(tmp_path: Path) -> None:
    """On disks of their own: on as many ranks, each host with those that it had."""
    run = begun(tmp_path, job(4, 64, engine="deepspeed", hosts=2))
    for hosts, holder in (("n2:4,n1:4", "n1"), ("n1:4,n3:4", "n2")):
        moved = now(hosts, engine="deepspeed")
        same_batch(run, moved, each(moved))  # all see the run folder
        with pytest.raises(UsageError, match=f"on the disks of {holder}"):
            same_batch(run, moved, each(moved, shared=False))
    same = now("n1:4,n2:4", engine="deepspeed")
    assert same_batch(run, same, each(same, shared=False)).recipe.batch.global_ == 64


def test_deepspeed_goes_on_on_other_ranks_where_it_can(tmp_path: Path) -> None:
    run = begun(tmp_path, job(4, 64, engine="deepspeed", hosts=2))
    fewer = now("n1:4", engine="deepspeed")
    batch = same_batch(run, fewer, each(fewer)).recipe.batch
    assert (batch.micro, batch.accumulation, batch.global_) == (4, 4, 64)
    with pytest.raises(UsageError, match="does not see the parts"):
        same_batch(run, fewer, each(fewer, shared=False))
    for setting, why in (
        ("engine.zero=3", "ZeRO-3"),
        ("engine.offload=optimizer", "offloaded"),
        ("engine.options={zero_optimization: {stage: 3}}", "ZeRO-3"),
        ("engine.options={zero_optimization: {offload_optimizer: {device: cpu}}}", "offloaded"),
    ):
        other = now("n1:4", setting, engine="deepspeed")
        with pytest.raises(UsageError, match=f"begun on 8 ranks, and there are 4 now: .*{why}"):
            same_batch(run, other, each(other))


def test_hosts_are_left_out() -> None:
    inputs = now("n1:4,n2:4,n3:4", "launch.address=10.0.0.1", "launch.hosts=3")
    assert without(inputs.inventory, ["n2"]).names == ("n1", "n3")
    with pytest.raises(UsageError, match="n7: is none of the run's hosts"):
        without(inputs.inventory, ["n7"])
    with pytest.raises(UsageError, match="no host is left"):
        without(inputs.inventory, ["n1", "n2", "n3"])
    before = inputs.inventory
    kept = on_other_hosts(inputs.recipe, before, without(inputs.inventory, ["n2"])).launch
    assert (kept.hosts, kept.address) == (None, "10.0.0.1")
    assert on_other_hosts(inputs.recipe, before, without(before, ["n1"])).launch.address is None
    own = now("local:2x1", "launch.launcher=local")
    assert on_other_hosts(own.recipe, own.inventory, before).launch.launcher == "auto"


# --- checkpoints that cannot be loaded ----------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, 30])
def test_one_after_the_other_is_passed_over_until_one_loads(
    step: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was asked for by its step is not replaced by another."""
    run, avoided = ended(tmp_path, "stopped", 40, what="stopped by Ctrl-C"), []

    def train(_: Any, run: RunFolder, *, attempt: Attempt, **__: Any) -> Result:
        avoided.append(sorted(attempt.wanted.avoid))
        left = [step for step in (30, 20, 10) if step not in attempt.wanted.avoid]
        bad = left[0] if left[0] > 10 else None
        told: list[Any] = [events.JobState(time=1.0, attempt=attempt.number, state="begin")]
        told += [events.Failed(time=2.0, rank=0, what="invalid header", checkpoint=bad)] if bad else []
        with run.events.open("a") as file:
            file.writelines(events.to_line(event) + "\n" for event in told)
        failure = Failure(what=f"checkpoint-{bad}: invalid header") if bad else None
        changed = {"status": State.FAILED if bad else State.SUCCEEDED, "failure": failure}
        return made(["n1"]).model_copy(update=changed)

    monkeypatch.setattr(resuming, "train", train)
    monkeypatch.setattr(resuming, "_inputs", lambda *_: None)
    result = resuming.resume(run, wanted=WantedCheckpoint(step=step))
    assert avoided == ([[], [30], [20, 30]] if step is None else [[]])
    assert result.status == ("succeeded" if step is None else "failed")


# --- what `ask` says of a run without a model ------------------------------------------------------------


def ended(folder: Path, status: str, steps: int, **failure: str | None) -> RunFolder:
    run = begun(folder, job(1, 8))
    write_text(run.recipe, dump_yaml(recipe_from({}).as_dict()))
    write_json(run.result, {**made(["n1"]).model_dump(mode="json"), "status": status, "steps": steps,
                            "failure": failure})  # fmt: skip
    return run


def test_a_run_that_failed_at_its_start_repeats_its_cause(tmp_path: Path) -> None:
    """Going on would fail again."""
    run = ended(
        tmp_path, "failed", 0, what="no such model", where="model.name", host="n1", hint="another name"
    )
    with pytest.raises(UsageError, match=r"n1: model\.name: no such model") as refused:
        ask(run, ["How many?"])
    assert refused.value.hint == "another name"


@pytest.mark.parametrize(("status", "steps"), [("failed", 40), ("stopped", 0), ("timeout", 0)])
def test_a_run_that_can_go_on_is_told_how(status: str, steps: int, tmp_path: Path) -> None:
    run = ended(tmp_path, status, steps, what="stopped by Ctrl-C", hint=None)
    with pytest.raises(UsageError, match="stopped by Ctrl-C") as refused:
        ask(run, ["How many?"])
    assert refused.value.hint == f"`muster resume {run.word}`"


@pytest.mark.parametrize("lost", ["train:", "checkpoint:", "  max_steps:"])
def test_a_recipe_that_was_cut_is_not_gone_on_with(lost: str, tmp_path: Path) -> None:
    """Half a recipe may be valid YAML: what is missing would be trained with defaults, without a word."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    recipe = recipe_from({"train": {"max_steps": 7}}).as_dict()
    whole = dump_yaml(recipe)
    write_text(run.recipe, whole)
    resuming.check_whole(run, {"recipe": recipe})
    assert resuming.frozen_recipe(run).train.max_steps == 7
    write_text(run.recipe, whole[: whole.index("\n" + lost) + 1])
    with pytest.raises(RunFolderError, match="damaged"):
        resuming.check_whole(run, {"recipe": recipe})


@pytest.mark.parametrize(("shared", "anew"), [(True, True), (False, False)])
def test_parts_of_other_disks_are_not_missing(shared: bool, anew: bool, tmp_path: Path) -> None:
    """Where hosts have disks of their own, each has its ranks' parts alone, and nothing is cut anew."""
    from muster.engines.deepspeed.runtime import recut

    (tmp_path / "global_step20").mkdir()
    (tmp_path / "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    context: Any = SimpleNamespace(resume_step=20, shared=shared, world_size=2)
    assert recut(context, tmp_path) is anew
