"""Logs in the shapes that tools write them, small and with known figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from muster.readers._read import read_blocks
from muster.readers._user import Expression, UserFormat
from muster.readers.base import JobLog
from muster.store.logfiles import BrokenFile
from tests.golden.documents import sections

# What tools printed, by their names (tests/golden/logs/sources.md).
LOGS = sections(Path(__file__).parents[1] / "golden" / "logs" / "formats.txt")
START = datetime(2024, 7, 8, 5, 52, 0)
ARGUMENTS = "--model_name_or_path facebook/opt-350m --per_device_train_batch_size 24 --max_seq_len 512"


def read_log(
    path: str,
    lines: Iterable[str],
    user: UserFormat | None = None,
    named: Expression | None = None,
) -> list[JobLog]:
    """The jobs of lines that come one by one."""

    def blocks() -> Iterator[list[str]]:
        block: list[str] = []
        try:
            for line in lines:
                block += line.split("\n")
        except BrokenFile:
            yield block
            raise
        yield block

    return read_blocks(path, blocks(), user, named)


def one(lines: Sequence[str], path: str = "job.log") -> JobLog:
    """The one job of these lines."""
    (job,) = read_log(path, lines)
    return job


def at(seconds: float) -> str:
    """DeepSpeed's time stamp."""
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def chat_log(
    hosts: Sequence[str],
    step: float = 0.2,
    *,
    windows: int = 10,
    skipped: Sequence[int] = (8,),
    ends: bool = True,
    slots: int = 8,
) -> list[str]:
    """What DeepSpeed-Chat's benchmark writes: a window of ten steps after the other, `step` seconds each.

    `skipped`: how many steps of the first windows a loss scaler threw away; those take a tenth less time.
    """
    batch = 24 * slots * len(hosts)
    prefix = f"{hosts[0]}: " if len(hosts) > 1 else ""
    world = {host: list(range(slots)) for host in hosts}
    lines = [f"{host} slots={slots}" for host in hosts]
    lines += [
        f"{prefix}[{at(0)}] [INFO] [launch.py:146:main] WORLD INFO DICT: {world}",
        f"{prefix}[{at(0)}] [INFO] [launch.py:164:main] dist_world_size={slots * len(hosts)}",
    ]
    for rank in range(slots):
        command = ["/usr/bin/python3", "/x/step1_sft/main.py", f"--local_rank={rank}", *ARGUMENTS.split()]
        said = f"process {100 + rank} spawned with command: {command}"
        lines.append(f"{prefix}[{at(0)}] [INFO] [launch.py:256:main] {said}")
    lines += [
        f"{prefix}[{at(9)}] [INFO] [config.py:1001:print]   train_batch_size ............. {batch}",
        f"{prefix}[{at(9)}] [INFO] [config.py:1001:print]   train_micro_batch_size_per_gpu  24",
        f"{prefix}***** Running training *****",
    ]
    now, lost, timer = 10.0, 0, 0.0
    for window in range(windows + 1):
        here = skipped[window] if window < len(skipped) else 0
        took = (10 - here) * step + here * step * 0.9
        now, lost, last = now + took, lost + here, 10 * (window + 1)
        timer += took * (8 / 10 if window == 0 else 1)  # the timer leaves out two steps
        logged = f"{prefix}[{at(now)}] [INFO] [logging.py:96:log_dist] [Rank 0]"
        lines += [f"{logged} Overflow detected. Skipping step."] * here
        lines += [
            f"{logged} step={last}, skipped={lost}, lr=[1e-11]",
            f"{prefix}[{at(now)}] [INFO] [timer.py:258:stop] epoch=0/micro_step={last}/global_step={last}, "
            f"RunningAvgSamplesPerSec={batch * (last - 2) / timer}, CurrSamplesPerSec={batch / step}, "
            "MemAllocated=5.53GB, MaxMemAllocated=33.78GB",
        ]
    if ends:
        lines += [
            f"{prefix}Execution time: {10 * windows * step:.4f} seconds for {10 * windows} steps",
            f"{prefix}Throughput: {batch / step:.4f} samples/sec",
        ]
        lines += [f"{host}: [{at(now)}] [INFO] [launch.py:351:main] Process {n} exits successfully."
                  for host in hosts for n in range(slots)]  # fmt: skip
    return lines


def trainer_log(step: float = 1.0, steps: int = 300, *, batch: int | None = 64, every: int = 20) -> str:
    """What Transformers' Trainer writes, as a terminal gets it: carriage returns between bars."""
    text = "***** Running training *****\n  Num examples = 19,200\n"
    if batch:
        text += f"  Total train batch size (w. parallel, distributed & accumulation) = {batch}\n"
        text += f"  Total optimization steps = {steps:,}\n  Number of trainable parameters = 7,840,794\n"
    text += f"\r  0%|          | 0/{steps} [00:00<?, ?it/s]"
    for done in range(1, steps + 1):
        seconds = int(30 + done * step)  # the first step took half a minute longer
        clock = f"{seconds // 60:02d}:{seconds % 60:02d}"
        text += f"\r {100 * done // steps:2d}%|███       | {done}/{steps} [{clock}<01:00, 1.00s/it]"
        if done % every == 0:
            text += "\r" + " " * 80 + f"\r{{'loss': '0.{done}', 'grad_norm': '1.2', 'epoch': '1.0'}}\n"
    runtime = 30 + steps * step
    samples = steps * (batch or 64) / runtime
    return text + (
        f"{{'train_runtime': '{runtime:.1f}', 'train_samples_per_second': '{samples:.3f}', "
        f"'train_steps_per_second': '{steps / runtime:.3f}', 'train_loss': '0.41', 'epoch': '1'}}\n"
        f"\r100%|██████████| {steps}/{steps} [05:30<00:00, 1.00s/it]\n"
    )


def metaseq_log(step: float = 2.0, *, overflow_at: int | None = 5, ends: bool = True) -> list[str]:
    """What metaseq writes: a line of train_inner every ten updates of 64 sequences of 2048 tokens."""
    lines, wall = ["2022-05-01 12:00:00 | INFO | metaseq.trainer | begin training epoch 1"], 60.0
    size = "num. model params: 13,110,865,920 (num. trained: 13,110,865,920)"
    lines.append(f"2022-05-01 12:00:00 | INFO | metaseq.cli.train | {size}")
    for number in range(1, 11):
        wall += 10 * step
        if number == overflow_at:
            wall += step
            lines.append("2022-05-01 12:00:00 | INFO | metaseq.trainer | NOTE: gradient overflow detected, "
                         "ignoring gradient, setting loss scale to: 64.0")  # fmt: skip
        lines.append(
            '2022-05-01 12:00:00 | INFO | train_inner | {"epoch": 1, "loss": "9.2", "wps": "65536", '
            f'"ups": "0.5", "wpb": "131072", "bsz": "64", '
            f'"num_updates": "{10 * number}", "wall": "{wall:.0f}"}}'
        )
    return lines + ["2022-05-01 12:04:00 | INFO | metaseq.cli.train | done training in 260.0 seconds"] * ends


# With another separator than Lightning's own, which is a slash.
LIGHTNING = ["epoch,step,train_loss,train|batches,train|samples,train|time,val_loss"] + [
    f"0,{step},,{step},{step * 16},{30 + step * 0.5:.3f}," for step in range(10, 110, 10)
] + ["0,100,,,,,0.5"]  # fmt: skip
