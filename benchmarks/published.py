"""Plans of runs that others published, beside what they measured.

    .venv/bin/python benchmarks/published.py [--runs FILE] [--only ID ...] [--quick] [--json FILE]

The runs are not part of this repository: `--runs` is a JSON file with `rows` (each with `on`, `over`, `recipe`
and published figures) and `recipes` (the text of each recipe file), by default shared/data/published_runs.json
beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from muster.core.errors import UsageError
from muster.planner.outlook import UserFigures
from muster.planner.plan import plan_on, recipe_of

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT.parent / "shared" / "data" / "published_runs.json"
Row = dict[str, Any]


def planned(row: Row, folder: Path, *, traced: bool) -> Row:
    """What the planner says of a run."""
    try:
        recipe = recipe_of(str(folder / row["recipe"]), [*row["over"], *row.get("more", [])])
        decided = plan_on(recipe, row["on"], UserFigures(), traced=traced)
    except UsageError as error:
        return {"error": error.what}
    plan = decided.plan
    assert plan is not None
    memory, time = plan.memory, plan.time
    micro, ranks = plan.batch["micro"], plan.ranks
    found: Row = {"refused": decided.refused.what if decided.refused else None, "would_fit": plan.would_fit}
    if memory is not None:
        found |= {
            "device": memory.device, "bytes": memory.device_bytes, "room": memory.device_room,
            "basis": memory.basis, "moment": memory.moment, "host_bytes": memory.host_bytes,
            "lacking": memory.lacking,
        }  # fmt: skip
    if time is not None:
        found |= {"step": time.step, "time": time.model_dump(), "samples_per_second": time.samples_per_second}
    return {**found, "micro": micro, "ranks": ranks, "batch": plan.batch}


def step_of(row: Row, plan: Row) -> float | None:
    """Seconds of a step as published."""
    batch = plan.get("batch", {}).get("global")
    if row["published_step_s"] or not batch:
        return row["published_step_s"]
    if row["published_samples_per_s"]:
        return batch / row["published_samples_per_s"]
    if row["published_tokens_per_s_per_gpu"]:
        length = next(int(o.split("=")[1]) for o in row["over"] if o.startswith("data.sequence="))
        return batch * length / plan["ranks"] / row["published_tokens_per_s_per_gpu"]
    return None


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=Path, default=RUNS)
    asked.add_argument("--only", nargs="*")
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--json", type=Path)
    asked.add_argument("--parts", action="store_true")
    told = asked.parse_args()
    data = json.loads(told.runs.read_text())
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = name
        for file, text in data["recipes"].items():
            (folder / file).write_text(text)
        (folder / "data").mkdir()
        os.chdir(folder)
        for row in data["rows"]:
            if told.only and row["id"] not in told.only:
                continue
            plan = planned(row, folder, traced=not told.quick)
            results.append({"row": row, "plan": plan})
            measured = step_of(row, plan)
            step = plan.get("step")
            low, high = plan["time"]["step_range"] if step else (0, 0)
            within = "in" if measured and low <= measured <= high else "  "
            t = f"{measured:8.3f} {step:8.3f} {step / measured - 1:+6.1%} {low:7.2f} {high:7.2f} {within}" if measured and step else f"{measured or math.nan:8.3f} {step or math.nan:8.3f}       "
            m = row["published_memory_bytes"]
            b = plan.get("bytes")
            mem = f"{m / 1e9:6.1f} {b / 1e9:6.1f} {b / m - 1:+6.1%} {row['memory_kind']:7s}" if m and b else " " * 28
            print(f"{row['id']:9s} {row['model'][:16]:16s} {row['hardware'][:16]:16s} {t}  {mem} {'REFUSED' if plan.get('refused') else ''} {plan.get('error') or ''}", flush=True)
            if told.parts:
                print("   ", {k: round(v / 1e9, 2) for k, v in plan.get("device", {}).items()}, plan.get("moment"))
                print("   ", {k: v for k, v in plan.get("time", {}).items() if k in ("compute", "communication", "optimizer", "overhead", "transfer")})
    if told.json:
        told.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
