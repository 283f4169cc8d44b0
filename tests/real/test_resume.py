"""A run whose rank was killed ends, when resumed, with the parameters of one that was never interrupted."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import RunFolderError
from muster.runs import train as stage
from muster.runs.ask import ask
from muster.runs.checkpoints import WantedCheckpoint
from muster.runs.resume import resume
from muster.store import events, sealed
from muster.store.runfolder import RunFolder
from tests.jobs import Job
from tests.support import losses, needs_torch, run, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

# Dropout on: the random numbers of every rank have to be restored too. 13 steps an epoch: the checkpoint of
# step 20 lies inside the second epoch.
SETTINGS = [
    "train.max_steps=60", "train.warmup=4", "measure.window=1", "checkpoint.every=20", "checkpoint.keep=2",
    "model.config.dropout_rate=0.1", "batch.micro=4", "data.generated.train=100",
]  # fmt: skip
ENGINES = {
    "ddp": ["engine.name=ddp", "engine.zero=0"],
    "zero1": ["engine.name=deepspeed", "engine.zero=1"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
}


def weights(folder: Path) -> dict[str, bytes]:
    """The saved parameters, byte for byte."""
    return {name: tensor.numpy().tobytes() for name, tensor in load(folder).items()}


@pytest.mark.parametrize("engine", ["ddp", "zero1", "fsdp"])
def test_resumed_is_as_if_never_interrupted(engine: str, tmp_path: Path) -> None:
    """Kill a rank after step 20's checkpoint, damage nothing else, resume: equal losses, equal parameters."""
    needs_torch()
    settings = [*SETTINGS, *ENGINES[engine]]
    whole, result = run(tmp_path / "whole", "local:2x1", *settings)
    assert result.status == "succeeded", result.failure

    with Job(tmp_path / "broken-run", "local:2x1", *settings) as job:
        reached = wait_until(
            lambda: any(_saved(job, step) for step in (20,)) or job.process.poll() is not None, 120, 0.01
        )
        assert reached
        pids = [pid for pid in job.local_processes() if _is_rank(pid)]
        os.kill(pids[-1], signal.SIGKILL)
        code, document = job.finish()
    assert code == 1 and "failure" in document, document
    assert "SIGKILL" in document["failure"]["what"]
    assert f"`muster resume {job.run.word}`" in document["failure"]["hint"]
    assert job.run.state() == "failed"

    again = resume(job.run)
    assert again.status == "succeeded", again.failure
    assert again.attempt == 2
    assert job.run.read_json(job.run.job)["resume_step"] in (20, 40)
    assert again.steps == 60
    assert again.samples == 60 * 8
    assert losses(job.run) == losses(whole)
    assert weights(job.run.model) == weights(whole.model)


def _saved(job: Job, step: int) -> bool:
    return any(isinstance(e, events.Saved) and e.step == step for e in events.read_events(job.run.events))


def _is_rank(pid: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"muster.worker" in arguments and b"torch.distributed.run" not in arguments


def test_damaged_checkpoints_are_never_resumed_from(tmp_path: Path) -> None:
    """A flipped bit, a short file, a missing manifest, and one that was saved broken: each is named, and the
    run goes on from the newest one that is whole. The damaged model is noticed as well.

    The schedule has pairs, and all are kept.
    """
    needs_torch()
    settings = [
        "train.max_steps=13",
        "checkpoint.every=[[2,4],[3,null]]",
        "checkpoint.keep=all",
        "engine.name=ddp",
        "engine.zero=0",
    ]
    done, result = run(tmp_path / "run", "local:2x1", *settings)
    assert result.status == "succeeded", result.failure
    steps = sorted(int(path.name.partition("-")[2]) for path in done.checkpoints.iterdir())
    assert steps == [2, 4, 6, 9, 12, 13]
    flip(done.model / "model.safetensors")
    with pytest.raises(RunFolderError, match=r"model\.safetensors is damaged"):
        ask(done, ["How many?"])
    (done.checkpoints / "checkpoint-13" / "complete.json").unlink()
    broken = done.checkpoints / "checkpoint-12"
    size = (broken / "model.safetensors").stat().st_size
    (broken / "model.safetensors").write_bytes(bytes(size))
    reseal(done, broken)  # as if the rank had saved it so: nothing but loading can tell
    weights_file = done.checkpoints / "checkpoint-9" / "optimizer.pt"
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    flip(done.checkpoints / "checkpoint-6" / "model.safetensors")
    document = json.loads(done.result.read_text())
    document["status"] = "failed"
    done.result.write_text(json.dumps(document))
    before = losses(done)
    again = resume(done, leave=["local1"])
    assert (again.status, again.attempt) == ("succeeded", 3), again.failure
    assert done.read_json(done.job)["resume_step"] == 4
    assert (result.world_size, again.world_size) == (2, 1)
    assert again.global_batch == result.global_batch
    assert losses(done) == pytest.approx(before, rel=1e-4)  # the same batches in the same order
    size = weights_file.stat().st_size  # whole again: it was written anew
    passed = [note for note in again.notes if "passed over" in note]
    assert [note.partition(" ")[0] for note in passed] == [f"checkpoint-{s}" for s in (6, 9, 12, 13)]
    assert "model.safetensors is damaged" in passed[0]
    assert f"optimizer.pt has {size - 1} of {size} bytes" in passed[1]
    assert "checkpoint-12 cannot be loaded" in passed[2]
    assert "no manifest" in passed[3]
    assert len(list(done.checkpoints.glob("*/complete.json"))) == 6
    assert ask(done, ["How many?"]).rows  # the model was saved anew


@pytest.mark.real_start
def test_zero_goes_on_on_fewer_ranks(tmp_path: Path) -> None:
    """Its optimizer states are cut anew: losses and parameters are those of the run on two ranks. A run that
    has ended goes back to a step that is asked for."""
    needs_torch()
    settings = ["train.max_steps=8", "checkpoint.every=4", "engine.name=deepspeed", "engine.zero=2"]
    done, result = run(tmp_path / "run", "local:2x1", *settings, "measure.window=1")
    assert result.status == "succeeded", result.failure
    before = losses(done), load(done.model)
    again = resume(done, wanted=WantedCheckpoint(step=4), leave=["local1"])
    assert (again.status, again.world_size, again.steps) == ("succeeded", 1, 8), again.failure
    assert losses(done) == pytest.approx(before[0], rel=1e-5)
    after, begun = load(done.model), load(done.checkpoints / "checkpoint-4")
    for name, tensor in before[1].items():
        moved = (tensor - begun[name]).norm()
        assert (after[name] - tensor).norm() <= 1e-3 * moved, name
    assert not (done.path / "universal").exists()


def load(folder: Path) -> dict[str, Any]:
    """The saved parameters."""
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def flip(file: Path) -> None:
    """One bit in the middle of a file is another one."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def reseal(done: RunFolder, folder: Path) -> None:
    """A new manifest, which the controller takes for the one that the rank wrote."""
    before = sealed.manifest(str(folder))[1]
    text, _ = sealed.seal(str(folder))
    (folder / "complete.json").write_text(text)
    told = done.events.read_text()
    assert before in told
    done.events.write_text(told.replace(before, sealed.digest_of(text.encode())))


def test_a_run_sees_only_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with a disk of its own, where a run of the same name has been: what that one saved, said and
    failed at is not this one's, and this one finds its own again."""
    needs_torch()
    monkeypatch.setattr(stage, "_leave", lambda sign: sign)  # so that the host shares nothing
    settings = [
        "train.max_steps=6", "checkpoint.every=3", "engine.name=ddp", "engine.zero=0", "batch.micro=4",
        f"launch.workdir={tmp_path}/hosts", "checkpoint.model=false",
    ]  # fmt: skip
    steps = []
    for name in ("first", "second"):
        done, result = run(tmp_path / "final", "local:1", *settings)
        assert (result.status, result.steps) == ("succeeded", 6), result.failure
        (facts,) = (host.facts for host in result.hosts)
        assert not facts["shared"]
        assert Path(facts["base"]) == tmp_path / "hosts" / done.elsewhere
        steps.append(facts["checkpoints"])
        if name == "first":
            done.path.rename(tmp_path / name)
    assert steps == [[], []]
    document = {**json.loads(done.result.read_text()), "status": "failed"}
    done.result.write_text(json.dumps(document))
    (tmp_path / "hosts" / done.elsewhere / "checkpoints" / "checkpoint-6" / "complete.json").unlink()
    again = resume(done)
    assert (again.status, again.steps) == ("succeeded", 6), again.failure
    assert done.read_json(done.job)["resume_step"] == 3


def test_the_last_steps_checkpoint_needs_no_more_steps(tmp_path: Path) -> None:
    """A run that ended while it saved its model: the last step lies inside an epoch."""
    needs_torch()
    import torch
    import transformers

    from muster.worker.trainer import Trainer

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": ((self.slope(x) - labels) ** 2).mean()}

    data = [{"x": [float(n)], "labels": [2.0 * n]} for n in range(10)]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=1, use_cpu=True,
        report_to=[], learning_rate=0.1, lr_scheduler_type="constant", disable_tqdm=True,
    )  # fmt: skip

    def trained(resume: str | None) -> tuple[int, dict[str, Any]]:
        sampler = torch.utils.data.SequentialSampler(data)
        trainer = Trainer(model=Line(), args=settings, train_dataset=data, sampler=sampler)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step, {
            name: part.tolist() for name, part in trainer.model.named_parameters()
        }

    whole = trained(None)
    assert whole[0] == 4
    assert trained(str(tmp_path / "checkpoint-2")) == whole
    assert trained(str(tmp_path / "checkpoint-4")) == whole
