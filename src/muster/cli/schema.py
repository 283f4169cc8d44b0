"""muster schema"""

from __future__ import annotations

from typing import Annotated, Literal

from muster.cli.output import print_json
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
    from muster.schemas.documents import schema_of

    print_json(schema_of(what))
    return 0
