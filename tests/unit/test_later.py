"""What a trainer puts off until the next step is launched is what it says at once, in the same order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.store import events

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from muster.worker import trainer as training  # noqa: E402
from muster.worker.context import Emitter  # noqa: E402
from muster.worker.feed import Feed  # noqa: E402
from muster.worker.instruments.computing import Computing  # noqa: E402
from muster.worker.instruments.flops import FlopsCounter  # noqa: E402
from muster.worker.instruments.logbook import Logbook  # noqa: E402
from muster.worker.instruments.meter import Meter  # noqa: E402
from muster.worker.later import Later, Scalars  # noqa: E402
from muster.worker.workloads.base import Counts  # noqa: E402

STEPS, WINDOW = 9, 2
TIMES = {"time", "seconds", "step_seconds", "forward_seconds", "parts", "data_seconds", "resident_peak"}


class Broken(Exception):
    pass


class Line(torch.nn.Module):  # type: ignore[misc, name-defined]
    """`breaks`: the forward pass of training that ends the run."""

    def __init__(self, breaks: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.slope = torch.nn.Linear(4, 1)
        self.breaks, self.passes = breaks, 0

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        self.passes += self.training and x.device.type != "meta"
        if self.passes == self.breaks:
            raise Broken
        return {"loss": ((self.slope(x).squeeze(-1) - labels) ** 2).mean()}


def trained(folder: Path, launched: list[tuple[int, int]], **given: Any) -> list[dict[str, Any]]:
    """The events of a run. `launched`: of each window its step, and the passes that were launched by then."""
    data = [{"x": [n, 1.0, -n, 0.5 * n], "labels": n % 3} for n in range(40)]
    breaks, scale = given.pop("breaks", None), given.pop("scale", 1.0)
    data = [{"x": [scale * each for each in row["x"]], "labels": float(row["labels"])} for row in data]  # type: ignore[attr-defined]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, use_cpu=True,
        gradient_accumulation_steps=2, report_to=[], learning_rate=0.1, disable_tqdm=True,
        logging_steps=WINDOW, logging_nan_inf_filter=False, **given,
    )  # fmt: skip
    emit = Emitter(folder / "rank0.events.jsonl", rank=0, attempt=1)
    model = Line(breaks)
    trainer = training.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4])
    trainer.sampler = torch.utils.data.SequentialSampler(data)

    def record(kind: Any, **content: Any) -> None:
        if kind is events.Window:
            launched.append((content["step"], model.passes))
        emit(kind, **content)

    feed = Feed("cpu")
    feed.attach(trainer)
    trainer.add_callback(Logbook(record, main=True, max_minutes=None))  # type: ignore[arg-type]
    Meter(
        record,  # type: ignore[arg-type]
        lambda inputs: Counts(len(inputs["x"]), (inputs["x"] > 1).sum(), 4 * len(inputs["x"])),
        WINDOW,
        "cpu",
        FlopsCounter(record, model, checkpointing=False, main=True),  # type: ignore[arg-type]
        computing=Computing("cpu"),
        feed=feed,
    ).attach(trainer)
    try:
        trainer.train()
    finally:
        lines = (folder / "rank0.events.jsonl").read_text(encoding="utf-8").splitlines()
        said = [vars(events.parse_event(line)) for line in lines]
    return [{name: each for name, each in event.items() if name not in TIMES} for event in said]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a CPU be a device that computes while the host goes on, or not."""
    from accelerate.state import GradientState

    # One for the whole process, which a run that breaks off leaves within a step.
    monkeypatch.setattr(GradientState, "_shared_state", {})
    return lambda on: monkeypatch.setattr(training, "AHEAD", ("cpu",) if on else ())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"save_steps": 3, "save_strategy": "steps"},
        {"eval_steps": 3, "eval_strategy": "steps"},
        {"eval_strategy": "epoch"},
        {"lr_scheduler_type": "constant", "max_grad_norm": 0.5},
    ],
)
def test_the_same_events_in_the_same_order(tmp_path: Path, ahead: Any, given: dict[str, Any]) -> None:
    said, launched = {}, {}
    for on in (False, True):
        ahead(on)
        (folder := tmp_path / str(on)).mkdir()
        said[on] = trained(folder, launched.setdefault(on, []), **given)
    assert said[True] == said[False]
    assert all(passes == 2 * step for step, passes in launched[False])
    later = {step for step, passes in launched[True] if passes == 2 * step + 1}
    assert later and later < {step for step, _ in launched[True]}  # not the last one, nor one before a save
    assert 2 not in later  # the first one waits for its operations to be counted


@pytest.mark.parametrize("step", [4, 5])
def test_a_run_that_breaks_off_loses_nothing(tmp_path: Path, ahead: Any, step: int) -> None:
    """In the first pass after a window, whose figures are still to be read, or in the step after it."""
    said = {}
    for on in (False, True):
        ahead(on)
        (folder := tmp_path / str(on)).mkdir()
        with pytest.raises(Broken):
            trained(folder, [], breaks=2 * step + 1)
        lines = (folder / "rank0.events.jsonl").read_text(encoding="utf-8").splitlines()
        found = [events.parse_event(line) for line in lines]
        said[on] = [(type(each), getattr(each, "step", None)) for each in found]
    assert said[True] == said[False]
    assert said[True][-2:] == [(events.Window, 4), (events.Log, 4)]


def test_a_loss_that_is_no_number_ends_the_run_at_its_step(tmp_path: Path, ahead: Any) -> None:
    ahead(True)
    launched: list[tuple[int, int]] = []
    with pytest.raises(Exception, match=r"the loss is (nan|inf) at step \d+") as raised:
        trained(tmp_path, launched, scale=1e25)
    assert f"step {launched[-1][0]}" in str(raised.value)


def test_a_device_that_does_not_answer_hides_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.worker.later.PATIENCE", 0.05)
    done: list[int] = []
    later = Later("cpu")
    later.add(lambda: done.append(1))
    later.mark = SimpleNamespace(query=lambda: False)
    later.rescue()
    assert not done
    later.mark = SimpleNamespace(query=lambda: True, synchronize=lambda: None)
    later.add(lambda: done.append(2))
    later.rescue()
    later.rescue()
    assert done == [1, 2]


def test_only_what_the_work_reads_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is given more after the work was put off, and before it is done."""
    calls: list[str] = []
    mark = SimpleNamespace(
        record=lambda: calls.append("marked"), synchronize=lambda: calls.append("waited for the mark")
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda: mark)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("it waits for all"))
    later = Later("cuda")
    later.add(lambda: calls.append("done"))
    calls.append("launched")
    later.drain()
    later.drain()
    assert calls == ["marked", "launched", "waited for the mark", "done"]


def test_numbers_are_those_of_the_moment() -> None:
    loss = torch.tensor(0.1)
    scalars = Scalars([loss, None, 3, torch.tensor([2.0])])
    loss.zero_()
    assert scalars.values() == [torch.tensor(0.1).item(), None, 3, 2.0]
    assert Scalars([True, 5]).values() == [True, 5]
