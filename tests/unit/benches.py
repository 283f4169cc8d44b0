"""What the tests of `muster bench` share: results, suites, and a process that plays `muster train`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from muster.benches.bench import bench
from muster.benches.document import Bench, JobRecord
from muster.benches.fold import fold_bench
from muster.benches.folder import BenchFolder
from muster.benches.inputs import BenchInputs, read_bench
from muster.benches.schedule import Task, make_schedule
from muster.benches.suite import Suite, suite_from
from muster.core.fabric import FabricRun, Latency, Matmul, Sweep, spread
from muster.core.inventory import read_inventory
from muster.core.recipes import dump_yaml, load_recipe
from muster.core.result import Failure, HostReport, Memory, Result, Seconds, Throughput
from muster.fleet.shell import Process
from tests.shell import FakeShell

# Waits, leaves a result, prints it and ends: argv: seconds, exit code, diary, output folder, result, hosts.
# Upon SIGINT it leaves a stopped one; with a negative exit code it heeds neither SIGINT nor SIGTERM.
PLAYER = """
import json, os, signal, sys, time
wait, code, diary, output, result, hosts = sys.argv[1:7]
names = [host["name"] for host in json.load(open(hosts))["hosts"]]
result = json.loads(result)
def stop(*_):
    os.makedirs(output, exist_ok=True)
    json.dump({**result, "status": "stopped"}, open(os.path.join(output, "result.json"), "w"))
    sys.exit(1)
ignore = int(code) < 0
signal.signal(signal.SIGINT, signal.SIG_IGN if ignore else stop)
signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else stop)
begun = time.monotonic()
print("step 1/9: loss 1.0", file=sys.stderr, flush=True)
time.sleep(float(wait))
with open(diary, "a") as file:
    file.write(json.dumps([os.path.basename(output), names, begun, time.monotonic()]) + "\\n")
if "error" in result:
    print(json.dumps(result))
else:
    os.makedirs(output)
    json.dump(result, open(os.path.join(output, "result.json"), "w"))
sys.exit(int(code))
"""


def made(
    hosts: Sequence[str],
    rate: float = 100.0,
    *,
    status: str = "succeeded",
    failure: Failure | None = None,
    slots: int = 1,
    **more: Any,
) -> Result:
    """A result of training on these hosts; `rate` in samples/s of all of them."""
    ranks = len(hosts) * slots
    facts = {"gpus": [], "cores": 2}
    speed = Throughput(
        samples_per_second=rate,
        tokens_per_second=17 * rate,
        padded_tokens_per_second=17 * rate,
        step_seconds_median=8 * ranks / rate,
        step_seconds_p95=8 * ranks / rate,
        variation=0.01,
        windows=5,
        measured_steps=50,
    )
    fields: dict[str, Any] = {
        "id": "x", "status": status, "failure": failure, "attempt": 1, "workload": "image-classification",
        "model": "vit", "engine": "ddp", "precision": "fp32", "world_size": ranks, "global_batch": 8 * ranks,
        "started": 1.0, "ended": 11.0, "seconds": Seconds(total=10.0, setup=2.0, training=7.0), "steps": 60,
        "samples": 480 * ranks, "loss_final": 0.5, "memory": Memory(resident_peak=500_000_000),
        "throughput": speed if status == "succeeded" else None,
        "hosts": [HostReport(host=host, ranks=[i], facts=facts) for i, host in enumerate(hosts)],
    }  # fmt: skip
    return Result(**{**fields, **more})


def fabric_result(hosts: list[str], slow: dict[str, float]) -> Result:
    """All-reduce of 1 MiB in a millisecond, products at 1 TFLOP/s; `slow`: host -> how much slower."""
    products = [
        Matmul(
            host=host, rank=rank, device="cpu", precision="fp32", n=1000, threads=1, best=1e12,
            sustained=1e12 / slow.get(host, 1.0) * (1 + 0.0004 * (sum(map(ord, host)) % 5)), products=9,
            seconds=1.0, right=True, peak=None,
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    sweeps = [
        Sweep(operation="all-reduce", method="native", bytes=size, time=spread([1e-3, 1e-3]), iterations=5,
              algbw=1e9, busbw=2e9, busbw_best=2e9)
        for size in (1024, 1 << 20)
    ]  # fmt: skip
    fabric = FabricRun(
        device="cpu", backend="gloo", devices={host: ["cpu"] for host in hosts}, seconds={},
        sweeps=sweeps if len(hosts) > 1 else [], matmul=products,
        latencies=[Latency(operation="all-reduce", bytes=8, median=1e-5, best=1e-5, count=10)],
    )  # fmt: skip
    nothing = {
        "model": None,
        "engine": None,
        "precision": None,
        "global_batch": None,
        "throughput": None,
        "steps": 0,
    }
    return made(hosts, fabric=fabric, workload="fabric", **nothing)


def recorded(task: Task, result: Result | None, **more: Any) -> JobRecord:
    """The record of a job that ended with this result."""
    fields: dict[str, Any] = {
        **task.row,
        "outcome": result.status if result else "failed",
        "run": f"runs/{task.id}",
        "started": 100.0,
        "ended": 112.0,
        "result": result,
        "devices": dict.fromkeys(task.hosts, "cpu, 2 cores"),
    }
    return JobRecord(**{**fields, **more})


def suite_of(*jobs: dict[str, Any], **fields: Any) -> Suite:
    """A suite of these entries, of digits where they do not say."""
    entries = [{"recipe": "digits", **job} for job in jobs]
    return suite_from({"jobs": entries, "warm_up": False, **fields}, where="test")


def ended(suite: Suite, hosts: str, result: Callable[[Task], Result], **fields: Any) -> Bench:
    """The document of a bench of which every job came to `result(task)`."""
    inventory = read_inventory(hosts)
    schedule = make_schedule(suite, inventory.names)
    recipes = fields.pop("recipes", None) or {each.name: load_recipe(str(each.recipe)) for each in suite.jobs}
    records = {task.id: recorded(task, result(task)) for task in schedule.tasks}
    return fold_bench(
        **{
            "id": "bench",
            "inputs": BenchInputs("test", suite, inventory, recipes),
            "dropped": {},
            "tasks": schedule.tasks,
            "records": records,
            "notes": schedule.notes,
            "started": 0.0,
            "ended": 100.0,
            "stored": {},
            **fields,
        }
    )


def write_suite(folder: Path, data: dict[str, Any]) -> Path:
    """A suite as a file."""
    path = folder / "suite.yaml"
    path.write_text(dump_yaml(data), encoding="utf-8")
    return path


Plays = Callable[[str, list[str]], tuple[float, int, "Result | dict[str, Any]"]]


def player(diary: Path, plays: Plays) -> FakeShell:
    """A shell in which `muster train` is played: job and hosts -> seconds, exit code, result or error."""

    def answer(argv: Sequence[str]) -> Process:
        told = list(argv)
        assert told[1:4] == ["-m", "muster", "train"]
        hosts, output = told[told.index("--hosts") + 1], told[told.index("--output") + 1]
        names = [each["name"] for each in json.loads(Path(hosts).read_text())["hosts"]]
        seconds, code, result = plays(Path(output).name, names)
        text = json.dumps(result) if isinstance(result, dict) else result.model_dump_json()
        command = [sys.executable, "-c", PLAYER, str(seconds), str(code), str(diary), output, text, hosts]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    return FakeShell(answer=answer)


def diary_of(path: Path) -> list[tuple[str, list[str], float, float]]:
    """What was played: job, hosts, begin, end."""
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def long_on(host: str) -> Plays:
    """A job on this host takes a minute; others end at once."""
    return lambda job, hosts: (60.0 if hosts == [host] else 0.05, 0, made(hosts))


def inputs_of(tmp_path: Path, hosts: str, *jobs: dict[str, Any], **fields: Any) -> BenchInputs:
    entries = [{"recipe": "digits", **job} for job in jobs]
    path = write_suite(tmp_path, {"jobs": entries, "warm_up": False, **fields})
    return read_bench(str(path), hosts)


def play(tmp_path: Path, inputs: BenchInputs, plays: Plays, **around: Any) -> tuple[Bench, BenchFolder]:
    folder = BenchFolder(tmp_path / "bench", mark="")
    shell = player(tmp_path / "diary", plays)
    shell.use()
    return bench(inputs, folder, **around), folder


def well(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
    return 0.05, 0, made(hosts)
