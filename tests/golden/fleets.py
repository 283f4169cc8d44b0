"""Folders of logs of made-up fleets, the same every time: who is slow or broken in which is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.unit.logs import LIGHTNING, chat_log, metaseq_log, trainer_log

HOSTS = tuple(f"node-{number:02d}" for number in range(1, 13))
STEP = 0.2  # seconds of a healthy job of one host
TRACEBACK = "Traceback (most recent call last):"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
FULL = "OSError: [Errno 28] No space left on device"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB."


def write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fleet(
    folder: Path,
    slow: Mapping[str, float] | None = None,
    *,
    hosts: Sequence[str] = HOSTS,
    groups: Sequence[int] = (1, 2),
    link: tuple[str, str, float] | None = None,
    noise: float = 0.002,
    seed: int = 1,
    step: float = STEP,
    windows: int = 5,
    rounds: int = 1,
) -> None:
    """A log of each group of neighbours.

    `slow`: host -> times a healthy step; `link`: two hosts, and how many times their steps take together;
    `noise`: relative standard deviation of a job.
    """
    draw = random.Random(seed)
    for turn in range(rounds):
        for size in groups:
            for number in range(0, len(hosts), size if size > 2 else 1):
                some = [hosts[(number + each) % len(hosts)] for each in range(size)]
                worst = max((slow or {}).get(host, 1.0) for host in some)
                if link is not None and {*link[:2]} <= {*some}:
                    worst = max(worst, link[2])
                seconds = step * size**0.05 * worst * (1 + draw.gauss(0, noise))
                write(
                    folder / f"{size}x" / f"{turn}-{number:02d}.log",
                    chat_log(some, seconds, windows=windows, slots=2),
                )


def broken(folder: Path, hosts: Sequence[str], line: str, *, times: int = 1) -> None:
    """Jobs of one host each that end with this line."""
    for turn in range(times):
        for host in hosts:
            log = chat_log([host], STEP, windows=2, ends=False, slots=2)
            write(folder / "broken" / f"{turn}-{host}.log", [*log, TRACEBACK, line])


def pairs_end_alike(folder: Path) -> None:
    """Each host alone is well; each pair meets a timeout, after it has begun."""
    fleet(folder, groups=(1,))
    for number in range(0, len(HOSTS), 2):
        log = chat_log(HOSTS[number : number + 2], STEP, windows=2, ends=False, slots=2)
        end = f"{HOSTS[number]}: RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
        write(folder / "pairs" / f"{number}.log", [*log, TRACEBACK, end])


def unreachable(folder: Path) -> None:
    """A rack that nobody gets through to."""
    for host in HOSTS[:10]:
        write(folder / f"{host}.log", [f"ssh: connect to host {host} port 22: No route to host"])
    fleet(folder, hosts=HOSTS[10:], groups=(1,))


def experiments(folder: Path) -> None:
    """Logs that no host wrote its name into, in files that are called as their runs are."""
    for number, name in enumerate(
        ("baseline", "lr-3e4", "wide", "gpu01", "gpu02", "gpu03", "gpu04", "node7")
    ):
        write(folder / f"{name}.log", metaseq_log(step=20 + (name == "gpu03") * 4 + number / 50))


def formats(folder: Path) -> None:
    """A folder of three formats for each host; node-03 takes a fifth longer."""
    draw = random.Random(5)
    for host in HOSTS[:8]:
        times = (1.2 if host == "node-03" else 1.0) * (1 + draw.gauss(0, 0.002))
        write(folder / host / "train.log", metaseq_log(step=round(20 * times, 1)))
        write(folder / host / "output.txt", trainer_log(step=2 * times, steps=200).split("\n"))
        rows = [row.split(",") for row in LIGHTNING[1:]]
        for row in rows:
            row[5] = row[5] and f"{30 + (float(row[5]) - 30) * times:.3f}"
        write(folder / host / "metrics.csv", [LIGHTNING[0], *(",".join(row) for row in rows)])


def table(folder: Path) -> None:
    """A table with a column of hosts."""
    draw = random.Random(6)
    rows = ["it,machine,ms,bs"]
    for host in HOSTS:
        times = 1.07 if host == "node-09" else 1.0
        rows += [f"{step},{host},{250 * times * (1 + draw.gauss(0, 0.003)):.2f},32" for step in range(40)]
    write(folder / "steps.csv", rows)


def own_lines(folder: Path) -> None:
    """Lines of a program's own."""
    draw = random.Random(7)
    for host in HOSTS[:8]:
        times = 1.06 if host == "node-02" else 1.0
        lines = [
            f"it={n} loss={9 / n:.3f} dt={250 * times * (1 + draw.gauss(0, 0.003)):.2f}" for n in range(1, 41)
        ]
        write(folder / f"{host}.log", ["batch 32", *lines, "end"])


def odd_files(folder: Path) -> None:
    """A healthy fleet, and files that are no logs."""
    fleet(folder)
    (folder / "empty.log").touch()
    (folder / "core").write_bytes(bytes(range(256)) * 9)
    write(folder / "README.md", ["# how these came to be"])
    (folder / "cut.log.gz").write_bytes(b"\x1f\x8b\x08\x00garbage")


def unnamed(folder: Path) -> None:
    """Logs that say of no host."""
    for number in range(5):
        write(folder / f"{number}.txt", metaseq_log(step=20 + number / 9))


def two_works(folder: Path) -> None:
    """Jobs of another step time, in which another host is slow."""
    fleet(folder / "chat", {"node-04": 1.05})
    for number, host in enumerate(HOSTS):
        times = (1.2 if host == "node-08" else 1.0) * (1 + random.Random(number).gauss(0, 0.002))
        write(folder / "meta" / f"{host}.log", metaseq_log(step=round(20 * times, 1)))


def baseline(folder: Path, step: float, hosts: Sequence[str]) -> None:
    """The document of a healthy fleet as fleet.json, and logs of other hosts."""
    from tests.golden.documents import muster

    fleet(folder.parent / "before")
    told = muster("judge", "before", "--json", place=folder.parent)
    (folder.parent / "fleet.json").write_text(json.dumps(json.loads(told.out)), encoding="utf-8")
    fleet(folder, hosts=hosts, step=step, groups=(1,), rounds=2, seed=3)


# What is in a folder, and the words behind `muster judge DIR`.
FLEETS: dict[str, tuple[Callable[[Path], None], Sequence[str]]] = {
    "healthy": (fleet, ()),
    "healthy, 1, 2 and 4 hosts": (lambda at: fleet(at, groups=(1, 2, 4)), ()),
    "one is 5 % slow": (lambda at: fleet(at, {"node-06": 1.05}), ()),
    "one is 2 % slow": (lambda at: fleet(at, {"node-06": 1.02}, rounds=2), ()),
    "one is 2 % slow, and 5 % counts": (lambda at: fleet(at, {"node-06": 1.02}), ("--slow", "0.05")),
    "two are slow": (lambda at: fleet(at, {"node-06": 1.05, "node-11": 1.3}), ()),
    "two neighbours are slow": (lambda at: fleet(at, {"node-06": 1.05, "node-07": 1.05}), ()),
    "one is fast": (lambda at: fleet(at, {"node-06": 0.93}), ()),
    "pairs alone, one is slow": (lambda at: fleet(at, {"node-06": 1.05}, groups=(2,)), ()),
    "alone alone, one is slow": (lambda at: fleet(at, {"node-06": 1.05}, groups=(1,)), ()),
    "fours alone, one is slow": (lambda at: fleet(at, {"node-06": 1.05}, groups=(4,)), ()),
    "a link is slow": (lambda at: fleet(at, link=("node-04", "node-05", 1.1), rounds=3), ()),
    "much noise": (lambda at: fleet(at, {"node-06": 1.05}, noise=0.03), ()),
    "much noise, four rounds": (lambda at: fleet(at, {"node-06": 1.1}, noise=0.02, rounds=4), ()),
    "three hosts": (lambda at: fleet(at, hosts=HOSTS[:3]), ()),
    "one host": (lambda at: fleet(at, hosts=HOSTS[:1], groups=(1,)), ()),
    "no hosts are named": (unnamed, ()),
    "a baseline, as fast": (lambda at: baseline(at, STEP, ("new-1", "new-2")), ("--baseline", "fleet.json")),
    "a baseline, slower": (lambda at: baseline(at, 1.06 * STEP, ("new-1",)), ("--baseline", "fleet.json")),
    "the whole fleet drifted": (lambda at: baseline(at, 1.04 * STEP, HOSTS), ("--baseline", "fleet.json")),
    "a speed of each job is met": (lambda at: fleet(at), ("--at-least", "200samples/s/host")),
    "a speed of each job is missed": (
        lambda at: fleet(at, {"node-06": 1.05}), ("--at-least", "233samples/s/host"),
    ),
    "one has ECC errors": (lambda at: (fleet(at), broken(at, HOSTS[3:4], ECC)), ()),
    "one raises often": (lambda at: (fleet(at), broken(at, HOSTS[3:4], "RuntimeError: boo", times=4)), ()),
    "most run out of memory": (lambda at: (fleet(at, groups=(1,)), broken(at, HOSTS, OOM, times=2)), ()),
    "half of all have a full disk, and their hosts say so": (
        lambda at: (fleet(at, groups=(1,)), broken(at, HOSTS, FULL)), (),
    ),
    "all pairs end alike, those alone do not": (pairs_end_alike, ()),
    "none gets through to ten of twelve": (unreachable, ()),
    "names of experiments": (experiments, ()),
    "one runs out of memory once": (lambda at: (fleet(at), broken(at, HOSTS[3:4], OOM)), ()),
    "one is slow and one is broken": (
        lambda at: (fleet(at, {"node-06": 1.05}), broken(at, HOSTS[9:10], ECC, times=2)), (),
    ),
    "a log stops": (
        lambda at: (fleet(at), write(at / "a.log", chat_log(HOSTS[:1], windows=3, ends=False, slots=2))),
        (),
    ),
    "three formats": (formats, ()),
    "a table with hosts": (
        table,
        ("--column", "step=it", "--column", "host=machine", "--column", "ms=ms", "--column", "batch=bs"),
    ),
    "lines of its own": (
        own_lines,
        (
            "--line", r"it=(?P<step>\d+) loss=(?P<loss>\S+) dt=(?P<ms>[\d.]+)",
            "--line", r"^batch (?P<batch>\d+)", "--workload", "ours",
        ),
    ),
    "two works": (two_works, ()),
    "files that are no logs": (odd_files, ()),
    "hosts by a pattern": (
        lambda at: [
            write(at / f"x-{host}-y.log", metaseq_log(step=20 + (host == "node-05") * 3 + n / 50))
            for n, host in enumerate(HOSTS)
        ],
        ("--host-pattern", r"x-(?P<host>node-\d+)-y", "--workload", "mine"),
    ),
    "a pattern that matches nothing": (fleet, ("--host-pattern", "(?P<host>zzz)")),
    "no log at all": (lambda at: write(at / "notes.txt", ["nothing"]), ()),
}  # fmt: skip
