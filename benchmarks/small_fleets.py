"""How often does the judge accuse a healthy host of a small fleet whose jobs, or whose hosts, differ much?

    .venv/bin/python benchmarks/small_fleets.py [--fleets 60] [--hosts 12] [--waves 1]
    .venv/bin/python benchmarks/small_fleets.py --differ [--fleets 60]
    .venv/bin/python benchmarks/small_fleets.py --groups [--fleets 60]

All hosts are healthy. In a wave each runs a job alone, and each two neighbours run one together; the
logarithms of their times have Gaussian noise. Prints a row for each deviation. The seeds are 0, 1, 2, ...

`--differ`: hosts differ for good, and each runs three jobs alone with noise of 0.3 %. Prints a row for each
number of hosts and each deviation, with how often one that is slower by 5 or 10 % is found.

`--groups`: hosts run in random groups alone, some are slow, and noise is 0.4 %, or of another kind. Prints
how often exactly the slow ones are accused, one of them is called fit, and a healthy host or link accused.
"""

from __future__ import annotations

import argparse
import math
import random

from muster.judging import Judgement, Observation, Topology, judge

NOISE = (0.005, 0.01, 0.02, 0.03, 0.05)  # relative standard deviations of a job's time
DIFFER = (0.002, 0.005, 0.01, 0.02)  # relative standard deviations of hosts


def judged(noise: float, hosts: int, waves: int, seed: int) -> Judgement:
    """Make a healthy fleet, run its jobs, and judge them."""
    draw = random.Random(seed)
    names = [f"n{number:02d}" for number in range(hosts)]
    jobs = []
    for wave in range(waves):
        turned = names[wave % 2 :] + names[: wave % 2]
        groups = [*((name,) for name in names), *zip(turned[::2], turned[1::2], strict=False)]
        for group in groups:
            seconds = (10.0 if len(group) == 1 else 10.4) * math.exp(draw.gauss(0, noise))
            jobs.append(Observation(f"{wave}-{'-'.join(group)}", group, seconds, work="w"))
    return judge(jobs, Topology.of(names, {}))


def differing(hosts: int, deviation: float, slow: float, seed: int) -> Judgement:
    """Make a fleet whose hosts differ for good, the first of them slower by `slow` (0: as the others), run
    three jobs on each, and judge them."""
    draw = random.Random(seed)
    own = {f"n{number:02d}": draw.gauss(0, deviation) for number in range(hosts)}
    if slow:
        own["n00"] = slow
    jobs = [
        Observation(f"{job}-{host}", (host,), 2.5 * (1 + by) * math.exp(draw.gauss(0, 0.003)), work="w")
        for job in range(3)
        for host, by in own.items()
    ]
    return judge(jobs, Topology.of(list(own), {}))


def print_differing(fleets: int) -> None:
    """Print the table of hosts that differ."""
    print("| hosts | they differ by | fleets with one accused | hosts accused | 5 % slow found | 10 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for hosts in (8, 12, 24, 64):
        for deviation in DIFFER:
            accused = [len(differing(hosts, deviation, 0.0, seed).accused) for seed in range(fleets)]
            shares = [sum(map(bool, accused)) / fleets, sum(accused) / fleets / hosts]
            for slow in (0.05, 0.10):
                found = (differing(hosts, deviation, slow, seed).hosts[0].bad for seed in range(fleets))
                shares.append(sum(found) / fleets)
            cells = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {hosts} | {deviation:.1%} | {cells} |", flush=True)


REDRAWN = "30 % of jobs are 8 % faster, on any hosts"
EXPONENTIAL = "exponential noise of 3 %"
UNIFORM = "uniform noise of 0 to 10 %"
# Hosts, of a group, waves, slow hosts, by how much, how much waves differ, noise.
GROUPS = (
    (16, 8, 10, 2, 0.15, 0.0, ""),
    (8, 4, 10, 2, 0.15, 0.0, ""),
    (32, 8, 8, 3, 0.2, 0.0, ""),
    (32, 8, 8, 4, 0.2, 0.0, ""),
    (32, 8, 6, 3, 0.05, 0.0, ""),
    (24, 4, 5, 3, 0.1, 0.0, ""),
    (16, 4, 3, 2, 0.1, 0.0, ""),
    (16, 4, 6, 2, 0.1, 0.03, ""),
    (16, 4, 4, 0, 0.0, 0.03, ""),
    *(
        (*shape, 0, 0.0, 0.0, kind)
        for kind in (REDRAWN, EXPONENTIAL, UNIFORM)
        for shape in ((16, 8, 6), (8, 4, 6))
    ),
)


def off(draw: random.Random, kind: str) -> float:
    """Draw the noise of a job (log)."""
    if kind == EXPONENTIAL:
        return draw.expovariate(1 / 0.03)
    if kind == UNIFORM:
        return draw.uniform(0.0, 0.1)
    return draw.gauss(0, 0.004) - (0.08 if kind == REDRAWN and draw.random() < 0.3 else 0.0)


def print_groups(fleets: int) -> None:
    """Print the table of hosts in groups alone."""
    print("| hosts | waves | slow | by | waves differ by, or noise | named | called fit | healthy accused |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for count, size, waves, bad, by, hours, kind in GROUPS:
        named, fit, wrong = 0, 0, 0
        for seed in range(fleets):
            draw = random.Random(f"{seed} {count} {size} {bad} {by} {waves}")
            names = [f"n{number:02d}" for number in range(count)]
            slow, jobs = set(draw.sample(names, bad)), []
            for wave in range(waves):
                order, pace = draw.sample(names, count), draw.gauss(0, hours)
                for first in range(0, count, size):
                    group = tuple(sorted(order[first : first + size]))
                    seconds = math.exp(pace + off(draw, kind)) * (1 + by if slow & set(group) else 1)
                    jobs.append(Observation(f"{wave}-{first}", group, seconds, work="w", moment=str(wave)))
            found = judge(jobs, Topology.of(names, {}))
            accused = {host for each in found.accused for host in each.subject}
            named += accused == slow
            fit += any(each.condition == "fit" and each.subject[0] in slow for each in found.hosts)
            wrong += bool(accused - slow)
        what = kind or (f"{hours:.0%}" if hours else "")
        shares = " | ".join(f"{100 * each / fleets:.0f} %" for each in (named, fit, wrong))
        print(f"| {count} in {size} | {waves} | {bad} | {by:.0%} | {what} | {shares} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fleets", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--waves", type=int, default=1)
    parser.add_argument("--differ", action="store_true", help="hosts that differ for good")
    parser.add_argument("--groups", action="store_true", help="hosts that run in groups alone")
    chosen = parser.parse_args()
    if chosen.groups:
        print_groups(chosen.fleets)
        return
    if chosen.differ:
        print_differing(chosen.fleets)
        return
    print("| noise | healthy hosts accused | left unknown |\n| --- | --- | --- |")
    for noise in NOISE:
        conditions = [
            each.condition
            for seed in range(chosen.fleets)
            for each in judged(noise, chosen.hosts, chosen.waves, seed).hosts
        ]
        accused = sum(each in ("slow", "failing") for each in conditions) / len(conditions)
        unknown = conditions.count("unknown") / len(conditions)
        print(f"| {noise:.1%} | {accused:.2%} | {unknown:.1%} |", flush=True)


if __name__ == "__main__":
    main()
