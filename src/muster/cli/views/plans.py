"""A plan for a person."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.cli.output import out_console, print_row, table, wrapped
from muster.core.hostlist import fold_hosts
from muster.core.job import FASTEST, WARNINGS
from muster.core.units import counted, format_bytes, format_count, format_number, format_seconds
from muster.inputs.read import INHERITED
from muster.planner.document import UNCOUNTED, MemoryPlan, Plan, TimePlan
from muster.runs.dry_run import training_rows

SHORT = {
    "engine.zero": "zero",
    "engine.sync_each_batch": "sync",
    "train.gradient_checkpointing": "checkpointing",
    "batch.micro": "micro",
    "launch.hosts": "hosts",
}
SMALL = 0.005  # of the whole: parts below it are shown together


def print_plan(plan: Plan) -> None:
    """Decisions, memory, time, other ways, scaling, and the sentence."""
    console = out_console()
    count = f", {format_count(plan.parameters)} parameters" if plan.parameters else ""
    batch = plan.batch
    rows = [
        ("model", f"{plan.model or 'from a configuration'}{count}"),
        (
            "spread",
            f"{plan.engine}, {plan.precision}, {counted(plan.ranks, 'rank')} on "
            f"{counted(plan.hosts, 'host')} ({plan.machines})",
        ),
        (
            "batch",
            f"{batch['micro']} x {batch['accumulation']} x {counted(plan.ranks, 'rank')} = "
            f"{batch['global']} samples",
        ),
    ]
    rows += [("hosts", each) for each in _hosts(plan)]
    compiled = [each for each in plan.decisions if each["field"] == "train.compile"]
    rows += [("compiled", f"{'yes' if each['value'] else 'no'}: {each['why']}") for each in compiled]
    loaders = [each for each in plan.decisions if each["field"] == "train.workers" and each["value"]]
    rows += [("loaders", f"{each['value']} processes per rank: {each['why']}") for each in loaders]
    if plan.training:
        rows += training_rows(plan.training.model_dump())
    rows += [("data" if index == 0 else "", note) for index, note in enumerate(plan.data)]
    rows += [
        (f"from {each['value']}", str(each["why"])) for each in plan.decisions if each["field"] == INHERITED
    ]
    for name, value in rows:
        print_row(console, name, value, width=12)
    if plan.memory:
        _memory(console, plan.memory, plan)
    if plan.time:
        _time(console, plan.time)
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
        elif each["field"] == FASTEST:
            console.print(f"[yellow]note[/yellow]  {escape(words)}")
    for way in plan.would_fit:
        console.print(f"[yellow]would fit[/yellow]  {escape(way)}")
    for way in plan.roomier:
        console.print(f"[yellow]more room[/yellow]  {escape(way)}")
    for note in plan.notes:
        console.print(f"[yellow]note[/yellow]  {escape(note)}")


def _hosts(plan: Plan) -> list[str]:
    """How many of those given, and why; the table of ways says why other numbers lost."""
    why = [str(each["why"]) for each in plan.decisions if each["field"] == "launch.hosts"]
    idle = f"; idle: {fold_hosts(plan.idle)}" if plan.idle else ""
    given = plan.hosts + len(plan.idle)
    return [f"{plan.hosts:,} of {given:,}, {each.partition('; ')[0]}{idle}" for each in why]


def _memory(console: Console, memory: MemoryPlan, plan: Plan) -> None:
    device = plan.device
    kind = f"{memory.lacking} memory" if device == "cuda" else "memory"
    full = "[yellow]nearly full[/yellow]" if memory.nearly_full else "[green]fits[/green]"
    fits = "[yellow]tight, may not fit[/yellow]" if memory.tight else full
    fits += f" with {escape(', '.join(plan.choices))}" if plan.choices else ""
    if memory.basis == UNCOUNTED:
        fits = "[yellow]at least this, so whether it fits is unknown[/yellow]"
    verdict = fits if memory.lacking is None else f"[red]too little {kind}[/red]"
    console.print(
        f"\n  [bold]Memory of a rank[/bold]  {verdict}  (activations: {memory.basis}; peak: {memory.moment})"
    )
    made = Table(box=None, padding=(0, 2), show_header=False)
    places = [
        ("host" if device == "cpu" else "device", memory.device, memory.device_bytes, memory.device_room)
    ]
    if memory.host:
        places.append(("host", memory.host, memory.host_bytes, memory.host_room))
    for place, parts, total, room in places:
        for name, value in _large(parts, total):
            made.add_row("", name, f"[default]{format_bytes(value)}")
        free = f", {memory.margin:.0%} kept free" if room and total <= (1 - memory.margin) * room else ""
        has = f" of {format_bytes(room)}{free}" if room else ""
        made.add_row(place, "[bold]all", f"[bold]{format_bytes(total)}[/bold]{has}")
    console.print(made)
    for line in wrapped(memory.speaks_for, 2):
        console.print(f"  [dim]{line}[/dim]")


def _large(parts: Mapping[str, int], total: int) -> list[tuple[str, int]]:
    large = [(name, value) for name, value in parts.items() if value > SMALL * total]
    rest = total - sum(value for _, value in large)
    return sorted(large, key=lambda part: -part[1]) + ([("other", rest)] if rest else [])


def _time(console: Console, time: TimePlan) -> None:
    parts = {
        "computation": time.compute,
        "waiting for the network": time.communication,
        "optimizer": time.optimizer,
        "host transfer": time.transfer,
        "overhead": time.overhead,
    }
    words = ", ".join(
        f"{name} {format_seconds(value)}" for name, value in parts.items() if value > SMALL * time.step
    )
    basis = "; ".join([*(["calibrated"] if time.calibrated else []), *time.assumed]) or "from stated figures"
    ranged = _ranged(time, time.step)
    console.print(f"\n  [bold]Step[/bold]  {format_seconds(time.step)}{ranged}: {words}  ({basis})")
    console.print(f"        {format_number(time.samples_per_second)} samples/s{_tokens(time)}")
    if time.total is not None:
        cost = f", cost {time.cost:,.2f}" if time.cost is not None else ""
        cost += (
            f", at most {format_number(time.kwh)} kWh (devices alone)" if time.kwh and time.kwh > 0.01 else ""
        )
        steps = f"{time.steps:,} steps, " if time.steps else ""
        console.print(f"        {steps}{format_seconds(time.total)}{_ranged(time, time.total)} in all{cost}")
    if time.epoch is not None:
        console.print(f"        {format_seconds(time.epoch)} per epoch")


def _ranged(time: TimePlan, seconds: float) -> str:
    """The range of so many seconds of steps."""
    if time.step_range is None:
        return ""
    low, high = (format_seconds(seconds * each / time.step) for each in time.step_range)
    return f" ({low} to {high})"


def _tokens(time: TimePlan) -> str:
    """Tokens/s of all ranks and of one, and MFU, where they are known."""
    words = ""
    if time.tokens_per_second is not None:
        words = f", {format_number(time.tokens_per_second)} tokens/s"
        words += f" ({format_number(time.tokens_per_device)} per device)"
    return words + (f", MFU {time.mfu:.1%}" if time.mfu is not None else "")


def _candidates(console: Console, plan: Plan) -> None:
    made = Table(box=None, padding=(0, 2), title="Compared settings", title_justify="left")
    for name in ("", "memory", "samples/s", ""):
        made.add_column(name, justify="right" if name else "left")
    for each in sorted(plan.candidates, key=lambda each: (not each.fits, -(each.samples_per_second or 0))):
        words = " ".join(f"{SHORT.get(key, key)}={value}" for key, value in each.changes.items())
        speed = format_number(each.samples_per_second) if each.samples_per_second else ""
        style = "bold green" if each.chosen else "" if each.fits else "dim"
        memory = format_bytes(each.memory) if each.memory else ""
        made.add_row(words, memory, speed, each.why, style=style)
    console.print()
    console.print(made)


def _scaling(console: Console, plan: Plan) -> None:
    priced = any(each.cost is not None for each in plan.scaling)
    heads = (
        ">hosts",
        ">ranks",
        ">step",
        ">samples/s",
        ">efficiency",
        ">total",
        *((">cost",) if priced else ()),
    )
    made = table(*heads, padding=(0, 2), title="Other numbers of hosts")
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
    if plan.fastest_hosts is not None and plan.fastest_hosts < plan.scaling[-1].hosts:
        console.print(f"  most samples/s on {counted(plan.fastest_hosts, 'host')}")
