"""muster gather"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import Json, check_output
from muster.cli.output import err_console, print_json, say
from muster.cli.parameters import Argument, Option
from muster.core.errors import JobError, refused
from muster.core.units import counted

if TYPE_CHECKING:
    from muster.gather.gather import Gathered
    from muster.gather.token import Token

EXAMPLES = """Examples:

  muster gather 3 --port 7000 --output hostfile

  muster gather 8 --token-file token --timeout 300 --output hostfile"""


def gather(
    machines: Annotated[int, Argument(help="Number of machines to wait for.")],
    port: Annotated[int, Option(help="The port to listen on; 0: a free one.")] = 0,
    address: Annotated[str, Option(help="Listen on this address only, and give it to the machines.")] = "",
    timeout: Annotated[float, Option(help="Seconds to wait for all of them.")] = 600.0,
    token_file: Annotated[
        Path | None,
        Option(help="File with the token; made if missing. Default: MUSTER_JOIN_TOKEN, or a new token."),
    ] = None,
    output: Annotated[
        Path | None, Option(help="Write a DeepSpeed hostfile here. Default: to standard output.")
    ] = None,
    json: Json = False,
) -> int:
    """Wait for machines that register themselves with `muster join`, and write a hostfile of them."""
    from muster.core.inventory import format_hostfile
    from muster.gather.gather import gather as run_gather
    from muster.gather.token import head_token
    from muster.store.atomic import write_text

    check_output(output)
    token = head_token(token_file)
    console = err_console()

    def save(gathered: Gathered) -> None:
        if output is not None:
            with refused(JobError, "written", output):
                write_text(output, format_hostfile(gathered.hosts))

    def watch(gathered: Gathered) -> None:
        names = [f"{member.hostname} ({member.slots})" for member in gathered.members]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        text = f"{len(names)} of {machines} machines: {', '.join(names[:8])}{more}"
        console.print(text.removesuffix(": "), markup=False)

    gathered = run_gather(
        machines,
        token.text,
        address=address,
        port=port,
        timeout=timeout,
        save=save,
        opened=lambda at: console.print(_invitation(address, at, token), markup=False),
        watch=watch,
    )
    if json:
        print_json(gathered.as_dict())
    elif output is None:
        say(format_hostfile(gathered.hosts), end="")
    slots = sum(member.slots for member in gathered.members)
    console.print(f"{machines} of {machines} machines, {counted(slots, 'slot')}", markup=False)
    if gathered.refused:
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(gathered.refused.items()))
        console.print(f"refused: {counts}", markup=False)
    if output is not None:
        console.print(f"wrote {output}\nnext: muster check {output}", markup=False)
    return 0


def _invitation(address: str, port: int, token: Token) -> str:
    """Return what to run on the members."""
    from muster.fleet.addresses import own_addresses

    shown = [address] if address else own_addresses(())[:8]
    names = [f"[{each}]" if ":" in each else each for each in shown]
    head = shlex.quote(f"{','.join(names) or '127.0.0.1'}:{port}")
    return (
        f"on each machine:       {token.before}muster join {head}{token.after}\n"
        f"or, without muster:    {token.before}python3 join.py {head}{token.after}\n"
        "                       (join.py: the output of `muster join --script`)"
    )
