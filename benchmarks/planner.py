"""Every table of docs/planner.md: planned, measured, error.

    .venv/bin/python benchmarks/planner.py [--only runs published memory states activations exchange]

`runs`: many runs that others published, uncalibrated (benchmarks/published.py, whose data is not here), and
ours on an H100.
`published`: three systems' runs, learned from some. `memory`: others' peaks. `states`: the tensors that ranks
of every engine hold, real ones and those of faked worlds. `activations`: what autograd holds of real passes.
`exchange`: what two real ranks hand to each other. A few minutes on two cores. What runs on the test cluster
(benchmarks/planner_cluster.py) and on a GPU (benchmarks/gpu) wants what is not everywhere:
their last results are shown with these, where there are any. Writes benchmarks/results/planner.json and the
tables between the marks in docs/planner.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import planner_page  # noqa: E402
import published as runs_of_others  # noqa: E402
import pytest  # noqa: E402
from hardware import processor  # noqa: E402
from tests.real import test_fit, test_states, test_traffic, traced  # noqa: E402
from tests.unit import test_fit as unit_fit  # noqa: E402
from tests.unit import test_published as others  # noqa: E402
from tests.unit import test_states as unit_states  # noqa: E402

from muster.planner.forecast import point  # noqa: E402
from muster.planner.time.learning import MeasuredRun, learn  # noqa: E402
from muster.planner.time.steptime import predict  # noqa: E402

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def row(name: str, planned: float, measured: float, **more: Any) -> Row:
    """`error`: of what was measured."""
    return {"name": name, "planned": planned, "measured": measured, "error": planned / measured - 1, **more}


def runs() -> list[Row]:
    """Planned beside published, without the plans' details; ours alone where others' are not here."""
    rows = [{key: value for key, value in each.items() if key != "details"} for each in runs_of_others.run()]
    timed = {row["id"]: row.get("time_error") for row in rows}
    return [{**row, "error": timed[row["id"]] or 0.0, "apart": timed[row["id"]] is None} for row in rows]


def published() -> list[Row]:
    """Seconds of a step, or of an epoch, of others' runs; `learned`: what the plan was calibrated with."""
    rows = []
    names = list(others.ROWS)
    known = learn([MeasuredRun(others.ROWS[name], others.measured(name)) for name in names[:2]])
    for name in names:
        planned = predict(others.ROWS[name], known).seconds
        if "offload" in name:  # whose held-out passes are long, and in the published time
            passes = others.WIKISQL.epochs / others.PUBLISHED[name][1]
            planned += passes * others.evaluation(others.ROWS[name], known)
        learned = name in names[:2]
        rows.append(row(name, planned, others.measured(name), unit="s per step", learned=learned))
    for name, (micro, rates) in others.OPT.items():
        first = min(rates)
        known = learn([MeasuredRun(others.opt(name, 1), micro * first / rates[first])])
        for gpus, rate in rates.items():
            planned = micro * gpus / predict(others.opt(name, gpus), known).seconds
            said = f"{name}, {gpus} H100"
            rows.append(row(said, planned, rate, unit="samples/s", learned=gpus == first))
    steps = {hosts: -(-50_000 // (16 * hosts)) for hosts in others.EPOCHS}
    known = learn([MeasuredRun(others.vit(n), others.EPOCHS[n] / steps[n]) for n in (1, 2)])
    for hosts, seconds in others.EPOCHS.items():
        planned = point(others.vit(hosts), others.IMAGES, known).total
        said = f"ViT-B/16, {hosts} RTX 3070"
        rows.append(row(said, planned, seconds, unit="s per epoch", learned=hosts < 3))
    return rows


def memory() -> list[Row]:
    """Others' peaks, in GiB; the example of a billion parameters in GB."""
    with pytest.MonkeyPatch.context() as patch:
        peak = test_fit.peak_of_opt_350m(patch)
    without = {"unit": "GB", "apart": "without activations"}
    rows = [
        row("opt-350m, fp16, 24 x 512, peak", peak / 2**30, 33.78, unit="GiB"),
        row("opt-350m, between steps", unit_states.held_of_opt_350m() / 2**30, 5.53, unit="GiB"),
        row("1 B parameters, fp32, ZeRO-1 on one rank", unit_states.held_of_a_billion() / 1e9, 22, **without),
    ]
    for said, planned in (
        ("plain", unit_fit.of_a_billion("ddp")),
        ("ZeRO-1", unit_fit.of_a_billion("deepspeed", 1)),
    ):
        apart = f"{100 * (planned / 22e9 - 1):+.1f} % beside a sum by hand"
        rows.append(row(f"1 B parameters, fp32, 1 x 96, {said}", planned / 1e9, 22, unit="GB", apart=apart))
    for name, (_, _, _, least, most, _) in test_fit.PUBLISHED_T5.items():  # without its fraction
        planned = test_fit.planned_t5(name)
        off = test_fit.outside(planned, least, most)
        said = f"{name}, fp32, 32 x (96, 96), checkpointed"
        rows.append({**row(said, planned, least, unit="GiB", whole=True), "error": off})
    return rows


def states() -> list[Row]:
    """Bytes that the fullest rank holds after a step; `worst`: of any rank, any kind of bytes over 1 %."""
    with tempfile.TemporaryDirectory() as folder:
        told = test_states.hold(Path(folder))
    rows = []
    for asked in test_states.CASES:
        found, worst = [], 0.0
        for rank, said in told[asked["name"]].items():
            planned = test_states.predicted(asked, rank, said)
            held = sum(planned.held.values()) + sum(planned.host.values())
            really = said["after"]["all"] - said["buffers"]
            found.append((held, really))
            for when, kinds in zip(("before", "after"), test_states.expected(planned), strict=True):
                for kind in test_states.KINDS:
                    there = said[when].get(kind, 0)
                    if there > really / 100:
                        worst = max(worst, abs(kinds.get(kind, 0) / there - 1))
        most = max(found, key=lambda pair: pair[1])
        more: Row = {"ranks": asked["ranks"], "asked": len(found), "worst": worst}
        if asked in test_states.TRACED:
            whole = test_states.peaks(asked, told[asked["name"]][0])
            more |= {"peak": row("peak", *whole)}
        rows.append(row(asked["name"], *most, unit="bytes", **more))
    return rows


def activations() -> list[Row]:
    """Bytes that autograd holds at the end of a forward pass of a real model, beside what was traced."""
    rows = []
    arithmetics = [("plain", kind, again) for kind in traced.TINY for again in (False, True)]
    for arithmetic, kind, again in [*arithmetics, ("autocast", "gpt2", False), ("autocast", "llama", False)]:
        how = {} if arithmetic == "plain" else {"arithmetic": arithmetic}
        request = traced.asked(kind, checkpointing=again, **how)
        trace, real = traced.traced(request), traced.Real(request)
        for samples in (1, 8):
            held, _ = real.saved(samples)
            name = f"{kind}{', checkpointed' if again else ''}{'' if not how else ', autocast'}"
            rows.append(row(name, trace.at(samples).saved, held, unit="bytes", samples=samples))
    return rows


def exchange() -> list[Row]:
    """Bytes of all operations of a step that two real ranks hand to each other; `calls`: planned, counted."""
    with tempfile.TemporaryDirectory() as folder:
        counted = test_traffic.count(Path(folder))
    rows = []
    for name in test_traffic.ALL:
        planned, really, _ = test_traffic.both(name, counted)
        sums = [sum(size for _, size in calls) for calls in (planned, really)]
        rows.append(row(name, *sums, unit="bytes", calls=[len(planned), len(really)]))
    return rows


TABLES: Mapping[str, Callable[[], list[Row]]] = {
    "runs": runs, "published": published, "memory": memory, "states": states, "activations": activations,
    "exchange": exchange,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*TABLES], default=[*TABLES])
    options = parser.parse_args()
    file = RESULTS / "planner.json"
    document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"tables": {}}
    for name in options.only:
        rows = TABLES[name]()
        if not rows:
            print(f"{name}: no data here; the page keeps its last rows")
            continue
        errors = [abs(each["error"]) for each in rows if not (each.get("learned") or each.get("apart"))]
        document["tables"][name] = {
            "rows": rows, "median": statistics.median(errors), "worst": max(errors),
            "processor": processor(), "python": platform.python_version(),
            "versions": {each: version(each) for each in ("torch", "transformers", "deepspeed")},
        }  # fmt: skip
        print(f"{name}: {len(rows)} rows, median {statistics.median(errors):.2%}, worst {max(errors):.2%}")
    file.write_text(json.dumps(document, indent=2) + "\n")
    planner_page.write(document)


if __name__ == "__main__":
    main()
