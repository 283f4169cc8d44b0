"""All jobs behind one switch are slow for a while: one event, and no evidence against its hosts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from simulate import Planted, SimulatedFleet, hunt

from muster.core.state import State
from muster.judging import Observation, Settings, Topology, judge_state
from muster.judging.joblogs import judged
from muster.judging.observation import Group
from muster.readers.base import JobLog, MeasuredWindows

HOSTS = tuple(f"n{i:02d}" for i in range(64))
PLACE = Topology(HOSTS, tuple((f"leaf{k}", HOSTS[8 * k : 8 * k + 8]) for k in range(8)))


@dataclass
class Spelled(SimulatedFleet):
    """All jobs that touch leaf3 are slower in these waves."""

    when: tuple[int, ...] = (2, 3)
    by: float = 0.1

    def run(self, groups: Iterable[Group], work: str = "") -> list[Observation]:
        jobs = super().run(groups, work)
        hit = set(HOSTS[24:32]) if self.waves in self.when else set()
        return [
            replace(each, seconds=(each.seconds or 0.0) * (1 + self.by)) if hit & set(each.hosts) else each
            for each in jobs
        ]


@pytest.mark.parametrize("when", [(2,), (2, 3), (5, 6), (3, 4, 5)])
def test_nobody_is_accused_of_it(when: tuple[int, ...]) -> None:
    for seed in range(3):
        state = hunt(Spelled(PLACE, seed=seed, timed=True, when=when), 6).state
        assert not judge_state(state).accused and {each.switch for each in state.spells} == {3}
        bad = Planted("card", (HOSTS[25],), 0.05)  # behind that switch
        found = judge_state(hunt(Spelled(PLACE, (bad,), seed=seed, timed=True, when=when), 6).state)
        assert [each.subject for each in found.accused] == [bad.where]


@pytest.mark.parametrize("kind", ["switch", "uplink"])
def test_a_switch_that_is_slow_for_good_is_accused(kind: str) -> None:
    for seed in range(3):
        bad = Planted(kind, ("leaf3",), 0.05)  # type: ignore[arg-type]
        found = judge_state(hunt(SimulatedFleet(PLACE, (bad,), seed=seed, timed=True), 6).state)
        assert [(each.subject, each.kind) for each in found.accused] == [(("leaf3",), kind)]


def test_a_note_says_it() -> None:
    """Six pairs at a time behind three switches; all behind leaf1 is 20 % slower at the second time."""
    hosts = tuple(f"lx{i:02d}" for i in range(24))
    switches = {f"leaf{k}": hosts[8 * k : 8 * k + 8] for k in range(3)}
    logs = [
        JobLog(
            job=f"{wave}-{at}",
            outcome=State.SUCCEEDED,
            format="own",
            hosts=hosts[at : at + 2],
            hosts_from="log",
            workload="w",
            settings="w",
            measured=MeasuredWindows(
                steps=100,
                skipped=0,
                samples=100.0,
                seconds=1.2 if wave == 1 and hosts[at] in switches["leaf1"] else 1.0,
            ),
            started=1000.0 * wave,
            ended=1000.0 * wave + 100.0,
        )
        for wave in range(3)
        for at in range(0, 24, 2)
    ]
    document = judged("x", logs, Settings(), {}, switches)
    assert not document.summary["slow"] and any("leaf1" in note and "20%" in note for note in document.notes)
