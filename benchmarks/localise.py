"""Bad hosts, links and switches found in simulated fleets, by kind of noise: how often, after how many waves.

    .venv/bin/python benchmarks/localise.py      10,000 fleets per headline bar
    .venv/bin/python benchmarks/localise.py --fleets 300 --no-write
    .venv/bin/python benchmarks/localise.py --only "5 % slow, card" --model drift --no-write
    .venv/bin/python benchmarks/localise.py --only stall --each 1000 --first 1000000

Every fleet has its seed: the same command gives the same figures, however many processes share the work. A
wave is a set of disjoint jobs at once. A fleet counts as solved where exactly what was planted is accused:
the host, not its partner; the link, not its hosts. Noise of real jobs is resampled from the logs in
../shared/data/real_logs, and left out where they are not. Writes benchmarks/results/localise.json, and the
tables and the plot of docs/judging.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from localise_page import write
from localise_peers import PEERS
from simulate import NOISES, Planted, SimulatedFleet, by_size, hunt, resampled

from muster.judging import Posterior, Topology, judge_posterior
from muster.judging.faults import OF_HOSTS, Kind

Plant = Callable[[random.Random, Topology], tuple[Planted, ...]]
LOGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "real_logs"
GAUSSIAN, REAL = "Gaussian", "residuals of real jobs"
WRONG = 0.001  # of the healthy hosts may be accused, beside a fault and without one
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of what is planted: others get the one that suits them best
CHUNK = 50  # fleets that a process tries at a time
FOLLOWED = 1000  # the first fleets of a row, whose verdicts are also looked at after every wave


def topology(count: int, behind: int = 8) -> Topology:
    """`count` hosts in a ring, `behind` of them behind each switch."""
    hosts = tuple(f"n{i:05d}" for i in range(count))
    return Topology(
        hosts, tuple((f"leaf{i // behind}", hosts[i : i + behind]) for i in range(0, count, behind))
    )


PLACE = topology(64)


def hosts(by: float, *kinds: Kind, number: int = 1, chance: float = 1.0, late: bool = False) -> Plant:
    """Different hosts, each of one of the kinds."""
    return lambda draw, fleet: tuple(
        Planted(draw.choice(kinds), (host,), by, chance, late=late)
        for host in draw.sample(fleet.hosts, number)
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


def rack(by: float) -> Plant:
    """All hosts behind one switch are slow by themselves; the switch is not."""
    return lambda draw, fleet: tuple(
        Planted("compute", (host,), by) for host in draw.choice(fleet.switches)[1]
    )


@dataclass(frozen=True)
class Bar:
    """What is planted, in how many waves it is to be found, and how often (None: no bar, only shown; `of`:
    other bars under other noise). `everywhere`: under every noise, and others' ways beside ours."""

    name: str
    plant: Plant
    waves: int
    least: float | None = None
    share: float = 0.05  # of the fleets asked for
    by: float = 0.05
    everywhere: bool = False
    of: Mapping[str, float | None] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)


NONE: Plant = lambda draw, fleet: ()  # noqa: E731
ANY: tuple[Kind, ...] = ("compute", "card")
TAILS = {"t3": 0.97, "t3, slow side": 0.97}
ONE = {"hosts differ by 0.3 %": 0.9, "hosts differ by 0.38 %": None}
THREE = {"hosts differ by 0.3 %": None, "hosts differ by 0.38 %": None}
# What fleets have beside their noise.
HARDER: dict[str, dict[str, Any]] = {
    "1 % of jobs 30 % slow once": {"hiccups": 0.01, "hiccup": (0.3, 0.3)},
    "5 % of jobs 30 % slow once": {"hiccups": 0.05, "hiccup": (0.3, 0.3)},
    "16 hosts alike 8 % slower": {"older": (16, 0.08)},
    "10 % of hosts three times as noisy": {"unsteady": (0.1, 3.0)},
    "pairs four times as noisy as hosts alone": {"noise": by_size(0.004, 0.016)},
    "pairs four times as noisy, by 2 %": {"noise": by_size(0.005, 0.02)},
    "AR(1) drift of 2 %": {"drift": 0.02, "kept": 0.8},
    "2 % of steps stall": {"stalls": (0.02, 10.0)},
    "2 % of steps stall, windows of ten": {"stalls": (0.02, 10.0), "window": 10},
    "0.4 % of steps stall": {"stalls": (0.004, 10.0)},
}
FASTER: dict[str, Any] = {"older": (40, 0.08)}
COURSE: dict[str, Any] = {"course": 0.002}
UNTIMED: dict[str, Any] = {"drift": 0.02, "timed": False}
_EVERYWHERE = (
    Bar("one host 5 % slow, compute", hosts(0.05, "compute"), 3, 0.99, 1.0, of=TAILS),
    Bar("one host 5 % slow, card", hosts(0.05, "card"), 3, 0.99, 1.0, of=TAILS),
    Bar("one host 2 % slow, compute", hosts(0.02, "compute"), 6, 0.95, 0.1, 0.02, of=ONE),
    Bar("one host 2 % slow, card", hosts(0.02, "card"), 6, 0.95, 0.1, 0.02, of=ONE),
    Bar("three hosts 5 % slow, either", hosts(0.05, *ANY, number=3), 6, 0.95, 0.1),
    Bar("three hosts 2 % slow, either", hosts(0.02, *ANY, number=3), 6, 0.95, 0.1, 0.02, of=THREE),
    Bar("one link of the ring 5 % slow", link(0.05), 4, 0.95, 0.1),
    Bar("healthy", NONE, 6, None, 1.0),
)
BARS = (
    *(Bar(**{**vars(each), "everywhere": True}) for each in _EVERYWHERE),
    Bar("one switch 5 % slow", switch(0.05, "switch"), 4, 0.95),
    Bar("one uplink 5 % slow", switch(0.05, "uplink"), 4, 0.95),
    Bar("eight hosts behind one switch 5 % slow, compute", rack(0.05), 6, 0.95),
    Bar("one host fails its jobs", hosts(0.0, "compute"), 3, 0.99),
    Bar("slow by 5 % in half of its jobs", hosts(0.05, "card", chance=0.5), 8, 0.9),
    Bar("waiting times known, compute 5 %", hosts(0.05, "compute"), 2, 0.99, fleet={"waits": True}),
    Bar("eight hosts 5 % slow, either", hosts(0.05, *ANY, number=8), 6, 0.95),
    Bar("one link 2 % slow", link(0.02), 6),
    Bar("one switch 2 % slow", switch(0.02, "switch"), 6),
    *(
        Bar(f"{kind}: {1 + by:g} times as long", plant, waves, bar)
        for by in (1.0, 99.0)
        for kind, plant, waves, bar in (
            ("compute", hosts(by, "compute"), 3, 0.99),
            ("card", hosts(by, "card"), 3, 0.99),
            ("link", link(by), 4, 0.95),
            ("switch", switch(by, "switch"), 4, 0.95),
            ("uplink", switch(by, "uplink"), 4, 0.95),
        )
    ),
    Bar("healthy, 1 % of jobs hiccup", NONE, 6, fleet={"hiccups": 0.01}),
    *(
        Bar(f"{name}, {noise}", plant, 6, least, fleet=how)
        for noise, how in HARDER.items()
        for name, plant, least in (
            ("one host 5 % slow, either", hosts(0.05, *ANY), 0.95),
            ("healthy", NONE, None),
        )
    ),
    Bar("healthy, 24 hosts alike faster than the other 40", NONE, 6, fleet=FASTER),
    *(
        Bar(f"one host slows by {by:.0%} in mid-job", hosts(by, "compute", late=True), 6, 0.95, fleet=COURSE)
        for by in (0.1, 0.3, 1.3)
    ),
    Bar("healthy, jobs tell their course", NONE, 6, fleet=COURSE),
    Bar("one host 5 % slow, either, drift of 2 %, untimed", hosts(0.05, *ANY), 6, fleet=UNTIMED),
    Bar("healthy, drift of 2 %, untimed", NONE, 6, fleet=UNTIMED),
)
BY_NAME = {bar.name: bar for bar in BARS}


@cache
def logs() -> list[Path]:
    """Archives of real jobs; said once where there are none."""
    found = sorted(LOGS.glob("*.tar.*"))
    if not found:
        print(f"no noise of real jobs: no logs in {LOGS}")
    return found


@cache
def of_real_jobs() -> dict[str, Any]:
    """Their residuals, log(time / median), held against jobs of the same work on as many hosts."""
    from muster.judging.logs import judge

    times: dict[tuple[Any, ...], list[float]] = {}
    for file in logs():
        for job in judge(file).jobs:
            if job.step_seconds is not None:
                times.setdefault((len(job.hosts), file, job.work), []).append(job.step_seconds)
    residuals: dict[int, list[float]] = {}
    for (size, *_), values in times.items():
        middle = statistics.median(values)
        residuals.setdefault(size, []).extend(math.log(value / middle) for value in values)
    return {"noise": resampled(residuals)}


def models() -> list[str]:
    """Every kind of noise; that of real jobs where their logs are here."""
    return [*NOISES, *([REAL] if logs() else [])]


def least(bar: Bar, model: str) -> float | None:
    """The bar under this noise."""
    return bar.of.get(model, bar.least)


def fleet_of(bar: Bar, model: str, seed: int, *, timed: bool = True) -> SimulatedFleet:
    planted = bar.plant(random.Random(seed), PLACE)
    noise = of_real_jobs() if model == REAL else NOISES[model]
    how = {"timed": timed, **noise, **bar.fleet}
    return SimulatedFleet(PLACE, planted, seed=seed + 1_000_000, **how)


def good_accused(named: Iterable[tuple[str, ...]], fleet: SimulatedFleet) -> int:
    """How many healthy hosts are accused."""
    bad = {each.where[0] for each in fleet.faults if each.kind in OF_HOSTS}
    return sum(len(each) == 1 and each[0] in PLACE.index and each[0] not in bad for each in named)


def accused(state: Posterior) -> dict[tuple[str, ...], str | None]:
    """What is accused, and of which kind."""
    return {each.subject: each.kind for each in judge_posterior(state).accused}


def try_ours(name: str, model: str, seeds: range, first: int) -> Counter[Any]:
    """Muster on these fleets: in how many exactly what was planted is accused at the end, and of the FOLLOWED
    from `first` on after each wave; of which kind it was said to be; healthy hosts accused; waves, jobs and
    CPU seconds used."""
    bar, tally, began = BY_NAME[name], Counter[Any](), time.process_time()
    for seed in seeds:
        fleet = fleet_of(bar, model, seed)
        wanted = {each.where: each.kind if each.chance == 1.0 else "intermittent" for each in fleet.faults}
        after: list[bool] = []

        def watch(wave: int, state: Posterior, after: list[bool] = after, wanted: Any = wanted) -> None:
            after.append(accused(state).keys() == wanted.keys())

        found = hunt(fleet, bar.waves, None, watch if seed - first < FOLLOWED else None)
        named = accused(found.state)
        tally.update(
            {
                "fleets": 1,
                "solved": named.keys() == wanted.keys(),
                "kinds": named == wanted,
                "good": good_accused(named, fleet),
                "false": not named.keys() <= wanted.keys(),
                "waves": found.waves,
                "jobs": fleet.jobs,
                "followed": bool(after),
            }
        )
        if after:
            tally.update({wave: after[min(wave, len(after)) - 1] for wave in range(1, bar.waves + 1)})
        if named.keys() != wanted.keys() and "first" not in tally:
            tally["first"] = seed
    tally["seconds"] = time.process_time() - began  # type: ignore[assignment]
    return tally


def try_others(name: str, model: str, seeds: range) -> Counter[Any]:
    """Others' ways on the same fleets, and on the same without a fault, each with every threshold."""
    bar, tally = BY_NAME[name], Counter[Any]()
    for seed in seeds:
        for way, run in PEERS.items():
            fleet, healthy = (
                fleet_of(each, model, seed, timed=False) for each in (bar, replace(bar, plant=NONE))
            )
            wanted = {each.where for each in fleet.faults}
            outcome, without = run(fleet, bar.waves), run(healthy, bar.waves)
            tally[way, "waves"] += outcome.waves
            tally[way, "jobs"] += fleet.jobs
            for share in THRESHOLDS:
                tally[way, share, "solved"] += outcome.accused(share * bar.by) == wanted
                tally[way, share, "good"] += good_accused(without.accused(share * bar.by), healthy)
    tally["fleets"] = len(seeds)
    return tally


def wilson(solved: float, count: int) -> list[float]:
    """The share's interval of 95 %."""
    z, share = 1.96, solved / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return [round(max(0.0, middle - half), 6), round(min(1.0, middle + half), 6)]


def missed(row: Mapping[str, Any]) -> list[str]:
    """What a row falls short of."""
    words = []
    if row["least"] is not None and row["solved"] < row["least"]:
        words.append(f"below {100 * row['least']:g} %")
    if row["healthy hosts accused"] >= WRONG:
        words.append(f"{100 * WRONG:g} % of healthy hosts accused or more")
    return words


def row_of(bar: Bar, model: str, tally: Counter[Any], first: int | None) -> dict[str, Any]:
    """Shares and means of one bar under one noise."""
    count = tally["fleets"]
    bad = len(bar.plant(random.Random(0), PLACE))
    row = {
        "name": bar.name,
        "model": model,
        "fleets": count,
        "waves": bar.waves,
        "least": least(bar, model),
        "solved": tally["solved"] / count,
        "interval": wilson(tally["solved"], count),
        "and its kind": tally["kinds"] / count,
        "healthy hosts accused": tally["good"] / (count * (len(PLACE.hosts) - (bad if bar.by else 0))),
        "fleets with a false accusation": tally["false"] / count,
        "solved after wave": [
            round(tally[wave] / max(1, tally["followed"]), 5) for wave in range(1, bar.waves + 1)
        ],
        "mean waves": tally["waves"] / count,
        "mean jobs": tally["jobs"] / count,
        "first not solved": first,
        "cpu seconds": round(tally["seconds"], 1),
    }
    return {**row, "missed": missed(row)}


def rows_of_others(bar: Bar, model: str, tally: Counter[Any]) -> list[dict[str, Any]]:
    """A row per way, with the threshold that suits it best."""
    count, rows = tally["fleets"], []
    for way in PEERS:
        best = max(THRESHOLDS, key=lambda share: (tally[way, share, "solved"], -tally[way, share, "good"]))
        rows.append(
            {
                "name": bar.name,
                "model": model,
                "way": way,
                "fleets": count,
                "threshold": best * bar.by,
                "solved": tally[way, best, "solved"] / count,
                "interval": wilson(tally[way, best, "solved"], count),
                "healthy hosts accused": tally[way, best, "good"] / (count * len(PLACE.hosts)),
                "waves": tally[way, "waves"] / count,
                "jobs": tally[way, "jobs"] / count,
            }
        )
    return rows


def scale(places: Iterable[tuple[int, int]] = ((64, 100), (1000, 20), (10000, 4))) -> list[dict[str, Any]]:
    """Waves until three hosts (5 % or 2 % slow) are named, and until nothing is left to ask; and the longest
    that it took to read all results and choose a wave. `places`: hosts, fleets."""
    rows = []
    for count, fleets in places:
        place = topology(count, behind=40 if count > 64 else 8)
        for by in (0.05, 0.02):
            named, waves, longest, solved = [], [], 0.0, 0
            for seed in range(fleets):
                planted = hosts(by, *ANY, number=3)(random.Random(seed), place)
                wanted = {each.where for each in planted}
                known: list[set[tuple[str, ...]]] = []
                ticks = [time.process_time()]

                def watch(
                    wave: int, state: Posterior, known: list[Any] = known, ticks: list[float] = ticks
                ) -> None:
                    ticks.append(time.process_time())
                    known.append(set(accused(state)))

                found = hunt(
                    SimulatedFleet(place, planted, seed=seed + 3_000_000, timed=True), 16, None, watch
                )
                longest = max(longest, *(b - a for a, b in pairwise(ticks)))
                first = [i for i, each in enumerate(known, 1) if each == wanted]
                named.append(first[0] if first else 99)
                waves.append(found.waves)
                solved += known[-1] == wanted
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


def kept(parts: Path | None, first: int = 0) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What an earlier run from the same first seed has left in --parts: (bar, noise, --fleets) -> our row and
    the others'."""
    if parts is None or not parts.exists():
        return {}
    found = [json.loads(line) for line in parts.read_text(encoding="utf-8").splitlines()]
    return {
        (each["bar"], each["model"], each["fleets"]): each for each in found if each.get("first", 0) == first
    }


def measure(chosen: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ours and of the others', for every bar and noise that was asked for."""
    ours: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    known = kept(chosen.parts, chosen.first)
    with ProcessPoolExecutor(chosen.processes) as pool:
        for bar in BARS:
            for model in models() if bar.everywhere else [GAUSSIAN]:
                if chosen.only not in bar.name or chosen.model not in model:
                    continue
                part = known.get((bar.name, model, chosen.fleets))
                if part is None:
                    row, rivals = tried(
                        pool,
                        bar,
                        model,
                        chosen.each or max(1, round(chosen.fleets * bar.share)),
                        chosen.first,
                    )
                    part = {"bar": bar.name, "model": model, "fleets": chosen.fleets, "first": chosen.first}
                    part |= {"ours": row, "others": rivals}
                    if chosen.parts is not None:
                        with chosen.parts.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(part) + "\n")
                ours.append(part["ours"])
                others += part["others"]
    return ours, others


def tried(
    pool: ProcessPoolExecutor, bar: Bar, model: str, count: int, first: int = 0
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One bar under one noise, on fleets whose seeds begin with `first`: our row, and the others'."""
    chunks = [range(first + at, first + min(at + CHUNK, count)) for at in range(0, count, CHUNK)]
    few = chunks[: max(1, round(count / bar.share) // (40 * CHUNK))]  # a way of theirs takes 2,016 jobs
    rivals = [
        pool.submit(try_others, bar.name, model, chunk)
        for chunk in (few if bar.everywhere and bar.name != "healthy" else ())
    ]
    tallies = [pool.submit(try_ours, bar.name, model, chunk, first) for chunk in chunks]
    found = [each.result() for each in tallies]
    missing = min([each.pop("first") for each in found if "first" in each], default=None)
    row = row_of(bar, model, sum(found, Counter()), missing)
    words = f"  MISSED {row['missed']}, first seed {missing}" if row["missed"] else ""
    print(
        f"{bar.name:48} {model:22} {row['solved']:.4f}  kind {row['and its kind']:.4f}"
        f"  good accused {row['healthy hosts accused']:.6f}  waves {row['mean waves']:.2f}"
        f"  {row['cpu seconds']} s{words}",
        flush=True,
    )
    if not rivals:
        return row, []
    return row, rows_of_others(bar, model, sum((each.result() for each in rivals), Counter()))


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleets", type=int, default=10_000, help="per headline bar")
    parser.add_argument("--each", type=int, help="fleets of every bar, in place of --fleets")
    parser.add_argument("--first", type=int, default=0, help="seed of the first fleet")
    parser.add_argument("--only", default="", help="bars with this in their name")
    parser.add_argument("--model", default="", help="kinds of noise with this in their name")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--parts", type=Path, help="a file that keeps each row: those in it are not tried again"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args()
    ours, others = measure(chosen)
    if chosen.only or chosen.model:
        return
    document = {
        "command": f"benchmarks/localise.py --fleets {chosen.fleets} --first {chosen.first}",
        "models": models(),
        "wrong": WRONG,
        "bars": ours,
        "compared": others,
        "scale": scale(),
    }
    write(document, save=not chosen.no_write)


if __name__ == "__main__":
    main()
