"""rich's console for text that others wrote: host names, logs, file names, what agents say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from muster.core.printable import clean, printable


class SafeConsole(Console):
    """Prints every text clean; styles, and what rich itself tells the terminal, are as ever. `:name:` is no
    picture: a reward function may be FILE.py:boom."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"emoji": False, **how})

    def render_str(self, text: str, **how: Any) -> Text:
        """Of a text with markup; before it is measured."""
        return super().render_str(clean(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Of everything else, such as a table's or a bar's texts."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
