"""Whole steps of reward, grpo, rloo and ppo against loops of plain PyTorch: one row at a time, without
padding, with advantages, losses and steps of their own. Only the drawn tokens are the trainer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipes import load_recipe
from muster.store import events
from tests.support import train_here

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},  # dropout: 0.1
    "opt": {
        "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "word_embed_proj_dim": 32, "max_position_embeddings": 64,
    },
}  # fmt: skip
NAMES = ["<pad>", "<eos>", *"abcdefgh"]
SUPPRESSED = [3, 4, 5, 6]
PROMPTS = ["a" * 9, "bc", "cab" * 2, "d"]  # of unlike lengths, so that rows are padded
ANSWERS, LONGEST, STEPS, RATE, DECAY, CLIP = 4, 5, 4, 0.002, 0.1, 0.5
TEMPERATURE, RANGE = 0.8, 0.2
REWARD = """
def own(prompts, answers, expected):
    return [sum(map(ord, each.replace(" ", ""))) % 7 / 7 for each in answers]
"""


def made(folder: Path, kind: str, task: str = "CausalLM", pad: str = "<pad>") -> Path:
    """A model with first weights that are not all alike, and a tokenizer of single characters."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(NAMES)}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.Split(Regex("<eos>|."), "isolated")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=pad, eos_token="<eos>", unk_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(
        kind, **SIZES[kind], vocab_size=len(NAMES), pad_token_id=NAMES.index(pad), eos_token_id=1,
        bos_token_id=None, num_labels=1,
    )  # fmt: skip
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(5)
    if task == "CausalLM":  # of published chat models: how it answers where nothing else is asked for
        model.generation_config.update(repetition_penalty=1.3, suppress_tokens=SUPPRESSED)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, task: str = "CausalLM") -> Any:
    import transformers

    kind = getattr(transformers, f"AutoModelFor{task}")
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def recipe_of(workload: str, start: Path, folder: Path, **sections: Any) -> dict[str, Any]:
    data = load_recipe(workload).as_dict()
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in PROMPTS))
    (folder / "own.py").write_text(REWARD)
    data["model"] |= {"name": str(start), "init": "pretrained", "config": None, "tokenizer": "auto"}
    data["data"] |= {"path": str(rows), "generated": None, "validation_fraction": 0.0, "sequence": 40}
    data["engine"] = {"name": "ddp"}
    data["train"] |= {
        "warmup": 0, "schedule": "constant", "learning_rate": RATE, "beta1": 0.9, "beta2": 0.98,
        "weight_decay": DECAY, "clip": CLIP, "max_steps": STEPS,
    }  # fmt: skip
    data["evaluate"] |= {"after": False}
    data["measure"] |= {"window": 1}
    if "generation" in data:
        data["reward"] = {"function": f"{folder / 'own.py'}:own", "execution": False}
        data["generation"] |= {"prompt": 16, "answer": LONGEST, "temperature": TEMPERATURE}
    for section, values in sections.items():
        data[section] = {**data[section], **values}
    return data


def log_probs(model: Any, prompt: list[int], answer: list[int]) -> Any:
    """Of an answer's tokens, as they are drawn."""
    tokens = torch.tensor([*prompt, *answer])
    logits = model(input_ids=tokens[None], use_cache=False).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(answer)[:, None])[:, 0]


def reward_of(answer: list[int]) -> float:
    return sum(ord(NAMES[token]) for token in answer if token > 1) % 7 / 7


class Loop:
    """AdamW with decay on matrices alone. `losses`, `norms`: of each step, before clipping."""

    def __init__(self, *models: Any) -> None:
        self.models = models
        groups: dict[bool, list[Any]] = {True: [], False: []}
        for model in models:
            for parameter in model.parameters():
                groups[parameter.dim() > 1].append(parameter)
        self.parameters = [*groups[True], *groups[False]]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": groups[True], "weight_decay": DECAY},
                {"params": groups[False], "weight_decay": 0.0},
            ],
            lr=RATE,
            betas=(0.9, 0.98),
        )
        self.losses: list[float] = []
        self.norms: list[float] = []

    def step(self, loss: Any) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)))
        self.losses.append(loss.item())
        self.optimizer.step()

    def check(self, emitted: list[events.Event], *saved: Any) -> None:
        """Beside what a rank says, and what the saved models give for a text: biases of keys change nothing
        that a model gives, so that AdamW makes steps of what rounding leaves of their gradients."""
        logs = [each for each in emitted if isinstance(each, events.Log)]
        assert [each.loss for each in logs] == pytest.approx(self.losses, rel=1e-4, abs=2e-6)
        assert [each.gradient_norm for each in logs] == pytest.approx(self.norms, rel=1e-3)
        text = torch.arange(2, len(NAMES))[None]
        for own, other in zip(self.models, saved, strict=True):
            torch.testing.assert_close(other(text).logits, own(text).logits, rtol=1e-3, atol=2e-4)


Drawn = list[tuple[list[int], list[int]]]


def check_drawn(seen: list[Drawn]) -> None:
    """Answers are from the distribution whose probabilities the loss computes, and from no other."""
    drawn = [token for batch in seen for _, answer in batch for token in answer]
    assert len(seen) == STEPS // 2 and set(drawn) >= set(SUPPRESSED)


def group_drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """Prompts and answers of each time that the trainer draws some."""
    from muster.dialogues.groups import Grouped

    seen: list[Drawn] = []
    original = Grouped._generate

    def kept(self: Any, *args: Any, **named: Any) -> Any:
        result = original(self, *args, **named)
        seen.append([(list(one), list(other)) for one, other in zip(result[0], result[1], strict=True)])
        return result

    monkeypatch.setattr(Grouped, "_generate", kept)
    return seen


@pytest.mark.parametrize(
    ("loss", "kind"), [("grpo", "gpt2"), ("dapo", "llama"), ("dapo", "opt"), ("dr_grpo", "gpt2")]
)
def test_grpo(loss: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shao et al. 2024, equations 3 and 4; two passes over each batch of answers."""
    beta, start = 0.2, made(tmp_path / "start", kind)
    seen = group_drawn(monkeypatch)
    own = {"answers": ANSWERS, "beta": beta, "clip": RANGE, "loss": loss, "epochs": 2}
    emitted = train_here(tmp_path, recipe_of("grpo", start, tmp_path, grpo=own), micro=8, accumulation=2)
    check_drawn(seen)
    model, reference = load(start), load(start)
    loop = Loop(model)
    for batch in seen:
        rewards = torch.tensor([reward_of(answer) for _, answer in batch]).view(-1, ANSWERS)
        gains = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        with torch.no_grad():
            before = [log_probs(model, *each) for each in batch]
            held = [log_probs(reference, *each) for each in batch]
        for _ in range(2):
            parts = []
            for each, old, ref, gain in zip(batch, before, held, gains, strict=True):
                now = log_probs(model, *each)
                ratio = torch.exp(now - old)
                kept = torch.min(ratio * gain, ratio.clamp(1 - RANGE, 1 + RANGE) * gain)
                parts.append(-(kept - beta * (torch.exp(ref - now) - (ref - now) - 1)))
            means = {
                "grpo": torch.stack([part.mean() for part in parts]).mean(),
                "dapo": torch.cat(parts).mean(),
                "dr_grpo": torch.cat(parts).sum() / (LONGEST * len(parts)),
            }
            loop.step(means[loss])
    loop.check(emitted, load(tmp_path / "model"))


def test_rloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahmadian et al. 2024: whole answers, each beside the others to its prompt; the divergence is part of
    the reward."""
    beta, start = 0.1, made(tmp_path / "start", "gpt2")
    seen = group_drawn(monkeypatch)
    own = {"answers": ANSWERS, "beta": beta, "clip": RANGE, "epochs": 2}
    emitted = train_here(tmp_path, recipe_of("rloo", start, tmp_path, rloo=own), micro=8, accumulation=2)
    check_drawn(seen)
    model, reference = load(start), load(start)
    loop = Loop(model)
    for batch in seen:
        with torch.no_grad():
            before = torch.stack([log_probs(model, *each).sum() for each in batch])
            held = torch.stack([log_probs(reference, *each).sum() for each in batch])
        rewards = torch.tensor([reward_of(answer) for _, answer in batch]) - beta * (before - held)
        rewards = rewards.view(-1, ANSWERS)
        gains = (rewards - (rewards.sum(1, True) - rewards) / (ANSWERS - 1)).flatten()
        for _ in range(2):
            ratio = torch.exp(torch.stack([log_probs(model, *each).sum() for each in batch]) - before)
            loop.step(-torch.min(ratio * gains, ratio.clamp(1 - RANGE, 1 + RANGE) * gains).mean())
    loop.check(emitted, load(tmp_path / "model"))


def test_ppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schulman et al. 2017, with generalized advantages (2016), a critic whose values are clipped, and the
    divergence in each token's reward (Ouyang et al. 2022)."""
    from muster.workloads.ppo import train as module

    start = made(tmp_path / "start", "gpt2")
    valued = made(tmp_path / "critic", "gpt2", "SequenceClassification")
    seen: list[Drawn] = []
    original = module.generate

    def kept(trainer: Any, prompts: Any, config: Any, **named: Any) -> Any:
        answers = original(trainer, prompts, config, **named)
        seen.append([(list(one), list(other)) for one, other in zip(prompts, answers, strict=True)])
        return answers

    monkeypatch.setattr(module, "generate", kept)
    kl, gamma, lam, weight, value_range = 0.15, 0.9, 0.8, 0.3, 0.1
    own = {
        "kl": kl, "gamma": gamma, "lam": lam, "value_weight": weight, "clip": RANGE, "epochs": 2,
        "value_clip": value_range, "reward_clip": 0.6, "whiten": True, "critic": str(valued),
    }  # fmt: skip
    emitted = train_here(tmp_path, recipe_of("ppo", start, tmp_path, ppo=own), micro=4, accumulation=2)
    check_drawn(seen)
    model, reference, critic = load(start), load(start), load(valued, "SequenceClassification")

    def values_of(prompt: list[int], answer: list[int]) -> Any:
        hidden = critic.base_model(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False)[0]
        return critic.score(hidden[0, len(prompt) - 1 : -1])[:, 0]

    loop = Loop(model, critic)
    for batch in seen:
        with torch.no_grad():
            before = [log_probs(model, *each) for each in batch]
            held = [log_probs(reference, *each) for each in batch]
            expected = [values_of(*each) for each in batch]
        gains, returns = [], []
        for (_, answer), old, ref, value in zip(batch, before, held, expected, strict=True):
            reward = -kl * (old - ref)
            reward[-1] += min(reward_of(answer), 0.6)
            delta = reward + gamma * torch.cat([value[1:], torch.zeros(1)]) - value
            gain = torch.stack(
                [
                    sum((gamma * lam) ** far * each for far, each in enumerate(delta[place:]))
                    for place in range(len(answer))
                ]
            )
            gains.append(gain)
            returns.append(gain + value)
        whole = torch.cat(gains)
        gains = [(gain - whole.mean()) / whole.std(unbiased=False) for gain in gains]
        for _ in range(2):
            policy, values = [], []
            for index, each in enumerate(batch):
                ratio = torch.exp(log_probs(model, *each) - before[index])
                policy.append(
                    -torch.min(ratio * gains[index], ratio.clamp(1 - RANGE, 1 + RANGE) * gains[index])
                )
                now = values_of(*each)
                near = expected[index] + (now - expected[index]).clamp(-value_range, value_range)
                apart = torch.max((now - returns[index]) ** 2, (near - returns[index]) ** 2)
                values.append(apart / 2)
            loop.step(torch.cat(policy).mean() + weight * torch.cat(values).mean())
    saved = load(tmp_path / "model"), load(tmp_path / "model" / "critic", "SequenceClassification")
    loop.check(emitted, *saved)


@pytest.mark.parametrize(("kind", "pad"), [("gpt2", "<eos>"), ("opt", "<pad>")])
def test_reward(kind: str, pad: str, tmp_path: Path) -> None:
    """Ouyang et al. 2022, equation 1; the number stands at the answer's end, also where padding is the
    end."""
    start = made(tmp_path / "start", kind, "SequenceClassification", pad)
    pairs = [("ab" * (1 + n % 4), "cd" * (1 + n % 3), "e" * (5 - n % 4)) for n in range(8)]
    data = recipe_of("reward", start, tmp_path)
    rows = [{"prompt": one, "chosen": good, "rejected": bad} for one, good, bad in pairs]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    emitted = train_here(tmp_path, data, micro=4, accumulation=2)
    model = load(start, "SequenceClassification")

    def number(text: str) -> Any:
        tokens = torch.tensor([[*(NAMES.index(each) for each in text), 1]])
        return model.score(model.base_model(input_ids=tokens, use_cache=False)[0][0, -1])[0]

    loop = Loop(model)
    for _ in range(STEPS):
        margins = torch.stack([number(one + good) - number(one + bad) for one, good, bad in pairs])
        loop.step(-torch.nn.functional.logsigmoid(margins).mean())
    loop.check(emitted, load(tmp_path / "model", "SequenceClassification"))
