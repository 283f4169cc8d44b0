"""How new the validation values are: the measure behind "values never seen in training"."""

from __future__ import annotations

import re
from collections.abc import Iterable

LITERAL = re.compile(r"'([^']*)'|\b(\d+)\b")
WORD = re.compile(r"\w+")


def literals(sql: str) -> list[str]:
    """The values in a statement: quoted strings and whole numbers."""
    return [text or number for text, number in LITERAL.findall(sql)]


def unseen_share(train: Iterable[tuple[str, str]], validation: Iterable[tuple[str, str]]) -> float:
    """Of the validation (question, SQL) pairs that hold a value: the share with one no training pair holds.

    A value of several words ("Red Solwood") is seen when its words are: it counts only with an unseen word.
    """
    words: set[str] = set()
    for question, sql in train:
        words.update(WORD.findall(question))
        words.update(WORD.findall(sql))
    found = [[word for value in literals(sql) for word in WORD.findall(value)] for _, sql in validation]
    valued = [group for group in found if group]
    return sum(any(word not in words for word in group) for group in valued) / max(1, len(valued))
