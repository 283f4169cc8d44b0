"""muster bench"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import EXIT_CODES, Hosts, Json, Root, split_words
from muster.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from muster.benches.bench import Surroundings
    from muster.benches.document import Bench
    from muster.benches.folder import BenchFolder
    from muster.benches.inputs import BenchInputs
    from muster.cli.views.bench import BenchView

EXAMPLES = f"""Examples:

  muster bench acceptance --hosts node[01-64] --dry-run

  muster bench scaling --hosts hostfile --recipe my.yaml

  muster bench my-suite.yaml --hosts local:3x1 --jobs 2 digits:train.max_steps=50

  muster bench --continue runs/20261122-093000-bench-acceptance-4f2a

{EXIT_CODES}"""


def bench(
    suite: Annotated[
        str,
        Argument(help="acceptance, scaling, zero-sweep, s1, or a YAML file of your own.", complete="suites"),
    ] = "",
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[HOSTS] [[ENTRY:]KEY=VALUE]...",
            help="Hosts, unless --hosts gives them; changes of every recipe, or of one entry's.",
            complete="hosts",
        ),
    ] = None,
    hosts: Hosts = "",
    go_on: Annotated[
        Path | None, Option("--continue", help="Continue this bench; finished jobs are not run again.")
    ] = None,
    recipe: Annotated[str, Option("--recipe", "-r", help="Train this recipe instead of the suite's.")] = "",
    at_once: Annotated[
        int | None,
        Option("--jobs", "-j", min=1, help="Largest number of jobs at the same time; default: up to 64."),
    ] = None,
    baseline: Annotated[
        Path | None,
        Option(
            "--baseline", help="bench.json of an earlier bench to compare with, for fewer than four hosts."
        ),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="The bench's folder; must not exist.")
    ] = None,
    root: Root = Path("runs"),
    dry_run: Annotated[bool, Option("--dry-run", help="Print the schedule; start nothing.")] = False,
    every: Annotated[bool, Option("--all", help="Show every host and job, however many.")] = False,
    json: Json = False,
) -> int:
    """Run many jobs on groups of hosts: find slow hosts, measure scaling, compare recipes."""
    from muster.benches.folder import BenchFolder, new_bench_folder
    from muster.benches.inputs import read_bench
    from muster.core.errors import UsageError

    hosts, _, changes = split_words(words, hosts)
    if go_on is not None:
        told = {
            "SUITE": suite,
            "--hosts": hosts,
            "--recipe": recipe,
            "--output": output,
            "--dry-run": dry_run,
        }
        extra = next((name for name, value in told.items() if value), None)
        if extra:
            hint = f"muster bench --continue {go_on}"
            raise UsageError("cannot be changed in a bench that is continued", where=extra, hint=hint)
        return _go_on(BenchFolder(go_on.absolute()), at_once, baseline, every=every, json=json)
    if not suite:
        raise UsageError("no suite was given", hint="muster bench acceptance --hosts node[01-64]")
    inputs = read_bench(suite, hosts, changes, recipe=recipe, at_once=at_once)
    folder = BenchFolder(output.absolute()) if output else new_bench_folder(root, inputs.name)
    if dry_run:
        return _dry_run(inputs, folder, every=every, json=json)
    return _begin(inputs, folder, baseline, every=every, json=json)


def _begin(
    inputs: BenchInputs, folder: BenchFolder, baseline: Path | None, *, every: bool, json: bool
) -> int:
    from muster.benches.bench import bench as run_bench
    from muster.cli.output import err_console
    from muster.cli.views.bench import BenchView

    with BenchView(err_console()) as view:
        found = run_bench(inputs, folder, _around(view, baseline))
    return _finish(found, folder, every=every, json=json)


def _go_on(
    folder: BenchFolder, at_once: int | None, baseline: Path | None, *, every: bool, json: bool
) -> int:
    from muster.benches.bench import continue_bench
    from muster.cli.output import err_console
    from muster.cli.views.bench import BenchView

    with BenchView(err_console()) as view:
        found = continue_bench(folder, _around(view, baseline), at_once=at_once)
    return _finish(found, folder, every=every, json=json)


def _around(view: BenchView, baseline: Path | None) -> Surroundings:
    from muster.benches.bench import Surroundings

    return Surroundings(view, view.announce, view.progress, baseline=baseline)


def _finish(found: Bench, folder: BenchFolder, *, every: bool, json: bool) -> int:
    """Print what was found. -> the exit code: `Gate`."""
    from muster.cli.output import err_console, print_json
    from muster.cli.views.benches import print_bench

    if json:
        print_json(found.model_dump(mode="json"))
    else:
        print_bench(found, every=every)
    console = err_console()
    console.print(f"results     {folder.bench}\ntable       {folder.table}")
    if not found.complete:
        console.print(f"continue    muster bench --continue {folder.path}")
    return found.gate


def _dry_run(inputs: BenchInputs, folder: BenchFolder, *, every: bool, json: bool) -> int:
    from muster.benches.bench import dry_run
    from muster.cli.output import print_json
    from muster.cli.views.benches import print_schedule

    plan = dry_run(inputs, folder)
    if json:
        print_json(plan)
    else:
        print_schedule(plan, every=every)
    return 0
