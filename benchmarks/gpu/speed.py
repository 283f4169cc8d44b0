"""Muster's speed beside a peer's, rebuilt from its published settings (peers.py); each run is a process.

Each side trains on the same samples, and Muster also with settings that differ in one thing. All of them warm
up together, also those of other rows, and one at a time is timed (turn/sitecustomize.py): starting and
compiling take minutes, the steps that are timed seconds. A rate is of the steps after the first quarter. A
bar that is not met is a figure as any other, and no failure.

The published weights cannot be had without a network: every model starts from random ones, on both sides.
"""

from __future__ import annotations

import io
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs import PLAIN, Failed, in_turn, peer, train
from benchmarks.gpu.kit import MOST, Figures, Machine, NotApplicable, Piece

USUAL = 150.0  # seconds of a row, beside others
BEFORE = 3  # steps that a GPU which waited gets before those that count
WAITING = 0.01  # of a step, for its batch, at most
HELD = 1000  # pairs
DDP = ("engine.name=ddp", "engine.zero=0")
LM = (
    *DDP, "train.compile=cuda-graphs", "train.autocast=false", "train.gradient_checkpointing=false",
    "batch.tokens=null", "precision=auto",
)  # fmt: skip
# Of the tiny kit.
T5 = {"num_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 4, "vocab_size": 2048}
OPT = {"vocab_size": 1000, "dropout": 0.0, "attention_dropout": 0.0}
LLAMA = {
    "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip
VIT = {"image_size": 32, "patch_size": 16, "num_hidden_layers": 2}


@dataclass(frozen=True)
class Side:
    """One of the two: samples a step, and the rate of learning."""

    batch: int
    rate: float


@dataclass(frozen=True)
class Row:
    """A line of the table of speeds. `model`: as a recipe names it, `config`: fields on top of it; `small`:
    both in the tiny kit."""

    name: str
    limit: float
    usual: float  # seconds, beside other rows
    gigabytes: float  # of the device, of all sides together
    recipe: str
    overrides: tuple[str, ...]
    muster: Side
    samples: int  # of each run
    model: str
    small: tuple[str, dict[str, Any]]
    config: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0  # tokens of a sample, or of each part of a pair at most
    accumulation: int = 1  # Muster's
    peer: str = ""  # in peers.py; "": what is published is all there is
    other: Side | None = None  # the peer's; None: as Muster's
    work: dict[str, Any] = field(default_factory=dict)  # more of the peer's
    published: str = ""
    ratio: float | None = None  # bars: of the samples per second
    mfu: float | None = None
    needs: tuple[str, ...] = ()  # packages
    also: tuple[str, ...] = ()  # overrides, separated by spaces, each of one more run of Muster

    @property
    def alike(self) -> bool:
        """A sample costs both the same operations."""
        return self.peer != "pairs"


def rows() -> list[Row]:
    """What tells most comes first."""

    def pairs(size: str, limit: float, gigabytes: float, samples: int, micro: int, bar: float) -> Row:
        many = micro // 32
        return Row(
            f"{size}-text2sql", limit, USUAL, gigabytes, "text2sql-t5-small",
            ("model.init=random", "model.tokenizer=train", "data.padding=dynamic", "precision=auto",
             "train.warmup=0.05"),
            Side(micro, 5e-5 * many), samples, size, ("t5-small", T5), sequence=96,
            peer="pairs", other=Side(32, 5e-5), ratio=bar, also=("data.padding=buckets train.compile=true",),
            published="S2: Transformers Trainer, fp32, padded to 96, batch 32",
        )  # fmt: skip

    return [
        Row(
            "gpt2-124m", 240, USUAL, 42, "opt-benchmark", LM, Side(32, 6e-4), 32 * 60, "gpt2-small",
            ("gpt2-micro", {"n_embd": 64, "vocab_size": 1000, "resid_pdrop": 0.0}),
            {"vocab_size": 50304, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, 1024,
            peer="compiled", published="a plain compiled bf16 loop (llm.c: MFU 41 %)", ratio=1.2, mfu=0.45,
        ),
        Row(
            "opt-350m-sft", 240, USUAL, 66, "s1-opt-350m", LM, Side(24, 1e-10), 24 * 60, "facebook/opt-350m",
            ("opt-8m", OPT), {"dropout": 0.0, "attention_dropout": 0.0}, 512,
            peer="deepspeed", ratio=4, mfu=0.5, needs=("deepspeed",), also=("train.compile=true",),
            published="S1: DeepSpeed's engine, fp16, eager, batch 24 (119 samples/s of an H100, MFU 12 %)",
        ),
        pairs("t5-small", 240, 14, 16_384, 512, 12),
        Row(
            "opt-1.3b", 300, USUAL, 85, "opt-benchmark", LM, Side(8, 2e-4), 8 * 24, "opt-1.3b",
            ("opt-8m", OPT), {"dropout": 0.0}, 2048, peer="tokens", mfu=0.55,
            published="Transformers Trainer, bf16, SDPA (1.3B on 8 H100: MFU 41.8 %)",
        ),
        Row(
            "llama-8b-shape", 240, USUAL, 55, "opt-benchmark", (*LM, "train.compile=true"), Side(4, 3e-4),
            4 * 12, "llama-3-8b", ("llama-3-8b", LLAMA), {"num_hidden_layers": 6}, 8192, accumulation=4,
            published="torchtitan: MFU 33 to 39 % in bf16", mfu=0.45,
        ),
        Row(
            "vit-b16", 240, USUAL, 18, "vit-b16-cifar10", ("precision=auto", "train.compile=true"),
            Side(128, 1e-4), 128 * 40, "vit-base", ("vit-tiny", VIT),
            peer="images", other=Side(16, 1e-4), ratio=2,
            published="S5: Transformers Trainer, fp16, batch 16",
        ),
        pairs("t5-large", 300, 60, 4096, 128, 8),
        Row(
            "opt-13b-lora", 420, USUAL, 75, "s1-opt-13b",
            ("precision=auto", "engine.zero=0", "train.gradient_checkpointing=auto"),
            Side(16, 1e-10), 16 * 12, "facebook/opt-13b", ("opt-8m", OPT),
            {"dropout": 0.0, "attention_dropout": 0.0}, 512,
            accumulation=2, peer="deepspeed", work={"lora": 128, "checkpointing": True}, ratio=1.8,
            needs=("deepspeed", "peft"),
            published="S1: DeepSpeed's engine, fp16, eager, LoRA 128, batch 16 (9 samples/s of an H100)",
        ),
    ]  # fmt: skip


def pieces() -> list[Piece]:
    """One for each row."""
    return [
        Piece(
            "speed", row.name, row.limit, _measured(row), row.usual, shared=True, gigabytes=row.gigabytes,
            parts=("*", "benchmarks/gpu/peers.py"),
        )
        for row in rows()
    ]


# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A row as this machine runs it."""

    row: Row
    machine: Machine

    @property
    def model(self) -> tuple[str, dict[str, Any]]:
        """Its name, and the fields of its configuration that are the row's own."""
        return self.row.small if self.machine.tiny else (self.row.model, self.row.config)

    @property
    def sequence(self) -> int:
        """Tokens of a sample, or of each part of a pair."""
        return min(self.row.sequence, 64) if self.machine.tiny and self.row.alike else self.row.sequence

    def batch(self, side: Side) -> int:
        """Samples of a step."""
        return min(side.batch, 4) if self.machine.tiny else side.batch

    def steps(self, side: Side) -> int:
        """Of a run."""
        return (32 if self.machine.tiny else self.row.samples) // self.batch(side)

    def turn(self, side: Side) -> dict[str, str]:
        """The environment in which a side is timed alone: from a few steps before the first that counts to
        its last, or to its end where held-out data follows."""
        steps = self.steps(side)
        until = 0 if self.row.peer == "pairs" else steps
        return self.machine.turn(max(1, steps // 4 - BEFORE), until)

    def overrides(self, data: str) -> list[str]:
        """Muster's."""
        row, (name, config) = self.row, self.model
        steps, batch = self.steps(row.muster), self.batch(row.muster)
        more = [*PLAIN, *row.overrides]
        if self.machine.tiny:  # compiling takes a CPU a minute
            more = [word for word in more if not word.startswith("train.compile=")]
        if row.peer == "images":
            config = dict(config)
            more += [f"data.size={config.pop('image_size', 224)}", f"train.workers={workers()}"]
        if row.peer == "pairs":
            more += [f"evaluate.every={steps}"]  # the held-out loss, after the last step
        more += [f"data.path={data}"] if data else [f"data.sequence={self.sequence}"]
        return [
            *more, f"model.name={name}", f"model.config={json.dumps(config)}", f"train.max_steps={steps}",
            f"batch.micro={batch // row.accumulation}", f"batch.accumulation={row.accumulation}",
            "batch.global=null", f"train.learning_rate={row.muster.rate}",
            f"measure={{window: {steps // 4}, warmup: {steps // 4}, hardware_seconds: 1}}",
        ]  # fmt: skip

    def work(self, data: str) -> dict[str, Any]:
        """The peer's Work, as data."""
        side, (name, config) = self.row.other or self.row.muster, self.model
        steps = self.steps(side)
        return {
            "model": name, "config": config, "batch": self.batch(side), "steps": steps, "warmup": steps // 4,
            "rate": side.rate, "device": self.machine.device, "sequence": self.sequence, "data": data,
            "workers": workers() if self.row.peer == "images" else 0, **self.row.work,
        }  # fmt: skip


def workers() -> int:
    """Loader processes, of either side."""
    return max(0, min(8, len(os.sched_getaffinity(0)) - 2))


def data_of(shape: Shape) -> str:
    """The folder of the samples that both sides read; "" for tokens that are made on the way."""
    row, folder = shape.row, Path("samples").resolve()
    tiny = shape.machine.tiny
    if row.peer == "pairs":
        from muster.worker.data import sqlgen

        sqlgen.build(folder, seed=1, train=200 if tiny else row.samples, validation=8 if tiny else HELD)
        return str(folder)
    if row.peer == "images":
        write_images(folder, 40 if tiny else row.samples)
        return str(folder)
    return ""


def write_images(folder: Path, count: int) -> None:
    """Images of 32 x 32 pixels as the hub has CIFAR-10's: the digits that come with Muster, with noise."""
    import numpy as np
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    from muster.workloads.image_classification.images import read_digits

    folder.mkdir()
    images, labels = read_digits()
    chance = np.random.default_rng(0)
    for name, much in (("train", count), ("test", 64)):
        rows = []
        for index in range(much):
            digit = Image.fromarray(images[index % len(images)]).resize((32, 32)).convert("RGB")
            noise = chance.integers(0, 64, (32, 32, 3), dtype=np.uint8)
            stream = io.BytesIO()
            Image.fromarray(np.array(digit) // 2 + noise).save(stream, "png")
            rows.append({"bytes": stream.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        chosen = [labels[index % len(labels)] for index in range(much)]
        table = pa.table({"image": pa.array(rows, kind), "label": pa.array(chosen, pa.int64())})
        parquet.write_table(table, folder / f"{name}.parquet")


def together(sides: Mapping[str, Callable[[], Figures]]) -> dict[str, Figures]:
    """Run all sides at the same time; -> their figures, or the error of one. A run that failed costs no other
    its figures: a GPU is not at hand every day."""

    def tried(side: Callable[[], Figures]) -> Figures:
        try:
            return side()
        except Failed as error:
            return {"error": str(error)[-MOST:]}

    with ThreadPoolExecutor(len(sides)) as pool:
        futures = {name: pool.submit(tried, side) for name, side in sides.items()}
        return {name: future.result() for name, future in futures.items()}


def _measured(row: Row) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        for package in row.needs:
            if find_spec(package) is None:
                raise NotApplicable(f"needs {package}, which is not installed here")
        shape = Shape(row, machine)
        data = data_of(shape)
        settings = shape.overrides(data)

        def ours(name: str, *more: str) -> Callable[[], Figures]:
            words = [*settings, *more, *in_turn(shape.turn(row.muster))]
            return lambda: told(train(machine, name, row.recipe, *words))

        def theirs() -> Figures:
            return peer(row.peer, shape.work(data), env=shape.turn(row.other or row.muster))

        also = () if machine.tiny else row.also
        sides = {"muster": ours("muster")} | ({"peer": theirs} if row.peer else {})
        sides |= {each: ours(f"also{index}", *each.split()) for index, each in enumerate(also)}
        found = together(sides)
        wrong = [f"{name}: {each['error']}" for name, each in found.items() if "error" in each]
        if any("error" in found[name] for name in ("muster", "peer") if name in found):
            raise Failed("\n".join([json.dumps(found), *wrong]))
        round_ = [found[name] for name in ("muster", "peer") if name in found]
        figures = compared(row, [round_], [settings, shape.work(data) if row.peer else None])
        return {**figures, "also": {name: found[name] for name in also}}

    return run


def told(result: Mapping[str, Any]) -> Figures:
    """What counts of a run of Muster."""
    flops, speed = result["flops"] or {}, result["throughput"]
    return {
        "samples_per_second": speed["samples_per_second"],
        "tokens_per_second": speed["tokens_per_second"],
        "step_seconds": speed["step_seconds_median"],
        "data_share": speed["data_share"],
        "batch": result["global_batch"],
        "precision": result["precision"],
        "mfu": flops.get("mfu"),
        "peak": flops.get("peak"),
        "flops_per_second": flops.get("model_per_second"),
        "held_out_loss": result["evaluation_loss"],
        # Other processes hold the device's memory meanwhile.
        "memory": {key: size for key, size in result["memory"].items() if key != "device_peak"},
        "planned": result["planned"],
    }


def compared(row: Row, rounds: list[list[Figures]], settings: Sequence[Any]) -> Figures:
    """Rates of both sides, the rounds' ratios, and each bar beside what was found."""
    ours = [each[0] for each in rounds]
    theirs = [each[1] for each in rounds if len(each) > 1]
    figures: Figures = {"rounds": len(rounds), "published": row.published, "muster": ours, "peer": theirs}
    figures["settings"] = {"muster": settings[0], "peer": settings[1]}
    bars: dict[str, Any] = {}
    if theirs:
        rates = [[one["samples_per_second"] for one in side] for side in (ours, theirs)]
        figures["ratio"] = spread([a / b for a, b in zip(*rates, strict=True)])
        figures["peer_mfu"] = _peer_mfu(row, ours, theirs)
        if row.ratio is not None:
            bars["ratio"] = bar(figures["ratio"]["median"], row.ratio)
    figures["mfu"] = spread([one["mfu"] for one in ours if one["mfu"] is not None])
    if row.mfu is not None:
        bars["mfu"] = bar(figures["mfu"] and figures["mfu"]["median"], row.mfu)
    if waited := [one["data_share"] for one in ours if one.get("data_share") is not None]:
        most = max(waited)
        bars["data_share"] = {"bar": WAITING, "found": most, "met": most <= WAITING}
    if row.peer == "pairs":
        losses = [statistics.median([one["held_out_loss"] for one in side]) for side in (ours, theirs)]
        figures["held_out_loss"] = {"muster": losses[0], "peer": losses[1]}
        bars["held_out_loss"] = {"bar": losses[1], "found": losses[0], "met": losses[0] <= losses[1]}
    return {**figures, "bars": bars}


def _peer_mfu(row: Row, ours: Sequence[Figures], theirs: Sequence[Figures]) -> dict[str, float] | None:
    """Where a sample costs both the same, and the peak is one: bf16's and fp16's are the same."""
    if not row.alike or any(one["peak"] is None or not one["flops_per_second"] for one in ours):
        return None
    found = []
    for mine, other in zip(ours, theirs, strict=True):
        each = mine["flops_per_second"] / mine["samples_per_second"]
        found.append(each * other["samples_per_second"] / mine["peak"])
    return spread(found)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, lowest and highest; None of nothing."""
    if not values:
        return None
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def bar(found: float | None, least: float) -> dict[str, Any]:
    """A bar, and whether it is met; None where the figure is not known."""
    return {"bar": least, "found": found, "met": None if found is None else found >= least}
