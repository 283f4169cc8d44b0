"""What Muster's speed is held against: other ways to train, rebuilt from their published settings.

    python -m benchmarks.gpu.peers NAME TOLD WORK    # WORK: a Work as JSON; TOLD: the file of the figures

Nothing of Muster trains here. The same samples come from Muster's generators; batches, loss, optimizer and
precision are the peer's own:
  pairs      Transformers' Seq2SeqTrainer, fp32; both sides padded to `sequence`, pads in the loss (S2)
  tokens     Transformers' Trainer, bf16, SDPA, its other settings as they are
  images     Transformers' Trainer, fp16
  deepspeed  DeepSpeed's engine in a loop: fp16, eager, ZeRO-0, FusedAdam, and LoRA by PEFT (S1)
  compiled   a plain loop: torch.compile, bf16 autocast, tf32, fused AdamW
On CPUs, which prove the way alone, all of them are in fp32, and nothing is compiled.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForSeq2SeqLM

Figures = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A run: `model` and `config` as in a recipe, `batch` samples a step; the first `warmup` steps are not
    timed."""

    model: str
    batch: int
    steps: int
    warmup: int
    rate: float
    device: str
    config: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0
    data: str = ""  # a folder
    vocabulary: int = 2048  # of a tokenizer that is trained on the data
    lora: int = 0  # rank
    checkpointing: bool = False
    workers: int = 0

    @property
    def cuda(self) -> bool:
        """On a GPU."""
        return self.device == "cuda"


class Stopwatch:
    """Seconds from the end of the last warm-up step to that of the last step."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.steps = 0
        self.began = self.ended = 0.0

    def now(self) -> float:
        """The device is waited for."""
        if self.work.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self) -> None:
        """A step has ended."""
        self.steps += 1
        if self.steps == self.work.warmup:
            self.began = self.now()
        elif self.steps == self.work.steps:
            self.ended = self.now()

    def told(self) -> Figures:
        """The figures of the run."""
        timed = self.work.steps - self.work.warmup
        seconds = self.ended - self.began
        memory = torch.cuda.max_memory_allocated() if self.work.cuda else None
        return {
            "samples_per_second": timed * self.work.batch / seconds,
            "step_seconds": seconds / timed,
            "allocator_peak": memory,
        }


def configured(work: Work, **more: Any) -> Any:
    """The model's configuration."""
    from muster.core import families
    from muster.worker.models import config_for

    fields = {**(families.size(work.model) or {}), **work.config, **more}
    return config_for(fields.pop("model_type"), fields)


def trained(work: Work, kind: Any, given: Any, model: Any, data: Dataset[Any], **more: Any) -> Figures:
    """By a Transformers trainer with the arguments `given`, apart from those that every run has."""
    from transformers import TrainerCallback

    watch = Stopwatch(work)

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.step()

    arguments = given(
        output_dir="peer", max_steps=work.steps, per_device_train_batch_size=work.batch,
        learning_rate=work.rate, use_cpu=not work.cuda, dataloader_num_workers=work.workers, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_strategy="no", **more,
    )  # fmt: skip
    kind(model=model, args=arguments, train_dataset=data, callbacks=[Steps()]).train()
    return watch.told()


# ----------------------------------------------------------------------------------------------------


class Padded(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Questions and answers as token numbers, all padded to one length."""

    def __init__(self, rows: list[tuple[list[int], list[int]]], length: int, pad: int) -> None:
        def whole(tokens: list[int]) -> torch.Tensor:
            return functional.pad(torch.tensor(tokens), (0, length - len(tokens)), value=pad)

        self.rows = [(whole(question), whole(answer), len(question)) for question, answer in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        question, answer, real = self.rows[index]
        return {"input_ids": question, "attention_mask": (torch.arange(len(question)) < real).long(),
                "labels": answer}  # fmt: skip


def pairs(work: Work) -> Figures:
    """S2: its Trainer, and the held-out loss per real token afterwards."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

    from muster.worker.data.tokenizer import train_tokenizer
    from muster.workloads.seq2seq.train import Encoded, cover_characters, load_pairs
    from muster.workloads.text2sql.spec import TextToSqlData

    data = TextToSqlData(path=work.data, max_source=work.sequence, max_target=work.sequence)
    found = load_pairs(data, Path(work.data), may_write=False, seed=42)
    texts = (text for pair in found.train for text in (data.prefix + pair.question, pair.expected))
    words = train_tokenizer(texts, work.vocabulary)
    cover_characters(words, [pair.expected for pair in found.train])
    pad = words.pad_token_id
    set_seed(42)
    config = configured(work, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=words.eos_token_id)
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
    train = Padded(Encoded(found.train, words, data).rows, work.sequence, pad)
    told = trained(
        work, Seq2SeqTrainer, Seq2SeqTrainingArguments, model, train,
        lr_scheduler_type="linear", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, seed=42,
    )  # fmt: skip
    held = Padded(Encoded(found.held_out, words, data).rows, work.sequence, pad)
    return {**told, "held_out_loss": held_out(model.eval(), held, pad, work.batch)}


@torch.inference_mode()  # type: ignore[untyped-decorator]
def held_out(model: Any, rows: Padded, pad: int, batch: int) -> float:
    """The mean loss of the answers' real tokens."""
    total, count = 0.0, 0
    for inputs in DataLoader(rows, batch_size=batch):
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        labels = inputs["labels"].masked_fill(inputs["labels"] == pad, -100)
        logits = model(**{**inputs, "labels": labels}).logits.float()
        total += float(functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        count += int((labels != -100).sum())
    return total / count


class Tokens(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Muster's synthetic tokens, each also its own label, as Transformers' language models take them."""

    def __init__(self, work: Work, vocabulary: int) -> None:
        from muster.workloads.causal_lm.tokens import SyntheticTokens

        count = work.batch * work.steps
        self.rows = SyntheticTokens(count, work.sequence, vocabulary, 0, held_out=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = torch.from_numpy(self.rows[index]["tokens"])
        return {"input_ids": row, "labels": row}


def tokens(work: Work) -> Figures:
    """Transformers' Trainer as its documentation has it."""
    from transformers import Trainer, TrainingArguments

    config = configured(work, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    data = Tokens(work, config.vocab_size)
    return trained(work, Trainer, TrainingArguments, model, data, bf16=work.cuda)


class Pictures(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """The images of a Parquet file, decoded and resized when they are asked for."""

    def __init__(self, file: Path, size: int) -> None:
        from pyarrow import parquet

        table = parquet.read_table(file)
        self.images = [each["bytes"] for each in table["image"].to_pylist()]
        self.labels = table["label"].to_pylist()
        self.size = size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import numpy as np
        from PIL import Image

        image = Image.open(io.BytesIO(self.images[index])).convert("RGB")
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1
        return {"pixel_values": pixels, "labels": self.labels[index]}


def images(work: Work) -> Figures:
    """S5: AdamW at a constant rate, fp16."""
    from transformers import Trainer, TrainingArguments

    config = configured(work, num_labels=10)
    model = AutoModelForImageClassification.from_config(config, dtype=torch.float32)
    data = Pictures(Path(work.data) / "train.parquet", model.config.image_size)
    return trained(
        work, Trainer, TrainingArguments, model, data,
        fp16=work.cuda, lr_scheduler_type="constant", weight_decay=0.01, remove_unused_columns=False,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------


def batches(work: Work, vocabulary: int) -> Iterator[dict[str, torch.Tensor]]:
    """On the device, in the order of the rows."""
    loader = DataLoader(Tokens(work, vocabulary), batch_size=work.batch, pin_memory=work.cuda)
    for batch in loader:
        yield {name: value.to(work.device, non_blocking=True) for name, value in batch.items()}


def deepspeed(work: Work) -> Figures:
    """S1: what DeepSpeed-Chat's first step does with its engine."""
    import deepspeed as engine_of
    from transformers import get_scheduler

    if not work.cuda:  # compiled at the first start, for a minute
        getattr(engine_of.ops, "__compatible_ops__", {})["deepspeed_shm_comm"] = False
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    store = dist.HashStore()
    dist.init_process_group("nccl" if work.cuda else "gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(1234)
    config = configured(work, use_cache=False)
    half = torch.float16 if work.cuda else torch.float32
    with torch.device(work.device):
        model = AutoModelForCausalLM.from_config(config, dtype=half, attn_implementation="eager")
    if work.checkpointing:
        model.gradient_checkpointing_enable()
    if work.lora:
        model = adapted(model, work)
    optimizer, name = adam([p for p in model.parameters() if p.requires_grad], work)
    schedule = get_scheduler("cosine", optimizer, 0, work.steps)
    settings = {
        "train_batch_size": work.batch,
        "train_micro_batch_size_per_gpu": work.batch,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": 0},
        "fp16": {"enabled": work.cuda, "loss_scale_window": 100},
        "gradient_clipping": 1.0,
    }
    engine, *_ = engine_of.initialize(
        model=model, optimizer=optimizer, config=settings, lr_scheduler=schedule
    )
    watch = Stopwatch(work)
    engine.train()
    for batch in batches(work, config.vocab_size):
        loss = engine(**batch, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        watch.step()
    skipped = int(getattr(engine, "skipped_steps", 0))
    dist.destroy_process_group()
    return {**watch.told(), "optimizer": name, "skipped_steps": skipped}


def adapted(model: Any, work: Work) -> Any:
    """LoRA on the decoder's layers; its base stays as it is."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
    if work.checkpointing:
        model.enable_input_require_grads()
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=work.lora, lora_alpha=work.lora, lora_dropout=0.0, target_modules=targets
    )
    return get_peft_model(model, lora, autocast_adapter_dtype=False)


def adam(parameters: list[Any], work: Work) -> tuple[Any, str]:
    """DeepSpeed's FusedAdam, and its name; PyTorch's fused AdamW where that cannot be built here."""
    settings: dict[str, Any] = {"lr": work.rate, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if work.cuda:
        try:
            from deepspeed.ops.adam import FusedAdam

            return FusedAdam(parameters, **settings), "DeepSpeed's FusedAdam"
        except Exception as error:
            print(f"FusedAdam cannot be built: {error}", file=sys.stderr)
    return torch.optim.AdamW(parameters, fused=True, **settings), "PyTorch's fused AdamW"


def compiled(work: Work) -> Figures:
    """A loop of one's own, without any library."""
    torch.manual_seed(1234)
    if work.cuda:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    config = configured(work, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model = model.to(work.device).train()
    run = torch.compile(model) if work.cuda else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=work.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    watch = Stopwatch(work)
    for batch in batches(work, config.vocab_size):
        with torch.autocast(work.device, torch.bfloat16, enabled=work.cuda):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step()
    return watch.told()


# What computes them, and in which precision on a GPU.
PEERS: dict[str, tuple[Callable[[Work], Figures], str]] = {
    "pairs": (pairs, "fp32"),
    "tokens": (tokens, "bf16"),
    "images": (images, "fp16"),
    "deepspeed": (deepspeed, "fp16"),
    "compiled": (compiled, "bf16"),
}


def main() -> None:
    """Run the peer that is named, and write its figures."""
    name, told, given = sys.argv[1:]
    work = Work(**json.loads(given))
    run, precision = PEERS[name]
    figures = {**run(work), "batch": work.batch, "precision": precision if work.cuda else "fp32"}
    Path(told).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
