"""What the events of recorded runs, and of made-up ones on GPUs, come to: a result, and the pace of hosts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import read_job
from muster.reports.rundata import read_stream, so_far
from muster.results.stragglers import Stragglers
from muster.store import events
from tests.golden.documents import DIGITS, Documents, lines, muster, rounded, text_of
from tests.golden.test_shown import recorded

RECORDED = ("old", "demo", "digits", "lm", "dpo", "grpo", "ppo", "fabric", "command", "broken", "resumed")
GPU = {"name": "NVIDIA H100 80GB HBM3", "memory_total": 85_520_809_984, "capability": [9, 0]}

ANSWERS = [
    {
        "index": number,
        "question": f"question {number}",
        "predicted": given,
        "expected": right,
        "exact": given == right,
    }
    for number, (given, right) in enumerate(
        [
            ("a b c", "a b c"),
            ("a b c", "a x y"),
            ("one  two three", "one 2 3 three"),
            ("", "nothing"),
            ("x", ""),
        ]
    )
]


def started(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events until training begins."""
    yield {"kind": "job", "state": "begin", "time": 1000.0}
    for place in job["placements"]:
        host, gpus = place["host"], [GPU] * place["slots"]
        facts = {
            "hostname": host,
            "cores": 64,
            "memory_total": 2**39,
            "gpus": gpus,
            "versions": {"torch": "2.13.0"},
        }
        yield {"kind": "host", "host": host, "facts": facts, "time": 1001.0}
    for rank in range(job["world_size"]):
        host = job["placements"][rank // 2]["host"]
        about = {
            "device": GPU["name"],
            "parameters": 10**9,
            "trainable": 10**9,
            "total_steps": 400,
            "arithmetic": "bf16",
        }
        yield {
            "kind": "started",
            "host": host,
            "rank": rank,
            "time": 1030.0,
            "versions": {"torch": "2.13.0"},
            **about,
        }


def trained(
    job: dict[str, Any], slow: str, times: float, skipped: int, loading: float
) -> Iterator[dict[str, Any]]:
    """Forty windows of ten steps; the host `slow` takes so many times as long by itself;
    `loading`: the share of that in which it gets its batches."""
    draw, now = random.Random(1), 1040.0
    for window in range(1, 41):
        seconds = 3.0 * times * (1 + draw.gauss(0, 0.005))
        now += seconds
        lost = skipped if window == 3 else 0
        for rank in range(job["world_size"]):
            host = job["placements"][rank // 2]["host"]
            own = 2.0 * (times if host == slow else 1.0) * (1 + draw.gauss(0, 0.004))
            yield {
                "kind": "window", "host": host, "rank": rank, "time": now, "step": 10 * window,
                "steps": 10, "skipped": lost, "seconds": seconds, "samples": 16 * (10 - lost),
                "tokens": 8000 * (10 - lost), "padded_tokens": 8192 * (10 - lost),
                "step_seconds": [seconds / 10] * (10 - lost), "forward_seconds": own / 30,
                "data_seconds": loading * own, "parts": {"forward": own / 3},
                "model_flops": 10**15, "hardware_flops": 12 * 10**14, "allocator_peak": 60 * 10**9 + rank,
                "device_peak": 70 * 10**9, "resident_peak": 4 * 10**9,
            }  # fmt: skip
        yield {
            "kind": "log", "host": "n1", "rank": 0, "time": now, "step": 10 * window,
            "epoch": window / 20, "loss": 8 / window, "learning_rate": 1e-4, "gradient_norm": 1 + window / 10,
        }  # fmt: skip
        for place in job["placements"]:
            gpus = [
                {
                    "percent": 99.0 - draw.random(),
                    "memory_used": 70 * 10**9,
                    "slowed": 4 if place["host"] == slow else 0,
                }
                for _ in range(2)
            ]
            yield {
                "kind": "hardware", "host": place["host"], "time": now, "cpu_percent": 12.0, "cpu_busy": 8.0,
                "cpu_own": 7.5, "memory_used": 2**36, "memory_total": 2**39, "gpus": gpus, "seconds": seconds,
            }  # fmt: skip
        if window % 20 == 0:
            yield {
                "kind": "evaluated", "host": "n1", "rank": 0, "time": now, "step": 10 * window,
                "loss": 9 / window, "perplexity": None, "seconds": 1.5,
            }  # fmt: skip


@lru_cache
def made(slow: str, times: float, skipped: int, loading: float = 0.02) -> Path:
    """A run folder of four hosts with two GPUs each, which has no result yet."""
    run = recorded() / "made" / f"gpus-{slow or 'alike'}-{loading}"
    shutil.copytree(recorded() / "runs" / "digits", run)
    (run / "result.json").unlink()
    job = json.loads((run / "job.json").read_text(encoding="utf-8"))
    hosts = [
        {**job["placements"][0], "host": f"n{n}", "slots": 2, "first_rank": 2 * n - 2} for n in (1, 2, 3, 4)
    ]
    job |= {"placements": hosts, "world_size": 8, "device": "cuda", "precision": "bf16", "launcher": "ssh"}
    job["batch"] = {"micro": 16, "accumulation": 1, "global": 128}
    (run / "job.json").write_text(json.dumps(job), encoding="utf-8")
    told = [*started(job), *trained(job, slow, times, skipped, loading)]
    text = "".join(f"{json.dumps({'v': 1, 'attempt': 1, **each})}\n" for each in told)
    (run / "events.jsonl").write_text(text, encoding="utf-8")
    (run / "predictions.jsonl").write_text(
        "".join(f"{json.dumps(each)}\n" for each in ANSWERS), encoding="utf-8"
    )
    return run


MADE: dict[str, Callable[[], Path]] = {
    "GPUs, all alike": lambda: made("", 1.0, 0),
    "GPUs, one host a tenth slower, and skipped steps": lambda: made("n3", 1.1, 4),
    "GPUs that wait for their batches": lambda: made("", 1.0, 0, 0.4),
}


def folded(case: str) -> str:
    """Every figure of the result that the events come to, and of the pace that was found on the way."""
    run = MADE[case]() if case in MADE else recorded() / "runs" / case
    stream = list(events.read_events(run / "events.jsonl"))
    data = json.loads((run / "job.json").read_text(encoding="utf-8"))
    folder, _, last = read_stream(stream)
    result, job = so_far(folder, data, last), read_job(data)
    if result is None or job is None:
        return "no result: the job is of another version\n"
    stragglers = Stragglers(job)
    paces = [pace for event in stream if (pace := stragglers.add(event))]
    found = result.model_dump(mode="json")
    for host in found["hosts"]:
        del host["facts"]
    found["paces"] = [pace.model_dump(mode="json") for pace in (*paces, stragglers.pace()) if pace]
    return "".join(f"{line}\n" for line in lines(rounded(found, DIGITS)))


def reported(case: str) -> str:
    """The page of a made-up run."""
    run = MADE[case]()
    muster("report", str(run), "--output", str(run / "page.html"))
    return text_of((run / "page.html").read_text(encoding="utf-8"), whole=False)


DOCUMENTS = [
    Documents("folded", (*RECORDED, *MADE), folded),
    Documents("reported", tuple(MADE), reported),
]


@pytest.mark.parametrize("case", DOCUMENTS[0].cases)
def test_the_result_of_events(case: str) -> None:
    DOCUMENTS[0].check(case)


@pytest.mark.parametrize("case", DOCUMENTS[1].cases)
def test_the_page_of_events(case: str) -> None:
    DOCUMENTS[1].check(case)
