"""Resume: what a run goes on with is its own, and it goes on as the job that it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import UsageError
from muster.core.inventory import Host
from muster.core.job import Job, place
from muster.core.recipe import recipe_from
from muster.stages import train as stage
from muster.stages.agree import Attempt, agree, continued
from muster.stages.checkpoints import Start
from muster.stages.inputs import read_inputs
from muster.store.atomic import write_json
from muster.store.runfolder import RunFolder
from tests.support import TINY


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
    assert workdirs(first, Attempt(2, resume=True)) == begun
    assert workdirs(other) != begun
    first.path.rename(tmp_path / "gone")
    assert workdirs(RunFolder(first.path)) != begun


def test_a_run_of_before_goes_on_where_it_was(workdirs: Callable[..., str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "final")
    run.create()
    assert workdirs(run, Attempt(2, resume=True)) == "/w/final"


# --- the same job ----------------------------------------------------------------------------------------


def job(slots: int, size: int, precision: str = "bf16", device: str = "cuda", engine: str = "ddp") -> Job:
    return Job(
        id="one",
        launcher="ssh",
        placements=place([(Host("n1", slots), slots)]),
        batch=Batch(1, size // slots, size),
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
        (job(4, 64, engine="deepspeed"), "on 4 ranks with a global batch of 64"),  # its parts are cut for 8
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
        agree(inputs, run, {"local": about([100])}, Attempt(2, resume=True), start=Start(100))
    assert run.job.read_text() == before
    ready = agree(inputs, run, {"local": about([])}, Attempt(2, resume=True), start=Start())
    assert ready.job.resume_step is None
