"""The objective of dpo as papers write it, computed apart from TRL for batches that it trained on, where the
model has dropout; and which prompts an epoch of grpo and rloo has (the objectives: test_plain_rlhf.py)."""

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


class Held:
    """Computes each loss again. `seen`: pairs of TRL's and the paper's."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str, paper: Callable[..., Any]
    ) -> None:
        self.seen: list[tuple[float, float]] = []
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


@pytest.mark.parametrize(("workload", "prompts", "accumulation"), [("grpo", PROMPTS, 1), ("rloo", 3, 2)])
def test_an_epoch_has_every_prompt(
    workload: str, prompts: int, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    said = train_here(tmp_path, data, micro=8 // accumulation, accumulation=accumulation)
    windows = [each for each in said if isinstance(each, events.Window)]
    steps = -(-prompts // 2)
    assert [each.step for each in windows] == list(range(1, steps + 1))
    assert set(asked) == set(range(prompts)) and len(asked) == steps * 8
    started = next(each for each in said if isinstance(each, events.Started))
    assert started.total_steps == steps
