"""What a trainer puts off until the next step is launched is what it says at once, in the same order."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.store import events

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from muster.worker import trainer as training  # noqa: E402
from muster.worker.context import Emitter  # noqa: E402
from muster.worker.engine import EngineRuntime  # noqa: E402
from muster.worker.feed import Feed  # noqa: E402
from muster.worker.instruments.attach import instrumented  # noqa: E402
from muster.worker.instruments.clock import DeviceClock  # noqa: E402
from muster.worker.instruments.computing import Computing  # noqa: E402
from muster.worker.instruments.flops import FlopsCounter  # noqa: E402
from muster.worker.instruments.logbook import LogCallback  # noqa: E402
from muster.worker.instruments.meter import Meter, StepClock  # noqa: E402
from muster.worker.later import DeferredWork, Scalars  # noqa: E402
from muster.worker.workloads.base import Built, Counts  # noqa: E402

STEPS, WINDOW = 9, 2
TIMES = {"time", "seconds", "step_seconds", "forward_seconds", "parts", "data_seconds", "resident_peak"}

RATES = ("_runtime", "_per_second")  # of Transformers


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


def context_of(emit: Any, window: int, profiled: range = range(0)) -> Any:
    """What instruments ask."""
    recipe = SimpleNamespace(
        measure=SimpleNamespace(window=window, profiled=profiled),
        train=SimpleNamespace(checkpointing=False, max_minutes=None),
    )
    return SimpleNamespace(emit=emit, main=True, device="cpu", recipe=recipe, engine=EngineRuntime())


def trained(folder: Path, launched: list[tuple[int, int]], **given: Any) -> list[dict[str, Any]]:
    """The events of a run. `launched`: of each window its step, and the passes that were launched by then."""
    data = [{"x": [n, 1.0, -n, 0.5 * n], "labels": n % 3} for n in range(40)]
    breaks, scale = given.pop("breaks", None), given.pop("scale", 1.0)
    skips, profiled = given.pop("skips", False), given.pop("profiled", range(0))
    data = [{"x": [scale * each for each in row["x"]], "labels": float(row["labels"])} for row in data]  # type: ignore[attr-defined]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, use_cpu=True,
        gradient_accumulation_steps=2, report_to=[], learning_rate=0.1, disable_tqdm=True,
        logging_steps=WINDOW, logging_nan_inf_filter=False, **given,
    )  # fmt: skip
    emit = Emitter(folder / "rank0.events.jsonl", rank=0, attempt=1)
    model = Line(breaks)
    sampler = torch.utils.data.SequentialSampler(data)
    trainer = training.Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data[:4], sampler=sampler
    )

    def record(kind: Any, **content: Any) -> None:
        if kind is events.Window:
            launched.append((content["step"], model.passes))
        emit(kind, **content)

    if skips:
        trainer.accelerator.scaler = Scaler()
    context = context_of(record, WINDOW, profiled)
    trainer.add_callback(LogCallback(context))

    def count(inputs: Any) -> Counts:
        return Counts(len(inputs["x"]), (inputs["x"] > 1).sum(), 4 * len(inputs["x"]))

    feed, flops = Feed("cpu"), FlopsCounter(context, model)
    meter = Meter(context, Built(trainer, count, len(data), []), feed, flops, Computing("cpu"))
    trainer.add_callback(meter)
    trainer.__class__ = instrumented(type(trainer), feed, meter)
    try:
        trainer.train()
    finally:
        lines = (folder / "rank0.events.jsonl").read_text(encoding="utf-8").splitlines()
        said = [vars(events.parse_event(line)) for line in lines]
    kept = [*said, *trainer.state.log_history]  # what a checkpoint holds, and the mean loss of all steps
    return [
        {name: each for name, each in about.items() if name not in TIMES and not name.endswith(RATES)}
        for about in kept
    ]


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
        {"skips": True},
    ],
)
def test_the_same_events_in_the_same_order(tmp_path: Path, ahead: Any, given: dict[str, Any]) -> None:
    said, launched = {}, {}
    for on in (False, True):
        ahead(on)
        (folder := tmp_path / str(on)).mkdir()
        said[on] = trained(folder, launched.setdefault(on, []), **given)
    assert said[True] == said[False]
    windows = [each for each in said[True] if "skipped" in each]
    skipped = sum(each["skipped"] for each in windows)
    assert skipped == (STEPS // 3 if "skips" in given else 0)
    assert sum(each["samples"] for each in windows) == 4 * (STEPS - skipped)  # two times two
    assert all(passes == 2 * step for step, passes in launched[False])
    later = {step for step, passes in launched[True] if passes == 2 * step + 1}
    assert later and later < {step for step, _ in launched[True]}  # not the last one, nor one before a save
    assert 2 not in later  # the first one waits for its operations to be counted


def test_no_wait_for_a_window_is_in_a_profile(tmp_path: Path, ahead: Any) -> None:
    """Those before and of the profiled steps are written at once."""
    ahead(True)
    launched: list[tuple[int, int]] = []
    trained(tmp_path, launched, profiled=range(5, 8))
    assert launched == [(2, 4), (4, 8), (7, 14), (8, 17), (9, 18)]


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
    later = DeferredWork("cpu")
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
    later = DeferredWork("cuda")
    later.add(lambda: calls.append("a window"))
    later.add(lambda: calls.append("a log"))  # which reads what was copied behind the first mark
    calls.append("launched")
    later.drain()
    later.drain()
    assert calls == ["marked", "marked", "launched", "waited for the mark", "a window", "a log"]


class Scaler:
    """A loss scaler that throws every third step away, and halves its scale then."""

    def __init__(self) -> None:
        self.now, self.steps = torch.tensor(1024.0), 0
        self.get_scale, self.is_enabled = self.now.item, lambda: True

    def scale(self, loss: Any) -> Any:
        return loss

    def step(self, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure)

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def _get_scale_async(self) -> Any:
        self.steps += 1
        if self.steps % 3 == 0:
            self.now /= 2  # in its place, as PyTorch's
        return self.now


class Ticks(DeviceClock):
    """A GPU's, of which every moment is one after the last."""

    def __init__(self) -> None:
        super().__init__("cuda")
        self.moments = itertools.count()

    def now(self) -> int:
        return next(self.moments)

    def seconds(self, begin: int, end: int) -> float:
        return float(end - begin)


def test_what_follows_a_windows_end_is_the_next_windows() -> None:
    """A GPU has not computed it when the window is read: its moments cannot be."""
    model, row = torch.nn.Linear(1, 1), torch.ones(1)
    computing, feed = Computing("cpu"), Feed("cpu")
    computing.clock, feed.clock = Ticks(), Ticks()
    accelerator = SimpleNamespace(unwrap_model=lambda inner: inner)
    computing.attach(SimpleNamespace(model=model, accelerator=accelerator))
    batches = feed.over(iter(range(9)))
    readings = []
    for count in (2, 1, 3):
        for _ in range(count):
            next(batches)
            model(row)
        readings.append((computing.take(), feed.take()))
    model(row)
    read = [(passes(), waits()) for passes, waits in readings]
    assert read == [((1.0, {"forward": float(count)}), float(count)) for count in (2, 1, 3)]


class Device(StepClock):
    """Works on what it is given while the host goes on. `host`: its time; `free`: when all is done."""

    def __init__(self) -> None:
        self.host = self.free = 0.0
        super().__init__("cpu")

    def given(self, seconds: float) -> None:
        self.free = self.now() + seconds

    def now(self) -> float:
        return max(self.host, self.free)

    def wait(self) -> float:
        self.host = self.now()
        return self.host


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_no_second_of_a_device_counts_twice(window: int, ahead: bool) -> None:
    """Steps of a second, that the host launches in no time, and evaluations and saves of three and two."""
    windows: list[dict[str, Any]] = []
    later, args, state = DeferredWork("cpu"), None, SimpleNamespace(global_step=0, max_steps=12)
    trainer: Any = SimpleNamespace(
        later=later,
        runs_ahead=lambda: ahead and not control.should_save,
        accelerator=SimpleNamespace(scaler=None),
    )
    built = Built(trainer, lambda _: Counts(1, 1, 1), 12, [])
    context = context_of(lambda _, **content: windows.append(content), window)
    meter = Meter(context, built, Feed("cpu"), None, None)
    device = meter.clock = Device()
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    meter.on_train_begin(args, state, control)
    for step in range(1, 13):
        device.given(1.0)
        later.drain()
        state.global_step, control.should_save = step, step == 8
        meter.on_step_end(args, state, control)
        for due, paused, seconds in (
            (step % 3 == 0, meter.on_evaluate, 3.0),
            (step == 8, meter.on_save, 2.0),
        ):
            if due:
                later.drain()
                device.given(seconds)
                paused(args, state, control)
    assert meter.training_seconds == sum(each["seconds"] for each in windows) == 12.0
    assert (meter.evaluation_seconds, meter.saving_seconds) == (4 * 3.0, 2.0)
    assert device.wait() == 12.0 + 4 * 3.0 + 2.0


def test_a_skipped_step_counts_for_the_seconds_of_training_alone() -> None:
    """Of six steps, with 10, 20, ... tokens, a loss scaler skips the second and the last."""
    windows: list[dict[str, Any]] = []
    state = SimpleNamespace(global_step=0, max_steps=6)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    trainer: Any = SimpleNamespace(accelerator=SimpleNamespace(scaler=None))
    context = context_of(lambda _, **content: windows.append(content), 3)
    context.engine = SimpleNamespace(skipped_steps=lambda _: [0, 0, 1, 1, 1, 1, 2][state.global_step])
    built = Built(trainer, lambda inputs: Counts(2, 10 * inputs["step"], 100), 12, [])
    meter = Meter(context, built, Feed("cpu"), None, None)
    device = meter.clock = Device()
    meter.on_train_begin(None, state, control)
    for step in range(1, 7):
        meter.see({"step": step}, done=False)
        device.given(0.25 if step in (2, 6) else 1.0)
        state.global_step = step
        meter.on_step_end(None, state, control)
    names = ("steps", "skipped", "samples", "tokens", "padded_tokens", "seconds")
    assert [tuple(each[name] for name in names) for each in windows] == [
        (3, 1, 4, 40, 200, 2.0),
        (3, 1, 4, 90, 200, 2.0),
    ]
    assert meter.training_seconds == 4.5 and meter.total_skipped == 2


def test_numbers_may_be_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients' norm is the host's where FSDP keeps them there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    stack = torch.stack

    def on_one_device(tensors: list[Any]) -> Any:  # FakeTensorMode does not look, a device does
        assert len({each.device for each in tensors}) == 1
        return stack(tensors)

    monkeypatch.setattr(torch, "stack", on_one_device)
    with FakeTensorMode():
        Scalars([torch.ones((), device="cuda"), torch.ones(()), 3])
    assert Scalars([torch.tensor(1.0), 3, torch.tensor(2.0)]).values() == [1.0, 3, 2.0]


def test_numbers_are_copied_without_waiting() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    copies: list[bool] = []

    class Copies(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._overloadpacket is torch.ops.aten._to_copy:
                copies.append(bool(kwargs.get("non_blocking")))
            return func(*args, **(kwargs or {}))

    with FakeTensorMode(), Copies():
        Scalars([torch.ones((), device="cuda"), torch.ones(1, device="cuda")])
    assert copies == [True]


def test_numbers_are_those_of_the_moment() -> None:
    loss = torch.tensor(0.1)
    scalars = Scalars([loss, None, 3, torch.tensor([2.0])])
    loss.zero_()
    assert scalars.values() == [torch.tensor(0.1).item(), None, 3, 2.0]
    assert Scalars([True, 5]).values() == [True, 5]
