"""docs/checks.md says what the checks say. To write it anew: python -m tests.unit.test_checks_docs"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from muster.checks.base import Check
from muster.checks.profiles import shipped_profiles
from muster.core.recipes import read_yaml
from muster.core.units import format_bytes
from tests.unit.judging import ALL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"
START, END = "<!-- generated from the checks themselves: begin -->\n", "<!-- end -->\n"
GROUP = ("fabric",)  # families of ranks that work together: not of this page


def generated() -> str:
    """The tables: every single-host check with its default expectations, and the profiles."""
    parts = []
    single = [check for check in ALL if check.name.partition(".")[0] not in GROUP]
    for family, checks in groupby(single, key=lambda check: check.name.partition(".")[0]):
        parts.append(
            f"### {family}\n\n| check | what is looked at | otherwise | expects |\n| --- | --- | --- | --- |"
        )
        parts += [_row(check) for check in checks]
        parts.append("")
    parts.append("### Shipped profiles\n\n| profile | for |\n| --- | --- |")
    parts += [f"| `{name}` | {read_yaml(path)['about']} |" for name, path in shipped_profiles().items()]
    return "\n".join(parts) + "\n"


def _row(check: Check) -> str:
    expects = ", ".join(f"{key}: {_shown(value)}" for key, value in check.expects.items())
    return f"| `{check.name}` | {check.asks} | {check.why} | {expects} |"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        return format_bytes(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_the_page_has_the_checks_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(START)[2].partition(END)[0] == generated()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + generated() + END + rest.partition(END)[2], encoding="utf-8")
