"""Does `muster bench` name the bad host, and nobody where all are well? In the real, on the test cluster.

    .venv/bin/python benchmarks/bench_cluster.py [--tries 5] [--only healthy processor link]

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh), each with a
quota of a core and a shaped link. In every try one of them has 20 % less of a core, or of its link, or none
has; another one each time. The bench is the same: the fabric on all hosts at once, three times, for what each
host computes; then on groups that are chosen from results, for what it exchanges. Less than 10 % does not
count: that much healthy hosts differ here, which share two cores with each other and with the machine's
neighbours. Right: exactly that host is called slow. `stolen`: the share of the machine's time that its own
host gave to others meanwhile, which takes from all of them, and least from one with less of a core. Writes
benchmarks/results/bench_cluster.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import processor, stolen, ticks  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.slow import slowed  # noqa: E402

from muster.core.bench import Bench  # noqa: E402
from muster.core.recipes import dump_yaml  # noqa: E402
from muster.stages.bench import bench  # noqa: E402
from muster.stages.bench_inputs import read_bench  # noqa: E402
from muster.store.benchfolder import BenchFolder  # noqa: E402

SIZE = 5
CORES = 0.3  # of each host; all together stay below the machine's
RATE = 100  # Mbit/s of each link
LEFT = 0.8  # of the bad host's
PERIOD = 10_000  # microseconds: shorter ones are not kept exactly
KINDS = ("healthy", "processor", "link")
SUITE: dict[str, Any] = {
    "about": "what each host computes, and what it exchanges",
    "slow": 0.1,
    "timeout": 300,
    "warm_up": False,
    "jobs": [
        {"name": "compute", "recipe": "fabric", "groups": ["all"], "repeats": 3,
         "set": {"fabric": {"seconds": 20, "largest": "64KiB", "pairs": "sample"}}},
        {"name": "network", "recipe": "fabric", "groups": "adaptive",
         "set": {"fabric": {"seconds": 20, "largest": "1MiB", "matmul": False, "pairs": "sample"}}},
    ],
}  # fmt: skip


def one(kind: str, number: int, scratch: Path) -> dict[str, Any]:
    """A try. -> what was planted and what was said."""
    with Cluster(size=SIZE) as cluster, contextlib.ExitStack() as stack:
        names = [node.name for node in cluster.hosts]
        bad = names[(2 * number + 1) % SIZE]
        for name in names:
            share = LEFT if (kind, name) == ("processor", bad) else 1.0
            stack.enter_context(slowed(cluster, name, CORES * share, period=PERIOD))
            cluster.shape(name, f"{RATE * (LEFT if (kind, name) == ('link', bad) else 1.0):g}mbit")
        suite = scratch / f"{kind}-{number}.yaml"
        suite.write_text(dump_yaml(SUITE))
        hosts = ",".join(f"{name}:1" for name in names)
        options = [f"launch.ssh_options=[-F, {cluster.ssh_config}]", "launch.threads=1"]
        began, before = time.monotonic(), ticks()
        found = bench(read_bench(str(suite), hosts, options), BenchFolder(scratch / f"bench-{kind}-{number}"))
    planted = [] if kind == "healthy" else [bad]
    return {
        "kind": kind, "planted": planted, "seconds": round(time.monotonic() - began, 1),
        "stolen": round(stolen(before), 3), **said(found),
        "right": accused(found) == planted and not found.links,
    }  # fmt: skip


def accused(found: Bench) -> list[str]:
    """Hosts that are called bad."""
    return [each.host for each in found.hosts if each.verdict not in ("fit", "unknown")]


def said(found: Bench) -> dict[str, Any]:
    """Verdicts, how many jobs they took, and what healthy ones differ by."""
    return {
        "accused": accused(found),
        "links": [" - ".join(each.hosts) for each in found.links],
        "verdicts": {each.host: f"{each.verdict}: {each.reason}" for each in found.hosts},
        "jobs": len(found.jobs),
        "waves": max((job.wave or 0 for job in found.jobs), default=0),
        "outcomes": {name: count for name, count in found.outcomes.items() if count},
        "matmul": {
            job.job: round(job.figures["matmul"] / 1e9, 2) for job in found.jobs if "matmul" in job.figures
        },
        "busbw": {
            job.job: round(job.figures["busbw"] / 1e6, 3) for job in found.jobs if "busbw" in job.figures
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=5, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "bench_cluster.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.tries):
            for kind in options.only:
                rows.append(one(kind, number, Path(scratch)))
                print(json.dumps(rows[-1]), flush=True)
    document = {
        "machine": {"cores": os.cpu_count(), "cpu": processor()},
        "hosts": SIZE, "cores_of_a_host": CORES, "mbit_of_a_link": RATE, "left_of_it": LEFT,
        "right": {kind: sum(row["right"] for row in rows if row["kind"] == kind) for kind in options.only},
        "tries": options.tries, "rows": rows,
    }  # fmt: skip
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document["right"]))


if __name__ == "__main__":
    main()
