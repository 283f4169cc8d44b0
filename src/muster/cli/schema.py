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

    shipped = Path(__file__).resolve().parent.parent / "schemas" / f"{what}.schema.json"
    text = shipped.read_text(encoding="utf-8") if shipped.exists() else ""
    # A profile's depends on the checks that are installed, and a pipeline's result is mostly that of its
    # runs: both are made. An empty file is being renewed by `> FILE`.
    if text and what != "profile":
        say(text, end="")
        return 0

    from muster.schemas.documents import schema_of

    print_json(schema_of(what))
    return 0
