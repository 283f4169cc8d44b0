"""`launch.hosts` as a user meets it: on the command line, in files, with Slurm, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.cli import main
from muster.core.errors import RecipeError
from muster.core.inventory import Host
from muster.core.recipes import load_recipe
from muster.inputs.read import Inputs, read_inputs, read_recipe
from muster.planner.document import Plan
from muster.planner.hosts import first_hosts
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_on
from muster.runs.dry_run import dry_run
from muster.runs.submit import script, submit
from muster.store.runfolder import RunFolder
from tests.support import TINY

pytestmark = pytest.mark.usefixtures("nothing_learned")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return int(ended.value.code or 0), shown.out, shown.err


def test_what_is_said_and_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chosen.yaml"
    argv = ["plan", "text2sql-t5-small-zero1", "--on", "a100-40gb:1x4,1Gbit", "--quick", "launch.hosts=auto"]
    code, out, _ = run(capsys, *argv)
    assert code == 0
    for words in ("1 of 4 (the fastest of those tried", "idle: a100-sxm4-40gb-[2-4]", "hosts=3", "slower"):
        assert words in out
    code, out, _ = run(capsys, *argv, "--json", "--write", str(file))
    made = Plan.model_validate(json.loads(out))
    assert load_recipe(str(file)).launch.hosts == made.hosts == 1
    again = plan_on(read_recipe(str(file), []), "a100-40gb:1x4,1Gbit", UserFigures(), traced=False).plan
    assert (again.hosts, again.batch, again.time) == (made.hosts, made.batch, made.time)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["plan", "digits", "--on", "h200:1x2", "launch.hosts=3"], "is 3, and 2 hosts were given"),
        (["plan", "digits", "--on", "h200:1x2", "launch.hosts=0"], "launch.hosts"),
        (["plan", "digits", "--on", "h200:1x2", "launch.hosts=most"], "launch.hosts"),
        (["train", "fabric", "--hosts", "local:2x1", "launch.hosts=auto"], "trains nothing"),
        (["train", "digits", "--hosts", "local:2x1", "launch.hosts=3"], "is 3, and 2 hosts were given"),
    ],
)
def test_what_cannot_be(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ["--runs", str(tmp_path / "runs")] if argv[0] == "train" else []
    code, _, err = run(capsys, *argv, *where)
    assert code == 2
    assert says in err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_uses_the_first_ones_and_assumes_all(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    one = dry_run(read_inputs("demo", "local:3x1", [*TINY, "launch.hosts=1"]), folder)
    assert [each["host"] for each in one["hosts"]] == ["local0"]
    all_ = dry_run(read_inputs("demo", "node[1-3]:1", [*TINY, "launch.hosts=auto"]), folder)
    assert len(all_["hosts"]) == 3
    assert any("launch.hosts" in each for each in all_["assumed"])


def test_a_fabric_on_the_first_hosts() -> None:
    inputs, chosen = first_hosts(read_inputs("fabric", "node[1-4]", ["launch.hosts=2"]))
    assert [host.name for host in inputs.inventory.hosts] == ["node1", "node2"]
    assert chosen is not None
    assert len(chosen.idle) == 2


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)


def asking(source: str, wanted: object) -> Inputs:
    return read_inputs("demo", source, [*TINY, f"launch.hosts={wanted}"], waits=True)


def test_slurm_is_asked_for_as_many_nodes(outside: None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    text = script(asking("slurm:gpu", 3), run, "t")
    assert "#SBATCH --nodes=3" in text
    assert "--hosts slurm:/3 " in text
    assert "#SBATCH --nodes=2" in script(asking("slurm:/2", 2), run, "t")


@pytest.mark.parametrize(
    ("source", "wanted", "says", "hint"),
    [
        ("slurm:gpu/4", 2, "asks Slurm for 4 nodes", "--hosts slurm:gpu/2"),
        ("slurm:/2x8", 4, "asks Slurm for 2 nodes", "--hosts slurm:/4x8"),
        ("slurm:/4", "auto", "the nodes that Slurm will give are unknown", "muster plan RECIPE --on"),
    ],
)
def test_slurm_is_not_asked_for_idle_nodes(
    source: str, wanted: object, says: str, hint: str, outside: None, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "one")
    with pytest.raises(RecipeError, match=says) as refused:
        submit(asking(source, wanted), run)
    assert hint in (refused.value.hint or "")
    assert not run.path.exists()


def listed(hosts: Sequence[Host]) -> list[str]:
    return [host.name for host in hosts]


def test_inside_an_allocation_the_first_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    inputs, chosen = first_hosts(asking("slurm:", 2))
    assert listed(inputs.inventory.hosts) == ["n1", "n2"]
    assert chosen is not None
    assert listed(chosen.idle) == ["n3", "n4"]
