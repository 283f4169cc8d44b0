"""An epoch on two hosts of which one has half a core: equal shares against measured ones, in the same run.

    .venv/bin/python benchmarks/mixed.py --repeats 3

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh), node1 on the
first core and node2 on the second, with a quota of half of it. The order of the two ways changes from one
repeat to the next. Writes benchmarks/results/mixed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import processor  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.helpers import inhabitants  # noqa: E402
from tests.cluster.slow import slowed  # noqa: E402

from muster.core.result import Result  # noqa: E402
from muster.inputs.read import read_inputs  # noqa: E402
from muster.runs.train import train  # noqa: E402
from muster.store import events  # noqa: E402
from muster.store.runfolder import RunFolder  # noqa: E402

HOSTS = "node1:1,node2:1"
MICRO = 16


def job(cluster: Cluster, folder: Path, split: str, samples: int) -> dict[str, Any]:
    """One epoch of the demo's model. -> what it took."""
    overrides = [
        "engine.name=ddp", "engine.zero=0", "train.epochs=1", "train.max_steps=null", "evaluate.after=false",
        f"data.generated.train={samples}", f"batch.micro={MICRO}", "batch.global=auto",
        f"batch.split={split}", "measure.flops=false",
        "launch.threads=1", f"launch.ssh_options=[-F, {cluster.ssh_config}]",
    ]  # fmt: skip
    load = os.getloadavg()[0]
    run = RunFolder(folder)
    result: Result = train(read_inputs("demo", HOSTS, overrides), run)
    if result.status != "succeeded" or result.throughput is None:
        raise SystemExit(f"{split}: {result.failure}")
    cuts = [event for event in events.read_events(run.events) if isinstance(event, events.Split)]
    found = {
        "split": split,
        "epoch_seconds": round(result.seconds.training or 0.0, 2),
        "samples": result.samples,
        "steps": result.steps,
        "samples_per_second": round(result.throughput.samples_per_second, 2),
        "loss_final": result.loss_final,
        "shares": cuts[-1].shares if cuts else [MICRO, MICRO],
        "speeds": [round(speed, 1) for speed in cuts[-1].speeds or []] if cuts else None,
        "measuring_seconds": round(cuts[-1].seconds, 2) if cuts else 0.0,
        "load_before": round(load, 1),
        "versions": result.versions,
    }
    print(json.dumps({key: value for key, value in found.items() if key != "versions"}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--cores", type=float, default=0.5, help="of the second host")
    parser.add_argument(
        "--weight", type=float, default=1.0, help="of the hosts' groups on a machine that does other work too"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "mixed.json")
    options = parser.parse_args()
    runs = []
    began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with tempfile.TemporaryDirectory() as scratch, Cluster(size=2) as cluster:
        for core, node in enumerate(("node1", "node2")):
            for process in inhabitants(cluster, node):
                os.sched_setaffinity(process.pid, {core % (os.cpu_count() or 1)})
        weight = options.weight  # of both, against what else runs on the machine
        with slowed(cluster, "node1", 1.0, weight), slowed(cluster, "node2", options.cores, weight):
            for repeat in range(options.repeats):
                for split in ("even", "measured")[:: 1 if repeat % 2 == 0 else -1]:
                    folder = Path(scratch) / f"{split}-{repeat}"
                    runs.append(job(cluster, folder, split, options.samples))
    seconds = {
        split: [each["epoch_seconds"] for each in runs if each["split"] == split]
        for split in ("even", "measured")
    }
    middle = {split: statistics.median(values) for split, values in seconds.items()}
    pairs = [m / e for e, m in zip(seconds["even"], seconds["measured"], strict=True)]
    document = {
        "what": "seconds of an epoch, measured shares / equal shares; theory: 2c/(1+c), c: slow_host_cores",
        "ratio_of_medians": round(middle["measured"] / middle["even"], 3),
        "ratios": [round(pair, 3) for pair in pairs],
        "theory": round(2 * options.cores / (1 + options.cores), 3),
        "median_epoch_seconds": middle,
        "slow_host_cores": options.cores,
        "weight": options.weight,
        "began": began,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "cpu": processor()},
        "versions": runs[0]["versions"],
        "runs": [{key: value for key, value in each.items() if key != "versions"} for each in runs],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    print(f"measured / even = {document['ratio_of_medians']} (theory {document['theory']})")


if __name__ == "__main__":
    main()
