"""Two ranks under ZeRO-3 with a user's own DeepSpeed file, against one process: the attention logits, the
learning rates and the checkpoints are what recipe and file say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from muster.core.learning_rate import learning_rate
from muster.core.recipe import Train
from muster.core.result import Result
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import needs_torch, run, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

STEPS, WARMUP, RATE = 10, 4, 6e-4
COMMON = [
    f"train.max_steps={STEPS}", "train.schedule=linear", f"train.warmup={WARMUP}",
    f"train.learning_rate={RATE}", "measure.window=1", "measure.attention=true",
    "checkpoint.every=[[2,4],[3,8]]", "checkpoint.keep=all",
]  # fmt: skip
# As Mistral's z2-small.json, but stage 3: it says nothing of the kind of warm-up, which DeepSpeed would make
# logarithmic. torch_adam: nothing has to be compiled.
OWN = {
    "optimizer": {"type": "AdamW", "params": {"lr": RATE, "weight_decay": 0.0, "torch_adam": True}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "total_num_steps": STEPS,
            "warmup_min_lr": 0,
            "warmup_max_lr": RATE,
            "warmup_num_steps": WARMUP,
        },
    },
    "zero_optimization": {"stage": 3, "contiguous_gradients": True, "overlap_comm": True},
}

Run = tuple[RunFolder, Result]
BUILD = """
    import sys
    from pathlib import Path
    from torch.utils import cpp_extension
    source = Path(sys.argv[1])
    if not source.exists():
        source.write_text("int main() { return 0; }")
    cpp_extension.load("tiny", [str(source)], is_python_module=False, is_standalone=True)
    print("built", flush=True)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, with everything."""
    needs_torch()
    settings = [*COMMON, "engine.name=ddp", "engine.zero=0", "batch.micro=8"]
    return run(tmp_path_factory.mktemp("alone") / "run", "local:1", *settings)


@pytest.fixture(scope="module")
def killed_build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder of extensions with the lock of a real build whose process was killed in its middle."""
    needs_torch()
    folder = tmp_path_factory.mktemp("extensions")
    slow = folder / "slow-c++"  # a compiler that takes its time, so that the kill comes in the middle
    slow.write_text('#!/bin/sh\n[ "$1" = -dumpfullversion ] || [ "$1" = -v ] || sleep 300\nexec c++ "$@"\n')
    slow.chmod(0o755)
    env = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder / "kernels"), "MAX_JOBS": "1"}
    process = _build(folder, {**env, "CXX": str(slow)})
    try:
        assert wait_until(lambda: list((folder / "kernels").rglob("build.ninja")), 120), "it did not compile"
        assert process.poll() is None
    finally:
        _kill(process)
    assert [path.name for path in (folder / "kernels").rglob("lock")] == ["lock"]
    return folder, env


def _build(folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", textwrap.dedent(BUILD), str(folder / "tiny.cpp")]
    return subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole session: ninja gives every compiler a process group of its own."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                os.kill(int(stat.parts[2]), signal.SIGKILL)
        except (OSError, ValueError):
            continue
    process.wait()
    assert process.stdout
    process.stdout.close()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, killed_build: tuple[Path, dict[str, str]]) -> Run:
    """Two ranks, ZeRO-3, a file of one's own, and that lock in the way."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "own.json").write_text(json.dumps(OWN))
    settings = [
        *COMMON, "engine.name=deepspeed", f"engine.config={folder / 'own.json'}", "batch.micro=4",
        f"env.TORCH_EXTENSIONS_DIR={killed_build[1]['TORCH_EXTENSIONS_DIR']}",
    ]  # fmt: skip
    return run(folder / "run", "local:2", *settings)


def told(run_folder: RunFolder, kind: type) -> list:
    return [event for event in events.read_events(run_folder.events) if isinstance(event, kind)]


def test_both_succeed(alone: Run, sharded: Run) -> None:
    for folder, result in (alone, sharded):
        assert result.status == "succeeded", (result.failure, folder.path)


def test_attention_logits_are_those_of_one_process(alone: Run, sharded: Run) -> None:
    """Parameters are sharded, and every rank has half of the batch. Two steps have the same weights."""
    one, two = (told(folder, events.Attention) for folder, _ in (alone, sharded))
    assert [each.step for each in one] == [each.step for each in two] == list(range(1, STEPS + 1))
    assert all(each.rank == 0 for each in two)
    names = ["encoder.layer0", "encoder.layer1", "decoder.layer0", "decoder.layer0.cross", "decoder.layer1",
             "decoder.layer1.cross"]  # fmt: skip
    for a, b in zip(one[:2], two[:2], strict=True):
        assert a.layers == b.layers == names
        assert b.largest == pytest.approx(a.largest, rel=1e-3)
        assert b.smallest == pytest.approx(a.smallest, rel=1e-3)
    assert one[0].largest != one[1].largest
    for _, result in (alone, sharded):
        report = result.attention
        assert report and report.largest and report.smallest and report.share
        assert report.windows == STEPS and report.largest.layer in names
        assert 0 < report.share < 1 and report.seconds > 0


def rates(folder: RunFolder) -> list[float | None]:
    return [each.learning_rate for each in sorted(told(folder, events.Log), key=lambda log: log.step)]


def test_the_learning_rates_are_the_recipes(alone: Run, sharded: Run) -> None:
    """What each step used. DeepSpeed's own schedulers begin one step late: two steps have rate 0."""
    train = Train(schedule="linear", warmup=WARMUP, learning_rate=RATE)
    formula = [learning_rate(train, step, STEPS) for step in range(1, STEPS + 1)]
    assert rates(alone[0]) == pytest.approx(formula)
    assert rates(sharded[0]) == pytest.approx([0.0, *formula[:-1]])
    for _, result in (alone, sharded):
        assert not any("learning rate" in note for note in result.notes)
    decisions = sharded[0].read_json(sharded[0].plan)["decisions"]
    (said,) = [each for each in decisions if each["field"] == "train.schedule"]
    assert "linear warm-up" in said["value"] and "logarithmic" in said["why"]


def test_checkpoints_are_where_the_schedule_has_them(alone: Run, sharded: Run) -> None:
    """[[2, 4], [3, 8]] and the last step, whatever the engine."""
    for folder, _ in (alone, sharded):
        saved = {each.step for each in told(folder, events.Saved)}
        assert saved == {2, 4, 6, 10, None}
        assert {int(path.name.partition("-")[2]) for path in folder.checkpoints.iterdir()} == {2, 4, 6, 10}


def test_a_killed_compilation_keeps_nobody_waiting(
    sharded: Run, killed_build: tuple[Path, dict[str, str]]
) -> None:
    """The job removed its lock and says so; whoever compiles next does not wait."""
    folder, env = killed_build
    assert not list((folder / "kernels").rglob("lock"))
    assert [note for note in sharded[1].notes if "removed the lock of a compilation" in note]
    process = _build(folder, env)
    try:
        said, _ = process.communicate(timeout=200)
    finally:
        _kill(process)
    assert process.returncode == 0 and b"built" in said, said.decode()
