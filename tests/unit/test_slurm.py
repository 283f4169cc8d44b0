"""`slurm:` as HOSTS, and what Slurm's programs answer (the real programs:
tests/cluster/test_slurm_jobs.py)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.errors import InventoryError, JobError, RecipeError, RunFolderError
from muster.core.inventory import read_inventory
from muster.core.slurm import SlurmAsk, allocation, parse_ask
from muster.fleet.shell import NotStarted
from muster.inputs.read import Inputs, read_inputs
from muster.runs.follow import follow
from muster.runs.listing import stop
from muster.runs.resume import resume
from muster.runs.slurm_queue import whereabouts
from muster.runs.submit import script, submit
from muster.runs.train import train
from muster.store.queries import runs_table
from muster.store.runfolder import RunFolder, find_run
from tests.shell import FakeShell
from tests.support import TINY


@given(
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True),
    st.none() | st.tuples(st.integers(1, 999_999), st.none() | st.integers(1, 9999)),
)
def test_an_ask_reads_back(partition: str | None, numbers: tuple[int, int | None] | None) -> None:
    ask = SlurmAsk(partition, *(numbers or ()))
    assert parse_ask(str(ask)) == ask


def test_no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allocation({"SLURM_JOB_ID": "17"}) is None
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InventoryError, match="not inside a Slurm allocation"):
        read_inventory("slurm:gpu/2")
    assert read_inventory("slurm:gpu/2", waits=True).ask == SlurmAsk("gpu", 2)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(outside: None, tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "one")


def asked(hosts: str = "slurm:/2", *words: str) -> Inputs:
    return read_inputs("demo", hosts, [*TINY, *words], waits=True)


@pytest.fixture
def queued(run: RunFolder) -> RunFolder:
    """A run whose job Slurm has taken."""
    answering(sbatch=(0, "17\n", ""))
    submit(asked(), run)
    return run


def answering(**answers: tuple[int, str, str]) -> FakeShell:
    def answer(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        code, out, err = answers[argv[0]]
        return code, out.encode(), err.encode()

    return FakeShell(answer_run=answer).use()


def test_a_submitted_run_is_found_shown_and_cancelled(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, root = answering(sbatch=(0, "17;cluster\n", "")), run.path.parent
    assert submit(asked("slurm:gpu/2x1"), run) == "17"
    assert shell.started == [["sbatch", "--parsable", str(run.batch_script)]]
    assert f"--hosts slurm:/2x1 --output {run.path}" in run.batch_script.read_text()
    assert run.state() == "submitted"
    assert find_run("last", root).id == "one"
    assert [(row["id"], row["status"]) for row in runs_table(root)] == [("one", "submitted")]
    pending = answering(squeue=(0, "PENDING|Resources|\n", ""), scancel=(0, "", ""))
    about = whereabouts(run)
    assert (about.job, about.state, about.reason, about.over) == ("17", "PENDING", "Resources", False)
    assert stop(run) == "cancelled"
    assert pending.started[-1] == ["scancel", "--clusters=cluster", "17"]
    assert run.state() == "cancelled"


def test_a_folder_is_taken_over_by_its_own_job_alone(queued: RunFolder) -> None:
    ticket = json.loads(queued.submission.read_text())["ticket"]
    for wrong in (None, "another"):
        with pytest.raises(RunFolderError, match="already there"):
            queued.create(wrong)
    queued.create(ticket)
    queued.create(ticket)  # its first start died before it wrote anything
    queued.job.write_text("{}")
    with pytest.raises(RunFolderError, match="already there"):
        queued.create(ticket)


def test_what_keeps_a_job_from_being_submitted(run: RunFolder) -> None:
    """A refusal leaves nothing; after silence the folder stays, since Slurm may have taken the job."""

    def failing(error: Exception) -> None:
        def answer(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
            raise error

        FakeShell(answer_run=answer).use()

    answering(sbatch=(1, "", "sbatch: error: invalid partition specified: gpu\n"))
    with pytest.raises(JobError, match="invalid partition"):
        submit(asked("slurm:gpu/2"), run)
    failing(NotStarted("no sbatch here"))
    with pytest.raises(NotStarted):
        submit(asked(), run)
    with pytest.raises(RecipeError, match="waits by itself"):
        submit(asked("slurm:/2", "launch.options=[--wait]"), run)
    with pytest.raises(InventoryError, match="how many nodes"):
        script(asked("slurm:gpu"), run, "t")
    assert not run.path.exists()
    failing(JobError("sbatch did not answer within 60 s"))
    with pytest.raises(JobError, match="did not answer"):
        submit(asked(), run)
    assert run.submitted_recipe.exists()
    with pytest.raises(RunFolderError, match="no Slurm job"):
        whereabouts(run)


@pytest.mark.parametrize("value", ["a\nb", "--wrap=x", "a b", '"', "$(x)", ""])
def test_what_a_script_line_cannot_hold(value: str, outside: None) -> None:
    with pytest.raises(RecipeError):
        asked("slurm:/2", f"launch.slurm.account={json.dumps(value)}")


def test_a_job_that_is_gone_without_a_result(queued: RunFolder) -> None:
    queued.batch_output.write_text("starting\nbash: no such interpreter\n")
    said: list[str] = []
    answering(squeue=(0, "CANCELLED|None|\n", ""))
    with pytest.raises(JobError, match="no such interpreter"):
        follow(queued, say=said.append)
    assert said == ["Slurm job 17: cancelled"]
    answering(squeue=(1, "", "slurm_load_jobs error: Invalid job id specified\n"))
    assert whereabouts(queued).state is None
    answering(squeue=(1, "", "slurm_load_jobs error: Unable to contact slurm controller\n"))
    with pytest.raises(JobError, match="Unable to contact"):
        whereabouts(queued)


def test_options_are_sbatchs_and_not_srun_s(run: RunFolder) -> None:
    shell = answering(sbatch=(0, "17\n", ""))
    submit(asked("slurm:/2", "launch.options=[--reservation=x]"), run)
    assert shell.started == [["sbatch", "--parsable", "--reservation=x", str(run.batch_script)]]
    again = read_inputs(str(run.submitted_recipe), "slurm:/2", [], waits=True)
    assert again.recipe.launch.options == []


def test_one_rank_per_gpu_where_nobody_says_how_many(run: RunFolder) -> None:
    """The script asks for no number of tasks, so that its job takes what the nodes have."""
    text = script(asked("slurm:gpu/4"), run, "t")
    assert "ntasks" not in text and "--hosts slurm:/4 " in text


AWAY = (1, b"", b"Unable to contact slurm controller")


def test_each_silence_of_slurm_is_counted_by_itself(
    queued: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that restarts twice, with an answer in between, was not away from the first time on."""
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 10.0

    def answer(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        if now < 1200 or 1400 <= now < 1600:
            return AWAY
        return 0, b"PENDING|Resources|\n" if now < 1400 else b"CANCELLED|None|\n", b""

    said: list[str] = []
    monkeypatch.setattr("muster.runs.follow.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    FakeShell(answer_run=answer).use()
    with pytest.raises(JobError, match="left no result"):
        follow(queued, say=said.append)
    assert now >= 1600
    assert "Slurm does not answer" in said[0] and said[-1] == "Slurm job 17: cancelled"


def test_a_run_that_has_not_begun_cannot_be_resumed(queued: RunFolder) -> None:
    with pytest.raises(RunFolderError, match="has not started"):
        resume(queued)
    assert not queued.controller.exists()


def test_srun_outside_an_allocation_would_ask_for_nodes(run: RunFolder) -> None:
    inputs = read_inputs("demo", "node1,node2", [*TINY, "launch.launcher=slurm"])
    with pytest.raises(InventoryError, match="inside an allocation"):
        train(inputs, run)
