"""A host that says nothing is given up when its lease is over, and not before."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.launchers import local
from muster.fleet.supervisor import Outcome, Supervisor


@pytest.mark.parametrize(
    ("lease", "silent", "lost"), [(5.0, 4.0, False), (5.0, 6.0, True), (60.0, 59.0, False)]
)
def test_the_lease(lease: float, silent: float, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Placement("a", "a", 1, 0)
    held = Supervisor((place,), local, Launch(lease=lease), "job")
    given_up: list[str] = []

    def give_up(link: Any, why: str) -> None:
        given_up.append(why)
        link.ended = True

    monkeypatch.setattr(held.fleet, "give_up", give_up)
    link = SimpleNamespace(
        place=place, heard=time.monotonic() - silent, exit=None, ended=False, why_unreachable=lambda: "silent"
    )
    monkeypatch.setattr(held, "links", [link])
    outcome = Outcome()
    held._notice(outcome)
    assert bool(given_up) is lost and outcome.lost == ({"a": "silent"} if lost else {})
