"""muster join"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from muster.cli.options import Json
from muster.cli.output import err_console, print_json, say
from muster.cli.parameters import Argument, Option
from muster.core.errors import UsageError

EXAMPLES = """Examples:

  muster join node1:7000 --token-file token

  muster join 10.0.0.1:7000 --slots 4 --address pod-1.example

  muster join --script > join.py"""


def join(
    head: Annotated[str, Argument(help="HEAD[,HEAD...]:PORT, as `muster gather` printed it.")] = "",
    token_file: Annotated[
        Path | None, Option(help="A file with the token. Default: the environment's MUSTER_JOIN_TOKEN.")
    ] = None,
    slots: Annotated[int | None, Option(help="Ranks on this machine; default: its GPUs, or 1.")] = None,
    address: Annotated[
        str, Option(help="How others reach this machine. Default: where the head sees it come from.")
    ] = "",
    timeout: Annotated[float, Option(help="Seconds to wait for the head and all machines.")] = 600.0,
    script: Annotated[bool, Option("--script", help="Print a script that does this without muster.")] = False,
    json: Json = False,
) -> int:
    """Register this machine with a head that runs `muster gather`, and wait until all machines are there."""
    from muster.gather.join import join as run_join
    from muster.gather.join import script as script_text
    from muster.gather.token import member_token

    if script:
        say(script_text(), end="")
        return 0
    if not head:
        raise UsageError(
            "no head given", hint="use the command that muster gather printed, with HEAD such as node1:7000"
        )
    console = err_console()
    answer = run_join(
        head,
        member_token(token_file),
        slots=slots,
        address=address,
        timeout=timeout,
        say=lambda text: console.print(text, markup=False),
    )
    if json:
        print_json({"name": answer["name"], "members": answer["members"]})
    else:
        say(f"registered as {answer['name']}, one of {answer['members']}")
    return 0
