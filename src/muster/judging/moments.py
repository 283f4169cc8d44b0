"""What hosts share because they were measured side by side is the moment's, not theirs. Pure.

A job that measures each of its hosts by itself (the fabric's matrix products) does so on all of them at
once. Whatever slows all of them then, such as a room that is warm, a file system, or neighbours of virtual
machines, differs from job to job and would pass for a difference between hosts, or hide one. Within a
moment they are compared with their median; so are what the hosts of one training computed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from muster.judging.baseline import FEWEST
from muster.judging.observation import Observation


def side_by_side(observations: Sequence[Observation]) -> list[Observation]:
    """The observations, with times as if every moment had been alike. A moment of fewer than FEWEST hosts
    stays as it is: one bad host would be a part of what is normal there."""
    found = _computing(observations)
    moments: dict[tuple[str, int, str], list[int]] = {}
    for index, each in enumerate(found):
        if each.moment and each.seconds is not None and each.outcome == "succeeded":
            moments.setdefault((each.work, len(each.hosts), each.moment), []).append(index)
    middles = {
        key: statistics.median(found[i].seconds or 0.0 for i in indices)
        for key, indices in moments.items()
        if len(indices) >= FEWEST
    }
    for key, middle in middles.items():
        usual = statistics.median(other for (*kind, _), other in middles.items() if tuple(kind) == key[:2])
        for index in moments[key]:
            each = found[index]
            found[index] = replace(each, seconds=(each.seconds or 0.0) * usual / middle)
    return found


def _computing(observations: Sequence[Observation]) -> list[Observation]:
    """What hosts computed in a job, as if all jobs of the kind had been made at the same time."""
    middles: dict[tuple[str, int], list[float]] = {}
    for each in observations:
        if len(each.computing) >= FEWEST:
            middles.setdefault((each.work, len(each.hosts)), []).append(statistics.median(each.computing))
    usual = {key: statistics.median(values) for key, values in middles.items()}
    made = []
    for each in observations:
        middle = statistics.median(each.computing) if len(each.computing) >= FEWEST else 0.0
        if middle > 0:
            factor = usual[each.work, len(each.hosts)] / middle
            each = replace(each, computing=tuple(own * factor for own in each.computing))
        made.append(each)
    return made
