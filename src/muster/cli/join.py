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

  muster join 10.0.0.1:7000 --slots 4 --ssh-port 2222

  muster join --script > join.py"""


def join(
    head: Annotated[str, Argument(help="HEAD[,HEAD...]:PORT, as `muster gather` printed it.")] = "",
    token: Annotated[
        str | None,
        Option(help="The token; others on this machine see it in `ps`. Better: MUSTER_JOIN_TOKEN."),
    ] = None,
    token_file: Annotated[Path | None, Option(help="A file with the token.")] = None,
    slots: Annotated[int | None, Option(help="Ranks on this machine; default: its GPUs, or 1.")] = None,
    ssh_port: Annotated[int, Option(help="The port of this machine's ssh server.")] = 22,
    user: Annotated[str | None, Option(help="User name for logins to this machine. Default: yours.")] = None,
    address: Annotated[
        list[str] | None,
        Option(help="Address of this machine, if it cannot find it itself. Repeatable."),
    ] = None,
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
    joined = run_join(
        head,
        member_token(token, token_file),
        slots=slots,
        ssh_port=ssh_port,
        user=user,
        addresses=address or [],
        timeout=timeout,
        say=lambda text: console.print(text, markup=False),
    )
    if json:
        print_json({"name": joined.name, "members": joined.members})
    else:
        say(f"registered as {joined.name}, one of {joined.members}")
    return 0
