"""muster prepare"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import Hosts, Json, split_words
from muster.cli.output import err_console, out_console, print_json, say
from muster.cli.parameters import Argument, Option
from muster.core.errors import JobError, UsageError
from muster.core.units import check_timeout, format_bytes, format_seconds

if TYPE_CHECKING:
    from muster.inputs.read import Inputs
    from muster.prepare.plan import Options
    from muster.prepare.result import PreparedHost, Provisioned

EXAMPLES = """Examples:

  muster prepare node1:8,node2:8 my.yaml

  muster prepare hostfile my.yaml --wheels wheels/ --python python3.11

  muster prepare hostfile my.yaml --no-env launch.python=/opt/conda/bin/python"""


def prepare(
    words: Annotated[
        list[str],
        Argument(
            metavar="HOSTS RECIPE [KEY=VALUE]...",
            help="Hosts, unless --hosts gives them; a recipe or pipeline; changes, such as engine.zero=3.",
            complete="hosts",
        ),
    ],
    given: Hosts = "",
    wheels: Annotated[
        Path | None, Option(help="Install from the wheels in this folder, which are copied to the hosts.")
    ] = None,
    index: Annotated[str | None, Option(help="Package index. Default: the hosts' own.")] = None,
    python: Annotated[
        str | None, Option(help="Python on the hosts, 3.10 or later. Default: python3.")
    ] = None,
    venv: Annotated[
        str | None,
        Option(help="Folder of the environment. Default: ~/.cache/muster/venvs/<hash of the packages>."),
    ] = None,
    constraints: Annotated[
        Path | None, Option(help="Take versions from this file instead of from this machine.")
    ] = None,
    requirements: Annotated[
        Path | None, Option(help="Install exactly these NAME==VERSION lines instead.")
    ] = None,
    kernel_cache: Annotated[
        str | None,
        Option(
            help="Folder on each host's own disk for compiled kernels. Default: /tmp where home is on a "
            "network disk."
        ),
    ] = None,
    no_env: Annotated[
        bool, Option("--no-env", help="Use the hosts' environment: compare it, build none.")
    ] = False,
    no_warm: Annotated[
        bool, Option("--no-warm", help="Leave out the one-step job that compiles kernels.")
    ] = False,
    timeout: Annotated[float, Option(help="Seconds for each host in total.")] = 7200,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would be done; contact no host.")] = False,
    json: Json = False,
) -> int:
    """Make every host ready for a recipe or a pipeline: one environment, models and data, compiled kernels.

    The environment is what ranks import (Muster's extra `train`), in the versions that are installed here.
    Run it again after an interruption or for new hosts: finished work is not repeated.
    """
    import tempfile

    from muster.inputs.pipeline import find_pipeline
    from muster.inputs.read import read_inputs
    from muster.prepare.plan import Options, make_plan, plan_as_dict, plan_text
    from muster.runs.pipeline import read_pipeline

    for clash, names in (
        (no_env and bool(wheels or index or venv or constraints or requirements), "--no-env and its kind"),
        (bool(constraints and requirements), "--constraints and --requirements"),
        (bool(wheels and index), "--wheels and --index"),
    ):
        if clash:
            raise UsageError(f"{names} do not go together", hint="muster prepare --help")
    check_timeout(timeout)
    hosts, named, changes = split_words(words, given, ("HOSTS", "RECIPE"))
    if "RECIPE" not in named:
        raise UsageError(
            "no recipe was given", hint="muster prepare HOSTS RECIPE; `muster recipes` lists some"
        )
    options = Options(
        wheels=wheels,
        index=index,
        python=python,
        venv=venv,
        constraints=constraints,
        requirements=requirements,
        kernel_cache=kernel_cache,
        environment=not no_env,
        warm=not no_warm,
        timeout=timeout,
    )
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        if (pipeline := find_pipeline(named["RECIPE"])) is not None:
            later = Path(folder)  # models that its steps train
            recipes = [inputs for _, inputs in read_pipeline(pipeline, hosts, changes).checked(later)]
        else:
            later, recipes = None, [read_inputs(named["RECIPE"], hosts, changes)]
        if dry_run:
            say(plan_text(plan_as_dict(make_plan(recipes, options, later), recipes, options)))
            return 0
        return _run(recipes, options, later, json)


def _run(recipes: list[Inputs], options: Options, later: Path | None, json: bool) -> int:
    from muster.prepare.prepare import provision

    console = err_console()
    latest: dict[str, str] = {}

    def show(host: str, text: str) -> None:
        """Print a line for each new thing that a host does."""
        if latest.get(host) != text:
            latest[host] = text
            console.print(f"{host}: {text}", markup=False)

    try:
        done = provision(recipes, options, later=later, progress=show)
    except KeyboardInterrupt as stop:
        why = str(stop) or "interrupted"
        raise JobError(why, hint="run it again: it continues where it stopped") from None
    if json:
        print_json(done.as_dict())
    else:
        _print(done)
    return 0 if done.ok else 1


def _print(done: Provisioned) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for name in ("host", "environment", "copied", "warm", ""):
        table.add_column(name, overflow="fold")
    for report in done.hosts:
        colour = "red" if report.failure else "green"
        cells = [report.host, _environment(report), _copied(report), _warm(report)]
        table.add_row(*map(escape, cells), f"[{colour}]{report.status}[/{colour}]")
    console, errors = out_console(), err_console()
    console.print(table)
    for difference in done.differences:
        console.print(f"differs  {difference}", markup=False)
    for note in done.notes:
        console.print(f"note     {note}", markup=False)
    for report in done.hosts:
        for note in report.notes:
            console.print(f"note     {report.host}: {note}", markup=False)
        if report.failure:
            errors.print(f"failed   {report.host}: {report.failure['what']}", markup=False)
            if report.failure["hint"]:
                errors.print(f"hint:    {report.failure['hint']}", markup=False)
    if done.use:
        bare = re.compile(r"launch\.python=~[^ ]*")  # the hosts expand its ~
        words = " ".join(word if bare.fullmatch(word) else shlex.quote(word) for word in done.use)
        console.print(f"use it   muster train RECIPE --hosts HOSTS {words}", markup=False)


def _environment(report: PreparedHost) -> str:
    about = report.environment
    if not about:
        return ""
    took = f" in {format_seconds(about['seconds'])}" if about["status"] == "built" else ""
    return f"{about['status']}{took}, {about['packages']} packages, {about['digest'][:12]}"


def _copied(report: PreparedHost) -> str:
    lines = []
    for each in report.copied:
        if each["status"] == "copied":
            took = f"{format_bytes(each['bytes'])} in {format_seconds(each['seconds'])}"
            lines.append(f"{each['what']}: {took}")
        else:
            lines.append(f"{each['what']}: {each['status']}")
    return "\n".join(lines)


def _warm(report: PreparedHost) -> str:
    if not report.warm:
        return ""
    if report.warm["status"] != "warmed":
        return str(report.warm["status"])
    return f"warmed in {format_seconds(report.warm['seconds'])}"
