"""What the instruments say is what happened: counted again here, by other means."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.result import Result
from muster.results.speed import throughput
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.worker.context import read_context
from tests.support import losses, needs_torch, run, said

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

DDP = ["engine.name=ddp", "engine.zero=0", "batch.micro=4", "batch.accumulation=2"]
SAMPLES, GLOBAL, STEPS, WINDOW, EVALUATE = 400, 16, 25, 10, 5
PREFIX, MAX_SOURCE, MAX_TARGET = "translate to SQL: ", 40, 36  # some samples are cut


@pytest.fixture(scope="module")
def epoch(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """Exactly one epoch on two ranks, accumulated; evaluations inside windows and at their ends."""
    needs_torch()
    settings = [
        "train.max_steps=null",
        "train.epochs=1",
        "data.generated.validation=203",
        f"data.max_source={MAX_SOURCE}",
        f"data.max_target={MAX_TARGET}",
        f"measure.window={WINDOW}",
        f"evaluate.every={EVALUATE}",
        "evaluate.batch=4",
        "checkpoint.every=10",
    ]
    done, result = run(tmp_path_factory.mktemp("epoch") / "run", "local:2", *DDP, *settings)
    assert result.status == "succeeded", result.failure
    return done, result


def windows_by_rank(done: RunFolder) -> dict[int, list[events.Window]]:
    """Each rank's windows in their order."""
    found: dict[int, list[events.Window]] = defaultdict(list)
    for window in said(done, events.Window):
        found[window.rank].append(window)
    assert set(found) == {0, 1}
    return found


def test_steps_and_samples(epoch: tuple[RunFolder, Result]) -> None:
    done, result = epoch
    assert (result.steps, result.epochs, result.samples) == (STEPS, 1.0, SAMPLES)
    assert STEPS * GLOBAL == SAMPLES
    for windows in windows_by_rank(done).values():
        assert [window.step for window in windows] == [10, 20, 25]
        assert [window.steps for window in windows] == [10, 10, 5]
        assert [len(window.step_seconds) for window in windows] == [10, 10, 5]
        assert sum(window.samples for window in windows) == SAMPLES / 2
        assert all(window.skipped == 0 for window in windows)
    assert {event.total_steps for event in said(done, events.Started)} == {STEPS}


def test_tokens_are_those_of_the_data(epoch: tuple[RunFolder, Result]) -> None:
    """Every training sample once, its tokens as the saved tokenizer counts them, the cut ones as cut."""
    from transformers import AutoTokenizer

    done, _ = epoch
    tokenizer = AutoTokenizer.from_pretrained(str(done.model))
    file = next((done.path / "data").glob("train*"))
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == SAMPLES
    lengths = [
        (len(tokenizer(PREFIX + row["question"])["input_ids"]), len(tokenizer(row["sql"])["input_ids"]))
        for row in rows
    ]
    real = sum(min(source, MAX_SOURCE) + min(target, MAX_TARGET) for source, target in lengths)
    cut = sum(source > MAX_SOURCE or target > MAX_TARGET for source, target in lengths)
    assert 0 < cut < SAMPLES
    windows = said(done, events.Window)
    assert sum(window.tokens for window in windows) == real
    assert all(window.tokens <= window.padded_tokens for window in windows)
    assert sum(window.padded_tokens for window in windows) <= SAMPLES * (MAX_SOURCE + MAX_TARGET)
    data = said(done, events.DataRead)[0]
    assert (data.train, data.validation) == (SAMPLES, 203)
    assert data.cut >= cut  # held-out ones too


def test_getting_batches_is_a_part_of_the_time(epoch: tuple[RunFolder, Result]) -> None:
    done, result = epoch
    for windows in windows_by_rank(done).values():
        assert all(0 < (window.data_seconds or 0) < window.seconds for window in windows)
    assert result.throughput is not None and 0 < (result.throughput.data_share or 0) < 1


def test_where_the_time_went(epoch: tuple[RunFolder, Result]) -> None:
    """Windows hold no evaluation and no saving, and everything together is no longer than the clock went."""
    done, result = epoch
    assert [event.step for event in said(done, events.Evaluated)] == [5, 10, 15, 20, 25]
    evaluations = {event.step: event.seconds for event in said(done, events.Evaluated)}
    ends = {event.rank: event for event in said(done, events.Done)}
    begins = {event.rank: event.time for event in said(done, events.Phase) if event.name == "train"}
    for rank, windows in windows_by_rank(done).items():
        seconds = ends[rank].seconds
        assert sum(window.seconds for window in windows) == pytest.approx(seconds["training"])
        assert sum(seconds.values()) <= ends[rank].time - begins[rank]
        # Between the ends of the first and the last window: steps, and the evaluations that rank 0 timed.
        passed = windows[-1].time - windows[0].time
        evaluating = sum(evaluations[step] for step in (10, 15, 20))
        assert sum(window.seconds for window in windows[1:]) <= passed - 0.5 * evaluating
        assert sum(sum(window.step_seconds) for window in windows[1:]) <= passed - 0.5 * evaluating
        assert seconds["evaluation"] >= 0.5 * sum(evaluations.values())
    assert result.seconds.training is not None
    assert result.seconds.training <= result.seconds.total
    assert result.evaluation_loss == said(done, events.Evaluated)[-1].loss


def test_the_held_out_loss_is_that_of_plain_pytorch(epoch: tuple[RunFolder, Result]) -> None:
    """One sample at a time with the saved model: a true mean over tokens, though 203 samples are no whole
    batches for two ranks."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    done, result = epoch
    tokenizer = AutoTokenizer.from_pretrained(str(done.model))
    model = AutoModelForSeq2SeqLM.from_pretrained(str(done.model)).eval()
    file = next((done.path / "data").glob("validation*"))
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 203
    summed, count = 0.0, 0
    for row in rows:
        source = tokenizer(PREFIX + row["question"])["input_ids"]
        target = tokenizer(row["sql"])["input_ids"]
        source = source if len(source) <= MAX_SOURCE else [*source[: MAX_SOURCE - 1], source[-1]]
        target = target if len(target) <= MAX_TARGET else [*target[: MAX_TARGET - 1], target[-1]]
        moved = [tokenizer.pad_token_id, *target[:-1]]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([moved])).logits
        summed += torch.nn.functional.cross_entropy(logits[0], torch.tensor(target), reduction="sum").item()
        count += len(target)
    assert result.evaluation_loss == pytest.approx(summed / count, rel=1e-5)
    assert result.perplexity is None  # which is for language models


# --- the figures of single steps -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stepwise(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Eight steps, one to a window, the first five of them warm-up."""
    needs_torch()
    settings = ["train.max_steps=8", "train.warmup=5", "train.learning_rate=0.001", "measure.window=1"]
    uncut = ["data.max_source=300", "data.max_target=300"]
    done, result = run(tmp_path_factory.mktemp("stepwise") / "run", "local:2", *DDP, *settings, *uncut)
    assert result.status == "succeeded", result.failure
    return done


def test_warm_up_and_decay_are_linear(stepwise: RunFolder) -> None:
    rates = [log.learning_rate for log in said(stepwise, events.Log)]
    expected = [0.001 * min(step / 5, (8 - step) / 3) for step in range(8)]
    assert rates == pytest.approx(expected)


def test_first_losses_are_those_of_plain_pytorch(
    stepwise: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untrained model, one sample at a time, without padding: sum over the global batch / its tokens.

    The first step's rate is 0, so that the second step's loss is the untrained model's too.
    """
    import torch

    from muster.worker.data.sampler import GroupedSampler
    from muster.workloads.seq2seq.model import make_model
    from muster.workloads.seq2seq.train import load_pairs, make_tokenizer

    spec = json.loads(next(stepwise.path.glob("hosts/*/spec.json")).read_text())
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    context = read_context(spec)
    pairs = load_pairs(context.recipe.data, context.cache, may_write=False, seed=0).train
    tokenizer = make_tokenizer(context, pairs)
    model = make_model(context, tokenizer).eval()
    rows = [(tokenizer(PREFIX + p.question)["input_ids"], tokenizer(p.expected)["input_ids"]) for p in pairs]
    assert max(len(part) for row in rows for part in row) <= 300
    lengths = [len(source) + len(target) for source, target in rows]
    parts = [(len(source), len(target)) for source, target in rows]
    order = list(GroupedSampler(parts, GLOBAL, context.recipe.train.seed))
    expected = []
    for batch in (order[:GLOBAL], order[GLOBAL : 2 * GLOBAL]):
        summed, count = 0.0, 0
        for index in batch:
            source, target = (torch.tensor([part]) for part in rows[index])
            moved = torch.cat([torch.tensor([[tokenizer.pad_token_id]]), target[:, :-1]], dim=1)
            with torch.no_grad():
                logits = model(input_ids=source, decoder_input_ids=moved).logits
            summed += torch.nn.functional.cross_entropy(logits[0], target[0], reduction="sum").item()
            count += target.numel()
        expected.append(summed / count)
    assert losses(stepwise)[:2] == pytest.approx(expected, rel=1e-5)
    assert losses(stepwise)[2] != pytest.approx(expected[1], rel=1e-5)
    windows = said(stepwise, events.Window)
    assert sum(w.tokens for w in windows if w.step == 1) == sum(lengths[index] for index in order[:GLOBAL])


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    settings = ["train.max_steps=1000", "train.learning_rate=1e38", "train.clip=0", "train.warmup=0"]
    done, result = run(tmp_path / "run", "local:2", *DDP, *settings, "measure.window=1")
    assert result.status == "failed"
    assert result.steps < 1000
    assert result.failure is not None
    assert result.failure.what.startswith(("the loss is nan at step", "the loss is inf at step"))
    assert "train.learning_rate" in (result.failure.hint or "")
    assert (result.failure.id, result.failure.usage) == ("loss_nan", False)
    assert not done.model.exists()
    assert all(loss is None or math.isfinite(loss) for loss in losses(done))


def metered(trainer: Any, told: list[dict[str, Any]], window: int) -> tuple[Any, Any]:
    """A trainer with a meter for micro-batches of eight samples, and that meter."""
    from muster.worker.engine import EngineRuntime
    from muster.worker.feed import Feed
    from muster.worker.instruments.attach import instrumented
    from muster.worker.instruments.meter import Meter
    from muster.worker.workloads.base import Built, Counts

    recipe = SimpleNamespace(measure=SimpleNamespace(window=window, profiled=range(0)))
    context: Any = SimpleNamespace(
        emit=lambda kind, **fields: told.append(fields), device="cpu", recipe=recipe, engine=EngineRuntime()
    )
    feed = Feed("cpu")
    meter = Meter(context, Built(trainer, lambda inputs: Counts(8, 8, 8), 8, []), feed, None, None)
    trainer.__class__ = instrumented(type(trainer), feed, meter)
    return trainer, meter


@pytest.mark.parametrize("fused", [True, False])
def test_skipped_steps_are_in_no_second(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    """A loss scaler's steps use no sample, and a step that did is as fast as without them."""
    needs_torch()
    import torch
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    from muster.worker.instruments import clock

    told: list[dict[str, Any]] = []
    passed = [100.0]  # seconds of a clock of its own, which moves in steps alone
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: passed[0]))
    accelerator = Accelerator(cpu=True)
    weight = torch.nn.Parameter(torch.ones(3))
    accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    optimizer = AcceleratedOptimizer(torch.optim.AdamW([weight], fused=fused), scaler=scaler)

    class Stepping(SimpleNamespace):
        def training_step(self, model: Any, inputs: float) -> None:
            passed[0] += inputs
            scaler.scale((weight * (math.inf if inputs == 0.2 else 1.0)).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

    trainer, meter = metered(Stepping(accelerator=accelerator, model=weight), told, 5)
    meter.on_train_begin(None, None, None)
    for step, seconds in enumerate((0.2, 0.05, 0.05, 0.2, 0.05, 0.2, 0.2, 0.05, 0.05, 0.05), 1):
        trainer.training_step(None, seconds)
        state = SimpleNamespace(global_step=step, max_steps=10)
        meter.on_step_end(None, state, SimpleNamespace(should_save=False, should_training_stop=False))
    windows = [events.Window(time=0.0, rank=0, **fields) for fields in told if "step_seconds" in fields]
    assert [(each.steps, each.skipped, each.samples) for each in windows] == [(5, 2, 24), (5, 2, 24)]
    assert meter.total_skipped == 4
    assert [len(each.step_seconds) for each in windows] == [3, 3]
    found = throughput([[each] for each in windows], warmup=0, world_size=1)
    assert found is not None and found.measured_steps == 6
    assert 8 / found.samples_per_second == pytest.approx(0.05)  # of a step of eight samples


@pytest.mark.parametrize("ahead", [False, True])
def test_what_getting_batches_takes(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    """All of it and nothing else, by a clock that moves a second for a batch and three for a micro-step;
    also where a window is written after the next micro-step."""
    needs_torch()
    from muster.worker.instruments import clock
    from muster.worker.later import DeferredWork

    told: list[dict[str, Any]] = []
    passed, later = [100.0], DeferredWork("cpu")
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: passed[0]))

    def batches() -> Iterator[str]:
        for _ in range(7):
            passed[0] += 1
            yield "batch"

    class Loading(SimpleNamespace):
        def get_batch_samples(
            self, source: Iterator[str], number: int, device: str
        ) -> tuple[list[str], None]:
            passed[0] += 0.5  # it counts tokens, which is no loading
            return list(itertools.islice(source, number)), None

        def training_step(self, model: Any, inputs: Any) -> None:
            passed[0] += 3
            later.drain()

    accelerator = SimpleNamespace(scaler=None)
    trainer, meter = metered(
        Loading(accelerator=accelerator, later=later, runs_ahead=lambda: ahead and step < 4), told, 2
    )
    meter.on_train_begin(None, None, None)
    source = batches()
    for step in range(1, 5):  # two micro-steps each, but for the last one, where a single batch is left
        got, _ = trainer.get_batch_samples(source, 2, "cpu")
        assert got == ["batch"] * (2 if step < 4 else 1)
        for each in got:
            trainer.training_step(None, each)
        meter.on_step_end(
            None,
            SimpleNamespace(global_step=step, max_steps=4),
            SimpleNamespace(should_save=False, should_training_stop=False),
        )
        assert sum("step_seconds" in fields for fields in told) == (0, 1 - ahead, 1, 2)[step - 1]
    windows = [events.Window(time=0.0, rank=0, **fields) for fields in told if "step_seconds" in fields]
    assert [each.data_seconds for each in windows] == [4, 3]
    assert [each.seconds for each in windows] == [2 * 8.5, 8.5 + 4.5]
