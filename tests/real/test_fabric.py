"""The group checks with real ranks over gloo: right values, figures, planted faults found and named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.checks import group as fabric
from muster.checks.base import Context, Finding, Level
from muster.checks.families.fabric import CHECKS, judge_group
from muster.core.errors import UsageError
from muster.core.fabric import GroupFabric
from muster.core.inventory import parse_hosts
from muster.core.launch import Launch
from muster.core.recipe import Recipe
from muster.fleet.launchers import local
from muster.inputs.read import Inputs
from muster.workloads.fabric.request import FabricRequest
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def context() -> Context:
    return Context(
        expects={check.name: check.expects for check in CHECKS},
        slots={}, world_size=None, gpus_expected=None, transport={}, recipe={}, launcher="local",
    )  # fmt: skip


def inputs(hosts: str, env: dict[str, str] | None = None, **launch: Any) -> Inputs:
    return Inputs(Recipe(launch=Launch(**launch)), parse_hosts(hosts), local, "local", env or {})


def measured(folder: Path, hosts: str, env: dict[str, str] | None = None, **asked: Any) -> GroupFabric:
    """The group checks on pretend hosts. Afterwards nothing is left in the folder that hosts work in."""
    needs_torch()
    given = inputs(hosts, env, workdir=str(folder / "work"), threads=1, device="cpu")
    result = fabric.measure(given, asked=FabricRequest(**asked))
    assert list((folder / "work").iterdir()) == []
    return result


def faulty(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, fault: str, **asked: Any
) -> GroupFabric:
    """The same, with ranks of which one has a planted fault."""
    monkeypatch.setattr(fabric, "WORKER", "tests.real.faulty_fabric")
    return measured(folder, hosts, {"PYTHONPATH": str(ROOT), "FAULT": fault}, **asked)


def at_least(findings: list[Finding], level: Level) -> dict[tuple[str, str], Finding]:
    order = [Level.PASS, Level.NOT_APPLICABLE, Level.UNKNOWN, Level.WARN, Level.FAIL]
    return {(f.check, f.host): f for f in findings if order.index(f.level) >= order.index(level)}


def test_everything_on_two_hosts(tmp_path: Path) -> None:
    """Every question is answered, every value is right, and a healthy group has nothing to complain of."""
    result = measured(tmp_path, "local:2x1", seconds=6, largest=4 * MIB, disk_bytes=16 * MIB)
    assert (result.failures, result.wrong, result.stopped) == ([], [], None)
    assert result.rendezvous.missing == [] and set(result.rendezvous.connect) == {"local0", "local1"}
    operations = {"all-reduce", "all-gather", "reduce-scatter", "broadcast"}
    assert {each.operation for each in result.values} == {*operations, "point-to-point"}
    per_rank = 2 * (1 + 3 + 1023 + 65_537)  # elements, in two types
    compared = {each.operation: each.elements for each in result.values}
    assert compared["all-reduce"] == compared["reduce-scatter"] == 2 * per_rank
    assert compared["all-gather"] == compared["broadcast"] == 4 * per_rank
    assert {each.operation for each in result.sweeps} == operations
    for each in result.sweeps:
        factor = {"all-reduce": 1.0, "broadcast": 1.0}.get(each.operation, 0.5)  # of two ranks
        assert each.busbw == pytest.approx(each.bytes / each.time.median * factor)
        assert len(each.time.seconds) >= 3
    reduced = [each.bytes for each in result.sweeps if each.operation == "all-reduce"]
    assert reduced == [1024 * 4**power for power in range(len(reduced))]
    assert [(each.source, each.target) for each in result.pairs] == [(0, 1), (1, 0)]
    assert {each.host for each in result.matmul if each.right and each.best >= each.sustained} == {
        "local0",
        "local1",
    }
    assert {each.host for each in result.disks if each.right} == {"local0", "local1"}
    findings = judge_group(result.model_dump(mode="json"), context())
    assert at_least(findings, Level.UNKNOWN) == {}
    skipped = {f.check for f in findings if f.level is Level.NOT_APPLICABLE}
    assert skipped == {"fabric.copy", "fabric.mpi"}


def test_four_ranks_on_one_host_meet_in_all_pairs(tmp_path: Path) -> None:
    """Ranks of one host talk with each other: 12 directions."""
    result = measured(tmp_path, "local:4", questions=("values", "points"), pairs="all", seconds=4)
    assert (result.failures, result.wrong) == ([], [])
    directions = {(each.source, each.target) for each in result.pairs}
    assert directions == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert all(each.ranks == 4 for each in result.values)


def test_a_wrong_sum_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of one rank's all-reduce: rank, host, index and both values are told."""
    result = faulty(tmp_path, monkeypatch, "local:3x1", "sum:1", questions=("values",), seconds=2)
    assert {(each.host, each.rank, each.index, each.elements) for each in result.wrong} == {
        ("local1", 1, 17, 1023)
    }
    assert all(each.got == (each.expected or 0) + 1 for each in result.wrong)
    failed = at_least(judge_group(result, context()), Level.WARN)
    assert set(failed) == {("fabric.values", "local1")}
    assert "rank 1 on local1" in failed["fabric.values", "local1"].evidence
    assert "at element 17" in failed["fabric.values", "local1"].evidence


def test_a_wrong_message_accuses_its_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both neighbours see wrong elements; the rank that both have in common is named."""
    asked = {"questions": ("values", "points"), "seconds": 3, "point_bytes": MIB}
    result = faulty(tmp_path, monkeypatch, "local:3x1", "message:2", **asked)
    assert {(each.host, each.source_host) for each in result.wrong} == {
        ("local0", "local2"),
        ("local1", "local2"),
    }
    named = {key for key in at_least(judge_group(result, context()), Level.WARN) if "values" in key[0]}
    assert named == {("fabric.values", "local2")}  # three ranks on two cores: links may be slow as well


def test_a_rank_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is stopped in a collective: the others give up, name it, and answer what they can alone."""
    asked = {"questions": ("values", "latency", "disk"), "seconds": 2, "patience": 4, "disk_bytes": 8 * MIB}
    result = faulty(tmp_path, monkeypatch, "local:3x1", "stop:1", **asked)
    failed = at_least(judge_group(result, context()), Level.WARN)
    assert set(failed) == {("fabric.ranks", "local1")}
    assert "last at values" in failed["fabric.ranks", "local1"].evidence
    assert {each.host for each in result.disks} == {"local0", "local2"}
    assert {each.host for each in result.failures if not each.blamed} <= {"local0", "local2"}


def test_what_failed_once_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are still there: a fresh group is formed, and the other questions are answered."""
    asked = {"questions": ("values", "latency", "points"), "seconds": 3, "patience": 8, "point_bytes": MIB}
    result = faulty(tmp_path, monkeypatch, "local:2x1", "once:1", **asked)
    broken = {each.host: each for each in result.failures if each.question == "values"}
    assert "planted: broken once" in broken["local1"].what
    assert len(result.latencies) == 1 and len(result.pairs) == 2


def test_what_stands_in_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend without reduce-scatter: right values by other means, and the result names them."""
    asked = {"questions": ("values", "reduce-scatter"), "seconds": 2, "largest": 64 * 1024}
    result = faulty(tmp_path, monkeypatch, "local:2x1", "unsupported:0", **asked)
    methods = {each.operation: each.method for each in result.values}
    assert methods["reduce-scatter"] == "all_reduce + slice" and methods["all-gather"] == "native"
    assert {each.method for each in result.sweeps} == {"all_reduce + slice"}
    assert (result.wrong, result.failures) == ([], [])


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    """It costs its own question alone, and is that host's finding."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    asked = {"questions": ("latency", "disk"), "seconds": 2, "disk_folder": str(blocked / "below")}
    result = measured(tmp_path, "local:2x1", **asked)
    failed = at_least(judge_group(result, context()), Level.WARN)
    assert set(failed) == {("fabric.disk", "local0"), ("fabric.disk", "local1")}
    assert len(result.latencies) == 1


def test_stopped_early(tmp_path: Path) -> None:
    """The caller's wish ends it; what was measured until then is there."""
    seen: list[str] = []
    needs_torch()
    result = fabric.measure(
        inputs("local:2x1", workdir=str(tmp_path), threads=1, device="cpu"),
        asked=FabricRequest(questions=("values", "all-reduce"), seconds=60),
        watch=lambda host, event: seen.append(event["kind"]),
        stop=lambda: "stopped by a test" if "sweep" in seen else None,
    )  # fmt: skip
    assert result.stopped == "stopped by a test"
    assert result.sweeps and result.failures == []
    levels = {f.level for f in judge_group(result, context()) if f.check == "fabric.ranks"}
    assert levels == {Level.UNKNOWN}
    assert list(tmp_path.iterdir()) == []


def test_a_host_without_torch(tmp_path: Path) -> None:
    """Refused before anything starts, with what to do."""
    given = inputs("local:2x1", workdir=str(tmp_path / "work"), python="/usr/bin/python3")
    with pytest.raises(UsageError, match="torch is not installed") as caught:
        fabric.measure(given)
    assert caught.value.host == "local0"
    assert not (tmp_path / "work").exists()


def test_small_messages_leave_large_ones_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with a quota of its cores one small operation takes 0.1 ms, and each of many 5 ms. By a clock
    of its own: a sweep of six sizes that has three seconds reaches the largest."""
    needs_torch()
    import torch

    from muster.workloads.fabric import collectives

    passed, said = [0.0], []

    def timed(team: Any, operation: Any, buffers: Any, count: int) -> float:
        one = 1e-4 if count == 1 else 5e-3
        one += buffers.target.numel() * 4 / 10e6
        passed[0] += one * count
        return one

    team = SimpleNamespace(
        rank=0, on_gpu=False, device=torch.device("cpu"), world_size=2, agree=lambda *values: list(values),
        asked=FabricRequest(smallest=1024, largest=MIB),
    )  # fmt: skip
    monkeypatch.setattr(collectives, "_timed", timed)
    monkeypatch.setattr(collectives, "time", SimpleNamespace(perf_counter=lambda: passed[0]))
    plain = collectives.Operation(collectives._in_place, lambda team, buffers: "native")
    monkeypatch.setitem(collectives.OPERATIONS, "all-reduce", plain)
    collectives.sweep(team, lambda kind, **told: said.append((kind, told)), "all-reduce", 3.0)
    assert [told["bytes"] for _, told in said] == [1024 * 4**power for power in range(6)]
    assert all(kind == "sweep" and 3 <= len(told["seconds"]) <= 5 for kind, told in said)
    assert passed[0] < 3.5
    said.clear()
    collectives.sweep(team, lambda kind, **told: said.append((kind, told)), "all-reduce", 0.4)
    assert said[-1][0] == "curtailed"
