"""muster judge"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import Json
from muster.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from muster.core.judged import Judged, Verdict

EXAMPLES = """Examples:

  muster judge logs/

  muster judge logs.tar.xz --slow 0.02 --output results.csv

  muster judge results/ --mapping columns.yaml --host-pattern '(?P<host>node[0-9]+)'

  muster judge logs/ --json > fleet.json

  muster judge new/ --baseline fleet.json"""

SHOWN = 100  # hosts; of more, those that are not fit, and the slowest
JOBS = 20  # jobs that did not succeed
QUIET = 5.0  # seconds between two lines of progress
_COLOURS = {
    "fit": "green", "differs": "green", "probably fit": "yellow", "unknown": "yellow",
    "slow": "red", "failing": "red",
}  # fmt: skip
_ORDER = ("failing", "slow", "unknown", "probably fit", "differs", "fit")


def judge(
    folder: Annotated[Path, Argument(metavar="DIR", help="A folder of logs, one log, or an archive.")],
    mapping: Annotated[
        list[Path] | None,
        Option("--mapping", "-m", help="YAML file that names the columns of tables. Repeatable."),
    ] = None,
    host_pattern: Annotated[
        str,
        Option(
            "--host-pattern",
            metavar="REGEX",
            help="Regular expression that finds the host in a path, in a group `host`.",
        ),
    ] = "",
    slow: Annotated[
        float,
        Option("--slow", help="Smallest slowdown that counts, as a share of the step time (0.01 is 1 %)."),
    ] = 0.01,
    baseline: Annotated[
        Path | None,
        Option(
            "--baseline", help="Output of --json for another fleet to compare with, for fewer than four jobs."
        ),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write a CSV file with a row per job.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Show every host and job, however many.")] = False,
    json: Json = False,
) -> int:
    """Judge hosts by the logs of other tools: which are slow or fail, with the evidence."""
    from muster.cli.output import err_console, print_json
    from muster.core.units import counted
    from muster.stages.gathered import check_outputs
    from muster.stages.judge import judge as judge_logs
    from muster.stages.judge import save_csv

    check_outputs([output] if output else [])
    found = judge_logs(
        folder,
        mappings=mapping or [],
        host_pattern=host_pattern,
        slow=slow,
        baseline=baseline,
        progress=_Progress(err_console()),
    )
    if json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found, every=every)
    if output is not None:
        save_csv(found, output)
        err_console().print(f"{counted(len(found.jobs), 'job')} written to {output}")
    return 0 if found.sound else 1


class _Progress:
    """How many files are read: a line now and then, where it takes long."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.said > QUIET:
            self.said = time.monotonic()
            self.console.print(f"[dim]{done} of {total} files read[/dim]")


def _print(found: Judged, *, every: bool) -> None:
    from rich.markup import escape

    from muster.cli.output import err_console, out_console
    from muster.core.units import counted, format_number

    console = out_console()
    _wide(console, _hosts(found, every=every))
    for link in found.links:
        ends = escape(" - ".join(link.hosts))
        console.print(f"[red]{link.condition}[/red]  link {ends}: {escape(link.reason)}")
    for verdict in _sorted(found):
        if verdict.condition in ("slow", "failing"):
            _print_evidence(console, verdict)
    _print_jobs(console, found, every=every)
    for peers in found.peers:
        size = counted(peers.hosts, "host")
        origin = ", from the baseline" if peers.stored else ""
        console.print(
            f"[dim]{size:>8}: {format_number(peers.samples_per_second)} samples/s, healthy jobs differ by "
            f"{peers.deviation:.2%} ({counted(peers.jobs, 'job')}{origin})  {escape(peers.work)}[/dim]"
        )
    for note in found.notes:
        err_console().print(f"[yellow]note[/yellow] {escape(note)}")
    parts = [
        f"[{_COLOURS[name]}]{count} {name}[/{_COLOURS[name]}]"
        for name, count in found.summary.items()
        if count
    ]
    jobs = [f"{count} {_named(name)}" for name, count in found.outcomes.items() if count]
    hosts = counted(len(found.hosts), "host")
    console.print(
        f"{hosts}: {', '.join(parts) or 'none'}; {counted(len(found.jobs), 'job')}: {', '.join(jobs)}"
    )


def _named(outcome: str) -> str:
    return "timed out" if outcome == "timeout" else outcome


def _sorted(found: Judged) -> list[Verdict]:
    """The worst first; among equals by name."""
    return sorted(found.hosts, key=lambda each: (_ORDER.index(each.condition), -(each.slower or 0)))


def _hosts(found: Judged, *, every: bool) -> Table:
    """A row per host: its verdict, and its mean time beside healthy ones', by the size of the group."""
    from rich.markup import escape
    from rich.table import Table

    sizes = sorted({len(job.hosts) for job in found.jobs if job.slower is not None})[:6]
    times: dict[tuple[str, int], list[float]] = {}
    for job in found.jobs:
        if job.slower is not None:
            for host in job.hosts:
                times.setdefault((host, len(job.hosts)), []).append(job.slower)
    table = Table(box=None)
    for name in ("host", "verdict", *(f"{size} host{'s' * (size > 1)}" for size in sizes), "sure", "why"):
        right = name == "sure" or name[0].isdigit()
        table.add_column(name, no_wrap=name != "why", justify="right" if right else "left")
    rows = _sorted(found)
    if not every and len(rows) > SHOWN:
        bad = [each for each in rows if each.condition != "fit"][:SHOWN]
        fit = sorted(rows, key=lambda each: -(each.at_most or 0))
        rows = bad + [each for each in fit if each.condition == "fit"][: max(10, SHOWN - len(bad)) // 5]
    for each in rows:
        host, colour = each.hosts[0], _COLOURS[each.condition]
        own = [times.get((host, size)) for size in sizes]
        cells = [f"{sum(values) / len(values):+.2%}" if values else "" for values in own]
        sure = f"{each.confidence:.1%}" if each.confidence < 0.9995 else "99.9%"
        if each.condition == "unknown":
            sure = ""
        table.add_row(
            escape(host), f"[{colour}]{each.condition}[/{colour}]", *cells, sure, escape(each.reason)
        )
    if len(rows) < len(found.hosts):
        table.caption = f"{len(found.hosts) - len(rows)} fit more hosts; --all shows them"
    return table


def _wide(console: Console, table: Table) -> None:
    """A pipe has no width to fit into."""
    if not console.is_terminal:
        console.width = 220
    console.print(table)


def _print_evidence(console: Console, verdict: Verdict) -> None:
    from rich.markup import escape

    host = escape(verdict.hosts[0])
    console.print(f"[red]{verdict.condition:<8}[/red] [bold]{host}[/bold]  {escape(verdict.reason)}")
    for one in verdict.evidence:
        how = "failed" if one.slower is None else f"{one.slower:+.2%} time"
        peers = f" with {escape(', '.join(one.peers[:4]))}" if one.peers else " alone"
        console.print(f"          {how}{peers}  [dim]{escape(one.job)}[/dim]")


def _print_jobs(console: Console, found: Judged, *, every: bool) -> None:
    from rich.markup import escape

    bad = [job for job in found.jobs if job.outcome != "succeeded"]
    for job in bad if every else bad[:JOBS]:
        known = f"  [dim]{job.failure}[/dim]" if job.failure else ""
        why = ": ".join(part for part in (job.failed_host, job.reason) if part)
        console.print(f"[yellow]{_named(job.outcome):<10}[/yellow] {escape(job.job)}  {escape(why)}{known}")
    if len(bad) > JOBS and not every:
        console.print(f"[dim]and {len(bad) - JOBS} more; --all and --json have them[/dim]")
