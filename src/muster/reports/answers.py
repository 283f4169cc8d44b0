"""Choose which predictions to show, and find where an answer differs from the expected one. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.store.events import Answer

SHOWN = 50
NOTHING: Mapping[str, str] = {}
MOST_RIGHT = 6
MOST_SAME = 8
LONGEST = 600  # characters of an answer
MOST_WORDS = 300
_WORD = re.compile(r"\s+|\w+|[^\w\s]")

Words = tuple[tuple[str, bool], ...]  # (text, whether it differs)


@dataclass(frozen=True)
class AnswerKind:
    """A way to be right or wrong."""

    key: str
    mark: str
    name: str
    right: bool
    test: Callable[[Answer], bool]


# In the order in which they are shown; the first that fits.
KINDS = (
    AnswerKind("odd", "?", "same text, other rows", False, lambda p: p.exact and p.executed is False),
    AnswerKind("empty", "✕", "no answer", False, lambda p: not p.predicted.strip() and not p.exact),
    AnswerKind(
        "rows", "✕", "wrong rows or no valid query", False, lambda p: not p.exact and p.executed is False
    ),
    AnswerKind("text", "✕", "other text, not executed", False, lambda p: not p.exact and p.executed is None),
    AnswerKind("same", "≈", "other text, same rows", True, lambda p: not p.exact and p.executed is True),
    AnswerKind("exact", "✓", "exact", True, lambda p: p.exact),
)


@dataclass(frozen=True)
class ShownAnswer:
    """A prediction on the page."""

    prediction: Answer
    kind: AnswerKind
    predicted: Words
    expected: Words


@dataclass(frozen=True)
class Count:
    """How many of a kind there are, and how many of them are shown."""

    kind: AnswerKind
    total: int
    shown: int


def kind_of(prediction: Answer) -> AnswerKind:
    """Return how a prediction is right or wrong."""
    return next(kind for kind in KINDS if kind.test(prediction))


def choose(
    predictions: Sequence[Answer], names: Mapping[str, str] = NOTHING, most: int = SHOWN
) -> tuple[list[ShownAnswer], list[Count]]:
    """Return all kinds of wrong answers first, then a few right ones; and the counts of all, shown or not.
    `names`: what kinds are called where answers are not texts."""
    kinds = [replace(kind, name=names.get(kind.key, kind.name)) for kind in KINDS]
    groups: dict[str, list[Answer]] = {kind.key: [] for kind in KINDS}
    for each in predictions:
        groups[kind_of(each).key].append(each)
    share = _shares({key: len(group) for key, group in groups.items()}, most)
    shown = [
        ShownAnswer(each, kind, *compare(clip(each.predicted), clip(each.expected)))
        for kind in kinds
        for each in groups[kind.key][: share[kind.key]]
    ]
    counts = [Count(kind, len(groups[kind.key]), share[kind.key]) for kind in kinds if groups[kind.key]]
    return shown, counts


def _shares(sizes: dict[str, int], most: int) -> dict[str, int]:
    """Return how many of each kind are shown: a few right ones have their place; the wrong kinds take turns;
    the rest goes to any kind."""
    share = dict.fromkeys(sizes, 0)
    share["exact"] = min(sizes["exact"], MOST_RIGHT, most)
    share["same"] = min(sizes["same"], MOST_SAME, most - share["exact"])
    for turn in ([kind.key for kind in KINDS if not kind.right], ["same"], ["exact"]):
        while sum(share.values()) < most and any(share[key] < sizes[key] for key in turn):
            for key in turn:
                if share[key] < sizes[key] and sum(share.values()) < most:
                    share[key] += 1
    return share


def clip(text: str, longest: int = LONGEST) -> str:
    """Return a text that fits on a page, and how long it was."""
    return text if len(text) <= longest else f"{text[:longest]} … ({len(text):,} characters)"


def compare(predicted: str, expected: str) -> tuple[Words, Words]:
    """Return both texts in pieces, each marked where it differs from the other."""
    left, right = _WORD.findall(predicted), _WORD.findall(expected)
    if predicted == expected or not left or not right or max(len(left), len(right)) > MOST_WORDS:
        return ((predicted, False),), ((expected, False),)
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    ours: list[tuple[str, bool]] = []
    theirs: list[tuple[str, bool]] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        ours.append(("".join(left[a:b]), tag != "equal"))
        theirs.append(("".join(right[c:d]), tag != "equal"))
    return _joined(ours), _joined(theirs)


def _joined(pieces: Sequence[tuple[str, bool]]) -> Words:
    """Join neighbours that differ into one piece, with the blanks between them."""
    joined: list[tuple[str, bool]] = []
    for index, (text, differs) in enumerate(pieces):
        if not text:
            continue
        between = not text.strip() and 0 < index < len(pieces) - 1
        if between and pieces[index - 1][1] and pieces[index + 1][1] and joined and joined[-1][1]:
            differs = True
        if joined and joined[-1][1] == differs:
            joined[-1] = (joined[-1][0] + text, differs)
        else:
            joined.append((text, differs))
    return tuple(joined)
