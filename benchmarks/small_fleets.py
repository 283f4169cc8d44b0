"""How often does the judge accuse a healthy host of a small fleet whose jobs, or whose hosts, differ much?

    .venv/bin/python benchmarks/small_fleets.py [--fleets 60] [--hosts 12] [--waves 1]
    .venv/bin/python benchmarks/small_fleets.py --differ [--fleets 60]

All hosts are healthy. In a wave each runs a job alone, and each two neighbours run one together; the
logarithms of their times have Gaussian noise. Prints a row for each deviation. The seeds are 0, 1, 2, ...

`--differ`: hosts differ for good, and each runs three jobs alone with noise of 0.3 %. Prints a row for each
number of hosts and each deviation, with how often one that is slower by 5 or 10 % is found.
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fleets", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--waves", type=int, default=1)
    parser.add_argument("--differ", action="store_true", help="hosts that differ for good")
    chosen = parser.parse_args()
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
