"""Numbers for people: an unknown one says so, and no rounding crosses into a silly unit (1000.0 kB)."""

from __future__ import annotations

import re
from pathlib import Path


def test_sizes_are_written_in_one_place() -> None:
    """Whoever divides by 1024 to show bytes has units of his own."""
    source = Path(__file__).parents[2] / "src" / "muster"
    own = re.compile(r"}\s?[KMGT]iB|[:}]\S*}\s?[MG]B(?!/s)")
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if own.search(line)
    ]
    assert found == []
