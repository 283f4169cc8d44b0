"""Renew the documents of tests/golden: python -m tests.golden.renew [KIND ...]"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def kinds() -> dict[str, Callable[[], object]]:
    """What renews each kind: test files of this folder have them in DOCUMENTS."""
    found: dict[str, Callable[[], object]] = {"commands": commands}
    for file in sorted(FOLDER.glob("test_*.py")):
        module = import_module(f"tests.golden.{file.stem}")
        found |= {each.kind: each.renew for each in getattr(module, "DOCUMENTS", ())}
    return found


def commands() -> None:
    """The commands that launchers run: the tests themselves write them."""
    os.environ["MUSTER_UPDATE_GOLDEN"] = "1"
    pytest.main(["-q", "-n", "0", str(FOLDER / "test_launch_commands.py")])


def main(names: list[str]) -> None:
    """Renew those kinds; all of them where none is named."""
    known = kinds()
    for name in names or known:
        known[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
