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
from muster.core.inventory import parse_hosts, read_inventory
from muster.core.slurm import SlurmAsk, allocation, parse_ask
from muster.fleet.shell import NotStarted
from muster.inputs.read import read_inputs
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

ALLOCATION = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "node[01-03,7],gpu[1-2]x",
    "SLURM_NTASKS_PER_NODE": "4",
}


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("slurm:", SlurmAsk()),
        ("slurm:gpu", SlurmAsk("gpu")),
        ("slurm:/3", SlurmAsk(None, 3)),
        ("slurm:gpu,cpu/4x8", SlurmAsk("gpu,cpu", 4, 8)),
    ],
)
def test_asks(text: str, ask: SlurmAsk) -> None:
    assert parse_ask(text) == ask
    assert str(ask) == text


@given(
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True),
    st.none() | st.tuples(st.integers(1, 999_999), st.none() | st.integers(1, 9999)),
)
def test_an_ask_reads_back(partition: str | None, numbers: tuple[int, int | None] | None) -> None:
    ask = SlurmAsk(partition, *(numbers or ()))
    assert parse_ask(str(ask)) == ask


@pytest.mark.parametrize(
    "text",
    [
        "slurm:-p",
        "slurm:gpu/",
        "slurm:gpu/0",
        "slurm:/3x0",
        "slurm:a b",
        "slurm:a\nb",
        "slurm:$(x)",
        "slurm:/3x",
        "slurm:x/y",
    ],
)
def test_what_is_no_ask(text: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse_hosts(text)
    assert caught.value.hint


def test_the_hosts_of_an_allocation() -> None:
    found = parse_hosts("slurm:", ALLOCATION)
    assert found.names == ("node01", "node02", "node03", "node7", "gpu1x", "gpu2x")
    assert {host.slots for host in found.hosts} == {4}
    assert found.launcher == "slurm" and found.ask is None
    fewer = parse_hosts("slurm:/2x8", ALLOCATION)
    assert [(host.name, host.slots) for host in fewer.hosts] == [("node01", 8), ("node02", 8)]
    with pytest.raises(InventoryError, match="has 6"):
        parse_hosts("slurm:/7", ALLOCATION)


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


def answering(**answers: tuple[int, str, str]) -> FakeShell:
    def answer(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        code, out, err = answers[argv[0]]
        return code, out.encode(), err.encode()

    return FakeShell(answer_run=answer)


def test_a_submitted_run_is_found_shown_and_cancelled(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = read_inputs("demo", "slurm:gpu/2x1", TINY, waits=True)
    run = RunFolder(tmp_path / "runs" / "one")
    shell = answering(sbatch=(0, "17;cluster\n", ""))
    assert submit(inputs, run, shell) == "17"
    assert shell.started == [["sbatch", "--parsable", str(run.batch_script)]]
    assert f"--hosts slurm:/2x1 --output {run.path}" in run.batch_script.read_text()
    assert run.state() == "submitted"
    assert find_run("last", tmp_path / "runs").id == "one"
    assert [(row["id"], row["status"]) for row in runs_table(tmp_path / "runs")] == [("one", "submitted")]
    pending = answering(squeue=(0, "PENDING|Resources|\n", ""), scancel=(0, "", ""))
    about = whereabouts(run, pending)
    assert (about.job, about.state, about.reason, about.over) == ("17", "PENDING", "Resources", False)
    monkeypatch.setattr("muster.runs.slurm_queue.Shell", lambda: pending)
    assert stop(run).cancelled
    assert pending.started[-1] == ["scancel", "--clusters=cluster", "17"]
    assert run.state() == "cancelled"


def test_a_folder_is_taken_over_by_its_own_job_alone(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, answering(sbatch=(0, "17\n", "")))
    ticket = json.loads(run.submission.read_text())["ticket"]
    for wrong in (None, "another"):
        with pytest.raises(RunFolderError, match="already there"):
            run.create(wrong)
    run.create(ticket)
    run.create(ticket)  # its first start died before it wrote anything
    run.job.write_text("{}")
    with pytest.raises(RunFolderError, match="already there"):
        run.create(ticket)


def test_a_refusal_leaves_nothing(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    refusing = answering(sbatch=(1, "", "sbatch: error: invalid partition specified: gpu\n"))
    with pytest.raises(JobError, match="invalid partition"):
        submit(read_inputs("demo", "slurm:gpu/2", TINY, waits=True), run, refusing)
    assert not run.path.exists()


def test_how_many_nodes(outside: None, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="how many nodes"):
        script(read_inputs("demo", "slurm:gpu", TINY, waits=True), RunFolder(tmp_path / "one"), "t")


@pytest.mark.parametrize("value", ["a\nb", "--wrap=x", "a b", '"', "$(x)", ""])
def test_what_a_script_line_cannot_hold(value: str, outside: None) -> None:
    with pytest.raises(RecipeError):
        read_inputs("demo", "slurm:/2", [*TINY, f"launch.slurm.account={json.dumps(value)}"], waits=True)


def test_a_job_that_is_gone_without_a_result(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, answering(sbatch=(0, "17\n", "")))
    run.batch_output.write_text("starting\nbash: no such interpreter\n")
    said: list[str] = []
    with pytest.raises(JobError, match="no such interpreter"):
        follow(run, say=said.append, shell=answering(squeue=(0, "CANCELLED|None|\n", "")))
    assert said == ["Slurm job 17: cancelled"]
    unknown = answering(squeue=(1, "", "slurm_load_jobs error: Invalid job id specified\n"))
    assert whereabouts(run, unknown).state is None
    silent = answering(squeue=(1, "", "slurm_load_jobs error: Unable to contact slurm controller\n"))
    with pytest.raises(JobError, match="Unable to contact"):
        whereabouts(run, silent)


def test_where_sbatch_cannot_start_no_folder_is_left(outside: None, tmp_path: Path) -> None:
    def missing(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        raise NotStarted("no sbatch here")

    run = RunFolder(tmp_path / "one")
    with pytest.raises(NotStarted):
        submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, FakeShell(answer_run=missing))
    assert not run.path.exists()


def test_silence_keeps_the_folder(outside: None, tmp_path: Path) -> None:
    """Slurm may have taken the job: what it would run must be there."""

    def silent(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        raise JobError("sbatch did not answer within 60 s")

    run = RunFolder(tmp_path / "one")
    with pytest.raises(JobError, match="did not answer"):
        submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, FakeShell(answer_run=silent))
    assert run.submitted_recipe.exists()
    with pytest.raises(RunFolderError, match="no Slurm job"):
        whereabouts(run)


def test_options_are_sbatchs_and_not_srun_s(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    shell = answering(sbatch=(0, "17\n", ""))
    inputs = read_inputs("demo", "slurm:/2", [*TINY, "launch.options=[--reservation=x]"], waits=True)
    submit(inputs, run, shell)
    assert shell.started == [["sbatch", "--parsable", "--reservation=x", str(run.batch_script)]]
    again = read_inputs(str(run.submitted_recipe), "slurm:/2", [], waits=True)
    assert again.recipe.launch.options == []
    with pytest.raises(RecipeError, match="waits by itself"):
        submit(read_inputs("demo", "slurm:/2", [*TINY, "launch.options=[--wait]"], waits=True), run, shell)


def test_one_rank_per_gpu_where_nobody_says_how_many(outside: None, tmp_path: Path) -> None:
    """The script asks for no number of tasks, so that its job takes what the nodes have."""
    text = script(read_inputs("demo", "slurm:gpu/4", TINY, waits=True), RunFolder(tmp_path / "one"), "t")
    assert "ntasks" not in text and "--hosts slurm:/4 " in text
    found = parse_hosts("slurm:/4", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-4]"})
    assert {host.slots for host in found.hosts} == {None}


def test_slurm_that_is_away_for_a_moment_does_not_end_the_watch(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, answering(sbatch=(0, "17\n", "")))
    away, over = (1, b"", b"Unable to contact slurm controller"), (0, b"CANCELLED|None|\n", b"")
    answers = iter([away, over, over, over])
    said: list[str] = []
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("muster.runs.follow._ASK", 0.1)
    try:
        with pytest.raises(JobError, match="left no result"):
            follow(run, say=said.append, shell=FakeShell(answer_run=lambda argv: next(answers)))
    finally:
        monkeypatch.undo()
    assert "Slurm does not answer" in said[0] and said[1] == "Slurm job 17: cancelled"


def test_each_silence_of_slurm_is_counted_by_itself(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that restarts twice, with an answer in between, was not away from the first time on."""
    run = RunFolder(tmp_path / "one")
    submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, answering(sbatch=(0, "17\n", "")))
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 10.0

    def answer(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        if now < 1200 or 1400 <= now < 1600:
            return 1, b"", b"Unable to contact slurm controller"
        return 0, b"PENDING|Resources|\n" if now < 1400 else b"CANCELLED|None|\n", b""

    monkeypatch.setattr("muster.runs.follow.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    with pytest.raises(JobError, match="left no result"):
        follow(run, shell=FakeShell(answer_run=answer))
    assert now >= 1600


def test_a_run_that_has_not_begun_cannot_be_resumed(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    submit(read_inputs("demo", "slurm:/2", TINY, waits=True), run, answering(sbatch=(0, "17\n", "")))
    with pytest.raises(RunFolderError, match="has not started"):
        resume(run)
    assert not run.controller.exists()


def test_srun_outside_an_allocation_would_ask_for_nodes(outside: None, tmp_path: Path) -> None:
    inputs = read_inputs("demo", "node1,node2", [*TINY, "launch.launcher=slurm"])
    with pytest.raises(InventoryError, match="inside an allocation"):
        train(inputs, RunFolder(tmp_path / "one"))
