"""Predicted step times against measured ones, on hosts of which only one was tried and the link was measured.

    .venv/bin/python benchmarks/planner_cluster.py [--only N ...] [--cores 0.6]

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh), each
with a quota of a core, its link shaped. First, on one host: two runs of different micro-batches, from
which the CPUs' efficiency is learned. Then each link, between two hosts: `muster train fabric`. Nothing
else is learned; every configuration is predicted and then run. Writes
benchmarks/results/planner_cluster.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import processor  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.slow import slowed  # noqa: E402

from muster.planner.learning import Measured, learn  # noqa: E402
from muster.planner.steptime import Calibration, predict  # noqa: E402
from muster.stages.calibrate import measured_of  # noqa: E402
from muster.stages.inputs import read_inputs  # noqa: E402
from muster.stages.train import train  # noqa: E402
from muster.store.runfolder import RunFolder  # noqa: E402

HOSTS = ("node1", "node2", "node3")
STEPS = 24
MODEL = [
    "model.config={model_type: gpt2, n_layer: 4, n_head: 4, n_embd: 128, n_positions: 128, vocab_size: 2048}",
    "data.library=null", "data.synthetic={}", "evaluate.after=false", "evaluate.every=null",
    "checkpoint.model=false", "checkpoint.every=null", f"train.max_steps={STEPS}",
    "train.max_minutes=null", "measure.window=4", "measure.warmup=4", "measure.flops=false",
    "launch.threads=1", "precision=fp32",
]  # fmt: skip
# engine, hosts, link, accumulation, micro-batch
CASES: list[tuple[str, int, str, int, int]] = [
    ("ddp", 2, "100mbit", 1, 4),
    ("ddp", 3, "100mbit", 1, 4),
    ("ddp", 3, "100mbit", 4, 4),
    ("ddp", 2, "1gbit", 1, 4),
    ("ddp", 3, "50mbit", 1, 4),
    ("zero1", 2, "100mbit", 1, 4),
    ("zero1", 3, "100mbit", 4, 4),
    ("zero1", 3, "1gbit", 1, 4),
    ("zero2", 2, "200mbit", 1, 4),
    ("zero2", 3, "200mbit", 4, 4),
    ("zero3", 2, "200mbit", 1, 4),
    ("zero3", 3, "1gbit", 1, 4),
    ("fsdp", 2, "200mbit", 1, 4),
    ("fsdp", 3, "1gbit", 4, 4),
]
ENGINES = {
    "ddp": ["engine.name=ddp", "engine.zero=0"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
    **{f"zero{n}": ["engine.name=deepspeed", f"engine.zero={n}"] for n in (1, 2, 3)},
}


def run(cluster: Cluster, folder: Path, recipe: str, hosts: int, overrides: list[str]) -> RunFolder:
    """A job to its end."""
    names = ",".join(f"{name}:1" for name in HOSTS[:hosts])
    settings = [*overrides, f"launch.ssh_options=[-F, {cluster.ssh_config}]"]
    made = RunFolder(folder)
    result = train(read_inputs(recipe, names, settings), made)
    if result.status != "succeeded":
        raise SystemExit(f"{folder.name}: {result.failure}")
    return made


def job(cluster: Cluster, folder: Path, engine: str, hosts: int, accumulation: int, micro: int) -> RunFolder:
    """A training of the small GPT-2."""
    batch = [f"batch.micro={micro}", f"batch.accumulation={accumulation}", "batch.global=auto"]
    return run(cluster, folder, "causal-lm", hosts, [*MODEL, *ENGINES[engine], *batch])


@contextlib.contextmanager
def shaped(cluster: Cluster, rate: str) -> Iterator[None]:
    """Every host's link at a rate."""
    for name in HOSTS:
        cluster.shape(name, rate)
    try:
        yield
    finally:
        for name in HOSTS:
            cluster.unshape(name)


def link_of(cluster: Cluster, folder: Path) -> tuple[float, float]:
    """Bytes/s and seconds of a message between two hosts, as `muster train fabric` finds them."""
    settings = ["fabric.largest=8MiB", "fabric.matmul=false", "fabric.seconds=15"]
    found = run(cluster, folder, "fabric", 2, settings).read_result()
    assert found is not None
    assert found.fabric is not None
    pairs = found.fabric.pairs
    assert pairs is not None
    bandwidth = [each for row in pairs.bandwidth for each in row if each]
    latency = [each for row in pairs.latency for each in row if each]
    return statistics.median(bandwidth), statistics.median(latency)


def spelled(rate: str) -> str:
    """100mbit -> 100Mbit, as links are named."""
    return rate.replace("mbit", "Mbit").replace("gbit", "Gbit")


def measure(cluster: Cluster, scratch: Path, chosen: list[int]) -> dict[str, Any]:
    """Calibrate, measure links, predict, run."""
    alone = []
    for micro in (4, 12):
        done = job(cluster, scratch / f"alone-{micro}", "ddp", 1, 1, micro)
        alone.append(measured_of(done))
        print(f"one host, micro-batch {micro}: {alone[-1].seconds:.4f} s a step", flush=True)
    known = learn(alone, Calibration())
    rows = []
    cases = [CASES[index] for index in chosen] if chosen else CASES
    for rate in dict.fromkeys(case[2] for case in cases):
        with shaped(cluster, rate):
            bandwidth, latency = link_of(cluster, scratch / f"link-{rate}")
            known = replace(known, links={**known.links, f"{spelled(rate)} gloo": (bandwidth, latency)})
            print(f"{rate}: {bandwidth / 1e6:.2f} MB/s, {1e6 * latency:.0f} us", flush=True)
            for engine, hosts, _, accumulation, micro in (case for case in cases if case[2] == rate):
                name = f"{engine}-{hosts}-{rate}-{accumulation}"
                done = job(cluster, scratch / name, engine, hosts, accumulation, micro)
                rows.append(row(name, measured_of(done, spelled(rate)), known))
                print(json.dumps(rows[-1]), flush=True)
    return {
        "rows": rows,
        "learned": {"efficiency": known.efficiency, "fixed": known.fixed, "links": known.links},
    }


def row(name: str, measured: Measured, known: Calibration) -> dict[str, Any]:
    """Predicted beside measured."""
    step = predict(measured.case, known)
    return {
        "case": name,
        "measured": round(measured.seconds, 4),
        "predicted": round(step.seconds, 4),
        "error": round(step.seconds / measured.seconds - 1, 4),
        "compute": round(step.compute, 4),
        "communication": round(step.communication, 4),
        "optimizer": round(step.optimizer, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of configurations")
    parser.add_argument("--cores", type=float, default=0.6, help="of each host")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "planner_cluster.json"
    )
    options = parser.parse_args()
    began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Cluster(size=3) as cluster,
        contextlib.ExitStack() as stack,
    ):
        for name in HOSTS:
            stack.enter_context(slowed(cluster, name, options.cores, period=5_000))
        found = measure(cluster, Path(scratch), options.only)
    errors = [abs(each["error"]) for each in found["rows"]]
    document = {
        "command": " ".join(["benchmarks/planner_cluster.py", *sys.argv[1:]]),
        "began": began,
        "load_before": round(load, 2),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "cpu": processor()},
        "cores_of_a_host": options.cores,
        "median_error": round(statistics.median(errors), 4),
        "worst_error": round(max(errors), 4),
        **found,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    print(f"median {document['median_error']:.1%}, worst {document['worst_error']:.1%}")


if __name__ == "__main__":
    main()
