"""muster judge"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import EXIT_CODES, Json, check_output
from muster.cli.output import Interval, err_console, out_console, print_json
from muster.cli.parameters import Argument, Option
from muster.core.hostlist import fold_hosts
from muster.core.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from muster.judging.document import Judged

EXAMPLES = f"""Examples:

  muster judge logs/

  muster judge logs.tar.xz --slow 0.02 --output results.csv

  muster judge results/ --column step=it --column ms=dt --host-pattern '(?P<host>node[0-9]+)'

  muster judge logs/ --line 'step (?P<step>\\d+) loss (?P<loss>\\S+) (?P<seconds>\\S+) s'

  muster judge logs/ --json > fleet.json

  muster judge new/ --baseline fleet.json

  muster judge logs/ --at-least 800samples/s

  muster judge logs/ --hardware a100=node[01-16] --hardware h100=node[17-64]

{EXIT_CODES}"""

JOBS = 20  # jobs that did not succeed
QUIET = 5.0  # seconds between two lines of progress


def judge(
    folder: Annotated[
        Path,
        Argument(metavar="DIR", help="A folder of logs, one log, or an archive; or the folder of a bench."),
    ],
    line: Annotated[
        list[str] | None,
        Option(
            "--line",
            metavar="REGEX",
            help="Regular expression for lines of another format, whose groups are fields. Repeatable.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        Option("--column", metavar="FIELD=NAME", help="Which column of a table has a field. Repeatable."),
    ] = None,
    host_pattern: Annotated[
        str,
        Option(
            "--host-pattern",
            metavar="REGEX",
            help="Regular expression that finds the host in a path, in a group `host`; in `work` what was "
            "trained, in `job` which files are of one job.",
        ),
    ] = "",
    slow: Annotated[
        float | None,
        Option(
            "--slow",
            help="Smallest slowdown that counts, as a share of the step time (default: 0.01, which is 1 %; "
            "of a bench its suite's).",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        Option(
            "--baseline",
            help="Output of --json for another fleet: what is normal where there are fewer than four jobs, "
            "and whether this fleet as a whole is slower.",
        ),
    ] = None,
    workload: Annotated[
        str,
        Option("--workload", metavar="NAME", help="What was trained, for all logs that do not say it."),
    ] = "",
    hardware: Annotated[
        list[str] | None,
        Option(
            "--hardware",
            metavar="NAME=HOSTS",
            help="Hosts of one kind of hardware, which are compared with each other alone, such as "
            "a100=node[01-16]. Repeatable.",
        ),
    ] = None,
    at_least: Annotated[
        str,
        Option(
            "--at-least",
            metavar="SPEED",
            help="Speed that every job must reach, whatever its peers do: 800samples/s or 120ktokens/s of a "
            "job, however many hosts it has; 800samples/s/host or 100samples/s/rank of its hosts or ranks.",
        ),
    ] = "",
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write a CSV file with a row per job.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Show every host and job, however many.")] = False,
    json: Json = False,
) -> int:
    """Judge hosts by the logs of other tools: which are slow or fail, with the evidence."""
    from muster.benches.document import Bench
    from muster.benches.judge import judge as judge_any
    from muster.benches.judge import save_table
    from muster.cli.views.benches import print_bench

    check_output(output)
    console, interval = err_console(), Interval(QUIET)

    def progress(done: int, total: int) -> None:
        if interval.over():
            console.print(f"[dim]{done} of {total} files read[/dim]")

    document = judge_any(
        folder,
        lines=line or [],
        columns=column or [],
        host_pattern=host_pattern,
        slow=slow,
        baseline=baseline,
        at_least=at_least,
        workload=workload,
        hardware=hardware or [],
        progress=progress,
    )
    if json:
        print_json(document.model_dump(mode="json"))
    elif isinstance(document, Bench):
        print_bench(document, every=every)
    else:
        _print(document, every=every)
    if output is not None:
        save_table(document, output)
        console.print(f"{counted(len(document.jobs), 'job')} written to {output}")
    return document.gate


def _print(document: Judged, *, every: bool) -> None:
    """Print the answer, the count, the reasons, the jobs that did not end well, and what is normal."""
    from muster.cli.views.verdicts import count_words, print_answer, print_hosts, print_normal, print_notes

    console = out_console()
    print_answer(console, document)
    console.print(f"{count_words(document)}\n")
    print_hosts(console, document, every=every)
    if document.hosts:
        console.print()
    _print_jobs(console, document, every=every)
    print_normal(console, document.peers, document.slow)
    print_notes(err_console(), document)


def _print_jobs(console: Console, document: Judged, *, every: bool) -> None:
    """Print the jobs that did not end well, and why; and those that could not be compared."""
    from muster.cli.views.verdicts import block, end_words, say, speed_words

    bad = [job for job in document.jobs if not job.outcome.good]
    for job in bad if every else bad[:JOBS]:
        why = ": ".join(part for part in (", ".join(job.failed_hosts), job.reason) if part)
        block(
            console,
            "yellow",
            end_words(job.outcome),
            job.job,
            [why, *([f"known as {job.failure}"] if job.failure else [])],
        )
    ran = [job for job in document.jobs if job.outcome.good and speed_words(job)]
    lone = [job for job in ran if job.slower is None and (job.judged or not job.hosts)]
    for job in lone if every else lone[:JOBS]:
        where = f" on {fold_hosts(job.hosts)}" if job.hosts else ""
        say(console, f"not compared: {speed_words(job)}{where}  {job.job}", style="dim")
    for some, what in ((bad, "did not succeed"), (lone, "were not compared")):
        if len(some) > JOBS and not every:
            console.print(f"[dim]{len(some) - JOBS} more {what}; --all and --json have them[/dim]")
