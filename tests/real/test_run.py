"""`muster run`: any command, started, read, ended and explained as a training of Muster's own is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import RecipeError
from muster.core.result import Pace
from muster.runs.listing import stop
from muster.store.runfolder import RunFolder
from muster.store.tree import read_tree
from tests.jobs import ENDED
from tests.support import needs_torch, wait_until
from tests.unit.test_readers_live import TITAN_COLOURED

pytestmark = [pytest.mark.real, pytest.mark.real_start]

# What nanoGPT's train.py prints of a step (its `print(f"iter {iter_num}: loss {lossf:.4f}, time ...")`).
DDP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {total.item():g}")
for step in range(30):
    if dist.get_rank() == 0:
        print(f"iter {step}: loss {4 / (step + 1):.4f}, time 20.50ms, mfu 1.00%")
dist.destroy_process_group()
"""


def muster(folder: Path, *words: str, hosts: str = "local:2x1") -> tuple[int, dict[str, Any], str]:
    """-> exit code, the result, what was said beside it."""
    argv = [sys.executable, "-m", "muster", "run", hosts, "--name", "job", "--json", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


def log(folder: Path, host: str, rank: int | None = None) -> str:
    """What was printed there."""
    run = RunFolder(folder / "runs/job")
    return (run.host_log(host) if rank is None else run.rank_log(host, rank)).read_text()


def test_torchrun(tmp_path: Path) -> None:
    """An unmodified script under torchrun: its ranks meet, each has its log, and its progress is read."""
    needs_torch()
    (tmp_path / "train.py").write_text(DDP)
    code, result, said = muster(tmp_path, "--", "train.py", "--lr", "0.1")
    assert code == 0, said
    assert "rank 0 of 2 has 3" in log(tmp_path, "local0", 0)
    assert "rank 1 of 2 has 3" in log(tmp_path, "local1", 1)
    told = result["command"]
    assert (told["told_by"], told["start"], result["world_size"]) == ("nanoGPT", "torchrun", 2)
    assert (result["steps"], result["loss_final"]) == (30, pytest.approx(0.1333))
    assert told["step_seconds"] == pytest.approx(0.0205)
    page = (tmp_path / "runs/job/report.html").read_text()
    assert "train.py --lr 0.1" in page
    assert "nanoGPT" in page


def test_ranks_by_the_names_of_mpirun(tmp_path: Path) -> None:
    """`--start rank`: once per slot, with torchrun's variables and those asked for; its own folder."""
    script = "env | grep -E '^(RANK|WORLD_SIZE|NODE_RANK|OMPI_COMM_WORLD_\\w+|A|B)=' | sort; pwd"
    (tmp_path / "vars").write_text("# of all\nexport A='one two'\n")
    asked = ["--start", "rank", "--names", "ompi", "--env-file", "vars", "--env", "B=3", "--workdir", "/tmp"]
    code, _, said = muster(tmp_path, *asked, "--", "bash", "-c", script, hosts="local:1x2")
    assert code == 0, said
    for rank in range(2):
        lines = set(log(tmp_path, "local0", rank).splitlines())
        wanted = {f"RANK={rank}", f"OMPI_COMM_WORLD_RANK={rank}", f"OMPI_COMM_WORLD_LOCAL_RANK={rank}"}
        wanted |= {"OMPI_COMM_WORLD_SIZE=2", "WORLD_SIZE=2", "NODE_RANK=0", "A=one two", "B=3", "/tmp"}
        assert wanted <= lines


def test_once_per_host(tmp_path: Path) -> None:
    """`--start host`: no rank's variables, but those of the host."""
    script = "echo node $NODE_RANK of $NNODES with $LOCAL_WORLD_SIZE, rank ${RANK-none}, at $MASTER_PORT"
    code, _, said = muster(tmp_path, "--start", "host", "--", "bash", "-c", script, hosts="local:2x3")
    assert code == 0, said
    assert "node 1 of 2 with 3, rank none, at " in log(tmp_path, "local1")


@pytest.mark.alone
def test_the_host_that_the_other_waits_for(tmp_path: Path) -> None:
    """Steps are as long on both; one computes for most of a step, the other one for little and then waits."""
    (tmp_path / "f.py").write_text(
        "import os, time\n"
        "own = 0.15 if os.environ['RANK'] == '1' else 0.03\n"
        "for step in range(40):\n"
        "    end = time.thread_time() + own\n"
        "    while time.thread_time() < end:\n        pass\n"
        "    time.sleep(0.2 - own)\n"
        "    print(f'iter {step}: loss 1.0, time 200.00ms, mfu 1.00%', flush=True)\n"
    )
    words = ["--start", "rank", "measure.hardware_seconds=0.5", "--", sys.executable, "f.py"]
    code, result, said = muster(tmp_path, *words)
    assert code == 0, said
    worst = result["pace"]["stragglers"][0]
    assert (worst["host"], worst["kind"]) == ("local1", "computation")
    assert "local1 makes every step" in said, "it was told while it ran"
    assert "local1 makes every step" in (tmp_path / "runs/job/report.html").read_text()


def test_the_line_that_decides(tmp_path: Path) -> None:
    """Of two ranks one fails: its exception is the failure, and not what its end brings about."""
    (tmp_path / "f.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n    raise RuntimeError('no cheese on the moon')\n"
        "time.sleep(60)\n"
    )
    code, result, _ = muster(tmp_path, "--start", "rank", "--", sys.executable, "f.py")
    assert (code, result["status"]) == (1, "failed")
    failure = result["failure"]
    assert (failure["host"], failure["where"]) == ("local1", "rank 1")
    assert "RuntimeError: no cheese on the moon" in failure["what"]
    place = failure["evidence"]
    assert (place["file"], place["code"]) == ("logs/local1.rank1.log", f"{tmp_path}/f.py:3 in <module>")
    lines = log(tmp_path, "local1", 1).splitlines()
    assert "no cheese" in lines[place["line"] - 1]


CAUSES = {
    "os.kill(os.getpid(), signal.SIGSEGV)": "crashed",
    "import ctypes; ctypes.CDLL('libnosuch.so.1')": "shared_library",
    "import nosuchpackage": "remote_module_missing",
    "open('/nosuch/train.bin')": "no_such_file",
    "a = socket.socket(); a.bind(('', 0)); a.listen(); socket.socket().bind(a.getsockname())": "port_in_use",
}  # fmt: skip


@pytest.mark.parametrize("does", CAUSES, ids=CAUSES.values())
def test_a_cause_is_named_and_not_its_echo(tmp_path: Path, does: str) -> None:
    """Rank 1 fails as programs do; rank 0 misses it, says so, and fails as well."""
    (tmp_path / "f.py").write_text(
        "import os, signal, socket, sys, time\n"
        f"if os.environ['RANK'] == '1':\n    time.sleep(0.5)\n    {does}\n"
        "time.sleep(1)\n"
        "raise ConnectionResetError(104, 'Connection reset by peer')\n"
    )
    code, result, _ = muster(tmp_path, "--start", "rank", "--", sys.executable, "f.py")
    failure = result["failure"]
    assert (code, failure["id"], failure["host"]) == (1, CAUSES[does], "local1")
    argv = [sys.executable, "-m", "muster", "explain", "job", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert (done.returncode, told["answer"], told["failure"]["id"]) == (0, "known", CAUSES[does])
    assert told["command"] == "muster resume job"
    if failure["id"] != "crashed":  # which leaves no line
        assert told["failure"]["evidence"]["file"] == "runs/job/logs/local1.rank1.log"


def test_an_echo_is_no_cause(tmp_path: Path) -> None:
    """Torchrun's account of a rank that failed says nothing of why: the rank's own last words do."""
    needs_torch()
    (tmp_path / "reads.py").write_text('open("no-such-file")\n')
    code, result, _ = muster(tmp_path, "--", str(tmp_path / "reads.py"), hosts="local:1x1")
    assert code == 1
    assert "No such file or directory: 'no-such-file'" in result["failure"]["what"]
    assert "ChildFailedError" not in result["failure"]["what"]


def test_the_last_words_of_a_rank_that_prints_its_steps(tmp_path: Path) -> None:
    """Its log has them in their order, which two files would not have; another rank raises an error of its
    own because it lost that one."""
    needs_torch()
    (tmp_path / "f.py").write_text(
        "import sys, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(1, 400):\n"
        "    try:\n        dist.all_reduce(torch.ones(1))\n"
        "    except Exception as error:\n        raise RuntimeError('this rank failed as well') from error\n"
        "    time.sleep(0.01)\n"
        "    if dist.get_rank() == 1:\n"
        "        print(f'step {step} loss {1 / step:.4f}', file=sys.stdout if step % 2 else sys.stderr)\n"
        "        if step == 200:\n            raise ValueError('label 17 out of range')\n"
    )
    code, result, _ = muster(tmp_path, "--", "f.py", hosts="local:2")
    failure = result["failure"]
    assert (code, failure["where"], failure["what"]) == (1, "rank 1", "ValueError: label 17 out of range")
    lines = log(tmp_path, "local", 1).splitlines()
    assert lines[:200] == [f"step {step} loss {1 / step:.4f}" for step in range(1, 201)]
    assert lines[-1].endswith(failure["what"])
    told = subprocess.run(
        [sys.executable, "-m", "muster", "explain", "job", "--json"], cwd=tmp_path, capture_output=True
    )
    assert json.loads(told.stdout)["failure"]["evidence"]["line"] == len(lines)


@pytest.mark.parametrize("start", ["torchrun", "rank"])
def test_a_killed_rank_is_named(tmp_path: Path, start: str) -> None:
    """SIGKILL of one rank: neither the words of the rank that misses it, nor a guess that memory ran out."""
    needs_torch()
    (tmp_path / "loop.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nprint('ready')\n"
        "while True:\n    dist.all_reduce(torch.ones(2))\n"
    )
    command = ["loop.py"] if start == "torchrun" else [sys.executable, "-u", "loop.py"]
    argv = [sys.executable, "-m", "muster", "run", "local:2x1", "--name", "job", "--json", "--start", start]
    run = RunFolder(tmp_path / "runs/job")
    with subprocess.Popen([*argv, "--", *command], cwd=tmp_path, stdout=subprocess.PIPE) as job:

        def ready() -> bool:
            log = run.rank_log("local1", 1)
            return log.exists() and "ready" in log.read_text()

        assert wait_until(ready, 60)
        mine = [
            pid for pid in marked(f"MUSTER_EVENTS={run.path}/hosts/local1.") if "loop.py" in words(pid)[-2]
        ]
        os.kill(max(mine), signal.SIGKILL)
        result = json.loads(job.communicate(timeout=60)[0])
    failure = result["failure"]
    assert (job.returncode, failure["host"], failure["id"]) == (1, "local1", None)
    assert "was killed by SIGKILL, not by the kernel's out-of-memory killer" in failure["what"]


def test_a_known_failure_has_its_remedy(tmp_path: Path) -> None:
    """What a rank prints that the table of failures knows."""
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB. GPU 0 has a total capacity"
    )
    (tmp_path / "f.py").write_text(f"import sys\nprint({line!r})\nsys.exit(1)\n")
    code, result, _ = muster(tmp_path, "--start", "rank", "--", sys.executable, "f.py", hosts="local:1x1")
    assert code == 1
    assert result["failure"]["id"] == "cuda_oom"
    assert result["failure"]["hint"]


def test_marks(tmp_path: Path) -> None:
    """muster.step and muster.phase of every rank, without Muster being installed for the program."""
    (tmp_path / "m.py").write_text(
        "import time, muster\n"
        "for step in range(60):\n"
        "    with muster.phase('forward'):\n        time.sleep(0.02)\n"
        "    muster.step(loss=1 / (step + 1), samples=8)\n"
        "muster.note('it was a pleasure')\n"
    )
    python = [sys.executable, "-I", "-c"]
    program = "import os, sys; sys.path.insert(0, os.environ['PYTHONPATH'].split(':')[0]); "
    program += "exec(open('m.py').read())"  # nothing else of muster can be imported
    code, result, said = muster(tmp_path, "--start", "rank", "--", *python, program)
    assert code == 0, said
    told = result["command"]
    assert (told["told_by"], told["unit"], result["steps"]) == ("muster.step", "samples", 60)
    assert 100 < told["rate"] <= 2 * 8 / 0.02
    assert "it was a pleasure" in result["notes"]
    assert result["loss_final"] == pytest.approx(1 / 60)


def test_colours_are_read_over(tmp_path: Path) -> None:
    """What torchtitan prints is coloured within its words, as for a terminal."""
    (tmp_path / "lines").write_text(TITAN_COLOURED)
    code, result, said = muster(tmp_path, "--start", "rank", "--", "cat", "lines", hosts="local:1")
    assert code == 0, said
    told = result["command"]
    assert (told["told_by"], result["steps"], result["loss_final"]) == ("torchtitan", 5, 1.6)
    assert told["rate"] == pytest.approx(8.93, rel=0.01)


def test_code_is_brought(tmp_path: Path) -> None:
    """--sync: the folder without what .gitignore names, and the same digest wherever it lies."""
    code = tmp_path / "project"
    (code / "lib").mkdir(parents=True)
    (code / "lib/part.py").write_text("value = 7\n")
    (code / "main.py").write_text("import lib.part, os; print(lib.part.value, sorted(os.listdir()))\n")
    (code / ".gitignore").write_text("*.bin\n/data/\n!keep.bin\n")
    for name in ("big.bin", "keep.bin"):
        (code / name).write_bytes(b"x" * 100)
    (code / "data").mkdir()
    (code / "data/rows").write_text("rows")
    done, result, said = muster(
        tmp_path, "--sync", "project", "--start", "rank", "--", sys.executable, "main.py", hosts="local:1x1"
    )
    assert done == 0, said
    assert "7 ['.gitignore', 'keep.bin', 'lib', 'main.py']" in log(tmp_path, "local0", 0)
    brought = result["command"]["code"]
    assert (brought["digest"], brought["files"]) == (read_tree(code).digest, 4)
    (code / "lib/part.py").chmod(0o755)
    assert read_tree(code).digest != brought["digest"]
    (code / "data/rows").unlink()
    with pytest.raises(RecipeError, match="no files"):
        read_tree(code / "data")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--", "no-such-program"], "no program no-such-program"),
        (["--start", "torchrun", "--", "nosuch.py"], "there is no script nosuch.py"),
        (["--workdir", "/no/such/folder", "--", "true"], "there is no folder /no/such/folder"),
        (["--sync", "nowhere", "--", "true"], "no such folder"),
        (["--line", "step (", "--", "true"], "run.line"),
        (["--env", "NOT_SET_ANYWHERE", "--", "true"], "NOT_SET_ANYWHERE is not set here"),
        ([], "there is no command"),
    ],
)
def test_bad_input(tmp_path: Path, words: list[str], says: str) -> None:
    """One line, exit code 2, and no folder."""
    code, _, said = muster(tmp_path, "--start", "rank", *words)
    assert code == 2
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs/job").exists()


ALONE = pytest.param("interrupt", marks=pytest.mark.alone)  # within five seconds


@pytest.mark.parametrize("ends", ["agent", "controller", ALONE, "stop", "child"])
def test_nothing_is_left(tmp_path: Path, ends: str) -> None:
    """However it ends, grandchildren that ignore SIGTERM are gone, also those that left their session."""
    script = "trap '' TERM; (trap '' TERM; exec setsid sleep 987654) & echo ready; sleep 876543 & wait"
    argv = [sys.executable, "-m", "muster", "run", "local:2x1", "--name", "job", "--start", "host", "--"]
    job = subprocess.Popen([*argv, "bash", "-c", script], cwd=tmp_path, stderr=subprocess.DEVNULL)
    run = RunFolder(tmp_path / "runs/job")
    try:

        def ready() -> bool:
            logs = [run.host_log(f"local{each}") for each in range(2)]
            return all(each.exists() and "ready" in each.read_text() for each in logs)

        assert wait_until(ready, 60)
        mine = marked(f"MUSTER_EVENTS={run.path}")
        assert len(mine) >= 6  # two shells, and two of their children each
        began = time.monotonic()
        if ends == "agent":
            os.kill(parent(min(mine)), signal.SIGKILL)
        elif ends == "child":
            os.kill(next(pid for pid in mine if words(pid)[:1] == ["bash"]), signal.SIGKILL)
        elif ends == "stop":
            stop(run)
        else:
            job.send_signal(signal.SIGKILL if ends == "controller" else signal.SIGINT)
        job.wait(30)
        assert wait_until(lambda: not marked(f"MUSTER_EVENTS={run.path}"), 2 * ENDED)
        assert ends != "interrupt" or time.monotonic() - began <= 5
    finally:
        for pid in marked(f"MUSTER_EVENTS={run.path}"):
            os.kill(pid, signal.SIGKILL)
        job.kill()
        job.wait()


def marked(text: str) -> list[int]:
    """Living processes with this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if text.encode() in (entry / "environ").read_bytes() and state not in "ZX":
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def words(pid: int) -> list[str]:
    """A process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def parent(pid: int) -> int:
    """A process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_folder_of_a_command_has_no_value_of_its_variables(tmp_path: Path) -> None:
    words = ["run", "local:1", "--start", "host", "--runs", str(tmp_path), "--name", "r"]
    words += ["-e", "WANDB_API_KEY=hunter2-a", "--env", "X=hunter2-b", "--env=Y=hunter2-c", "-eZ=hunter2-d"]
    check = "test $WANDB_API_KEY$X$Y$Z = hunter2-ahunter2-bhunter2-chunter2-d"
    argv = [sys.executable, "-m", "muster", *words, "--", "/bin/sh", "-c", check]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert any(path.name == "report.html" for path in files)
    for name in ("WANDB_API_KEY", "X", "Y", "Z"):
        assert [path.name for path in files if f"{name}=hunter2".encode() in path.read_bytes()] == []


@pytest.mark.parametrize("start", ["host", "rank"])
def test_a_command_needs_no_package_of_musters(start: str, tmp_path: Path) -> None:
    """A Python that has the standard library alone."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    words = ["run", "local:1", "--start", start, "--runs", str(tmp_path), "--name", "r"]
    argv = [
        sys.executable,
        "-m",
        "muster",
        *words,
        f"launch.python={bare}/bin/python",
        "--",
        "/bin/echo",
        "hello",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "hello" in done.stdout + done.stderr, done.stdout + done.stderr


def test_what_a_script_of_ones_own_may_want(tmp_path: Path) -> None:
    """--local_rank=N as DeepSpeed's launcher gives it, steps without any time on their lines, and a note
    where two ranks train by themselves: on CPUs Accelerate forms a group, and does not use it."""
    script = tmp_path / "apart.py"
    script.write_text(
        "import argparse, os, time, accelerate\n"
        "assert accelerate.Accelerator().num_processes == 1\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int)\n"
        "assert parser.parse_args().local_rank == int(os.environ['LOCAL_RANK'])\n"
        "for step in range(1, 27):\n"
        "    print(f'at {step} of 26', flush=True)\n"
        "    time.sleep(0.5)\n"
    )
    words = ["--local-rank", "--line", r"^at (?P<step>\d+)"]
    code, result, said = muster(tmp_path, *words, "--", str(script), hosts="local:2")
    assert code == 0, said
    assert (result["command"]["unit"], result["steps"]) == ("steps", 26) and result["command"]["rate"]
    assert [note for note in result["notes"] if "none of the 2 ranks has formed a process group" in note]


def test_a_rank_that_sleeps_in_each_step_from_the_middle(tmp_path: Path) -> None:
    """Its processes compute no longer than the others': the stacks tell whom these wait for."""
    needs_torch()
    script = tmp_path / "late.py"
    script.write_text(
        "import time, torch, torch.distributed as dist\n"
        "def fetch(step):\n"
        "    time.sleep(0.1 if step < 60 or dist.get_rank() == 0 else 1.5)\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(1, 78):\n"
        "    fetch(step)\n"
        "    dist.all_reduce(torch.ones(4))\n"
        "    if dist.get_rank() == 0:\n"
        "        print(f'at {step} of 77', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    code, result, said = muster(tmp_path, "--line", r"^at (?P<step>\d+)", "--", str(script))
    assert code == 0, said
    (note,) = [each for each in result["notes"] if each.startswith("steps take")]
    assert "the others wait for rank 1 on local1 at fetch (late.py:3)" in note
    page = (tmp_path / "runs/job/report.html").read_text()
    assert ">Speed<" in page and "steps/s" in page
    assert not result["pace"] or "computes" in Pace.model_validate(result["pace"]).words
