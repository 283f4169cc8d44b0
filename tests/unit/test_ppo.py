"""The terms of proximal policy optimization, each against a case computed by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import RecipeError
from muster.core.recipe import recipe_from
from muster.workloads.ppo.spec import Ppo, PpoRecipe

torch = pytest.importorskip("torch")

from muster.worker.trainer import Trainer  # noqa: E402
from muster.workloads.ppo import objective  # noqa: E402
from muster.workloads.ppo.actor_critic import ActorCritic, AnsweredPrompts  # noqa: E402

SMALL = {
    "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 10, "num_labels": 1,
}  # fmt: skip
LOGITS = [0.0, math.log(2.0), 0.0]  # as probabilities: 1/4, 1/2, 1/4


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_log_probabilities_are_those_of_the_tokens() -> None:
    """At temperature 1/2 the logits count twice: 1/6, 4/6, 1/6. Entropy: 1/2 log 2 + 2 x 1/4 log 4."""
    logits, tokens = torch.tensor([[LOGITS, LOGITS]]), torch.tensor([[1, 2]])
    close(objective.log_probs_of(logits, tokens, 1.0), [[math.log(1 / 2), math.log(1 / 4)]])
    close(objective.log_probs_of(logits, tokens, 0.5), [[math.log(4 / 6), math.log(1 / 6)]])
    assert objective.log_probs_of(logits.bfloat16(), tokens, 1.0).dtype == torch.float32
    close(objective.entropy_of(logits, 1.0), [[1.5 * math.log(2)] * 2])


def test_the_reward_comes_at_the_last_token_and_the_penalty_at_each() -> None:
    """-0.1 x the difference; + 2 at the second answer's last token, + 5 where 7 is cut. A divergence outside
    an answer, at its prompt or after its end, costs nothing."""
    divergence = torch.tensor([[9.0, 1.0, -2.0, 9.0], [3.0, 0.5, 9.0, 9.0], [9.0, 9.0, 9.0, 1.0]])
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
    scores = torch.tensor([7.0, 2.0, -7.0])
    found = objective.token_rewards(scores, divergence, mask, kl=0.1, limit=5.0)
    close(found, [[0.0, -0.1, 5.2, 0.0], [-0.3, 1.95, 0.0, 0.0], [0.0, 0.0, 0.0, -5.1]])
    close(objective.token_rewards(scores, divergence, mask, 0.0, None).sum(1), [7.0, 2.0, -7.0])


def test_advantages_of_three_tokens() -> None:
    """gamma 0.5, lambda 0.5, values 1, 2, 4, rewards 0.5, 0, 8.

    delta: 8 - 4 = 4; 0 + 0.5 x 4 - 2 = 0; 0.5 + 0.5 x 2 - 1 = 0.5.
    A: 4; 0 + 0.25 x 4 = 1; 0.5 + 0.25 x 1 = 0.75.
    With 1 and 1 a return is the rewards to come, whatever the critic says.
    """
    values, rewards = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.0, 8.0]])
    advantages, returns = objective.advantages_of(values, rewards, torch.ones(1, 3), 0.5, 0.5)
    close(advantages, [[0.75, 1.0, 4.0]])
    close(returns, [[1.75, 3.0, 8.0]])
    close(objective.advantages_of(values, rewards, torch.ones(1, 3), 1.0, 1.0)[1], [[8.5, 8.0, 8.0]])


def test_prompts_and_what_comes_after_the_end_count_for_nothing() -> None:
    """The case of three tokens, with another row's columns around it and anything in them."""
    values = torch.tensor([[50.0, 1.0, 2.0, 4.0, 70.0, 80.0]])
    rewards = torch.tensor([[60.0, 0.5, 0.0, 8.0, 90.0, 11.0]])
    mask = torch.tensor([[0, 1, 1, 1, 0, 0]])
    advantages, returns = objective.advantages_of(values, rewards, mask, 0.5, 0.5)
    close(advantages, [[0.0, 0.75, 1.0, 4.0, 0.0, 0.0]])
    close(returns, [[0.0, 1.75, 3.0, 8.0, 0.0, 0.0]])
    new, old = torch.tensor([[5.0, 0, 0, 0, 5, 5]]), torch.zeros(1, 6)
    loss, clipped = objective.policy_loss(new, old, torch.ones(1, 6), mask, 0.2)
    assert (float(loss), int(clipped)) == (-3.0, 0)
    assert float(objective.value_loss(new, old, torch.zeros(1, 6), mask, 0.2)) == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.1, 2.0, -2.2, -2.2, 0),  # inside: -r A, and d(r A)/d log pi = r A
        (1.5, 2.0, -2.4, 0.0, 1),  # likelier than 1.2: no more is won
        (0.5, 2.0, -1.0, -1.0, 0),  # a good token that became unlikely is pulled back
        (0.5, -2.0, 1.6, 0.0, 1),  # unlikelier than 0.8: no more is won
        (1.5, -2.0, 3.0, 3.0, 0),  # a bad token that became likely is pushed back
    ],
)  # fmt: skip
def test_the_policy_is_clipped_where_it_gained(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int
) -> None:
    """PPO, figure 1: both signs, both sides."""
    new = torch.tensor([[math.log(ratio) - 1.0]], requires_grad=True)
    found, count = objective.policy_loss(
        new, torch.tensor([[-1.0]]), torch.tensor([[advantage]]), torch.ones(1, 1), 0.2
    )
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert new.grad is not None and new.grad.item() == pytest.approx(gradient, rel=1e-5, abs=1e-6)
    assert int(count) == clipped


@pytest.mark.parametrize(
    ("value", "returned", "loss", "gradient"),
    [
        (1.1, 3.0, 0.5 * 1.9**2, -1.9),  # inside 1 +- 0.2
        (2.0, 3.0, 0.5 * 1.8**2, 0.0),  # nearer than 1.2 allows: as if it were at 1.2
        (0.0, 3.0, 0.5 * 3.0**2, -3.0),  # away from the return: as it is
        (0.0, -1.0, 0.5 * 1.8**2, 0.0),  # the other side: as if it were at 0.8
    ],
)  # fmt: skip
def test_a_value_is_clipped_around_the_old_one(
    value: float, returned: float, loss: float, gradient: float
) -> None:
    """The old value is 1, the clip 0.2."""
    new = torch.tensor([[value]], requires_grad=True)
    found = objective.value_loss(new, torch.ones(1, 1), torch.tensor([[returned]]), torch.ones(1, 1), 0.2)
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert new.grad is not None and new.grad.item() == pytest.approx(gradient, rel=1e-5, abs=1e-6)


def test_answers_stand_behind_their_prompts() -> None:
    """Columns begin at the shortest prompt; padding is behind all, and its id in an answer is an answer's."""
    made = AnsweredPrompts.of([[5, 6, 7], [8]], [[9, 0], [4, 3]], pad=0, length=None, multiple=4)
    assert made.input_ids.tolist() == [[5, 6, 7, 9, 0, 0, 0, 0], [8, 4, 3, 0, 0, 0, 0, 0]]
    assert made.attention_mask.sum(1).tolist() == [5, 3]
    assert made.mask.tolist() == [[0, 0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]
    assert made.tokens[0].tolist() == [6, 7, 9, 0, 0, 0, 0]
    assert AnsweredPrompts.of([[1]], [[2]], 0, 6, 4).input_ids.shape == (1, 6)


def test_a_padded_answer_is_what_it_is_alone() -> None:
    """Log-probabilities, values and entropy of two answers in one batch, and of each by itself."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SMALL)
    actor = AutoModelForCausalLM.from_config(config)
    critic = AutoModelForSequenceClassification.from_config(config)
    model = ActorCritic(actor, critic, 0.7).eval()
    prompts, answers = [[5, 6, 7], [8]], [[9, 3], [4, 3, 2]]
    both = AnsweredPrompts.of(prompts, answers, pad=0, length=None, multiple=8)
    with torch.no_grad():
        found = model(both.input_ids, both.attention_mask, both.mask.shape[1], entropy=True)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            alone = torch.tensor([[*prompt, *answer]])
            before = actor(alone).logits[0, len(prompt) - 1 : -1] / 0.7
            logs = before.log_softmax(-1)
            expected = [
                logs[range(len(answer)), answer],
                critic.score(critic.model(alone)[0])[0, len(prompt) - 1 : -1, 0],
                -(logs.exp() * logs).sum(-1),
            ]
            for each, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(each[row][both.mask[row] > 0], wanted, rtol=1e-4, atol=1e-5)


def test_the_critic_has_a_learning_rate_of_its_own() -> None:
    """Behind the others; the first group's rate is the recipe's. What is parted already stays so."""
    from muster.workloads.ppo.train import parted

    actor, critic = torch.nn.Linear(2, 3), torch.nn.Linear(4, 1)
    both = [actor.weight, critic.weight]
    groups = [
        {"params": both, "weight_decay": 0.1, "lr": 1.0},
        {"params": [actor.bias], "weight_decay": 0.0, "lr": 1.0},
    ]
    found = parted(groups, critic, 2.0)
    assert [(group["lr"], group["weight_decay"]) for group in found] == [(1.0, 0.1), (1.0, 0.0), (2.0, 0.1)]
    assert [len(group["params"]) for group in found] == [1, 1, 1]
    assert found[2]["params"][0] is critic.weight
    assert parted(found, critic, 2.0) == found


def test_a_step_on_the_same_answers_repeats_a_global_batch() -> None:
    """An epoch has as many more samples."""
    from muster.dialogues.rollouts import Repeated
    from muster.worker.data.sampler import GroupedSampler

    order = GroupedSampler([1] * 4, global_batch=2, seed=0, grouped=False)
    once, twice = list(order), list(Repeated(order, 2))
    assert twice == [*once[:2], *once[:2], *once[2:], *once[2:]]
    assert len(Repeated(order, 2)) == 8
    grouped = list(Repeated(order, 2, 3))  # the answers to a prompt follow each other
    step = [index for index in once[:2] for _ in range(3)]
    assert grouped[:12] == [*step, *step] and len(grouped) == len(Repeated(order, 2, 3)) == 24
    data = {"workload": "ppo", "data": {"generated": {"train": 50}}, "ppo": {"epochs": 3}}
    assert recipe_from(data).survey(None).samples == 150


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"engine": {"name": "fsdp"}}, "engine.name"), ({"batch": {"split": "measured"}}, "batch.split")],
)
def test_what_it_cannot_do_is_refused_before_the_start(changes: dict[str, Any], where: str) -> None:
    recipe = recipe_from({"workload": "ppo", "reward": {"execution": True}, **changes})
    assert isinstance(recipe, PpoRecipe)
    with pytest.raises(RecipeError) as caught:
        recipe.check_data(None, {})
    assert caught.value.where == where and caught.value.hint


def test_the_loss_is_this_ranks_part_of_the_mean_over_all_tokens() -> None:
    """The policy's and the weighted value's, over the tokens of all ranks, times the ranks that engines
    average over."""
    from muster.workloads.ppo.train import Experience, _Trainer

    made = AnsweredPrompts.of([[5, 6, 7], [8]], [[9, 3], [4, 3, 2]], pad=0, length=None, multiple=1)
    shape = made.mask.shape
    generator = torch.Generator().manual_seed(0)
    old, values, advantages, returns, now, valued = torch.randn(6, *shape, generator=generator)
    trainer: Any = SimpleNamespace(
        _experiences=[Experience(made, old, values, advantages, returns)], _at=0, _tokens=10.0,
        accelerator=SimpleNamespace(num_processes=2), see=lambda *_: None,
        ppo=Ppo(value_weight=0.25, clip=0.1, value_clip=0.3),
    )  # fmt: skip
    inputs = {"input_ids": made.input_ids, "attention_mask": made.attention_mask}
    policy, _ = objective.policy_loss(now, old, advantages, made.mask, 0.1)
    value = objective.value_loss(valued, values, returns, made.mask, 0.3)
    found = _Trainer.compute_loss(trainer, lambda *_: (now, valued), inputs)
    close(found, (policy + 0.25 * value).item() * 2 / 10)


def test_a_resumed_run_answers_anew_where_it_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps on each answers: after one step of a pair, one is left, and the next answers are drawn
    behind it."""
    from muster.workloads.ppo.train import _Trainer

    prompts = [{"prompts": torch.tensor([3, 4])}]
    monkeypatch.setattr(Trainer, "get_batch_samples", lambda *_: (prompts, None), raising=False)
    drawn = []
    for begin in (0, 1):
        trainer = object.__new__(_Trainer)
        trainer._left, trainer._waiting = 0, []
        trainer.ppo, trainer.state = Ppo(epochs=2), SimpleNamespace(global_step=begin)
        for step in range(begin, 4):
            trainer.state.global_step = step
            trainer.get_batch_samples()
            drawn.append((step, bool(trainer._waiting)))
            trainer._waiting = []
    assert drawn == [(0, True), (1, False), (2, True), (3, False), (1, True), (2, True), (3, False)]
