"""muster show"""

from __future__ import annotations

from pathlib import Path

from muster.cli.options import Json, Root, Run

EXAMPLES = """Examples:

  muster show last

  muster show last --json"""


def show(run: Run, root: Root = Path("runs"), json: Json = False) -> int:
    """Show a run: its result, or how far it has come."""
    from muster.cli.output import print_json, print_result
    from muster.stages.runs import show as run_show
    from muster.store.runfolder import find_run

    shown = run_show(find_run(run, root))
    if json:
        print_json(
            {
                "id": shown.run.id,
                "path": str(shown.run.path),
                "state": shown.state,
                "step": shown.step,
                "total_steps": shown.total_steps,
                "loss": shown.loss,
                "result": shown.result.model_dump(mode="json") if shown.result else None,
            }
        )
        return 0
    print(shown.run.id)
    if shown.result:
        print_result(shown.result, shown.run)
    else:
        loss = f", loss {shown.loss:.4f}" if shown.loss is not None else ""
        hosts = ", ".join(place["host"] for place in shown.job["placements"])
        print(f"  {shown.state}: step {shown.step} of {shown.total_steps or '?'}{loss}; hosts {hosts}")
    for name, path in (("folder", shown.run.path), ("report", shown.run.report), ("logs", shown.run.logs)):
        if path.exists():
            print(f"  {name:<22} {path}")
    return 0
