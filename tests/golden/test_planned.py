"""What `muster plan` predicts for every shipped recipe on some machines: figures and choices, not words.

Plans by formulas, and plans by traces of the real models, which are recorded in traces.json.xz: what a
renewal does not find there it traces with torch, and records.
"""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from muster.core.recipes import shipped_pipelines, shipped_recipes
from muster.core.trace import Trace, TraceRequest, from_json, to_json
from muster.planner import tracing
from tests.golden.documents import Documents, lines, muster, rounded, workplace

MACHINES = ("h100:8x2,400Gbit-ib", "a10:1x1", "v100-32gb:4x3,10Gbit")
RECORDED = Path(__file__).parent / "traces.json.xz"
DIGITS = 4  # significant ones of a figure
# Sentences: what they say stands in the figures, and some pages hold all of them (PRINTED).
WORDS = frozenset(("schema_version", "why", "notes", "assumed", "speaks_for", "order", "sentence", "data"))


def _rows(count: int, first: int = 0) -> str:
    """A table of pairs."""
    pairs = (f"how many {number}?,select {number} from t\n" for number in range(first, first + count))
    return "".join(("question,sql\n", *pairs))


def _lines(count: int, **fields: Any) -> str:
    """Rows as JSON, whose texts have their number."""
    rows = ({name: str(value).format(number) for name, value in fields.items()} for number in range(count))
    return "".join(json.dumps(row) + "\n" for row in rows)


# Planned by a trace.
TRACED = {
    "gpt2-small on one A10": ("gpt2-small", "--on", "a10:1x1"),
    "gpt2-small on 16 H100, compiled": (
        "gpt2-small", "--on", "h100:8x2,400Gbit-ib", "train.compile=true", "precision=bf16",
    ),
    "OPT-350m, ZeRO auto": ("s1-opt-350m", "--on", "v100-32gb:8x2,100Gbit-ib", "engine.zero=auto"),
    "OPT-1.3b, FSDP": (
        "s1-opt-1.3b", "--on", "a100-80gb:8x2,200Gbit-ib", "engine.name=fsdp", "engine.zero=0",
        "precision=bf16", "loss_scale=null", "engine.config=null",
    ),
    "T5 small on 3 hosts": (
        "text2sql-t5-small", "--on", "a10:1x3,10Gbit", "--samples", "56355", "--price", "1.2",
    ),
    "ViT, as many as fit": ("vit-b16-cifar10", "--on", "h100:1x1", "batch.micro=auto"),
    "DPO of adapters": ("dpo", "--on", "h100:2x1", "lora.rank=8", "launch.device=auto"),
}  # fmt: skip
_LLAMA_8B = (
    "causal-lm", "model.name=meta-llama/Llama-3.1-8B", "model.init=random", "data.sequence=8192",
    "batch.micro=1", "--on", "h100:8x1",
)  # fmt: skip
_LLAMA_7B = (
    "causal-lm", "model.name=meta-llama/Llama-2-7b-hf", "data.sequence=2048", "precision=bf16",
    "batch.micro=1", "engine.name=ddp", "--on", "a100-80gb:2x1", "lora.rank=8", "lora.targets=all-linear",
)  # fmt: skip
_DDP, _OPEN = ("engine.name=ddp", "engine.zero=0"), ("engine.zero=auto", "train.gradient_checkpointing=auto")
_OPT = (
    "opt-benchmark",
    "model.name=opt-1.3b",
    "--on",
    "a100-80gb:8x2,100Gbit",
    "batch.micro=4",
    "batch.tokens=null",
)
# Planned by formulas: what no shipped recipe asks for.
SETTINGS = {
    "fp8, compiled": (*_LLAMA_8B, "engine.name=fsdp", "precision=fp8", "train.compile=true"),
    "fp8, checkpointed": (
        *_LLAMA_8B, "engine.name=fsdp", "precision=fp8", "train.gradient_checkpointing=true",
    ),
    "adapters": _LLAMA_7B,
    "adapters of weights in 4 bits": (*_LLAMA_7B, "model.quantized=nf4-double", "model.init=pretrained"),
    "moments in 8 bits": (*_OPT, "engine.name=ddp", "engine.zero=0", "train.optimizer=adamw-8bit"),
    "bf16 alone": (*_OPT, "engine.name=ddp", "engine.zero=0", "train.optimizer=adamw-bf16"),
    "cast as a whole": (*_OPT, "engine.name=ddp", "engine.zero=0", "train.autocast=false"),
    "DDP that accumulates": (*_OPT, "engine.name=ddp", "engine.zero=0", "batch.accumulation=4"),
    **{
        f"ZeRO-{stage} that accumulates": (*_OPT, f"engine.zero={stage}", "batch.accumulation=4")
        for stage in range(4)
    },
    "ZeRO-3 without its thresholds": (
        *_OPT, "engine.zero=3",
        "engine.options={zero_optimization: {stage3_max_reuse_distance: 0, stage3_prefetch_bucket_size: 1}}",
    ),
    "ZeRO-3 in groups": (*_OPT, "engine.zero=3", "engine.group=8"),
    "FSDP that accumulates": (*_OPT, "engine.name=fsdp", "engine.zero=0", "batch.accumulation=4"),
    "FSDP that reduces in each micro-step": (
        *_OPT, "engine.name=fsdp", "engine.zero=0", "batch.accumulation=4", "engine.sync_each_batch=true",
    ),
    "no clipping": (*_OPT, "engine.zero=1", "train.clip=0"),
    "an optimizer of its own": (
        *_OPT, "engine.zero=2",
        "engine.options={optimizer: {type: Lion, params: {lr: 0.001}}}",
    ),
    "parameters alone offloaded": (
        *_OPT, "engine.zero=3", "engine.options={zero_optimization: {offload_param: {device: cpu}}}",
    ),
    "states on a disk": (
        *_OPT, "engine.zero=3",
        "engine.options={zero_optimization: {offload_optimizer: {device: nvme, nvme_path: /local}}}",
    ),
    "shares differ": (
        "digits", "--on", "a10:2x1,rtx-3070:1x1,10Gbit", "batch.split=[40,40,16]", "batch.micro=32",
        "batch.global=null",
    ),
    "a reference in parts": ("dpo", "--on", "h100:4x1", "engine.name=deepspeed", "engine.zero=3"),
    "answers and a reward": (
        "grpo", "--on", "h100:8x1", "model.name=facebook/opt-350m", "model.config=null",
        "reward.model=facebook/opt-1.3b", "reward.execution=false", "batch.accumulation=4",
        "engine.name=deepspeed", "engine.zero=3",
    ),
    "no half precision": ("opt-benchmark", "model.name=opt-8m", "batch.tokens=null", "--on", "p100:4"),
    "on processors beside GPUs": ("opt-benchmark", "launch.device=cpu", *_DDP, "--on", "a100-40gb:2"),
    "T5 that is too much without activations": ("seq2seq", "model.name=t5-11b", "--on", "a100-40gb:8"),
    "T5 of which one way is too much already": (
        "seq2seq", "model.name=t5-11b", "engine.name=deepspeed", "engine.zero=auto", "--on", "a100-80gb:8",
    ),
    "ViT, all left open": (
        "vit-b16-cifar10", "batch.micro=auto", "train.gradient_checkpointing=auto", "--on", "a100-40gb:1",
    ),
    "stages of half precision": (
        "opt-benchmark", "model.name=opt-13b", "precision=fp16", *_OPEN, "--on", "v100-32gb:8x4,100Gbit",
    ),
    "stages that offload": (*_OPT, *_OPEN, "engine.offload=optimizer"),
    "stages that offload all": (*_OPT, *_OPEN, "engine.offload=optimizer+param"),
    "stages of a model made in shards": (*_OPT, *_OPEN, "model.create=sharded"),
    "FSDP of one rank that accumulates": (
        *_OPT[:2], "engine.name=fsdp", "engine.zero=0", "batch.accumulation=4", "batch.tokens=null",
        "--on", "h100:1",
    ),
    "ZeRO-3 in a group of all": (*_OPT, "engine.zero=3", "engine.group=16"),
    "hosts that make no whole groups": (
        *_OPT[:2], "engine.zero=3", "engine.group=16", "launch.hosts=auto", "batch.tokens=null",
        "--on", "a100-80gb:8x4,10Gbit",
    ),
    "hosts on a fast network": (
        "text2sql-t5-small-zero1", "launch.hosts=auto", "batch.micro=32", "--on", "a100-40gb:1x4,200Gbit-ib",
    ),
    "hosts of which few do not fit": (
        "opt-benchmark", "model.name=opt-66b", "engine.zero=3", "launch.hosts=auto",
        "--on", "a100-80gb:8x4,200Gbit-ib",
    ),
    "hosts of which none fits": (
        "opt-benchmark", "model.name=opt-30b", "engine.zero=0", "launch.hosts=auto",
        "--on", "v100-16gb:1x3,10Gbit",
    ),
    "hosts that do not share a batch": ("digits", "launch.hosts=auto", "--on", "a100-40gb:1x3,400Gbit-ib"),
    "unlike hosts": ("digits", "precision=fp32", "--on", "rtx-3070:1x3,gtx-1070:1x1,100Gbit"),
    "unlike hosts, of which the slow one is left out": (
        "vit-b16-cifar10", "precision=fp32", "launch.hosts=auto", "--on", "rtx-3070:1x3,gtx-1070:1x1,1Gbit",
    ),
    "unlike hosts by hand": (
        "vit-b16-cifar10", "launch.hosts=auto",
        "--on", "slow{tflops=1,memory=8GB}:1x1,quick{tflops=20,memory=8GB}:1x2,100Gbit",
    ),
    "unlike hosts, of which one has a lower limit of power": (
        "vit-b16-cifar10", "launch.hosts=auto", "precision=bf16", "--on", "l4:1x1,rtx-4080:1x1,1Gbit",
    ),
    "unlike hosts, the smallest memory": ("digits", "--on", "rtx-3070:1x1,p100:1x1,10Gbit"),
    "unlike numbers of devices": ("vit-b16-cifar10", "--on", "h200:8x2,h200:4x1,nvlink4,400Gbit-ib"),
    "on processors by hand": (
        "causal-lm", "--on", "cpu{tflops=0.1,bandwidth=10e9}:2x3,50Mbit", "engine.name=ddp",
        "precision=fp32", "launch.device=cpu",
    ),
    "ZeRO-3 within a host": (*_OPT[:2], "engine.zero=3", "batch.tokens=null", "--on", "a100-pcie-80gb:4"),
    "a link that nobody names": ("text2sql-t5-small", "--on", "a10:1x2"),
    "actor and critic": (
        "ppo", "--on", "h100:8x1", "reward.model=facebook/opt-125m", "engine.name=deepspeed", "engine.zero=2",
    ),
}  # fmt: skip
# Printed for people.
PRINTED = {
    "it fits": ("s1-opt-1.3b", "--on", "h100:8x4,400Gbit-ib", "--samples", "56355", "--price", "2.5"),
    "activations are not counted": (
        "text2sql-t5-large", "--on", "h100:8x4,400Gbit-ib", "--samples", "56355", "--price", "2.5",
    ),
    "it does not fit": ("s1-opt-13b", "--on", "a10:8x1", "engine.zero=0"),
    "choices are left open": (
        "s1-opt-1.3b", "--on", "a100-40gb:1x3,10Gbit", "engine.name=deepspeed", "engine.zero=auto",
        "batch.micro=auto",
    ),
    "hosts are left open": (
        "opt-350m", "--on", "h200:8x8,10Gbit", "launch.hosts=auto", "batch.micro=8",
    ),
    "devices differ": ("text2sql-t5-small", "--on", "h100:8x1,a10:4x2,25Gbit", "batch.micro=8"),
    "tokens are counted": (
        "gpt2-small", "--on", "h100:8x2,400Gbit-ib", "--tokens", "20B", "--host-memory", "512GB",
    ),
    "the host's memory is used": (
        "text2sql-t5-large-zero3-offload", "--on", "a10:2x2,25Gbit", "--host-memory", "64GB",
    ),
    "compiled, with loaders": (
        "vit-b16-cifar10", "--on", "h100:1x1", "data.path=null", "data.name=cifar10", "train.compile=auto",
    ),
    "it is tight": (
        "causal-lm", "model.name=gpt2-large", "data.sequence=1024", "engine.name=deepspeed",
        "engine.zero=auto", "precision=bf16", "batch.micro=4", "--on", "a10:2x1",
    ),
    "PPO of a model in shards": ("s1-opt-1.3b-ppo", "--on", "h100:8x2,400Gbit-ib", "engine.zero=3"),
    "a pipeline": ("rlhf-demo", "--on", "h100:1x1"),
    "nothing trains": ("fabric", "--on", "h100:1x1"),
    "no such device": ("demo", "--on", "h1000:1x1"),
}  # fmt: skip
# What `train --dry-run` says of hosts that nobody asks, in a folder with these files.
_ON, _PAIRS = ("--hosts", "node1:4,node2:2,node3:2"), "seq2seq"
DRY_FILES = {
    "fp16.json": '{"fp16": {"enabled": true}, "zero_optimization": {"stage": 1}}',
    "texts/a.txt": "how many?\n" * 800, "texts/valid.txt": "how few?\n" * 800, "texts/test.txt": "none\n",
    "parts/train.csv": _rows(50), "parts/dev.csv": _rows(50, 50), "one/train.csv": _rows(50),
    "scored.jsonl": _lines(40, prompt="p{}", answer="x", score=1),
    "pairs.jsonl": _lines(300, question="say {}", sql="SELECT {}"),
    "mine.yaml": "inherit: seq2seq\ntrain: {epochs: 2, beta2: 0.9}\nbatch: {accumulation: 3}\n",
}  # fmt: skip
DRY = {
    "OPT's published settings": ("s1-opt-350m", *_ON),
    "fp16 needs GPUs": ("gpt2-micro", *_ON, "precision=fp16"),
    "fp16 of data that lie there": ("causal-lm", *_ON, "precision=fp16", "data.path=/data/there"),
    "GPUs that are asked for": ("demo", *_ON, "launch.device=cuda"),
    "a user's file says fp16": ("gpt2-micro", *_ON, "engine.name=deepspeed", "engine.config=fp16.json"),
    "what is left open makes it fit": (
        "opt-benchmark", "--hosts", "node[1-8]:8", "model.name=opt-30b", "launch.device=cuda",
        "precision=bf16", "engine.zero=auto",
    ),
    "a port": ("demo", *_ON, "launch.port=4711"),
    "trackers": ("digits", "--hosts", "node1", "measure.report_to=[wandb,mlflow]"),
    "texts with a held-out part": ("causal-lm", *_ON, "data.path=texts"),
    "pairs with a held-out part": ("demo", *_ON, "data.path=parts"),
    "pairs of which some are held out": ("demo", *_ON, "data.path=one"),
    "a mix": ("sft", *_ON, 'data.mix=[{"path": "/data/ours"}, {"path": "/data/theirs"}]'),
    "what is trained how": (
        "sft", "--hosts", "node[1-2]:1", "data.path=scored.jsonl", "batch.micro=4", "train.epochs=3",
        "train.weight_decay=0.1",
    ),
    "settings that a recipe inherits": ("mine.yaml", *_ON),
    "settings of the command line": (_PAIRS, *_ON, "train.epochs=2", "train.beta2=0.9"),
    "settings as shipped": (_PAIRS, *_ON),
    "a warm-up of more than all steps": (
        "demo", "--hosts", "node1:2", "train.warmup=2000", "train.max_steps=6",
    ),
    "a warm-up of more than an epoch": (
        _PAIRS, "--hosts", "node1:2", "data.path=pairs.jsonl", "train.max_steps=null", "train.warmup=30",
        "data.validation_fraction=0.1",
    ),
    "a warm-up that scales with the steps": (
        _PAIRS, "--hosts", "node1:2", "data.path=pairs.jsonl", "train.max_steps=6",
    ),
}  # fmt: skip


def without_words(value: Any) -> Any:
    """A plan without its sentences; a decision is its field and value."""
    if isinstance(value, Mapping):
        if {"field", "value", "why"} <= {*value}:
            return f"{value['field']}={value['value']}"
        return {key: without_words(each) for key, each in value.items() if key not in WORDS}
    return [without_words(each) for each in value] if isinstance(value, list) else value


def planned(*words: str) -> str:
    """The figures and choices of a plan."""
    told = muster("plan", *words, "--json")
    found = rounded(without_words(json.loads(told.out)), DIGITS)
    return told.behind("".join(f"{line}\n" for line in lines(found)))


def by_formulas(case: str) -> str:
    recipe, _, machines = case.partition(" on ")
    return planned(recipe, "--on", machines, "--quick")


@lru_cache
def recorded() -> dict[str, Any]:
    """Traces by what was asked for."""
    found: dict[str, Any] = json.loads(lzma.decompress(RECORDED.read_bytes())) if RECORDED.exists() else {}
    return found


@contextmanager
def traces() -> Iterator[None]:
    """Inside, models have the traces that were recorded; a renewal records those that are missing."""
    real = tracing._traced

    def traced(request: TraceRequest) -> Trace:
        key = json.dumps(asdict(request), sort_keys=True, default=str)
        if key not in recorded():
            assert "PYTEST_CURRENT_TEST" not in os.environ, f"not recorded (renew traced-plans): {key}"
            recorded()[key] = to_json(real(request))
            RECORDED.write_bytes(lzma.compress(json.dumps(recorded()).encode(), preset=9))
        return from_json(recorded()[key])

    # Neither what was traced here before, nor whether torch is here, changes anything.
    changed = {"_remembered": lambda _: None, "_traced": traced, "NEEDED": ()}
    with mock.patch.multiple(tracing, **changed):
        yield


def by_traces(case: str) -> str:
    with traces():
        return planned(*TRACED[case])


def dry_run(case: str) -> str:
    """What would be trained how, and what hosts are taken for; without the order and the sums."""
    place = workplace() / "dry"
    for name, text in DRY_FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    with mock.patch("muster.planner.plan.tracer", lambda *_: None):  # as with --quick
        told = muster("train", *DRY[case], "--dry-run", "--json", place=place)
    found = json.loads(told.out)
    plan = found["plan"]
    found = {key: found[key] for key in ("device", "precision", "world_size", "data", "assumed", "decisions")}
    found |= {"plan": {key: plan[key] for key in ("engine", "training", "data", "notes") if key in plan}}
    found |= {"memory": {key: plan["memory"][key] for key in ("basis", "lacking")}}
    found["decisions"] = [f"{each['field']}={each['value']}: {each['why']}" for each in found["decisions"]]
    text = told.behind("".join(f"{line}\n" for line in lines(rounded(found, DIGITS))))
    return re.sub(r"/runs/[\w-]+", "/runs/{new}", text)


RECIPES = [name for name in sorted(shipped_recipes()) if name != "fabric"]  # it trains nothing
CASES = tuple(f"{name} on {each}" for name in [*RECIPES, *sorted(shipped_pipelines())] for each in MACHINES)
DOCUMENTS = [
    Documents("plans", CASES, by_formulas),
    Documents("plans-of-settings", tuple(SETTINGS), lambda case: planned(*SETTINGS[case], "--quick")),
    Documents("traced-plans", tuple(TRACED), by_traces),
    Documents("dry-runs", tuple(DRY), dry_run),
    Documents("printed-plans", tuple(PRINTED), lambda case: str(muster("plan", *PRINTED[case], "--quick"))),
]
ALL = [(document, case) for document in DOCUMENTS for case in document.cases]


@pytest.mark.parametrize(("document", "case"), ALL, ids=[f"{each.kind}: {case}" for each, case in ALL])
def test_a_plan(document: Documents, case: str) -> None:
    document.check(case)
