"""Events: every kind comes back as it was written; a write cut short and a later version's kind do no
harm."""

from __future__ import annotations

import json
import os
import typing
from pathlib import Path

import pytest

from muster.agent.files import Tail
from muster.core.result import Hung, Pace
from muster.store import events

WHEN = {"time": 1764000000.25, "attempt": 2, "host": "node1", "rank": 3}
SAMPLES: list[events.Event] = [
    events.HostFacts(**WHEN, facts={"gpus": [{"name": "x", "capability": [9, 0]}], "port": None}),
    events.Hardware(**WHEN, cpu_percent=12.5, memory_used=1, gpus=[{"percent": 3, "celsius": None}]),
    events.Started(**WHEN, device="cuda", parameters=60506624, trainable=5, total_steps=9, notes=["a"]),
    events.DataRead(**WHEN, train=10, validation=2, cut=1),
    events.Window(
        **WHEN, step=20, steps=10, skipped=1, seconds=1.5, samples=80, tokens=9, padded_tokens=10,
        step_seconds=[0.1, 0.2], resident_peak=5, model_flops=10**18, hardware_flops=None, profiled=True,
    ),
    events.FlopsCounted(
        **WHEN, seconds=0.5, runs=2, method="formula", samples=4, lengths=[96, 64], model=6, hardware=8,
        formula=None,
    ),
    events.Profiled(**WHEN, what="trace", first_step=5, last_step=6, path="/x/profile/t.json.gz", bytes=9),
    events.Wrote(**WHEN, what="flops_profiler", path="/x/f.txt", head=["a", ""]),
    events.Log(**WHEN, step=20, epoch=0.5, loss=3.25, learning_rate=5e-5, gradient_norm=None),
    events.Evaluated(**WHEN, step=20, loss=2.5),
    events.Attention(**WHEN, step=20, layers=["layer0"], largest=[9.5], smallest=[None], seconds=0.25),
    events.Split(**WHEN, shares=[11, 5], speeds=[100.5, 49.75], seconds=3.25),
    events.Saved(**WHEN, step=None, path="/x/model", bytes=7, seconds=0.5),
    events.Answered(**WHEN, questions=5, exact=3, executed=None, seconds=1.0),
    events.Answer(
        **WHEN, index=0, question="how\nmany\u2028 \x85 \x0b ü 😀?",
        predicted='"', expected="\\", exact=False,
    ),
    events.Phase(**WHEN, name="train"),
    events.Progress(**WHEN, format="nanoGPT", step=40, loss=2.5, rate=12.0, unit="steps", steps=30),
    events.Hanging(**WHEN, found=Hung(what="rank 1 sleeps", seconds=61, ranks=[1], certain=True)),
    events.Paced(**WHEN, step=60, found=Pace(hosts=3, within=0.01, moments=6, source="windows of steps")),
    events.Noted(**WHEN, text="mind this"),
    events.Measured(**WHEN, what="pair", content={"source": 0, "target": 1, "seconds": [0.5], "bytes": 4}),
    events.Failed(**WHEN, what="broke", usage=True, traceback="a\nb"),
    events.Done(**WHEN, step=20, skipped=1, seconds={"training": 1.5}),
    events.JobState(**WHEN, state="begin", detail={"resume_step": 10}),
]  # fmt: skip


def test_the_samples_are_of_every_kind() -> None:
    assert {type(sample) for sample in SAMPLES} == set(typing.get_args(events.Event))


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.kind)
def test_a_round_trip(event: events.Event) -> None:
    line = events.to_line(event)
    assert "\n" not in line
    assert events.parse_event(line) == events.parse_event(line.encode()) == event
    assert json.loads(line)["v"] == 1


def test_bytes_that_are_no_utf8_cost_no_event(tmp_path: Path) -> None:
    """As in the name of an image's file that Latin-1 was used for."""
    name = os.fsdecode(b"caf\xe9.png")
    written = [
        events.Answer(
            time=1, index=0, question=name, predicted="\ud83d", expected="\\\udc80\U0001f600", exact=False
        ),
        events.HostFacts(time=1, facts={"names": [name]}),
        events.Failed(time=1, what=f"{name} is no image"),
    ]
    path = tmp_path / "rank0.events.jsonl"
    path.write_text("".join(f"{events.to_line(event)}\n" for event in written), encoding="utf-8")
    answer, facts, failed = events.read_events(path)
    assert isinstance(answer, events.Answer)
    assert (answer.question, answer.predicted) == (r"caf\udce9.png", r"\ud83d")
    assert answer.expected == "\\\\udc80\U0001f600"
    assert isinstance(facts, events.HostFacts)
    assert facts.facts == {"names": [r"caf\udce9.png"]}
    assert isinstance(failed, events.Failed)
    assert failed.what == r"caf\udce9.png is no image"


def test_what_a_line_need_not_be() -> None:
    """Fields of a later version are left out; a loss that is not a number survives."""
    event = events.parse_event('{"v": 9, "kind": "phase", "time": 1, "name": "x", "colour": "red"}')
    assert event == events.Phase(v=9, time=1, name="x")
    back = events.parse_event(events.to_line(events.Log(time=1, step=1, loss=float("nan"))))
    assert isinstance(back, events.Log) and back.loss is not None and back.loss != back.loss


@pytest.mark.parametrize(
    "line",
    ["", "{", "null", "[]", '{"kind": "phase"}', '{"kind": "dance", "time": 1}', '{"time": 1}', b"\xff"],
)
def test_what_is_no_event(line: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        events.parse_event(line)


def test_a_file_is_read_in_order_and_lines_that_are_none_are_passed_over(tmp_path: Path) -> None:
    """As is a last one that is torn, or has no end yet; no file has no events."""
    path = tmp_path / "events.jsonl"
    assert list(events.read_events(path)) == []
    lines = [events.to_line(sample) for sample in SAMPLES]
    bad = f'{lines[0][:20]}\n{{"kind": "later", "time": 1}}\n\n'
    for torn in ("", lines[4], lines[4][:40]):
        path.write_text(bad + "".join(f"{line}\n" for line in lines) + torn)
        assert list(events.read_events(path)) == SAMPLES


def test_the_schema_names_every_kind() -> None:
    mapping = events.event_schema()["discriminator"]["mapping"]
    assert set(mapping) == {sample.kind for sample in SAMPLES}


@pytest.mark.parametrize("limit", [64, 256 * 1024])
def test_the_agent_forwards_every_event_unchanged(tmp_path: Path, limit: int) -> None:
    """JSON may hold line ends that are none of a file: U+2028, U+0085. An event may be longer than one
    read."""
    path = tmp_path / "rank0.events.jsonl"
    tail = Tail(str(path), "event", 0)
    assert tail.read() == []
    lines = [events.to_line(sample) for sample in SAMPLES]
    path.write_text("".join(f"{line}\n" for line in lines) + "torn", encoding="utf-8")
    got: list[str] = []
    while more := tail.read(limit=limit):
        got += more
    assert got == lines
    assert tail.read(final=True) == []


def test_the_agent_forwards_a_log_with_its_unfinished_last_line(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_text("one\r10%\r20%\ntw")
    tail = Tail(str(path), "log", 0)
    assert tail.read() == ["one", "10%", "20%"]
    assert tail.read() == []
    assert tail.read(final=True) == ["tw"]
