"""The judges of the group checks: from figures to the host that is to blame, on made-up groups."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from muster.checks.base import Context, Finding, Level
from muster.checks.families.fabric import CHECKS, judge_group
from muster.checks.group import Collector, mpi_hello, mpi_hello_argv, read_hello
from muster.core.fabric import GroupFabric
from muster.core.inventory import Host, parse_hosts
from muster.core.job import place
from muster.core.launch import Launch
from muster.fleet.supervisor import Outcome
from muster.workloads.fabric.request import FabricRequest
from tests.shell import FakeShell

GBIT = 1e9 / 8
ABOUT: dict[str, Any] = {"address": "10.0.0.1", "port": 1, "launcher": "ssh", "seconds": 1.0, "mpi": None}


def group(hosts: int, **parts: Any) -> GroupFabric:
    """A group that met and came to its end."""
    names = [f"n{number}" for number in range(hosts)]
    base: dict[str, Any] = {
        "hosts": [{"host": name, "ranks": [number]} for number, name in enumerate(names)],
        "world_size": hosts,
        "device": "cpu",
        "backend": "gloo",
        "launcher": "ssh",
        "seconds": 1.0,
        "asked": ["values", "points", "all-reduce", "matmul", "copy", "disk", "mpi"],
        "rendezvous": {"address": "10.0.0.1", "port": 29500, "connect": dict.fromkeys(names, 0.01)},
    }
    return GroupFabric.model_validate({**base, **parts})


def seconds(value: float) -> dict[str, Any]:
    return {"seconds": [value], "median": value, "best": value, "variation": None}


def pair(source: int, target: int, gbit: float, latency: float | None = None) -> dict[str, Any]:
    rate = gbit * GBIT
    return {
        "source": source, "target": target, "source_host": f"n{source}", "target_host": f"n{target}",
        "bytes": 1 << 20, "time": seconds((1 << 20) / rate), "bandwidth": rate, "bandwidth_best": rate,
        "latency_median": latency, "latency_best": latency,
    }  # fmt: skip


def links(count: int, gbit: float, special: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    """A ring in both directions, with other rates for some directions."""
    ring = [(i, (i + 1) % count) for i in range(count)] if count > 2 else [(0, 1)]
    both = [*ring, *((b, a) for a, b in ring)]
    return [pair(a, b, special.get((a, b), gbit)) for a, b in both]


def judged(found: GroupFabric, check: str, **expects: Any) -> dict[str, Finding]:
    known = {each.name: dict(each.expects) for each in CHECKS}
    known[check].update(expects)
    context = Context(
        expects=known, slots={}, world_size=None, gpus_expected=None, transport={}, recipe={}, launcher="ssh"
    )
    return {f.host: f for f in judge_group(found.model_dump(mode="json"), context) if f.check == check}


def level(findings: dict[str, Finding]) -> dict[str, str]:
    return {host: f.level.value for host, f in findings.items() if f.level is not Level.PASS}


def slow_host(count: int, host: int, factor: float) -> list[dict[str, Any]]:
    special = {
        direction: 10 * factor
        for other in ((host - 1) % count, (host + 1) % count)
        for direction in ((host, other), (other, host))
    }
    return links(count, 10, special)


@pytest.mark.parametrize("count", [3, 4, 5, 16])
def test_a_slow_host_is_the_one_that_slow_pairs_have_in_common(count: int) -> None:
    """In a ring of three, two of three links are slow: still only their common host is named."""
    found = group(count, pairs=slow_host(count, 1, 0.1))
    assert level(judged(found, "fabric.bandwidth")) == {"n1": "fail"}
    found = group(count, pairs=slow_host(count, 1, 0.25))
    assert level(judged(found, "fabric.bandwidth")) == {"n1": "warn"}


def test_a_slow_direction_is_seen() -> None:
    """A host that sends slowly, and receives well."""
    found = group(4, pairs=links(4, 10, {(2, 3): 1.0, (2, 1): 1.0}))
    slow = judged(found, "fabric.bandwidth")
    assert level(slow) == {"n2": "fail"}
    assert slow["n2"].evidence.startswith("out 1.00 Gbit/s at best; the hosts' median is 10.0 Gbit/s")


def test_a_single_slow_link_names_both_ends() -> None:
    found = group(5, pairs=links(5, 10, {(1, 2): 1.0, (2, 1): 1.0}))
    slow = judged(found, "fabric.bandwidth")
    assert level(slow) == {"n1": "warn", "n2": "warn"}
    assert "n1 to n2: 1.00 Gbit/s; both reach 10.0 Gbit/s" in slow["n1"].evidence


def test_two_hosts_have_no_peer() -> None:
    """Their one link is judged by the profile alone."""
    found = group(2, pairs=links(2, 1, {}))
    assert level(judged(found, "fabric.bandwidth")) == {}
    assert level(judged(found, "fabric.bandwidth", at_least_gbit=5)) == {"n0": "fail", "n1": "fail"}
    assert level(judged(found, "fabric.bandwidth", at_least_gbit=0.5)) == {}


def test_one_rank_has_no_peer() -> None:
    """What needs others is not applicable; the rest is judged."""
    for check in ("rendezvous", "values", "bandwidth", "latency", "all_reduce"):
        assert level(judged(group(1), f"fabric.{check}")) == {"n0": "not applicable"}
    assert level(judged(group(1), "fabric.ranks")) == {}


def test_noise_is_no_finding() -> None:
    """Best rates and latencies of a loaded machine, scattered over a factor of 2.5: nobody is named."""
    dice = random.Random(7)
    for count in (3, 4, 8):
        for _ in range(50):
            pairs = [
                {
                    **each,
                    "bandwidth_best": dice.uniform(4, 10) * GBIT,
                    "latency_best": dice.uniform(5e-5, 1e-3),
                }
                for each in links(count, 10, {})
            ]
            found = group(count, pairs=pairs)
            assert level(judged(found, "fabric.bandwidth")) == {}
            assert level(judged(found, "fabric.latency")) == {}


def test_latency() -> None:
    """A host 10 ms away; and one figure for all from the profile."""
    times = {(0, 1): 1e-4, (1, 2): 1e-4, (2, 3): 1e-2, (3, 0): 1e-2}
    found = group(4, pairs=[pair(a, b, 10, late) for (a, b), late in times.items()])
    late = judged(found, "fabric.latency")
    assert level(late) == {"n3": "warn"}
    assert late["n3"].evidence == "10000 us at best; the hosts' median is 100 us"
    strict = judged(found, "fabric.latency", at_most_seconds=5e-5)
    assert set(level(strict).values()) == {"fail"} and len(strict) == 4


def test_all_reduce_against_the_profile() -> None:
    sweep = {
        "operation": "all-reduce", "method": "native", "bytes": 1 << 20, "time": seconds(0.001),
        "iterations": 1, "algbw": 1e9, "busbw": 1.5e9, "busbw_best": 1.6e9,
    }  # fmt: skip
    found = group(4, sweeps=[sweep])
    assert level(judged(found, "fabric.all_reduce", at_least_gbit=11)) == {}
    assert set(level(judged(found, "fabric.all_reduce", at_least_gbit=13)).values()) == {"fail"}
    assert set(level(judged(group(4), "fabric.all_reduce")).values()) == {"unknown"}


def product(host: int, rate: float, device: str = "NVIDIA H200", **more: Any) -> dict[str, Any]:
    return {
        "host": f"n{host}", "rank": host, "device": device, "precision": "bf16", "n": 8192, "threads": None,
        "best": rate * 1.02, "sustained": rate, "products": 9, "seconds": 1.0, "right": True,
        "peak": 989.5e12, "peak_source": "its data sheet", **more,
    }  # fmt: skip


def test_a_throttled_gpu() -> None:
    rates = [780e12, 775e12, 660e12, 500e12]
    found = group(4, device="cuda", matmul=[product(host, rate) for host, rate in enumerate(rates)])
    slow = judged(found, "fabric.matmul")
    assert level(slow) == {"n2": "warn", "n3": "fail"}
    assert "500 TFLOP/s sustained" in slow["n3"].evidence
    assert "65 % of the median of the same devices" in slow["n3"].evidence


def test_only_the_same_devices_are_compared() -> None:
    """An older GPU beside newer ones is no fault; far below its own stated peak, it is."""
    matmul = [product(0, 780e12), product(1, 700e12, "NVIDIA A100-SXM4-40GB", peak=312e12)]
    assert level(judged(group(2, device="cuda", matmul=matmul), "fabric.matmul")) == {}
    matmul[1] = product(1, 100e12, "NVIDIA A100-SXM4-40GB", peak=312e12)
    weak = judged(group(2, device="cuda", matmul=matmul), "fabric.matmul")
    assert level(weak) == {"n1": "warn"}
    assert "32 % of the stated peak (its data sheet)" in weak["n1"].evidence


def test_a_power_limit_is_no_fault() -> None:
    """A T4 of 70 W sustains a third of its peak and is sound; among its like, a slow one is still found."""
    cards = [product(host, 21e12, "Tesla T4", precision="fp16", peak=65e12) for host in range(3)]
    assert level(judged(group(3, device="cuda", matmul=cards), "fabric.matmul")) == {}
    cards[1] = product(1, 9e12, "Tesla T4", precision="fp16", peak=65e12)
    assert level(judged(group(3, device="cuda", matmul=cards), "fabric.matmul")) == {"n1": "fail"}


def test_a_slow_cpu_is_slow_at_its_best_and_sustained() -> None:
    """Sustained rates suffer from whatever else runs on a CPU; a peer's best may be one lucky moment."""
    cpu = {"device": "AMD EPYC", "peak": None, "peak_source": None, "threads": 1}

    def of(sustained: float, best: float) -> dict[str, str]:
        matmul = [product(0, 70e9, **cpu), product(1, sustained, **cpu, best=best), product(2, 60e9, **cpu)]
        return level(judged(group(3, matmul=matmul), "fabric.matmul"))

    assert of(20e9, 66e9) == {}
    assert of(60e9, 22e9) == {}
    assert of(20e9, 22e9) == {"n1": "warn"}
    assert of(5e9, 6e9) == {"n1": "fail"}


def test_wrong_products() -> None:
    found = group(2, device="cuda", matmul=[product(0, 780e12), product(1, 790e12, right=False)])
    assert level(judged(found, "fabric.matmul")) == {"n1": "fail"}


def wrong(host: int, source: int | None) -> dict[str, Any]:
    return {
        "host": f"n{host}", "rank": host, "operation": "all-reduce", "dtype": "float32", "elements": 9,
        "index": 3, "got": None, "expected": 2.0, "wrong_elements": 1, "source": source,
        "source_host": None if source is None else f"n{source}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "blamed"),
    [
        ([(1, None)], {"n1"}),  # one rank's sum
        ([(0, None), (1, None), (2, None), (3, None)], {"n0", "n1", "n2", "n3"}),  # nobody can tell
        ([(0, None), (1, None), (2, None), (3, None), (0, 2), (1, 2)], {"n2"}),  # gathered parts tell
        ([(3, 0), (3, 1), (3, 2)], {"n3"}),  # it receives badly
        ([(0, 1)], {"n0", "n1"}),  # one message: either end
        ([(0, 1), (2, 3)], {"n0", "n1", "n2", "n3"}),
    ],
)
def test_wrong_values(seen: list[tuple[int, int | None]], blamed: set[str]) -> None:
    names = ["all-reduce", "all-gather", "reduce-scatter", "broadcast"]
    values = [{"operation": n, "method": "native", "ranks": 4, "elements": 9, "wrong": 0} for n in names]
    found = group(4, values=values, wrong=[wrong(*each) for each in seen])
    findings = judged(found, "fabric.values")
    assert level(findings) == dict.fromkeys(sorted(blamed), "fail")
    assert "got no number instead of 2.0 at element 3" in findings[min(blamed)].evidence


def disk(host: int, write: float, **more: Any) -> dict[str, Any]:
    return {
        "host": f"n{host}", "folder": "/data", "bytes": 1, "write": write, "read": 2e9, "method": "O_DIRECT",
        "cached": False, "right": True, **more,
    }  # fmt: skip


def test_disks() -> None:
    disks = [disk(0, 1e9), disk(1, 0.05e9), disk(2, 0.9e9)]
    found = group(4, disks=disks)
    assert level(judged(found, "fabric.disk")) == {"n1": "warn", "n3": "unknown"}
    disks = [disk(0, 1e9), disk(1, 0.5e9, right=False), disk(2, 0.9e9)]
    failure = {"question": "disk", "what": "/data: Read-only file system", "host": "n3", "ranks": [3]}
    broken = judged(group(4, disks=disks, failures=[failure]), "fabric.disk", write_at_least_mb=950)
    assert level(broken) == {"n1": "fail", "n2": "fail", "n3": "fail"}
    assert broken["n3"].evidence == "/data: Read-only file system"


def test_copies() -> None:
    def copy(host: int, gb: float) -> dict[str, Any]:
        rate = seconds(1 / (gb * 1e9))
        return {"host": f"n{host}", "rank": host, "bytes": 1, "to_device": seconds(2e-11), "to_host": rate}

    assert set(level(judged(group(2), "fabric.copy")).values()) == {"not applicable"}
    copies = [copy(0, 50), copy(1, 48), copy(2, 12)]
    found = group(3, device="cuda", matmul=[product(n, 7e14) for n in range(3)], copies=copies)
    slow = judged(found, "fabric.copy")
    assert level(slow) == {"n2": "warn"}
    assert slow["n2"].evidence.startswith("rank 2: 12 GB/s from the device, 25 %")
    assert level(judged(found, "fabric.copy", at_least_gb=49)) == {"n1": "fail", "n2": "fail"}


def test_mpi() -> None:
    hello = {
        "command": ["mpirun", "--mca", "plm_rsh_args", "-F a", "python3", "-c", "PROGRAM"],
        "hosts": ["n0", "n1"],
        "asked": 2,
        "summed": True,
        "seconds": 1,
    }
    assert set(level(judged(group(2), "fabric.mpi")).values()) == {"not applicable"}
    assert level(judged(group(2, launcher="openmpi", mpi=hello), "fabric.mpi")) == {}
    for trouble in ({"problem": "mpirun ended with exit code 1"}, {"summed": False}):
        found = group(2, launcher="openmpi", mpi={**hello, **trouble})
        failed = judged(found, "fabric.mpi")
        assert set(level(failed).values()) == {"fail"}
        assert failed["n0"].remedy == "mpirun --mca plm_rsh_args '-F a' hostname"


def test_what_was_not_asked_is_not_judged() -> None:
    found = group(3, asked=["points"], pairs=links(3, 10, {}))
    context = Context(
        expects={each.name: each.expects for each in CHECKS}, slots={}, world_size=3, gpus_expected=None,
        transport={}, recipe={}, launcher="ssh",
    )  # fmt: skip
    checks = {f.check for f in judge_group(found, context)}
    assert checks == {"fabric.rendezvous", "fabric.ranks", "fabric.bandwidth", "fabric.latency"}


# Who is to blame, from what ranks said.


def collected(events: list[tuple[int, dict[str, Any]]], outcome: Outcome | None = None) -> GroupFabric:
    """Three hosts of one rank each, of which each event's first number is the speaker."""
    places = place([(Host(f"n{number}"), 1) for number in range(3)])
    collector = Collector(places, FabricRequest(), "cpu", lambda host, event: None)
    for rank in range(3):
        collector.event(f"n{rank}", json.dumps({"kind": "ready", "rank": rank, "device": "cpu"}))
        collector.event(f"n{rank}", json.dumps({"kind": "met", "rank": rank, "connect": 0.1}))
    for rank, event in events:
        collector.event(f"n{rank}", json.dumps({"rank": rank, **event}))
    return collector.result(outcome or Outcome(), **ABOUT)


def begin(question: str) -> dict[str, Any]:
    return {"kind": "begin", "question": question}


def missing(question: str, *ranks: int) -> dict[str, Any]:
    return {"kind": "missing", "question": question, "ranks": list(ranks)}


DONE = {"kind": "done"}


def blamed(found: GroupFabric) -> dict[str, str]:
    return {each.host: each.what for each in found.failures if each.blamed}


def test_a_killed_rank_is_blamed_and_its_victims_are_not() -> None:
    reset = {"kind": "failed", "question": "all-reduce", "what": "RuntimeError: Connection reset by peer"}
    found = collected(
        [
            *((rank, begin("all-reduce")) for rank in range(3)),
            (1, {"kind": "ended", "code": -9}),
            (0, reset),
            (2, reset),
            (0, missing("all-reduce", 1)),
            (0, DONE),
            (2, DONE),
        ]
    )
    assert blamed(found) == {"n1": "rank 1 was killed by SIGKILL"}
    assert {each.host for each in found.failures if not each.blamed} == {"n0", "n2"}
    ranks = judged(found, "fabric.ranks")
    assert level(ranks) == {"n1": "fail"}
    assert ranks["n1"].remedy is not None and "out-of-memory" in ranks["n1"].remedy
    assert ranks["n0"].evidence.startswith("its ranks failed only because another host failed")


def test_a_host_cut_off_from_the_others_is_outvoted() -> None:
    """It misses the first host, which holds the store; both others miss it."""
    found = collected(
        [(0, missing("values", 2)), (1, missing("values", 2)), (2, missing("values", 0)), *_done(3)]
    )
    assert set(blamed(found)) == {"n2"}


def test_a_rank_that_never_ends() -> None:
    found = collected(
        [(1, begin("disk")), (0, DONE), (2, DONE)], Outcome(stopped="timeout: nothing more was heard of n1")
    )
    assert blamed(found) == {"n1": "rank 1 did not finish, last at disk"}


def test_a_lost_host() -> None:
    found = collected([(2, begin("points")), (0, DONE), (1, DONE)], Outcome(lost={"n2": "silent for 15 s"}))
    assert blamed(found) == {"n2": "the host was lost: silent for 15 s"}


def test_what_all_report_is_told_of_all() -> None:
    """A question that fails everywhere, with everyone there: nobody is an echo of somebody."""
    failed = {"kind": "failed", "question": "broadcast", "what": "RuntimeError: out of memory"}
    found = collected([*((rank, failed) for rank in range(3)), *_done(3)])
    assert set(blamed(found)) == {"n0", "n1", "n2"}


def test_lines_that_are_no_events_are_noted() -> None:
    places = place([(Host("n0"), 1)])
    collector = Collector(places, FabricRequest(), "cpu", lambda host, event: None)
    lines = (
        '{"kind": "sweep", "rank',
        "[1]",
        '{"kind": "disk", "rank": 0}',
        '{"rank": 0}',
        '{"kind": 1, "rank": 0}',
    )
    for line in ("", *lines):
        collector.event("n0", line)
    assert collector.in_vain() is None
    notes = collector.result(Outcome(), **ABOUT).notes
    assert len(notes) == 5 and all(note.startswith("n0: ") for note in notes)


def _done(count: int) -> list[tuple[int, dict[str, Any]]]:
    return [(rank, DONE) for rank in range(count)]


# MPI.


def test_the_mpirun_command() -> None:
    hosts = parse_hosts("alice@node1:8,node2").hosts
    argv = mpi_hello_argv(hosts, Launch(ssh_options=["-F", "config"], options=["--tag-output"]), "python3")
    assert argv[0] == "mpirun" and argv[argv.index("--host") + 1] == "alice@node1:1,node2:1"
    assert argv[argv.index("-np") + 1] == "2" and "--tag-output" in argv
    assert argv[argv.index("plm_rsh_args") + 1].endswith("-F config")
    assert argv[-3:-1] == ["python3", "-c"]


def hello(out: str, code: int = 0, err: str = "") -> Any:
    shell = FakeShell(answer_run=lambda argv: (code, out.encode(), err.encode()))
    return mpi_hello(parse_hosts("a,b").hosts, Launch(), "python3", 5, shell)


def test_what_mpi_ranks_say() -> None:
    lines = [
        json.dumps({"rank": rank, "size": 2, "host": name, "sum": 3}) for rank, name in ((1, "b"), (0, "a"))
    ]
    text = "".join(f"muster-mpi {line}\n" for line in lines)
    assert [each["host"] for each in read_hello("Welcome!\n" + text + "muster-mpi {torn\n")] == ["a", "b"]
    assert (hello(text).problem, hello(text).summed, hello(text).hosts) == (None, True, ["a", "b"])
    assert hello(text.replace('"sum": 3', '"sum": 2')).summed is False
    assert hello(text.replace('"sum": 3', '"sum": null')).summed is None
    assert hello(text.splitlines()[0]).problem == "1 of 2 ranks answered"
    assert hello("", 1, "-----\nORTE was unable to start\n").problem == (
        "mpirun ended with exit code 1: ORTE was unable to start"
    )
