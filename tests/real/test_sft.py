"""Supervised fine-tuning beside a plain loop over single samples: the same losses and the same weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipes import load_recipe
from muster.store import events
from tests.support import train_here

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CLASSES, SEQUENCE, STEPS, RATE, DECAY = 120, 24, 4, 0.005, 0.3
SMALL: dict[str, Any] = {
    "vocab_size": CLASSES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    "mistral": {"sliding_window": 5},
    "gemma2": {"head_dim": 8, "sliding_window": 5},
}


def start(folder: Path, kind: str) -> None:
    """A model and a tokenizer of words. p0, p1, ... begin prompts, and stand nowhere else."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **OWN.get(kind, {})})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"p{i}" for i in range(30)), *(f"w{i}" for i in range(80))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def write_samples(path: Path, count: int) -> dict[int, tuple[list[int], int]]:
    """By its first token: a sample's tokens, and how many are its prompt's."""
    draw, lines, samples = random.Random(3), [], {}
    for number in range(count):
        prompt, answer = ([draw.randrange(80) for _ in range(draw.randrange(1, 8))] for _ in range(2))
        texts = [" ".join(f"w{word}" for word in words) for words in (prompt, answer)]
        lines.append(json.dumps({"prompt": f"p{number} {texts[0]}", "answer": texts[1]}))
        tokens = [4 + number, *(34 + word for word in [*prompt, *answer]), 2]
        samples[tokens[0]] = tokens, 1 + len(prompt)
    path.write_text("\n".join(lines))
    return samples


def recipe_of(folder: Path, **more: dict[str, Any]) -> dict[str, Any]:
    """Of the model and samples in a folder."""
    recipe = load_recipe("sft").as_dict()
    own: dict[str, dict[str, Any]] = {
        "engine": {"name": "ddp"},
        "model": {"name": str(folder / "start"), "init": "pretrained", "config": None, "tokenizer": "auto"},
        "data": {"generated": None, "path": str(folder / "samples.jsonl"), "sequence": SEQUENCE},
        "train": {"warmup": 0, "schedule": "constant", "learning_rate": RATE, "max_steps": STEPS, "clip": 0,
                  "weight_decay": DECAY, "beta2": 0.98},
        "evaluate": {"after": False}, "measure": {"window": 1},
    }  # fmt: skip
    for sections in (own, more):
        for section, values in sections.items():
            recipe[section] = {**(recipe[section] or {}), **values}
    return recipe


def single(model: Any, batch: Any, samples: dict[int, tuple[list[int], int]], learn: str) -> Any:
    """The mean loss of the samples in a batch, each by itself; of learned padding, of the batch as it is."""
    from torch.nn.functional import cross_entropy

    if learn == "padding":
        tokens, mask = batch["input_ids"], batch["attention_mask"]
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        return cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:])
    summed, count = torch.zeros(()), 0
    for first in batch["input_ids"].flatten().tolist():
        if first in samples:
            tokens, prompt = samples[first]
            begin = prompt if learn == "answers" else 1
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
            summed = summed + cross_entropy(
                logits[begin - 1 : -1], torch.tensor(tokens[begin:]), reduction="sum"
            )
            count += len(tokens) - begin
    return summed / count


@pytest.mark.parametrize(
    ("kind", "data", "train"),
    [
        ("llama", {}, {"gradient_checkpointing": True}),
        ("llama", {"packing": True}, {}),
        ("llama", {"packing": True, "learn": "everything"}, {}),
        ("llama", {"learn": "padding"}, {}),
        ("gpt2", {"learn": "everything"}, {}),
        ("opt", {"packing": True}, {}),
        ("mistral", {}, {}),
        ("gemma2", {"packing": True}, {}),
    ],
)
def test_it_trains_as_a_plain_loop(
    kind: str, data: dict[str, Any], train: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    start(tmp_path / "start", kind)
    samples = write_samples(tmp_path / "samples.jsonl", 21)
    seen: list[dict[str, Any]] = []
    original = transformers.Trainer.training_step

    def training_step(trainer: Any, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        seen.append({name: value.clone() for name, value in inputs.items()})
        return original(trainer, model, inputs, *rest, **named)

    monkeypatch.setattr(transformers.Trainer, "training_step", training_step)
    said = train_here(tmp_path, recipe_of(tmp_path, data=data, train=train))
    logged = [each.loss for each in said if isinstance(each, events.Log) and each.loss is not None]

    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(tmp_path / "start", attn_implementation="eager").train()
    plain = {each for name, each in model.named_parameters() if each.ndim < 2 or "norm" in name}
    decayed = [each for each in model.parameters() if each not in plain]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": [*plain], "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.98),
    )  # fmt: skip
    losses = []
    for batch in seen:
        optimizer.zero_grad()
        loss = single(model, batch, samples, data.get("learn", "answers"))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert logged == pytest.approx(losses, abs=1e-5) and len(logged) == STEPS
    saved = dict(load(tmp_path / "model").named_parameters())
    for name, each in model.named_parameters():
        torch.testing.assert_close(saved[name], each, rtol=1e-3, atol=2e-4)
