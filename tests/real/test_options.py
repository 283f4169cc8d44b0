"""Settings that change how a model is trained do just that: real ranks over gloo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from muster.reports.page import render
from muster.reports.rundata import gather
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.worker.context import Context, read_context
from tests.support import losses, needs_torch, run, said

pytestmark = [pytest.mark.real, pytest.mark.timeout(280), pytest.mark.usefixtures("torch_here")]

DDP = ["engine.name=ddp", "engine.zero=0"]
ZERO2 = ["engine.name=deepspeed", "engine.zero=2"]
ZERO3 = ["engine.name=deepspeed", "engine.zero=3"]
FSDP = ["engine.name=fsdp", "engine.zero=0"]
STEPS = ["train.max_steps=8", "train.warmup=2", "measure.window=1", "measure.warmup=2", "batch.micro=8"]


@pytest.fixture(scope="module")
def torch_here() -> None:
    needs_torch()


@pytest.fixture(scope="module")
def plain(torch_here: None, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two ranks of DDP in fp32 with nothing switched on: what the others are compared with."""
    done, result = run(tmp_path_factory.mktemp("plain") / "run", "local:2", *STEPS, *DDP)
    assert result.status == "succeeded", result.failure
    assert losses(done)[-1] < losses(done)[0] - 0.3
    return done


def context_of(done: RunFolder, monkeypatch: pytest.MonkeyPatch, **recipe: Any) -> Context:
    """What rank 0 of a run was told, as if it were alone; `recipe` replaces sections."""
    spec = json.loads(next(done.path.glob("hosts/*/spec.json")).read_text())
    spec["job"]["recipe"] |= recipe
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    return read_context(spec)


# --- a user's own DeepSpeed file -------------------------------------------------------------------------


def test_a_users_deepspeed_file(tmp_path: Path) -> None:
    """Its "auto" is filled from the recipe; what it fixes is what happens, here against the recipe's own."""
    peak, warmup, total = 4e-3, 3, 8
    content = {
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 16,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "contiguous_gradients": True},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": "auto",
                "betas": "auto",
                "eps": "auto",
                "weight_decay": 0.01,
                "torch_adam": True,
            },
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": peak,
                "warmup_num_steps": warmup,
                "total_num_steps": "auto",
                "warmup_type": "linear",
            },
        },
        "flops_profiler": {"enabled": True, "profile_step": 2, "output_file": "profiles/flops.txt"},
        "csv_monitor": {"enabled": True, "output_path": "csv", "job_name": "own"},
    }
    file = tmp_path / "own.json"
    file.write_text(json.dumps(content))
    settings = ["batch.micro=auto", "batch.accumulation=auto", f"engine.config={file}", "train.warmup=6"]
    done, result = run(tmp_path / "run", "local:2", *STEPS, *ZERO2, *settings)
    assert result.status == "succeeded", result.failure
    assert (result.steps, result.samples, result.global_batch) == (total, 16 * total, 16)
    assert done.read_json(done.job)["batch"] == {"micro": 4, "accumulation": 2, "global": 16}
    decided = {each["field"]: each["value"] for each in done.read_json(done.plan)["decisions"]}
    assert decided["train.learning_rate"] == peak
    shown = done.read_json(done.engine_config)
    assert "auto" not in json.dumps(shown)
    assert shown["scheduler"]["params"]["total_num_steps"] == total
    assert done.read_json(done.job)["recipe"]["engine"]["zero"] == 2
    assert json.loads(done.engine_config_given.read_text()) == content
    assert decided["train.warmup"] == warmup
    rates = [log.learning_rate for log in said(done, events.Log)]
    expected = [peak * min(step / warmup, (total - step) / (total - warmup)) for step in range(total)]
    assert rates == pytest.approx([0.0, *expected[:-1]])  # what steps used: DeepSpeed begins one step late
    curve = losses(done)
    assert curve[-1] < curve[0] - 0.3
    profile, csv = sorted(result.files, key=lambda each: not each.head)
    assert [profile.what, profile.host, csv.what, csv.head] == ["flops_profiler", "local", "csv_monitor", []]
    lines = [line.rstrip() for line in Path(profile.path).read_text().splitlines()]
    assert lines[: len(profile.head)] == profile.head
    assert any("Flops Profiler" in line for line in profile.head)
    assert any(Path(csv.path).glob("*.csv"))
    assert profile.path in " ".join(result.notes) and profile.head[1] in render(gather(done))


# --- memory against time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [ZERO2, FSDP], ids=["zero2", "fsdp"])
def test_gradient_checkpointing_changes_no_loss(engine: list[str], plain: RunFolder, tmp_path: Path) -> None:
    done, result = run(tmp_path / "run", "local:2", *STEPS, *engine, "train.gradient_checkpointing=true")
    assert result.status == "succeeded", result.failure
    assert losses(done) == pytest.approx(losses(plain), rel=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_checkpointing_computes_forward_again(
    checkpointing: bool, plain: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block's forward runs once for a loss and its gradients, twice with checkpointing."""
    import torch

    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    built = build(plain, monkeypatch, gradient_checkpointing=checkpointing)
    for block in [*built.trainer.model.encoder.block, *built.trainer.model.decoder.block]:
        block.layer[0].register_forward_hook(count)
    model = built.trainer.model.train()
    if checkpointing:  # as the trainer does before its first step
        model.gradient_checkpointing_enable({"use_reentrant": False})
    assert model.is_gradient_checkpointing is checkpointing
    inputs = built.trainer.data_collator([built.trainer.train_dataset[i] for i in range(2)])
    model(**inputs).loss.backward()
    assert calls == (8 if checkpointing else 4)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def build(done: RunFolder, monkeypatch: pytest.MonkeyPatch, **train: Any) -> Any:
    """The workload of a run, built in this process with other training settings."""
    from muster.worker.arguments import training_arguments
    from muster.workloads.text2sql import train as text2sql

    recipe = done.read_json(done.job)["recipe"]
    context = context_of(done, monkeypatch, train={**recipe["train"], **train})
    monkeypatch.delenv("WORLD_SIZE")  # the trainer would look for a group
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("LOCAL_RANK", "-1")
    monkeypatch.setitem(os.environ, "ACCELERATE_USE_CPU", "true")
    return text2sql.build(context, training_arguments(context))


def test_fsdp_offload(plain: RunFolder, tmp_path: Path) -> None:
    """Parameters and optimizer in host memory: the same curve."""
    done, result = run(tmp_path / "run", "local:2", *STEPS, *FSDP, "engine.offload=optimizer+param")
    assert result.status == "succeeded", result.failure
    assert losses(done) == pytest.approx(losses(plain), rel=1e-4)


def test_bf16_is_near_fp32_and_not_the_same(plain: RunFolder, tmp_path: Path) -> None:
    done, result = run(tmp_path / "run", "local:2", *STEPS, *DDP, "precision=bf16")
    assert result.status == "succeeded", result.failure
    assert result.precision == "bf16"
    here, there = losses(done), losses(plain)
    assert here == pytest.approx(there, rel=2e-2)
    assert here[0] != pytest.approx(there[0], rel=1e-6)  # 8 bits of mantissa show


# --- what is learned -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [DDP, ZERO3, FSDP], ids=["ddp", "zero3", "fsdp"])
def test_lora(engine: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter alone is trained; the model is saved whole, merged, and answers without its base."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    from muster.workloads.seq2seq.model import make_model
    from muster.workloads.seq2seq.train import Answerer

    settings = ["lora.rank=4", "lora.alpha=8", "train.learning_rate=0.01"]
    answering = ["evaluate.after=true", "evaluate.limit=4", "data.max_target=12"]
    done, result = run(tmp_path / "run", "local:2", *STEPS, *engine, *settings, *answering)
    assert result.status == "succeeded", result.failure
    for started in said(done, events.Started):
        assert 0 < started.trainable < started.parameters / 4
    assert losses(done)[-1] < losses(done)[0]
    assert result.quality is not None and result.quality.questions == 4

    adapter = {
        name.removeprefix("base_model.model."): tensor
        for name, tensor in load_file(done.model / "adapter" / "adapter_model.safetensors").items()
    }
    assert all(".lora_A." in name or ".lora_B." in name for name in adapter)
    targets = {name.partition(".lora_")[0] for name in adapter}
    assert sum(tensor.numel() for tensor in adapter.values()) == said(done, events.Started)[0].trainable
    context = context_of(done, monkeypatch, lora=None)
    tokenizer = AutoTokenizer.from_pretrained(str(done.model))
    base = make_model(context, tokenizer).state_dict()
    merged = load_file(done.model / "model.safetensors")
    for name, tensor in merged.items():
        expected = base[name]
        part = name.removesuffix(".weight")
        if part in targets:
            a, b = adapter[f"{part}.lora_A.weight"], adapter[f"{part}.lora_B.weight"]
            assert b.abs().max() > 0  # it starts at nothing: it was trained
            expected = expected + 8 / 4 * (b @ a)
        assert (tensor - expected).abs().max() < 1e-5, name
    assert {f"{target}.weight" for target in targets} <= set(merged)

    answers, seconds = Answerer(done.model, context.recipe, "cpu").answer(["How many?", "Which?"])
    assert len(answers) == 2
    assert seconds > 0


def test_label_smoothing_is_in_the_loss(plain: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's loss on a padded batch is PyTorch's own smoothed cross entropy over its real tokens."""
    import torch

    loss = build(plain, monkeypatch, label_smoothing=0.3).trainer.compute_loss_func
    torch.manual_seed(0)
    labels = torch.randint(0, 11, (3, 5))
    logits = torch.randn(3, 5, 11) + 6 * torch.nn.functional.one_hot(labels, 11)  # sure, so smoothing costs
    labels[1, 3:] = -100
    real = labels != -100
    expected = torch.nn.CrossEntropyLoss(label_smoothing=0.3)(logits[real], labels[real])
    assert loss({"logits": logits}, labels).item() == pytest.approx(expected.item(), rel=1e-6)
    count = torch.tensor(26)  # of two such batches
    assert loss({"logits": logits}, labels, count).item() == pytest.approx(expected.item() / 2, rel=1e-6)
    hard = torch.nn.CrossEntropyLoss()(logits[real], labels[real])
    assert hard.item() < expected.item() / 2


def test_fixed_padding_and_a_limit_of_minutes(tmp_path: Path) -> None:
    """Every sample is as long as the longest may be; the time's end is a success, with a model."""
    lengths = ["data.padding=fixed", "data.max_source=48", "data.max_target=40"]
    settings = ["train.max_steps=100000", "train.max_minutes=0.02", "train.label_smoothing=0.1"]
    done, result = run(tmp_path / "run", "local:2", *STEPS, *DDP, *lengths, *settings, "measure.window=5")
    assert result.status == "succeeded", result.failure
    assert 0 < result.steps < 100_000
    assert result.samples == 16 * result.steps
    windows = said(done, events.Window)
    assert {window.rank for window in windows} == {0, 1}
    for window in windows:
        assert window.padded_tokens == window.samples * (48 + 40)
        assert 0 < window.tokens < window.padded_tokens
    assert (done.model / "model.safetensors").is_file()
