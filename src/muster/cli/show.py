"""muster show, and its `--html` under the name muster report"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from muster.cli.options import Json, Root, Run
from muster.cli.output import print_json, say, say_places
from muster.cli.parameters import Option
from muster.core.errors import UsageError

if TYPE_CHECKING:
    from muster.benches.folder import BenchFolder
    from muster.store.runfolder import PipelineFolder, RunFolder

EXAMPLES = {
    "show": """Examples:

  muster show last

  muster show last --follow

  muster show last --json

  muster show last --csv > metrics.csv

  muster show last --html

  muster show last --html page.html""",
    "report": """Examples:

  muster report last

  muster report last --output page.html""",
}


def show(
    run: Run,
    root: Root = Path("runs"),
    follow: Annotated[
        bool, Option("--follow", "-f", help="Watch it until it ends; Ctrl-C only stops watching.")
    ] = False,
    csv: Annotated[
        bool, Option("--csv", help="Loss, speed, memory and more of each measured step, as CSV.")
    ] = False,
    html: Annotated[
        Path | Literal[True] | None,
        Option(
            "--html",
            metavar="[FILE]",
            optional=True,
            help="Write its page, one HTML file that opens offline. Default: report.html in its folder.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Show a run, a pipeline or a bench: its result, its progress, or its page."""
    from muster.benches.folder import BenchFolder, find
    from muster.store.runfolder import PipelineFolder

    if csv and (follow or json):
        raise UsageError("goes with neither --follow nor --json", where="--csv")
    if html and (csv or follow):
        raise UsageError("goes with neither --csv nor --follow", where="--html")
    folder = find(run, root)
    if html:
        return _write_page(folder, None if html is True else html, json=json)
    if csv and isinstance(folder, BenchFolder):
        raise UsageError(
            "is a bench; --csv shows the steps of one run", where=run, hint="muster show BENCH/runs/JOB --csv"
        )
    if isinstance(folder, PipelineFolder):
        from muster.cli.views.pipelines import show_pipeline

        if csv or follow:
            step = f"muster show {folder.trained.word} {'--csv' if csv else '--follow'}"
            raise UsageError("is a pipeline; that is for one step", where=run, hint=step)
        return show_pipeline(folder, json=json)
    if isinstance(folder, BenchFolder):
        from muster.cli.views.benches import show_bench

        return show_bench(folder, json=json)
    if csv:
        from muster.runs.listing import metrics

        table = metrics(folder)
        say(table, end="")
        if table.count("\n") == 1:
            say(f"{folder.id}: no step is recorded, so the table is empty", err=True)
        return 0
    if follow:
        from muster.cli.views.progress import watch

        watch(folder, stops=False)
    return _show_run(folder, json=json)


def report(
    run: Run,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File to write. Default: report.html in the run's folder.")
    ] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Write the page of a run, a pipeline or a bench, as `muster show --html` does."""
    return show(run, root, html=output or True, json=json)


def _write_page(folder: RunFolder | PipelineFolder | BenchFolder, file: Path | None, *, json: bool) -> int:
    from muster.benches.folder import BenchFolder
    from muster.cli.views.benches import bench_page
    from muster.reports.pipeline import write_page

    page = bench_page(folder, file) if isinstance(folder, BenchFolder) else write_page(folder, file)
    if json:
        print_json({"id": folder.id, "report": str(page)})
    else:
        say(page)
    return 0


def _show_run(folder: RunFolder, *, json: bool) -> int:
    from muster.cli.views.results import print_afterwards, print_result
    from muster.runs.listing import queued
    from muster.runs.listing import show as run_show

    shown = run_show(folder)
    if json:
        print_json(
            {
                "id": folder.id,
                "path": str(folder.path),
                "state": shown.state,
                "step": shown.step,
                "total_steps": shown.total_steps,
                "loss": shown.loss,
                "damage": shown.damage,
                "result": shown.result.model_dump(mode="json") if shown.result else None,
            }
        )
        return 0
    say(folder.id)
    if shown.result:
        print_result(shown.result)
    else:
        loss = f", loss {shown.loss:.4f}" if shown.loss is not None else ""
        hosts = ", ".join(place["host"] for place in shown.job.get("placements", [])) or "unknown"
        from muster.core.recipe import recipe_class

        step = f"step {shown.step} of {shown.total_steps or '?'}{loss}"
        kind = recipe_class((shown.job.get("recipe") or {}).get("workload"))
        if not kind.trains and (not kind.foreign or not shown.step):
            step = "running" if kind.foreign else "measuring"
        say(f"  {shown.state}: {queued(folder) or step}; hosts {hosts}")
    if shown.damage:
        say(f"  {'damaged':<22} {shown.damage}")
    say_places(folder=folder.path, report=folder.report, logs=folder.logs, profile=folder.profile)
    if folder.model.is_dir():
        print_afterwards(folder)
    return 0
