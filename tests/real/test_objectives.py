"""The objectives of RLHF as papers write them, computed apart from TRL for batches that it trained on; the
model has dropout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipes import load_recipe
from muster.store import events
from tests.support import train_here

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}  # dropout: 0.1
PROMPTS = 13


def data_of(name: str, **sections: Any) -> dict[str, Any]:
    data = load_recipe(name).as_dict()
    data["data"] |= {"generated": {"train": PROMPTS, "validation": 4, "seed": 1}, "sequence": 128}
    data["engine"] = {"name": "ddp"}
    data["train"] |= {"warmup": 0, "schedule": "constant", "learning_rate": 0.02, "epochs": 1, "max_steps": 4}
    data["evaluate"] |= {"after": False, "every": None}
    data["checkpoint"] |= {"every": None, "model": False}
    data["measure"] |= {"window": 1}
    for section, values in sections.items():
        data[section] = {**(data.get(section) or {}), **values}
    return data


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with dropout that has learned a little."""
    folder = tmp_path_factory.mktemp("start")
    model = {"init": "random", "config": GPT2, "vocab_size": 300}
    train_here(folder, data_of("sft", model=model, checkpoint={"model": True}))
    return folder / "model"


def log_probs(model: Any, tokens: Any, mask: Any, kept: int) -> Any:
    """(rows, kept) log-probabilities of the last tokens, from plain logits."""
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return chosen[:, -kept:]


def drawn(inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Tokens, their mask and the answers' mask."""
    tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    return tokens, mask, inputs["completion_mask"]


class Held:
    """Computes each loss again. `seen`: pairs of TRL's and the paper's; `ratios`: of first passes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str, paper: Callable[..., Any]
    ) -> None:
        self.seen: list[tuple[float, float]] = []
        self.prompts: list[int] = []
        original = getattr(kind, method)

        def computed(trainer: Any, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
            assert model.training
            loss = original(trainer, model, inputs, *rest, **named)
            self.seen.append((float(loss), float(paper(trainer, model, inputs))))
            return loss

        monkeypatch.setattr(kind, method, computed)

    def check(self) -> None:
        losses, papers = zip(*self.seen, strict=True)
        assert len(losses) >= 4 and len(set(papers)) > 2
        assert losses == pytest.approx(papers, rel=2e-4, abs=2e-6)


def rewards_of(folder: Path) -> dict[str, Any]:
    place = folder / "own.py"
    place.write_text(
        "def own(prompts, answers, expected):\n    return [sum(map(ord, each)) % 7 / 7 for each in answers]\n"
    )
    return {"function": f"{place}:own", "execution": False}


@pytest.mark.parametrize("loss", ["dapo", "grpo"])
def test_grpo(loss: str, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shao et al. 2024, equations 3 and 4: the clipped ratio times the advantage, less beta times the
    estimator of the divergence; a first pass has ratios of 1."""
    from trl import GRPOTrainer

    clip, beta = 0.2, 0.3

    def paper(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            tokens, mask, real = drawn(inputs)
            now = log_probs(model, tokens, mask, real.shape[1])
            before = inputs.get("old_per_token_logps")
            ratio = torch.exp(now - (now if before is None else before))
            gain = inputs["advantages"].reshape(-1, 1)
            kept = torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
            apart = log_probs(trainer.ref_model, tokens, mask, real.shape[1]) - now
            each = -(kept - beta * (torch.exp(apart) - apart - 1)) * real
            return (each.sum(1) / real.sum(1)).mean() if loss == "grpo" else each.sum() / real.sum()

    held = Held(monkeypatch, GRPOTrainer, "_compute_loss", paper)
    own = {"answers": 4, "beta": beta, "clip": clip, "loss": loss, "epochs": 2}
    data = data_of(
        "grpo", model={"name": str(start), "init": "pretrained", "config": None, "tokenizer": "auto"},
        grpo=own, generation={"prompt": 128, "answer": 8}, reward=rewards_of(tmp_path),
        train={"max_steps": 8},
    )  # fmt: skip
    train_here(tmp_path, data, micro=8)
    held.check()


def test_rloo(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahmadian et al. 2024: the whole answer's ratio times its advantage over the other answers."""
    from trl import RLOOTrainer

    ratios = []

    def paper(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            tokens, mask, real = drawn(inputs)
            now = (log_probs(model, tokens, mask, real.shape[1]) * real).sum(1)
            ratio = torch.exp(now - inputs["old_logps"])
            ratios.append(ratio)
            gain = inputs["advantages"]
            return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    held = Held(monkeypatch, RLOOTrainer, "_compute_loss", paper)
    data = data_of(
        "rloo", model={"name": str(start), "init": "pretrained", "config": None, "tokenizer": "auto"},
        rloo={"answers": 4, "epochs": 2, "beta": 0.1}, generation={"prompt": 128, "answer": 8},
        reward=rewards_of(tmp_path), train={"max_steps": 8},
    )  # fmt: skip
    train_here(tmp_path, data, micro=8)
    held.check()
    for first in ratios[::2]:
        torch.testing.assert_close(first, torch.ones_like(first), rtol=1e-4, atol=1e-4)
    assert max(float((second - 1).abs().max()) for second in ratios[1::2]) > 1e-3


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo(smoothing: float, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rafailov et al. 2023, equation 7; with flipped pairs Mitchell 2023, conservative DPO."""
    from muster.workloads.dpo.train import _Trainer

    beta = 0.3

    def paper(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            tokens, mask = inputs["input_ids"], inputs["attention_mask"]
            real = inputs["completion_mask"][:, 1:]
            sums = [
                (log_probs(each, tokens, mask, real.shape[1]) * real).sum(1)
                for each in (model, trainer.ref_model)
            ]
            chosen, rejected = (sums[0] - sums[1]).chunk(2)
            margin = beta * (chosen - rejected)
            right, flipped = (-torch.nn.functional.logsigmoid(each) for each in (margin, -margin))
            return ((1 - smoothing) * right + smoothing * flipped).mean()

    held = Held(monkeypatch, _Trainer, "compute_loss", paper)
    data = data_of(
        "dpo", model={"name": str(start), "init": "pretrained", "config": None, "tokenizer": "auto"},
        dpo={"beta": beta, "label_smoothing": smoothing}, train={"max_steps": 5, "epochs": 3},
    )  # fmt: skip
    train_here(tmp_path, data)
    held.check()


def test_reward(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ouyang et al. 2022, equation 1."""
    from muster.workloads.reward.train import _Trainer

    def paper(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            chosen, rejected = logits.squeeze(-1).chunk(2)
            return -torch.nn.functional.logsigmoid(chosen - rejected).mean()

    held = Held(monkeypatch, _Trainer, "compute_loss", paper)
    data = data_of(
        "reward", model={"name": str(start), "init": "pretrained", "config": None, "tokenizer": "auto"},
        train={"max_steps": 5, "epochs": 3},
    )  # fmt: skip
    train_here(tmp_path, data)
    held.check()


@pytest.mark.parametrize(("workload", "prompts"), [("grpo", PROMPTS), ("rloo", 3)])
def test_an_epoch_has_every_prompt(
    workload: str, prompts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts a step: 13 take seven steps, of which the last begins anew; 3 take two."""
    from muster.dialogues.groups import Grouped

    asked: list[int] = []
    original = Grouped._tokenize_prompts

    def noted(self: Any, numbers: list[str]) -> Any:
        asked.extend(int(number) for number in numbers)
        return original(self, numbers)

    monkeypatch.setattr(Grouped, "_tokenize_prompts", noted)
    data = data_of(
        workload, model={"init": "random", "config": GPT2, "vocab_size": 300}, reward=rewards_of(tmp_path),
        generation={"prompt": 128, "answer": 4}, train={"max_steps": None}, data={"limit": prompts},
        **{workload: {"answers": 4}},
    )  # fmt: skip
    said = train_here(tmp_path, data, micro=8)
    windows = [each for each in said if isinstance(each, events.Window)]
    steps = -(-prompts // 2)
    assert [each.step for each in windows] == list(range(1, steps + 1))
    assert set(asked) == set(range(prompts)) and len(asked) == steps * 8
    started = next(each for each in said if isinstance(each, events.Started))
    assert started.total_steps == steps
