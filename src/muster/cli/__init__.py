"""Floor 7: one small file per verb: parse, call, print. The only floor that prints, catches errors or exits.
"""

from __future__ import annotations

from muster.cli.app import main

__all__ = ["main"]
