"""Three whole steps of sft, dpo and seq2seq against a loop of plain PyTorch on the same rows, one at a time,
with tokens and losses of its own: losses, gradients and saved weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipes import load_recipe
from muster.store import events
from tests.support import train_here

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

LLAMA = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
ROWS = [  # of unlike lengths, so that micro-batches have unlike numbers of tokens
    {
        "prompt": "ab" * (1 + 5 * n % 17) + str(n),
        "chosen": "cd" * (1 + 7 * n % 13),
        "rejected": "e" * (9 - n % 8),
    }
    for n in range(12)
]
RATE, BETAS, BETA, CLIP = 0.01, (0.9, 0.98), 0.1, 1.0


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with first weights, and a tokenizer of single characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("start")
    names = ["<pad>", "<eos>", *"abcde0123456789"]
    words = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(7)
    config = LlamaConfig(**LLAMA, vocab_size=len(names), pad_token_id=0, eos_token_id=1, bos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Plain:
    """The loop. `losses`: of each step; `norms`: of its gradient before it is clipped."""

    def __init__(self, start: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(start)
        self.model, self.start = load(start), load(start)
        self.losses: list[float] = []
        self.norms: list[float] = []

    def log_probs(self, model: Any, prompt: str, answer: str) -> Any:
        """Of the answer's tokens and its end."""
        before, after = (
            self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)
        )
        tokens = torch.tensor([*before, *after, self.tokenizer.eos_token_id])
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        each = torch.log_softmax(logits, -1).gather(-1, tokens[1:, None])[:, 0]
        return each[len(before) - 1 :]

    def answers(self) -> Any:
        """The mean over all tokens of answers."""
        parts = [self.log_probs(self.model, row["prompt"], row["chosen"]) for row in ROWS]
        return -torch.cat(parts).mean()

    def pairs(self) -> Any:
        """Rafailov et al. 2023, equation 7, the mean over pairs."""
        losses = []
        for row in ROWS:
            sums = []
            for name in ("chosen", "rejected"):
                with torch.no_grad():
                    before = self.log_probs(self.start, row["prompt"], row[name]).sum()
                sums.append(self.log_probs(self.model, row["prompt"], row[name]).sum() - before)
            losses.append(-torch.nn.functional.logsigmoid(BETA * (sums[0] - sums[1])))
        return torch.stack(losses).mean()

    def train(self, loss_of: Callable[[Plain], Any]) -> None:
        """Three steps, each on all rows."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(self)
            loss.backward()
            self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)))
            self.losses.append(loss.item())
            optimizer.step()


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).train()


@pytest.mark.parametrize(("name", "loss_of"), [("sft", Plain.answers), ("dpo", Plain.pairs)])
def test_three_steps_are_those_of_plain_pytorch(
    name: str, loss_of: Callable[[Plain], Any], start: Path, tmp_path: Path
) -> None:
    """A step's 12 samples are three micro-batches of four, so that their order is of no account."""
    fields = {"answer": "chosen"} if name == "sft" else {}
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    data = load_recipe(name).as_dict()
    data["model"] |= {"name": str(start), "init": "pretrained", "config": None, "tokenizer": "auto"}
    data["data"] |= {
        "path": str(tmp_path / "rows.jsonl"),
        "generated": None,
        "validation_fraction": 0.0,
        **fields,
    }
    data["engine"] = {"name": "ddp"}
    data["train"] |= {
        "warmup": 0, "schedule": "constant", "learning_rate": RATE, "beta1": BETAS[0], "beta2": BETAS[1],
        "weight_decay": 0.0, "clip": CLIP, "max_steps": 3,
    }  # fmt: skip
    data["evaluate"] |= {"after": False}
    data["measure"] |= {"window": 1}
    said = train_here(tmp_path, data, micro=4, accumulation=3)
    plain = Plain(start)
    plain.train(loss_of)
    logs = [each for each in said if isinstance(each, events.Log)]
    assert [each.loss for each in logs] == pytest.approx(plain.losses, rel=1e-5)
    assert [each.gradient_norm for each in logs] == pytest.approx(plain.norms, rel=1e-4)
    assert min(plain.losses[:-1]) > plain.losses[-1]
    saved, first = (dict(load(folder).named_parameters()) for folder in (tmp_path / "model", start))
    for key, expected in plain.model.named_parameters():
        torch.testing.assert_close(saved[key], expected, rtol=0, atol=2e-5)
        assert float((expected - first[key]).abs().max()) > RATE


def test_three_steps_of_a_t5_whose_labels_are_smoothed(tmp_path: Path) -> None:
    """Szegedy et al. 2016, section 7: a share of the probability is spread over all entries. Weights decay,
    but for norms and position biases."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    share, decay, names = 0.2, 0.5, ["<pad>", "</s>", *"abcde0123456789"]
    words = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>")
    tokenizer.save_pretrained(tmp_path / "start")
    sizes = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "dropout_rate": 0.0}
    torch.manual_seed(1)
    T5ForConditionalGeneration(
        T5Config(vocab_size=len(names), **sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    ).save_pretrained(tmp_path / "start")
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    data = load_recipe("seq2seq").as_dict()
    data["model"] |= {"name": str(tmp_path / "start"), "init": "pretrained", "config": None}
    data["model"] |= {"tokenizer": "auto", "position_std": None}
    data["data"] |= {
        "path": str(tmp_path / "rows.jsonl"), "generated": None, "validation_fraction": 0.0,
        "input": "prompt", "target": "chosen",
    }  # fmt: skip
    data["train"] |= {
        "warmup": 0, "schedule": "constant", "learning_rate": RATE, "beta1": BETAS[0], "beta2": BETAS[1],
        "weight_decay": decay, "clip": CLIP, "max_steps": 3, "label_smoothing": share,
    }  # fmt: skip
    data["evaluate"] |= {"after": False, "every": None}
    data["measure"] |= {"window": 1}
    emitted = train_here(tmp_path, data, micro=4, accumulation=3)
    model = T5ForConditionalGeneration.from_pretrained(tmp_path / "start", dtype=torch.float32)
    decays: dict[bool, list[Any]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decays[parameter.dim() > 1 and "bias" not in name].append(parameter)
    groups = [{"params": each, "weight_decay": decay if on else 0.0} for on, each in decays.items()]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS)
    losses = []
    for _ in range(3):
        parts = []
        for row in ROWS:
            source, target = (torch.tensor(tokenizer(row[key])["input_ids"]) for key in ("prompt", "chosen"))
            before = torch.cat([torch.zeros(1, dtype=torch.long), target[:-1]])
            logits = model(input_ids=source[None], decoder_input_ids=before[None]).logits[0]
            logs = logits.log_softmax(-1)
            right = logs.gather(-1, target[:, None])[:, 0]
            parts.append(-(1 - share) * right - share * logs.mean(-1))
        loss = torch.cat(parts).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        losses.append(loss.item())
        optimizer.step()
    logs = [each for each in emitted if isinstance(each, events.Log)]
    assert [each.loss for each in logs] == pytest.approx(losses, rel=1e-4)
    saved = dict(T5ForConditionalGeneration.from_pretrained(tmp_path / "model").named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(saved[name], parameter, rtol=0, atol=1e-3)
