"""Bad hosts, links and switches found in simulated fleets: how often, after how many waves.

    .venv/bin/python benchmarks/localise.py      10,000 fleets per bar: some 12 CPU-minutes
    .venv/bin/python benchmarks/localise.py --fleets 200 --no-write

Every fleet has its seed; the same command gives the same figures. A wave is a set of disjoint jobs at once. A
fleet counts as solved where exactly what was planted is accused: the host, not its partner; the link, not its
hosts. Writes benchmarks/results/localise.json, and the tables and the plot of docs/judging.md.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from localise_page import write
from localise_peers import PEERS

from muster.judging import Settings, State, Topology, judge_state
from muster.judging.faults import OF_HOSTS, Kind
from muster.judging.simulate import Fleet, Planted, hunt

Plant = Callable[[random.Random, Topology], tuple[Planted, ...]]
NOISE = 0.004
OURS = "muster"


def topology(count: int, behind: int = 8) -> Topology:
    """`count` hosts in a ring, `behind` of them behind each switch."""
    hosts = tuple(f"n{i:05d}" for i in range(count))
    return Topology(
        hosts, tuple((f"leaf{i // behind}", hosts[i : i + behind]) for i in range(0, count, behind))
    )


def hosts(by: float, *kinds: Kind, number: int = 1, chance: float = 1.0) -> Plant:
    """Different hosts, each of one of the kinds."""
    return lambda draw, fleet: tuple(
        Planted(draw.choice(kinds), (host,), by, chance) for host in draw.sample(fleet.hosts, number)
    )


def link(by: float) -> Plant:
    """Between two neighbours of the ring."""

    def plant(draw: random.Random, fleet: Topology) -> tuple[Planted, ...]:
        at = draw.randrange(len(fleet.hosts))
        pair = sorted((fleet.hosts[at], fleet.hosts[(at + 1) % len(fleet.hosts)]))
        return (Planted("link", tuple(pair), by),)

    return plant


def switch(by: float, kind: Kind) -> Plant:
    """One switch, or its uplink."""
    return lambda draw, fleet: (Planted(kind, (draw.choice(fleet.switches)[0],), by),)


@dataclass(frozen=True)
class Bar:
    """What is planted, in how many waves it is to be found, and how often (None: no bar, only shown)."""

    name: str
    plant: Plant
    waves: int
    least: float | None
    share: float = 1.0  # of the fleets asked for
    settings: Settings = field(default_factory=Settings)
    fleet: dict[str, Any] = field(default_factory=dict)


NONE: Plant = lambda draw, fleet: ()  # noqa: E731
ANY: tuple[Kind, ...] = ("compute", "card")
BARS = (
    Bar("healthy", NONE, 6, 0.999),
    Bar("one host 5 % slow, compute", hosts(0.05, "compute"), 3, 0.99),
    Bar("one host 5 % slow, card", hosts(0.05, "card"), 3, 0.99),
    Bar("one host 2 % slow, compute", hosts(0.02, "compute"), 6, 0.95),
    Bar("one host 2 % slow, card", hosts(0.02, "card"), 6, 0.95),
    Bar("three hosts 5 % slow, either", hosts(0.05, *ANY, number=3), 6, 0.95),
    Bar("three hosts 2 % slow, either", hosts(0.02, *ANY, number=3), 6, 0.95),
    Bar("one link of the ring 5 % slow", link(0.05), 4, 0.95),
    Bar("one switch 5 % slow", switch(0.05, "switch"), 4, 0.95),
    Bar("one uplink 5 % slow", switch(0.05, "uplink"), 4, 0.95),
    Bar("one link 2 % slow", link(0.02), 6, None, 0.1),
    Bar("one switch 2 % slow", switch(0.02, "switch"), 6, None, 0.1),
    Bar("one uplink 2 % slow", switch(0.02, "uplink"), 6, None, 0.1),
    Bar("one host fails its jobs", hosts(0.0, "compute"), 3, None, 0.1),
    Bar("waiting times known, compute 5 %", hosts(0.05, "compute"), 2, None, 0.1, fleet={"waits": True}),
    Bar("eight hosts 5 % slow, either", hosts(0.05, *ANY, number=8), 6, None, 0.1),
    Bar("slow by 5 % in half of its jobs", hosts(0.05, "card", chance=0.5), 6, None, 0.1),
    Bar(
        "the same, six jobs per host",
        hosts(0.05, "card", chance=0.5),
        12,
        None,
        0.1,
        settings=Settings(sweeps=6),
    ),
    Bar("healthy, hosts differ by 0.3 %", NONE, 6, None, 0.1, fleet={"spread": 0.003}),
    Bar("healthy, 1 % of jobs hiccup", NONE, 6, None, 0.1, fleet={"hiccups": 0.01}),
    Bar(
        "card 5 %, both of these", hosts(0.05, "card"), 6, None, 0.1, fleet={"spread": 0.003, "hiccups": 0.01}
    ),
)


def accused(state: State) -> set[tuple[str, ...]]:
    """What `judge_state` would accuse, without its evidence: the same thresholds."""
    names, found = state.topology.hosts, set()
    for host, chance in state.suspects.items():
        if chance >= state.settings.convict:
            found.add((names[host],))
    for part in state.parts:
        for fault in part.faults():
            if fault.kind not in OF_HOSTS and part.probability(fault) >= state.settings.named:
                if fault.kind == "link":
                    found.add(tuple(sorted(names[host] for host in fault.where)))
                else:
                    found.add((state.topology.switches[fault.where[0]][0],))
    return found


def try_bar(bar: Bar, fleets: int, place: Topology) -> dict[str, Any]:
    """How often exactly what was planted is accused after each wave, and at the end; of which kind it was
    said to be; hosts accused that are healthy; waves used; CPU seconds."""
    began = time.process_time()
    count = max(1, round(fleets * bar.share))
    solved = kinds = wrong = alarmed = waves = jobs = 0
    after = [0] * (bar.waves + 1)
    for seed in range(count):
        planted = bar.plant(random.Random(seed), place)
        wanted = {each.where for each in planted}
        fleet = Fleet(place, planted, noise=NOISE, seed=seed + 1_000_000, **bar.fleet)
        known: list[bool] = []

        def watch(wave: int, state: State, known: list[bool] = known, wanted: set[Any] = wanted) -> None:
            known.append(accused(state) == wanted)

        found = hunt(fleet, bar.waves, bar.settings, watch)
        verdicts = judge_state(found.state)
        named = {each.subject for each in verdicts.accused}
        bad = {host for each in planted if each.kind in OF_HOSTS for host in each.where}
        mistaken = sum(each.bad and each.subject[0] not in bad for each in verdicts.hosts)
        wrong += mistaken
        alarmed += named > set() and not named <= wanted
        solved += named == wanted
        said = {each.subject: each.kind for each in verdicts.accused}
        real = {each.where: each.kind if each.chance == 1.0 else "intermittent" for each in planted}
        kinds += said == real
        waves += found.waves
        jobs += fleet.jobs
        for wave in range(1, bar.waves + 1):
            after[wave] += known[min(wave, len(known)) - 1]
    return {
        "name": bar.name,
        "hosts": len(place.hosts),
        "fleets": count,
        "waves": bar.waves,
        "least": bar.least,
        "solved": solved / count,
        "and its kind": kinds / count,
        "healthy hosts accused": wrong / (count * len(place.hosts)),
        "fleets with a false accusation": alarmed / count,
        "solved after wave": [round(each / count, 5) for each in after[1:]],
        "mean waves": waves / count,
        "mean jobs": jobs / count,
        "cpu seconds": round(time.process_time() - began, 1),
    }


COMPARED: tuple[tuple[str, Plant, float], ...] = (
    ("one card 5 %", hosts(0.05, "card"), 0.05),
    ("one card 2 %", hosts(0.02, "card"), 0.02),
    ("three hosts 5 %", hosts(0.05, *ANY, number=3), 0.05),
    ("three hosts 2 %", hosts(0.02, *ANY, number=3), 0.02),
    ("one link 5 %", link(0.05), 0.05),
    ("one uplink 5 %", switch(0.05, "uplink"), 0.05),
    ("healthy", NONE, 0.05),
)


def compare(fleets: int, place: Topology) -> list[dict[str, Any]]:
    """Every way on the same faults: solved, good hosts accused per fleet, waves, jobs."""
    rows = []
    for name, plant, by in COMPARED:
        for way in (*PEERS, OURS):
            solved = good = waves = jobs = 0
            for seed in range(fleets):
                planted = plant(random.Random(seed), place)
                wanted = {each.where for each in planted}
                fleet = Fleet(place, planted, noise=NOISE, seed=seed + 2_000_000)
                if way == OURS:
                    found = hunt(fleet, 6)
                    named, used = accused(found.state), found.waves
                else:
                    outcome = PEERS[way](fleet, by / 2)
                    named, used = set(outcome.accused), outcome.waves
                solved += named == wanted
                good += sum(
                    len(each) == 1 and each not in wanted and each[0] in place.index for each in named
                )
                waves += used
                jobs += fleet.jobs
            rows.append(
                {
                    "planted": name,
                    "way": way,
                    "fleets": fleets,
                    "solved": solved / fleets,
                    "good hosts accused per fleet": good / fleets,
                    "waves": waves / fleets,
                    "jobs": jobs / fleets,
                }
            )
    return rows


def scale() -> list[dict[str, Any]]:
    """Waves until three hosts (5 % or 2 % slow) are named, and until nothing is left to ask; and the longest
    that it took to read all results and choose a wave."""
    rows = []
    for count, fleets in ((64, 100), (1000, 20), (10000, 4)):
        place = topology(count, behind=40 if count > 64 else 8)
        for by in (0.05, 0.02):
            named, waves, longest, solved = [], [], 0.0, 0
            for seed in range(fleets):
                planted = hosts(by, *ANY, number=3)(random.Random(seed), place)
                wanted, known = {each.where for each in planted}, []
                began = time.process_time()

                def watch(
                    wave: int, state: State, known: list[Any] = known, wanted: set[Any] = wanted
                ) -> None:
                    known.append((accused(state) == wanted, time.process_time()))

                found = hunt(Fleet(place, planted, noise=NOISE, seed=seed + 3_000_000), 16, None, watch)
                ticks = [began, *(each for _, each in known)]
                longest = max(longest, *(b - a for a, b in pairwise(ticks)))
                first = [i for i, (right, _) in enumerate(known, 1) if right]
                named.append(first[0] if first else 99)
                waves.append(found.waves)
                solved += accused(found.state) == wanted
            rows.append(
                {
                    "hosts": count,
                    "slow by": by,
                    "fleets": fleets,
                    "solved": solved / fleets,
                    "named after waves (median)": sorted(named)[len(named) // 2],
                    "named after waves (worst)": max(named),
                    "nothing left after waves (median)": sorted(waves)[len(waves) // 2],
                    "seconds of a wave (worst)": round(longest, 2),
                }
            )
    return rows


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleets", type=int, default=10_000, help="per bar")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args()
    place = topology(64)
    bars = []
    for bar in BARS:
        bars.append(try_bar(bar, chosen.fleets, place))
        print(
            f"{bar.name:36} {bars[-1]['solved']:.4f}  kind {bars[-1]['and its kind']:.4f}  good accused"
            f" {bars[-1]['healthy hosts accused']:.6f}  waves {bars[-1]['mean waves']:.2f}"
            f"  {bars[-1]['cpu seconds']} s",
            flush=True,
        )
    document = {
        "command": f"benchmarks/localise.py --fleets {chosen.fleets}",
        "noise": NOISE,
        "bars": bars,
        "compared": compare(max(10, chosen.fleets // 100), place),
        "scale": scale(),
    }
    write(document, save=not chosen.no_write)


if __name__ == "__main__":
    main()
