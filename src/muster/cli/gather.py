"""muster gather"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import Json
from muster.cli.output import err_console, print_json, say
from muster.cli.parameters import Argument, Option
from muster.core.hostlist import fold_hosts
from muster.core.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from muster.gather.gathered import Gathered
    from muster.gather.token import Token

EXAMPLES = """Examples:

  muster gather 3 --port 7000 --output hosts.json

  muster gather 8 --token-file token --partial --timeout 300 --output hostfile --output hosts.json"""

QUIET = 10.0  # seconds between two lines where there is no terminal


def gather(
    machines: Annotated[int, Argument(help="Number of machines to wait for.")],
    port: Annotated[int, Option(help="The port to listen on; 0: a free one.")] = 0,
    address: Annotated[str, Option(help="Listen on this address only, and give it to the machines.")] = "",
    timeout: Annotated[float, Option(help="Seconds to wait for all of them.")] = 600.0,
    partial: Annotated[
        bool, Option("--partial", help="Write those that have come when the time is up.")
    ] = False,
    token_file: Annotated[
        Path | None,
        Option(help="File with the token; made if missing. Default: MUSTER_JOIN_TOKEN, or a new token."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        Option(help="NAME.json: an inventory. Any other name: a DeepSpeed hostfile. Repeatable."),
    ] = None,
    json: Json = False,
) -> int:
    """Wait for machines that register themselves with `muster join`, and write an inventory of them."""
    from functools import partial as bind

    from muster.gather.gather import gather as run_gather
    from muster.gather.gathered import check_outputs, save
    from muster.gather.token import head_token

    outputs = output or []
    check_outputs(outputs)
    token = head_token(token_file)
    console = err_console()
    with WhoIsThere(console) as view:
        gathered = run_gather(
            machines,
            token.text,
            address=address,
            port=port,
            timeout=timeout,
            partial=partial,
            save=bind(save, outputs=outputs),
            opened=lambda at: console.print(_invitation(address, at, token), markup=False),
            watch=view,
        )
    _conclude(gathered, outputs, json, console)
    return 0


def _invitation(address: str, port: int, token: Token) -> str:
    """What to run on the members."""
    from muster.fleet.addresses import own_addresses

    shown = [address] if address else own_addresses(())[:8]
    known = [f"[{each}]" if ":" in each else each for each in shown]
    head = shlex.quote(f"{','.join(known) or '127.0.0.1'}:{port}")
    return (
        f"on each machine:       {token.before}muster join {head}{token.after}\n"
        f"or, without muster:    {token.before}python3 join.py {head}{token.after}\n"
        "                       (join.py: the output of `muster join --script`)"
    )


def _conclude(gathered: Gathered, outputs: list[Path], json: bool, console: Console) -> None:
    from muster.core.inventory import format_hostfile
    from muster.gather.gathered import config_of, document
    from muster.gather.members import as_hosts

    config = config_of(outputs)
    if json:
        print_json(document(gathered, config))
    elif not outputs:
        say(format_hostfile(as_hosts(gathered.members)), end="")
    for line in _remarks(gathered):
        console.print(line, markup=False)
    if config is not None:
        reads_it = outputs[0].suffix == ".json"  # the document names the ssh_config; a host file cannot
        options = "" if reads_it else f" 'launch.ssh_options=[-F, {config}]'"
        console.print(
            f"wrote {', '.join(str(path) for path in outputs)} and {config}\n"
            f"next: muster train RECIPE --hosts {outputs[0]}{options}",
            markup=False,
        )


def _remarks(gathered: Gathered) -> list[str]:
    """The summary, one line for each thing worth knowing."""
    slots = sum(member.slots for member in gathered.members)
    lines = [f"{len(gathered.members)} of {gathered.wanted} machines, {counted(slots, 'slot')}"]
    lines += [f"not usable: {name}: {why}" for name, why in gathered.unusable.items()]
    if gathered.turned_away:
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(gathered.turned_away.items()))
        lines.append(f"refused: {counts}")
    if gathered.unheard:
        lines.append(f"did not confirm (its connection broke): {fold_hosts(gathered.unheard)}")
    unproven = [member.name for member in gathered.members if not member.verified]
    if unproven:
        lines.append(
            f"host key not compared (ssh-keyscan is missing here or there): {', '.join(unproven[:10])}"
        )
    special = [member.name for member in gathered.members if member.port != 22]
    if special:
        lines.append(f"ssh ports other than 22 are in the ssh_config alone: {', '.join(special[:10])}")
    return lines


class WhoIsThere:
    """Who is there by now: a line that changes on a terminal, lines elsewhere. A context manager."""

    def __init__(self, console: Console) -> None:
        from rich.status import Status

        self._console = console
        self._status = Status("waiting", console=console) if console.is_terminal else None
        self._said = 0.0
        self._count = -1

    def __enter__(self) -> WhoIsThere:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, gathered: Gathered) -> None:
        """Show how things stand."""
        from rich.markup import escape

        names = [f"{member.hostname} ({member.slots})" for member in gathered.members]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        text = f"{len(names)} of {gathered.wanted} machines: {', '.join(names[:8])}{more}".rstrip(": ")
        if gathered.unusable:
            text += f"; not usable: {', '.join(list(gathered.unusable)[:8])}"
        if self._status:
            self._status.update(escape(text))
        elif len(names) != self._count and (time.monotonic() - self._said > QUIET or gathered.complete):
            self._count, self._said = len(names), time.monotonic()
            self._console.print(text, markup=False)
