"""muster stop"""

from __future__ import annotations

from pathlib import Path

from muster.cli.options import Json, Root, Run
from muster.cli.output import err_console, print_json, say

EXAMPLES = """Examples:

  muster stop last"""


def stop(run: Run, root: Root = Path("runs"), json: Json = False) -> int:
    """Stop a running job, a pipeline, or all jobs of a bench, on all hosts; other jobs there go on."""
    from muster.benches.folder import BenchFolder, find
    from muster.benches.listing import stop_bench
    from muster.core.state import State
    from muster.runs.listing import stop as run_stop

    folder = find(run, root)
    if isinstance(folder, BenchFolder):
        ended = stop_bench(folder)
        if json:
            print_json({"id": folder.id, "stopped": ended, "status": State.STOPPED if ended else None})
        else:
            go_on = f"{folder.id}: stopped; go on with {folder.go_on}"
            say(go_on if ended else "asked; the bench has not ended yet")
        return 0 if ended else 1
    status = run_stop(folder)
    ended = status is not None
    if json:
        print_json({"id": folder.id, "stopped": ended, "status": status})
    elif status is State.CANCELLED:
        say(f"{folder.id}: cancelled while it waited for Slurm")
    elif not ended:
        err_console().print("asked; the controller has not answered yet")
    else:
        steps = getattr(folder.read_result(), "steps", None)  # a pipeline has none of its own
        at = "" if steps is None else f" at step {steps}"
        say(f"{folder.id}: {status}{at}")
    return 0 if ended else 1
