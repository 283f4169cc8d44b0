"""muster schema"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

EXAMPLES = """Examples:

  muster schema recipe > recipe.schema.json

  muster schema result"""


class What(str, Enum):
    """The documents that have a schema."""

    recipe = "recipe"
    result = "result"
    event = "event"
    inspection = "inspection"
    plan = "plan"
    judged = "judged"
    bench = "bench"
    suite = "suite"
    profile = "profile"


def schema(what: Annotated[What, typer.Argument(help="The document.")] = What.recipe) -> int:
    """Print the JSON Schema of a file that you write (recipe, suite, profile) or that Muster writes."""
    from muster.cli.output import print_json
    from muster.stages.schema import schema_of

    print_json(schema_of(what.value))
    return 0
