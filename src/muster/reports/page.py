"""The page: all that is known of a run as one HTML file that needs nothing else. Pure."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import get_args

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from muster.core.recipe import recipe_class
from muster.core.state import RunEnd
from muster.core.units import counted
from muster.reports import answers, curves, fabric, tables, words
from muster.reports.charts import has_points, line_chart, stacked_bar
from muster.reports.rundata import RunData, gather
from muster.results.figures import Figure, figures, grouped, seconds, subject
from muster.store.atomic import write_text
from muster.store.runfolder import RunFolder


def render(data: RunData) -> str:
    """Return the report of a run as HTML: the same data gives the same text."""
    result = data.result
    measured = result.fabric if result else None
    kind = recipe_class(result.workload if result else None)
    shown, counts = answers.choose(data.predictions, kind.answer_names)
    parts, time_note = tables.time_parts(data)
    bar = stacked_bar([(part.name, part.amount or 0.0, part.style) for part in parts])
    charts = curves.host_charts(data) if measured else curves.charts(data)
    groups = key_figures(data)
    nothing = [chart for chart in charts if not has_points(chart)]
    unmeasured: list[str] = []
    if data.broken:  # folded: a reader of this page looks for what went wrong
        unmeasured = words.unknown(groups)
        unmeasured += [f"{chart.title}: {chart.nothing}" for chart in nothing]
        unmeasured += [f"Time: {part.name}" for part in parts if not part.share]
        unmeasured += [] if counts or measured else ["Answers to held-out questions: none was answered."]
        groups = key_figures(data, measured=True)
        parts, nothing = [part for part in parts if part.share], []
    html = template().render(
        data=data,
        unmeasured=unmeasured,
        headline=words.headline(data),
        subject=subject(result) if result else "Nothing is known about this run yet.",
        pace=result.pace.words if result and result.pace else "",
        groups=groups,
        profiles=[profile.lines for profile in result.profiles] if result else [],
        heads=[each for each in result.files if each.head] if result else [],
        notes=notes(data),
        pictures=[chart for chart in charts if has_points(chart)],
        missing=nothing,
        bar=bar,
        parts=parts,
        time_note=time_note,
        total=seconds(result.seconds.total if result else None),
        hosts=tables.host_table(data),
        shown=shown,
        counts=counts,
        fabric=fabric.section(measured) if measured else None,
        sweep=list(filter(has_points, fabric.charts(measured))) if measured else [],
        decisions=tables.decision_rows(data),
        recipe=tables.recipe_text(data),
        versions=tables.version_table(data),
        environment=tables.environment_rows(data),
        machine=[(name, data.env.get(name)) for name in ("controller", "system")],
        commands=tables.commands(data),
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # file names may hold bytes that are no text


def key_figures(data: RunData, *, measured: bool = False) -> list[tuple[str, list[Figure]]]:
    """Return a run's figures in groups; with `measured`, only those with a value."""
    if data.result is None:
        return []
    begun = data.folded.started.get(0)
    return grouped(figures(data.result, begun.total_steps if begun else None), measured=measured)


def notes(data: RunData) -> list[str]:
    """Return what a reader has to know to trust the figures."""
    listed = list(data.result.notes) if data.result else []
    world = data.world_size
    windows = data.folded.ordered_windows()
    partial = sum(1 for each in windows if world is not None and len(each) < world)
    if partial:
        what = f"{counted(partial, 'window')} of {len(windows):,}"
        listed.append(f"{what} without a rank's figures: left out of the throughput, and a gap in its chart")
    if data.unreadable:
        listed.append(
            f"{counted(data.unreadable, 'line')} of predictions.jsonl could not be read and are left out"
        )
    if data.result is not None and data.state not in get_args(RunEnd):
        listed.append("the run has no result yet: these figures are from its events so far")
    return [note[:1].upper() + note[1:] for note in listed]


@lru_cache
def template(name: str = "report.html.j2") -> Template:
    """Return a page's template. Autoescape is on: questions, answers and names are other authors' text."""
    environment = Environment(
        loader=PackageLoader("muster.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["line_chart"] = line_chart
    return environment.get_template(name)


# ----------------------------------------------------------------------------------------------------
# Report: a run folder -> report.html in it.


def report(run: RunFolder, output: Path | None = None) -> Path:
    """Write the page; the same run gives the same page. Return its path."""
    path = output or run.report
    write_text(path, render(gather(run)))
    return path
