"""muster bench"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from muster.cli.options import EXIT_CODES, Hosts, Json, Root, Start, split_words
from muster.cli.output import err_console, print_json, say
from muster.cli.parameters import Argument, Option
from muster.core.errors import UsageError

EXAMPLES = f"""Examples:

  muster bench acceptance --hosts node[01-64] --dry-run

  muster bench scaling --hosts hostfile --recipe my.yaml

  muster bench my-suite.yaml --hosts local:3x1 --jobs 2 digits:train.max_steps=50

  muster bench acceptance --hosts hostfile --start rank -- ./mytest --size 100

  muster bench s1 --hosts node[01-64] --only opt-350m --groups 2 --timeout 300 --at-least 600samples/s

  muster bench s1 --print > mine.yaml

  muster bench --continue runs/20261122-093000-bench-acceptance-4f2a

{EXIT_CODES}"""


def bench(
    suite: Annotated[
        str,
        Argument(
            help="acceptance, scaling, zero-sweep, s1, old-and-new, s1-old-and-new, or a YAML file.",
            complete="suites",
        ),
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
    start: Annotated[
        Start, Option("--start", help="How the command behind `--` is started, as for `muster run`.")
    ] = "torchrun",
    only: Annotated[
        str, Option("--only", help="Entries of the suite to run, such as opt-350m,opt-13b; default: all.")
    ] = "",
    groups: Annotated[
        str, Option("--groups", help="Hosts of a job: 2, or 1,2,all, doubling, adaptive.")
    ] = "",
    timeout: Annotated[
        float | None, Option("--timeout", min=1, help="Seconds after which a job is ended.")
    ] = None,
    at_least: Annotated[
        str, Option("--at-least", help="A speed that every job must reach, such as 600samples/s.")
    ] = "",
    at_once: Annotated[
        int | None,
        Option("--jobs", "-j", min=1, help="Largest number of jobs at the same time; default: up to 64."),
    ] = None,
    minutes: Annotated[
        float | None,
        Option(
            "--minutes",
            min=0.1,
            help="The time given: no job starts that would not end in it; adaptive groups use all of it.",
        ),
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
    print_suite: Annotated[bool, Option("--print", help="Print the suite's file; start nothing.")] = False,
    every: Annotated[bool, Option("--all", help="Show every host and job, however many.")] = False,
    json: Json = False,
) -> int:
    """Run many jobs on groups of hosts: find slow hosts, measure scaling, compare recipes.

    A command behind `--` is run in place of the suite's training.
    """
    import click

    from muster.benches.bench import bench as run_bench
    from muster.benches.bench import continue_bench
    from muster.benches.bench import dry_run as schedule
    from muster.benches.folder import BenchFolder, new_bench_folder
    from muster.benches.inputs import read_bench
    from muster.benches.suite import Narrowing, find_suite
    from muster.cli.views.bench import BenchView
    from muster.cli.views.benches import print_bench, print_schedule

    hosts, _, changes = split_words(words, hosts)
    own = click.get_current_context().find_root().obj
    if own is not None and (recipe or not own):
        what = "--recipe and a command are both in place of the suite's training" if own else "there is none"
        raise UsageError(what, where="-- COMMAND", hint="muster bench acceptance HOSTS -- train.py")
    inputs = None
    if go_on is not None:
        only_new = {
            "SUITE": suite,
            "--hosts": hosts,
            "--recipe": recipe,
            "-- COMMAND": own,
            "--only": only,
            "--groups": groups,
            "--timeout": timeout,
            "--at-least": at_least,
            "--output": output,
            "--dry-run": dry_run,
        }
        if extra := next((name for name, value in only_new.items() if value), None):
            hint = f"muster bench --continue {go_on}"
            raise UsageError("cannot be changed in a bench that is continued", where=extra, hint=hint)
        folder = BenchFolder(go_on.absolute())
    elif not suite:
        raise UsageError("no suite was given", hint="muster bench acceptance --hosts node[01-64]")
    elif print_suite:
        say(find_suite(suite).read_text(encoding="utf-8"), end="")
        return 0
    else:
        job = {"workload": "command", "command": own, "run": {"start": start}} if own else recipe
        names = tuple(name.strip() for name in only.split(",") if name.strip())
        narrowing = Narrowing(names, groups, timeout, at_least)
        inputs = read_bench(suite, hosts, changes, recipe=job, at_once=at_once, narrowing=narrowing)
        folder = BenchFolder(output.absolute()) if output else new_bench_folder(root, inputs.name)
        if dry_run:
            plan = schedule(inputs, folder)
            print_json(plan) if json else print_schedule(plan, every=every)
            return 0
    console = err_console()
    with BenchView(console) as view:
        given = math.inf if minutes is None else minutes
        if inputs is None:
            document = continue_bench(folder, view, at_once=at_once, baseline=baseline, minutes=given)
        else:
            document = run_bench(inputs, folder, view, baseline=baseline, minutes=given)
    if json:
        print_json(document.model_dump(mode="json"))
    else:
        print_bench(document, every=every)
    console.print(f"results     {folder.result}\ntable       {folder.table}")
    if not document.complete:
        console.print(f"continue    {folder.go_on}")
    return document.gate
