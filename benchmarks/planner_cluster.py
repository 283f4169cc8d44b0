"""Predicted step times against measured ones, on hosts of which only one was tried and the link was measured.

    .venv/bin/python benchmarks/planner_cluster.py [--only GROUP ...] [--cores 0.4]

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh), each with
a quota of a core, its link shaped. In three rounds, since machines drift: on one host every engine, from
which the CPUs' efficiency and the engines' own work are learned; on two ranks of that host, which has twice
the quota for it, what engines do where something is exchanged, beside the fabric workload's figures of the
link between them; then every configuration on two and on three hosts. Each link is measured between two
hosts by `muster train fabric`. Nothing else is learned. A run's figure is the median of its steps; a row's,
and a link's, are medians of the rounds. "Is one host more faster?" is answered from the prediction. Writes
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import processor, stolen, ticks  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.slow import give, slowed  # noqa: E402

from muster.core.hardware.links import LinkFigures, SharedLink  # noqa: E402
from muster.inputs.read import read_inputs  # noqa: E402
from muster.planner.calibrate import measured_of  # noqa: E402
from muster.planner.time.learning import (  # noqa: E402
    MeasuredRun,
    learn,
    link_figures,
)
from muster.planner.time.steptime import Calibration, predict  # noqa: E402
from muster.runs.train import train  # noqa: E402
from muster.store import events  # noqa: E402
from muster.store.runfolder import RunFolder  # noqa: E402

HOSTS = ("node1", "node2", "node3")
STEPS = {1: 22, 4: 12}  # by accumulation: neighbours on the machine slow it for seconds, now and then
ROUNDS = 3
MICRO = 4
PERIOD = 10_000  # microseconds: shorter ones are not kept exactly
WORTH = 0.10  # difference from where on the faster number of hosts must be told
MODEL = [
    "model.config={model_type: gpt2, n_layer: 4, n_head: 4, n_embd: 192, n_positions: 128, vocab_size: 2048}",
    "data.library=null", "data.synthetic={}", "evaluate.after=false", "evaluate.every=null",
    "checkpoint.model=false", "checkpoint.every=null", "train.max_minutes=null",
    "measure.window=3", "measure.warmup=4", "measure.flops=false", "launch.threads=1", "precision=fp32",
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


@dataclass(frozen=True)
class Lab:
    """The hosts, each with so many cores while it trains."""

    cluster: Cluster
    scratch: Path
    cores: float

    def run(
        self, name: str, recipe: str, hosts: int, overrides: list[str], slots: int = 1, whole: bool = False
    ) -> RunFolder:
        """A job to its end. Starting is nobody's step: until the first one hosts have all of the machine's
        cores, unless their quota counts from the start (`whole`)."""
        names = ",".join(f"{host}:{slots}" for host in HOSTS[:hosts])
        settings = [*overrides, f"launch.ssh_options=[-F, {self.cluster.ssh_config}]"]
        made, limited = RunFolder(self.scratch / name), whole
        self._give(self.cores * slots if whole else float(os.cpu_count() or 1))

        def watch(event: events.Event) -> None:
            nonlocal limited
            if not limited and isinstance(event, events.Phase) and event.name == "steps":
                limited = True
                self._give(self.cores * slots)

        result = train(read_inputs(recipe, names, settings), made, watch=watch)
        if result.status != "succeeded" or not limited:
            raise SystemExit(f"{name}: {result.failure}")
        return made

    def _give(self, cores: float) -> None:
        for host in HOSTS:
            give(host, cores, PERIOD)

    def job(
        self, name: str, engine: str, hosts: int, accumulation: int, slots: int = 1, link: str | None = None
    ) -> MeasuredRun:
        """A training of the small GPT-2: the median of its steps."""
        batch = [f"batch.micro={MICRO}", f"batch.accumulation={accumulation}", "batch.global=auto"]
        batch.append(f"train.max_steps={STEPS[accumulation]}")
        done = self.run(name, "causal-lm", hosts, [*MODEL, *ENGINES[engine], *batch], slots)
        result = done.read_result()
        assert result is not None
        assert result.throughput is not None
        found = replace(measured_of(done, link), seconds=result.throughput.step_seconds_median)
        print(f"{name}: {found.seconds:.4f} s", flush=True)
        return found

    def link(self, name: str, hosts: int = 2) -> LinkFigures:
        """What a link does, between two hosts or two ranks of one, as `muster train fabric` finds it."""
        settings = ["fabric.largest=4MiB", "fabric.matmul=false", "fabric.seconds=30", "launch.threads=1"]
        found = self.run(name, "fabric", hosts, settings, slots=2 // hosts, whole=True).read_result()
        assert found is not None
        assert found.fabric is not None
        figures = link_figures(found.fabric, 2)
        print(f"{name}: {figures}", flush=True)
        return figures


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


def spelled(rate: str) -> str:
    """100mbit -> 100Mbit, as links are named."""
    return rate.replace("mbit", "Mbit").replace("gbit", "Gbit")


@dataclass
class Found:
    """What was measured: on one rank, on two ranks of one host, on several hosts; each once a round."""

    alone: dict[tuple[str, int], list[MeasuredRun]] = field(default_factory=dict)
    paired: dict[tuple[str, int], list[MeasuredRun]] = field(default_factory=dict)
    ran: dict[tuple[str, str, int], dict[int, list[MeasuredRun]]] = field(default_factory=dict)
    links: dict[str, list[LinkFigures]] = field(default_factory=dict)

    def known(self) -> Calibration:
        """What is learned: from one host, and the links' figures, alone."""
        taught = [each for several in (*self.alone.values(), *self.paired.values()) for each in several]
        return learn(
            taught, Calibration(links={name: middle_figures(each) for name, each in self.links.items()})
        )


def measure(lab: Lab, groups: list[tuple[str, str, int]]) -> Found:
    """In rounds, since machines drift: each does everything once."""
    found = Found()
    used = dict.fromkeys([("ddp", 1), ("ddp", 4), *((engine, times) for engine, _, times in groups)])
    for turn in range(1, ROUNDS + 1):
        for engine, times in used:
            one = lab.job(f"{engine}-1-{times}-{turn}", engine, 1, times)
            found.alone.setdefault((engine, times), []).append(one)
        found.links.setdefault("loopback gloo", []).append(lab.link(f"link-within-{turn}", 1))
        for engine, times in used:
            two = lab.job(f"{engine}-within-{times}-{turn}", engine, 1, times, slots=2)
            found.paired.setdefault((engine, times), []).append(two)
        for rate in dict.fromkeys(group[1] for group in groups):
            with shaped(lab.cluster, rate):
                link = lab.link(f"link-{rate}-{turn}")
                found.links.setdefault(f"{spelled(rate)} gloo", []).append(link)
                for group in (group for group in groups if group[1] == rate):
                    engine, _, times = group
                    for hosts in (2, 3):
                        name = f"{engine}-{hosts}-{rate}-{times}-{turn}"
                        done = lab.job(name, engine, hosts, times, link=spelled(rate))
                        found.ran.setdefault(group, {}).setdefault(hosts, []).append(done)
    return found


def compared(found: Found) -> dict[str, Any]:
    """Predicted beside measured, and whether one host more is faster by both."""
    known = found.known()
    rows, curves = [], []
    for (engine, rate, times), by_hosts in found.ran.items():
        for hosts, several in by_hosts.items():
            name = f"{engine}, {hosts} hosts, {spelled(rate)}, {times}"
            rows.append({**row(name, middle(several), known), "runs": seconds_of(several)})
        sizes = [middle(found.alone[engine, times]), *(middle(several) for several in by_hosts.values())]
        for pair in pairwise(sizes):
            curves.append(faster(f"{engine} {rate} {times}", *pair, known))
    return {
        "rows": rows,
        "is_one_more_faster": curves,
        "one_rank": {f"{name}, {times}": seconds_of(found.alone[name, times]) for name, times in found.alone},
        "two_ranks": {
            f"{name}, {times}": seconds_of(found.paired[name, times]) for name, times in found.paired
        },
        "learned": asdict(known),
    }


def middle(several: list[MeasuredRun]) -> MeasuredRun:
    """The median of the rounds: neighbours slow a machine, and nothing makes it faster."""
    return replace(several[0], seconds=statistics.median(each.seconds for each in several))


def middle_figures(several: list[LinkFigures]) -> LinkFigures:
    """The same of a link, each figure of those rounds that found it."""

    def of(values: list[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return statistics.median(there) if there else None

    besides = [each.beside for each in several]
    beside = SharedLink(
        gather=of([each.gather for each in besides]),
        computing=statistics.median(each.computing for each in besides),
        exchanging=statistics.median(each.exchanging for each in besides),
        meeting=statistics.median(each.meeting for each in besides),
        pair_gather=of([each.pair_gather for each in besides]),
    )
    bandwidth, latency = of([each.bandwidth for each in several]), of([each.latency for each in several])
    return LinkFigures(bandwidth=bandwidth, latency=latency, beside=beside)


def seconds_of(several: list[MeasuredRun]) -> list[float]:
    """Of each round."""
    return [round(each.seconds, 4) for each in several]


def faster(name: str, fewer: MeasuredRun, more: MeasuredRun, known: Calibration) -> dict[str, Any]:
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


def row(name: str, measured: MeasuredRun, known: Calibration) -> dict[str, Any]:
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
    load, before = os.getloadavg()[0], ticks()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Cluster(size=3) as cluster,
        contextlib.ExitStack() as stack,
    ):
        for name in HOSTS:
            stack.enter_context(slowed(cluster, name, options.cores, period=PERIOD))
        groups = [GROUPS[index] for index in options.only] or GROUPS
        found = compared(measure(Lab(cluster, Path(scratch), options.cores), groups))
    errors = [abs(each["error"]) for each in found["rows"]]
    document = {
        "command": " ".join(["benchmarks/planner_cluster.py", *sys.argv[1:]]),
        "began": began,
        "load_before": round(load, 2),
        "stolen": round(stolen(before), 3),  # of the machine's time, by its own host
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
