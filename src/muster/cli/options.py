"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Root = Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")]
Run = Annotated[str, typer.Argument(help="A run: its folder, its id, a part of it, or `last`.")]
