"""What is known of a job while it prints: of every format, from lines that the tool itself printed."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace

import pytest

from muster.readers._live import Live
from muster.readers.base import NOT_FINITE
from muster.store.events import Progress
from tests.unit.logs import LOGS, chat_log, metaseq_log, one

# A step of DeepSpeed-Chat with its generation (dschat/utils/perf.py)
STEP = (
    "End-to-End => Latency: 12.60s, TFLOPs: 69.5, Samples/sec: 10.16, Time/seq 0.10s, Batch Size: 128, "
    "Total Seq. Length: 512"
)
# torchtitan 0.3.0: its MetricsProcessor.log with colours, as it is by default
TITAN_COLOURED = """
[titan] 2026-11-25 09:21:44,991 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.00000  \x1b[38;2;180;60;0mgrad_norm:  1.5000  \x1b[38;2;54;234;195mmemory:  1.25GiB(1.56%)  \x1b[34mtps: 148,365  \x1b[36mtflops: 0.01  \x1b[35mmfu: 0.00%\x1b[39m
[titan] 2026-11-25 09:21:45,104 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss:  4.00000  \x1b[38;2;180;60;0mgrad_norm:  0.7500  \x1b[38;2;54;234;195mmemory:  1.25GiB(1.56%)  \x1b[34mtps: 144,751  \x1b[36mtflops: 0.01  \x1b[35mmfu: 0.00%\x1b[39m
[titan] 2026-11-25 09:21:45,214 - root - INFO - \x1b[31mstep:  3  \x1b[32mloss:  2.66667  \x1b[38;2;180;60;0mgrad_norm:  0.5000  \x1b[38;2;54;234;195mmemory:  1.25GiB(1.56%)  \x1b[34mtps: 148,762  \x1b[36mtflops: 0.01  \x1b[35mmfu: 0.00%\x1b[39m
[titan] 2026-11-25 09:21:45,327 - root - INFO - \x1b[31mstep:  4  \x1b[32mloss:  2.00000  \x1b[38;2;180;60;0mgrad_norm:  0.3750  \x1b[38;2;54;234;195mmemory:  1.25GiB(1.56%)  \x1b[34mtps: 146,039  \x1b[36mtflops: 0.01  \x1b[35mmfu: 0.00%\x1b[39m
[titan] 2026-11-25 09:21:45,440 - root - INFO - \x1b[31mstep:  5  \x1b[32mloss:  1.60000  \x1b[38;2;180;60;0mgrad_norm:  0.3000  \x1b[38;2;54;234;195mmemory:  1.25GiB(1.56%)  \x1b[34mtps: 145,253  \x1b[36mtflops: 0.01  \x1b[35mmfu: 0.00%\x1b[39m
"""  # noqa: E501
# https://github.com/facebookresearch/metaseq/pull/507
METASEQ = """
slurm_procid 0 : 2022-11-11 14:05:27 | INFO | train_inner | {"epoch": 1, "actv_norm": "0.035", "pos_norm": "0.192", "tok_norm": "0.271", "emb_norm": "0.034", "docsperex": "2.64", "loss": "15.878", "ppl": "60214.8", "wps": "0", "ups": "0", "wpb": "1.04858e+06", "bsz": "512", "num_updates": "1", "lr": "2.80112e-07", "gnorm": "16.981", "clip": "100", "train_wall": "12", "cuda_gb_allocated": "19.7", "cuda_gb_reserved": "41.1", "cuda_gb_free": "59.6", "wall": "73"}
slurm_procid 0 : 2022-11-11 14:05:29 | INFO | train_inner | {"epoch": 1, "actv_norm": "0.035", "pos_norm": "0.192", "tok_norm": "0.271", "emb_norm": "0.034", "docsperex": "2.83", "loss": "15.864", "ppl": "59660.5", "wps": "739601", "ups": "0.71", "wpb": "1.04858e+06", "bsz": "512", "num_updates": "2", "lr": "5.60224e-07", "gnorm": "16.783", "clip": "100", "train_wall": "1", "cuda_gb_allocated": "19.9", "cuda_gb_reserved": "51.6", "cuda_gb_free": "59.4", "wall": "75"}
"""  # noqa: E501


def watched(text: str) -> Progress:
    """What is known after the last line, with a look at it after every one."""
    live = Live()
    for line in text.strip("\n").split("\n"):
        live.lines([line])
        live.seen(0.0)
    found = live.seen(0.0)
    assert found is not None
    at_once = Live()
    at_once.lines(text.strip("\n").split("\n"))
    assert at_once.seen(0.0) == found == copy.copy(live).seen(0.0)  # looking changes nothing
    return found


@pytest.mark.parametrize(
    ("text", "format", "steps", "loss", "unit", "rate"),
    [
        (TITAN_COLOURED, "torchtitan", 5, 1.6, "steps", 3 / (0.440 - 0.104)),
        (LOGS["titan"], "torchtitan", 17, 3.14459, "samples", 8 * 3 / 3.364),
        (LOGS["megatron"], "Megatron-LM", 73, 1.798953, "samples", 256 / 11.3006),
        (LOGS["nemo"], "NeMo", 123, 1.245, "samples", 3 / 0.09535),
        (LOGS["lightning"], "Lightning", 400, 0.310, "steps", None),
        (LOGS["rich"], "Lightning", 400, 0.358, "steps", 200 / 11.5),
        (LOGS["nano"], "nanoGPT", 3010, None, "steps", 2 / 2.1166),
        (LOGS["axolotl"], "Transformers", 284, 0.8635, "steps", None),
        (METASEQ, "metaseq", 2, 15.864, "samples", 512 * 739601 / 1048580),
        ("\n".join(metaseq_log()), "metaseq", 100, None, "samples", 32.0),
        ("\n".join(chat_log(["node-1"])), "DeepSpeed", 110, None, "samples", 960.0),
        (LOGS["trl"], "Transformers", 40, 0.9657, "samples", 4.333),
    ],
)
def test_each_format(
    text: str, format: str, steps: int, loss: float | None, unit: str, rate: float | None
) -> None:
    found = watched(text)
    assert (found.format, found.step) == (format, steps)
    assert loss is None or found.loss == loss
    assert found.rate is not None and found.unit == unit
    if rate is not None:
        assert found.rate == pytest.approx(rate, rel=0.02)


# Transformers 5.23 with disable_tqdm and log_level="info"
TRAINER = """
[transformers] ***** Running training *****
[transformers]   Num examples = 480
[transformers]   Num Epochs = 1
[transformers]   Instantaneous batch size per device = 4
[transformers]   Total train batch size (w. parallel, distributed & accumulation) = 4
[transformers]   Gradient Accumulation steps = 1
[transformers]   Total optimization steps = 120
{'loss': '4.284', 'grad_norm': '2.387', 'learning_rate': '4.625e-05', 'epoch': '0.08333'}
{'loss': '4.232', 'grad_norm': '2.264', 'learning_rate': '4.208e-05', 'epoch': '0.1667'}
{'loss': '4.185', 'grad_norm': '2.237', 'learning_rate': '3.792e-05', 'epoch': '0.25'}
{'loss': '4.146', 'grad_norm': '2.076', 'learning_rate': '3.375e-05', 'epoch': '0.3333'}
"""


def test_a_trainer_without_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps follow from the epochs that it logs, their times from when lines come: ten steps in 6 s."""
    clock = itertools.count(1000.0, 6.0)
    monkeypatch.setattr("muster.readers._live.time", SimpleNamespace(time=lambda: next(clock)))
    live, steps = Live(), []
    for line in TRAINER.strip().split("\n"):
        live.lines([line])
        steps.append(live.steps)
    assert steps == [0] * 7 + [10, 20, 30, 40]
    progress = live.seen(0.0)
    assert progress is not None and (progress.step, progress.loss, progress.unit) == (40, 4.146, "samples")
    assert progress.rate == pytest.approx(10 * 4 / 6)
    unnamed = Live()  # by default no settings are printed, and nobody knows how many steps an epoch has
    unnamed.lines(TRAINER.strip().split("\n")[7:])
    assert unnamed.seen(0.0) is None


def test_the_figure_is_that_of_the_whole_log() -> None:
    """Of two formats the one whose steps have everything in them (a step with generation, and not DeepSpeed's
    timer of its training); and none, where the tool's own refutes it."""
    timer = [line for line in chat_log(["node-1"]) if "SamplesPerSec" in line]
    chat = [line for window in timer for line in (window, *[STEP] * 10)]
    few = [line.replace("1281167", "100000") for line in LOGS["resnet"].strip("\n").split("\n")]
    for text in (chat, few):
        seen, job = watched("\n".join(text)), one(text, "node-1.log")
        assert seen.rate == job.rate
    assert watched("\n".join(chat)).step_seconds == pytest.approx(12.6, rel=1e-3)
    assert watched("\n".join(few)).rate is None


MEGATRON = (
    " iteration {step:8d}/     100 | consumed samples: {samples} | elapsed time per iteration (ms): 50.0 | "
    "global batch size: 8 | lm loss: {loss:.6E} | loss scale: 1.0 | number of skipped iterations: 0 |"
)
BAR = "Epoch 0: {step:3d}%|███       | {step}/100 [00:{step:02d}<00:40,  1.00it/s{more}, loss={loss:.3f}]"
DIVERGING = {
    "nanoGPT": "iter {step}: loss {loss:.4f}, time 50.00ms, mfu 1.20%",
    "Megatron-LM": MEGATRON,
    "Lightning": BAR.replace("{more}", ", v_num=3"),
}


@pytest.mark.parametrize("format", DIVERGING)
def test_a_loss_that_is_not_finite_at_the_end(format: str) -> None:
    """The last figure that is one was long ago. fp16 begins with some that are none."""
    losses = [math.inf, 4.0, 3.0, math.nan, 2.0, math.nan, math.inf, math.nan]
    lines = [
        DIVERGING[format].format(step=step, samples=8 * step, loss=loss)
        for step, loss in enumerate(losses, 1)
    ]
    found = watched("\n".join(lines))
    assert (found.format, found.loss) == (format, None)
    assert found.not_finite == f"{NOT_FINITE}, as at step 6 already"
    found = watched("\n".join(lines[:5]))
    assert (found.loss, found.not_finite) == (2.0, None)


def test_steps_that_are_counted_anew() -> None:
    """Of two stages; and of one that counts from 0."""
    line = "iter {}: loss 1.0000, time 50.00ms, mfu 1.20%"
    found = watched("\n".join(line.format(step) for step in (*range(40), *range(20))))
    assert (found.step, found.made) == (19, 60)
    assert watched("\n".join(line.format(step) for step in range(0, 101, 10))).made == 101


def test_a_bar_that_any_program_may_print() -> None:
    """tqdm's with "Epoch 0" before it is as Lightning's, which has its version or a metric of NeMo's."""
    lines = [BAR.format(step=step, more="", loss=1.0) for step in range(1, 30)]
    assert watched("\n".join(lines)).format == "a progress bar"
    lines.append("`Trainer.fit` stopped: `max_steps=29` reached.")
    assert watched("\n".join(lines)).format == "Lightning"
