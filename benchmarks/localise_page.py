"""The tables and the plot of docs/judging.md, from what benchmarks/localise.py found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hardware import processor

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "localise.json"
PAGE = ROOT / "docs" / "judging.md"
PLOT = ROOT / "docs" / "judging.svg"

# Panels of the plot: a bar of ours, and what the same is called where ways are compared.
PANELS = (
    ("one host 5 % slow, card", "one card 5 %"),
    ("three hosts 2 % slow, either", "three hosts 2 %"),
    ("one link of the ring 5 % slow", "one link 5 %"),
)
COLOURS = ("#1f6fb4", "#c8641e", "#7a5195", "#3b8f4a")
WIDTH, HEIGHT, LEFT, TOP = 270, 190, 44, 34


def share(value: float) -> str:
    """A share as per cent, as exactly as it is known."""
    return f"{100 * value:.2f} %"


def bars(rows: list[dict[str, Any]]) -> list[str]:
    """Planned and achieved."""
    lines = [
        "| planted, 64 hosts | fleets | waves allowed | bar | exactly that accused | and its kind said"
        " | good hosts accused | waves used |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        bar = "" if row["least"] is None else f">= {100 * row['least']:g} %"
        lines.append(
            f"| {row['name']} | {row['fleets']:,} | {row['waves']} | {bar} | {share(row['solved'])}"
            f" | {share(row['and its kind'])} | {100 * row['healthy hosts accused']:.4f} %"
            f" | {row['mean waves']:.2f} |"
        )
    return lines


def compared(rows: list[dict[str, Any]]) -> list[str]:
    """Ways beside each other."""
    lines = [
        "| planted | way | exactly that accused | good hosts accused per fleet | waves | jobs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['planted']} | {row['way']} | {share(row['solved'])}"
            f" | {row['good hosts accused per fleet']:.3f} | {row['waves']:.1f} | {row['jobs']:,.0f} |"
        )
    return lines


def scaled(rows: list[dict[str, Any]]) -> list[str]:
    """Large fleets."""
    lines = [
        "| hosts | three hosts slow by | fleets | solved | named after, median (worst) | nothing left after"
        " | a wave takes at most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        worst = row["named after waves (worst)"]
        longest = max(0.01, row["seconds of a wave (worst)"])  # as it was rounded
        lines.append(
            f"| {row['hosts']:,} | {100 * row['slow by']:g} % | {row['fleets']} | {share(row['solved'])}"
            f" | {row['named after waves (median)']} ({'never' if worst == 99 else worst})"
            f" | {row['nothing left after waves (median)']} | {longest} s |"
        )
    return lines


def plot(document: dict[str, Any]) -> str:
    """Share of fleets solved over waves (logarithmic), a panel per fault: ours as a line, others as dots."""
    ways = list(dict.fromkeys(row["way"] for row in document["compared"]))
    colour = dict(zip([ways[-1], *ways[:-1]], COLOURS, strict=True))
    total = len(PANELS) * (WIDTH + LEFT) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {HEIGHT + TOP + 78}"'
        ' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for number, (bar, fault) in enumerate(PANELS):
        x0 = LEFT + number * (WIDTH + LEFT)
        parts.append(_frame(x0, fault))
        row = next(each for each in document["bars"] if each["name"] == bar)
        points = [(wave, value) for wave, value in enumerate(row["solved after wave"], 1)]
        path = " ".join(f"{_x(x0, wave):.1f},{_y(value):.1f}" for wave, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
        parts += [_dot(_x(x0, wave), _y(value), COLOURS[0]) for wave, value in points]
        for each in document["compared"]:
            if each["planted"] == fault and each["way"] != ways[-1]:
                parts.append(_dot(_x(x0, each["waves"]), _y(each["solved"]), colour[each["way"]], 5))
    for number, way in enumerate([ways[-1], *ways[:-1]]):
        x, y = LEFT + 10 + (number % 2) * 420, TOP + HEIGHT + 48 + 18 * (number // 2)
        parts.append(_dot(x, y - 4, colour[way], 4) + f'<text x="{x + 10}" y="{y}">{way}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _x(left: float, wave: float) -> float:
    return left + 8 + (WIDTH - 16) * math.log(wave) / math.log(64)


def _y(value: float) -> float:
    return TOP + HEIGHT * (1 - value)


def _dot(x: float, y: float, colour: str, size: float = 3) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>'


def _frame(left: float, title: str) -> str:
    """Axes of a panel."""
    lines = [f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{title}: share of fleets solved</text>']
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = _y(value)
        lines.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:.0%}</text>')
    for wave in (1, 2, 3, 4, 6, 10, 20, 63):
        x = _x(left, wave)
        lines.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{wave}</text>')
    lines.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 29}" text-anchor="middle">waves</text>')
    return "\n".join(lines)


def write(document: dict[str, Any], *, save: bool) -> None:
    """Print the tables; with `save`, keep them: JSON, plot, and the page between its marks."""
    tables = {
        "bars": bars(document["bars"]),
        "compared": compared(document["compared"]),
        "scale": scaled(document["scale"]),
    }
    for lines in tables.values():
        print("\n".join(["", *lines]))
    if not save:
        return
    document = {**document, "processor": processor()}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    PLOT.write_text(plot(document))
    text = PAGE.read_text()
    for name, lines in tables.items():
        before, rest = text.split(f"<!-- {name} -->\n", 1)
        after = rest.split(f"<!-- end of {name} -->", 1)[1]
        text = "\n".join([f"{before}<!-- {name} -->", *lines, f"<!-- end of {name} -->{after}"])
    PAGE.write_text(text)
