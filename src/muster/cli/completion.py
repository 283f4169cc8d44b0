"""muster completion"""

from __future__ import annotations

from typing import Annotated, Literal

from muster.cli.output import say
from muster.cli.parameters import Argument

EXAMPLES = """Examples:

  muster completion bash >> ~/.bashrc

  muster completion zsh >> ~/.zshrc

  muster completion fish > ~/.config/fish/completions/muster.fish"""


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="Which shell.")]) -> int:
    """Print what makes a shell complete verbs, options, recipes and runs."""
    from click.shell_completion import get_completion_class

    from muster.cli.app import app

    made = get_completion_class(shell)
    assert made is not None
    say(made(app, {}, "muster", "_MUSTER_COMPLETE").source())
    return 0
