"""The kit for a GPU machine: what is run, what is kept, and what goes on where it stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import kit, page, proof
from benchmarks.gpu.jobs import Failed
from benchmarks.gpu.kit import Figures, Machine, Piece, Results
from benchmarks.gpu.pieces import pieces

MACHINE = {
    "processor": "a CPU",
    "gpus": ["a GPU"],
    "cores": 2,
    "python": "3.12",
    "versions": {"torch": "2.11"},
}


def piece(name: str = "one", **more: Any) -> Piece:
    return Piece("proof", name, more.get("limit", 60.0), more.get("run", lambda machine: {"figure": 1}))


def ran(tmp_path: Path, run: Any) -> dict[str, Any]:
    (tmp_path / "folder").mkdir(exist_ok=True)
    kit.child(piece(run=run), True, tmp_path / "told.json", tmp_path / "folder", Results(tmp_path))
    found: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    return found


def test_every_piece_has_a_name_of_its_own_and_those_of_proof_come_first() -> None:
    names = [each.key for each in pieces()]
    assert len(names) == len(set(names)) and len([name for name in names if name.startswith("memory/")]) >= 24
    groups = list(dict.fromkeys(name.partition("/")[0] for name in names))
    assert groups == [group for group in page.GROUPS if group in groups]


def test_what_a_piece_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "before")

    def inapplicable(machine: Machine) -> Figures:
        machine.needs_cuda()
        return {}

    def failing(_: Machine) -> Figures:
        raise ValueError("no such kernel")

    assert ran(tmp_path, lambda machine: {"tiny": machine.tiny}) == {
        "status": "passed",
        "figures": {"tiny": True},
    }
    assert ran(tmp_path, inapplicable)["status"] == "not applicable"
    failed = ran(tmp_path, failing)
    assert failed["status"] == "failed" and "no such kernel" in failed["error"]
    assert Path.cwd() == tmp_path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = dict(MACHINE)
    monkeypatch.setattr(kit, "described", lambda tiny: found | {"tiny": tiny})
    monkeypatch.setattr(kit, "source", lambda: "code")
    return found


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, ends: dict[str, str], minutes: float = 9) -> list[str]:
    """Run pieces that end so; -> those that were begun, in order."""
    begun: list[str] = []

    def instead(each: Piece, results: Results, limit: float, tiny: bool, cut: bool) -> dict[str, Any]:
        begun.append(each.name)
        return {"status": ends[each.name], "seconds": 1.0}

    monkeypatch.setattr(kit, "run_piece", instead)
    kit.run_all([piece(name) for name in ends], Results(folder), minutes, False)
    return begun


def test_a_call_goes_on_where_the_last_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    ends = {"a": "passed", "b": "failed", "c": "not applicable", "d": "timed out"}
    assert run(monkeypatch, tmp_path, ends) == ["a", "b", "c", "d"]
    assert run(monkeypatch, tmp_path, ends | {"e": "passed"}) == ["e"]
    monkeypatch.setattr(kit, "source", lambda: "mended")
    assert run(monkeypatch, tmp_path, ends | {"b": "passed", "d": "timed out"}) == ["b", "d"]
    assert run(monkeypatch, tmp_path, ends) == []
    kept = Results(tmp_path).read("proof")
    assert kept["machine"] == machine | {"tiny": False}
    sources = [entry["source"] for entry in kept["pieces"].values()]
    assert sources == ["code", "mended", "code", "mended", "code"]


def test_a_piece_that_had_no_time_is_begun_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    assert run(monkeypatch, tmp_path, {"a": "passed"}, minutes=0.1) == []
    assert run(monkeypatch, tmp_path, {"a": "cut short"}) == ["a"]
    assert run(monkeypatch, tmp_path, {"a": "passed"}) == ["a"]


def test_results_of_another_machine_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    run(monkeypatch, tmp_path, {"a": "passed"})
    machine["gpus"] = ["another GPU"]
    with pytest.raises(SystemExit, match="another GPU"):
        run(monkeypatch, tmp_path, {"a": "passed", "b": "passed"})


def test_tiny_models_are_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    run(monkeypatch, tmp_path, {"a": "passed"})
    with pytest.raises(SystemExit, match="tiny"):
        kit.run_all([piece("a")], Results(tmp_path), 9, True)


def test_an_engine_is_held_against_the_run_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ddp in fp32, whose job is not run again for each engine."""
    begun: list[str] = []

    def short(machine: Machine, name: str, *more: str) -> dict[str, Any]:
        begun.append(name)
        loss = {"loss_first": 7.0, "loss_final": 6.0 if name == "run" else 6.1}
        return loss | {"throughput": {"step_seconds_median": 0.1}, "memory": {}, "planned": None}

    monkeypatch.setattr(proof, "_short", short)
    monkeypatch.setattr(proof, "events", lambda name: [{"kind": "started", "arithmetic": "fp32"}])
    engine = {each.name: each for each in proof.pieces()}
    machine = Machine("cpu", True, tmp_path, Results(tmp_path))
    with pytest.raises(Failed, match="apart"):
        engine["fsdp-fp32"].run(machine)
    assert begun == ["run", "base"]
    figures = engine["ddp-fp32"].run(machine)
    machine.results.add(engine["ddp-fp32"], MACHINE, {"status": "passed", "figures": figures})
    assert engine["fsdp-fp32"].run(machine)["apart"] == [0.0, 0.0]
    assert begun == ["run", "base", "run", "run"]


def test_a_piece_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "PATIENCE", 0.2)
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = f"{ignore}; print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline()
    assert not kit._wait(process, 0.1)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


def test_the_page_tells_what_was_measured_and_what_failed(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert "Nothing was measured" in page.page(results)
    rate = {"best": 8e14, "median": 7.5e14, "spread": 0.05}
    figures = {"flops_per_second": {"8192": rate}}
    results.add(
        Piece("ceiling", "matmul-bf16", 60, lambda _: {}), MACHINE, {"status": "passed", "figures": figures}
    )
    results.add(piece("ddp-fp32"), MACHINE, {"status": "failed", "error": "a traceback\nNCCL is not there"})
    told = page.page(results)
    assert "a GPU" in told and "| bf16 | 8192 | 800.0 | 750.0 | 5.0% |" in told
    assert "ddp-fp32: failed: NCCL is not there" in told and "a traceback" not in told
    assert "Memory" not in told
