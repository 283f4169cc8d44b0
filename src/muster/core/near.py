"""Near names for a misspelt one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 3
CERTAIN = 0.95  # two names of a section are so alike: no other is meant


def near_names(name: str, choices: Iterable[str]) -> list[str]:
    """Return the choices nearest to `name`, best first; those that contain its last part count as near."""
    import difflib

    names = sorted(set(choices))
    head, dot, tail = name.rpartition(".")
    siblings = {other[len(head) + 1 :]: other for other in names if dot and other.startswith(head + dot)}
    close = [siblings[each] for each in difflib.get_close_matches(tail, siblings, n=MOST, cutoff=0.6)]
    if close and difflib.SequenceMatcher(None, name, close[0]).ratio() > CERTAIN:
        return close[:1]
    others = [other for other in names if other not in siblings.values()]
    close += difflib.get_close_matches(name, others, n=MOST, cutoff=0.6)
    for other in names:
        if other not in close and (other.rpartition(".")[2] == tail or (len(tail) > 3 and tail in other)):
            close.append(other)
    return close[:MOST]


def did_you_mean(name: str, choices: Iterable[str]) -> str | None:
    """Return a hint, or None where no choice is near."""
    close = near_names(name, choices)
    return f"did you mean {' or '.join(close)}?" if close else None
