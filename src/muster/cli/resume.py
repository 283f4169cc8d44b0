"""muster resume"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from muster.cli.options import Json, Root, Run
from muster.cli.output import err_console
from muster.cli.parameters import Option
from muster.core.errors import UsageError

EXAMPLES = """Examples:

  muster resume last

  muster resume runs/20261121-093000-text2sql-t5-small-4f2a

  muster resume last --step 2000

  muster resume last --without node3

  muster resume last --hosts node1:8,node4:8"""


def resume(
    run: Run,
    hosts: Annotated[
        str | None, Option("--hosts", "-H", help="On these hosts instead of the run's own.")
    ] = None,
    leave: Annotated[
        list[str] | None, Option("--without", help="Without this host of the run; may be repeated.")
    ] = None,
    step: Annotated[
        int | None,
        Option("--step", min=0, help="Go on from the checkpoint of this step; 0: from the first step again."),
    ] = None,
    copy: Annotated[
        bool, Option("--copy", help="Copy the checkpoint to hosts whose own disks lack it.")
    ] = False,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Resume a run from its newest checkpoint that is complete on every host; or a pipeline's steps."""
    from muster.cli.train import finish
    from muster.cli.views.progress import ProgressView
    from muster.runs.checkpoints import WantedCheckpoint
    from muster.runs.resume import resume as run_resume
    from muster.store.runfolder import PipelineFolder, find_any

    folder = find_any(run, root)
    if isinstance(folder, PipelineFolder):
        from muster.cli.views.pipelines import finish_pipeline, seeing
        from muster.runs.pipeline import resume_pipeline

        if step is not None:
            hint = f"muster resume {folder.trained.word} --step {step}"
            raise UsageError("is of a run, and this is a pipeline", where="--step", hint=hint)
        result = resume_pipeline(folder, hosts=hosts, leave=leave or (), copy=copy, seeing=seeing)
        return finish_pipeline(result, folder, json)
    with ProgressView(err_console()) as view:
        view.now("asking the hosts, and planning")
        ended = run_resume(
            folder,
            wanted=WantedCheckpoint(step, copy),
            hosts=hosts,
            leave=leave or (),
            watch=view,
            announce=view.announce,
        )
    return finish(ended, folder, json=json)
