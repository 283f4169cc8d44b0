"""Numbers in every notation that tools print, and a tool's own rate held against its time stamps.

Lines are quoted from public logs: LambdaLabsML/DeepSpeedExamples, in applications/DeepSpeed-Chat/training/
output/1cc-64xN/allnodes_8xN_opt-350m_bs24_zero0/opt-350m_1_8xN_batch0001.log.
"""

from __future__ import annotations

import re

import pytest

from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers._frame import Frame
from muster.readers.base import FIGURE, number
from muster.readers.deepspeed_chat import OF_A_RANK
from tests.unit.logs import chat_log, one, trainer_log

HOST = "ml-512-node-001"
# DeepSpeed prints whole numbers from 1,000 on in this way (deepspeed/runtime/config_utils.py).
CONFIG = [
    f"{HOST}: [2024-07-08 05:59:28,666] [INFO] [config.py:1001:print]   train_batch_size ............. 1536",
    f"{HOST}: [2024-07-08 05:59:28,666] [INFO] [config.py:1001:print]   world_size ................... 64",
    f"{HOST}: [2024-07-08 05:59:28,666] [INFO] [config.py:987:print_user_config]   json = {{",
    f'{HOST}:     "train_batch_size": 1.536000e+03, ',
    f'{HOST}:     "train_micro_batch_size_per_gpu": 24, ',
    f'{HOST}:     "max_train_batch_size": null, ',
    f'{HOST}:     "max_train_micro_batch_size_per_gpu": 1.024000e+03, ',
]
TIMER = (
    "[2024-07-08 05:59:{}] [INFO] [timer.py:258:stop] epoch=0/micro_step={}/global_step={}, "
    "RunningAvgSamplesPerSec={}, CurrSamplesPerSec={}, MemAllocated=5.53GB, MaxMemAllocated=33.78GB"
)
STEPS = [
    "[2024-07-08 05:59:33,067] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=11, "
    "lr=[9e-11, 9e-11], mom=[(0.9, 0.95), (0.9, 0.95)]",
    TIMER.format("33,071", 20, 20, 7825.892160659134, 7479.715442406623),
    TIMER.format("35,133", 30, 30, 7695.966045509577, 7490.769097682466),
    TIMER.format("37,197", 40, 40, 7632.46180800076, 7484.355566811379),
    TIMER.format("39,265", 50, 50, 7593.98494329504, 7207.981866067573),
    TIMER.format("41,339", 60, 60, 7565.324441479468, 7465.301805591284),
    "=" * 70,
    "Execution time: 20.6356 seconds for 100 steps",
    "Throughput: 7443.4632 samples/sec",
]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.536000e+03", 1536.0), ("1,536", 1536.0), ("1_536", 1536.0), ("1.5e3", 1500.0), ("1536", 1536.0),
        ("1,234,567.5", 1234567.5), ("-2.5E-3", -0.0025), ("12,5", 12.5), ("7.", 7.0), ("+3", 3.0),
        (" 192 ", 192.0), ("1,2,3", None), ("auto", None), ("nan", None), ("inf", None), ("1e400", None),
    ],
)  # fmt: skip
def test_every_notation(text: str, value: float | None) -> None:
    assert number(text) == value


def test_a_figure_ends_where_the_number_does() -> None:
    """A comma after it belongs to the line."""
    for text, figure in (("192, ", "192"), ("1.536000e+03, x", "1.536000e+03"), ("1,536,", "1,536"),
                         ("20, RunningAvg", "20"), ("1_536]", "1_536"), ("64 ranks", "64")):  # fmt: skip
        found = re.match(FIGURE, text)
        assert found is not None and found[0] == figure


@pytest.mark.parametrize("batch", ["1536", "1.536000e+03", "1,536", "1_536", "1.536e3"])
@pytest.mark.parametrize("line", ['    "train_batch_size": {}, ', "  train_batch_size ............. {}"])
def test_a_batch_of_more_than_a_thousand(batch: str, line: str) -> None:
    frame = Frame()
    frame.line(line.format(batch))
    assert frame.batch == 1536


@pytest.mark.parametrize(
    "line",
    [
        "dist_world_size={}",
        "  world_size ................... {}",
        "using world size: {}, data-parallel-size: 8",
        "'distributed_world_size': {}, 'distributed_rank': 0",
    ],
)
def test_the_world_size(line: str) -> None:
    for text, size in (("64", 64), ("1.024000e+03", 1024), ("1,024", 1024)):
        frame = Frame()
        frame.line(line.format(text))
        assert frame.world_size == size
    for other in ("group_world_size=2", "local_world_size=4", "tensor_model_parallel_world_size = 4"):
        frame.line(other)
    assert frame.world_size == 1024


def test_a_real_log_of_eight_hosts() -> None:
    """Its first windows; the tool's own rate is of all of them. It was taken for one sample a step."""
    hosts = [f"ml-512-node-{n:03d} slots=8" for n in range(1, 9)]
    job = one([*hosts, *CONFIG, *(f"{HOST}: {line}" for line in STEPS)])
    assert (job.batch, job.world_size, len(job.hosts), job.skipped_steps) == (1536, 64, 8, 11)
    assert job.rate == pytest.approx(job.reported, rel=5e-3)
    assert not job.notes


def test_a_rate_that_the_tool_contradicts_is_said() -> None:
    """Both figures in the job's notes; how many there are in the judgement's."""
    logs = []
    for number_, host in enumerate(("n1", "n2", "n3", "n4", "n5")):
        lines = chat_log([host], 0.2 + number_ / 10_000)
        if host == "n3":  # its configuration names another batch than its timer counts
            lines = [re.sub(r"(train_batch_size \.+) 192", r"\1 96", line) for line in lines]
        logs.append(one(lines, f"{host}.log"))
    wrong = [log for log in logs if log.notes]
    assert [log.hosts for log in wrong] == [("n3",)]
    (note,) = wrong[0].notes
    assert "479.52" in note and "959.04" in note  # 96 / 0.2002, and what the timer says
    found = judged("x", logs, Settings(), {})
    (said,) = [note for note in found.notes if "1 job" in note]
    assert "n3.log" in said and "2 %" in said


def test_a_rate_that_the_end_contradicts_is_said() -> None:
    """Without a timer: DeepSpeed-Chat's own account of its steps."""
    lines = ["Model Parameters: 1.3 B, Latency: 0.20s, TFLOPs: 69.5, Samples/sec: 120, Batch Size: 24"] * 30
    said = [*lines, "Execution time: 6.0000 seconds for 30 steps", "Throughput: 240.0000 samples/sec"]
    alone, note = one(said, "node-1.log").notes
    assert "120" in note and "240" in note and alone == OF_A_RANK
    assert one(["dist_world_size=2", *said], "node-1.log").notes == ()  # of both ranks


def test_times_of_a_day_and_more() -> None:
    """`train_runtime` in words, as transformers/trainer_pt_utils.py prints it."""
    text = trainer_log(step=0.1, steps=100).replace("\r", "\n").split("\n")
    account = ["***** train metrics *****", "  train_runtime            = 1 day, 2:00:00.00",
               "  train_samples_per_second =      1,024.5"]  # fmt: skip
    lines = [line for line in text if "train_runtime" not in line]
    assert one([*lines, *account], "node-1.log").reported == 1024.5
    mixed = [*lines, "  train_runtime = 1 day, 2:00:00.00", "  train_samples_per_second = 2.0"]
    assert one(mixed, "node-1.log").batch == 64
    unknown = [line for line in mixed if "Total train batch" not in line]
    assert one(unknown, "node-1.log").batch == pytest.approx(2 * 26 * 3600 / 100)
