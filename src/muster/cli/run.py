"""muster run"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from muster.cli.options import (
    Detach,
    DryRun,
    Hosts,
    Json,
    Name,
    Output,
    Root,
    Start,
    Verbose,
    Words,
    split_words,
)  # fmt: skip
from muster.cli.parameters import Option
from muster.core.errors import RecipeError, UsageError

EXAMPLES = """Examples:

  muster run local:2x1 -- train.py --epochs 3

  muster run node[01-04] --sync . -- --nproc-per-node=8 train.py

  muster run hostfile --start rank --names ompi -- ./train --lr 0.1

  muster run hostfile --start host -- bash -c 'ray start --address=$MASTER_ADDR:6379 --block'"""

Names = Literal["ompi", "slurm", "pmi"]


def run(
    words: Words = None,
    hosts: Hosts = "",
    start: Annotated[
        Start,
        Option(
            "--start",
            help="torchrun: COMMAND is a Python script, with torchrun's own options before it. rank: COMMAND "
            "once per slot, with torchrun's variables. host: once per host.",
        ),
    ] = "torchrun",
    names: Annotated[
        list[Names] | None,
        Option("--names", help="With --start rank, set a rank's variables by these names as well."),
    ] = None,
    local_rank: Annotated[
        bool, Option("--local-rank", help="Append --local_rank=N for each rank, as `deepspeed` does.")
    ] = False,
    sync: Annotated[
        str, Option("--sync", help="A folder of code to bring to every host, less what .gitignore names.")
    ] = "",
    workdir: Annotated[str, Option("--workdir", help="The folder on each host to start in.")] = "",
    env: Annotated[
        list[str] | None, Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable of the command's.")
    ] = None,
    env_file: Annotated[Path | None, Option("--env-file", help="A file of NAME=VALUE lines.")] = None,
    python: Annotated[str, Option("--python", help="The interpreter on the hosts.")] = "",
    timeout: Annotated[
        float | None, Option("--timeout", help="Seconds after which all of it is ended.")
    ] = None,
    line: Annotated[
        list[str] | None,
        Option(
            "--line",
            metavar="REGEX",
            help="How lines tell steps and speed: 'step (?P<step>\\d+) .* (?P<seconds>\\S+)s'. Repeatable.",
        ),
    ] = None,
    output: Output = None,
    name: Name = "",
    root: Root = Path("runs"),
    dry_run: DryRun = False,
    verbose: Verbose = False,
    detach: Detach = False,
    json: Json = False,
) -> int:
    """Run any command on hosts, behind `--`: watched, measured, and ended everywhere together."""
    import click

    from muster.cli.train import start as start_job
    from muster.core.recipes import lay_over, parse_override
    from muster.inputs.read import inputs_of, read_env_file

    command = click.get_current_context().find_root().obj
    if not command:
        raise UsageError("there is no command", where="muster run", hint="muster run HOSTS -- COMMAND ...")
    hosts, _, changes = split_words(words, hosts)
    own = {
        "start": start,
        "names": names or [],
        "local_rank": local_rank,
        "sync": sync or None,
        "workdir": workdir or None,
        "line": line or None,
    }
    launch: dict[str, Any] = {"python": python or None, "timeout": timeout}
    data = {
        "workload": "command",
        "command": command,
        "run": own,
        "launch": launch,
        "env": {**(read_env_file(env_file) if env_file else {}), **_variables(env or [])},
    }
    inputs = inputs_of(lay_over(data, [parse_override(each) for each in changes]), hosts)
    return start_job(inputs, output, name, root, dry_run=dry_run, verbose=verbose, detach=detach, json=json)


def _variables(words: list[str]) -> dict[str, str | None]:
    """Parse NAME=VALUE, or NAME alone: with its value here."""
    variables: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in os.environ:
            raise RecipeError(f"{name} is not set here", where="--env", hint=f"--env {name}=VALUE")
        variables[name] = value if equals else None
    return variables
