"""Options that several verbs share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from muster.cli.parameters import Argument, Option
from muster.core.errors import UsageError

Start = Literal["torchrun", "rank", "host"]  # of a command's processes
Json = Annotated[bool, Option("--json", help="Print one JSON document.")]
Root = Annotated[Path, Option("--runs", help="Folder of the runs.")]
Recipe = Annotated[
    str, Argument(help="A recipe: a YAML file, or a name of `muster recipes`.", complete="recipes")
]
Run = Annotated[str, Argument(help="A run: its folder, its id, a part of it, or `last`.", complete="runs")]
Output = Annotated[Path | None, Option("--output", "-o", help="The run's folder; must not exist.")]
Name = Annotated[str, Option("--name", "-n", help="The run's name: its folder in --runs, and RUN.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print what would run; start nothing.")]
Verbose = Annotated[bool, Option("--verbose", help="With --dry-run: every command, environment and file.")]
Detach = Annotated[
    bool, Option("--detach", help="With slurm:, submit and return; watch with `muster show RUN --follow`.")
]
Hosts = Annotated[
    str,
    Option(
        "--hosts",
        "-H",
        help="host1,host2:8, node[01-16], local:2, local:2x1, or a host file.",
        complete="hosts",
    ),
]
Words = Annotated[
    list[str] | None,
    Argument(
        metavar="[HOSTS] [KEY=VALUE]...",
        help="Hosts, unless --hosts gives them; changes of the recipe, such as engine.zero=3.",
        complete="hosts",
    ),
]
# Of the verbs that judge hosts (judging/document.py: Gate), at the end of their help.
EXIT_CODES = """Exit code:

  0  every host is fit, or differs from its peers by no more than this fleet's hosts do

  1  a host, link, switch or the whole fleet is slow, failing, unfit or below a threshold; of a bench
     also: a job failed

  2  bad input

  3  nothing is known against a host, but not everything was judged"""


def check_output(path: Path | None) -> None:
    """Refuse at once a file that could not be written in the end. Raises UsageError."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError("is a folder", where=str(path), hint="--output names a file in it")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError("its folder is not there, or cannot be written", where=str(path))


def split_words(
    words: list[str] | None, hosts: str, order: tuple[str, ...] = ("HOSTS",)
) -> tuple[str, dict[str, str], list[str]]:
    """Split the words of a command line into hosts, words by their meaning, and KEY=VALUE.

    The words without `=` come in this `order`; HOSTS is left out where --hosts gave them. Raises UsageError
    for a word too many.
    """
    from muster.core.recipe import recipe_classes
    from muster.core.recipes import field_paths

    keys = {path for recipe in recipe_classes().values() for path in field_paths(recipe) if "." in path}
    changes = [word for word in words or [] if "=" in word or word in keys]  # `engine.zero`: told about later
    named = [word for word in words or [] if word not in changes]
    wanted = [name for name in order if name != "HOSTS" or not hosts]
    if len(named) > len(wanted):
        hint = "changes are written as KEY=VALUE; --hosts gives hosts once"
        raise UsageError("is one word too many", where=named[len(wanted)], hint=hint)
    by_name = dict(zip(wanted, named, strict=False))
    return hosts or by_name.get("HOSTS", ""), by_name, changes
