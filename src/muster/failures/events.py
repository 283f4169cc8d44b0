"""Events of Kubernetes, and kubectl's lists of pods: what went well later takes a warning back. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

HINTS = ("Normal  ", "Running  ", "Completed  ")  # with the blanks that kubectl puts between columns
OVER = 9  # the stage of a job that has come to its end
_AGE = r"(?:\d+[ydhms])+"
_EVENT = re.compile(
    rf"\s*(?:(?:\S+\s+)?(?P<seen>{_AGE}|<\w+>)(?: \(x\d+ over \S+\))?\s+)?(?P<kind>Normal|Warning)\s+"
    rf"(?P<reason>[A-Z]\w+)\s+(?:(?P<object>\w+/[\w.-]+)|(?P<age>{_AGE}|<\w+>)(?: \(x\d+ over \S+\))?)\s"
)
_POD = re.compile(r"(?:\S+\s+)?(?P<pod>[a-z0-9][\w.-]*)\s+\d+/\d+\s+(?P<status>(?:Init:)?[A-Z]\w+)\s+\d+\s")
# How far a pod has come: it has a node, its volumes, its image, its container; that one runs.
_WELL = {"Scheduled": 1, "Pulling": 2, "SuccessfulMountVolume": 2, "Pulled": 3, "Created": 4, "Started": 5}
_WELL |= {"Running": 5, "Completed": OVER}
_IMAGE = re.compile(r"ImagePull|[Pp]ull(?:ing)? image")
_UNITS = {"y": 365 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}


class PodEvent(NamedTuple):
    """An event, or a pod's line in a list. `stage`: up to which all went well, or what is warned of; 0: it
    tells neither. `of`: the object, empty in what describes one; `age`: seconds, None: not known."""

    normal: bool
    stage: int
    of: str
    age: float | None

    def ends(self, warning: PodEvent, later: bool) -> bool:
        """Return whether it takes back a warning about the same object, or one of what it owns. `later`: it
        stands behind that one, which counts where their ages do not tell."""
        whole = self.stage == OVER and not self.of.startswith("pod/")  # whatever befell other pods before
        owns = self.stage == OVER and _name(warning.of).startswith(f"{_name(self.of)}-")
        owns = owns or (whole and warning.normal)
        if not (self.of == warning.of or owns) or self.stage < warning.stage:
            return False
        if self.age is None or warning.age is None or self.age == warning.age:
            return later
        return self.age < warning.age


def event_of(text: str, described: str) -> PodEvent | None:
    """Return the event that a line tells; None: it tells none. `described`: what stands for an object that no
    column names."""
    if "  " not in text:  # which is between columns
        return None
    if pod := _POD.match(text):
        well = _WELL.get(pod["status"], 0)
        return PodEvent(bool(well), well or _stage(text, ""), f"pod/{pod['pod']}", None)
    match = _EVENT.match(text)
    if match is None:
        return None
    normal, reason, age = match["kind"] == "Normal", match["reason"], match["seen"] or match["age"] or ""
    well = OVER if reason.endswith("JobSucceeded") else _WELL.get(reason, 0)
    stage = well if normal else _stage(text, reason)
    return PodEvent(normal, stage, match["object"] or described, _seconds(age))


def _stage(text: str, reason: str) -> int:
    """Return what a warning is about. That a container ended badly, or its node, only a job's end mends."""
    if reason == "FailedScheduling":
        return 1
    if reason in ("FailedMount", "FailedAttachVolume", "FailedMapVolume"):
        return 2
    if _IMAGE.search(text):
        return 3
    return 4 if reason in ("Failed", "FailedCreatePodSandBox") or "CreateContainer" in text else OVER


def _name(of: str) -> str:
    return of.partition("/")[2]


def _seconds(age: str) -> float | None:
    parts = re.findall(r"(\d+)([ydhms])", age)
    return float(sum(int(count) * _UNITS[unit] for count, unit in parts)) if parts else None
