"""Does `muster bench acceptance` name the bad host, and nobody where all are well? On the test cluster.

    .venv/bin/python benchmarks/bench_cluster.py --tries 5 --hosts 4,5,8 --what healthy,processor:50,link:20
    .venv/bin/python benchmarks/bench_cluster.py --continue [...]     # tries that are in the results stay
    .venv/bin/python benchmarks/bench_cluster.py --page               # the table of docs/bench.md alone

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh), each with a
quota of a core and a shaped link. In a try one of them, another one each time, is left so many per cent of
its core or of its link, or none is bad. The suite is the shipped one with small recipes, without the
inspection and without the threshold of 98 % of the fleet; less than 10 % does not count: that much healthy
hosts differ here, which share two cores with each other and with whatever else runs on the machine.

A try is right where exactly the bad host is accused, of what is bad, or, with none, nobody is and the exit
code is 0. Where the bench says that it could not measure (exit code 3, nobody accused) that is told apart
from a miss, which is exit code 0 with a bad host. False: somebody else is accused. `stolen`: the share of the
machine's time that its own host gave to others meanwhile. Results are written after every try.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import into_page, processor, stolen, ticks  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.slow import slowed  # noqa: E402

from muster.benches.bench import bench  # noqa: E402
from muster.benches.document import Bench  # noqa: E402
from muster.benches.folder import BenchFolder  # noqa: E402
from muster.benches.inputs import read_bench  # noqa: E402
from muster.benches.suite import load_suite  # noqa: E402
from muster.core.recipes import dump_yaml  # noqa: E402
from muster.judging.document import BAD, Gate  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "bench_cluster.json"
PAGE = ROOT / "docs" / "bench.md"
ALL = "healthy,processor:80,processor:50,processor:25,link:80,link:50,link:20,link:5"
CORES = 1.2  # of all hosts together: so few that three of four find room on one of the machine's two cores
MOST = 0.3  # of a core for each
RATE = 100  # Mbit/s of each link
PERIOD = 10_000  # microseconds: shorter ones are not kept exactly
LEAST = 1000  # microseconds: the kernel takes no smaller quota, so that small shares have longer periods
OVERRIDES = (
    "fabric:fabric.seconds=12", "fabric:fabric.largest=1MiB", "fabric:measure.hardware_seconds=1",
    # Two hosts with a quota meet only where both have some of it left. A step takes many periods, so that
    # this does not count; steps of 50 ms made pairs differ by 40 %.
    "opt-350m:train.max_steps=24", "opt-350m:batch={micro: 16, global: null, accumulation: 8}",
    "opt-350m:measure={window: 2, warmup: 4, hardware_seconds: 1}", "launch.threads=1",
)  # fmt: skip
WORDS = ("right", "not measured", "open", "missed", "wrong subject", "false")
SUBJECT = {"processor": "compute", "link": "card"}  # what a bad host's verdict is to name


def suite(folder: Path) -> Path:
    """Acceptance, for hosts that differ by more than real ones, and jobs that end soon."""
    made = load_suite("acceptance").model_dump(mode="json", by_alias=True)
    jobs = [{**job, "thresholds": [], "timeout": 150} for job in made["jobs"]]
    path = folder / "acceptance.yaml"
    path.write_text(dump_yaml({**made, "check": None, "slow": 0.1, "warm_up": False, "jobs": jobs}))
    return path


def one(what: str, count: int, number: int, scratch: Path) -> dict[str, Any]:
    """A try. -> what was planted and what was said."""
    kind, _, left = what.partition(":")
    share = float(left or 100) / 100
    cores = min(MOST, CORES / count)
    period = max(PERIOD, round(LEAST / (cores * (share if kind == "processor" else 1.0))) + 1)
    with Cluster(size=count) as cluster, contextlib.ExitStack() as stack:
        names = [node.name for node in cluster.hosts]
        bad = names[(2 * number + 1) % count]
        planted = [] if kind == "healthy" else [bad]
        for name in names:
            own = share if name in planted else 1.0
            stack.enter_context(
                slowed(cluster, name, cores * (own if kind == "processor" else 1.0), period=period)
            )
            cluster.shape(name, f"{RATE * (own if kind == 'link' else 1.0):g}mbit")
        hosts = ",".join(f"{name}:1" for name in names)
        options = [*OVERRIDES, f"launch.ssh_options=[-F, {cluster.ssh_config}]"]
        inputs = read_bench(str(suite(scratch)), hosts, options, recipe="digits")
        began, before = time.monotonic(), ticks()
        found = bench(inputs, BenchFolder(scratch / "bench"))
    if not found.complete:
        sys.exit("stopped: this try does not count")
    row = {
        "what": what, "hosts": count, "number": number, "planted": planted,
        "seconds": round(time.monotonic() - began), "stolen": round(stolen(before), 3), **said(found),
    }  # fmt: skip
    return {**row, "came_to": came_to(row)}


def said(found: Bench) -> dict[str, Any]:
    """Verdicts, the exit code, and what was no measurement."""
    unmeasured = [job.not_measured[0] for job in found.jobs if job.not_measured]
    return {
        "exit_code": int(found.gate),
        "accused": [each.host for each in found.hosts if each.condition in BAD],
        "kinds": [each.kind for each in found.hosts if each.condition in BAD],
        "links": [" - ".join(each.hosts) for each in found.links],
        "verdicts": {each.host: f"{each.condition}: {each.reason}" for each in found.hosts},
        "outcomes": {name: count for name, count in found.outcomes.items() if count},
        "jobs": len(found.jobs),
        "not_measured": len(unmeasured),
        "why": unmeasured[:2],
        "slower": {
            f"{job.job} {','.join(job.hosts)}": round(job.slower, 3)
            for job in found.jobs
            if job.slower is not None
        },
    }


def came_to(row: dict[str, Any]) -> str:
    """One of WORDS."""
    named = set(row["accused"]) | {host for link in row["links"] for host in link.split(" - ")}
    code, planted = row["exit_code"], set(row["planted"])
    if set(row["accused"]) == planted and not row["links"] and code == (Gate.BAD if planted else Gate.FIT):
        subject = SUBJECT.get(row["what"].partition(":")[0])
        return "right" if set(row["kinds"]) <= {subject} else "wrong subject"
    if named - planted:
        return "false"
    if code == Gate.OPEN:
        return "not measured" if row["not_measured"] else "open"
    return "missed" if planted else "false"


def table(rows: list[dict[str, Any]]) -> str:
    """What each kind of try came to, by number of hosts."""
    sizes = sorted({row["hosts"] for row in rows})
    lines = [
        "| left of it | " + " | ".join(f"{size} hosts" for size in sizes) + " |",
        "| --- |" + " --- |" * len(sizes),
    ]
    for what in sorted({row["what"] for row in rows}, key=lambda name: ALL.split(",").index(name)):
        cells = []
        for size in sizes:
            counts = Counter(row["came_to"] for row in rows if (row["what"], row["hosts"]) == (what, size))
            total = sum(counts.values())
            told = [f"{counts[word]} {word}" for word in WORDS if counts[word]]
            cells.append(f"{', '.join(told)} of {total}" if total else "")
        kind, _, left = what.partition(":")
        lines.append(f"| {kind}{f', {left} %' if left else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=1, help="of each kind, on each number of hosts")
    parser.add_argument("--hosts", default="4,5,8")
    parser.add_argument("--what", default=ALL, help=f"default: {ALL}")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="keep the tries that are there")
    parser.add_argument("--page", action="store_true", help="no try: write the table of what is there")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if (options.go_on or options.page) and options.output.exists():
        rows = json.loads(options.output.read_text())["rows"]
    done = {(row["what"], row["hosts"], row["number"]) for row in rows}
    wanted = [
        (what, int(count), number)
        for number in range(options.tries)
        for count in options.hosts.split(",")
        for what in options.what.split(",")
    ]
    for what, count, number in [] if options.page else [each for each in wanted if each not in done]:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(one(what, count, number, Path(scratch)))
        print(json.dumps(rows[-1]), flush=True)
        document = {
            "machine": {"cores": os.cpu_count(), "cpu": processor()}, "cores_of_all_hosts": CORES,
            "most_of_a_host": MOST, "mbit_of_a_link": RATE, "rows": rows,
        }  # fmt: skip
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(rows))
    if options.output == RESULTS:
        into_page(PAGE, "tries", table(rows))


if __name__ == "__main__":
    main()
