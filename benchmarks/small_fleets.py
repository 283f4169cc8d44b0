"""How often does the judge accuse a healthy host of a small fleet whose jobs differ much?

    .venv/bin/python benchmarks/small_fleets.py [--fleets 60] [--hosts 12] [--waves 1]

All hosts are healthy. In a wave each runs a job alone, and each two neighbours run one together; the
logarithms of their times have Gaussian noise. Prints a row for each deviation. The seeds are 0, 1, 2, ...
"""

from __future__ import annotations

import argparse
import math
import random

from muster.judging import Judgement, Observation, Topology, judge

NOISE = (0.005, 0.01, 0.02, 0.03, 0.05)  # relative standard deviations of a job's time


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fleets", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--waves", type=int, default=1)
    chosen = parser.parse_args()
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
