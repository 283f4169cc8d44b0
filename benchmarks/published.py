"""Plans of runs that others published, and of our own on an H100 and an H200, beside what was measured and
what other estimators say.

    .venv/bin/python benchmarks/published.py [--runs FILE] [--only ID ...] [--quick] [--parts]

Others' runs are not part of this repository, ours are (results/h100.json, h200.json). `--runs`: a JSON file
with `rows` (`on`, `over` and `recipe` describe a plan, `published_*` what was measured) and `recipes` (the
text of each recipe's file), by default shared/data/published_runs.json beside the checkout. Nothing is
calibrated: every figure comes from stated figures and the shares of planner/time/reached.py.

What a published program does otherwise than Muster, and is known to, is planned as it does it (OWN): its
loss, its optimizer. Kinds of memory: `alloc` is the allocator's peak, without what CUDA and NCCL take;
`device` the driver's figure; `max` the largest batch that fitted; `fits` says only that it ran.

Others: EleutherAI's calculator (cookbook/calc/calc_transformer_mem.py, its formula with the row's numbers;
it knows neither LoRA nor encoder-decoders) and accelerate's estimate_training_usage (no activations, one
device).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate.commands.estimate import estimate_training_usage

from muster.core.errors import UsageError
from muster.core.trace import AFTER_BLOCKS, FIGURES, Pass, Trace, TraceRequest, with_peaks
from muster.inputs.read import read_recipe
from muster.planner import tracing
from muster.planner.decide import Decided
from muster.planner.machines import UserFigures
from muster.planner.memory.fit import Setting, need
from muster.planner.plan import plan_on

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT.parent / "shared" / "data" / "published_runs.json"
OURS = [ROOT / "benchmarks" / "results" / name for name in ("h100.json", "h200.json")]
Row = dict[str, Any]
# Bytes for each logit at the loss's peak, where a program works in half precision and without parts: logits,
# the copy that is moved on by one, log-probabilities, two gradients and the padded one.
LOSS = 12
# By a row's id or its first letters: overrides, whether the loss takes all logits at once (LOSS), and bytes a
# parameter beside what Muster's fused AdamW needs (torch's foreach Adam makes the denominators of all).
OWN: dict[str, tuple[list[str], bool, int]] = {
    "M1": (["train.fused_loss=true"], False, 0),
    "M2": (["train.fused_loss=false"], False, 0),
    "M3": (["train.fused_loss=false"], False, 0),
    "Q": (["train.fused_loss=false"], True, 0),
    "C": (["train.fused_loss=false"], True, 4),
    "LG": (["train.fused_loss=false"], False, 0),
}
# Ran before a compiled graph had the loss as well, where it takes all logits.
OUTSIDE = ("M2", "M3")
# What a row says in words alone. Quantised weights are read, not drawn: a name of the same size stands for
# it.
QUANTIZED = {
    "Q17": [
        "model.init=pretrained",
        "model.name=meta-llama/Llama-2-7b-hf",
        "model.quantized=nf4",
        "model.config.vocab_size=151936",
        "engine.name=ddp",
    ]
}
NOT_TIMED = ("approx", "max", "gap")  # evaluation, saving or loading is in the published time


def own(row: Row) -> tuple[list[str], bool, int]:
    """How a row's program differs."""
    letters = "".join(letter for letter in row["id"][:2] if letter.isalpha())
    names = (row["id"], letters, row["id"][0])
    return next((OWN[name] for name in names if name in OWN), ([], False, 0))


def planned(row: Row, folder: Path, *, traced: bool = True) -> Row:
    """What the planner says of a run: seconds of a step and their range, bytes of a device, refusal."""
    changes, whole_loss, optimizer = own(row)
    words = [*row["over"], *QUANTIZED.get(row["id"], []), *changes]
    try:
        with outside() if row["id"] in OUTSIDE else nullcontext():
            decided = plan_on(
                read_recipe(recipe_at(folder, row), words), row["on"], UserFigures(), traced=traced
            )
    except UsageError as error:
        return {"error": error.what}
    plan = decided.plan
    assert plan is not None and decided.setting is not None
    found: Row = {
        "batch": plan.batch["global"], "ranks": plan.ranks, "refused": decided.refused is not None,
        "would_fit": plan.would_fit, "device": memory_of(decided, row, whole_loss, optimizer),
        "others": others(decided.setting),
    }  # fmt: skip
    if plan.time is not None:
        parts = ("compute", "communication", "optimizer", "transfer", "overhead")
        found |= {"step": plan.time.step, "range": plan.time.step_range}
        found["time"] = {name: getattr(plan.time, name) for name in parts}
    return found


@contextmanager
def outside() -> Iterator[None]:
    """Trace compiled models with the loss behind their graph, as no recipe asks for any more."""
    asked = tracing.request_of

    def request_of(*given: Any, **named: Any) -> TraceRequest | None:
        request = asked(*given, **named)
        return None if request is None else replace(request, inside=False)

    with patch.object(tracing, "request_of", request_of):
        yield


def recipe_at(folder: Path, row: Row) -> str:
    """A file of others' recipes, or the name of one of Muster's."""
    file = folder / row["recipe"]
    return str(file) if file.exists() else row["recipe"]


def memory_of(decided: Decided, row: Row, whole_loss: bool, optimizer: int) -> dict[str, int]:
    """Bytes of a device by what they are for, with the run's own loss and optimizer."""
    setting = decided.setting
    assert setting is not None
    if whole_loss and setting.trace is not None:
        setting = replace(setting, trace=with_whole_loss(setting, setting.trace))
    found = need(setting)
    assert found is not None
    apart = ("CUDA context", "NCCL", "allocator slack")
    tensors = {name: value for name, value in found.device.items() if name not in apart}
    if optimizer:  # a step that takes more than the moment of the plan's peak
        held = sum(tensors.get(name, 0) for name in ("parameters", "optimizer", "buckets", "matrix products"))
        step = held + (4 + optimizer) * setting.trainable
        tensors["the optimizer's copies"] = max(0, step - sum(tensors.values()))
    rest = {} if row["memory_kind"] == "alloc" else {name: found.device.get(name, 0) for name in apart}
    return {**tensors, **rest}


def with_whole_loss(setting: Setting, trace: Trace) -> Trace:
    """The trace as if the loss took all logits at once."""
    logits = int(setting.config["vocab_size"]) * setting.lengths.tokens

    def whole(each: Pass) -> Pass:
        kept = each.saved - each.logits
        figures = {name: getattr(each, name) for name in FIGURES} | {
            "saved": kept + 4 * logits * each.samples, "logits": 4 * logits * each.samples,
        }  # fmt: skip
        peak = kept + LOSS * logits * each.samples
        return with_peaks(each.samples, figures, {**each.peaks, AFTER_BLOCKS: (peak, peak)})

    small, large = (whole(each) for each in trace.passes)
    return replace(trace, passes=(small, large), most=None, beyond=None, single=None)


def others(setting: Setting) -> dict[str, int | None]:
    """Bytes of a device as other estimators have them; None: not their kind of model."""
    usage = estimate_training_usage(4 * setting.parameters, "bfloat16")
    return {"accelerate": max(usage.values()), "EleutherAI": eleuther(setting)}


def eleuther(setting: Setting) -> int | None:
    """By the formula of its calculator: states as ZeRO's paper has them, gradients in fp32, activations after
    its table 2, buckets of 5e8 and 1e9 elements."""
    config, tokens = setting.config, setting.lengths.tokens
    width = int(config.get("n_embd") or config.get("hidden_size") or 0)
    layers = int(config.get("n_layer") or config.get("num_hidden_layers") or 0)
    if not width or not layers or "vocab_size" not in config or setting.trainable < setting.parameters:
        return None
    heads = int(config.get("n_head") or config.get("num_attention_heads") or 1)
    gated = "intermediate_size" in config
    inner = int(config.get("intermediate_size") or 4 * width)
    matrices = layers * (4 * width * width + (3 if gated else 2) * width * inner)
    count = 2 * int(config["vocab_size"]) * width + width * tokens + (8 * layers + 2) * width + matrices
    stage = 3 if setting.spread.engine == "fsdp" else setting.spread.stage
    ranks = setting.spread.ranks
    held = 2 * count / (ranks if stage == 3 else 1) + 4 * count / (ranks if stage > 1 else 1)
    held += 12 * count / (ranks if stage else 1)
    if stage and ranks > 1:
        held += 2 * 5e8 + (2 * 1e9 if stage == 3 else 0)
    a_value = 34 + (0 if setting.checkpointing else 5 * heads * tokens / width)
    return int(held + tokens * setting.micro * width * layers * a_value)


def measured_step(row: Row, plan: Row) -> float | None:
    """Seconds of a step as published; None: not published, or with more than steps in it."""
    if row["cls"] in NOT_TIMED or "batch" not in plan:
        return None
    if row["published_samples_per_s"]:
        return float(plan["batch"] / row["published_samples_per_s"])
    if row["published_tokens_per_s_per_gpu"]:
        length = next(int(o.split("=")[1]) for o in row["over"] if o.startswith("data.sequence="))
        return float(plan["batch"] * length / plan["ranks"] / row["published_tokens_per_s_per_gpu"])
    return None if row["published_step_s"] is None else float(row["published_step_s"])


def source_of(row: Row) -> str:
    """Whose run it is."""
    return str(row["source"]).partition("@")[0].partition(" ")[0].rstrip(",")


def compared(row: Row, plan: Row) -> Row:
    """A row of the table."""
    step, memory = measured_step(row, plan), row["published_memory_bytes"]
    held = sum(plan["device"].values()) if "device" in plan else None
    found: Row = {
        "id": row["id"], "source": source_of(row), "model": row["model"],
        "on": row["on"], "what": row["settings"], "kind": row["memory_kind"], "cls": row["cls"],
        "error": plan.get("error"), "refused": plan.get("refused"), "would_fit": plan.get("would_fit"),
        "others": plan.get("others"), "memory": memory, "planned_memory": held,
    }  # fmt: skip
    if step and plan.get("step"):
        low, high = plan["range"]
        found |= {"step": step, "planned_step": plan["step"], "range": [low, high]}
        found |= {"time_error": plan["step"] / step - 1, "inside": low <= step <= high}
    if memory and held and row["memory_kind"] != "fits" and row["cls"] != "gap":
        found["memory_error"] = held / memory - 1
    return found


def run(runs: Path = RUNS, only: Iterable[str] = (), *, traced: bool = True) -> list[Row]:
    """All rows, or some of them, compared: others' where their file is here, and ours. `details`: of the
    plan."""
    data: Row = {"rows": [], "recipes": {}}
    if runs.exists():
        data = json.loads(runs.read_text(encoding="utf-8"))
    ours = [row for file in OURS for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]
    every = [*data["rows"], *ours]
    chosen, found = set(only), []
    here, environment = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"HF_HUB_OFFLINE": "1", "XDG_DATA_HOME": name}  # no calibration
        for file, text in data["recipes"].items():
            (folder / file).write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            for row in every:
                if not chosen or row["id"] in chosen:
                    plan = planned(row, folder, traced=traced)
                    found.append({**compared(row, plan), "details": plan})
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(environment)
    return found


def summary(rows: Iterable[Mapping[str, Any]]) -> Row:
    """Medians and worst errors, the range's coverage, and what really ran and was refused."""
    rows = list(rows)

    def errors(name: str, some: Iterable[Mapping[str, Any]]) -> Row:
        found = [row[name] for row in some if name in row]
        if not found:
            return {"rows": 0}
        sizes = [abs(error) for error in found]
        return {
            "rows": len(found), "median": statistics.median(sizes),
            "low": min(found), "high": max(found),
        }  # fmt: skip

    ranges = [row["inside"] for row in rows if "inside" in row]
    return {
        "time": errors("time_error", rows),
        "time, H100": errors("time_error", [row for row in rows if row["on"].startswith("h100")]),
        "memory": errors("memory_error", rows),
        "inside": [sum(ranges), len(ranges)],
        "refused": [row["id"] for row in rows if row.get("refused") or row.get("error")],
        "rows": len(rows),
    }


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=Path, default=RUNS)
    asked.add_argument("--only", nargs="*", default=[])
    asked.add_argument("--quick", action="store_true", help="closed forms in place of traces")
    asked.add_argument("--parts", action="store_true", help="what time and memory consist of")
    told = asked.parse_args()
    rows = run(told.runs.resolve(), told.only, traced=not told.quick)
    for row in rows:
        words = [f"{row['id']:9s} {row['model'][:14]:14s} {row['on'][:14]:14s}"]
        if "step" in row:
            low, high = row["range"]
            inside = "" if row["inside"] else " outside"
            words.append(
                f"{row['step']:8.3f} s, planned {row['planned_step']:8.3f} {row['time_error']:+6.1%}"
            )
            words.append(f"({low:.2f} to {high:.2f}{inside})")
        if "memory_error" in row:
            words.append(f"{row['memory'] / 1e9:6.2f} GB {row['kind']}, planned")
            words.append(f"{row['planned_memory'] / 1e9:6.2f} {row['memory_error']:+6.1%}")
        words.append(row["error"] or ("REFUSED" if row["refused"] else ""))
        print(" ".join(words))
        if told.parts:
            for name in ("device", "time"):
                parts = row["details"].get(name, {}).items()
                print(f"          {name}:", ", ".join(f"{part} {value:.3g}" for part, value in parts))
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
