"""muster recipes"""

from __future__ import annotations

from muster.cli.options import Json
from muster.cli.output import print_columns, print_json

EXAMPLES = """Examples:

  muster recipes

  muster recipes --json"""


def recipes(json: Json = False) -> int:
    """List the recipes and pipelines that come with Muster."""
    from muster.core.recipes import shipped_about

    shipped = shipped_about()
    if json:
        print_json([{"name": name, "about": about} for name, about in shipped.items()])
    else:
        print_columns([[name, about] for name, about in shipped.items()])
    return 0
