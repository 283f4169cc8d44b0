"""Whether every engine trains alike. python -m benchmarks.rlhf_engines [WORKLOAD ...]

For each workload and engine: the largest relative difference of what STEPS optimizer steps tell from the
same on one process with the same global batch. Where answers are drawn, each rank draws with a seed of its
own: there two ranks with ddp are what others are held against, and the rewards are told as well.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from muster.inputs.read import read_inputs
from muster.runs.train import train
from muster.store.runfolder import RunFolder

STEPS = 8
GLOBAL = 8
SHORT = [
    f"train.max_steps={STEPS}", "train.warmup=2", "measure.window=1", "evaluate.after=false",
    "launch.device=cpu",
    "data.generated.train=128", "data.generated.validation=16", "checkpoint.model=false", "launch.threads=1",
]  # fmt: skip
ENGINES = {
    "ddp": ["engine.name=ddp"],
    "fsdp": ["engine.name=fsdp"],
    "zero0": ["engine.name=deepspeed", "engine.zero=0"],
    "zero1": ["engine.name=deepspeed", "engine.zero=1"],
    "zero2": ["engine.name=deepspeed", "engine.zero=2"],
    "zero3": ["engine.name=deepspeed", "engine.zero=3"],
}
WORKLOADS = ("sft", "reward", "dpo", "grpo", "rloo", "ppo")
DRAWN = ("grpo", "rloo", "ppo")
REWARD = """def reward(prompts, answers, expected):
    return [sum(map(ord, answer)) % 7 / 7 for answer in answers]
"""


def losses(folder: Path, recipe: str, hosts: str, *changes: str) -> list[float] | str:
    """The losses of a run's steps, then their rewards; or why it failed."""
    result = train(read_inputs(recipe, hosts, [*SHORT, *changes]), RunFolder(folder))
    if result.status != "succeeded":
        return str(result.failure.what if result.failure else result.status)
    events = (json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines())
    logs = [event for event in events if event["kind"] == "log"]
    return [*(log["loss"] for log in logs), *(log["figures"].get("reward", 1.0) for log in logs)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD")
    chosen = parser.parse_args().workloads
    print(f"{'workload':8} {'engine':8} {'first':>8} {'last':>8} {'apart':>9}")
    with tempfile.TemporaryDirectory() as place:
        for workload in chosen:
            alone: list[float] | str | None = None
            changes = [f"batch.micro={GLOBAL // 2}"]
            if workload in DRAWN:
                Path(place, "rewards.py").write_text(REWARD, encoding="utf-8")
                changes += [f"reward={{function: {place}/rewards.py:reward}}", "generation.answer=16"]
            else:
                micro = f"batch.micro={GLOBAL}"
                alone = losses(Path(place, workload), workload, "local:1", *ENGINES["ddp"], micro)
                print(f"{workload:8} {'one rank':8} {_ends(alone)}", flush=True)
            for name, engine in ENGINES.items():
                folder = Path(place, f"{workload}-{name}")
                found = losses(folder, workload, "local:2x1", *engine, *changes)
                alone = alone or found
                apart = ""
                if isinstance(found, list) and isinstance(alone, list):
                    pairs = zip(found, alone, strict=True)
                    apart = f"{max(abs(one - other) / max(abs(other), 0.01) for one, other in pairs):9.1e}"
                print(f"{workload:8} {name:8} {_ends(found)} {apart}", flush=True)


def _ends(found: list[float] | str) -> str:
    return found if isinstance(found, str) else f"{found[0]:8.4f} {found[STEPS - 1]:8.4f}"


if __name__ == "__main__":
    main()
