"""Every command line that the GPU kit runs on a GPU, through the parsers that it meets there.

What starts processes is replaced by what keeps their arguments; the lines are those of the real kit, not of
the tiny one. `muster train` runs as far as its dry run for a host with a GPU that is not asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from benchmarks.gpu import cost, jobs, memory, proof, speed
from benchmarks.gpu.kit import Machine, Piece, Results
from benchmarks.gpu.pieces import pieces

from muster.cli import main
from muster.cli.app import app

RESULT: dict[str, Any] = {
    "loss_first": 7.0, "loss_final": 6.0, "attempt": 2, "steps": 20, "skipped_steps": 20, "samples": 0,
    "memory": {"allocator_peak": 1, "device_peak": 1}, "hosts": [{"gpu_percent_mean": 1.0}], "fabric": {},
    "throughput": {"samples_per_second": 1.0, "tokens_per_second": 1.0, "step_seconds_median": 1.0,
                   "data_share": 0.0},
    "flops": None, "precision": "bf16", "global_batch": 8, "evaluation_loss": 1.0, "planned": None,
    "quality": None, "profiles": [{"busy": 0.9}], "status": "succeeded",
    "hang": {"what": "rank 0 does nothing at stuck_here (loop.py:6)"},
}  # fmt: skip
CHECKED = {"hosts": [{"slots": 1, "verdict": "pass", "checks": []}], "group": None}
BY_LINES = ("proof", "profile", "speed")
OTHERS = ("ceiling", "levers", "memory", "cost")  # they start no program, or are looked at below


class Started:
    """A process that is never started."""

    returncode = 0

    def poll(self) -> int | None:
        return None

    def wait(self) -> int:
        return 0


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The arguments of what would have been started."""
    kept: list[list[str]] = []

    def output(argv: Sequence[str], *_: Any, **__: Any) -> str:
        kept.append(list(argv))
        if argv[2].startswith("benchmarks.gpu."):
            figures = {"samples_per_second": 1.0, "batch": 8, "precision": "bf16", "held_out_loss": 1.0}
            Path("peer.json").write_text(json.dumps(figures | {"profile": {}}))
        return json.dumps(CHECKED)

    def started(argv: Sequence[str], **_: Any) -> Started:
        kept.append(list(argv))
        return Started()

    def events(name: str) -> list[dict[str, Any]]:
        given = next((line for line in kept if name in line), [])
        words = [word.partition("=")[2] for word in given if word.startswith("precision=")]
        logs = [{"kind": "log", "step": step, "loss": 1.0} for step in range(1, 61)]
        return [{"kind": "started", "arithmetic": words[-1] if words else "fp32"}, *logs]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "_output", output)
    monkeypatch.setattr(proof, "subprocess", SimpleNamespace(Popen=started, STDOUT=None))
    for module in (jobs, proof):
        monkeypatch.setattr(module, "result", lambda name: RESULT)
    monkeypatch.setattr(proof, "events", events)
    monkeypatch.setattr(proof, "_saved", lambda name: True)
    monkeypatch.setattr(proof, "_ranks_of", lambda run: {})
    few, data_of = Machine("cpu", True, tmp_path, Results(tmp_path)), speed.data_of
    monkeypatch.setattr(speed, "data_of", lambda shape: data_of(speed.Shape(shape.row, few)))
    monkeypatch.setattr("muster.planner.plan.tracer", lambda *_: None)  # of seconds, with tests of its own
    return kept


def parsed(line: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Fails where a program would refuse its arguments."""
    if line[2].startswith("benchmarks.gpu."):
        from benchmarks.gpu import peers

        name, _, given = line[-3:]
        assert name in peers.PEERS
        peers.configured(peers.Work(**json.loads(given)))
        return
    assert tuple(line[:3]) == jobs.MUSTER
    verb, *words = line[3:]
    if verb == "run":
        words = words[: words.index("--")]
    if verb != "train":
        command = app.get_command(click.Context(app), verb)
        assert command is not None
        command.make_context(verb, list(words))
        return
    words = ["node1:1" if word.startswith("local:") else word for word in words]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--dry-run"])
    assert ended.value.code == 0, (words, capsys.readouterr().err)


def of(*groups: str) -> Iterator[Any]:
    for piece in pieces():
        if piece.group in groups:
            yield pytest.param(piece, id=piece.key)


@pytest.mark.parametrize("piece", [*of(*BY_LINES)])
def test_a_pieces_lines_are_understood(
    piece: Piece, lines: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if piece.name in ("smi", "clock", "cpu-job"):  # no line of Muster; the CPU's is the tiny kit's
        return
    piece.run(Machine("cuda", False, tmp_path, Results(tmp_path), seconds=0.0))
    assert lines
    for line in {tuple(line) for line in lines}:
        parsed(line, capsys)


def test_every_group_is_looked_at() -> None:
    assert {piece.group for piece in pieces()} <= {*BY_LINES, *OTHERS}


@pytest.mark.parametrize("point", memory.points(), ids=lambda point: point.name)
def test_a_points_overrides_are_understood(
    point: memory.Point, lines: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = point.overrides(Machine("cuda", False, tmp_path, Results(tmp_path)))
    parsed([*jobs.MUSTER, "train", "opt-benchmark", "--hosts", "local:1", *overrides], capsys)


def test_what_muster_costs_is_started_by_lines_that_are_understood(
    lines: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import job_start
    import overhead

    def timed(argv: list[str], device: str) -> dict[str, float]:
        lines.append(argv)
        return {"clock": 1.0, "processors": 1.0}

    monkeypatch.setattr(job_start, "timed", timed)
    machine = Machine("cuda", False, tmp_path, Results(tmp_path))
    cost.start(machine)
    ours = [line for line in lines if tuple(line[:3]) == jobs.MUSTER]
    assert ours and "launch.device=cuda" in ours[0]
    parsed(ours[0], capsys)
    for source, words in cost.SYNCED.values():
        common = [*cost.PLAIN, "engine.name=ddp", "engine.zero=0", "precision=bf16", "launch.device=cuda"]
        parsed([*jobs.MUSTER, "train", source, "--hosts", "local:1", *common, *words], capsys)
    for name in ("text2sql", "gpt2-124m", "digits"):
        context = overhead.context_of(name, 60, tmp_path / name, "cuda", "bf16")
        assert (context.device, context.precision) == ("cuda", "bf16")


def test_a_line_that_is_not_understood_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """As the option that `muster check` did not have."""
    with pytest.raises(Exception, match="--gpus"):
        parsed([sys.executable, "-m", "muster", "check", "local:1", "--json", "--gpus", "1"], capsys)
    with pytest.raises(AssertionError, match=r"no_such"):
        parsed([*jobs.MUSTER, "train", "demo", "--hosts", "local:1", "train.no_such=1"], capsys)
