"""The benchmark that proves the judge: rivals that work, the same figures from any number of processes."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulate import Planted, SimulatedFleet

from muster.judging import Topology

HOSTS = tuple(f"n{i:02d}" for i in range(64))
CARD, LINK = Planted("card", ("n20",), 0.05), Planted("link", ("n20", "n21"), 0.05)


@pytest.fixture(scope="module")
def localise() -> Iterator[Any]:
    """benchmarks/localise.py, which imports its neighbours by their names."""
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("localise")
    sys.path.remove(folder)


@pytest.mark.parametrize(
    ("way", "finds"),
    [
        ("threshold", set()),
        ("all pairs", {CARD, LINK}),
        ("two rounds", {CARD}),
        ("bisection", {CARD, LINK}),
        ("median of a pair", {CARD, LINK}),
        ("slow each time", {CARD, LINK}),
    ],
)
def test_rivals_find_what_their_idea_can_find(localise: Any, way: str, finds: set[Planted]) -> None:
    """In little noise, and where the whole fleet drifts; and nothing where there is nothing."""
    (run,) = [peer for name, peer in localise.PEERS.items() if way in name]
    for faults in ((CARD,), (LINK,), ()):
        outcome = run(SimulatedFleet(Topology(HOSTS), faults, noise=0.001, drift=0.02, seed=1), 6)
        found = outcome.accused(0.025)
        assert (found == {each.where for each in faults}) == (set(faults) <= finds), (faults, found)


def test_figures_do_not_depend_on_the_number_of_processes(
    localise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        localise, "CHUNK", 4
    )  # fleets that a process takes at a time: four parts, one smaller
    wanted = Namespace(only="half of its jobs", model="", fleets=280, parts=None, each=None, first=0)
    (row,), (same,) = (localise.measure(Namespace(**vars(wanted), processes=n))[0] for n in (1, 2))
    assert {**row, "cpu seconds": 0} == {**same, "cpu seconds": 0}
    assert row["fleets"] == 14 and row["interval"][0] <= row["solved"] <= row["interval"][1]


def test_fresh_seeds_are_other_fleets(localise: Any) -> None:
    wanted = {"only": "half of its jobs", "model": "", "fleets": 0, "parts": None, "processes": 1}
    rows = [localise.measure(Namespace(**wanted, each=4, first=at))[0][0] for at in (0, 1_000_000, 1_000_000)]
    assert [row["fleets"] for row in rows] == [4, 4, 4]
    old, new, again = ({**row, "cpu seconds": 0, "solved after wave": []} for row in rows)
    assert new == again != old
