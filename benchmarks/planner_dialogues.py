"""Memory of a rank, planned and measured, for workloads of prompts and answers under every engine.

    .venv/bin/python benchmarks/planner_dialogues.py [--only reward dpo] [--engines ddp zero-3] [--hosts 3]

Each row is a job of three steps on two ranks of this machine, or, with --hosts and as root, on a rank of
each of so many hosts of the test cluster (network namespaces on this machine, jobs over ssh): a Llama of 29.5
million parameters in fp32, with activations of several hundred MB. Planned as `muster plan` does, with
traces, and by closed forms alone as `muster train` does where memory is not tight. Measured: the resident
peak of the largest rank. Rows that were there before stay. Writes benchmarks/results/planner_dialogues.json
and the table in docs/memory.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import processor  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402

from muster.core.result import Result  # noqa: E402
from muster.inputs.read import Inputs, read_inputs  # noqa: E402
from muster.planner.document import MemoryPlan  # noqa: E402
from muster.planner.machines import UserFigures  # noqa: E402
from muster.planner.plan import plan_hosts  # noqa: E402
from muster.runs.train import train  # noqa: E402
from muster.store.runfolder import RunFolder  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "planner_dialogues.json"
PAGE = ROOT / "docs" / "memory.md"
MODEL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "vocab_size": 8192,
}  # fmt: skip
COMMON = [
    f"model.config={json.dumps(MODEL)}", "data.generated.train=256", "data.generated.validation=8",
    "data.sequence=256", "data.padding=fixed", "train.max_steps=3", "train.warmup=0", "evaluate.after=false",
    "measure.warmup=1", "launch.threads=1",
]  # fmt: skip
# Long answers, so that the passes are as long as planned: a model of random weights ends few.
DRAWN = ["generation.prompt=40", "generation.answer=216", "data.bad=skip", "batch.micro=8"]
WORKLOADS: dict[str, list[str]] = {
    "sft": ["batch.micro=8"],
    "reward": ["batch.micro=4"],
    "dpo": ["batch.micro=4"],
    "grpo": DRAWN,
    "rloo": [*DRAWN, "rloo.answers=4"],
    "ppo": DRAWN,
}
ENGINES: dict[str, list[str]] = {
    "ddp": ["engine.name=ddp", "engine.zero=0"],
    "zero-0": ["engine.name=deepspeed", "engine.zero=0"],
    "zero-2": ["engine.name=deepspeed", "engine.zero=2"],
    "zero-3": ["engine.name=deepspeed", "engine.zero=3"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
}
REFUSED = {("ppo", "fsdp")}


def measured(inputs: Inputs) -> int:
    """Bytes of the largest rank in a run."""
    with tempfile.TemporaryDirectory() as folder:
        result: Result = train(inputs, RunFolder(Path(folder) / "run"))
    if result.status != "succeeded" or not result.memory.resident_peak:
        raise SystemExit(f"{inputs.recipe.workload}: {result.failure}")
    return result.memory.resident_peak


def planned(inputs: Inputs, *, traced: bool) -> MemoryPlan:
    """As `muster plan` says."""
    plan = plan_hosts(inputs, UserFigures(), traced=traced).plan
    assert plan is not None
    assert plan.memory is not None
    return plan.memory


def row(workload: str, engine: str, hosts: int, before: dict[str, Any] | None) -> dict[str, Any]:
    """One job. `before`: what was measured."""
    settings = [*COMMON, *WORKLOADS[workload], *ENGINES[engine]]
    with contextlib.ExitStack() as stack:
        names = "local:2"
        if hosts > 1:
            cluster = stack.enter_context(Cluster(size=hosts))
            names = ",".join(f"{node.name}:1" for node in cluster.hosts)
            settings.append(f"launch.ssh_options=[-F, {cluster.ssh_config}]")
        return compared(workload, engine, hosts, read_inputs(workload, names, settings), before)


def compared(
    workload: str, engine: str, hosts: int, inputs: Inputs, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Planned beside measured."""
    peak = before["measured"] if before else measured(inputs)
    said, formed = planned(inputs, traced=True), planned(inputs, traced=False)
    return {
        "workload": workload, "engine": engine, "hosts": hosts,
        "measured": peak, "planned": said.device_bytes, "basis": said.basis,
        "moment": said.moment, "error": said.device_bytes / peak - 1,
        "by_form": formed.device_bytes, "error_by_form": formed.device_bytes / peak - 1,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """For the page, MB of 10^6 bytes."""
    heads = ("workload", "engine", "hosts", "planned, MB", "measured, MB", "error", "by closed forms", "peak")
    made = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for each in rows:
        made.append(
            f"| {each['workload']} | {each['engine']} | {each['hosts']} | {each['planned'] / 1e6:,.0f} | "
            f"{each['measured'] / 1e6:,.0f} | {100 * each['error']:+.1f} % | "
            f"{100 * each['error_by_form']:+.1f} % | {each['moment']} |"
        )
    return "\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--engines", nargs="+", choices=[*ENGINES], default=[*ENGINES])
    parser.add_argument(
        "--hosts", type=int, default=1, choices=[1, 2, 3], help="hosts of the test cluster, each with a rank"
    )
    parser.add_argument("--again", action="store_true", help="plan anew beside what was measured before")
    options = parser.parse_args()
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {(each["workload"], each["engine"], each["hosts"]): each for each in known}
    for workload in options.only:
        for engine in (each for each in options.engines if (workload, each) not in REFUSED):
            key = (workload, engine, options.hosts)
            before = rows.get(key) if options.again else None
            if before or not options.again:
                rows[key] = row(*key, before)
                print(json.dumps(rows[key]), flush=True)
                save(
                    [
                        rows[w, e, h]
                        for h in (1, 2, 3)
                        for w in WORKLOADS
                        for e in ENGINES
                        if (w, e, h) in rows
                    ]
                )
    print(f"worst {max(abs(each['error']) for each in rows.values()):.1%}")


def save(rows: list[dict[str, Any]]) -> None:
    """The document and the page."""
    versions = {each: version(each) for each in ("torch", "transformers", "trl", "deepspeed")}
    document = {"processor": processor(), "versions": versions, "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    begin, end = "<!-- planner_dialogues -->", "<!-- /planner_dialogues -->"
    text = PAGE.read_text()
    if begin in text:
        PAGE.write_text(
            re.sub(f"{begin}.*{end}", f"{begin}\n\n{table(rows)}\n\n{end}", text, flags=re.DOTALL)
        )


if __name__ == "__main__":
    main()
