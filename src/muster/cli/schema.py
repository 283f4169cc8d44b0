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


def schema(what: Annotated[What, typer.Argument(help="Which document.")] = What.recipe) -> int:
    """Print a JSON Schema: recipes and suites (for editors), plans, results, events, inspections, benches."""
    from muster.cli.output import print_json
    from muster.stages.schema import schema_of

    print_json(schema_of(what.value))
    return 0
