"""Report: a run folder -> report.html in it."""

from __future__ import annotations

from pathlib import Path

from muster.report.gather import gather
from muster.report.page import render
from muster.store.atomic import write_text
from muster.store.runfolder import RunFolder


def report(run: RunFolder, output: Path | None = None) -> Path:
    """Write the page; the same run gives the same page. -> its path."""
    path = output or run.report
    write_text(path, render(gather(run)))
    return path
