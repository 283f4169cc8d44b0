"""The recipe's learning rates against Transformers' own schedulers, and the watch over them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.learning_rate import learning_rate, scheduler, steps_of, warmup_steps
from muster.core.recipe import Train
from muster.core.recipes import load_recipe
from muster.engines.base import spec_of

SCHEDULES = ["linear", "cosine", "constant_with_warmup", "inverse_sqrt"]
TOTAL = 37


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [*itertools.product(SCHEDULES, [0, 1, 8, 37, 60, 0.1, 0.5, 0.001]), ("constant", 0)],
)
def test_as_transformers_own_schedulers(schedule: str, warmup: float) -> None:
    """Every step, through the arguments that the ranks give to Transformers."""
    torch = pytest.importorskip("torch")
    from transformers import TrainingArguments, get_scheduler

    train = Train(schedule=schedule, warmup=warmup, learning_rate=3e-4)  # type: ignore[arg-type]
    steps = TrainingArguments(
        output_dir="never-made", use_cpu=True, warmup_steps=warmup if warmup < 1 else int(warmup)
    ).get_warmup_steps(TOTAL)
    assert warmup_steps(train, TOTAL) == steps
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=train.learning_rate)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=steps, num_training_steps=TOTAL)
    for step in range(1, TOTAL + 1):
        wanted = pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-18)
        assert learning_rate(train, step, TOTAL) == wanted
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("warmup", [0, 8, 0.1, 37])
def test_a_cosine_to_a_floor_is_transformers_own(warmup: float) -> None:
    """By the arguments that ranks give, and with an optimizer that has no defaults, as DeepSpeed's."""
    torch = pytest.importorskip("torch")
    from transformers import get_scheduler

    train = Train(schedule="cosine", warmup=warmup, learning_rate=3e-4, min_learning_rate=6e-5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=train.rate)
    del optimizer.defaults["lr"]
    told = scheduler(train)
    steps = warmup_steps(train, TOTAL)
    made = get_scheduler(
        told["lr_scheduler_type"], optimizer, num_warmup_steps=steps, num_training_steps=TOTAL,
        scheduler_specific_kwargs=told["lr_scheduler_kwargs"],
    )  # fmt: skip
    for step in range(1, TOTAL + 1):
        assert learning_rate(train, step, TOTAL) == pytest.approx(
            optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-18
        )
        optimizer.step()
        made.step()


def test_a_cosine_to_a_floor_by_hand() -> None:
    train = Train(schedule="cosine", learning_rate=10.0, min_learning_rate=2.0)
    assert [learning_rate(train, step, 4) for step in (1, 3, 5)] == pytest.approx([10, 6, 2])


def test_a_linear_warm_up_is_linear() -> None:
    train = Train(warmup=4, learning_rate=8.0)
    assert [learning_rate(train, step, 12) for step in range(1, 13)] == [0, 2, 4, 6, 8, 7, 6, 5, 4, 3, 2, 1]


def watch(rates: list[float], **context: Any) -> list[str]:
    """What is noted when steps use these rates."""
    pytest.importorskip("transformers")
    from muster.worker.settings import SettingsWatch

    said: list[str] = []
    about = SimpleNamespace(
        **{
            "recipe": load_recipe(
                "demo", ["train.warmup=2", "train.learning_rate=4.0", "train.schedule=linear"]
            ),
            "engine_config": None,
            "spec": spec_of("deepspeed"),
            "precision": "fp32",
            "main": True,
            "emit": lambda kind, text: said.append(text),
            **context,
        }
    )
    watching = SettingsWatch(about, None)  # type: ignore[arg-type]
    for step, rate in enumerate(rates):
        state = SimpleNamespace(global_step=step, max_steps=6)
        optimizer = SimpleNamespace(param_groups=[{"lr": rate}])
        watching.on_step_begin(None, state, None, optimizer=optimizer)
    return said


def test_the_watch_says_where_a_rate_differs() -> None:
    """Once. It sleeps where the schedule is not the recipe's, or where skipped steps do not move it."""
    right, logarithmic = [0.0, 2.0, 4.0, 3.0, 2.0, 1.0], [0.0, 4.0, 4.0, 3.0, 2.0, 1.0]
    assert watch(right) == []
    (said,) = watch(logarithmic)
    assert said == (
        "the learning rate of step 2 was 4, where the recipe's schedule (linear, warm-up 2) gives 2"
    )
    assert len(watch([rate * (1 + 1e-5) for rate in right])) == 1
    for asleep in (
        {"engine_config": {"scheduler": {"type": "OneCycle"}}},
        {"precision": "fp16"},
        {"main": False},
    ):
        assert watch(logarithmic, **asleep) == []


def test_a_deepspeed_schedule_of_the_same_steps_is_no_other() -> None:
    scheduler = "engine.options.scheduler={type: WarmupDecayLR, params: {total_num_steps: 20}}"
    words = ["engine.name=deepspeed", scheduler]
    for steps in ("20", "null"):
        spec_of("deepspeed").checked(load_recipe("sft", [*words, f"train.max_steps={steps}"]))


def test_the_last_step_of_an_epoch_takes_what_is_left() -> None:
    """5 micro-steps are 3 optimizer steps of 2, as Transformers' trainer counts them."""
    assert steps_of(Train(epochs=1), samples=10, global_batch=4, accumulation=2) == 3
    assert steps_of(Train(epochs=2), samples=10, global_batch=4, accumulation=2) == 6
    assert steps_of(Train(epochs=1), samples=1, global_batch=8, accumulation=4) == 1
