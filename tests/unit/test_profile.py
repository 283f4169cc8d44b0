"""Where a step goes: what the reader finds in traces that Kineto writes here, and in hand-computed ones in
the forms that it writes on GPUs.

The forms with a GPU are those of pytorch/kineto: docs/traces/before_fix_trace.json (an H100, 2026: lower-case
categories, fractions of µs, ac2g, cuda_sync) and tb_plugin/test/gpu_metrics_input.json (a V100, 2021:
"Kernel", "Runtime", "Operator", whole µs, threads as text). Keys and their order are theirs, times are not.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.profile import DeviceWait, KernelTime, StepProfile
from muster.worker.instruments import kineto
from muster.worker.instruments.kineto import NoSummary, read, summarize

RECORDED = Path(__file__).parent / "traces"
HOST, DEVICE, BACKWARD = 392793, 0, 392801
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(cutlass::Params)"
BASE = 88437691101.719  # µs: a trace's times are large


class Cuda:
    """A trace as Kineto writes it with a GPU: times in µs from its begin."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def span(self, cat: str, name: str, start: float, end: float, thread: Any = HOST, **args: Any) -> None:
        pid = DEVICE if cat in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation") else HOST
        times = {"ts": BASE + start, "dur": end - start}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": thread, **times, "args": args}
        )

    def call(self, name: str, start: float, end: float, thread: int = HOST, cat: str = "cuda_runtime") -> int:
        self.correlation += 1
        self.span(cat, name, start, end, thread, cbid=211, correlation=self.correlation)
        return self.correlation

    def arrow(self, start: float, end: float, stream: int) -> None:
        known = {"id": self.correlation, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "s", **known, "pid": HOST, "tid": HOST, "ts": BASE + start})
        self.events.append({"ph": "f", **known, "pid": DEVICE, "tid": stream, "ts": BASE + end, "bp": "e"})

    def kernel(self, launched: float, start: float, end: float, name: str = GEMM, stream: int = 7) -> None:
        given = self.call("cudaLaunchKernel", launched, launched + 4)
        args = {"queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": given}
        more = {"registers per thread": 168, "grid": [1, 1, 1], "block": [256, 1, 1], "graph id": 0}
        self.span("kernel", name, start, end, stream, **args, **more)
        self.arrow(launched, start, stream)

    def copy(self, called: tuple[float, float], start: float, end: float, way: str, size: int) -> None:
        given = self.call("cudaMemcpyAsync", *called)
        args = {"device": 0, "context": 1, "stream": 7, "correlation": given, "bytes": size}
        self.span("gpu_memcpy", f"Memcpy {way}", start, end, 7, **args, **{"memory bandwidth (GB/s)": 25.5})
        self.arrow(called[0], start, 7)

    def step(self, number: int, start: float, end: float) -> None:
        self.span("user_annotation", f"ProfilerStep#{number}", start, end, **{"External id": number})
        self.span("gpu_user_annotation", f"ProfilerStep#{number}", start + 7, end + 1e6, 7)

    def write(self, path: Path) -> Path:
        named = {"name": "process_name", "ph": "M", "ts": BASE, "pid": HOST, "tid": 0}
        span = {"ph": "X", "cat": "Trace", "ts": BASE, "dur": 9e9, "pid": "Spans", "tid": "PyTorch Profiler"}
        ends = [{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": BASE + 9e9}]
        events = [{**named, "args": {"name": "python"}}, *self.events, {**span, "name": "P (0)"}, *ends]
        head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
        return save(path, {**head, "baseTimeNanoseconds": 0, "traceEvents": events, "traceName": "t"})


def save(path: Path, document: Any) -> Path:
    text = json.dumps(document, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def summed(trace: Cuda, tmp_path: Path, lines: Cuda | None = None) -> StepProfile:
    further = [read(lines.write(tmp_path / "lines.json.gz"))] if lines else []
    return summarize(read(trace.write(tmp_path / "trace.json.gz")), *further)


def busy() -> Cuda:
    """Two steps of 1,000 µs, launched at the begin of each; two streams; the last kernel ends at 2,100."""
    trace = Cuda()
    for number, begin in ((5, 0), (6, 1000)):
        trace.step(number, begin, begin + 300)
        trace.copy((begin + 1, begin + 6), begin + 10, begin + 100, "HtoD (Pinned -> Device)", 4_000)
        trace.kernel(begin + 20, begin + 100, begin + 900)
        trace.kernel(begin + 30, begin + 500, begin + 1100, "ncclDevKernel_AllReduce(args)", 13)
        trace.call("cudaEventQuery", begin + 40, begin + 41)
    trace.kernel(1900, 2150, 9000)  # after the steps
    return trace


def test_a_gpu_that_is_busy_but_for_the_profiler_is_not_blamed_on_the_host(tmp_path: Path) -> None:
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.kernel(0, 0, 700)
    found = summed(trace, tmp_path).model_copy(update={"usual_seconds": 720e-6})
    assert found.busy == pytest.approx(0.7) and found.usually_busy == pytest.approx(700 / 720)
    assert "launches" not in found.verdict and "longest kernel" in found.verdict
    assert found.model_copy(update={"usual_seconds": 990e-6}).verdict.count("launches too slowly") == 1


def test_the_form_of_2021(tmp_path: Path) -> None:
    def event(cat: str, name: str, tid: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
        pid = 0 if cat in ("Kernel", "Memcpy") else 24572
        where = {"pid": pid, "tid": tid, "ts": ts, "dur": dur}
        return {"ph": "X", "cat": cat, "name": name, **where, "args": args}

    t = 1621401187223000
    known = {"queued": 0, "device": 0, "context": 1, "stream": 7}
    events = [
        event("Operator", "ProfilerStep#3", "24572", t, 1000, Device=24572),
        event("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "24572", t, 300),
        event("Operator", "aten::linear", "24572", t + 400, 100),
        event("Runtime", "cudaLaunchKernel", "24572", t + 400, 19, cbid=211, correlation=579),
        {"ph": "s", "id": 579, "pid": 24572, "tid": 24610, "ts": t, "cat": "async", "name": "launch"},
        event("Kernel", "volta_sgemm_32x32", "stream 7", t + 420, 480, correlation=579, **known),
        event("Memcpy", "Memcpy DtoD (Device -> Device)", "stream 7", t + 900, 50, bytes=64, **known),
        event("Runtime", "cudaDeviceSynchronize", "24572", t + 600, 360, cbid=165, correlation=605),
    ]
    found = summarize(read(save(tmp_path / "t.json", {"schemaVersion": 1, "traceEvents": events})))
    assert found.busy == pytest.approx(0.53) and found.batches == pytest.approx(0.3)
    assert found.copied == {"device to device": 64}
    assert [(each.call, each.place) for each in found.waits] == [("cudaDeviceSynchronize", None)]
    assert found.waits[0].idle == pytest.approx(0.05)


def test_no_file_is_summed_up_that_says_nothing_or_only_half(tmp_path: Path) -> None:
    data = busy().write(tmp_path / "whole.json.gz").read_bytes()
    stepless = Cuda()
    stepless.kernel(0, 1, 2)
    paths = [stepless.write(tmp_path / "s.json"), save(tmp_path / "other.json", {"a": 1})]
    for name, content in (
        ("cut.json.gz", data[: len(data) // 2]),
        ("cut.json", gzip.decompress(data)[:-200]),
        ("b.json.gz", b"\x1f\x8b" + bytes(range(256))),
    ):
        (tmp_path / name).write_bytes(content)
        paths.append(tmp_path / name)
    for path in (*paths, tmp_path / "missing.json"):
        with pytest.raises(NoSummary):
            summarize(read(path))


def test_events_that_are_no_events_do_not_count(tmp_path: Path) -> None:
    trace = busy()
    clean = summed(trace, tmp_path)
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7}
    trace.events += [
        kernel, kernel | {"ts": "soon", "dur": 1}, kernel | {"ts": BASE, "dur": -1}, kernel | {"ts": BASE},
        kernel | {"ts": BASE, "dur": float("inf")}, {"ph": "X", "cat": None, "name": 1, "ts": BASE, "dur": 1},
    ]  # fmt: skip
    trace.events += [["no", "event"], None]  # type: ignore[list-item]
    assert summed(trace, tmp_path) == clean


@pytest.mark.parametrize("size", [1, 7, 100])
def test_events_come_whole_out_of_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = busy().write(tmp_path / "t.json")
    whole = read(path)
    monkeypatch.setattr(kineto, "_CHUNK", size)
    assert read(path) == whole and len(whole.device) == 7


def test_a_step_on_a_cpu_as_pytorch_itself_sums_it_up(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    from torch.utils.data import DataLoader

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(torch.randn(40, 64), batch_size=8))
    with profile(activities=[ProfilerActivity.CPU]) as running:
        for step in range(4):
            with record_function(f"ProfilerStep#{step + 1}"):
                loss = model(next(batches)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    running.export_chrome_trace(str(tmp_path / "t.json.gz"))
    found = summarize(read(tmp_path / "t.json.gz"))
    assert (found.first_step, found.last_step, found.busy, found.launches) == (1, 4, None, None)
    assert found.waits == [] and found.copied == {} and 0 < found.batches < 1
    theirs = {each.key: each for each in running.key_averages()}
    assert len(found.kernels) == 10
    for each in found.kernels:
        assert each.calls * 4 >= theirs[each.name].count  # where an operator calls itself it counts one
        spent = each.share * found.step_seconds * 4e6
        assert spent == pytest.approx(theirs[each.name].self_cpu_time_total, rel=0.02, abs=2)


def test_recorded_steps_of_a_cpu() -> None:
    """Two steps of a job of Muster's and the one whose lines are marked (torch 2.13), some events of them."""
    trace, lines = (read(RECORDED / f"{name}.json.gz") for name in ("steps", "lines"))
    found = summarize(trace, lines)
    assert (found.first_step, found.last_step, found.busy) == (3, 4, None)
    assert found.kernels[0].name.startswith("aten::") and len(found.kernels) == 10
    assert found.verdict.startswith("no GPU was traced: the longest operator is aten::")
    for each in (trace, lines):  # if each value that is read had waited for a GPU
        for thread, spans in each.operators.items():
            each.waits += [(span, thread) for span in spans if span.name == "aten::_local_scalar_dense"]
        each.waits.sort()
    places = {wait.place for wait in summarize(trace, lines).waits}
    assert None not in places and any(place and place.startswith("transformers/") for place in places)


def test_lines_of_python_are_marked_where_they_run() -> None:
    """Also in functions that ran before, in generators, after an exception; not in PyTorch's."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from muster.worker.instruments.lines import LineMarks

    def numbers() -> Iterable[torch.Tensor]:
        yield torch.ones(1)
        yield torch.zeros(1)

    def failing() -> None:
        raise ValueError

    lines, items = LineMarks(), []
    with profile(activities=[ProfilerActivity.CPU]) as running:
        lines.start()
        first = numbers.__code__.co_firstlineno
        for each in numbers():
            items.append(each.item())
        with pytest.raises(ValueError):
            failing()
        items.append(torch.nn.Linear(2, 2)(torch.ones(2)).sum().item())
        lines.stop()
        items.append(torch.ones(3).sum())
    marks = [each for each in running.events() if each.name.startswith("line ")]
    names = [each.name.rpartition(":") for each in marks]
    here = [int(line) - first for file, _, line in names if file.endswith("test_profile.py")]
    assert here[:8] == [10, 11, 1, 12, 11, 2, 12, 11] and here[-2:] == [15, 16]
    assert not any("torch/" in file for file, _, _ in names)
    [last] = [each for each in marks if each.name.endswith(f"test_profile.py:{first + 15}")]
    inside = [each.name for each in running.events() if last.time_range.start <= each.time_range.start]
    assert "aten::linear" in inside


def profiling(folder: Path, profile_steps: int, most: int) -> tuple[Any, Any, Any, list[Any]]:
    """A profiler from step 3 on, the trainer's state and control, and what it emits."""
    from muster.core.recipe import recipe_from
    from muster.worker.instruments.profile import Profiler

    emitted: list[Any] = []
    measure = {"profile": "trace", "profile_step": 3, "profile_steps": profile_steps}

    class Emitted:
        pulse = None

        def __call__(self, kind: Any, **content: Any) -> None:
            emitted.append(kind(time=0, **content))

    recipe, control = recipe_from({"measure": measure}), SimpleNamespace(should_training_stop=False)
    about = {"rank": 0, "main": True, "device": "cpu", "base": folder}
    context: Any = SimpleNamespace(recipe=recipe, emit=Emitted(), **about)
    return Profiler(context, None), SimpleNamespace(global_step=0, max_steps=most), control, emitted


@pytest.mark.parametrize(
    ("most", "done", "stopped", "steps"),
    [
        (9, 8, False, [3, 4, 5, 6, 7]),
        (6, 6, False, [3, 4, 5, 6]),  # no further step
        (9, 6, True, [3, 4, 5, 6]),
        (9, 6, False, [3, 4, 5, 6]),  # the data comes to its end where the further step has begun
        (9, 4, True, [3, 4]),
        (9, 3, False, [3]),  # all there is
        (9, 2, False, []),
    ],
)
def test_the_steps_of_a_trace_are_those_that_were_done(
    tmp_path: Path, most: int, done: int, stopped: bool, steps: list[int]
) -> None:
    """As Transformers' trainer calls it. `most`: steps that it knows it will do; `stopped`: it is told so."""
    import torch

    from muster.store import events

    profiler, state, control, emitted = profiling(tmp_path, profile_steps=3, most=most)
    for step in range(1, done + 1):
        profiler.on_step_begin(None, state, control)
        torch.ones(4).mul(2)
        state.global_step, control.should_training_stop = step, stopped and step == done
        profiler.on_step_end(None, state, control)
    profiler.on_train_end(None, state, control)
    [told] = emitted
    if not steps:
        assert isinstance(told, events.Noted)
        return
    assert isinstance(told, events.Profiled) and told.summary is not None
    assert (told.first_step, told.last_step) == (3, steps[-1])
    summed_up = steps[1:4] or steps
    assert (told.summary.first_step, told.summary.last_step) == (summed_up[0], summed_up[-1])
    traces = [read(path) for path in (tmp_path / "profile").iterdir()]
    assert {step for trace in traces for step in trace.steps if step <= done} == set(steps)
    assert torch.autograd._profiler_enabled() is False and sys.gettrace() is None


def test_a_pause_for_evaluation_or_saving_is_in_no_step(tmp_path: Path) -> None:
    """What follows a step until the next one begins is in the next one's mark. The longest stretch without a
    pause is summed up: of steps 4 to 9, with pauses after 4 and 6, steps 8 and 9."""
    profiler, state, control, emitted = profiling(tmp_path, profile_steps=6, most=12)
    for step in range(1, 12):
        profiler.on_step_begin(None, state, control)
        state.global_step = step
        profiler.on_step_end(None, state, control)
        if step in (4, 6):
            getattr(profiler, "on_evaluate" if step == 4 else "on_save")(None, state, control)
    profiler.on_train_end(None, state, control)
    [told] = emitted
    assert (told.first_step, told.last_step) == (3, 10)
    assert (told.summary.first_step, told.summary.last_step) == (8, 9)


def example(**more: Any) -> StepProfile:
    kernels = [KernelTime(name=f"void k{i}<int>(int)", share=0.2, calls=3) for i in range(10)]
    given: dict[str, Any] = {
        "rank": 1, "first_step": 5, "last_step": 14, "step_seconds": 0.12, "busy": 0.61, "batches": 0.02,
        "launching": 0.31, "between": 0.06, "kernels": kernels, "launches": 1520.0,
        "waits": [DeviceWait(call="aten::item", place="train.py:31", calls=2, seconds=0.012, idle=0.0)],
        "copied": {"host to device": 262_144.0},
    }  # fmt: skip
    return StepProfile.model_validate(given | more)


@pytest.mark.parametrize(
    "figures",
    [
        {"busy": 0.5, "launching": 0.02, "batches": 0.01, "between": 0.01},  # what else is not known
        {"busy": 0.0, "launching": 0.0, "batches": 0.0, "between": 0.0, "kernels": [], "waits": []},
        {"busy": None, "kernels": [], "batches": 0.0},
    ],
)
def test_no_cause_is_named_that_the_figures_do_not_show(figures: dict[str, Any]) -> None:
    verdict = example(**figures).verdict
    assert not any(word in verdict for word in ("launches", "waits", "gaps", "batches", "longest"))
