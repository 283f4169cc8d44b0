"""Batches on their way to a GPU: what is asked of CUDA, in which order, and what is called waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.worker import feed as feeding  # noqa: E402
from muster.worker.instruments import clock  # noqa: E402
from muster.worker.instruments.attach import instrumented  # noqa: E402


class FakeCuda:
    """A device whose work is done `late` seconds after it was told; every call is written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.time = 0.0  # of the host
        self.done = 0.0  # when the device has done what it was told
        self.copy = 0.0  # seconds of a copy
        self.stream = "computing"

    def Stream(self) -> Any:
        return "copying"

    def current_stream(self) -> Any:
        computing = SimpleNamespace(device="cuda:0")
        computing.wait_stream = lambda other: self.calls.append(f"computing waits for {other}")
        return computing

    @contextmanager
    def in_stream(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def Event(self, *, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = max(self.time, self.done)

        event.record = record
        event.elapsed_time = lambda end: 1000 * (end.at - event.at)
        return event


@pytest.fixture()
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()

    def send(batch: Any, device: Any, *, non_blocking: bool) -> Any:
        assert non_blocking and device == "cuda:0"
        fake.calls.append(f"copied on {fake.stream}")
        if fake.copy:
            fake.done = max(fake.done, fake.time) + fake.copy
        return batch

    for name in ("Stream", "current_stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "stream", fake.in_stream)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda: pytest.fail("the host waits for the device between steps")
    )
    monkeypatch.setattr(feeding, "send_to_device", send)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: fake.calls.append("kept"), raising=False
    )
    monkeypatch.setattr(clock.time, "perf_counter", lambda: fake.time)
    return fake


def batches(cuda: FakeCuda, seconds: float) -> Iterator[Any]:
    for number in range(4):
        cuda.time += seconds
        yield {"input_ids": torch.tensor([number]), "more": [torch.zeros(1)], "places": "here"}


def test_a_copy_waits_for_no_step_and_a_step_for_its_copy(cuda: FakeCuda) -> None:
    feed = feeding.Feed("cuda")
    fed = feed.over(batches(cuda, 0.0))
    assert int(next(fed)["input_ids"]) == 0
    assert cuda.calls == ["copied on copying", "computing waits for copying", "kept", "kept"]
    assert [int(each["input_ids"]) for each in fed] == [1, 2, 3]


def test_waiting_is_the_time_in_which_the_device_has_nothing_to_do(cuda: FakeCuda) -> None:
    """A step takes the device 3 s and the host 1; a batch takes the host 1 s, or 5."""
    for seconds, idle in ((1.0, 1.0 + 0.0 + 0.0 + 0.0), (5.0, 5.0 + 3.0 + 3.0 + 3.0)):
        cuda.time = cuda.done = 0.0
        feed = feeding.Feed("cuda")
        for _ in feed.over(batches(cuda, seconds)):
            cuda.done = max(cuda.done, cuda.time) + 3
            cuda.time += 1
        assert feed.take()() == pytest.approx(idle)
        assert feed.take()() == 0


def test_a_copy_that_the_device_waits_for_counts(cuda: FakeCuda) -> None:
    cuda.copy = 2.0
    feed = feeding.Feed("cuda")
    for _ in feed.over(batches(cuda, 0.0)):
        cuda.done = max(cuda.done, cuda.time) + 3
        cuda.time += 1
    assert feed.take()() == pytest.approx(4 * 2.0)


def test_a_batch_of_transformers_own_kind_is_kept_too(cuda: FakeCuda) -> None:
    """A tokenizer's BatchEncoding is a mapping, and no dict."""
    from transformers import BatchEncoding

    batch = BatchEncoding({"input_ids": torch.zeros(1), "labels": torch.zeros(1)})
    list(feeding.Feed("cuda").over(iter([batch])))
    assert cuda.calls.count("kept") == 2


def test_the_loader_leaves_its_batches_where_they_are(cuda: FakeCuda) -> None:
    """Accelerate's would copy them on the stream that computes; on a CPU nothing changes."""
    for device, left in (("cuda", None), ("cpu", "cuda:0")):
        loader = SimpleNamespace(device="cuda:0")

        class Fetching:
            def get_batch_samples(self, source: Any, number: int) -> list[Any]:
                return [next(source) for _ in range(number)]

            def get_train_dataloader(self, loader: Any = loader) -> Any:
                return loader

        meter: Any = None
        trainer = instrumented(Fetching, feeding.Feed(device), meter)()
        assert trainer.get_train_dataloader().device == left
        assert len(trainer.get_batch_samples(batches(cuda, 0.0), 2)) == 2
