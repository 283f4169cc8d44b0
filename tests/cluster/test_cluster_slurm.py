"""Slurm on the test cluster is what it claims to be, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import fixtures, slurm_boot, slurm_files
from .cluster import Cluster, ClusterError
from .helpers import wait_for
from .registry import ProcessId, identify, is_alive
from .slurm import NOW, Slurm, parse_fields, unavailable

pytestmark = pytest.mark.cluster

PACKAGE = __package__ or ""
TOP = str(Path(__file__).parents[len(PACKAGE.split("."))])  # the folder that holds our package
DAEMONS = {"munged", "slurmctld", "slurmd", "slurmstepd", "stepd"}


def submit(slurm: Slurm, script: Path, text: str, *options: str, on: str | None = None) -> str:
    """Submit a batch script whose output goes beside it; the result is the job's id."""
    script.write_text(f"#!/bin/bash\n{text}\n")
    output = ["--output", str(script.with_suffix(".out")), "--open-mode=append"]
    done = slurm.run(["sbatch", "--parsable", *output, *options, str(script)], on=on)
    assert done.returncode == 0, done
    return done.stdout.strip()


def output_of(script: Path) -> list[str]:
    return script.with_suffix(".out").read_text().split()


def running(cluster: Cluster, *argv: str) -> list[str]:
    """The hosts on which a command runs, once for each time that it does. Slurm gives a program its path.

    A process that is just being started or has just ended has no arguments.
    """
    tables = [(node.name, each.argv) for node in cluster.hosts for each in cluster.processes(node)]
    return [name for name, told in tables if told and (Path(told[0]).name, *told[1:]) == argv]


@pytest.mark.parametrize("on", [None, "node1"])
def test_a_step_on_every_host(slurm: Slurm, on: str | None) -> None:
    done = slurm.run(["srun", "--nodes=3", "hostname"], on=on)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["node1", "node2", "node3"]), done


def test_what_there_is(slurm: Slurm) -> None:
    said = slurm.run(["sinfo", "--noheader", "--format=%P %l %D %G"]).stdout.splitlines()
    assert sorted(said) == ["main* infinite 3 gpu:fake:2", "short 2:00 2 gpu:fake:2"]
    done = slurm.run(["srun", "--nodes=1", "--constraint=even", "hostname"])
    assert done.stdout == "node2\n", done
    for too_much in ("--nodes=3", "--time=3"):
        refused = slurm.run(["srun", "--partition=short", too_much, "true"])
        assert refused.returncode != 0 and "error: Unable to allocate resources" in refused.stderr
    assert slurm.states() == {"node1": "idle", "node2": "idle", "node3": "idle"}


def test_gpus_are_asked_for_and_counted(slurm: Slurm) -> None:
    ask = ["srun", "--nodes=2", "--ntasks=2", "--gres=gpu:2"]
    done = slurm.run([*ask, "printenv", "SLURM_GPUS_ON_NODE"])
    assert (done.returncode, done.stdout.split()) == (0, ["2", "2"]), done
    refused = slurm.run(["srun", "--nodes=1", "--gres=gpu:3", "true"])
    assert refused.returncode != 0 and "Requested node configuration is not available" in refused.stderr


@pytest.mark.parametrize("on", [None, "node2"])
def test_a_batch_script_starts_steps(slurm: Slurm, tmp_path: Path, on: str | None) -> None:
    script = tmp_path / "job.sh"
    text = f"srun --ntasks-per-node=1 {sys.executable} -c 'import socket; print(socket.gethostname())'"
    job = submit(slurm, script, text, "--nodes=3", "--gres=gpu:1", on=on)
    ended = slurm.wait_job(job, ["COMPLETED"])
    assert (ended["NodeList"], ended["ExitCode"]) == ("node[1-3]", "0:0")
    assert sorted(output_of(script)) == ["node1", "node2", "node3"]


def test_a_failed_job_says_so(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path / "job.sh", "exit 7")
    assert slurm.wait_job(job, ["FAILED"])["ExitCode"] == "7:0"
    with pytest.raises(ClusterError, match=f"job {job} is FAILED, not COMPLETED"):
        slurm.wait_job(job, ["COMPLETED"])
    with pytest.raises(ClusterError, match="Invalid job id"):
        slurm.job(10**6)


# A shell and its children ignore SIGTERM; two lead a session of their own, one of which has no parent left
# and nothing in its environment.
STUBBORN = """
trap '' TERM
setsid sleep {0}1 &
setsid --fork env --ignore-environment sleep {0}2
sleep {0}3
"""


def test_a_cancelled_job_leaves_no_process(cluster: Cluster, whole_slurm: Slurm, tmp_path: Path) -> None:
    """Neither of the batch script, on the first host, nor of its step on the second."""
    (tmp_path / "step.sh").write_text(STUBBORN.format(48))
    step = f"srun --nodes=1 --ntasks=1 --nodelist=node2 sh {tmp_path}/step.sh &"
    options = ["--nodes=2", "--nodelist=node1,node2"]
    job = submit(whole_slurm, tmp_path / "job.sh", step + STUBBORN.format(47), *options)
    sleeps = [f"{kind}{index}" for kind in (47, 48) for index in (1, 2, 3)]

    def places() -> list[list[str]]:
        return [running(cluster, "sleep", seconds) for seconds in sleeps]

    wait_for("the job", lambda: places() == [["node1"]] * 3 + [["node2"]] * 3)
    whole_slurm.run(["scancel", job])
    whole_slurm.wait_job(job, ["CANCELLED"])
    wait_for("the end of the job", lambda: places() == [[]] * 6)


def test_a_requeued_job_starts_again(whole_slurm: Slurm, tmp_path: Path) -> None:
    script, second = tmp_path / "job.sh", tmp_path / "second"
    text = f'echo "restarts:${{SLURM_RESTART_COUNT:-none}}"; [ -e {second} ] || exec sleep 4949'
    job = submit(whole_slurm, script, text, "--requeue")
    wait_for("the first start", lambda: script.with_suffix(".out").exists() and output_of(script) != [])
    second.touch()
    whole_slurm.requeue(job)
    assert whole_slurm.wait_job(job, ["COMPLETED"])["Restarts"] == "1"
    said = [word for word in output_of(script) if word.startswith("restarts:")]
    assert said == ["restarts:none", "restarts:1"]


def test_a_host_dies_and_comes_back(cluster: Cluster, whole_slurm: Slurm, tmp_path: Path) -> None:
    job = submit(whole_slurm, tmp_path / "job.sh", "srun sleep 4141", "--nodes=3", "--no-requeue")
    wait_for("the steps", lambda: set(running(cluster, "sleep", "4141")) == {"node1", "node2", "node3"})
    cluster.kill("node3")
    cluster.revive("node3")
    whole_slurm.heal()
    assert whole_slurm.job(job)["JobState"] in ("CANCELLED", "NODE_FAIL", "FAILED")
    assert running(cluster, "sleep", "4141") == [] and whole_slurm.jobs() == []
    done = whole_slurm.run(["srun", "--nodes=3", "hostname"])
    assert sorted(done.stdout.split()) == ["node1", "node2", "node3"]


def test_a_slurmd_that_died_is_started_again(cluster: Cluster, whole_slurm: Slurm) -> None:
    (slurmd,) = [each.pid for each in cluster.processes("node2") if each.name == "slurmd"]
    cluster.signal("node2", slurmd, signal.SIGKILL)
    whole_slurm.heal()

    def answers() -> bool:
        """On a busy machine a slurmd that is called idle may not answer, and be given up once more."""
        right = whole_slurm.run([*NOW, "--nodelist=node2", "hostname"]).stdout == "node2\n"
        if not right:
            whole_slurm.heal()
        return right

    wait_for("an answer of node2", answers)


def test_nothing_is_left_after_the_end(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a Slurm of its own, with a job that is running; the other one goes on."""
    base = tmp_path_factory.mktemp("own")  # short, for the sockets below it
    with Cluster(size=2, base=base) as own:
        before = set(own.base.iterdir())
        with Slurm(own) as inner:
            submit(inner, base / "job.sh", STUBBORN.format(51), "--nodes=1")
            wait_for("the job", lambda: running(own, "sleep", "513") != [])
            mine = [*daemons(own), *below(inner)]
            assert {name for _, name in mine} >= {"munged", "slurmctld", "slurmd", "slurmstepd"}
        assert [name for process, name in mine if is_alive(process)] == []
        assert all(not running(own, "sleep", f"51{index}") for index in (1, 2, 3))
        assert set(own.base.iterdir()) - before == {base / "job.sh", base / "job.out"}
        assert own.on_boot == []
        inner.close()
    assert slurm.run(["srun", "--nodes=3", "hostname"]).returncode == 0


def daemons(cluster: Cluster) -> list[tuple[ProcessId, str]]:
    """Slurm's processes on the hosts, by this machine's PIDs."""
    spaces = {Path(f"/proc/{cluster.init_pid(node)}/ns/pid").readlink() for node in cluster.hosts}
    return [found for found in everyone() if found[1] in DAEMONS and space_of(found[0]) in spaces]


def below(slurm: Slurm) -> list[tuple[ProcessId, str]]:
    """Slurm's processes beside this machine."""
    assert slurm._head is not None
    space = Path(f"/proc/{slurm._head.init.pid}/ns/pid").readlink()
    return [found for found in everyone() if space_of(found[0]) == space]


def everyone() -> list[tuple[ProcessId, str]]:
    found = []
    for folder in Path("/proc").iterdir():
        process = identify(int(folder.name)) if folder.name.isdigit() else None
        if process is not None:
            try:
                found.append((process, (folder / "comm").read_text().strip()))
            except OSError:  # it has ended
                continue
    return found


def space_of(process: ProcessId) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/pid").readlink()
    except OSError:
        return None


OWNER = f"""
import ctypes, json, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the tests
sys.path.insert(0, {TOP!r})
from {PACKAGE}.cluster import Cluster
from {PACKAGE}.slurm import Slurm
from {PACKAGE}.test_cluster_slurm import below, daemons
with Cluster(size=1) as cluster, Slurm(cluster) as slurm:
    found = daemons(cluster) + below(slurm)
    print(json.dumps([[each.pid, each.started, name] for each, name in found]), flush=True)
    sys.stdin.read()
"""


def test_a_killed_owner_leaves_no_daemon(able: None, slurm: Slurm) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        raw = json.loads(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    assert {name for _, _, name in raw} >= {"munged", "slurmctld", "slurmd"}
    wait_for("the end of the daemons", lambda: not any(is_alive(ProcessId(*each[:2])) for each in raw))


def test_a_start_that_fails_leaves_nothing(
    slurm: Slurm, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """munged that makes no socket, then a slurmd that does not start."""
    with Cluster(size=1, base=tmp_path_factory.mktemp("own")) as own:
        before = {process for process, name in everyone() if name in DAEMONS}
        with monkeypatch.context() as patch:
            patch.setattr(slurm_boot, "START_SECONDS", 1.0)
            patch.setattr(slurm_boot, "munged_argv", lambda files: ["echo", "no munged today"])
            with pytest.raises(ClusterError, match="Slurm's head did not start"):
                Slurm(own).start()
        with monkeypatch.context() as patch:
            patch.setattr("tests.cluster.slurm.START_SECONDS", 1.5)
            patch.setattr(slurm_files, "stepd_text", lambda: "")
            patch.setattr(slurm_boot, "enter_argv", lambda *_: ["echo", "no slurmd today"])
            with pytest.raises(ClusterError, match="slurmd-node1: no slurmd today"):
                Slurm(own).start()
        assert {process for process, name in everyone() if name in DAEMONS} <= before
        assert not (own.base / "slurm").exists()


def test_a_folder_that_is_too_long(able: None, tmp_path: Path) -> None:
    with Cluster(size=1, base=tmp_path / ("x" * 100)) as own:
        with pytest.raises(ClusterError, match="too long for the address of a socket"):
            Slurm(own).start()
        assert not (own.base / "slurm").exists()


def test_where_there_can_be_no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cluster.slurm.TOOLS", ("sh", "no-such-program"))
    assert unavailable() == "Slurm needs no-such-program"
    monkeypatch.setenv("MUSTER_REQUIRE_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match="needs no-such-program"):
        fixtures.need("sh", "no-such-program")


def test_fields_of_scontrol() -> None:
    line = "JobId=3 JobName=a b=c Reason=None Socks/Node=* TRES=cpu=3,node=3 Command=/x y/z.sh --k=v Power="
    assert parse_fields(line) == {
        "JobId": "3", "JobName": "a", "b": "c", "Reason": "None", "Socks/Node": "*", "TRES": "cpu=3,node=3",
        "Command": "/x y/z.sh --k=v", "Power": "",
    }  # fmt: skip
