"""muster recipes, muster schema, muster completion: what comes with Muster."""

from __future__ import annotations

from typing import Annotated, Literal

from muster.cli.options import Json
from muster.cli.output import print_columns, print_json, say
from muster.cli.parameters import Argument

EXAMPLES = {
    "recipes": """Examples:

  muster recipes

  muster recipes --json""",
    "schema": """Examples:

  muster schema recipe > recipe.schema.json

  muster schema result""",
    "completion": """Examples:

  muster completion bash >> ~/.bashrc

  muster completion zsh >> ~/.zshrc

  muster completion fish > ~/.config/fish/completions/muster.fish""",
}

What = Literal[
    "recipe", "result", "event", "inspection", "plan", "judged", "bench", "suite", "profile",
    "pipeline", "pipeline-result", "explanation",
]  # fmt: skip


def recipes(json: Json = False) -> int:
    """List the recipes and pipelines that come with Muster."""
    from muster.core.recipes import shipped_about

    shipped = shipped_about()
    if json:
        print_json([{"name": name, "about": about} for name, about in shipped.items()])
    else:
        print_columns([[name, about] for name, about in shipped.items()])
    return 0


def schema(what: Annotated[What, Argument(help="The document.")] = "recipe") -> int:
    """Print the JSON Schema of a file that you write (recipe, pipeline, suite, profile) or Muster writes."""
    from muster.schemas.documents import schema_of

    print_json(schema_of(what))
    return 0


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="Which shell.")]) -> int:
    """Print what makes a shell complete verbs, options, recipes and runs."""
    from click.shell_completion import get_completion_class

    from muster.cli.app import app

    made = get_completion_class(shell)
    assert made is not None
    say(made(app, {}, "muster", "_MUSTER_COMPLETE").source())
    return 0
