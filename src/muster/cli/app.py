"""The command line: the verbs, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Annotated, Any

import typer

from muster import __version__
from muster.cli.output import fail, say

VERBS = (
    "demo",
    "check",
    "plan",
    "prepare",
    "train",
    "bench",
    "ask",
    "resume",
    "ls",
    "show",
    "stop",
    "judge",
    "report",
    "gather",
    "join",
    "schema",
)

app = typer.Typer(
    name="muster",
    help="From a list of machines to a trained model, with proof that each machine pulled its weight.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name in VERBS:  # muster.cli.NAME has a function NAME and EXAMPLES
    module = importlib.import_module(f"muster.cli.{name}")
    app.command(name, epilog=module.EXAMPLES)(getattr(module, name))


def _version(wanted: bool) -> None:
    if wanted:
        say(f"muster {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(argv: list[str] | None = None) -> None:
    """Run a verb and exit: 0 succeeded, 1 failed, 2 bad input. A user never sees a traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    wants_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 takes less than there is to say
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _call(arguments)
    except KeyboardInterrupt:
        code = fail("interrupted", None, as_json=wants_json, code=1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; Python would complain at exit
        code = 1
    sys.exit(code)


def _call(arguments: list[str]) -> int:
    from muster.core.errors import MusterError, disk_full

    wants_json = "--json" in arguments
    try:
        result: Any = app(arguments, standalone_mode=False)
    except MusterError as error:
        return fail(str(error), error.hint, as_json=wants_json, code=error.exit_code, detail=error.as_dict())
    except typer.Exit as leave:
        return int(leave.exit_code)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's usage errors
            return fail(error.format_message(), "muster VERB --help", as_json=wants_json, code=2)
        if isinstance(error, OSError) and (full := disk_full(error)):
            return fail(str(full), full.hint, as_json=wants_json, code=1, detail=full.as_dict())
        if os.environ.get("MUSTER_DEBUG"):
            raise
        return fail(
            f"an error in muster itself: {type(error).__name__}: {error}",
            "MUSTER_DEBUG=1 shows where; please report it",
            as_json=wants_json,
            code=1,
        )
    return result if isinstance(result, int) else 0
