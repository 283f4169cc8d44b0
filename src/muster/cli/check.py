"""muster check"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from muster.cli.options import Hosts, Json, Words, check_output, split_words
from muster.cli.output import err_console, print_json
from muster.cli.parameters import Option
from muster.core.errors import UsageError

EXAMPLES = """Examples:

  muster check node[01-16]

  muster check hostfile --recipe text2sql-t5-small --profile h100-8

  muster check hostfile --output fit.json

  muster check --list"""


def check(
    words: Words = None,
    given: Hosts = "",
    recipe: Annotated[
        str, Option("--recipe", "-r", help="Check for this recipe: a YAML file, or a shipped name.")
    ] = "",
    profile: Annotated[
        str,
        Option(
            "--profile",
            "-p",
            help="Check profile with what is expected of hosts: a YAML file, or a shipped name.",
        ),
    ] = "",
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the usable hosts to this file, for --hosts.")
    ] = None,
    expect_gpus: Annotated[
        str, Option("--expect-gpus", metavar="N|none", help="GPUs that each host must have.")
    ] = "",
    group: Annotated[
        bool,
        Option("--group/--no-group", help="Also start ranks on the fit hosts and measure links and devices."),
    ] = True,
    list_: Annotated[bool, Option("--list", help="Explain every check; contact no host.")] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Also print facts that need no action.")
    ] = False,
    json: Json = False,
) -> int:
    """Check hosts: list what is wrong on which host, with evidence and a remedy."""
    from muster.checks.check import check as inspect
    from muster.checks.check import save_inventory, settings_of
    from muster.checks.inspection import remember
    from muster.cli.views.inspection import ProgressLine, print_checks, print_inspection
    from muster.core.inventory import read_inventory

    if list_:
        print_checks(profile or None, as_json=json)
        return 0
    hosts, _, changes = split_words(words, given)
    check_output(output)
    gpus = _gpus(expect_gpus)
    with ProgressLine(err_console()) as line:
        settings = settings_of(recipe, changes)
        inspection = inspect(
            read_inventory(hosts), settings, named=recipe or None, profile=profile or None, gpus=gpus,
            group=group, progress=line, announce=line.announce,
        )  # fmt: skip
    remember(inspection)
    if json:
        print_json(inspection.model_dump(mode="json"))
    else:
        print_inspection(inspection, verbose=verbose)
    if output is not None:
        count = save_inventory(inspection, output)
        written = f"{count} of {len(inspection.hosts)} hosts written to {output}"
        err_console().print(written if count else f"no host is usable: {output} was not written")
    return 0 if inspection.sound else 1


def _gpus(text: str) -> int | None:
    """Return the number of --expect-gpus: `none` is 0, and None is not given."""
    if not text:
        return None
    if text == "none":
        return 0
    if not text.isdecimal() or not 0 <= int(text) <= 64:
        raise UsageError(f"is a number from 0 to 64, or none; not {text!r}", where="--expect-gpus")
    return int(text)
