"""What hosts share because they were measured side by side is the moment's, not theirs. Pure.

A job that measures each of its hosts by itself (the fabric's matrix products) does so on all of them at
once. Whatever slows all of them then, such as a room that is warm, a file system, or neighbours of virtual
machines, differs from job to job and would pass for a difference between hosts, or hide one. Within a
moment they are compared with their median; so are what the hosts of one training computed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.judging.baseline import FEWEST
from muster.judging.observation import Observation

_Kind = tuple[str, int]  # work, and number of hosts
_Moment = tuple[_Kind, str]


def side_by_side(observations: Sequence[Observation]) -> list[Observation]:
    """The observations, with times as if every moment had been alike. A moment of fewer than FEWEST hosts
    stays as it is: one bad host would be a part of what is normal there."""
    alone: dict[_Moment, list[float]] = {}
    together: dict[_Moment, Sequence[float]] = {}
    for index, each in enumerate(observations):
        kind = (each.work, len(each.hosts))
        if each.moment and each.seconds is not None and each.outcome == "succeeded":
            alone.setdefault((kind, each.moment), []).append(each.seconds)
        if each.computing:
            together[kind, str(index)] = each.computing
    pace, own = _paces(alone), _paces(together)
    if not pace and not own:
        return list(observations)
    made = []
    for index, each in enumerate(observations):
        kind = (each.work, len(each.hosts))
        if each.seconds is not None and each.outcome == "succeeded" and (by := pace.get((kind, each.moment))):
            each = replace(each, seconds=each.seconds / by)
        if by := own.get((kind, str(index))):
            each = replace(each, computing=tuple(seconds / by for seconds in each.computing))
        made.append(each)
    return made


def _paces(times: Mapping[_Moment, Sequence[float]]) -> dict[_Moment, float]:
    """How much longer everything took in a moment than in the usual one of its kind."""
    middles = {moment: statistics.median(each) for moment, each in times.items() if len(each) >= FEWEST}
    of_kind: dict[_Kind, list[float]] = {}
    for (kind, _), middle in middles.items():
        of_kind.setdefault(kind, []).append(middle)
    usual = {kind: statistics.median(each) for kind, each in of_kind.items()}
    return {moment: middle / usual[moment[0]] for moment, middle in middles.items() if usual[moment[0]] > 0}
