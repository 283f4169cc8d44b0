"""Whether every engine trains alike. python -m benchmarks.rlhf_engines [WORKLOAD ...]

For each workload and engine: the largest relative difference of what STEPS optimizer steps tell (loss, norm
of the gradient, and reward where answers are drawn) from the same on one process with the same global batch.
Where answers are drawn, each rank draws with a seed of its own: there two ranks with ddp are what others are
held against. Each batch of answers is learnt from twice: the first time the objective of grpo and rloo is
that of the rewards alone, whatever the weights are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from muster.core.errors import UsageError
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
Told = dict[str, list[float]]  # of each step, by figure
DRAWN = ("grpo", "rloo", "ppo")
REWARD = """def reward(prompts, answers, expected):
    return [sum(map(ord, answer)) % 7 / 7 for answer in answers]
"""


def told(folder: Path, recipe: str, hosts: str, *changes: str) -> Told | str:
    """What a run's steps say; or why it failed."""
    try:
        result = train(read_inputs(recipe, hosts, [*SHORT, *changes]), RunFolder(folder))
    except UsageError as error:  # an engine that the workload cannot have
        return str(error)
    if result.status != "succeeded":
        return str(result.failure.what if result.failure else result.status)
    events = (json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines())
    logs = [event for event in events if event["kind"] == "log"]
    figures = [{**log, **log["figures"]} for log in logs]
    names = ("loss", "gradient_norm", "reward")  # a norm: not of ZeRO 0; rewards: when answers were drawn
    found = {name: [each[name] for each in figures if each.get(name) is not None] for name in names}
    return {name: values for name, values in found.items() if values}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD")
    chosen = parser.parse_args().workloads
    print(f"{'workload':8} {'engine':8} first and last loss, (least and largest reward,) apart")
    with tempfile.TemporaryDirectory() as place:
        for workload in chosen:
            alone: Told | str | None = None
            changes = [f"batch.micro={GLOBAL // 2}"]
            if workload in DRAWN:
                Path(place, "rewards.py").write_text(REWARD, encoding="utf-8")
                changes += [f"reward={{function: {place}/rewards.py:reward}}", "generation.answer=16"]
                changes.append(f"{workload}.epochs=2")
            else:
                micro = f"batch.micro={GLOBAL}"
                alone = told(Path(place, workload), workload, "local:1", *ENGINES["ddp"], micro)
                print(f"{workload:8} {'one rank':8} {_ends(alone)}", flush=True)
            for name, engine in ENGINES.items():
                folder = Path(place, f"{workload}-{name}")
                found = told(folder, workload, "local:2x1", *engine, *changes)
                alone = alone or found
                print(f"{workload:8} {name:8} {_ends(found)} {_apart(found, alone)}", flush=True)


def _ends(found: Told | str) -> str:
    """First and last loss; the least and the largest reward."""
    if isinstance(found, str):
        return found
    spread = [f(found["reward"]) for f in (min, max)] if "reward" in found else []
    return " ".join(f"{each:8.4f}" for each in (found["loss"][0], found["loss"][-1], *spread))


def _apart(found: Told | str, alone: Told | str) -> str:
    """The largest difference of each figure, in parts of the figure's largest value."""
    if isinstance(found, str) or isinstance(alone, str):
        return ""
    apart = {
        name: max(abs(one - other) for one, other in zip(found[name], values, strict=True))
        / max(map(abs, values))
        for name, values in alone.items()
        if name in found
    }
    return " ".join(f"{name} {each:.1e}" for name, each in apart.items())


if __name__ == "__main__":
    main()
