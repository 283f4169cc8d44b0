"""muster schema"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from muster.cli.output import print_json, say
from muster.cli.parameters import Argument

EXAMPLES = """Examples:

  muster schema recipe > recipe.schema.json

  muster schema result"""

What = Literal[
    "recipe", "result", "event", "inspection", "plan", "judged", "bench", "suite", "profile",
    "pipeline", "pipeline-result", "explanation",
]  # fmt: skip


def schema(what: Annotated[What, Argument(help="The document.")] = "recipe") -> int:
    """Print the JSON Schema of a file that you write (recipe, pipeline, suite, profile) or Muster writes."""

    from muster.core.registry import FOLDERS, package_of, plugin_names

    shipped = Path(__file__).resolve().parent.parent / "schemas" / f"{what}.schema.json"
    text = shipped.read_text(encoding="utf-8") if shipped.exists() else ""
    # A profile's depends on the checks that are installed, a recipe's on the workloads, and a pipeline's
    # result is mostly that of its runs: these are made. An empty file is being renewed by `> FILE`.
    others = what == "recipe" and any(
        package_of(group, name) for group in FOLDERS for name in plugin_names(group)
    )
    if text and what != "profile" and not others:
        say(text, end="")
        return 0

    from muster.schemas.documents import schema_of

    print_json(schema_of(what))
    return 0
