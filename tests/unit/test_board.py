"""The TensorBoard files hold the figures of the events; read back record by record."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from muster.runs.recorder import NO_BOARD, Recorder, TensorBoardWriter
from muster.store import events
from muster.store.runfolder import RunFolder


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """(name, step) -> value of a folder's event files (TFRecord: length, its crc, data, its crc)."""
    found = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[12 + length + 4 :]
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_scalars(tmp_path: Path) -> None:
    """Loss, learning rate, gradient norm, throughput per rank, hardware per host."""
    board = TensorBoardWriter(tmp_path)
    board.add(events.Log(time=1.0, rank=0, step=10, loss=2.5, learning_rate=0.25, gradient_norm=None))
    board.add(events.Evaluated(time=2.0, rank=0, step=10, loss=3.5))
    board.add(
        events.Window(
            time=2.0,
            rank=1,
            step=10,
            steps=10,
            seconds=4.0,
            samples=80,
            tokens=800,
            padded_tokens=900,
            step_seconds=[],
        )
    )
    board.add(
        events.Attention(
            time=2.5,
            rank=0,
            step=10,
            layers=["layer0", "decoder.layer1.cross"],
            largest=[7.5, None],
            smallest=[-3.0, -4.5],
            seconds=0.1,
        )
    )
    board.add(events.Hardware(time=7.0, host="node1", cpu_percent=50.0, memory_used=1024))
    board.close()
    assert scalars(tmp_path) == {
        ("train/loss", 10): 2.5,
        ("train/learning_rate", 10): 0.25,
        ("held_out/loss", 10): 3.5,
        ("samples_per_second/rank1", 10): 20.0,
        ("tokens_per_second/rank1", 10): 200.0,
        ("activations/layer0_attention_weight_max", 10): 7.5,
        ("activations/layer0_attention_weight_min", 10): -3.0,
        ("activations/decoder_layer1_cross_attention_weight_min", 10): -4.5,
        ("cpu_percent/node1", 7): 50.0,
        ("memory_used/node1", 7): 1024.0,
    }


def test_without_tensorboardx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, the run goes on, and its result says so once, also after a resume."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    run = RunFolder(tmp_path)
    for attempt in (1, 2):
        with Recorder(run, attempt, lambda event: None) as recorder:
            recorder.record(events.Log(time=1.0, rank=0, step=10 * attempt, loss=2.5))
    assert not run.tensorboard.exists()
    assert recorder.folded.noted == [NO_BOARD] and sorted(recorder.folded.logs) == [10, 20]
