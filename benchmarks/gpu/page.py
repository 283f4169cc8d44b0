"""The page of what was measured. What was not is left out."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.kit import Results

GROUPS = ("proof", "memory", "ceiling", "speed", "cost")
Pieces = dict[str, dict[str, Any]]


def page(results: Results) -> str:
    """Markdown: the machine, then a section for each group that has results."""
    parts: list[str] = []
    for group in GROUPS:
        found = results.read(group)
        if found["pieces"]:
            if not parts:
                parts += ["# On a GPU", *_machine(found["machine"])]
            parts += [f"## {group.capitalize()}", *_status(found["pieces"])]
            parts += {"memory": _memory, "ceiling": _ceiling}.get(group, _nothing)(found["pieces"])
    return "\n\n".join(parts) + "\n" if parts else "# On a GPU\n\nNothing was measured.\n"


def _machine(machine: dict[str, Any]) -> list[str]:
    names = ", ".join(machine.get("gpus") or []) or f"no GPU: {machine['processor']}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    driver = f"Driver and limits: {machine['nvidia_smi']}. " if machine.get("nvidia_smi") else ""
    return [
        f"Measured on {names}, {machine['cores']} cores, Python {machine['python']}, {versions}.",
        f"{driver}By `python -m benchmarks.gpu run`; `python -m benchmarks.gpu page DIR` writes this page.",
    ]


def _status(pieces: Pieces) -> list[str]:
    """How many passed; each that did not, with the last line of what it said."""
    passed = [name for name, entry in pieces.items() if entry["status"] == "passed"]
    lines = [f"{len(passed)} of {len(pieces)} pieces passed."]
    for name, entry in pieces.items():
        if entry["status"] != "passed":
            why = entry.get("error", "").strip().rpartition("\n")[2][:200]
            lines.append(f"- {name}: {entry['status']}: {why}")
    return [lines[0], *(["\n".join(lines[1:])] if lines[1:] else [])]


def _nothing(_: Pieces) -> list[str]:
    return []


def _memory(pieces: Pieces) -> list[str]:
    rows = [entry["figures"] for entry in pieces.values() if entry["status"] == "passed"]
    if not rows:
        return []
    table = [
        "| point | planned | measured | error | accelerate | DeepSpeed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        peers = [row["peers"][name] for name in ("accelerate", "deepspeed")]
        shown = [f"{each / row['measured_bytes'] - 1:+.0%}" if each else "" for each in peers]
        sizes = [f"{row[key] / 1e9:.2f} GB" for key in ("planned_bytes", "measured_bytes")]
        cells = [" ".join(str(part) for part in row["point"]), *sizes, f"{row['memory_error']:+.1%}", *shown]
        table.append(f"| {' | '.join(cells)} |")
    errors = [abs(row["memory_error"]) for row in rows]
    lines = [
        f"Memory: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}.",
        "\n".join(table),
    ]
    times = step_errors(rows)
    if times:
        told = f"median error {statistics.median(times):.1%}, worst {max(times):.1%}"
        lines.insert(1, f"Step times, predicted from the first point of each precision: {told}.")
    return lines


def step_errors(rows: list[dict[str, Any]]) -> list[float]:
    """Relative errors of the steps' times, each predicted from the first run of its precision."""
    from pydantic import TypeAdapter

    from muster.planner.time.learning import MeasuredRun, learn
    from muster.planner.time.steptime import Calibration, predict

    read = TypeAdapter(MeasuredRun)
    first: dict[str, MeasuredRun] = {}
    errors = []
    for row in rows:
        found = read.validate_python(row["run"])
        known = first.setdefault(found.case.precision, found)
        if known is not found:
            predicted = predict(found.case, learn([known], Calibration())).seconds
            errors.append(abs(predicted / found.seconds - 1))
    return errors


def _ceiling(pieces: Pieces) -> list[str]:
    rows = []
    for name, entry in pieces.items():
        for size, rate in (entry.get("figures") or {}).get("flops_per_second", {}).items():
            shown = f"{rate['best'] / 1e12:.1f} | {rate['median'] / 1e12:.1f} | {rate['spread']:.1%}"
            rows.append(f"| {name.removeprefix('matmul-')} | {size} | {shown} |")
    head = "| precision | size | best, TFLOP/s | median | spread |\n| --- | --- | --- | --- | --- |\n"
    lines = [head + "\n".join(rows)] if rows else []
    for name, keys in (("copy", ("bytes_per_second",)), ("host", ("to_device", "to_host"))):
        figures = (pieces.get(name) or {}).get("figures") or {}
        for key in keys:
            if key in figures:
                rate = figures[key]
                lines.append(
                    f"{name}, {key.replace('_', ' ')}: best {rate['best'] / 1e9:.0f} GB/s, median "
                    f"{rate['median'] / 1e9:.0f}, spread {rate['spread']:.1%}."
                )
    return lines
