"""What benchmarks/hangs.py does to a rank. It lies as `sitecustomize.py` in PYTHONPATH, as a site's may.

FAULT=KIND:RANK:STEP/SECONDS. At that optimizer step the rank gets the fault, or is slow for so many seconds.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

kind, rank, rest = (os.environ.get("FAULT", "") + "::").split(":")[:3]
at, _, lasts = rest.partition("/")
me = os.environ.get("RANK")
count = 0
group = None


def say(what: str) -> None:
    print(f"fault {what}", time.time(), flush=True)


def blocked() -> None:
    path = os.environ["PLACE"] + "/pipe"
    os.mkfifo(path)
    os.open(path, os.O_RDONLY)


def frozen() -> None:
    """On a file system that takes nothing."""
    with Path(os.environ["DISK"], "model").open("wb") as file:
        file.write(os.urandom(1 << 16))
        file.flush()
        os.fsync(file.fileno())


def loop() -> None:
    number = 0
    while True:
        number += 1


def computes() -> None:
    import torch

    end = time.time() + float(lasts)
    while time.time() < end:
        for width in (64, 96, 128):
            torch.nn.functional.gelu(torch.randn(width, width)) @ torch.randn(width, width)


def scores() -> None:
    """A metric over texts, in Python alone."""

    def pieces(text: list[str], size: int) -> Counter[tuple[str, ...]]:
        return Counter(zip(*[text[at:] for at in range(size)], strict=False))

    texts = [[str(one * other % 977) for other in range(30)] for one in range(100)]
    for said, wanted in pairwise(texts):
        for size in range(1, 5):
            sum((pieces(said, size) & pieces(wanted, size)).values())


def evaluates() -> None:
    end = time.time() + float(lasts)
    while time.time() < end:
        scores()


def saves() -> None:
    """To a disk that takes 8 MB/s: the data last, in fsync."""
    with Path(os.environ["DISK"], "model").open("wb") as file:
        for _ in range(int(float(lasts) * 8e6) >> 16):
            file.write(os.urandom(1 << 16))
        file.flush()
        os.fsync(file.fileno())


def compiles() -> None:
    """What a compiler does: other processes, one after the other, that take a second."""
    end = time.time() + float(lasts)
    while time.time() < end:
        subprocess.run([sys.executable, "-S", "-c", "n = 0\nwhile n < 1e7: n += 1"])


def loads() -> None:
    """Batches from workers that take long for one."""
    import torch

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            end = time.time() + float(lasts)
            while time.time() < end:
                sum(range(100000))
            return index

    list(torch.utils.data.DataLoader(Slow(), num_workers=2))


def unevenly() -> None:
    """Each step takes another time, one of them `lasts`."""
    import random

    spent = float(lasts) if count == int(at) else random.Random(count).lognormvariate(-2, 1.5)
    end = time.time() + min(spent, float(lasts))
    while time.time() < end:
        scores()


HERE = {
    "loop": loop,
    "sleep": lambda: time.sleep(10000),
    "pipe": blocked,
    "frozen": frozen,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "alone": computes,
    "evaluates": evaluates,
    "saves": saves,
    "compiles": compiles,
}
EVERYWHERE = {"computes": computes, "loads": loads}
OUTSIDE = ("host", "cut", "pair", "gone")


def hook(*_: object) -> None:
    global count, group
    count += 1
    if kind == "skip" and count == 1:
        import torch.distributed as dist

        group = dist.new_group()  # in one and the same, gloo ends programs whose sizes differ
    mine = me == rank
    if kind == "uneven":
        unevenly()
    if count != (1 if kind == "compiles" else int(at)):
        return
    import torch
    import torch.distributed as dist

    say(kind)
    if kind in OUTSIDE and mine:  # the one who does it looks for this
        Path(os.environ["PLACE"], "now").touch()
    if kind == "skip" and not mine:
        dist.all_reduce(torch.ones(4), group=group)
    if kind == "differ":
        dist.broadcast(torch.ones(5), 0) if mine else dist.all_reduce(torch.ones(3))
    if kind == "announced":
        import muster

        with muster.phase("a long step"):
            time.sleep(float(lasts))
    if kind in EVERYWHERE:
        EVERYWHERE[kind]()
    if kind in HERE and mine:
        HERE[kind]()


if kind and me:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(hook)
