"""Tools that write a step on a line, or on a few consecutive ones: one entry of FORMATS for each."""

from __future__ import annotations

import re

from muster.readers._frame import Frame
from muster.readers._lines import GOES_ON, LineFormat, Steps
from muster.readers.base import LOSS, Reading


def _all(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_NEMO = _all(
    r"train_step_timing in s: (?P<seconds>[\d.e-]+)",
    r"global_batch_size: (?P<batch>\d+)",
    rf"reduced_train_loss: {LOSS}",
)
_VALIDATES = ("Validation ", "alidation epoch")
# Lightning's own words, and those of its EarlyStopping, after which it may go on to its least epoch.
_STOPPED = ("`Trainer.fit` stopped: ", " records. Best score: ", "Stopping threshold reached: ")
_TRAINABLE = _all(r"^Trainable params: .*\S|^[\d.]+ +[KMBT]? +Trainable params")
FORMATS = (
    LineFormat(  # Megatron-LM since 2019 and what was made of it: Megatron-DeepSpeed, Megatron-Bridge, Primus
        "Megatron-LM",
        hints=(
            "elapsed time per iteration",
            "elapsed_time_per_iteration",
            "max allocated: ",
            "_size ..",
            "num_layers ..",
            "seq_length ..",
            "_heads ..",
            "_granularity ..",
            "params_dtype ..",
            "num_experts ..",
        ),
        step=re.compile(r"\biteration[ =]\s*(?P<step>\d+)/\s*(?P<total>\d+) \|"),
        facts=_all(
            r"elapsed[ _]time[ _]per[ _]iteration(?: \(ms\):|_ms=) *(?P<ms>[\d.]+)",
            r"elapsed[ _]time[ _]per[ _]iteration(?: \(s\):|_s=) *(?P<seconds>[\d.]+)",
            r"global[ _]batch[ _]size[:=] *(?P<batch>\d+)",
            r"consumed[ _]samples[:=] *(?P<samples>\d+)",
            r"consumed[ _]tokens[:=] *(?P<tokens>\d+) ",
            r"samples[ _]per[ _]second[:=] *(?P<samples_per_second>[\d.]+)",
            r"number[ _]of[ _]skipped[ _]iterations[:=] *(?P<skipped>\d+)",
            rf"lm[ _]loss[:=]? *{LOSS}",
            r"memory \(MB\) .*?max allocated: (?P<memory_mib>[\d.]+)",
        ),
        settings=_all(
            r"^(?:\[rank\d+\]:)? *hidden_size \.{2,} \S+",
            r"^(?:\[rank\d+\]:)? *(?:num_layers|ffn_hidden_size|num_attention_heads|seq_length|"
            r"micro_batch_size|\w+_parallel_size|num_experts|params_dtype|recompute_granularity|"
            r"padded_vocab_size) \.{2,} \S+",
        ),
        whole=True,
        stops=("validation loss at", "saving checkpoint at iteration", "loading checkpoint from"),
        # By --exit-interval and --exit-duration-in-mins; "after receiving SIGTERM." is no end of its own.
        ends=("[after training is done]", "[exiting program at iteration ", " minutes] datetime: "),
        tells_end=True,
        counts_down=True,
    ),
    LineFormat(  # whose figures have three digits, and a K where they are thousands
        "nanotron",
        hints=("elapsed_time_per_iteration_ms: ",),
        step=re.compile(r"\biteration: (?P<step>\d+) / (?P<total>\d+) \|"),
        facts=_all(
            r"elapsed_time_per_iteration_ms: (?:(?P<seconds>[\d.]+)K|(?P<ms>[\d.]+)) \|",
            r"global_batch_size: (?P<batch>\d+) \|",
            rf"lm_loss: {LOSS}",
        ),
        single=True,
        counts_down=True,
    ),
    LineFormat(
        "torchtitan",
        hints=(
            "tps: ",
            "wps: ",
            "Trainer is initialized with",
            "Training starts at step",
            " total parameters",
        ),
        step=re.compile(
            r"(?:\[rank(?P<rank>\d+)\]:.*)?(?<!validate )\bstep: *(?P<step>\d+) +loss: *(?P<loss>\S+)"
        ),
        facts=_all(
            r"\bmemory: *(?P<memory_gib>[\d.]+)GiB",
            r"\b[tw]ps: *(?P<tokens_per_second>[\d,.]+)",
            r"\bglobal batch size (?P<batch>\d+)(?:.*?\bsequence length (?P<sequence>\d+))?",
            r"\btotal steps (?P<all_steps>\d+)",
        ),
        settings=_all(
            r"- Model .* total parameters",
            r"local batch size \d+",
            r"sequence length \d+",
        ),
        stops=(
            "Saving the checkpoint",
            "Saving a checkpoint",
            "Loading the checkpoint",
            "Training starts at step",
            "validate step:",
        ),
        ends=("Training completed",),
        device=True,
    ),
    LineFormat(  # whose iterations can be of the epoch beside the total of the training
        "NeMo",
        hints=("train_step_timing in s", "rainable params"),
        step=re.compile(
            r"Training epoch \d+, iteration (?P<within>\d+)/(?P<total>\d+) \|.*?"
            r"\bglobal_step: (?P<step>\d+)"
        ),
        facts=_NEMO,
        settings=_TRAINABLE,
        stops=_VALIDATES,
        ends=_STOPPED,
        single=True,
    ),
    LineFormat(
        "NeMo",
        hints=("train_step_timing in s", "rainable params"),
        step=re.compile(
            r"Training epoch (?P<epoch>\d+), iteration (?P<step>\d+)/(?P<total>\d+) \|(?!.*global_step: )"
        ),
        facts=_NEMO,
        settings=_TRAINABLE,
        stops=_VALIDATES,
        ends=_STOPPED,
        single=True,
        counts_down=True,
    ),
    LineFormat(  # the main bar of Lightning, and of NeMo, which is made with it
        "Lightning",
        hints=("Epoch ", "rainable params"),
        own=re.compile(r"[ ,](?:v_num|consumed_samples|reduced_train_loss)="),
        otherwise="a progress bar",
        step=re.compile(
            r"^\s*Epoch (?P<epoch>\d+): .*?\| *(?P<step>[1-9]\d*)/(?P<total>\d+) "
            r"\[(?P<clock>(?:\d{1,6}:)?\d\d:\d\d)<(?:[^,\]]*, +(?P<pace>[\d.]+)(?P<per>it/s|s/it))?"
        ),
        facts=_all(
            r"[ ,]consumed_samples=(?P<samples>\d+)(?:\.0)?(?=[,\]])",
            rf"[ ,](?:reduced_)?(?:train_)?loss={LOSS}",
        ),
        settings=_TRAINABLE,
        stops=("Validation", "alidating", GOES_ON),
        ends=_STOPPED,
        counts_down=True,
    ),
    LineFormat(
        "Lightning",
        hints=("\u2501",),
        step=re.compile(
            r"Epoch (?P<epoch>\d+)/(?P<last_epoch>\d+) .*?[\u2501\u2578\u257a] (?P<step>\d+)/(?P<total>\d+) "
            r"(?P<clock>\d{1,6}:\d\d:\d\d) \u2022"
        ),
        facts=_all(rf" (?:train_)?loss: {LOSS}"),
        stops=("Validation", GOES_ON),
        ends=_STOPPED,
        counts_down=True,
    ),
    LineFormat(
        "nanoGPT",
        hints=(": loss ", "tokens per iteration will be", "number of parameters: "),
        step=re.compile(r"\biter (?P<step>\d+): loss (?P<loss>\S+), time (?P<ms>[\d.]+)ms"),
        facts=_all(r"tokens per iteration will be: (?P<step_tokens>[\d,]+)"),
        settings=_all(r"number of parameters: [\d.]+M", r"tokens per iteration will be: [\d,]+"),
        stops=(", val loss ", "saving checkpoint to"),
        single=True,
    ),
    LineFormat(  # its clock stands still while it validates
        "modded-nanogpt",
        hints=(" train_time:", "peak memory "),
        step=re.compile(r"\bstep:(?P<step>\d+)/(?P<total>\d+) .*?train_time:(?P<elapsed_ms>\d+)ms"),
        facts=_all(rf"val_loss:{LOSS}", r"peak memory (?:allocated|consumption): (?P<memory_mib>\d+) MiB"),
        ends=("peak memory ",),
        tells_end=True,
    ),
    LineFormat(  # and OLMo before it
        "OLMo-core",
        hints=("[step=", "train/C", "throughput/total", "GPU active mem", "Peak GPU Memory", " total params"),
        step=re.compile(r"\[step=(?P<step>\d+)/(?P<total>\d+)[,\]]"),
        facts=_all(
            r"\btrain/(?:CE loss|CrossEntropyLoss)=(?P<loss>\S+)",
            r"\bthroughput/total[ _]tokens=(?P<tokens>[\d,]+)$",
            r"\b(?:system|gpu_memory)/GPU active mem \(GiB\)=(?P<memory_gib>[\d.,]+)",
            r"\bSystem/Peak GPU Memory \(MB\)=(?P<memory_mb>[\d.,]+)",
        ),
        settings=_all(r"Building transformer with [\d,]+ total params"),
        stops=(" evals...", "Saving checkpoint", "Loading checkpoint"),
        ends=("Training complete",),
        counts_down=True,
    ),
    LineFormat(  # its clock shows whole seconds, its pace is the mean since that began
        "ms-swift",
        hints=("'global_step/max_steps': ",),
        step=re.compile(
            r"^(?!.*'eval_)(?=(?:.*?'train_speed\((?P<per>iter/s|s/it)\)': '?(?P<pace>[\d.]+))?)"
            r"(?=(?:.*?'elapsed_time': '(?P<clock>[\ddhms ]+)')?)"
            r".*?'global_step/max_steps': '(?P<step>\d+)/(?P<total>\d+)'"
        ),
        facts=_all(rf"'loss': '?{LOSS}", r"'memory\(GiB\)': '?(?P<memory_gib>[\d.]+)"),
        stops=("'eval_loss'",),
        counts_down=True,
    ),
    LineFormat(  # its trainer_log.jsonl, whose clock shows whole seconds
        "LLaMA-Factory",
        hints=('"current_steps": ',),
        step=re.compile(
            r'"current_steps": (?P<step>\d+), "total_steps": (?P<total>\d+),.*'
            r'"elapsed_time": "(?P<clock>[\d:, days]+)"'
        ),
        facts=_all(rf'"loss": {LOSS}'),
        stops=('"eval_loss": 0', '"eval_loss": 1', '"eval_loss": 2'),
        counts_down=True,
    ),
    LineFormat(
        "MaxText",
        hints=(
            "completed step: ",
            "number parameters: ",
            " Total TFLOPs: ",
            "global_batch_size_to_train_on: ",
        ),
        step=re.compile(r"completed step: (?P<step>\d+), seconds: (?P<seconds>[\d.]+)"),
        facts=_all(
            r"Tokens/s/device: (?P<tokens_per_second>[\d.]+)",
            rf", loss: {LOSS}",
            r"\bglobal_batch_size_to_train_on: (?P<batch>\d+)",
        ),
        settings=_all(r"^ Total TFLOPs: [\d.]+", r"number parameters: [\d.]+ \w+"),
        single=True,
        device=True,
    ),
    LineFormat(
        "Composer",
        hints=("batch=", " Train "),
        step=re.compile(r"\[(?:epoch=(?P<epoch>\d+)\]\[)?batch=(?P<step>\d+)/(?P<total>\d+)\]:"),
        facts=_all(
            r"\bTrain time/sample: (?P<samples>\d+)",
            r"\bTrain time/token: (?P<tokens>\d+)",
            r"\bTrain throughput/samples_per_sec: (?P<samples_per_second>[\d.]+)",
            r"\bTrain throughput/tokens_per_sec: (?P<tokens_per_second>[\d.]+)",
            r"\bTrain memory/(?:peak_)?allocated_mem: (?P<memory_gb>[\d.]+)",
            r"\bTrain loss/train/total: (?P<loss>\S+)",
        ),
        stops=("[Eval batch=",),
        counts_down=True,
    ),
    LineFormat(  # `wall_clock_breakdown`: a line for each step
        "DeepSpeed (time of parts)",
        hints=("time (ms) | fwd: ", "time (ms) | forward: "),
        step=re.compile(
            r"time \(ms\) \| (?:fwd|forward): (?P<ms_fwd>[\d.]+) \| (?:bwd|backward): (?P<ms_bwd>[\d.]+) "
            r".*?\| step: (?P<ms_step>[\d.]+)"
        ),
        single=True,
        rough=True,
    ),
)
FORMAT = "lines"
HINTS = tuple(dict.fromkeys(word for each in FORMATS for word in each.words))


class Reader:
    """The steps of each format that the file has."""

    def __init__(self, frame: Frame) -> None:
        self.closed = False
        self.all = [Steps(each, frame) for each in FORMATS]

    def line(self, text: str) -> None:
        """Read a line with one of the HINTS."""
        for each in self.all:
            if any(word in text for word in each.form.words):
                each.line(text)

    def readings(self) -> list[Reading]:
        """Return one reading for each format."""
        return [reading for each in self.all for reading in each.readings()]
