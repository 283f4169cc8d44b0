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

from muster.core import kineto
from muster.core.kineto import NoSummary, read, summarize
from muster.core.profile import DeviceWait, KernelTime, StepProfile

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


def test_a_busy_gpu(tmp_path: Path) -> None:
    """By hand: 2,100 µs, of which 10 nothing runs before the first copy: the second step's begins in time."""
    found = summed(busy(), tmp_path)
    assert (found.first_step, found.last_step) == (5, 6)
    assert found.step_seconds == pytest.approx(1050e-6)
    assert found.busy == pytest.approx(2090 / 2100)
    assert found.exchanging == pytest.approx((110 + 200) / 2100)  # 900 to 1,010, and 1,900 to 2,100
    assert [(each.name, each.share * 2100, each.calls) for each in found.kernels] == [
        (GEMM, pytest.approx(1600), 1), ("ncclDevKernel_AllReduce(args)", pytest.approx(1200), 1),
    ]  # fmt: skip
    assert (found.launches, found.waits, found.copied) == (2, [], {"host to device": 4000})
    assert (found.batches, found.between) == (0, pytest.approx(4 / 2100))  # launched at 6
    assert "GPU busy 100 %: 15 % are exchanges" in found.verdict


def test_a_host_that_launches_too_slowly(tmp_path: Path) -> None:
    trace = Cuda()
    for number, begin in ((1, 0), (2, 1000)):
        trace.step(number, begin, begin + 1000)
        for at in (100, 500):
            trace.kernel(begin + at, begin + at + 6, begin + at + 206)
    found = summed(trace, tmp_path)
    assert found.busy == pytest.approx(800 / 2000)
    assert found.between == pytest.approx(4 * 2 / 2000)
    assert found.launching == pytest.approx(1 - 808 / 2000)
    assert found.verdict == "GPU busy 40 %: the host launches too slowly (60 %)"


def test_a_gpu_that_is_busy_but_for_the_profiler_is_not_blamed_on_the_host(tmp_path: Path) -> None:
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.kernel(0, 0, 700)
    found = summed(trace, tmp_path).model_copy(update={"usual_seconds": 720e-6})
    assert found.busy == pytest.approx(0.7) and found.usually_busy == pytest.approx(700 / 720)
    assert "launches" not in found.verdict and "longest kernel" in found.verdict
    assert found.model_copy(update={"usual_seconds": 990e-6}).verdict.count("launches too slowly") == 1


def test_a_gpu_that_waits_for_batches(tmp_path: Path) -> None:
    """Each fetch is 400 of 1,000 µs; the GPU still works in the first 100 of them."""
    trace = Cuda()
    for number, begin in ((1, 0), (2, 1000), (3, 2000)):
        trace.step(number, begin, begin + 1000)
        fetch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        trace.span("user_annotation", fetch, begin, begin + 400)
        trace.span("user_annotation", fetch, begin + 400, begin + 900, BACKWARD)  # ahead, on another thread
        trace.kernel(begin + 404, begin + 408, begin + 1100)
    found = summed(trace, tmp_path)
    assert found.step_seconds == pytest.approx(3100e-6 / 3)
    assert found.batches == pytest.approx((400 + 300 + 300) / 3100)
    assert found.launching == pytest.approx(3 * 8 / 3100)
    assert found.verdict == "GPU busy 67 %: it waits for batches (32 %)"


def planted(lines: bool, backward: bool = False) -> Cuda:
    """Steps that end in `.item()`: the GPU runs dry in it, and has nothing to do for 300 µs."""
    trace = Cuda()
    thread = BACKWARD if backward else HOST
    for number, begin in ((8, 0),) if lines else ((5, 0), (6, 1000), (7, 2000)):
        trace.step(number, begin, begin + 1000)
        if lines:
            trace.span("user_annotation", "line transformers/trainer.py:2543", begin + 250, begin + 990)
            trace.span("user_annotation", "line train.py:31", begin + 399, begin + 905)
            trace.span("user_annotation", "line train.py:32", begin + 905, begin + 960)
        trace.kernel(begin + 290, begin + 300, begin + 990)
        trace.span("cpu_op", "aten::item", begin + 400, begin + 1000, thread, **{"External id": 9})
        trace.span("cpu_op", "aten::_local_scalar_dense", begin + 401, begin + 999, thread)
        given = trace.call("cudaMemcpyAsync", begin + 402, begin + 406, thread)
        args = {"device": 0, "stream": 7, "correlation": given, "bytes": 4}
        trace.span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", begin + 990, begin + 992, 7, **args)
        trace.call("cudaStreamSynchronize", begin + 407, begin + 995, thread)
        trace.span("cuda_sync", "Stream Sync", begin + 407, begin + 995, 7, stream=7)
    return trace


@pytest.mark.parametrize("backward", [False, True])
def test_a_planted_wait_is_named_with_its_line(tmp_path: Path, backward: bool) -> None:
    """Both calls of one `.item()` are one wait. Autograd's thread runs no line of its own."""
    found = summed(planted(False, backward), tmp_path, planted(True, backward))
    [wait] = found.waits
    assert (wait.call, wait.place, wait.calls) == ("aten::item", "train.py:31", 1)
    assert wait.seconds == pytest.approx((4 + 588) * 1e-6)
    assert wait.idle == pytest.approx((2 * 302 + 8) / 3000)  # from 992 until it launches, at 1,294
    assert found.copied == {"device to host (not pinned)": 4}
    assert found.busy == pytest.approx(3 * 692 / 3000)
    assert "the host waits for the device at train.py:31 (20 %)" in found.verdict
    assert summed(planted(False), tmp_path).waits[0].place is None


def test_waits_of_a_kind_are_told_apart_by_their_order(tmp_path: Path) -> None:
    """Two `.item()` a step, and in the first step one less; the third wait is PyTorch's with_stack's."""

    def trace(lines: bool) -> Cuda:
        made = Cuda()
        for number, begin in ((9, 0),) if lines else ((1, 0), (2, 1000), (3, 2000)):
            made.step(number, begin, begin + 1000)
            for at, place in ((100, "a.py:1"), (200, "b.py:2")):
                if number > 1 or at > 100:
                    made.span("cpu_op", "aten::item", begin + at, begin + at + 50)
                    made.call("cudaStreamSynchronize", begin + at + 1, begin + at + (10 if at < 200 else 40))
                if lines:
                    made.span("user_annotation", f"line {place}", begin + at, begin + at + 60)
            made.span("python_function", "train.py(20): step", begin + 800, begin + 900, **{"Python id": 2})
            made.span("python_function", "torch/cuda/__init__.py(1060): wait", begin + 801, begin + 899)
            made.span("python_function", "<built-in method _cuda_synchronize>", begin + 802, begin + 899)
            made.call("cudaDeviceSynchronize", begin + 810, begin + 890)
        made.kernel(5, 5, 6)
        return made

    found = summed(trace(False), tmp_path, trace(True)).waits
    assert [(each.place, each.call, pytest.approx(each.calls)) for each in found] == [
        ("train.py:20", "cudaDeviceSynchronize", 1),
        ("b.py:2", "aten::item", pytest.approx(2 / 3)),
        (None, "aten::item", pytest.approx(1 / 3)),  # which of both it is in the first step is not known
        ("a.py:1", "aten::item", pytest.approx(2 / 3)),
    ]


def test_what_does_not_keep_the_gpu_waiting_is_not_blamed(tmp_path: Path) -> None:
    """A short kernel that ends within a long one; a fetch and a wait while the next kernel is launched
    already, or is launched by another thread."""
    trace = Cuda()
    trace.step(1, 0, 2000)
    trace.kernel(0, 4, 900)
    trace.kernel(10, 200, 300, stream=13)
    trace.kernel(20, 1000, 1100)  # launched long before
    trace.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 30, 1050)
    trace.call("cudaStreamSynchronize", 1060, 1900)
    given = trace.call("cudaLaunchKernel", 1296, 1300, BACKWARD)
    trace.span("kernel", GEMM, 1300, 2000, 7, correlation=given, stream=7)
    found = summed(trace, tmp_path)
    assert found.busy == pytest.approx(1 - (4 + 100 + 200) / 2000)
    assert found.between == pytest.approx(100 / 2000) and found.batches == 0
    assert found.launching == pytest.approx((4 + 200) / 2000)
    assert [(each.seconds, each.idle) for each in found.waits] == [(pytest.approx(840e-6), 0)]


def test_a_gpu_that_mostly_exchanges_or_copies_is_not_said_to_compute(tmp_path: Path) -> None:
    """Also where it is not busy all the time: of 1,000 µs an exchange alone takes 700, or a copy 800."""
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.kernel(0, 0, 150)
    trace.kernel(10, 150, 850, "ncclDevKernel_AllReduce(args)", 13)
    found = summed(trace, tmp_path)
    assert (found.busy, found.exchanging) == (pytest.approx(0.85), pytest.approx(0.7))
    assert "70 % are exchanges" in found.verdict and "launches too slowly (15 %)" in found.verdict
    copies = Cuda()
    copies.step(1, 0, 1000)
    copies.copy((0, 4), 0, 850, "HtoD (Pinned -> Device)", 10**9)
    copies.kernel(5, 800, 1000)
    found = summed(copies, tmp_path)
    assert (found.copying, found.exchanging) == (pytest.approx(0.8), 0)
    assert "80 % are copies" in found.verdict and "longest kernel" not in found.verdict
    sets = Cuda()
    sets.step(1, 0, 1000)
    sets.span("gpu_memset", "Memset (Device)", 0, 1000, 7, correlation=sets.call("cudaMemsetAsync", 0, 4))
    assert (summed(sets, tmp_path).busy, summed(sets, tmp_path).copying) == (1, 0)


def test_a_wait_is_blamed_for_as_long_as_it_took(tmp_path: Path) -> None:
    """Its calls together: the copy waits, and the synchronisation after it finds nothing to wait for. What
    the host needs after it for itself it would need without it."""
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.kernel(0, 0, 100)
    trace.span("cpu_op", "aten::item", 50, 112)
    given = trace.call("cudaMemcpyAsync", 51, 101)
    args = {"device": 0, "stream": 7, "correlation": given, "bytes": 4}
    trace.span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 98, 100, 7, **args)
    trace.call("cudaStreamSynchronize", 102, 105)
    trace.kernel(896, 900, 1000)
    found = summed(trace, tmp_path)
    [wait] = found.waits
    assert (wait.seconds, wait.idle) == (pytest.approx(53e-6), pytest.approx(0.053))
    assert found.launching == pytest.approx(0.8 - 0.053)
    assert found.verdict.startswith("GPU busy 20 %: the host launches too slowly (75 %)")


def test_a_thread_that_launches_nothing_keeps_no_gpu_waiting(tmp_path: Path) -> None:
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.kernel(0, 0, 300)
    trace.call("cudaEventSynchronize", 50, 302, 777)  # such as one that writes a log
    trace.kernel(696, 700, 1000)
    found = summed(trace, tmp_path)
    assert [(each.seconds, each.idle) for each in found.waits] == [(pytest.approx(252e-6), 0)]
    assert found.launching == pytest.approx(0.4)


def test_a_wait_that_the_lines_step_does_not_have_has_no_place(tmp_path: Path) -> None:
    """Such as one that comes when figures are logged: it is not at the line of the only other one."""

    def trace(lines: bool) -> Cuda:
        made = Cuda()
        for number, begin in ((9, 0),) if lines else ((1, 0), (2, 1000)):
            made.step(number, begin, begin + 1000)
            for at in (100, 500) if number == 2 else (100,):
                made.span("cpu_op", "aten::item", begin + at, begin + at + 50)
                made.call("cudaStreamSynchronize", begin + at + 1, begin + at + 40)
                if lines:
                    made.span("user_annotation", "line a.py:1", begin + at, begin + at + 60)
        made.kernel(5, 5, 6)
        return made

    found = summed(trace(False), tmp_path, trace(True)).waits
    assert {each.place: each.calls for each in found} == {None: 1, "a.py:1": 0.5}


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("cudaMemcpyAsync", False), ("cuMemcpyHtoDAsync_v2", False), ("cudaFreeAsync", False),
        ("cudaEventQuery", False), ("cudaStreamWaitEvent", False), ("cudaLaunchKernel", False),
        ("cudaMemcpy", True), ("cuMemcpyDtoH_v2", True), ("cudaFree", True), ("cuMemFree_v2", True),
        ("cudaEventSynchronize", True), ("cuStreamSynchronize", True), ("hipMemcpyWithStream", True),
    ],
)  # fmt: skip
def test_which_calls_wait(tmp_path: Path, call: str, waits: bool) -> None:
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.kernel(0, 4, 900)
    trace.call(call, 100, 200)
    assert [each.call for each in summed(trace, tmp_path).waits] == [call] * waits


def test_what_was_launched_before_the_steps_keeps_the_gpu_busy_and_is_not_theirs(tmp_path: Path) -> None:
    trace = Cuda()
    trace.kernel(-100, -50, 400, "before")
    trace.step(1, 0, 1000)
    trace.kernel(10, 400, 1000)
    found = summed(trace, tmp_path)
    assert (found.busy, found.launches) == (pytest.approx(1), 1)
    assert [(each.name, each.share) for each in found.kernels] == [(GEMM, pytest.approx(0.6))]


def test_a_wait_and_its_kernel_may_end_in_either_order(tmp_path: Path) -> None:
    """The clocks of host and device differ by a few µs."""
    for ended in (297, 303):
        trace = Cuda()
        trace.step(1, 0, 1000)
        trace.kernel(0, 0, 300)
        trace.call("cudaStreamSynchronize", 10, ended)
        trace.kernel(496, 500, 1000)
        assert [each.idle for each in summed(trace, tmp_path).waits] == [pytest.approx(0.2)]


def test_what_the_profiler_itself_costs_is_not_blamed(tmp_path: Path) -> None:
    trace = Cuda()
    trace.step(1, 0, 1000)
    trace.span("overhead", "Activity Buffer Request", 100, 500, 0)
    trace.kernel(500, 504, 1000)
    found = summed(trace, tmp_path)
    assert (found.profiling, found.launching) == (pytest.approx(0.4), pytest.approx(0.104))
    assert "the profiler itself keeps the host (40 %)" in found.verdict


def test_a_graph_is_one_launch_and_a_driver_call_is_one(tmp_path: Path) -> None:
    trace = Cuda()
    trace.step(1, 0, 1000)
    graph = trace.call("cudaGraphLaunch", 10, 20)
    for at in range(30, 80, 10):
        trace.span("kernel", "triton_poi_fused_add_0", at, at + 9, 7, correlation=graph, stream=7)
    driver = trace.call("cuLaunchKernelEx", 100, 104, cat="cuda_driver")
    trace.span("kernel", "triton_red_fused_1", 110, 119, 7, correlation=driver, stream=7)
    found = summed(trace, tmp_path)
    assert found.launches == 2
    assert [(each.name, each.calls) for each in found.kernels] == [
        ("triton_poi_fused_add_0", 5), ("triton_red_fused_1", 1),
    ]  # fmt: skip


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
    whole = busy().write(tmp_path / "whole.json.gz")
    data = whole.read_bytes()
    cut, text = tmp_path / "cut.json.gz", tmp_path / "cut.json"
    cut.write_bytes(data[: len(data) // 2])
    text.write_bytes(gzip.decompress(data)[:-200])
    stepless = Cuda()
    stepless.kernel(0, 1, 2)
    other, binary = save(tmp_path / "other.json", {"a": 1}), tmp_path / "b.json.gz"
    binary.write_bytes(b"\x1f\x8b" + bytes(range(256)))
    for path in (cut, text, other, binary, tmp_path / "missing.json", stepless.write(tmp_path / "s.json")):
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

    context: Any = SimpleNamespace(
        recipe=recipe_from({"measure": measure}),
        rank=0,
        main=True,
        device="cpu",
        base=folder,
        emit=Emitted(),
    )
    control = SimpleNamespace(should_training_stop=False)
    return Profiler(context), SimpleNamespace(global_step=0, max_steps=most), control, emitted


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
