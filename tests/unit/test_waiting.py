"""What is waited for is said, and for how long."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from muster.cli.views import progress
from muster.cli.views.progress import ProgressView
from muster.cli.views.waiting import Waiting
from muster.core.job import Placement
from muster.store import events
from tests.support import wait_until


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    shown = io.StringIO()
    return Console(file=shown, force_terminal=terminal, soft_wrap=True, width=200, color_system=None), shown


def test_without_a_terminal_a_line_now_and_then() -> None:
    where, shown = console(terminal=False)
    with Waiting(where, every=0.05) as line:
        line.now("loading")
        assert wait_until(lambda: shown.getvalue().count("loading ...") >= 3, 20)
        line.now(None)
    told = shown.getvalue()
    line.now(None)
    assert shown.getvalue() == told


@pytest.mark.parametrize("terminal", [True, False])
def test_all_that_was_waited_for_stays_to_be_read(terminal: bool) -> None:
    where, shown = console(terminal=terminal)
    with Waiting(where) as line:
        for what in ("loading [model]", "preparing", None, "saving"):
            line.now(what)
    for what in ("loading [model] ...", "preparing ...", "saving ..."):
        assert what in shown.getvalue()


def phase(name: str, rank: int, **more: Any) -> events.Phase:
    return events.Phase(time=1.0, rank=rank, host=f"node{rank}", attempt=1, name=name, **more)


def test_what_any_rank_compiles_is_waited_for() -> None:
    """And what was waited for before, when the last one is done."""
    where, shown = console(terminal=False)
    with ProgressView(where) as view:
        for event in (
            phase("load", 0), phase("load", 1), phase("train", 0), phase("compile", 1, what="cpu_adam"),
            phase("compile", 0, what="cpu_adam"), phase("compiled", 0, what="cpu_adam"),
            phase("compiled", 1, what="cpu_adam"), phase("steps", 0),
        ):  # fmt: skip
            view(event)
    lines = [line.partition(" ...")[0].partition(" (")[0] for line in shown.getvalue().splitlines()]
    assert lines == [
        "loading data and model",
        "preparing the ranks",
        "compiling cpu_adam on node1",
        "compiling cpu_adam on node0",
        "preparing the ranks",
        "training",
    ]


def test_a_command_that_does_not_say_how_many_steps_there_will_be() -> None:
    where, shown = console(terminal=True)
    batch = SimpleNamespace(global_=1, micro=1, accumulation=1)
    job: Any = SimpleNamespace(
        world_size=1, placements=(Placement("node0", "node0", 1, 0),), batch=batch, decisions=(),
        recipe={"workload": "command"}, precision="fp32", device="cpu", resume_step=None, attempt=1,
    )  # fmt: skip
    with ProgressView(where) as view:
        view.announce(job)
        view(events.Progress(time=1.0, format="nanoGPT", step=7, loss=0.5, rate=None))
    assert "7 steps loss 0.5" in shown.getvalue()


def test_a_step_of_which_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET", -1.0)
    where, shown = console(terminal=False)
    view = ProgressView(where)
    view(events.Progress(time=1.0, format="Transformers", step=5))
    view(events.Progress(time=2.0, format="nanoGPT", step=6, not_finite="not finite"))
    assert shown.getvalue().splitlines() == ["step 5/?", "step 6/?: loss nan"]


def test_deepspeed_says_when_it_compiles(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the operator is not there yet; also where it fails."""
    pytest.importorskip("deepspeed")
    from deepspeed.ops.op_builder import builder

    from muster.engines.deepspeed import runtime as engine

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))

    def compiles(self: Any, verbose: bool = True) -> str:
        if self.name == "bad":
            raise RuntimeError("no compiler")
        (tmp_path / self.name / f"{self.name}.so").touch()
        return "loaded"

    monkeypatch.setattr(builder.OpBuilder, "jit_load", compiles)
    said: list[tuple[str, str]] = []
    context = SimpleNamespace(emit=lambda kind, name, what: said.append((name, what)))
    engine._announce_compiling(context)  # type: ignore[arg-type]
    load = builder.OpBuilder.jit_load
    assert load(SimpleNamespace(name="cpu_adam")) == "loaded"
    assert said == [("compile", "cpu_adam"), ("compiled", "cpu_adam")]
    assert load(SimpleNamespace(name="cpu_adam")) == "loaded"
    assert len(said) == 2
    with pytest.raises(RuntimeError):
        load(SimpleNamespace(name="bad"))
    assert said[2:] == [("compile", "bad"), ("compiled", "bad")]
