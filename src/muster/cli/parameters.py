"""Make a command of a function: annotations of its parameters describe the command line.

def show(run: Annotated[str, Argument(help="A run.")], follow: Annotated[bool, Option("-f")] = False)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

# ----------------------------------------------------------------------------------------------------
# What a shell offers behind a verb: runs, recipes, suites, hosts.

_KEPT = 50  # runs; the newest


def candidates(names: Names, begun: str, root: Path) -> list[str]:
    """Return names with this beginning, and files where a file can be given; nothing where there is a `=`."""
    if "=" in begun:
        return []
    files = [] if names == "runs" and not begun.startswith((".", "/", "~")) else _files(begun, names)
    return [name for name in _known(names, root) if name.startswith(begun)] + files


def _known(names: Names, root: Path) -> list[str]:
    if names == "hosts":
        return ["local:2", "local:2x1", "localhost", "slurm:"]
    if names == "runs":
        from muster.store.runfolder import list_folders

        return ["last", *(run.id for run in reversed(list_folders(root)[-_KEPT:]))]
    package = Path(__file__).resolve().parent.parent
    folders = (names, "pipelines") if names == "recipes" else (names,)
    return sorted(path.stem for folder in folders for path in (package / folder).glob("*.yaml"))


def _files(begun: str, names: Names) -> list[str]:
    """Return folders, to continue from there; YAML files for recipes and suites, any file for hosts, none for
    runs."""
    head, slash, tail = begun.rpartition("/")
    paths = []
    try:
        for path in sorted(Path(head + slash or ".").expanduser().iterdir()):
            fits = path.name.startswith(tail) and (tail or not path.name.startswith("."))
            wanted = names == "hosts" or (names != "runs" and path.suffix in (".yaml", ".yml"))
            if fits and (path.is_dir() or wanted):
                paths.append(f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}")
    except OSError:
        pass
    return paths


Names = Literal["runs", "recipes", "suites", "hosts"]  # what a shell can complete


@dataclass(frozen=True)
class Argument:
    """A positional argument."""

    help: str = ""
    metavar: str | None = None
    complete: Names | None = None


class Option:
    """An option `--name`; without names, the parameter's own. `optional`: the value may be missing, which
    makes it True."""

    def __init__(
        self,
        *names: str,
        help: str = "",
        metavar: str | None = None,
        min: float | None = None,
        complete: Names | None = None,
        optional: bool = False,
    ) -> None:
        self.names, self.help, self.metavar, self.min, self.complete = names, help, metavar, min, complete
        self.optional = optional


class Verb(click.Command):
    """A command whose help describes its arguments as well, which click's does not."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments, then options."""
        # click 8.2 and later want a context, 8.1 none
        wanted = (ctx,) if "ctx" in inspect.signature(click.Argument.make_metavar).parameters else ()
        rows = [
            (param.make_metavar(*wanted), param.about)
            for param in self.get_params(ctx)
            if isinstance(param, _Argument)
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class _Argument(click.Argument):
    about = ""


class _Text(click.ParamType):  # type: ignore[type-arg]
    """Text, or a path, of at least one character."""

    name = "text"

    def __init__(self, made: Callable[[str], Any]) -> None:
        self.made = made

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as it is, if there is one."""
        if value == "":
            self.fail("is empty", param, ctx)
        return self.made(value) if isinstance(value, str) else value


def command(name: str, function: Callable[..., Any], examples: str) -> click.Command:
    """Return the command that calls `function`; its docstring is the help, and `examples` end it."""
    hints = typing.get_type_hints(function, include_extras=True)
    params = [
        _parameter(each.name, hints[each.name], each.default)
        for each in inspect.signature(function).parameters.values()
    ]

    def call(**given: Any) -> Any:
        options = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        return function(**{key: value for key, value in options.items() if value is not None})

    epilog = "\n\n".join(f"\b\n{part}" for part in examples.split("\n\n"))
    about = inspect.getdoc(function) or ""
    return Verb(name, callback=call, params=params, help=about, epilog=epilog)


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    kind, about = typing.get_args(hint)[:2]
    inner = [each for each in typing.get_args(kind) if each is not type(None)]
    if inner and type(None) in typing.get_args(kind):  # X | None
        kind = inner[0]
    many = typing.get_origin(kind) is list
    kind = typing.get_args(kind)[0] if many else kind
    required = default is inspect.Parameter.empty
    shows_default = not required and default not in (None, "")  # a default worth telling
    shared: dict[str, Any] = {
        "required": required,
        "metavar": about.metavar,
        "shell_complete": about.complete
        and (lambda ctx, _, begun: candidates(about.complete, begun, ctx.params.get("root") or Path("runs"))),
    } | ({"default": default} if shows_default else {})
    if isinstance(about, Argument):
        made = _Argument([name], type=_type(kind, None), nargs=-1 if many else 1, **shared)
        made.about = about.help
        return made
    flag = f"--{name.replace('_', '-')}"
    names = [*(about.names or (flag,)), name]
    if about.optional:
        shared |= {"is_flag": False, "flag_value": True}
    if kind is bool:
        return click.Option(names, is_flag=True, help=about.help, default=default)
    return click.Option(
        names,
        type=_type(kind, about.min),
        multiple=many,
        help=about.help,
        show_default=shows_default,
        **shared,
    )


def _type(kind: Any, least: float | None) -> Any:
    if kind is int:
        return int if least is None else click.IntRange(min=int(least))
    if kind is float:
        return float if least is None else click.FloatRange(min=least)
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind))
    return _Text(Path if kind is Path else str)
