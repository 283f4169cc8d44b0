"""When a run keeps a checkpoint: every so many steps, or dense at first and sparse later. Pure.

A schedule is one number, or pairs [every, until] in order: a step belongs to the first pair whose `until` it
does not exceed, and is saved where `every` divides it. `until` null: for the rest. After the last `until`
nothing is due. The last step of the training is always saved as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Weights, and Adam's two moments and fp32 master weights where they are apart.
BYTES_PER_PARAMETER = 16
UNKNOWN = 3  # checkpoints that room is asked for where all are kept and nobody knows how many come

Pairs = Sequence[tuple[int, int | None]]
Schedule = int | Pairs | None


def check_pairs(pairs: Sequence[Any]) -> None:
    """Raise ValueError where a list from a file is no schedule."""
    if not pairs:
        raise ValueError(
            "an empty list is not a schedule: give pairs [every, until], or null for no checkpoints"
        )
    before = 0
    for index, pair in enumerate(pairs):
        every, until = _pair(pair)
        if until is None:
            if index < len(pairs) - 1:
                raise ValueError(f"[{every}, null] is for the rest of the run: nothing can come after it")
        elif until <= before:
            raise ValueError(f"[{every}, {until}] ends at step {until}, and the pair before it at {before}")
        elif until // every == before // every:
            raise ValueError(
                f"[{every}, {until}] would save nothing: steps {before + 1} to {until} hold no multiple of "
                f"{every}"
            )
        else:
            before = until


def _pair(pair: Any) -> tuple[int, int | None]:
    if isinstance(pair, list | tuple) and len(pair) == 2:
        every, until = pair
        whole = [value for value in (every, until) if isinstance(value, int) and not isinstance(value, bool)]
        if every in whole and (until is None or until in whole) and min(whole) > 0:
            return every, until
    raise ValueError(
        f"{pair} is not a pair [every, until] of whole numbers above 0 (until: null in the last one), "
        "such as [[50, 500], [1000, null]]"
    )


def due(schedule: Schedule, step: int) -> bool:
    """Return whether the schedule asks for a checkpoint after optimizer step `step` (1, 2, ...)."""
    for every, until in _pairs(schedule):
        if until is None or step <= until:
            return step % every == 0
    return False


def scheduled(schedule: Schedule, last: int) -> int:
    """Return how many checkpoints the schedule asks for in steps 1 ... `last`."""
    count = before = 0
    for every, until in _pairs(schedule):
        end = last if until is None else min(until, last)
        count += max(0, end // every - before // every)
        before = max(before, end)
    return count


def most_on_disk(schedule: Schedule, keep: int | str, max_steps: int | None) -> int | None:
    """Return how many checkpoints are on a disk at most; None: all are kept, and their number is not known.

    With a number to keep it is one more: a new one is complete before an old one is deleted.
    """
    if not schedule:
        return 0
    ends = _pairs(schedule)[-1][1]
    last = max_steps if max_steps is not None else ends
    if last is None:
        return None if keep == "all" else int(keep) + 1
    count = scheduled(schedule, last)
    if max_steps is None or not due(schedule, max_steps):
        count += 1  # the last step of the training
    return count if keep == "all" else min(count, int(keep) + 1)


def bytes_needed(
    parameters: int,
    schedule: Schedule,
    keep: int | str,
    max_steps: int | None,
    *,
    present: int = 0,
    model: bool = True,
) -> int:
    """Return the bytes of the model in fp32, where it is saved, and of its checkpoints; `present` of them are
    on the disk already."""
    most = most_on_disk(schedule, keep, max_steps)
    more = max(1 if schedule else 0, (UNKNOWN if most is None else most) - present)
    return (4 * model + more * BYTES_PER_PARAMETER) * parameters


def _pairs(schedule: Schedule) -> Pairs:
    if schedule is None:
        return ()
    return [(schedule, None)] if isinstance(schedule, int) else schedule
