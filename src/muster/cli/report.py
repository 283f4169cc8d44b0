"""muster report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from muster.cli.options import Json, Root, Run
from muster.cli.output import print_json, say
from muster.cli.parameters import Option

EXAMPLES = """Examples:

  muster report last

  muster report last --output page.html"""


def report(
    run: Run,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File to write. Default: report.html in the run's folder.")
    ] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Write the page of a run, a pipeline or a bench: one HTML file that opens offline."""
    from muster.benches.folder import BenchFolder, find
    from muster.cli.views.benches import bench_page
    from muster.reports.pipeline import write_page

    folder = find(run, root)
    page = bench_page(folder, output) if isinstance(folder, BenchFolder) else write_page(folder, output)
    if json:
        print_json({"id": folder.id, "report": str(page)})
    else:
        say(page)
    return 0
