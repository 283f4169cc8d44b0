"""The tables of docs/planner.md, from what the planner's benchmarks wrote to benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "planner.md"
BEGIN = "<!-- Written by benchmarks/planner.py. -->"
END = "<!-- End of what benchmarks/planner.py writes. -->"

Row = Mapping[str, Any]


def off(error: float) -> str:
    """A share as per cent, with its sign."""
    return (
        "exact" if error == 0 else f"{100 * error:+.2f} %" if abs(error) < 0.01 else f"{100 * error:+.1f} %"
    )


def figure(value: float) -> str:
    """Bytes and counts whole, all else with four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def plain(rows: Iterable[Row]) -> list[str]:
    """What others measured."""
    lines = ["| run | | measured | planned | error |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        error = "learned from" if row.get("learned") else row.get("apart") or off(row["error"])
        measured = figure(row["measured"])
        if row.get("whole"):  # published without its fraction
            measured, error = f"{measured} ...", "within" if row["error"] == 0 else error
        lines.append(f"| {row['name']} | {row['unit']} | {measured} | {figure(row['planned'])} | {error} |")
    return lines


def of_states(rows: Iterable[Row]) -> list[str]:
    """One line an engine and precision."""
    lines = [
        "| engine, precision | ranks | largest error: all bytes held | a kind of them | a step's peak |",
        "| --- | --- | --- | --- | --- |",
    ]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        engine, precision = row["name"].split("-")[:2]
        groups.setdefault(f"{engine}, {precision}", []).append(row)
    for name, several in sorted(groups.items()):
        ranks = ", ".join(str(n) for n in sorted({row["ranks"] for row in several}))
        worst = max((row["error"] for row in several), key=abs)
        kind = max(row["worst"] for row in several)
        peaks = [row["peak"]["error"] for row in several if "peak" in row]
        peak = off(max(peaks, key=abs)) if peaks else ""
        lines.append(f"| {name} | {ranks} | {off(worst)} | {off(kind).lstrip('+')} | {peak} |")
    return lines


def of_activations(rows: Iterable[Row]) -> list[str]:
    """One line a model."""
    lines = ["| model | samples | held, bytes | planned | error |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        held, planned = figure(row["measured"]), figure(row["planned"])
        lines.append(f"| {row['name']} | {row['samples']} | {held} | {planned} | {off(row['error'])} |")
    return lines


def of_exchange(rows: Iterable[Row]) -> list[str]:
    """One line an engine and setting."""
    lines = [
        "| setting | exchanged, bytes | planned | error | calls, planned |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        planned, counted = row["calls"]
        lines.append(
            f"| {row['name']} | {figure(row['measured'])} | {figure(row['planned'])} | {off(row['error'])}"
            f" | {counted}, {planned} |"
        )
    return lines


def of_cluster(document: Mapping[str, Any]) -> list[str]:
    """Step times on the test cluster, and whether one host more is faster."""
    lines = [
        "| engine, hosts, link, accumulation | s per step | planned | error |",
        "| --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        figures = f"{row['measured']:.3f} | {row['predicted']:.3f}"
        lines.append(f"| {row['case']} | {figures} | {off(row['error'])} |")
    asked = [each["right"] for each in document["is_one_more_faster"] if each["right"] is not None]
    machine = document["machine"]
    lines += [
        "",
        f"Median error {document['median_error']:.1%}, worst {document['worst_error']:.1%}. Whether one host"
        f" more is faster was answered right {sum(asked)}\nof {len(asked)} times where it makes over 10 %."
        f" {machine['cores']} cores of {machine['cpu']}, {document['cores_of_a_host']} for each host.",
    ]
    return lines


def of_runs(rows: Iterable[Row]) -> list[str]:
    """One line a run, then the errors of each source, and what other estimators miss by."""
    rows = list(rows)
    lines = [
        "| run | on | s per step | planned (range) | error | GB | planned | error | EleutherAI |"
        " accelerate |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        time = ["", "", ""]
        if "step" in row:
            low, high = (figure(each) for each in row["range"])
            time = [
                figure(row["step"]),
                f"{figure(row['planned_step'])} ({low} to {high})",
                off(row["time_error"]),
            ]
        memory, planned = row["memory"], row["planned_memory"]
        known = "" if memory is None else f"{memory / 1e9:.1f}" if row["kind"] != "fits" else "fits"
        error = off(row["memory_error"]) if "memory_error" in row else ""
        if row["refused"]:
            error = "refused" if known == "fits" else f"{error}, refused"
        others = [
            "" if value is None else f"{value / 1e9:.0f}"
            for value in ((row["others"] or {}).get(name) for name in ("EleutherAI", "accelerate"))
        ]
        held = "" if planned is None else f"{planned / 1e9:.1f}"
        name = f"{row['id']}: {row['model']}, {row['what']}"
        cells = [name, row["on"].partition("{")[0], *time, known, held, error, *others]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| source | rows | time: median, worst | memory: median, lowest, highest | in the range |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for source in [*dict.fromkeys(row["source"] for row in rows), "all"]:
        some = [row for row in rows if source in (row["source"], "all")]
        time, memory = (sorted(r[k] for r in some if k in r) for k in ("time_error", "memory_error"))
        inside = [row["inside"] for row in some if "inside" in row]
        cells = [source, str(len(some)), "", "", f"{sum(inside)} of {len(inside)}" if inside else ""]
        if time:
            cells[2] = f"{median(map(abs, time)):.1%}, {max(map(abs, time)):.1%}"
        if memory:
            cells[3] = f"{median(map(abs, memory)):.1%}, {off(memory[0])}, {off(memory[-1])}"
        lines.append(f"| {' | '.join(cells)} |")
    return lines


WORDS = {
    "runs": ("Runs that others published, and ours on an H100, uncalibrated", of_runs),
    "published": ("Others' runs", plain),
    "memory": ("Others' memory", plain),
    "states": ("What ranks hold", of_states),
    "activations": ("What is kept for the backward pass", of_activations),
    "exchange": ("What two ranks hand to each other in a step", of_exchange),
}


def tables(document: Mapping[str, Any]) -> list[str]:
    """All of them, each with its median, worst and machine."""
    lines: list[str] = []
    for name, (title, lay_out) in WORDS.items():
        found = document["tables"].get(name)
        if found is None:
            continue
        with_versions = ", ".join(f"{each} {number}" for each, number in found["versions"].items())
        errors = f"Median error {found['median']:.2%}, worst {found['worst']:.2%}."
        said = f"{errors} {found['processor']}, {with_versions}."
        lines += [f"### {title}", "", *lay_out(found["rows"]), "", said, ""]
    cluster = RESULTS / "planner_cluster.json"
    if cluster.exists():
        found = json.loads(cluster.read_text())
        lines += ["### Step times on the test cluster", "", *of_cluster(found), ""]
    return lines


def write(document: Mapping[str, Any]) -> None:
    """Between the marks of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(
        f"{before}{BEGIN}\n\n" + "\n".join(tables(document)) + f"\n{END}{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    write(json.loads((RESULTS / "planner.json").read_text()))
