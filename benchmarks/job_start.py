"""How long a whole short job takes from the command to the prompt, beside bare torchrun.

    .venv/bin/python benchmarks/job_start.py [--rounds 8] [--ranks 2]

In turns, one after the other: `torchrun` with a script of twenty lines that trains two steps of a small T5
with Transformers' trainer and saves it, and `muster train` with the same model, batch and steps on
`local:RANKS`. The second also inspects the host, plans, watches, and writes a result and a page. Prints
seconds on the clock and of the processors (all processes of the job), medians with quartiles, and the median
of the pairs' ratios; writes benchmarks/results/job_start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hardware import processor

RESULT = Path(__file__).parent / "results" / "job_start.json"
SHAPE = {
    "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2,
    "vocab_size": 800,
}  # fmt: skip
SCRIPT = """
import sys, torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return {"input_ids": torch.full((24,), index % 700), "labels": torch.full((24,), index % 600)}

model = T5ForConditionalGeneration(T5Config(**SHAPE, decoder_start_token_id=0))
given = Seq2SeqTrainingArguments(
    output_dir=sys.argv[1], max_steps=2, per_device_train_batch_size=8, use_cpu=sys.argv[2] == "cpu",
    ddp_backend="gloo" if sys.argv[2] == "cpu" else "nccl",
    report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = Seq2SeqTrainer(model=model, args=given, train_dataset=Pairs())
trainer.train()
trainer.save_model(sys.argv[1])
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def timed(argv: list[str], device: str) -> dict[str, float]:
    """Seconds of a command on the clock, and of the processors, with all that it started and waited for."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    env = {**os.environ, "OMP_NUM_THREADS": "1", **hidden}
    began = time.perf_counter()
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{argv[:4]}: {said.decode()[-2000:]}")
    return {"clock": time.perf_counter() - began, "processors": used.ru_utime + used.ru_stime}


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def measure(rounds: int, ranks: int, device: str = "cpu") -> dict[str, Any]:
    """Both in turn: of clock and processors their seconds, and the median of the pairs' ratios."""
    rows: dict[str, list[dict[str, float]]] = {"torchrun": [], "muster": []}
    config = " ".join(f"model.config.{name}={value}" for name, value in SHAPE.items()).split()
    for turn in range(rounds + 1):
        with tempfile.TemporaryDirectory() as place:
            script = Path(place) / "script.py"
            script.write_text(f"SHAPE = {SHAPE}\n{SCRIPT}")
            commands = {
                "torchrun": [
                    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                    str(ranks), str(script), f"{place}/bare", device,
                ],
                "muster": [
                    sys.executable, "-m", "muster", "train", "demo", "--hosts", f"local:{ranks}",
                    "--output", f"{place}/run", *config, "engine={name: ddp, zero: 0}",
                    "data.generated={train: 400, validation: 16}", "batch.micro=8", "train.max_steps=2",
                    "train.warmup=0", "evaluate.after=false", "measure.hardware_seconds=1",
                    f"launch.device={device}",
                ],
            }  # fmt: skip
            order = sorted(commands, reverse=bool(turn % 2))
            for name in order:
                took = timed(commands[name], device)
                if turn:  # the first one fills caches
                    rows[name].append(took)
    made: dict[str, Any] = {}
    for what in ("clock", "processors"):
        made[what] = {name: spread([each[what] for each in rows[name]]) for name in rows}
        ratios = [m[what] / t[what] for m, t in zip(rows["muster"], rows["torchrun"], strict=True)]
        made[what]["ratio"] = spread(ratios)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    told = parser.parse_args()
    made: dict[str, Any] = {
        "processor": processor(), "cores": len(os.sched_getaffinity(0)), "python": sys.version.split()[0],
        "torch": version("torch"), "transformers": version("transformers"), "ranks": told.ranks,
        "rounds": told.rounds,
    }  # fmt: skip
    made |= measure(told.rounds, told.ranks)
    RESULT.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
