"""The command line: the verbs, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from muster import __version__
from muster.cli.output import fail, say
from muster.cli.parameters import command
from muster.core.errors import MusterError, PluginWarning, UsageError
from muster.core.near import did_you_mean

VERBS = (
    "demo",
    "check",
    "plan",
    "prepare",
    "train",
    "run",
    "bench",
    "ask",
    "resume",
    "ls",
    "show",
    "stop",
    "explain",
    "judge",
    "report",
    "gather",
    "join",
    "recipes",
    "schema",
    "completion",
)
# Verbs that share another file than their own.
FILES = {"report": "show", "recipes": "reference", "schema": "reference", "completion": "reference"}


class _Verbs(click.Group):
    """The verbs. A verb's module is loaded when it is typed: muster.cli.NAME (or its file in FILES) has a
    function NAME, and EXAMPLES: a text, or the text of each verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the verbs in the order in which they are used."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb, or None."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"muster.cli.{FILES.get(cmd_name, cmd_name)}")
        examples = module.EXAMPLES[cmd_name] if isinstance(module.EXAMPLES, dict) else module.EXAMPLES
        return command(cmd_name, getattr(module, cmd_name), examples)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each verb with the whole first paragraph of its help."""
        made = {name: self.get_command(ctx, name) for name in VERBS}
        with formatter.section("Verbs"):
            formatter.write_dl(
                [(name, ((each and each.help) or "").partition("\n\n")[0]) for name, each in made.items()]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that was typed. Raises UsageError with near names."""
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], VERBS) or "`muster --help` lists the verbs"
            raise UsageError("no such verb", where=args[0] or "''", hint=hint)
        return super().resolve_command(ctx, args)


app = _Verbs(
    name="muster",
    help="From a list of machines to a trained model, with proof that each machine pulled its weight.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app = click.version_option(__version__, message="muster %(version)s")(app)


def main(argv: list[str] | None = None) -> None:
    """Run a verb and exit: 0 succeeded, 1 failed, 2 bad input. A user never sees a traceback."""
    arguments, behind = sys.argv[1:] if argv is None else argv, None
    if arguments[:1] in (["run"], ["bench"]) and "--" in arguments:  # a command of the user's is behind it
        cut = arguments.index("--")
        arguments, behind = arguments[:cut], arguments[cut + 1 :]
    wants_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 takes less than there is to say
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _call(arguments or ["--help"], behind)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = fail("interrupted", None, as_json=wants_json, code=1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; Python would complain at exit
        code = 1
    sys.exit(code)


@contextmanager
def _plugin_warnings() -> Iterator[None]:
    """Show warnings about plug-ins as messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", PluginWarning)
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, PluginWarning):
                say(f"warning: {message}", err=True)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _call(arguments: list[str], behind: list[str] | None = None) -> int:

    wants_json = "--json" in arguments
    try:
        if "_MUSTER_COMPLETE" in os.environ:
            app.main(prog_name="muster")  # a shell asks what can follow: this exits
        with _plugin_warnings(), app.make_context("muster", list(arguments), obj=behind) as context:
            result: Any = app.invoke(context)
    except MusterError as error:
        return fail(str(error), error.hint, as_json=wants_json, code=error.exit_code, detail=error.as_dict())
    except click.exceptions.Exit as leave:
        return int(leave.exit_code)
    except click.ClickException as error:
        typed = getattr(error, "ctx", None)
        hint = f"`{typed.command_path if typed else 'muster'} --help`"
        return fail(error.format_message(), hint, as_json=wants_json, code=2)
    except BrokenPipeError:
        raise
    except Exception as error:
        from muster.core.registry import blamed
        from muster.failures.table import disk_full

        if isinstance(error, OSError) and (full := disk_full(error)):
            return fail(str(full), full.hint, as_json=wants_json, code=1, detail=full.as_dict())
        if os.environ.get("MUSTER_DEBUG"):
            raise
        if plugin := blamed(error):
            return fail(str(plugin), plugin.hint, as_json=wants_json, code=1, detail=plugin.as_dict())
        return fail(
            f"an error in muster itself: {type(error).__name__}: {error}",
            "MUSTER_DEBUG=1 shows where; please report it",
            as_json=wants_json,
            code=1,
        )
    return result if isinstance(result, int) else 0
