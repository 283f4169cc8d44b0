"""The page of what was measured. What was not is left out."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.kit import Results

GROUPS = ("proof", "memory", "ceiling", "profile", "speed", "cost")
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
            parts += SECTIONS.get(group, _nothing)(found["pieces"])
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


def _profile(pieces: Pieces) -> list[str]:
    """Where a step goes, in the lines that a user reads: of a row, and of its peer where that was traced."""
    from muster.core.profile import StepProfile

    parts = []
    for name, figures in _measured(pieces):
        for side in ("muster", "peer"):
            if side in figures:
                lines = [f"- {each}: {text}" for each, text in StepProfile(**figures[side]).lines]
                parts.append("\n".join([f"{name}, {side}:\n", *lines]))
    return parts


def _speed(pieces: Pieces) -> list[str]:
    """A row for each piece: medians of the rounds, the rounds' ratios, and the bars."""
    rows = []
    for name, figures in _measured(pieces):
        cells = [name]
        for side, mfu in (("muster", "mfu"), ("peer", "peer_mfu")):
            cells += [_side(figures[side]), _percent(figures.get(mfu))]
        rows.append([*cells, _ratio(figures.get("ratio")), _bars(figures["bars"]), figures["published"]])
    if not rows:
        return []
    head = ["work", "Muster, samples/s", "MFU", "peer, samples/s", "MFU", "ratio", "bars", "the peer"]
    told = (
        "Medians of the rounds, and the lowest and highest ratio. Every model starts from random weights. "
        "MFU: of the maker's peak."
    )
    return [told, _table(head, rows)]


def _cost(pieces: Pieces) -> list[str]:
    rows = []
    for name, figures in _measured(pieces):
        if name == "start":
            found = figures["clock"]
            what = ", ".join(f"{side} {found[side]['median']:.2f} s" for side in ("muster", "torchrun"))
        elif "waits" in figures:
            what = f"{figures['per_step']:.2g} waits for the device in a step, {figures['steps']} steps"
            what += "".join(f"; {place}: {times}" for place, times in list(figures["places"].items())[:3])
        else:
            steps, spread = figures["milliseconds_per_step"], figures["muster_to_trainer"]
            what = (
                f"{steps['trainer']['median']:.2f} ms a step without instruments, "
                f"{steps['muster']['median']:.2f} with them, {figures['precision']}; quartiles of the cost "
                f"{1 / spread['upper_quartile'] - 1:+.1%} and {1 / spread['lower_quartile'] - 1:+.1%}"
            )
        rows.append([name, what, _bars(figures["bars"])])
    return [_table(["piece", "measured", "bars"], rows)] if rows else []


def _measured(pieces: Pieces) -> list[tuple[str, dict[str, Any]]]:
    return [(name, entry["figures"]) for name, entry in pieces.items() if entry["status"] == "passed"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _side(runs: list[dict[str, Any]]) -> str:
    """Samples per second, with batch and precision; nothing where it was not run."""
    if not runs:
        return ""
    rate = statistics.median(run["samples_per_second"] for run in runs)
    return f"{rate:,.1f} (batch {runs[0]['batch']}, {runs[0]['precision']})"


def _percent(found: dict[str, float] | None) -> str:
    return f"{found['median']:.1%}" if found else ""


def _ratio(found: dict[str, float] | None) -> str:
    return f"{found['median']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})" if found else ""


BARS = {
    "ratio": "ratio", "mfu": "MFU", "held_out_loss": "held-out loss", "cost": "cost", "per_step": "waits",
}  # fmt: skip


def _bars(bars: dict[str, Any]) -> str:
    """Each bar, and whether it was met."""
    shown = []
    for name, one in bars.items():
        found = "not known" if one["found"] is None else f"{one['found']:.3g}"
        met = {None: "", True: ": met", False: ": not met"}[one["met"]]
        shown.append(f"{BARS[name]} {found}, bar {one['bar']:.3g}{met}")
    return "; ".join(shown)


SECTIONS = {"memory": _memory, "ceiling": _ceiling, "profile": _profile, "speed": _speed, "cost": _cost}
