"""A run's folder: made once, found again by any of its names, and its state told from what is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.core.errors import RunFolderError
from muster.core.result import Memory, Result, Seconds
from muster.store.atomic import write_json
from muster.store.runfolder import RunFolder, find_run, list_folders, new_mark, new_run_folder

CONTROLLER = """
import sys; from pathlib import Path; from muster.store.runfolder import RunFolder
claim = RunFolder(Path(sys.argv[1])).claim(); print("claimed", flush=True); sys.stdin.read()
"""


def make(root: Path, name: str, started: int = 0) -> RunFolder:
    run = RunFolder(root / name)
    run.create()
    write_json(run.job, {"id": name})
    os.utime(run.job, (started, started))
    return run


def finish(run: RunFolder, status: str = "succeeded") -> Result:
    result = Result.model_validate(
        {
            "id": run.id, "status": status, "attempt": 1, "workload": "text2sql", "model": "t5-small",
            "engine": "ddp", "precision": "fp32", "world_size": 2, "global_batch": 8,
            "started": 1.0, "ended": 2.0,
            "seconds": Seconds(total=1.0), "steps": 3, "samples": 24, "memory": Memory(), "hosts": [],
        }
    )  # fmt: skip
    write_json(run.result, result.model_dump(mode="json"))
    return result


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make(tmp_path, "one")


@pytest.fixture
def controller(run: RunFolder) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def test_running_while_the_controller_lives_then_interrupted(
    run: RunFolder, controller: subprocess.Popen[str]
) -> None:
    assert run.state() == "running"
    controller.kill()
    os.waitid(os.P_PID, controller.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie: not yet collected
    assert run.state() == "interrupted"
    controller.wait()
    assert run.state() == "interrupted"


def test_a_process_that_took_over_the_controllers_number_is_not_it(run: RunFolder) -> None:
    with run.claim():
        pass
    assert json.loads(run.controller.read_text())["pid"] == os.getpid()  # alive, but it holds nothing
    assert run.state() == "interrupted"


def test_one_controller_at_a_time(run: RunFolder, controller: subprocess.Popen[str]) -> None:
    """Two resumes at once: the second is refused, and can go on when the first is gone."""
    with pytest.raises(RunFolderError, match="another process supervises"):
        run.claim()
    controller.kill()
    controller.wait()
    with run.claim():
        assert run.state() == "running"


def test_a_controller_on_another_machine_is_judged_by_its_signs_of_life(run: RunFolder) -> None:
    """Containers get a new host name at every start: one that has gone silent is gone."""
    with run.claim() as claim:
        write_json(run.controller, {**json.loads(run.controller.read_text()), "machine": "elsewhere"})
        assert run.controller_alive() is None
        assert run.state() == "elsewhere"
        os.utime(run.controller, (1.0, 1.0))
        assert run.controller_alive() is False
        assert run.state() == "interrupted"
        claim.touch()
        assert run.controller_alive() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"machine": "%s"}', '{"machine": "%s", "pid": null, "created": 1}']
)
def test_a_damaged_claim_is_none(run: RunFolder, text: str) -> None:
    run.controller.write_text(text.replace("%s", os.uname().nodename))
    assert run.state() == "interrupted"


@pytest.mark.parametrize("status", ["succeeded", "failed", "stopped", "timeout"])
def test_a_result_decides(run: RunFolder, status: str) -> None:
    with run.claim():
        assert run.state() == "running"
        assert run.read_result() is None
        result = finish(run, status)
        assert run.state() == status
    assert run.read_result() == result


@pytest.mark.parametrize(
    "text", ["", "{}", '{"id": "one"', "[]", '{"id": 1, "status": "failed", "tomorrow": 1}']
)
def test_a_damaged_result_is_an_error_and_not_an_unfinished_run(run: RunFolder, text: str) -> None:
    """And no hint deletes it."""
    run.result.write_text(text)
    assert run.state() == "damaged" or "status" in text
    with pytest.raises(RunFolderError) as caught:
        run.read_result()
    assert caught.value.where == str(run.result)
    assert not {"remove", "delete", "rm"} & set((caught.value.hint or "").split())


def test_a_result_that_was_set_aside_leaves_an_unfinished_run(run: RunFolder) -> None:
    """None, and one of a run that failed."""
    run.set_result_aside()
    finish(run, "failed")
    run.set_result_aside()
    assert run.state() == "interrupted"
    assert (run.path / "result.attempt1.json").is_file()


def test_a_run_never_writes_over_another(run: RunFolder) -> None:
    (run.logs / "x.log").write_text("kept")
    with pytest.raises(RunFolderError, match="is already there") as caught:
        run.create()
    assert f"muster resume {run.path}" in (caught.value.hint or "")
    assert (run.logs / "x.log").read_text() == "kept"


def test_what_a_run_is_called_on_other_disks(run: RunFolder, tmp_path: Path) -> None:
    """By its name and the mark that it was made with; runs of before have none, and keep their plain name."""
    assert (run.mark, run.elsewhere) == (None, "one")
    marked, mark = RunFolder(tmp_path / "two"), new_mark()
    marked.create(mark=mark)
    assert len({new_mark() for _ in range(20)}) == 20
    assert (RunFolder(marked.path).mark, marked.elsewhere) == (mark, f"two-{mark}")
    job = RunFolder(tmp_path / "three")  # a batch job whose first start died early is told by its last one
    write_json(job.submission, {"ticket": "t"})
    for mark in ("a", "b"):
        job.create("t", mark)
    assert job.elsewhere == "three-b"
    (marked.path / "mark").write_bytes(b"\xff")
    with pytest.raises(RunFolderError, match="cannot be read"):
        _ = marked.mark


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be made: Not a directory"):
        RunFolder(tmp_path / "file" / "run").create()


@pytest.mark.parametrize(("text", "what"), [("{", "cannot be read"), ("[]", "is not a JSON object")])
def test_a_json_file_of_the_folder(run: RunFolder, text: str, what: str) -> None:
    run.job.write_text(text)
    with pytest.raises(RunFolderError, match=what):
        run.read_json(run.job)


def test_a_hosts_name_makes_no_path(run: RunFolder) -> None:
    assert run.rank_log("fe80::1%eth0", 3).name == "fe80__1_eth0.rank3.log"
    assert run.host_log("../../etc/x").parent == run.logs


def test_a_new_runs_name_says_what_it_is(tmp_path: Path) -> None:
    one, two = (new_run_folder(tmp_path, workload="text2sql", model="/data/my T5") for _ in range(2))
    assert one.id.split("-", 2)[2].rpartition("-")[0] == "text2sql-data-my-t5"
    assert one.id != two.id
    assert not one.path.exists()


def test_what_names_a_run_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here, below, far = (RunFolder(folder / "r1") for folder in (
        tmp_path / "runs", tmp_path / "other" / "runs", tmp_path.parent / "runs",
    ))  # fmt: skip
    assert here.word == "r1"
    assert below.word == "r1 --runs other/runs"
    assert RunFolder(tmp_path / "my runs" / "r1").word == "r1 --runs 'my runs'"
    assert far.word == f"r1 --runs {tmp_path.parent / 'runs'}"


def test_runs_are_listed_in_the_order_of_their_start(tmp_path: Path) -> None:
    for name, started in (("zebra", 100), ("ape", 300), ("cat", 200)):
        make(tmp_path, name, started)
    (tmp_path / "no-run").mkdir()
    assert [run.id for run in list_folders(tmp_path)] == ["zebra", "cat", "ape"]
    assert find_run("last", tmp_path).id == find_run("latest", tmp_path).id == "ape"
    assert list_folders(tmp_path / "nowhere") == []


def test_a_run_is_found_by_path_id_or_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    wanted = make(root, "2026-t5-small-1a").path
    make(root, "2026-t5-large-2b")
    make(root, "2026-t5-small-1a-again")
    for text in (str(wanted), "2026-t5-small-1a"):
        assert find_run(text, root).path == wanted
    assert find_run("large", root).id == "2026-t5-large-2b"
    monkeypatch.chdir(wanted)
    assert find_run(".", root).path == wanted


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("t5", "fits 2 runs", "such as t5-small"),
        ("t5-smal1", "no such run", "did you mean t5-small"),
        *((text, "no such run", "`muster ls`") for text in ("quux", "x" * 5000, "~nobody-here/run")),
    ],
)
def test_a_run_that_is_not_found(tmp_path: Path, text: str, what: str, hint: str) -> None:
    with pytest.raises(RunFolderError, match="no such run"):
        find_run("last", tmp_path)
    make(tmp_path, "t5-large", 1)
    make(tmp_path, "t5-small", 2)
    with pytest.raises(RunFolderError) as caught:
        find_run(text, tmp_path)
    assert caught.value.what == what
    assert hint in (caught.value.hint or "")


def test_a_result_of_a_later_version_is_read(run: RunFolder) -> None:
    """Keys that nobody knows here, at any depth, are passed over; the file is whole."""
    with run.claim():
        result = finish(run, "failed")
    data = json.loads(run.result.read_text())
    data["tomorrow"] = {"a": 1}
    data["failure"] = {"what": "it broke", "mood": "bad"}
    data["hosts"] = [{**host, "colour": "red"} for host in data.get("hosts") or []]
    run.result.write_text(json.dumps(data))
    read = run.read_result()
    assert read is not None and read.id == result.id
    assert read.failure is not None and read.failure.what == "it broke"
