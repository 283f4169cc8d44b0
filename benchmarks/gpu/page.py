"""The page of what was measured: on what, with which code, and what missed its bar. What was not is named."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.kit import GROUPS as ORDER
from benchmarks.gpu.kit import Results
from benchmarks.gpu.pieces import pieces as every_piece

GROUPS = (*ORDER, "extra")  # by hand, beside the kit's
Pieces = dict[str, dict[str, Any]]
FAILED = ("failed", "timed out")
INTRODUCTION = (
    "By `python -m benchmarks.gpu run`; `python -m benchmarks.gpu page DIR` writes this page from its files. "
    "Of a piece that shared the GPU with others no figure of the whole device is shown, and times where it "
    "was timed alone: all sides of a row warm up together, and one of them trains at a time."
)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def page(*machines: Results) -> str:
    """Markdown: for each machine what missed its bar, and a section for each group that has results."""
    every = [
        {group: read for group in GROUPS if (read := results.read(group))["pieces"]} for results in machines
    ]
    if not any(every):
        return "# On a GPU\n\nNothing was measured.\n"
    parts = ["# On a GPU", INTRODUCTION]
    for groups in sorted(filter(None, every), key=_latest, reverse=True):
        gpu = next(iter(groups.values()))["machine"].get("gpus") or ["No GPU"]
        parts += [f"## {gpu[0]}", *_machines(groups), "### Missed", *_missed(groups)]
        for group, read in groups.items():
            parts += [f"### {group.capitalize()}", *_status(read["pieces"])]
            parts += SECTIONS.get(group, _nothing)(read["pieces"])
    parts += ["## Not measured", *_lacking(every)]
    return "\n\n".join(wrapped(part) for part in parts) + "\n"


def _latest(groups: Mapping[str, dict[str, Any]]) -> float:
    """When the last piece of a machine began."""
    entries = [entry for read in groups.values() for entry in read["pieces"].values()]
    return max(float(entry.get("began", 0.0)) for entry in entries)


def wrapped(text: str) -> str:
    """Paragraphs and lists in lines of 120 characters; tables as they are."""
    return "\n".join(
        line if line.startswith("|") else textwrap.fill(
            line, 120, subsequent_indent="  " if line.startswith("- ") else "", break_on_hyphens=False,
            break_long_words=False,
        )
        for line in text.splitlines()
    )  # fmt: skip


def _machines(groups: Mapping[str, dict[str, Any]]) -> list[str]:
    """A paragraph for each machine, with the groups that were measured on it."""
    described: dict[str, list[str]] = {}
    for group, read in groups.items():
        versions = sorted({str(entry.get("commit")) for entry in read["pieces"].values()} - {"None"})
        code = f" Code: {', '.join(versions)}." if versions else ""
        described.setdefault(_machine(read["machine"]) + code, []).append(group)
    return [f"{', '.join(names).capitalize()}: {text}" for text, names in described.items()]


def _machine(machine: dict[str, Any]) -> str:
    names = ", ".join(machine.get("gpus") or []) or f"no GPU, {machine['processor']}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    driver = f" nvidia-smi: {machine['nvidia_smi']}." if machine.get("nvidia_smi") else ""
    return f"{names}, {machine['cores']} cores, Python {machine['python']}, {versions}.{driver}"


def _missed(groups: Mapping[str, dict[str, Any]]) -> list[str]:
    """Every bar that was not met, and every piece that failed."""
    rows = []
    for group, read in groups.items():
        for name, entry in read["pieces"].items():
            if entry["status"] in FAILED:
                rows.append([f"{group}/{name}", _why(entry), "passes"])
            for what, bar in (entry.get("figures") or {}).get("bars", {}).items():
                if bar["met"] is False:
                    rows.append([f"{group}/{name}", f"{BARS[what]} {bar['found']:.3g}", f"{bar['bar']:.3g}"])
    return [_table(["piece", "measured", "bar"], rows)] if rows else ["Nothing of what was measured."]


def _lacking(machines: Sequence[Mapping[str, dict[str, Any]]]) -> list[str]:
    """Pieces of the kit that did not come to an end yet on any machine."""
    lacking: dict[str, list[str]] = {}
    for piece in every_piece():
        entries = [
            groups[piece.group]["pieces"].get(piece.name) for groups in machines if piece.group in groups
        ]
        if all(entry is None or entry["status"] == "cut short" for entry in entries):
            lacking.setdefault(piece.group, []).append(piece.name)
    lines = [f"- {group}: {', '.join(names)}" for group, names in lacking.items()]
    return ["\n".join(lines)] if lines else ["Each piece came to its end."]


def _why(entry: dict[str, Any]) -> str:
    """The last line of what it said, and what is known of it."""
    said = entry.get("error", "").strip().rpartition("\n")[2][:200].strip().rpartition("jobs.Failed: ")[2]
    return ". ".join(part.rstrip(".") for part in (said, entry.get("note", "")) if part).replace("|", "/")


def _status(pieces: Pieces) -> list[str]:
    """How many passed; what is to be said of them, and why others were not run. Failures stand above."""
    passed = [name for name, entry in pieces.items() if entry["status"] == "passed"]
    lines = [
        f"- {name}: {entry['status']}: {_why(entry)}"
        for name, entry in pieces.items()
        if entry["status"] not in ("passed", *FAILED) or (entry["status"] == "passed" and entry.get("note"))
    ]
    return [f"{len(passed)} of {len(pieces)} pieces passed.", *(["\n".join(lines)] if lines else [])]


def _nothing(_: Pieces) -> list[str]:
    return []


def _proof(pieces: Pieces) -> list[str]:
    """How far each engine's losses are from ddp's in fp32, by precision."""
    apart: dict[str, dict[str, str]] = {}
    for name, figures in _measured(pieces):
        engine, _, precision = name.rpartition("-")
        if precision in PRECISIONS and isinstance(figures.get("apart"), list):
            most = max(figures["apart"])
            apart.setdefault(engine, {})[precision] = f"{most:.1e}" if most else "0"
    rows = [[engine, *(by.get(each, "") for each in PRECISIONS)] for engine, by in apart.items()]
    if not rows:
        return []
    said = "The larger of the relative differences of the first and the last loss from ddp's in fp32."
    return [said, _table(["engine", *PRECISIONS], rows)]


def _memory(pieces: Pieces) -> list[str]:
    """Planned beside measured, of the whole device where a point was alone on it, and of the allocator."""
    rows = [figures for _, figures in _measured(pieces)]
    if not rows:
        return []
    cells = []
    for row in rows:
        measured, peers = row["measured_bytes"], row["peers"]
        shown = [
            f"{peers[name] / measured - 1:+.0%}" if peers[name] and measured else ""
            for name in ("accelerate", "deepspeed")
        ]
        allocated = [_gigabytes(row["allocator_peak"]), _signed(row.get("allocator_error"))]
        whole = [_gigabytes(row["planned_bytes"]), _gigabytes(measured), _signed(row["memory_error"])]
        cells.append([" ".join(str(part) for part in row["point"]), *whole, *allocated, *shown])
    head = ["point", "planned", "device", "error", "allocator", "error", "accelerate", "DeepSpeed"]
    lines = []
    for what, key in (
        ("Memory of the device", "memory_error"),
        ("Memory of the allocator", "allocator_error"),
        ("Step times, predicted from the first point of each precision", "step_error"),
    ):
        errors = [abs(row[key]) for row in rows if row.get(key) is not None]
        if errors:
            lines.append(f"{what}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}.")
    return [*lines, _table(head, cells)]


def _gigabytes(size: float | None) -> str:
    return f"{size / 1e9:.2f} GB" if size else ""


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _levers(pieces: Pieces) -> list[str]:
    """A table for each shape: what each variant takes, and of the first one's time."""
    parts = []
    for name, figures in _measured(pieces):
        first = next((row["milliseconds"] for row in figures["rows"] if "milliseconds" in row), None)
        rows = []
        for row in figures["rows"]:
            if "error" in row:
                rows.append([row["lever"], row["error"].replace("|", "/")[:120], *[""] * 5])
                continue
            share = row.get("busy_milliseconds")
            rows.append([
                row["lever"], f"{row['milliseconds']:.1f} ms", f"{first / row['milliseconds']:.2f}",
                f"{row['mfu']:.1%}" if row["mfu"] else "", _gigabytes(row["allocator_peak"]),
                f"{share / row['milliseconds']:.0%}" if share else "", f"{row['loss']:.4f}",
            ])  # fmt: skip
        parts += [f"{name}, batch {figures['batch']} x {figures['sequence']}, torch {figures['torch']}:"]
        head = ["variant", "step", "faster", "MFU", "allocator", "GPU busy", "loss"]
        parts.append(_table(head, rows))
    return parts


def _extra(pieces: Pieces) -> list[str]:
    """What was run by hand."""
    lines = []
    for name, figures in _measured(pieces):
        if "allocator_peak" in figures:
            size = _gigabytes(figures["allocator_peak"])
            what = f"{figures['status']}, {figures['precision']}, {size} allocated"
        elif "control" in name:
            what = f"two whole runs of 60 steps end {figures['apart']:.1e} apart"
        else:
            fine, hang = figures["fine"], figures["hang"]
            what = f"{fine['status']} in {fine['seconds']:.0f} s; one that hangs is ended after "
            what += f"{hang['seconds']:.0f} s: {hang['hang']['what']}"
        lines.append(f"- {name}: {what}")
    return ["\n".join(lines)]


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
        usual = [(figures.get(side) or {}).get("usual_seconds") for side in ("muster", "peer")]
        if all(usual):
            mine, peers = usual
            parts.append(
                f"{name}: {1e3 * mine:.1f} ms a step before the profiler ran, the peer {1e3 * peers:.1f} ms: "
                f"ratio {peers / mine:.2f}."
            )
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
        for change, one in figures.get("also", {}).items():
            side = ["", ""] if "error" in one else [_side([one]), f"{one['mfu']:.1%}" if one["mfu"] else ""]
            rows.append([f"{name}, {change}", *side, *[""] * 5])
    if not rows:
        return []
    head = ["work", "Muster, samples/s", "MFU", "peer, samples/s", "MFU", "ratio", "bars", "the peer"]
    told = (
        "Medians of the rounds, and the lowest and highest ratio. Every model starts from random weights. "
        "MFU: of the maker's peak."
    )
    return [told, _table(head, rows), *_planned(pieces)]


def _planned(pieces: Pieces) -> list[str]:
    """What was planned beside what was measured, of each round."""
    rows = []
    for name, figures in _measured(pieces):
        for one in figures["muster"]:
            if not one.get("planned"):
                continue
            seconds = [one["planned"]["step_seconds"], one["step_seconds"]]
            memory = one["memory"]
            sizes = [one["planned"]["memory"], memory.get("device_peak"), memory["allocator_peak"]]
            waited = one.get("data_share")
            rows.append([
                name, *(f"{1e3 * each:.0f} ms" if each else "" for each in seconds), *map(_gigabytes, sizes),
                "" if waited is None else f"{waited:.1%}",
            ])  # fmt: skip
    head = ["run", "step, planned", "measured", "device, planned", "measured", "allocator", "without a batch"]
    return [_table(head, rows)] if rows else []


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
    if not found:
        return ""
    spread = (
        f" ({found['lowest']:.2f} to {found['highest']:.2f})" if found["lowest"] < found["highest"] else ""
    )
    return f"{found['median']:.2f}{spread}"


BARS = {
    "ratio": "ratio", "mfu": "MFU", "held_out_loss": "held-out loss", "cost": "cost", "per_step": "waits",
    "data_share": "share of the time without a batch",
}  # fmt: skip


def _bars(bars: dict[str, Any]) -> str:
    """Each bar, and whether it was met."""
    shown = []
    for name, one in bars.items():
        found = "not known" if one["found"] is None else f"{one['found']:.3g}"
        met = {None: "", True: ": met", False: ": not met"}[one["met"]]
        shown.append(f"{BARS[name]} {found}, bar {one['bar']:.3g}{met}")
    return "; ".join(shown)


SECTIONS = {
    "proof": _proof, "memory": _memory, "ceiling": _ceiling, "levers": _levers, "profile": _profile,
    "speed": _speed,
    "cost": _cost, "extra": _extra,
}  # fmt: skip
