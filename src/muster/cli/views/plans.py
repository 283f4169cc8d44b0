"""A plan for a person."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.cli.output import out_console, table
from muster.cli.views.results import print_figures
from muster.core.job import FASTEST, WARNINGS
from muster.core.units import counted, format_bytes, format_number, format_seconds
from muster.planner.document import Plan
from muster.results.plan_figures import plan_figures

SHORT = {
    "engine.zero": "zero",
    "engine.sync_each_batch": "sync",
    "train.gradient_checkpointing": "checkpointing",
    "batch.micro": "micro",
    "launch.hosts": "hosts",
}

NOTED = (FASTEST, "engine.config", "engine.options")  # of the last two: what has no effect


def print_plan(plan: Plan) -> None:
    """Print figures, alternatives, scaling, the verdict, and notes."""
    console = out_console()
    print_figures(console, plan_figures(plan))
    if plan.candidates:
        _candidates(console, plan)
    if len(plan.scaling) > 1:
        _scaling(console, plan)
    if plan.sentence:
        console.print(f"\n{escape(plan.sentence)}")
    for each in plan.decisions:
        words = f"{each['field']} {each['value']}: {each['why']}"
        if each["value"] in WARNINGS:
            console.print(f"[yellow]warning[/yellow]  {escape(words)}")
        elif each["field"] in NOTED:
            console.print(f"[yellow]note[/yellow]  {escape(words)}")
    for way in plan.would_fit:
        console.print(f"[yellow]would fit[/yellow]  {escape(way)}")
    for way in plan.roomier:
        console.print(f"[yellow]more room[/yellow]  {escape(way)}")
    for note in plan.notes:
        console.print(f"[yellow]note[/yellow]  {escape(note)}")


def _candidates(console: Console, plan: Plan) -> None:
    made = Table(box=None, padding=(0, 2), title="Compared settings", title_justify="left")
    for name in ("", "memory", "samples/s", ""):
        made.add_column(name, justify="right" if name else "left")
    for each in sorted(plan.candidates, key=lambda each: (not each.fits, -(each.samples_per_second or 0))):
        speed = format_number(each.samples_per_second) if each.samples_per_second else ""
        style = "bold green" if each.chosen else "" if each.fits else "dim"
        memory = format_bytes(each.memory) if each.memory else ""
        made.add_row(_words(each.changes), memory, speed, each.why, style=style)
    console.print()
    console.print(made)


def _words(changes: Mapping[str, str]) -> str:
    return " ".join(f"{SHORT.get(key, key)}={value}" for key, value in changes.items())


def _scaling(console: Console, plan: Plan) -> None:
    priced = any(each.cost is not None for each in plan.scaling)
    cost = [">cost"] if priced else []
    heads = (">hosts", ">ranks", ">step", ">samples/s", ">efficiency", ">total", *cost)
    others = [each for each in plan.scaling if each.changes]
    how = "each with its best settings" if others else "settings as above"
    made = table(*heads, padding=(0, 2), title=f"Other numbers of hosts, {how}")
    for each in plan.scaling:
        row = [
            str(each.hosts),
            str(each.ranks),
            format_seconds(each.step),
            format_number(each.samples_per_second),
            f"{each.efficiency:.0%}",
            format_seconds(each.total) if each.total is not None else "",
        ]
        style = "bold" if each.hosts == plan.fastest_hosts else ""
        cost = [f"{each.cost:,.2f}"] if priced and each.cost is not None else []
        made.add_row(*row, *cost, style=style)
    console.print()
    console.print(made)
    for each in others:
        console.print(f"  {counted(each.hosts, 'host')}: {_words(each.changes)}")
    if plan.fastest_hosts is not None and plan.fastest_hosts < plan.scaling[-1].hosts:
        console.print(f"  most samples/s on {counted(plan.fastest_hosts, 'host')}")
