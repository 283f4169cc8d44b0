"""Is the host named that holds a run up, while it runs? On the test cluster.

    .venv/bin/python -m benchmarks.blame --tries 5 [--kinds own torchrun] [--what healthy processor link]
    .venv/bin/python -m benchmarks.blame --page          # the table of docs/stragglers.md alone

Needs root: three hosts (network namespaces on this machine, jobs over ssh), each with a quota of a core and a
shaped link. In a try one of them, another one each time, is left 80 % of its core or of its link, or none is
bad. It is right where exactly this host is named within 100 steps, for its computation or its links; with
none, where nobody is. Rows go to benchmarks/results/blame.json as they come; rows that are there stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.hangs import OWN as SMALL
from benchmarks.hardware import into_page, processor, stolen, ticks
from tests.cluster.cluster import Cluster
from tests.cluster.slow import slowed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "blame.json"
PAGE = ROOT / "docs" / "stragglers.md"
WHAT = ("healthy", "processor", "link")
KINDS = ("own", "torchrun", "deepspeed")
LEFT, CORES, RATE, PERIOD = 0.8, 0.35, 100, 10_000  # share, cores of a host, Mbit/s, microseconds
WITHIN, STEPS = 100, 120  # steps to name it in, and of a run
WEIGHT = 50.0  # of a host beside what else runs on the machine, which takes from one more than from another
WIDER = {
    "hidden_size": 192, "ffn_dim": 768, "num_attention_heads": 4, "word_embed_proj_dim": 192,
    "max_position_embeddings": 128,
}  # fmt: skip
OWN: dict[str, Any] = {
    **SMALL,
    "data": {"synthetic": {}, "sequence": 128},
    "model": {"init": "random", "config": {**SMALL["model"]["config"], **WIDER}},
    "train": {"max_steps": STEPS},
    "measure": {"window": 5},
}
SCRIPT = """
import os, time, torch, torch.distributed as dist
kind = os.environ["KIND"]
layers = torch.nn.Sequential(*(torch.nn.Linear(384, 384) for _ in range(4)))
if kind == "deepspeed":
    import deepspeed
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=layers, model_parameters=layers.parameters(), config=config)
else:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, int(os.environ["STEPS"]) + 1):
    began = time.time()
    batch = torch.randn(768, 384)
    if kind == "deepspeed":
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
    else:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        spent = 1000 * (time.time() - began)
        print(f"iter {step}: loss {loss.item():.4f}, time {spent:.2f}ms, mfu 1.00%", flush=True)
"""


@contextlib.contextmanager
def hosts(what: str, bad: str | None) -> Iterator[Cluster]:
    """Three hosts, one of them as bad as that."""
    with Cluster(size=3) as cluster, contextlib.ExitStack() as stack:
        for node in cluster.hosts:
            own = LEFT if node.name == bad else 1.0
            cores = CORES * (own if what == "processor" else 1.0)
            stack.enter_context(slowed(cluster, node.name, cores, weight=WEIGHT, period=PERIOD))
            cluster.shape(node.name, f"{RATE * (own if what == 'link' else 1.0):g}mbit")
        yield cluster


def one(kind: str, what: str, number: int, folder: Path) -> dict[str, Any]:
    """A run. -> its row."""
    bad = None if what == "healthy" else f"node{1 + number % 3}"
    (folder / "own.yaml").write_text(json.dumps(OWN))
    (folder / "script.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "muster"]
    settings = ["measure.hardware_seconds=1", "launch.device=cpu", "launch.threads=1"]
    before = ticks()
    with hosts(what, bad) as cluster:
        settings += [f"launch.ssh_options=[-F, {cluster.ssh_config}]"]
        names = ",".join(f"{node.name}:1" for node in cluster.hosts)
        if kind == "own":
            argv += ["train", str(folder / "own.yaml"), "--hosts", names, "--json", *settings]
        else:
            argv += ["run", names, "--json", f"--env=KIND={kind}", f"--env=STEPS={STEPS}", *settings]
            argv += ["--env=DS_ACCELERATOR=cpu", "--", "script.py"]
        job = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=500)
    result = json.loads(job.stdout) if job.stdout.strip() else {}
    pace = result.get("pace") or {}
    return {
        "kind": kind, "what": what, "number": number, "bad": bad, "status": result.get("status"),
        "stolen": round(stolen(before), 3), "stragglers": pace.get("stragglers"),
        "within": pace.get("within"), "moments": pace.get("moments"), "source": pace.get("source"),
        "step_seconds": (result.get("throughput") or result.get("command") or {}).get(
            "step_seconds_median" if result.get("throughput") else "step_seconds"
        ),
        **({} if result.get("status") == "succeeded" else {"said": job.stderr[-500:]}),
    }  # fmt: skip


def right(row: dict[str, Any]) -> bool:
    """Whether exactly what is bad was named, in time."""
    named = row["stragglers"]
    if named is None or row["what"] == "healthy":
        return named == []
    kind = "link" if row["what"] == "link" else "computation"
    return bool(named) and all(
        each["host"] == row["bad"] and each["kind"] == kind and (each["first_step"] or 0) <= WITHIN
        for each in named
    )


def page(rows: list[dict[str, Any]]) -> str:
    """The table."""
    lines = ["| program | what is bad | right | named at step | a step longer by |", "|---|---|---|---|---|"]
    for kind in KINDS:
        for what in WHAT:
            mine = [row for row in rows if (row["kind"], row["what"]) == (kind, what)]
            if mine:
                named = [each for row in mine if right(row) for each in row["stragglers"]]
                steps = sorted(each["first_step"] or 0 for each in named)
                costs = sorted(round(100 * each["cost"]) for each in named)
                told = [f"{each[0]} to {each[-1]}" if each else "" for each in (steps, costs)]
                good = f"{sum(map(right, mine))} of {len(mine)}"
                bad = {"healthy": "nothing", "processor": "80 % of a core", "link": "80 % of a link"}[what]
                lines.append(f"| {kind} | {bad} | {good} | {told[0]} | {told[1]}{' %' if told[1] else ''} |")
    return "\n".join(lines)


def main() -> None:
    """Try, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--what", nargs="*", default=WHAT, choices=WHAT)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    found["hardware"] = f"{os.cpu_count()} cores of {processor()}"
    for number in range(0 if asked.page else asked.tries):
        for kind in asked.kinds:
            for what in asked.what:
                if any((r["kind"], r["what"], r["number"]) == (kind, what, number) for r in found["rows"]):
                    continue
                with tempfile.TemporaryDirectory() as place:
                    row = one(kind, what, number, Path(place))
                print("" if right(row) else "!", json.dumps(row), flush=True)
                found["rows"].append(row)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(page(found["rows"]))
    into_page(PAGE, "tries", page(found["rows"]))


if __name__ == "__main__":
    main()
