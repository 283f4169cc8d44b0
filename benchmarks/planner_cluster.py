"""Predicted step times against measured ones, on hosts of which only one was tried and the link was measured.

    .venv/bin/python benchmarks/planner_cluster.py [--only GROUP ...] [--cores 0.4]

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh), each with
a quota of a core, its link shaped. First and last, on one host: every engine with accumulation 1 and 4,
from which the CPUs' efficiency and the engines' own work are learned (again last, since machines drift);
then on two ranks of that host, which has twice the quota for it, what engines do where something is
exchanged, beside the fabric workload's figures of the link between them. Each link, between two hosts:
`muster train fabric`. Nothing else is learned; every configuration on two and on three hosts is run and
predicted, and "is one host more faster?" is answered from the prediction. Writes
benchmarks/results/planner_cluster.json.

A quota is given out in the kernel's ticks of some milliseconds. Steps are long beside them, and the hosts'
quotas together stay well below the machine's cores, or they would take from each other.
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
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import processor  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.slow import give, slowed  # noqa: E402

from muster.core.links import Figures  # noqa: E402
from muster.planner.learning import Measured, learn  # noqa: E402
from muster.planner.learning_links import link_figures  # noqa: E402
from muster.planner.steptime import Calibration, predict  # noqa: E402
from muster.stages.calibrate import measured_of  # noqa: E402
from muster.stages.inputs import read_inputs  # noqa: E402
from muster.stages.train import train  # noqa: E402
from muster.store.runfolder import RunFolder  # noqa: E402

HOSTS = ("node1", "node2", "node3")
STEPS = 16
MICRO = 4
PERIOD = 10_000  # microseconds: shorter ones are not kept exactly
WORTH = 0.10  # difference from where on the faster number of hosts must be told
MODEL = [
    "model.config={model_type: gpt2, n_layer: 4, n_head: 4, n_embd: 192, n_positions: 128, vocab_size: 2048}",
    "data.library=null", "data.synthetic={}", "evaluate.after=false", "evaluate.every=null",
    "checkpoint.model=false", "checkpoint.every=null", f"train.max_steps={STEPS}",
    "train.max_minutes=null", "measure.window=3", "measure.warmup=4", "measure.flops=false",
    "launch.threads=1", "precision=fp32",
]  # fmt: skip
# engine, link, accumulation: each on two and on three hosts
GROUPS: list[tuple[str, str, int]] = [
    ("ddp", "50mbit", 4),
    ("ddp", "100mbit", 1),
    ("ddp", "1gbit", 1),
    ("zero1", "100mbit", 4),
    ("zero2", "200mbit", 1),
    ("zero3", "1gbit", 1),
    ("fsdp", "200mbit", 1),
]
ENGINES = {
    "ddp": ["engine.name=ddp", "engine.zero=0"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
    **{f"zero{n}": ["engine.name=deepspeed", f"engine.zero={n}"] for n in (1, 2, 3)},
}


def run(
    cluster: Cluster, folder: Path, recipe: str, hosts: int, overrides: list[str], slots: int = 1
) -> RunFolder:
    """A job to its end."""
    names = ",".join(f"{name}:{slots}" for name in HOSTS[:hosts])
    settings = [*overrides, f"launch.ssh_options=[-F, {cluster.ssh_config}]"]
    made = RunFolder(folder)
    result = train(read_inputs(recipe, names, settings), made)
    if result.status != "succeeded":
        raise SystemExit(f"{folder.name}: {result.failure}")
    return made


def job(
    cluster: Cluster, folder: Path, engine: str, hosts: int, accumulation: int, slots: int = 1
) -> RunFolder:
    """A training of the small GPT-2."""
    batch = [f"batch.micro={MICRO}", f"batch.accumulation={accumulation}", "batch.global=auto"]
    return run(cluster, folder, "causal-lm", hosts, [*MODEL, *ENGINES[engine], *batch], slots)


@contextlib.contextmanager
def shaped(cluster: Cluster, rate: str) -> Iterator[None]:
    """Every host's link at a rate. What goes at full speed after a pause is as little as a host can keep to:
    an engine that computes between its calls would get it for each of them, and no real link gives that."""
    bits = float(rate.replace("mbit", "e6").replace("gbit", "e9"))
    burst = max(64 * 1024, int(0.002 * bits / 8))  # bytes; the kernel sends up to 64 KiB at once
    for name in HOSTS:
        cluster.shape(name, rate, f"{burst}b")
    try:
        yield
    finally:
        for name in HOSTS:
            cluster.unshape(name)


def link_of(cluster: Cluster, folder: Path, hosts: int = 2) -> Figures:
    """What a link does, between two hosts or two ranks of one, as `muster train fabric` finds it."""
    settings = ["fabric.largest=4MiB", "fabric.matmul=false", "fabric.seconds=30", "launch.threads=1"]
    found = run(cluster, folder, "fabric", hosts, settings, slots=2 // hosts).read_result()
    assert found is not None
    assert found.fabric is not None
    return link_figures(found.fabric, 2)


def spelled(rate: str) -> str:
    """100mbit -> 100Mbit, as links are named."""
    return rate.replace("mbit", "Mbit").replace("gbit", "Gbit")


def on_one_host(
    cluster: Cluster, scratch: Path, which: Iterable[tuple[str, int]], turn: str
) -> list[tuple[tuple[str, int], Measured]]:
    """Engines, each with an accumulation, alone."""
    found = []
    for engine, accumulation in which:
        done = job(cluster, scratch / f"{engine}-1-{accumulation}-{turn}", engine, 1, accumulation)
        found.append(((engine, accumulation), measured_of(done)))
        seconds = found[-1][1].seconds
        print(f"{turn}: {engine}, one host, accumulation {accumulation}: {seconds:.4f} s", flush=True)
    return found


def on_two_ranks(
    cluster: Cluster, scratch: Path, which: Iterable[tuple[str, int]], cores: float
) -> tuple[Figures, list[Measured]]:
    """What is exchanged within a host, where both ranks get what a host's one rank gets."""
    give(HOSTS[0], 2 * cores, PERIOD)
    try:
        figures = link_of(cluster, scratch / "link-within", 1)
        print(f"within a host: {figures}", flush=True)
        found = []
        for engine, accumulation in which:
            name = f"{engine}-within-{accumulation}"
            found.append(measured_of(job(cluster, scratch / name, engine, 1, accumulation, slots=2)))
            print(f"{name}: {found[-1].seconds:.4f} s", flush=True)
        return figures, found
    finally:
        give(HOSTS[0], cores, PERIOD)


def measure(
    cluster: Cluster, scratch: Path, groups: list[tuple[str, str, int]], cores: float
) -> dict[str, Any]:
    """Calibrate, measure links, run, calibrate again (machines drift); then predict."""
    engines = dict.fromkeys(("ddp", *(group[0] for group in groups)))
    turns = on_one_host(cluster, scratch, product(engines, (1, 4)), "before")
    used = dict.fromkeys([("ddp", 1), ("ddp", 4), *((engine, times) for engine, _, times in groups)])
    within, paired = on_two_ranks(cluster, scratch, used, cores)
    links: dict[str, Figures] = {}
    ran: dict[tuple[str, str, int], list[Measured]] = {}
    for rate in dict.fromkeys(group[1] for group in groups):
        with shaped(cluster, rate):
            links[f"{spelled(rate)} gloo"] = link_of(cluster, scratch / f"link-{rate}")
            print(f"{rate}: {links[f'{spelled(rate)} gloo']}", flush=True)
            for group in (group for group in groups if group[1] == rate):
                engine, _, accumulation = group
                for hosts in (2, 3):
                    name = f"{engine}-{hosts}-{rate}-{accumulation}"
                    done = job(cluster, scratch / name, engine, hosts, accumulation)
                    ran.setdefault(group, []).append(measured_of(done, spelled(rate)))
                    print(f"{name}: {ran[group][-1].seconds:.4f} s", flush=True)
    turns += on_one_host(cluster, scratch, used, "after")
    links["loopback gloo"] = within
    known = learn([*(each for _, each in turns), *paired], Calibration(links=links))
    rows, curves = [], []
    for (engine, rate, accumulation), several in ran.items():
        for each in several:
            hosts = each.case.machines.hosts
            rows.append(row(f"{engine}, {hosts} hosts, {spelled(rate)}, {accumulation}", each, known))
        alone = [each for name, each in turns if name == (engine, accumulation)]
        one = replace(alone[0], seconds=statistics.mean(each.seconds for each in alone))
        for pair in pairwise([one, *several]):
            curves.append(faster(f"{engine} {rate} {accumulation}", *pair, known))
    drift = {
        f"{engine}, accumulation {accumulation}": [
            round(each.seconds, 4) for name, each in turns if name == (engine, accumulation)
        ]
        for engine, accumulation in dict(turns)
    }
    two = {
        f"{case.spread.engine} {case.spread.stage}, accumulation {case.spread.micro_steps}": round(seconds, 4)
        for case, seconds in ((each.case, each.seconds) for each in paired)
    }
    return {
        "rows": rows,
        "is_one_more_faster": curves,
        "one_host": drift,
        "two_ranks": two,
        "learned": asdict(known),
    }


def faster(name: str, fewer: Measured, more: Measured, known: Calibration) -> dict[str, Any]:
    """Samples per second of one host more over those of one less, as measured and as predicted."""

    def ratio(before: float, after: float) -> float:
        return more.case.batch / after / (fewer.case.batch / before)

    measured = ratio(fewer.seconds, more.seconds)
    predicted = ratio(predict(fewer.case, known).seconds, predict(more.case, known).seconds)
    hosts = (fewer.case.machines.hosts, more.case.machines.hosts)
    return {
        "case": f"{name}: {hosts[1]} hosts over {hosts[0]}",
        "measured": round(measured, 3),
        "predicted": round(predicted, 3),
        "right": None if abs(measured - 1) <= WORTH else (measured > 1) == (predicted > 1),
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
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of groups of GROUPS, from 0")
    parser.add_argument("--cores", type=float, default=0.4, help="of each host")
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
            stack.enter_context(slowed(cluster, name, options.cores, period=PERIOD))
        groups = [GROUPS[index] for index in options.only] or GROUPS
        found = measure(cluster, Path(scratch), groups, options.cores)
    errors = [abs(each["error"]) for each in found["rows"]]
    document = {
        "command": " ".join(["benchmarks/planner_cluster.py", *sys.argv[1:]]),
        "began": began,
        "load_before": round(load, 2),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "cpu": processor()},
        "cores_of_a_host": options.cores,
        "median_error": round(statistics.median(errors), 4),
        "worst_error": round(max(errors), 4),
        "wrong_answers": sum(each["right"] is False for each in found["is_one_more_faster"]),
        **found,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    wrong = document["wrong_answers"]
    print(
        f"median {document['median_error']:.1%}, worst {document['worst_error']:.1%}, {wrong} wrong answers"
    )


if __name__ == "__main__":
    main()
