"""The verbs as functions on plain objects: what `import muster` offers.

Names mean what they mean on the command line: a recipe or a suite is a file or a shipped name, `hosts` is
HOSTS (`hostfile`, `node[01-16]`, `local:2x1`, an inventory) or a list of hosts, and `runs` is the folder of
all runs. A recipe may be a mapping, as its file would hold it. `overrides` are `key=value`, or a mapping of
dotted keys: {"train.max_steps": 3}. Results are the frozen models whose JSON the verbs print.

An error that a user can cause is raised as a `muster.MusterError`: its text says what failed; `where`, `host`
and `hint` say where, on which host, and what helps. A run that fails is no exception: its `Result.status` and
`Result.failure` say so. Ctrl-C ends a run on all hosts, and is then raised as KeyboardInterrupt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.errors import UsageError
from muster.fleet.interrupts import keyboard_interrupts
from muster.store.runfolder import DEFAULT_ROOT, RunFolder, find_any, run_folder_of

if TYPE_CHECKING:
    from muster.benches.document import Bench
    from muster.checks.inspection import Inspection
    from muster.core.result import Result
    from muster.judging.document import Judged
    from muster.planner.document import Plan
    from muster.runs.ask import Answers
    from muster.runs.explain import Explanation


Words = str | Sequence[str]  # one, or several


Overrides = Words | Mapping[str, Any]
Hosts = str | Path | Sequence[str]  # HOSTS, a host file, or hosts
Source = str | Path | Mapping[str, Any]  # of a recipe


def _words(given: Words) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _overrides(given: Overrides) -> list[str]:
    """Return overrides as they are typed."""
    if not isinstance(given, Mapping):
        words = _words(given)
        if odd := [each for each in words if not isinstance(each, str)]:
            raise UsageError(f"{odd[0]!r} is no override", hint="'train.max_steps=3', or a mapping of keys")
        return words
    return [f"{key}={json.dumps(value, default=str)}" for key, value in given.items()]


def _source(given: Source) -> str | Mapping[str, Any]:
    if not isinstance(given, str | Path | Mapping):
        raise UsageError(
            f"{given!r:.60} is no recipe", hint="a file, a shipped name, or a mapping as its file has it"
        )
    return str(given) if isinstance(given, Path) else given


def _hosts(given: Hosts) -> str:
    return str(given) if isinstance(given, str | Path) else ",".join(given)


@keyboard_interrupts()
def check(
    hosts: Hosts,
    *,
    recipe: str = "",
    overrides: Overrides = (),
    profile: str = "",
    gpus: int | None = None,
    group: bool = True,
) -> Inspection:
    """Inspect hosts and the network between them. `gpus`: the number that each must have; `group`: start
    ranks on them.

    Raises InventoryError and RecipeError. A host that cannot be reached is in the result.
    """
    from muster.checks.check import check as inspect
    from muster.checks.check import settings_of
    from muster.checks.inspection import remember
    from muster.core.inventory import read_inventory

    settings = settings_of(recipe, _overrides(overrides))
    inspection = inspect(
        read_inventory(_hosts(hosts)), settings, named=recipe or None, profile=profile or None, gpus=gpus,
        group=group,
    )  # fmt: skip
    remember(inspection)
    return inspection


@keyboard_interrupts()
def plan(
    recipe: Source,
    hosts: Hosts = "",
    *,
    on: str = "",
    overrides: Overrides = (),
    samples: int | None = None,
    price: float | None = None,
    tokens: int | None = None,
    traced: bool = True,
) -> Plan:
    """Plan what fits, how fast it trains and what to choose: on `hosts`, which are asked for their facts, or
    on machines that are described (`on="h200:8x4,10Gbit"`).

    `samples`: of the training set; `tokens`: to be trained in all, in its place; `price`: of a host for an
    hour, in any currency; `traced`: trace the real model, which takes seconds and needs torch. Raises
    RecipeError, InventoryError, UsageError and JobError.
    """
    from muster.inputs.read import inherited_decisions, read_inputs, read_recipe
    from muster.planner.machines import UserFigures
    from muster.planner.plan import plan_hosts, plan_on

    if bool(hosts) == bool(on):
        raise UsageError("either hosts or on is needed", hint='on="h200:8x4,10Gbit", or hosts="node[1-4]"')
    figures = UserFigures(samples, price, tokens=tokens)
    if on:
        source, changes = _source(recipe), _overrides(overrides)
        read = read_recipe(source, changes)
        noted = inherited_decisions(source, changes, read)
        made = plan_on(read, on, figures, traced=traced, noted=noted).plan
    else:
        made = plan_hosts(
            read_inputs(_source(recipe), _hosts(hosts), _overrides(overrides)), figures, traced=traced
        ).plan
    assert made is not None  # what trains nothing is refused
    return made


@keyboard_interrupts()
def train(
    recipe: Source,
    hosts: Hosts,
    *,
    overrides: Overrides = (),
    output: Path | str | None = None,
    runs: Path | str = DEFAULT_ROOT,
) -> Result:
    """Train on hosts until the end, and write the report. `output`: the run's folder, which must not exist;
    without it, a new one in `runs`.

    Raises RecipeError, InventoryError, DataError and RunFolderError before anything has started.
    """
    from muster.inputs.read import read_inputs
    from muster.reports.page import report as write_report
    from muster.runs.train import train as run_train

    inputs = read_inputs(_source(recipe), _hosts(hosts), _overrides(overrides))
    run = RunFolder(Path(output).absolute()) if output else run_folder_of(inputs.recipe, Path(runs))
    result = run_train(inputs, run)
    write_report(run)
    return result


@keyboard_interrupts()
def ask(
    run: Path | str = "last",
    questions: Words = (),
    *,
    evaluate: bool = False,
    limit: int | None = None,
    schema: str | None = None,
    runs: Path | str = DEFAULT_ROOT,
) -> Answers:
    """Return the answers of the model that a run has trained; with `evaluate` to its held-out set, at most
    `limit`. `schema`: the tables that the questions are about, where data.schema was given: a SQLite file, or
    text.

    Raises RunFolderError where there is no model, UsageError and JobError.
    """
    from muster.runs.ask import ask as run_ask
    from muster.runs.ask import check_trained

    folder = find_any(str(run), Path(runs)).trained
    check_trained(folder)
    return run_ask(folder, _words(questions), evaluate=evaluate, limit=limit, schema=schema)


@keyboard_interrupts()
def bench(
    suite: str,
    hosts: Hosts,
    *,
    overrides: Overrides = (),
    recipe: str = "",
    jobs: int | None = None,
    minutes: float | None = None,
    baseline: Path | str | None = None,
    output: Path | str | None = None,
    runs: Path | str = DEFAULT_ROOT,
) -> Bench:
    """Run a suite's jobs on groups of hosts: a verdict per host. `Bench.gate` is the exit code.

    `recipe`: in place of the suite's; `jobs`: at the same time; `minutes`: the time given, in which every job
    that starts should end; `baseline`: bench.json of an earlier bench; `output`: the bench's folder, which
    must not exist. Raises UsageError, RecipeError and InventoryError.
    """
    from muster.benches.bench import bench as run_bench
    from muster.benches.folder import BenchFolder, new_bench_folder
    from muster.benches.inputs import read_bench

    if (jobs is not None and jobs < 1) or (minutes is not None and not minutes > 0):
        raise UsageError("jobs is a number from 1 on, and minutes one above 0")
    inputs = read_bench(suite, _hosts(hosts), _overrides(overrides), recipe=recipe, at_once=jobs)
    folder = BenchFolder(Path(output).absolute()) if output else new_bench_folder(Path(runs), inputs.name)
    given = math.inf if minutes is None else minutes
    return run_bench(inputs, folder, baseline=Path(baseline) if baseline else None, minutes=given)


def judge(
    logs: Path | str,
    *,
    slow: float | None = None,
    baseline: Path | str | None = None,
    at_least: str = "",
    workload: str = "",
    lines: Words = (),
    columns: Words = (),
    hardware: Words = (),
) -> Judged:
    """Name the hosts that were slow or failing, from others' logs, or of a bench from its folder.
    `Judged.gate` is the exit code.

    `slow`: the share of a step's time that counts (None: 0.01, or what a bench's suite says); `at_least`: a
    speed for every job, such as "800samples/s"; `hardware`: hosts of one kind, such as "a100=node[01-16]";
    `lines`: expressions for lines of other formats; `columns`: of tables, such as "step=iteration"
    (docs/judge.md). Raises UsageError.
    """
    from muster.benches.judge import judge as judge_any

    return judge_any(
        Path(logs),
        slow=slow,
        baseline=Path(baseline) if baseline else None,
        at_least=at_least,
        workload=workload,
        hardware=_words(hardware),
        lines=_words(lines),
        columns=_words(columns),
    )


def explain(what: Path | str = "last", *, runs: Path | str = DEFAULT_ROOT) -> Explanation:
    """Explain what went wrong in a run, in a bench's jobs, or in a log, an archive or a folder of logs: the
    cause, its evidence, and what helps. Raises RunFolderError, and UsageError where there is nothing to read.
    """
    from muster.benches.explain import explain as explain_any

    return explain_any(str(what), Path(runs))


def report(
    run: Path | str = "last", *, output: Path | str | None = None, runs: Path | str = DEFAULT_ROOT
) -> Path:
    """Write a run's or a pipeline's page, report.html in its folder or `output`. Return its path. Raises
    RunFolderError."""
    from muster.reports.pipeline import write_page

    return write_page(find_any(str(run), Path(runs)), Path(output) if output else None)
