"""A pipeline's page: how each step ended, with its figures and a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.core.state import State
from muster.core.units import counted, format_seconds
from muster.reports import words
from muster.reports.page import key_figures, report, template
from muster.reports.rundata import RunData, gather
from muster.results.figures import Figure
from muster.store.atomic import write_text
from muster.store.runfolder import PipelineFolder, RunFolder


@dataclass(frozen=True)
class StepData:
    """A step as the page shows it."""

    name: str
    data: RunData | None  # None: it has not begun
    page: str | None = None  # its own, from this one

    @property
    def headline(self) -> words.Headline:
        """How it ended."""
        return words.headline(self.data) if self.data else words.Headline("…", "calm", "Not begun")

    @property
    def groups(self) -> list[tuple[str, list[Figure]]]:
        """What was measured of it."""
        return key_figures(self.data, measured=True) if self.data else []


def render_pipeline(name: str, state: State, steps: Sequence[StepData], notes: Sequence[str] = ()) -> str:
    """The page of a pipeline as HTML: the same data gives the same text. Pure."""
    done = [each.data for each in steps if each.data and each.data.state.good]
    took = sum(each.figures.seconds.total for each in done if each.figures)
    ended = f"{len(done)} of {counted(len(steps), 'step')} done in {format_seconds(took)}"
    page = template("pipeline.html.j2")
    return page.render(name=name, state=state, ended=ended, steps=steps, notes=notes)


def write_page(folder: RunFolder | PipelineFolder, output: Path | None = None) -> Path:
    """Write the page of a run or of a pipeline. -> its path. Raises RunFolderError."""
    return report(folder, output) if isinstance(folder, RunFolder) else pipeline_page(folder, output)


def pipeline_page(folder: PipelineFolder, output: Path | None = None) -> Path:
    """Write the page. -> its path. Raises RunFolderError where a step's files are damaged."""
    path = output or folder.report
    steps = []
    for run in folder.steps:
        page = run.report if output else run.report.relative_to(folder.path)
        data = gather(run) if run.job.exists() else None
        steps.append(StepData(run.path.name, data, str(page) if run.report.exists() else None))
    result = folder.read_result()
    write_text(path, render_pipeline(folder.id, folder.state(), steps, result.notes if result else ()))
    return path
