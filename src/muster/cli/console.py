"""A rich console for text of other authors: host names, logs, file names, messages of agents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from muster.core.printable import clean, printable


class SafeConsole(Console):
    """Prints every text without terminal controls; styles, and rich's own controls, stay. `:name:` is no
    emoji: a reward function may be FILE.py:boom."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"emoji": False, **how})

    def render_str(self, text: str, **how: Any) -> Text:
        """Clean a text with markup, before it is measured."""
        return super().render_str(clean(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean everything else, such as texts of a table or a bar."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
