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

PLAIN = "Gaussian"  # the noise of what is shown of one noise only
PANELS = ("one host 5 % slow, card", "three hosts 2 % slow, either", "one link of the ring 5 % slow")
SIDE_BY_SIDE = (*PANELS, "one host 2 % slow, card")  # with others' ways; localise.json has all
OURS = "Muster"
COLOURS = ("#1f6fb4", "#c8641e", "#7a5195", "#3b8f4a", "#b03060", "#777777", "#c9a227")
WIDTH, HEIGHT, LEFT, TOP = 270, 190, 44, 34

Row = dict[str, Any]


def share(value: float) -> str:
    """A share as per cent, as exactly as it is known."""
    return f"{100 * value:.2f} %"


def known(row: Row) -> str:
    """A share and half of the width of its interval of 95 %."""
    low, high = row["interval"]
    return f"{100 * row['solved']:.1f} ± {50 * (high - low):.1f}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Markdown."""
    return ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *rows)]


def by_noise(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """Bars that are held under several kinds of noise: name -> noise -> row."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["name"], {})[row["model"]] = row
    return {name: of for name, of in found.items() if len(of) > 1}


def bars(document: Row) -> list[str]:
    """Bars by noise; bold where one is missed."""
    models, wrong = document["models"], document["wrong"]
    lines = []
    rows = by_noise(document["bars"])
    for name, of in rows.items():
        asked = list(dict.fromkeys(of[model]["least"] for model in models))
        bar = " / ".join("-" if each is None else f"{100 * each:g}" for each in asked)
        cells = [f"**{known(of[m])}**" if of[m]["missed"] else known(of[m]) for m in models]
        lines.append([name, str(of[models[0]]["waves"]), bar, *cells])
    worst = [max(of[model]["healthy hosts accused"] for of in rows.values()) for model in models]
    cells = [f"**{100 * each:.4f}**" if each >= wrong else f"{100 * each:.4f}" for each in worst]
    lines.append(["healthy hosts accused, in the worst row", "", f"< {100 * wrong:g}", *cells])
    return table(["planted, 64 hosts; % of fleets", "waves", "bar", *models], lines)


def besides(document: Row) -> list[str]:
    """What is held under one noise only."""
    several = by_noise(document["bars"])
    return table(
        [
            "planted, 64 hosts",
            "fleets",
            "waves",
            "bar",
            "exactly that",
            "and its kind",
            "good accused",
            "used",
        ],
        [
            [
                row["name"],
                f"{row['fleets']:,}",
                str(row["waves"]),
                "" if row["least"] is None else f"{100 * row['least']:g} %",
                f"**{known(row)}**" if row["missed"] else known(row),
                share(row["and its kind"]),
                f"{100 * row['healthy hosts accused']:.4f} %",
                f"{row['mean waves']:.2f}",
            ]
            for row in document["bars"]
            if row["name"] not in several
        ],
    )


def ways(document: Row, name: str) -> dict[str, dict[str, Row]]:
    """Ours and the others' rows of what is planted: way -> noise -> row."""
    found = {OURS: by_noise(document["bars"])[name]}
    for row in document["compared"]:
        if row["name"] == name:
            found.setdefault(row["way"], {})[row["model"]] = row
    return found


def compared(document: Row) -> list[str]:
    """Ways beside each other, by noise; in brackets, how many hosts of healthy fleets are accused."""
    healthy = by_noise(document["bars"])["healthy"]
    models, lines = document["models"], []
    for name in SIDE_BY_SIDE:
        for way, of in ways(document, name).items():
            first = of[models[0]]
            waves = f"{first.get('waves', 0) if way != OURS else first['mean waves']:.1f}"
            jobs = f"{first['jobs' if way != OURS else 'mean jobs']:,.0f}"
            good = healthy if way == OURS else of
            cells = [
                f"{known(of[model])} ({100 * good[model]['healthy hosts accused']:.2f})" for model in models
            ]
            lines.append([name, way, *cells, waves, jobs])
    return table(["planted; % of fleets", "way", *models, "waves", "jobs"], lines)


def behind(document: Row) -> list[str]:
    """Where another way is better than ours, by more than chance: its interval lies above ours."""
    found, columns = [], 0
    for name in dict.fromkeys(row["name"] for row in document["compared"]):
        ours, *others = ways(document, name).items()
        columns += len(document["models"])
        for model in document["models"]:
            mine = ours[1][model]
            better = [
                (way, of[model]) for way, of in others if of[model]["interval"][0] > mine["interval"][1]
            ]
            found += [[name, model, way, known(row), known(mine)] for way, row in better]
    lost = len({(name, model) for name, model, *_ in found})
    said = f"Of {columns} faults under a noise, another way is ahead of ours in {lost} by more than chance"
    if not found:
        return [f"{said}."]
    return [f"{said}:", "", *table(["planted", "noise", "way", "% of fleets", OURS], found)]


def waves(document: Row) -> list[str]:
    """After which wave it is named."""
    rows = [of[PLAIN] for of in by_noise(document["bars"]).values() if of[PLAIN]["name"] != "healthy"]
    most = max(row["waves"] for row in rows)
    lines = []
    for row in rows:
        after = [share(each) for each in row["solved after wave"]]
        lines.append([row["name"], *after, *[""] * (most - len(after))])
    return table(["planted", *[f"wave {wave}" for wave in range(1, most + 1)]], lines)


def scaled(rows: list[Row]) -> list[str]:
    """Large fleets."""
    lines = []
    for row in rows:
        worst = row["named after waves (worst)"]
        longest = max(0.01, row["seconds of a wave (worst)"])  # as it was rounded
        lines.append(
            [
                f"{row['hosts']:,}",
                f"{100 * row['slow by']:g} %",
                str(row["fleets"]),
                share(row["solved"]),
                f"{row['named after waves (median)']} ({'never' if worst == 99 else worst})",
                str(row["nothing left after waves (median)"]),
                f"{longest} s",
            ]
        )
    head = ["hosts", "three hosts slow by", "fleets", "solved", "named after, median (worst)"]
    return table([*head, "nothing left after", "a wave takes at most"], lines)


def plot(document: Row) -> str:
    """Share of fleets solved over waves (logarithmic), a panel per fault: ours as a line, others as dots."""
    names = list(ways(document, PANELS[0]))
    colour = dict(zip(names, COLOURS, strict=True))
    total = len(PANELS) * (WIDTH + LEFT) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {HEIGHT + TOP + 114}"'
        ' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for number, name in enumerate(PANELS):
        x0 = LEFT + number * (WIDTH + LEFT)
        parts.append(_frame(x0, name))
        of = ways(document, name)
        points = [(wave, value) for wave, value in enumerate(of[OURS][PLAIN]["solved after wave"], 1)]
        path = " ".join(f"{_x(x0, wave):.1f},{_y(value):.1f}" for wave, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
        parts += [_dot(_x(x0, wave), _y(value), COLOURS[0]) for wave, value in points]
        for way in names[1:]:
            row = of[way][PLAIN]
            parts.append(_dot(_x(x0, row["waves"]), _y(row["solved"]), colour[way], 5))
    for number, way in enumerate(names):
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
    lines = [f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{title}</text>']
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = _y(value)
        lines.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:.0%}</text>')
    for wave in (1, 2, 3, 4, 6, 10, 20, 63):
        x = _x(left, wave)
        lines.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{wave}</text>')
    x, label = left + WIDTH / 2, "waves; share of fleets solved"
    lines.append(f'<text x="{x}" y="{TOP + HEIGHT + 29}" text-anchor="middle">{label}</text>')
    return "\n".join(lines)


def write(document: Row, *, save: bool) -> None:
    """Print the tables of a whole measurement; with `save`, keep them: JSON, plot, and the page between its
    marks."""
    tables = {
        "bars": bars(document),
        "besides": besides(document),
        "waves": waves(document),
        "compared": compared(document),
        "behind": behind(document),
        "scale": scaled(document["scale"]),
    }
    for lines in tables.values():
        print("\n".join(["", *lines]))
    if not save:
        return
    document = {**document, "processor": processor()}
    RESULTS.write_text(json.dumps(document).replace('{"name"', '\n {"name"') + "\n")  # a row, a line
    PLOT.write_text(plot(document))
    text = PAGE.read_text()
    for name, lines in tables.items():
        before, rest = text.split(f"<!-- {name} -->\n", 1)
        after = rest.split(f"<!-- end of {name} -->", 1)[1]
        text = "\n".join([f"{before}<!-- {name} -->", *lines, f"<!-- end of {name} -->{after}"])
    PAGE.write_text(text)
