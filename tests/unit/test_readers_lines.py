"""Tools that write a step on a line. Every line was printed by the tool (tests/golden/logs): from where
stands above its name. What is expected is worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers._lines import STEPS_ONLY
from muster.readers._read import contradicting
from muster.readers.base import APART, JobLog, MeasuredWindows, Reading
from muster.readers.mllog import GUESSED
from tests.golden.documents import sections
from tests.unit.logs import one

LOGS = sections(Path(__file__).parents[1] / "golden" / "logs" / "formats.txt")


def log(name: str) -> str:
    """What a tool printed."""
    return f"\n{LOGS[name]}"


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
MEGATRON = log("megatron")
# ms-swift's examples/train/activation_cpu_offload, and a public log of version 4 (bars and all)
SWIFT = log("swift")
SWIFT_3 = "{'loss': 2.1327579, 'grad_norm': 1.72890568, 'learning_rate': 8.346e-05, 'token_acc': 0.58396158, 'epoch': 0.32, 'global_step/max_steps': '5/16', 'percentage': '31.25%', 'elapsed_time': '5m 28s', 'remaining_time': '12m 2s', 'memory(GiB)': 24.8, 'train_speed(iter/s)': 0.015218}"  # noqa: E501
# https://github.com/FZJ-JSC/jubench-megatron-lm DESCRIPTION.md
MEGATRON_DEEPSPEED = log("megatron-deepspeed")
# A public note on training GPT-2 with Megatron-LM (its checkpoint is GPT2_pretrain_WS1, April 2025)
MEGATRON_EVALUATED = log("megatron-evaluated")
DONE = "[after training is done] datetime: 2024-08-01 09:44:58\n"  # as above, of another run


def test_megatron() -> None:
    """Milliseconds of an iteration; the first line is left out, and so is what came before it elsewhere."""
    job = read(MEGATRON + DONE)
    expect(job, "Megatron-LM", samples=256, seconds=5.4707 + 5.8299, steps=2)
    assert (job.outcome, job.batch, job.steps, job.skipped_steps) == ("succeeded", 128, 3, 0)
    assert job.loss == 1.798953 and job.step_seconds == pytest.approx(5.6503)
    assert job.started and job.ended and job.ended - job.started == 12


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
    assert (job.steps, job.skipped_steps, job.memory) == (70, 21, int(1464.3408203125 * 2**20))


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
NANOTRON = log("nanotron")


def test_nanotron() -> None:
    """Milliseconds; with a K, they are seconds."""
    job = read(NANOTRON)
    expect(job, "nanotron", samples=40, seconds=0.0412 + 0.0394, steps=2)
    assert (job.batch, job.loss) == (20, 10.6)
    job = read(NANOTRON.replace("_ms: 41.2", "_ms: 41.2K").replace("_ms: 39.4", "_ms: 39.4K"))
    expect(job, "nanotron", samples=40, seconds=41.2 + 39.4, steps=2)


# ---- torchtitan --------------------------------------------------------------------------------------------

# https://github.com/pytorch/torchtitan/pull/3393 (the line of the batch: /pull/1625)
TITAN = log("titan")
# https://github.com/pytorch/torchtitan/pull/1408: four ranks, none of them in order
# torchtitan's docs of 2024, before `wps` was called `tps`; under srun --label
TITAN_2024 = log("titan-2024")
TITAN_RANKS = log("titan-ranks")
# https://github.com/pytorch/torchtitan/pull/2389: every rank prints, and none says which it is
TITAN_UNNAMED = log("titan-unnamed")


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
NEMO = log("nemo")
# Lightning 2.6.6 on a CPU: 200 batches an epoch, a bar for every hundredth
LIGHTNING = log("lightning")
# The same run with RichProgressBar into a file: one bar, after the last step
RICH = log("rich")
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
RICH_TERMINAL = log("rich-terminal")


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
NANO = log("nano")
# https://github.com/KellerJordan/modded-nanogpt _logs/master-82de927d-20a6-422a-b45a-81de62bbfecc.txt
MODDED_OLD = log("modded-old")
# The same, records/track_1_short/2026-09-24_ApproximateBackward/runs/certify/00_baseline/console.log
MODDED = log("modded")


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
OLMO = log("olmo")
# https://github.com/allenai/OLMo/issues/692
OLMO_1 = log("olmo-1")
# https://github.com/AI-Hypercomputer/maxtext/pull/761 (whose step was 9 as well) and /pull/2232
MAXTEXT = log("maxtext")
# mosaicml (Composer) 0.32.1 on a CPU, log_to_console=True, lines between left out
COMPOSER = log("composer")


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
PARTS = log("parts")
# https://github.com/deepspeedai/DeepSpeedExamples training/DeepSpeed-ZenFlow/benchmark/README.md
PARTS_NOW = log("parts-now")
# https://github.com/facebookresearch/fairseq/issues/940
FAIRSEQ = log("fairseq")
# A public log of a translation without autoregression (nat59, 2023-06-13)
FAIRSEQ_2023 = log("fairseq-2023")


def mllog(time: int, key: str, value: str = "null", about: str = "") -> str:
    """As they are printed, but for `namespace`, `event_type`, and the file and line in `metadata`."""
    return f':::MLLOG {{"time_ms": {time}, "key": "{key}", "value": {value}, "metadata": {{{about}}}}}'


# https://github.com/mlcommons/training_results_v4.0 ASUSTeK/results/ESC_N8A-E12/llama2_70b_lora/result_0.txt
LORA = log("lora").split("\n")[1:-1]
# .../training_results_v3.1 ASUSTeK/results/ESC-N8-E11/resnet/result_0.txt
RESNET = log("resnet").split("\n")[1:-1]
# .../training_results_v4.0 ASUSTeK/results/ESC_N8A-E12/bert/result_0.txt: epoch_num counts samples
BERT = log("bert").split("\n")[1:-1]
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
TRL = log("trl")
# https://github.com/axolotl-ai-cloud/axolotl/issues/592, the bars' marks shortened
AXOLOTL = log("axolotl")


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
    assert (job.reported, job.started, job.ended) == (1.958973805780254, 1715848320.425, 1715850093.688)


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
TRANSLATION = log("translation").split("\n")[1:-1]


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
    job = one([*said, *lines], "node-1.log")
    assert job.rate == pytest.approx(384 / 196.067) and job.reported == pytest.approx(job.rate, rel=APART)
    assert one(lines, "node-1.log").rate is None


def test_a_throughput_of_unknown_unit_is_no_rate() -> None:
    """NVIDIA's of GPT-3 on 10,752 GPUs is of tokens, and nothing in the log says so."""
    lines = [
        mllog(1696565166948, "run_start"),
        mllog(1696565401886, "tracked_stats", '{"throughput": 5154997.267404211}'),
        mllog(1696565401896, "run_stop", about='"status": "success"'),
    ]
    job = one(lines, "node-1.log")
    assert (job.outcome, job.rate, job.reported) == ("succeeded", None, None) and job.notes


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
    enough = one([*lines[:12], DONE], "node-1.log")  # 60 s, give or take one
    assert enough.step_seconds == pytest.approx(7.5, rel=0.02) and enough.contradicted


@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.3])
def test_short_steps_under_stamps_of_whole_seconds(seconds: float) -> None:
    """Single steps seem to take none, one or two seconds: so many together tell what they take."""
    line = MEGATRON.split("\n")[1]

    def log(own: float) -> list[str]:
        return [
            line.replace("03:02:12", f"03:{int(n * seconds) // 60:02d}:{int(n * seconds) % 60:02d}")
            .replace("71/", f"{n + 1}/").replace("5361.6", f"{1000 * own:.1f}")
            .replace("9088", f"{128 * (n + 1)}")
            for n in range(1400)
        ]  # fmt: skip

    agree = one([*log(seconds), DONE], "node-1.log")
    assert agree.step_seconds == pytest.approx(seconds, rel=1e-3) and agree.contradicted is None
    less = one([*log(seconds / 1.5), DONE], "node-1.log")
    assert less.step_seconds == pytest.approx(seconds, rel=0.01)
    assert less.contradicted == pytest.approx(192 / seconds, rel=0.01)
    assert less.measured is not None
    for half in less.measured.halves or ():  # neither half seems to be slower
        assert half == pytest.approx(seconds / 128, rel=0.01)


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
TITAN_SIZES = log("titan-sizes")


def test_megatrons_arguments_say_what_was_trained() -> None:
    """Those that decide how long a step takes; jobs of another model are of another work."""
    alike = ARGUMENTS.replace("GPT2_pretrain_WS1", "another").replace(". 2\n", ". 4\n")
    texts = (ARGUMENTS, alike, ARGUMENTS.replace(" 768", " 1024"))
    job, same, other = (read(text + MEGATRON + DONE) for text in texts)
    assert not job.alone and "hidden_size ..................................... 768" in job.settings
    assert job.settings == same.settings != other.settings
    assert read(MEGATRON + DONE).alone


def test_torchtitan_says_what_was_trained() -> None:
    jobs = [read(f"{line}\n{TITAN}") for line in TITAN_SIZES.strip().split("\n")]
    assert not any(job.alone for job in jobs) and jobs[0].settings != jobs[1].settings
    assert all("sequence length 8192" in job.settings for job in jobs)
    assert "llama3 8B size: 8,030,261,248" in jobs[1].settings


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


def test_a_format_that_counts_steps_beside_one_that_counts_samples() -> None:
    """Megatron-DeepSpeed: DeepSpeed's timer lines know of no batch."""
    lines = []
    for n in range(1, 30):
        at = f"2024-03-07 15:{27 + n // 4}:{n % 4 * 15:02d},500"
        lines += [
            f"[{at}] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
            "RunningAvgSamplesPerSec=51.2, CurrSamplesPerSec=51.2, MemAllocated=6.01GB",
            f" iteration {n:8d}/      29 | consumed samples: {768 * n:12d} | "
            "elapsed time per iteration (ms): 15000.0 | global batch size:   768 | lm loss: 5.9E+00 |",
        ]
    job = one([*lines, DONE], "node-1.log")
    assert job.rate == pytest.approx(51.2) and STEPS_ONLY not in job.notes


def test_formats_that_count_unlike_things_do_not_contradict_each_other() -> None:
    steps = MeasuredWindows(steps=10, skipped=0, samples=10.0, seconds=10.0, unit="steps")
    samples = replace(steps, samples=640.0, unit="samples")
    first, other = Reading("a", unit="steps"), Reading("b", sure=False)
    assert contradicting([(first, steps), (other, samples)]) is None
    assert contradicting([(first, replace(samples, samples=700.0)), (other, samples)]) == 64.0
