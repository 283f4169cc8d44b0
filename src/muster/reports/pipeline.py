"""A pipeline's page: how each step ended, with its figures and a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.core.state import State
from muster.core.units import counted, format_seconds
from muster.reports import words
from muster.reports.page import key_figures, report, template
from muster.reports.rundata import RunData, gather
from muster.store.atomic import write_text
from muster.store.runfolder import PipelineFolder, RunFolder

Step = tuple[str, RunData | None, str | None]  # name; data, None: it has not begun; its page, from this one


def render_pipeline(name: str, state: State, steps: Sequence[Step], notes: Sequence[str] = ()) -> str:
    """Return the page of a pipeline as HTML: the same data gives the same text. Pure."""
    done = [data for _, data, _ in steps if data and data.state.good]
    took = sum(each.result.seconds.total for each in done if each.result)
    shown = [
        {
            "name": step,
            "page": page,
            "headline": words.headline(data) if data else words.Headline("…", "calm", "Not begun"),
            "groups": key_figures(data, measured=True) if data else [],
        }
        for step, data, page in steps
    ]
    ended = f"{len(done)} of {counted(len(steps), 'step')} done in {format_seconds(took)}"
    page = template("pipeline.html.j2")
    return page.render(name=name, state=state, ended=ended, steps=shown, notes=notes)


def write_page(folder: RunFolder | PipelineFolder, output: Path | None = None) -> Path:
    """Write the page of a run or of a pipeline. Return its path. Raises RunFolderError where files are
    damaged."""
    if isinstance(folder, RunFolder):
        return report(folder, output)
    path = output or folder.report
    steps: list[Step] = []
    for run in folder.steps:
        page = run.report if output else run.report.relative_to(folder.path)
        data = gather(run) if run.job.exists() else None
        steps.append((run.path.name, data, str(page) if run.report.exists() else None))
    result = folder.read_result()
    write_text(path, render_pipeline(folder.id, folder.state(), steps, result.notes if result else ()))
    return path
