"""Tools that write a step on a line. Every line was printed by the tool: where from stands above it. What is
expected is worked out by hand from the lines."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest

from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers.base import JobLog
from muster.readers.mllog import GUESSED
from tests.unit.logs import one


def read(text: str, path: str = "node-1.log") -> JobLog:
    return one(text.strip("\n").split("\n"), path)


def expect(job: JobLog, name: str, *, samples: float, seconds: float, steps: int) -> None:
    """What was measured."""
    assert job.format == name and job.measured is not None
    assert job.measured.samples == pytest.approx(samples)
    assert job.measured.seconds == pytest.approx(seconds, rel=1e-6)
    assert job.measured.steps == steps
    assert not job.measured.skipped and not job.measured.interrupted


# ---- Megatron ----------------------------------------------------------------------------------------------

# https://github.com/NVIDIA/Megatron-LM/issues/756
MEGATRON = """
 [2024-04-06 03:02:12] iteration       71/     100 | consumed samples:         9088 | elapsed time per iteration (ms): 5361.6 | throughput per GPU (TFLOP/s/GPU): 243.6 | learning rate: 1.420000E-05 | global batch size:   128 | lm loss: 1.818812E+00 | load_balancing_loss: 1.013377E+00 | loss scale: 1.0 | grad norm: 1.300 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2024-04-06 03:02:18] iteration       72/     100 | consumed samples:         9216 | elapsed time per iteration (ms): 5470.7 | throughput per GPU (TFLOP/s/GPU): 238.7 | learning rate: 1.440000E-05 | global batch size:   128 | lm loss: 1.820313E+00 | load_balancing_loss: 1.019612E+00 | loss scale: 1.0 | grad norm: 1.305 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2024-04-06 03:02:24] iteration       73/     100 | consumed samples:         9344 | elapsed time per iteration (ms): 5829.9 | throughput per GPU (TFLOP/s/GPU): 224.0 | learning rate: 1.460000E-05 | global batch size:   128 | lm loss: 1.798953E+00 | load_balancing_loss: 1.010977E+00 | loss scale: 1.0 | grad norm: 1.539 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
"""  # noqa: E501
# ms-swift's examples/train/activation_cpu_offload, and a public log of version 4 (bars and all)
SWIFT = """
Train:   2%|\u258f         | 1/60 [00:42<41:47, 42.51s/it]{'loss': '0.3713', 'grad_norm': '0.8901', 'learning_rate': '3.333e-05', 'token_acc': '0.921', 'epoch': '0.08602', 'global_step/max_steps': '1/60', 'elapsed_time': '43s', 'remaining_time': '41m 48s', 'memory(GiB)': '14.3', 'train_speed(s/it)': '42.51'}
Train:   8%|\u258a         | 5/60 [03:52<43:40, 47.64s/it]{'loss': '0.2992', 'grad_norm': '0.6541', 'learning_rate': '9.97e-05', 'token_acc': '0.9285', 'epoch': '0.4301', 'global_step/max_steps': '5/60', 'elapsed_time': '3m 53s', 'remaining_time': '42m 43s', 'memory(GiB)': '14.3', 'train_speed(s/it)': '46.61'}
"""  # noqa: E501
SWIFT_3 = "{'loss': 2.1327579, 'grad_norm': 1.72890568, 'learning_rate': 8.346e-05, 'token_acc': 0.58396158, 'epoch': 0.32, 'global_step/max_steps': '5/16', 'percentage': '31.25%', 'elapsed_time': '5m 28s', 'remaining_time': '12m 2s', 'memory(GiB)': 24.8, 'train_speed(iter/s)': 0.015218}"  # noqa: E501
# https://github.com/FZJ-JSC/jubench-megatron-lm DESCRIPTION.md
MEGATRON_DEEPSPEED = """
[default3]: iteration       10/ 3125000 | consumed samples:          960 | elapsed time per iteration (s): 7.2310 | learning rate: 4.438E-07 | global batch size:    96 | lm loss: 1.010967E+01 | loss scale: 4096.0 | grad norm: 178.553 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 13.276 | TFLOPs: 101.54 |
[default3]: iteration       20/ 3125000 | consumed samples:         1920 | elapsed time per iteration (s): 5.3551 | learning rate: 8.876E-07 | global batch size:    96 | lm loss: 8.861832E+00 | loss scale: 4096.0 | grad norm: 46.241 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 17.927 | TFLOPs: 137.10 |
[default3]: iteration       30/ 3125000 | consumed samples:         2880 | elapsed time per iteration (s): 5.6192 | learning rate: 1.331E-06 | global batch size:    96 | lm loss: 8.532865E+00 | loss scale: 4096.0 | grad norm: 8.121 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 17.084 | TFLOPs: 130.66 |
"""  # noqa: E501
# A public note on training GPT-2 with Megatron-LM (its checkpoint is GPT2_pretrain_WS1, April 2025)
MEGATRON_EVALUATED = """
 [2025-04-13 23:41:12] iteration       10/    1000 | consumed samples:          160 | elapsed time per iteration (ms): 1147.6 | learning rate: 0.000000E+00 | global batch size:    16 | loss scale: 8388608.0 | number of skipped iterations:  10 | number of nan iterations:   0 |
Theoretical memory footprints: weight and optimizer=2121.85 MB
[Rank 0] (after 10 iterations) memory (MB) | allocated: 1464.33154296875 | max allocated: 1464.3408203125 | reserved: 1576.0 | max reserved: 1576.0
 [2025-04-13 23:41:20] iteration       20/    1000 | consumed samples:          320 | elapsed time per iteration (ms): 820.7 | learning rate: 4.000000E-05 | global batch size:    16 | lm loss: 1.072453E+01 | loss scale: 131072.0 | grad norm: 3.874 | num zeros: 71.0 | number of skipped iterations:   6 | number of nan iterations:   0 |
 [2025-04-13 23:41:28] iteration       30/    1000 | consumed samples:          480 | elapsed time per iteration (ms): 821.8 | learning rate: 9.000000E-05 | global batch size:    16 | lm loss: 1.038769E+01 | loss scale: 4096.0 | number of skipped iterations:   5 | number of nan iterations:   0 |
 [2025-04-13 23:41:37] iteration       40/    1000 | consumed samples:          640 | elapsed time per iteration (ms): 849.8 | learning rate: 9.998165E-05 | global batch size:    16 | lm loss: 9.992319E+00 | loss scale: 4096.0 | grad norm: 2.357 | num zeros: 881.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2025-04-13 23:41:46] iteration       50/    1000 | consumed samples:          800 | elapsed time per iteration (ms): 904.5 | learning rate: 9.991823E-05 | global batch size:    16 | lm loss: 9.236888E+00 | loss scale: 4096.0 | grad norm: 2.285 | num zeros: 1894.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
(min, max) time across ranks (ms):
    evaluate .......................................: (3274.73, 3274.73)
----------------------------------------------------------------------------------------------
 validation loss at iteration 50 | lm loss value: 8.889540E+00 | lm loss PPL: 7.255679E+03 |
----------------------------------------------------------------------------------------------
 [2025-04-13 23:41:57] iteration       60/    1000 | consumed samples:          960 | elapsed time per iteration (ms): 837.6 | learning rate: 9.980959E-05 | global batch size:    16 | lm loss: 8.638345E+00 | loss scale: 4096.0 | grad norm: 2.221 | num zeros: 949.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2025-04-13 23:42:06] iteration       70/    1000 | consumed samples:         1120 | elapsed time per iteration (ms): 840.3 | learning rate: 9.965582E-05 | global batch size:    16 | lm loss: 8.194965E+00 | loss scale: 4096.0 | grad norm: 1.803 | num zeros: 1850.0 | number of skipped iterations:   0 | number of nan iterations:   0 |
"""  # noqa: E501
DONE = "[after training is done] datetime: 2024-08-01 09:44:58\n"  # as above, of another run


def test_megatron() -> None:
    """Milliseconds of an iteration; the first line is left out, and so is what came before it elsewhere."""
    job = read(MEGATRON + DONE)
    expect(job, "Megatron-LM", samples=256, seconds=5.4707 + 5.8299, steps=2)
    assert (job.outcome, job.batch, job.steps, job.skipped) == ("succeeded", 128, 3, 0)
    assert job.loss == 1.798953 and job.step_seconds == pytest.approx(5.6503)
    assert job.began and job.ended and job.ended - job.began == 12


def test_megatron_that_is_cut_off() -> None:
    job = read(MEGATRON)
    assert (job.outcome, job.steps) == ("timeout", 3)


def test_megatron_that_came_to_its_last_iteration() -> None:
    """Without a word of its end. A line every ten iterations need not be of the last one."""
    last = MEGATRON.replace("/     100", "/      73")
    job = read(last)
    assert (job.outcome, job.total, job.steps) == ("succeeded", 73, 3)
    every = "".join(line for line in last.splitlines(keepends=True) if "72/" not in line)
    assert read(every.replace("/      73", "/      74")).outcome == "timeout"  # by itself it always says it


def test_megatron_deepspeed_has_seconds() -> None:
    job = read(MEGATRON_DEEPSPEED + DONE)
    expect(job, "Megatron-LM", samples=1920, seconds=53.551 + 56.192, steps=20)
    assert (job.outcome, job.steps, job.loss) == ("succeeded", 30, 8.532865)


def test_megatrons_skipped_iterations_and_validation() -> None:
    """The windows to 20 and 30 have 6 and 5 skipped iterations, that to 60 comes after a validation. The
    warm-up ends with ten used ones: 0 + 4 + 5 + 10."""
    job = read(MEGATRON_EVALUATED + DONE)
    expect(job, "Megatron-LM", samples=320, seconds=9.045 + 8.403, steps=20)
    assert (job.steps, job.skipped, job.memory) == (70, 21, int(1464.3408203125 * 2**20))


def test_swift() -> None:
    """Its pace is the mean since it began: 5 x 46.61 - 42.51 s. Time stamps before the lines are better."""
    job = read(SWIFT)
    assert (
        job.format
        and job.format.startswith("ms-swift")
        and job.measured is not None
        and job.measured.steps == 4
    )
    assert job.measured.seconds == pytest.approx(5 * 46.61 - 42.51, abs=1)  # it rounds to seconds
    assert (job.outcome, job.total, job.loss, job.memory) == ("timeout", 60, 0.2992, int(14.3 * 2**30))
    lines = []
    for n in range(5, 17):
        at, took = (
            datetime(2025, 3, 4, 10) + timedelta(seconds=65.7 * n),
            f"{int(65.7 * n) // 60}m {int(65.7 * n) % 60}s",
        )
        told = SWIFT_3.replace("'5/16'", f"'{n}/16'").replace("5m 28s", took)
        lines.append(f"{at.isoformat()}00Z {told}")
    evaluated = "{'eval_loss': 0.00052, 'eval_runtime': 9.8, 'global_step/max_steps': '16/16'}"
    whole = read("\n".join([*lines, evaluated]))
    assert whole.measured and whole.step_seconds == pytest.approx(65.7) and whole.outcome == "succeeded"


def test_a_run_that_began_anew() -> None:
    """An iteration before the last one: nothing is told from one try to the other."""
    again = MEGATRON.replace("iteration       7", "iteration       6")
    job = read(MEGATRON + again + DONE)
    expect(job, "Megatron-LM", samples=512, seconds=2 * (5.4707 + 5.8299), steps=4)


# https://github.com/huggingface/nanotron/pull/23
NANOTRON = """
01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 991 / 1000 | consumed_tokens: 634K | elapsed_time_per_iteration_ms: 45 | tokens_per_sec: 14.2K | tokens_per_sec_per_gpu: 1.78K | global_batch_size: 20 | lm_loss: 10.6 | lr: 1e-05 | model_tflops_per_gpu: 0.00869 | hardware_tflops_per_gpu: 0.00869 | grad_norm: 0.515 | cuda_memory_allocated: 75.2M | cuda_max_memory_reserved: 547M | hd_total_memory_tb: 312G | hd_used_memory_tb: 61.8G | hd_free_memory_tb: 250G
01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 992 / 1000 | consumed_tokens: 635K | elapsed_time_per_iteration_ms: 41.2 | tokens_per_sec: 15.5K | tokens_per_sec_per_gpu: 1.94K | global_batch_size: 20 | lm_loss: 10.6 | lr: 1e-05 | model_tflops_per_gpu: 0.0095 | hardware_tflops_per_gpu: 0.00951 | grad_norm: 0.507
01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 993 / 1000 | consumed_tokens: 636K | elapsed_time_per_iteration_ms: 39.4 | tokens_per_sec: 16.2K | tokens_per_sec_per_gpu: 2.03K | global_batch_size: 20 | lm_loss: 10.6 | lr: 1e-05 | model_tflops_per_gpu: 0.00992 | hardware_tflops_per_gpu: 0.00992 | grad_norm: 0.514
"""  # noqa: E501


def test_nanotron() -> None:
    """Milliseconds; with a K, they are seconds."""
    job = read(NANOTRON)
    expect(job, "nanotron", samples=40, seconds=0.0412 + 0.0394, steps=2)
    assert (job.batch, job.loss) == (20, 10.6)
    job = read(NANOTRON.replace("_ms: 41.2", "_ms: 41.2K").replace("_ms: 39.4", "_ms: 39.4K"))
    expect(job, "nanotron", samples=40, seconds=41.2 + 39.4, steps=2)


# ---- torchtitan --------------------------------------------------------------------------------------------

# https://github.com/pytorch/torchtitan/pull/3393 (the line of the batch: /pull/1625)
TITAN = """
[rank0]:[titan] 2025-08-22 07:52:57,498 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 10 (warmup 200)
[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:47,456 - root - INFO - step: 15  loss:  3.10680  grad_norm:  0.8587  memory:  9.46GiB(64.99%)  tps: 7,334  tflops: 0.53  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:48,577 - root - INFO - step: 16  loss:  3.05047  grad_norm:  0.5443  memory:  9.46GiB(64.99%)  tps: 7,313  tflops: 0.52  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:49,702 - root - INFO - step: 17  loss:  3.14459  grad_norm:  0.5303  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
"""  # noqa: E501
# https://github.com/pytorch/torchtitan/pull/1408: four ranks, none of them in order
# torchtitan's docs of 2024, before `wps` was called `tps`; under srun --label
TITAN_2024 = """
0: [rank0]:2024-07-12 16:09:30,000 - root - INFO - Training starts at step 1, with local batch size 1, global batch size 32, sequence length 8192, total steps 200 (warmup 20)
0: [rank0]:2024-07-12 16:09:46,008 - root - INFO - step: 10  loss:  8.9000  memory: 26.47GiB(33.47%)  wps: 1,780  mfu: 10.46%
1: [rank0]:2024-07-12 16:09:46,009 - root - INFO - step: 10  loss:  8.9000  memory: 26.47GiB(33.47%)  wps: 1,780  mfu: 10.46%
0: [rank0]:2024-07-12 16:10:32,008 - root - INFO - step: 20  loss:  8.1000  memory: 26.47GiB(33.47%)  wps: 1,780  mfu: 10.46%
0: [rank0]:2024-07-12 16:11:18,508 - root - INFO - step: 30  loss:  7.9000  memory: 26.47GiB(33.47%)  wps: 1,780  mfu: 10.46%
"""  # noqa: E501
TITAN_RANKS = """
[rank1]:[titan] 2025-07-18 13:14:25,094 - root - INFO - step:  7  loss:  4.5845  grad_norm:  2.2028  memory: 13.59GiB(14.31%)  tps: 33,610  tflops: 2.40  mfu: 0.24%
[rank3]:[titan] 2025-07-18 13:14:25,093 - root - INFO - step:  7  loss:  4.5845  grad_norm:  2.2028  memory: 13.59GiB(14.31%)  tps: 33,619  tflops: 2.40  mfu: 0.24%
[rank0]:[titan] 2025-07-18 13:14:25,093 - root - INFO - step:  7  loss:  4.5845  grad_norm:  2.2028  memory: 13.59GiB(14.31%)  tps: 33,611  tflops: 2.40  mfu: 0.24%
[rank1]:[titan] 2025-07-18 13:14:25,583 - root - INFO - step:  8  loss:  4.3660  grad_norm:  2.0564  memory: 13.59GiB(14.31%)  tps: 33,471  tflops: 2.39  mfu: 0.24%
[rank3]:[titan] 2025-07-18 13:14:25,583 - root - INFO - step:  8  loss:  4.3660  grad_norm:  2.0564  memory: 13.59GiB(14.31%)  tps: 33,462  tflops: 2.39  mfu: 0.24%
[rank0]:[titan] 2025-07-18 13:14:25,583 - root - INFO - step:  8  loss:  4.3660  grad_norm:  2.0564  memory: 13.59GiB(14.31%)  tps: 33,462  tflops: 2.39  mfu: 0.24%
"""  # noqa: E501
# https://github.com/pytorch/torchtitan/pull/2389: every rank prints, and none says which it is
TITAN_UNNAMED = """
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,049  tflops: 314.68  mfu: 13.99%
[titan] 2026-02-24 19:46:19,145 - root - INFO - step:  5  loss:  7.07623  grad_norm: 46.5000  memory: 66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: 13.93%
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.69  mfu: 13.99%
[titan] 2026-02-24 19:46:19,145 - root - INFO - step:  5  loss:  7.07623  grad_norm: 46.5000  memory: 66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: 13.93%
"""  # noqa: E501


def test_torchtitan() -> None:
    """Its time stamps have the seconds; the batch stands in the line of the trainer's beginning."""
    job = read(TITAN)
    expect(job, "torchtitan", samples=24, seconds=3.364, steps=3)
    assert (job.batch, job.memory, job.loss) == (8, int(9.46 * 2**30), 3.14459)
    assert job.measured and job.measured.tokens == pytest.approx(7334 * 1.118 + 7313 * 1.121 + 7282 * 1.125)


def test_torchtitan_of_which_only_tokens_are_known() -> None:
    """Jobs are compared by the time of a step, and their rate is in tokens; colours change nothing."""
    text = (
        TITAN.partition("warmup 200)")[2].replace("step: 1", "\x1b[31mstep: 1").replace("tps", "\x1b[34mtps")
    )
    job = read(text)
    expect(job, "torchtitan", samples=3, seconds=3.364, steps=3)
    assert (job.batch, job.unit) == (None, "steps") and job.step_seconds == pytest.approx(3.364 / 3)
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert (entry.samples_per_second, entry.step_seconds) == (None, job.step_seconds)
    assert entry.tokens_per_second == pytest.approx(7309.7, rel=1e-4)
    assert "steps, not in samples" in entry.notes[0] and "one device" in entry.notes[1]


@pytest.mark.parametrize(("text", "seconds"), [(TITAN_RANKS, 0.489), (TITAN_UNNAMED, 1.637)])
def test_ranks_that_print_the_same_step(text: str, seconds: float) -> None:
    expect(read(text), "torchtitan", samples=1, seconds=seconds, steps=1)


# ---- NeMo, Lightning ---------------------------------------------------------------------------------------

# https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/740
NEMO = """
Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | global_step: 120 | reduced_train_loss: 1.233 | train_step_timing in s: 0.03146 | val_loss: 4.106
Training epoch 0, iteration 121/149 | lr: 3e-05 | consumed_samples: 122 | global_batch_size: 1 | global_step: 121 | reduced_train_loss: 1.288 | train_step_timing in s: 0.03163 | val_loss: 4.106
Training epoch 0, iteration 122/149 | lr: 3e-05 | consumed_samples: 123 | global_batch_size: 1 | global_step: 122 | reduced_train_loss: 1.333 | train_step_timing in s: 0.03215 | val_loss: 4.106
Training epoch 0, iteration 123/149 | lr: 3e-05 | consumed_samples: 124 | global_batch_size: 1 | global_step: 123 | reduced_train_loss: 1.245 | train_step_timing in s: 0.03157 | val_loss: 4.106
"""  # noqa: E501
# Lightning 2.6.6 on a CPU: 200 batches an epoch, a bar for every hundredth
LIGHTNING = """
Epoch 0:   0%|          | 0/200 [00:00<?, ?it/s]
Epoch 0:  10%|█         | 20/200 [00:01<00:17, 10.52it/s, train_loss=0.350]
Epoch 0:  10%|█         | 20/200 [00:01<00:17, 10.52it/s, train_loss=0.350]
Epoch 0:  50%|█████     | 100/200 [00:08<00:08, 11.65it/s, train_loss=0.310]
Epoch 0: 100%|██████████| 200/200 [00:17<00:00, 11.57it/s, train_loss=0.315]
Validation DataLoader 0: 100%|██████████| 10/10 [00:00<00:00, 16.06it/s]
Epoch 0: 100%|██████████| 200/200 [00:17<00:00, 11.16it/s, train_loss=0.315, val_loss=0.327]
Epoch 0:   0%|          | 0/200 [00:00<?, ?it/s, train_loss=0.315, val_loss=0.327]
Epoch 1:  10%|█         | 20/200 [00:01<00:14, 12.05it/s, train_loss=0.346, val_loss=0.327]
Epoch 1:  50%|█████     | 100/200 [00:07<00:07, 12.51it/s, train_loss=0.306, val_loss=0.327]
Epoch 1: 100%|██████████| 200/200 [00:15<00:00, 13.20it/s, train_loss=0.310, val_loss=0.327]
`Trainer.fit` stopped: `max_epochs=2` reached.
"""
# The same run with RichProgressBar into a file: one bar, after the last step
RICH = """
`Trainer.fit` stopped: `max_epochs=2` reached.
Epoch 1/1  ━━━━━━━━━━━━━━━━ 200/200 0:00:11 •        18.02it/s train_loss: 0.358
                                    0:00:00                    val_loss: 0.346
"""
# https://github.com/NVIDIA/NeMo-Framework-Launcher/issues/55
NEMO_BAR = (
    "Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, "
    "reduced_train_loss=3.090, global_step=794.0, consumed_samples=1.63e+6]"
)


def test_nemo() -> None:
    """A step's own seconds."""
    job = read(NEMO)
    expect(job, "NeMo", samples=3, seconds=0.03163 + 0.03215 + 0.03157, steps=3)
    assert (job.batch, job.loss) == (1, 1.245)


def test_lightnings_bars() -> None:
    """Their mean pace since the epoch began tells more than their whole seconds: 20 batches at 10.52 a second
    are 1.901 s, 100 at 11.65 are 8.584 s. Nothing is told over the end of an epoch."""
    job = read(LIGHTNING)
    first = 200 / 11.57 - 20 / 10.52
    second = 200 / 13.20 - 20 / 12.05
    assert job.format == "Lightning" and job.measured and job.outcome == "succeeded"
    assert job.measured.steps == 360 and job.measured.seconds == pytest.approx(first + second, rel=2e-3)
    assert (job.unit, job.steps, job.loss) == ("steps", 400, 0.310)


def test_lightnings_rich_bar() -> None:
    """What is left of it in a file has no windows: 200 batches in 11 to 12 seconds."""
    job = read(RICH)
    assert (job.format, job.measured, job.outcome) == ("Lightning", None, "succeeded")
    assert job.rate == pytest.approx(200 / 11.5) and job.unit == "steps"


# The same into a terminal of 80 columns, two lines of many
RICH_TERMINAL = """
\x1b[2K\x1b[1A\x1b[2KEpoch 0/1  \x1b[35m━━━━━━\x1b[0m\x1b[35m╸\x1b[0m\x1b[90m━━━━━━━━━━\x1b[0m 80/200 \x1b[2m0:00:05 •       \x1b[0m \x1b[2;4m13.75it/s\x1b[0m \x1b[3mtrain_loss: 0.315\x1b[0m
\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2KEpoch 1/1  \x1b[35m━━━━━━━━━━━━━━━━\x1b[0m 200/200 \x1b[2m0:00:13 •       \x1b[0m \x1b[2;4m14.61it/s\x1b[0m \x1b[3mtrain_loss: 0.349\x1b[0m
"""  # noqa: E501


def test_rich_bars_of_a_terminal() -> None:
    """Seconds that are too few for their bar's whole ones give no window."""
    job = read(RICH_TERMINAL)
    assert (job.format, job.measured, job.steps) == ("Lightning", None, 400)
    assert job.rate == pytest.approx(200 / 13.5)


def test_a_bar_of_hours() -> None:
    """Its seconds are finer than its pace: 795 batches of 41.36 s are off by 4 s. The clock says 9:07:58."""
    job = read(NEMO_BAR)
    assert job.rate == pytest.approx(795 / (9 * 3600 + 7 * 60 + 58.5), rel=1e-4)


# ---- nanoGPT, modded-nanogpt -------------------------------------------------------------------------------

# https://github.com/karpathy/nanoGPT/issues/215
NANO = """
2023-03-22 09:31:45 iter 2980: loss 3.8993, time 1099.18ms, mfu 15.34%
2023-03-22 09:31:56 iter 2990: loss 3.8853, time 1096.65ms, mfu 15.34%
2023-03-22 09:32:32 step 3000: train loss 4.0390, val loss 4.0427
saving checkpoint to out
2023-03-22 09:32:41 iter 3000: loss 4.2490, time 35392.33ms, mfu 13.85%
2023-03-22 09:32:52 iter 3010: loss nan, time 1019.95ms, mfu 14.12%
"""
# https://github.com/KellerJordan/modded-nanogpt _logs/master-82de927d-20a6-422a-b45a-81de62bbfecc.txt
MODDED_OLD = """
            print(f'step:{step}/{args.num_iterations} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms')
step:0/1480 val_loss:10.8258 train_time:0ms step_avg:nanms
step:9/1480 train_time:461435ms step_avg:nanms
step:10/1480 train_time:461686ms step_avg:nanms
step:11/1480 train_time:248ms step_avg:nanms
step:12/1480 train_time:499ms step_avg:nanms
step:125/1480 train_time:28822ms step_avg:250.63ms
step:125/1480 val_loss:4.4223 train_time:28947ms step_avg:251.71ms
step:126/1480 train_time:29076ms step_avg:250.65ms
"""  # noqa: E501
# The same, records/track_1_short/2026-09-24_ApproximateBackward/runs/certify/00_baseline/console.log
MODDED = """
step:25/1194 train_time:522ms step_avg:20.88ms
step:50/1194 train_time:953ms step_avg:19.07ms
step:75/1194 train_time:1376ms step_avg:18.34ms
step:100/1194 train_time:1805ms step_avg:18.05ms
peak memory allocated: 51308 MiB reserved: 64784 MiB
"""


def test_nanogpt() -> None:
    """A line for every tenth step has the time of this one; that after an evaluation includes it."""
    job = read(NANO)
    expect(job, "nanoGPT", samples=2, seconds=1.09665 + 1.01995, steps=2)
    assert job.unit == "steps" and job.loss == 4.249


def test_modded_nanogpt() -> None:
    job = read(MODDED)
    expect(job, "modded-nanogpt", samples=75, seconds=1.283, steps=75)
    assert (job.outcome, job.memory) == ("succeeded", 51308 * 2**20)


def test_modded_nanogpts_clock_begins_again() -> None:
    """After ten steps; the log begins with the script's own text."""
    job = read(MODDED_OLD)
    expect(job, "modded-nanogpt", samples=115, seconds=28.828, steps=115)
    assert job.outcome == "timeout"


def test_torchtitan_of_2024() -> None:
    job = read(TITAN_2024)
    expect(job, "torchtitan", samples=640, seconds=92.5, steps=20)


# ---- OLMo-core, Composer -----------------------------------------------------------------------------------

# ai2-olmo-core 3.0.0 on a CPU, lines between left out
OLMO = """
2026-11-23 09:47:44.609\tvm:0\tolmo_core.train.callbacks.console_logger:71\tINFO\t[step=1/60,epoch=1]
2026-11-23 09:47:44.922\tvm:0\tolmo_core.train.callbacks.console_logger:71\tINFO\t[step=10/60,epoch=1,eta=1m]
    throughput/total tokens=10,240
2026-11-23 09:47:45.930\tvm:0\tolmo_core.train.callbacks.console_logger:71\tINFO\t[step=40/60,epoch=1,eta=1m]
    train/CE loss=2.748
    throughput/device/TPS=27,404
    throughput/device/TPS (actual avg)=30,217
    throughput/total tokens=40,960
    throughput/device/BPS=26.76
2026-11-23 09:47:46.692\tvm:0\tolmo_core.train.callbacks.console_logger:71\tINFO\t[step=60/60,epoch=1]
    train/CE loss=2.422
    throughput/total tokens=61,440
2026-11-23 09:47:46.898\tvm:0\tolmo_core.train.trainer:782\tINFO\tTraining complete
"""
# https://github.com/allenai/OLMo/issues/692
OLMO_1 = """
2024-08-06 09:59:26.181 intern-studio-160750:0  olmo.train:908  INFO    [step=1/739328,epoch=0]
    train/CrossEntropyLoss=12.18
    throughput/total_tokens=1,048,576
    throughput/total_training_Gflops=5,103,640
    System/Peak GPU Memory (MB)=46,911
2024-08-06 10:00:05.520 intern-studio-160750:0  olmo.train:908  INFO    [step=2/739328,epoch=0]
    train/CrossEntropyLoss=1.7872662283480167e-06
    throughput/total_tokens=2,097,152
    throughput/device/tokens_per_second=26,668
    throughput/device/batches_per_second=0.0254
    System/Peak GPU Memory (MB)=53,695
2024-08-06 10:00:44.815 intern-studio-160750:0  olmo.train:908  INFO    [step=3/739328,epoch=0]
    train/CrossEntropyLoss=0.0
    throughput/total_tokens=3,145,728
"""
# https://github.com/AI-Hypercomputer/maxtext/pull/761 (whose step was 9 as well) and /pull/2232
MAXTEXT = """
completed step: 8, seconds: 1.341, TFLOP/s/device: 257.929, Tokens/s/device: 36653.244, loss: 0.000
completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.374
"""  # noqa: E501
# mosaicml (Composer) 0.32.1 on a CPU, log_to_console=True, lines between left out
COMPOSER = """
[batch=1/60]:
\t Train time/batch: 0
\t Train time/sample: 0
\t Train loss/train/total: 0.3430
[batch=20/60]:
\t Train time/batch: 19
\t Train time/sample: 304
\t Train throughput/samples_per_sec: 495.2763
[batch=30/60]:
\t Train time/batch: 29
\t Train time/sample: 464
\t Train loss/train/total: 0.3449
\t Train throughput/batches_per_sec: 33.0758
\t Train throughput/samples_per_sec: 529.2125
\t Train throughput/device/samples_per_sec: 529.2125
[Eval batch=1/4] Eval on eval data
[batch=40/60]:
\t Train time/batch: 39
\t Train time/sample: 624
\t Train throughput/samples_per_sec: 573.6453
[batch=50/60]:
\t Train time/batch: 49
\t Train time/sample: 784
\t Train throughput/samples_per_sec: 438.1857
"""


def test_olmo_core() -> None:
    """The first window is the warm-up: nine steps after the first one."""
    job = read(OLMO)
    expect(job, "OLMo-core", samples=50, seconds=1.770, steps=50)
    assert (job.outcome, job.loss, job.unit) == ("succeeded", 2.422, "steps")
    assert job.measured and job.measured.tokens == 51200


def test_olmo_by_its_host_and_rank() -> None:
    """As the whole log of a cluster has them: who writes stands in the line."""
    named = [
        f"2024-04-17 09:42:{n:02d}.509\tnode-b{host}:0\tolmo.train:816\tINFO\t[step={n}/30]"
        for n in range(2, 32, 2)
        for host in (1, 2)
    ]
    job = read("\n".join(named[:-2]), "x.log")
    assert (job.hosts, job.hosts_from, job.outcome) == (("node-b1", "node-b2"), "log", "timeout")
    assert "28 of 30" in (job.reason or "")
    assert read("\n".join(named), "x.log").outcome == "succeeded"


def test_olmo() -> None:
    """Megabytes here, and it was cut off."""
    job = read(OLMO_1)
    expect(job, "OLMo-core", samples=2, seconds=78.634, steps=2)
    assert (job.outcome, job.total, job.memory) == ("timeout", 739_328, 53_695_000_000)
    assert job.measured and job.measured.tokens == 2097152


def test_maxtext() -> None:
    """A step's own time, and the tokens of one device."""
    job = read(MAXTEXT)
    expect(job, "MaxText", samples=1, seconds=5.667, steps=1)
    assert job.loss == 10.374 and job.measured
    assert job.measured.tokens == pytest.approx(8672.758 * 5.667)


def test_composer() -> None:
    """Its rate of the last batches, and how many samples there were: 160 at 529.2 a second. What comes after
    an evaluation is left out; the batch is that of the samples so far."""
    job = read(COMPOSER)
    expect(job, "Composer", samples=320, seconds=160 / 529.2125 + 160 / 438.1857, steps=20)
    assert (job.batch, job.loss) == (16, 0.3449)


# ---- DeepSpeed's time of parts, fairseq, MLPerf, Transformers ----------------------------------------------

# https://github.com/huggingface/accelerate/issues/1589
PARTS = """
[2023-06-21 07:39:09,443] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward: 27.41 | backward: 73.44 | backward_inner: 50.99 | backward_allreduce: 22.40 | step: 72.82
[2023-06-21 07:39:09,625] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward_microstep: 27.48 | backward_microstep: 73.59 | backward_inner_microstep: 51.05 | backward_allreduce_microstep: 22.49 | step_microstep: 72.59
[2023-06-21 07:39:09,626] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward: 27.46 | backward: 73.60 | backward_inner: 51.05 | backward_allreduce: 22.50 | step: 72.60
"""  # noqa: E501
# https://github.com/deepspeedai/DeepSpeedExamples training/DeepSpeed-ZenFlow/benchmark/README.md
PARTS_NOW = """
time (ms) | fwd_microstep: 0.38 | bwd_microstep: 57.88 | bwd_inner_microstep: 1.06 | bwd_allreduce_microstep: 56.50 | step_microstep: 183.27
time (ms) | fwd: 55.15 | bwd: 180.82 | bwd_inner: 13.28 | bwd_allreduce: 160.15 | step: 183.61
"""  # noqa: E501
# https://github.com/facebookresearch/fairseq/issues/940
FAIRSEQ = """
| epoch 001:    450 / 1891 loss=11.521, nll_loss=10.881, ppl=1886.05, wps=52922, ups=0.5, wpb=104928, bsz=5325, num_updates=445, lr=8.90889e-05, gnorm=1.543, clip=0%, oom=0, loss_scale=2.000, wall=882, train_wall=756
| epoch 001:    500 / 1891 loss=11.346, nll_loss=10.678, ppl=1637.83, wps=53351, ups=0.5, wpb=104872, bsz=5322, num_updates=495, lr=9.90876e-05, gnorm=1.507, clip=0%, oom=0, loss_scale=2.000, wall=973, train_wall=840
| epoch 001:    550 / 1891 loss=11.186, nll_loss=10.492, ppl=1440.01, wps=53627, ups=0.5, wpb=104800, bsz=5311, num_updates=545, lr=0.000109086, gnorm=1.469, clip=0%, oom=0, loss_scale=2.000, wall=1065, train_wall=925
| epoch 001:    600 / 1891 loss=11.039, nll_loss=10.320, ppl=1278.29, wps=53936, ups=0.5, wpb=104812, bsz=5310, num_updates=595, lr=0.000119085, gnorm=1.445, clip=0%, oom=0, loss_scale=2.000, wall=1156, train_wall=1010
| epoch 001 | valid on 'valid' subset | valid_loss 8.11425 | valid_nll_loss 6.8834 | valid_ppl 118.06 | num_updates 600
| epoch 001:    650 / 1891 loss=10.902, nll_loss=10.160, ppl=1144.39, wps=53573, ups=0.5, wpb=104904, bsz=5328, num_updates=645, lr=0.000129084, gnorm=1.419, clip=0%, oom=0, loss_scale=2.000, wall=1263, train_wall=1094
"""  # noqa: E501
# A public log of a translation without autoregression (nat59, 2023-06-13)
FAIRSEQ_2023 = """
2023-06-13 17:31:08 | INFO | train_inner | epoch 143:     85 / 282 loss=3.147, nll_loss=1.236, glat_accu=0.518, glat_context_p=0.473, word_ins=3.028, length=3.071, ppl=8.86, wps=72384.3, ups=1.21, wpb=59997.9, bsz=2186.3, num_updates=40100, lr=0.000157917, gnorm=0.489, clip=0, loss_scale=32768, train_wall=48, wall=0
2023-06-13 17:31:54 | INFO | train_inner | epoch 143:    185 / 282 loss=3.153, nll_loss=1.243, glat_accu=0.508, glat_context_p=0.473, word_ins=3.034, length=3.068, ppl=8.89, wps=132396, ups=2.18, wpb=60718.4, bsz=2141.4, num_updates=40200, lr=0.00015772, gnorm=0.483, clip=0, loss_scale=32768, train_wall=46, wall=0
2023-06-13 17:32:38 | INFO | fairseq_cli.train | begin validation on "valid" subset
2023-06-13 17:32:41 | INFO | valid | epoch 143 | valid on 'valid' subset | loss 12.677 | nll_loss 11.546 | word_ins 12.459 | length 4.375 | ppl 6550.94 | bleu 29.52 | wps 88225 | wpb 21176.3 | bsz 666.3 | num_updates 40297 | best_bleu 30.53
2023-06-13 17:33:01 | INFO | train_inner | epoch 144:      3 / 282 loss=3.14, nll_loss=1.23, glat_accu=0.495, glat_context_p=0.473, word_ins=3.023, length=3.076, ppl=8.82, wps=89307.1, ups=1.49, wpb=60051.3, bsz=2117.5, num_updates=40300, lr=0.000157524, gnorm=0.491, clip=0, loss_scale=32768, train_wall=45, wall=0
2023-06-13 17:33:48 | INFO | train_inner | epoch 144:    103 / 282 loss=3.126, nll_loss=1.214, glat_accu=0.485, glat_context_p=0.473, word_ins=3.008, length=3.085, ppl=8.73, wps=128796, ups=2.13, wpb=60501.2, bsz=2133.1, num_updates=40400, lr=0.000157329, gnorm=0.473, clip=0, loss_scale=32768, train_wall=47, wall=0
"""  # noqa: E501


def mllog(time: int, key: str, value: str = "null", about: str = "") -> str:
    """As they are printed, but for `namespace`, `event_type`, and the file and line in `metadata`."""
    return f':::MLLOG {{"time_ms": {time}, "key": "{key}", "value": {value}, "metadata": {{{about}}}}}'


# https://github.com/mlcommons/training_results_v4.0 ASUSTeK/results/ESC_N8A-E12/llama2_70b_lora/result_0.txt
LORA = [
    mllog(1715848254167, "submission_benchmark", '"llama2_70b_lora"'),
    mllog(1715848254167, "global_batch_size", "8"),
    mllog(1715848254696, "train_samples", "3901"),
    mllog(1715848320425, "run_start"),
    mllog(1715848320425, "block_start", about='"samples_count": 0'),
    mllog(1715849118294, "tracked_stats", '{"throughput": 1.9530199195379496}', '"step": 1536'),
    mllog(1715849118295, "block_stop", about='"samples_count": 1536'),
    mllog(1715849118295, "eval_start", about='"samples_count": 1536'),
    mllog(1715849156597, "eval_stop", about='"samples_count": 1536'),
    mllog(1715849156597, "block_start", about='"samples_count": 1536'),
    mllog(1715849352664, "tracked_stats", '{"throughput": 1.958973805780254}', '"step": 1920'),
    mllog(1715849352664, "block_stop", about='"samples_count": 1920'),
    mllog(1715849352664, "eval_start", about='"samples_count": 1920'),
    mllog(1715849390762, "eval_stop", about='"samples_count": 1920'),
    mllog(1715850093688, "run_stop", "0.9232596755027771", '"samples_count": 3072, "status": "success"'),
]
# .../training_results_v3.1 ASUSTeK/results/ESC-N8-E11/resnet/result_0.txt
RESNET = [
    mllog(1695775209695, "submission_benchmark", '"resnet"'),
    mllog(1695775252293, "global_batch_size", "3200"),
    mllog(1695775267919, "run_start"),
    mllog(1695775267919, "train_samples", "1281167"),
    mllog(1695775269933, "block_start", about='"first_epoch_num": 1, "epoch_count": 3'),
    mllog(1695775269934, "epoch_start", about='"epoch_num": 1'),
    mllog(1695775292877, "epoch_stop", about='"epoch_num": 1'),
    mllog(1695775292877, "epoch_start", about='"epoch_num": 2'),
    mllog(1695775315607, "epoch_stop", about='"epoch_num": 2'),
    mllog(1695775315608, "epoch_start", about='"epoch_num": 3'),
    mllog(1695775338356, "epoch_stop", about='"epoch_num": 3'),
    mllog(1695775338357, "tracked_stats", '{"throughput": 56317.25389453767}', '"step": 3'),
    mllog(1695775338410, "eval_start", about='"epoch_num": 3'),
    mllog(1695775338810, "eval_stop", about='"epoch_num": 3'),
    mllog(1695775338810, "block_stop", about='"first_epoch_num": 1'),
]
# .../training_results_v4.0 ASUSTeK/results/ESC_N8A-E12/bert/result_0.txt: epoch_num counts samples
BERT = [
    mllog(1714439387449, "submission_benchmark", '"bert"'),
    mllog(1714439387449, "global_batch_size", "768"),
    mllog(1714439637639, "eval_stop", "1650454", '"epoch_num": 1650454'),
    mllog(1714439656407, "eval_start", "1799977", '"epoch_num": 1799977'),
    mllog(1714439657736, "eval_stop", "1799977", '"epoch_num": 1799977'),
    mllog(1714439676060, "eval_start", "1950366", '"epoch_num": 1950366'),
    mllog(1714439677392, "epoch_stop", about='"epoch_num": 1950366'),
    mllog(1714439677392, "run_stop", about='"status": "success"'),
]
# .../training_results_v3.1 ASUSTeK/results/ESC-N8-E11/dlrm_dcnv2/result_0.txt: its throughput has the
# evaluations in it, which begin after every 904 batches
_EVALUATIONS = (
    (169362, 172791), (186725, 190155), (204017, 207432), (221300, 224732), (238597, 242029),
    (255889, 259308), (273235, 276663), (290529, 293932), (307798, 311218), (325161, 328582),
    (342512, 345925), (359796, 363216), (377081, 380507), (394371, 397796),
)  # fmt: skip
DLRM = [
    mllog(1695894067909, "submission_benchmark", '"dlrm_dcnv2"'),
    mllog(1695894067910, "global_batch_size", "55296"),
    mllog(1695894155100, "train_samples", "4195197692"),
    mllog(1695894155101, "run_start"),
    mllog(1695894155101, "epoch_start", about='"epoch_num": 0'),
    *(
        mllog(
            1695894000000 + time, key, about=f'"epoch_num": {0.6999037815181431 - 0.0499940687237211 * left}'
        )
        for left, (began, ended) in zip(range(13, -1, -1), _EVALUATIONS, strict=True)
        for time, key in ((began, "eval_start"), (ended, "eval_stop"))
    ),
    mllog(1695894397797, "run_stop", about='"status": "success"'),
    mllog(1695894397797, "epoch_stop", about='"epoch_num": 0.6999037815181431'),
    mllog(1695894397797, "tracked_stats", '{"throughput": 12098765.894549021}'),
]
# trl 1.16.0 and transformers 5.23.0 on a CPU, in a pipe; 8 sequences a step
TRL = """
 50%|█████     | 20/40 [00:41<00:39,  1.97s/it]

{'loss': '1.699', 'grad_norm': '6.159', 'learning_rate': '1.05e-05', 'entropy': '3.114', 'mean_token_accuracy': '0.8476', 'num_tokens': '1.024e+04', 'epoch': '0.4'}
100%|██████████| 5/5 [00:04<00:00,  1.11s/it]
{'eval_loss': '1.133', 'eval_runtime': '5.351', 'eval_samples_per_second': '7.475', 'eval_steps_per_second': '0.934', 'eval_entropy': '2.808'}
 50%|█████     | 20/40 [00:46<00:39,  1.97s/it]
 52%|█████▎    | 21/40 [00:50<01:16,  4.03s/it]
100%|██████████| 40/40 [01:13<00:00,  1.87it/s]
{'loss': '0.9657', 'grad_norm': '4.183', 'learning_rate': '5e-07', 'entropy': '2.684', 'mean_token_accuracy': '0.9998', 'num_tokens': '2.048e+04', 'epoch': '0.8'}
{'train_runtime': '73.86', 'train_samples_per_second': '4.333', 'train_steps_per_second': '0.542', 'train_loss': '1.651', 'epoch': '0.8'}
"""  # noqa: E501
# https://github.com/axolotl-ai-cloud/axolotl/issues/592, the bars' marks shortened
AXOLOTL = """
[2023-09-17 13:18:21,309] [INFO] [axolotl.utils.dataloader._len_est:264] [PID:11100] [RANK:0] packing_efficiency_estimate: 0.77 total_num_tokens per device: 26275
 32%|████▍    | 281/873 [25:36<52:46,  5.35s/it]
 32%|████▍    | 282/873 [25:40<49:29,  5.02s/it]
 32%|████▍    | 283/873 [25:44<47:06,  4.79s/it]
{'loss': 0.8635, 'learning_rate': 0.0001369640787949015, 'epoch': 0.97}
 33%|████▌    | 284/873 [25:49<45:20,  4.62s/it]
"""  # noqa: E501


def test_time_of_parts_gives_way_to_a_time_with_everything_in_it() -> None:
    job = read(MEGATRON + PARTS + PARTS_NOW + PARTS_NOW + DONE)
    assert job.format == "Megatron-LM, DeepSpeed (time of parts)"
    assert job.measured and job.measured.seconds == pytest.approx(5.4707 + 5.8299)


def test_deepspeeds_time_of_parts() -> None:
    """Forward, backward and step of one step, in both spellings: 173.66 ms, of the 183 that time stamps tell:
    loading and all that is between the parts is in those alone."""
    job = read(PARTS)
    expect(job, "DeepSpeed (time of parts)", samples=1, seconds=0.183, steps=1)
    assert job.contradicted == pytest.approx(1 / 0.17366)
    job = read(re.sub(r"^\[[^\]]*\] ", "", PARTS, flags=re.MULTILINE))
    expect(job, "DeepSpeed (time of parts)", samples=1, seconds=0.17366, steps=1)
    job = read(PARTS_NOW + PARTS_NOW)
    expect(job, "DeepSpeed (time of parts)", samples=1, seconds=0.41958, steps=1)


def test_fairseqs_simple_lines() -> None:
    """50 updates of 5,322 sentences each in 91 s, 5,311 in 92 s, 5,310 in 91 s; then it validates."""
    job = read(FAIRSEQ)
    samples = 50 * (5322 + 5311 + 5310)
    expect(job, "fairseq", samples=samples, seconds=274, steps=150)
    assert (job.outcome, job.loss) == ("timeout", 10.902)
    assert job.measured and job.measured.tokens == 50 * (104872 + 104800 + 104812)


def test_fairseqs_words_per_second_tell_more_than_whole_seconds() -> None:
    """46 and 47 s by the stamps; 100 updates of 60,718.4 words at 132,396 a second are 45.861 s."""
    job = read(FAIRSEQ_2023)
    seconds = 100 * 60718.4 / 132396 + 100 * 60501.2 / 128796
    expect(job, "fairseq", samples=100 * (2141.4 + 2133.1), seconds=seconds, steps=200)


def test_mlperf_by_samples() -> None:
    """1,536 samples of the first block are its warm-up; then 384 in 196.067 s."""
    job = one(LORA, "node-1.log")
    expect(job, "MLPerf", samples=384, seconds=196.067, steps=48)
    assert (job.outcome, job.workload, job.batch, job.steps) == ("succeeded", "llama2_70b_lora", 8, 240)
    assert (job.reported, job.began, job.ended) == (1.958973805780254, 1715848320.425, 1715850093.688)


def test_mlperfs_figures_that_disagree_are_not_taken() -> None:
    """`train_samples` that counts batches; epochs that begin and end at once."""
    end = mllog(1695776068290, "run_stop", about='"status": "success", "epoch": 34')
    batches = [line.replace("1281167", "401") for line in RESNET]
    job = one([*batches, end], "node-1.log")
    assert (job.outcome, job.measured, job.reported) == ("succeeded", None, None)
    assert any("17.635" in note and "56,317" in note for note in job.notes)
    silent = one([*(line for line in RESNET if "throughput" not in line), end], "node-1.log")
    assert silent.rate and GUESSED in silent.notes
    apart = [mllog(1695775269934 + 22_000 * n + 10 * (each == "epoch_stop"), each, about=f'"epoch_num": {n}')
             for n in range(30) for each in ("epoch_start", "epoch_stop")]  # fmt: skip
    short = one([*RESNET[:4], *apart, end], "node-1.log")
    assert (short.measured, short.rate) == (None, None) and any("0.3 s" in note for note in short.notes)


# https://github.com/mlcommons/training_results_v0.7 DellEMC/results/C4140/transformer/result_0.txt: sentences
# that are too long are in no epoch
TRANSLATION = [
    mllog(1593121539364, "global_batch_size", "61440"),
    mllog(1593121551117, "run_start"),
    mllog(1593121552091, "train_samples", "4590101"),
    mllog(1593121553750, "epoch_start", about='"epoch_num": 1'),
    "| epoch 001:   1000 / 2184 loss=81194.557, nll_loss=0.000, ppl=1.00, wps=176776, ups=3.1, "
    "wpb=56091, bsz=485, num_updates=997, lr=0.000985036, gnorm=100454.812, clip=100%, oom=0, loss_scale=8.000, wall=323",  # noqa: E501
    "| epoch 001:   2000 / 2184 loss=66602.039, nll_loss=0.000, ppl=1.00, wps=176938, ups=3.1, "
    "wpb=56076, bsz=487, num_updates=1995, lr=0.00197106, gnorm=69763.465, clip=100%, oom=0, loss_scale=4.000, wall=639",  # noqa: E501
    mllog(1593122244244, "epoch_stop", about='"epoch_num": 1'),
    mllog(1593122244245, "eval_start", about='"epoch_num": 1'),
    mllog(1593122259695, "eval_stop", about='"epoch_num": 1'),
    mllog(1593122259701, "epoch_start", about='"epoch_num": 2'),
    mllog(1593122950194, "epoch_stop", about='"epoch_num": 2'),
    mllog(1593122950194, "run_stop", about='"status": "success"'),
]


def test_what_another_format_of_the_log_counts_is_better_than_an_epochs_size() -> None:
    """998 updates of 487 sentences in 316 s, and not 4,590,101 in 690."""
    job = one(TRANSLATION, "node-1.log")
    assert job.outcome == "succeeded" and job.rate == pytest.approx(998 * 487 / 316, rel=0.01)
    assert job.contradicted == pytest.approx(4590101 / 690.493, rel=0.01)


def test_mlperfs_figure_of_the_whole_run_confirms_the_windows() -> None:
    """70 % of 4,195,197,692 samples in 242.7 s, evaluations and all, are its 12.1 M samples/s; without them
    each 5 % take 13.9 s: 15.1 M."""
    job = one(DLRM, "node-1.log")
    assert job.measured is not None and job.contradicted is None and not job.notes
    rate = 12 * 0.0499940687237211 * 4195197692 / 166.611
    assert job.measured.rate == pytest.approx(rate, rel=0.005) and rate == pytest.approx(15.11e6, rel=1e-3)
    other = [line.replace("12098765.89", "9098765.89") for line in DLRM]
    assert one(other, "node-1.log").contradicted is not None


def test_mlperfs_tokens() -> None:
    """A rate of tokens beside samples of so many."""
    said = [mllog(1715848254167, "max_sequence_length", "8192")]
    lines = [
        re.sub(r'"throughput": ([\d.]+)', lambda m: f'"throughput": {8192 * float(m[1])}', line)
        for line in LORA
    ]
    assert one([*said, *lines], "node-1.log").rate == pytest.approx(384 / 196.067)
    assert one(lines, "node-1.log").rate is None


def test_time_stamps_win_over_a_tools_own_time() -> None:
    """An iteration of 5 s by its own timer every 7.5 s."""
    lines = [
        MEGATRON.split("\n")[1].replace("03:02:12", f"03:{n * 15 // 2 // 60:02d}:{n * 15 // 2 % 60:02d}")
        .replace("71/", f"{n + 1}/").replace("5361.6", "5000.0").replace("9088", f"{128 * (n + 1)}")
        for n in range(100)
    ]  # fmt: skip
    job = one([*lines, DONE], "node-1.log")
    assert job.step_seconds == pytest.approx(7.5, rel=1e-3)
    assert job.contradicted == pytest.approx(128 / 5)
    agree = one([line.replace("5000.0", "7500.0") for line in lines] + [DONE], "node-1.log")
    assert agree.step_seconds == pytest.approx(7.5) and agree.contradicted is None
    assert one([*lines[:10], DONE], "node-1.log").step_seconds == 5  # too short for whole seconds


def test_mlperf_by_epochs() -> None:
    """The first of three epochs of 1,281,167 images is the warm-up; then 22.730 and 22.748 s."""
    end = mllog(1695776068290, "run_stop", about='"status": "success", "epoch": 34')
    job = one([*RESNET, end], "node-1.log")
    expect(job, "MLPerf", samples=2 * 1281167, seconds=45.478, steps=800)
    assert (job.outcome, job.batch, job.reported) == ("succeeded", 3200, 56317.25389453767)
    assert one(RESNET, "node-1.log").outcome == "timeout"


def test_mlperfs_bert() -> None:
    job = one(BERT, "node-1.log")
    assert job.rate == pytest.approx((1950366 - 1799977) / 18.324) and job.outcome == "succeeded"


def test_trl_and_axolotl() -> None:
    """The Trainer's own account, where bars of whole seconds did not run for long enough."""
    job = read(TRL)
    assert (job.format, job.outcome, job.batch, job.steps) == ("Transformers", "succeeded", 8, 40)
    assert (job.rate, job.loss) == (4.333, 0.9657)
    job = read(AXOLOTL)
    assert (job.format, job.outcome, job.steps, job.loss) == ("Transformers", "timeout", 284, 0.8635)


@pytest.mark.parametrize("label", ["[rank0]:", "0: ", "[default0]:", "[1,0]<stdout>:"])
def test_labels_of_launchers_change_nothing(label: str) -> None:
    for text in (MEGATRON, OLMO, COMPOSER, MODDED, NEMO, NANO):
        job, labelled = read(text), read("\n".join(label + line for line in text.strip("\n").split("\n")))
        assert labelled.measured == job.measured and labelled.batch == job.batch


# ---- what was trained --------------------------------------------------------------------------------------

# The arguments that the log of MEGATRON_EVALUATED begins with, some of them
ARGUMENTS = """
  ffn_hidden_size ................................. 3072
  hidden_size ..................................... 768
  micro_batch_size ................................ 1
  num_layers ...................................... 12
  num_workers ..................................... 2
  params_dtype .................................... torch.float16
  pipeline_model_parallel_size .................... 1
  save ............................................ /root/workspace/checkpoint/GPT2_pretrain_WS1
  seq_length ...................................... 512
  tensor_model_parallel_size ...................... 1
"""
# A public log of torchtitan 2025-11-25, and one of 2025-02-13 with its colour
TITAN_SIZES = """
[rank0]:[titan] 2025-11-25 19:44:58,595 - root - INFO - Model llama3 debugmodel size: 6,163,712 total parameters
[rank0]:2025-02-13 11:33:29,156 - root - INFO - Model llama3 8B \x1b[31msize: 8,030,261,248 total parameters
"""  # noqa: E501


def test_megatrons_arguments_say_what_was_trained() -> None:
    """Those that decide how long a step takes; jobs of another model are of another work."""
    alike = ARGUMENTS.replace("GPT2_pretrain_WS1", "another").replace(". 2\n", ". 4\n")
    texts = (ARGUMENTS, alike, ARGUMENTS.replace(" 768", " 1024"))
    job, same, other = (read(text + MEGATRON + DONE) for text in texts)
    assert not job.alone and "hidden_size ..................................... 768" in job.recipe
    assert job.recipe == same.recipe != other.recipe
    assert read(MEGATRON + DONE).alone


def test_torchtitan_says_what_was_trained() -> None:
    jobs = [read(f"{line}\n{TITAN}") for line in TITAN_SIZES.strip().split("\n")]
    assert not any(job.alone for job in jobs) and jobs[0].recipe != jobs[1].recipe
    assert all("sequence length 8192" in job.recipe for job in jobs)
    assert "llama3 8B size: 8,030,261,248" in jobs[1].recipe


def test_a_rate_that_the_tools_own_contradicts() -> None:
    """A batch that is wrong by a factor does not go by unseen."""
    job = read(MEGATRON_DEEPSPEED + DONE)
    assert job.contradicted is None
    wrong = MEGATRON_DEEPSPEED.replace("samples per second: 1", "samples per second: 14")
    assert read(wrong + DONE).contradicted


_TEXTS = [
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str | list)
]
ALL = [
    line
    for value in _TEXTS
    for text in ([value] if isinstance(value, str) else value)
    for line in text.strip("\n").split("\n")
]


def titan_log(host: str, step: float) -> JobLog:
    """TITAN's own lines, 60 of them, `step` seconds apart; the batch is not told, as before 2025."""
    size, (head, *_) = TITAN_SIZES.strip().split("\n")[0], TITAN.strip().split("\n")[1:]
    start = datetime(2026, 5, 18, 16, 4, 46)
    lines = [
        head.replace(
            "2026-05-18 16:04:46,338", f"{start + timedelta(seconds=n * step):%Y-%m-%d %H:%M:%S,%f}"[:23]
        )
        .replace("step: 14", f"step: {n}")
        .replace("7,282", f"{8192 / step:,.0f}")
        for n in range(1, 61)
    ]
    return one([size, *lines], f"run/{host}.log")


def test_a_slow_host_among_logs_without_samples() -> None:
    logs = [titan_log(f"gpu{n:02d}", 1.5 if n == 5 else 1 + n * 1e-4) for n in range(12)]
    found = judged("x", logs, Settings(), {})
    slow = [each.hosts[0] for each in found.hosts if each.condition == "slow"]
    assert slow == ["gpu05"] and found.summary["fit"] == 11
    assert {job.samples_per_second for job in found.jobs} == {None}
    assert all(job.tokens_per_second and job.step_seconds for job in found.jobs)
    assert found.peers[0].samples_per_second is None and found.peers[0].step_seconds == pytest.approx(1, 0.01)
