"""What a run came to, against figures worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.inventory import Host
from muster.core.job import Job, place
from muster.core.recipe import recipe_class, recipe_from
from muster.core.recipes import field_paths
from muster.core.result import Result
from muster.core.state import RunEnd, State
from muster.engines.base import spec_of
from muster.failures.table import known_failures
from muster.readers.base import NOT_FINITE
from muster.results.figures import figures as figures_of
from muster.results.fold import EventFold, caveats, fold, learned_nothing, make_result, model_name
from muster.results.speed import throughput
from muster.store import events
from muster.store.windows import measured, warm_ups

FEW = "the throughput rests on 10 steps alone"


def window(step: int, rank: int | None = 0, **changes: Any) -> events.Window:
    """Ten steps in two seconds: 80 samples, 800 tokens, 1000 with padding."""
    return events.Window(
        **{
            "time": float(step), "rank": rank, "step": step, "steps": 10, "seconds": 2.0, "samples": 80,
            "tokens": 800, "padded_tokens": 1000, "step_seconds": [0.2] * 10, **changes,
        }
    )  # fmt: skip


def both(step: int, **changes: Any) -> list[events.Window]:
    return [window(step, 0, **changes), window(step, 1, **changes)]


def job(*, ranks: int = 2, warmup: int = 10, attempt: int = 1, **recipe: Any) -> Job:
    return Job(
        id="one",
        launcher="local",
        placements=place([(Host(f"node{i}"), 1) for i in range(ranks)]),
        batch=Batch(8, 1, 8 * ranks),
        precision="fp32",
        device="cpu",
        recipe=recipe_from({"measure": {"warmup": warmup}, **recipe}).as_dict(),
        attempt=attempt,
    )


def result(folder: EventFold, of: Job | None = None) -> Result:
    return make_result(folder, of or job(), status=State.SUCCEEDED, failure=None, ended=100.0)


def begin(attempt: int = 1, resume_step: int | None = None, time: float = 0.0) -> events.JobState:
    return events.JobState(time=time, attempt=attempt, state="begin", detail={"resume_step": resume_step})


@pytest.mark.parametrize(("stride", "noted"), [(2.0, False), (2.4, False), (2.6, True)])
def test_a_timer_that_leaves_something_out_is_noted(stride: float, noted: bool) -> None:
    """A program says 0.2 s of each of its steps; lines of ten steps come every `stride` seconds, after a slow
    beginning that the rate does not rest on, and once more at the end."""
    steps = [1, *range(10, 101, 10), 100]
    times = [0.0, *(60 + stride * number for number in range(10)), 500.0]
    course = [
        events.Progress(
            time=time, format="nanoGPT", step=step, rate=5.0, unit="steps", step_seconds=0.2, steps=90
        )
        for step, time in zip(steps, times, strict=True)
    ]
    command = job(workload="command", command=["train.py"])
    folder = fold([begin(), *course])
    assert folder.logs[100].time == 60 + 9 * stride
    got = make_result(folder, command, status=State.SUCCEEDED, failure=None, ended=501.0)
    assert got.command is not None and got.command.step_seconds == 0.2
    assert any("timer leaves out" in note for note in got.notes) == noted


def of_command(*course: events.Event, status: RunEnd = State.SUCCEEDED) -> Result:
    command = job(workload="command", command=["train.py"])
    return make_result(fold([begin(), *course]), command, status=status, failure=None, ended=501.0)


def test_the_last_loss_of_a_command_is_what_it_printed_last() -> None:
    """Of two stages, the second of which counts anew; and where it is no number any more."""
    first = events.Progress(time=1.0, format="nanoGPT", step=39, made=40, loss=2.0)
    last = events.Progress(time=2.0, format="nanoGPT", step=19, made=60, loss=1.0)
    got = of_command(first, last)
    assert (got.steps, got.loss_final, got.caveats) == (60, 1.0, [])
    assert got.command is not None and got.command.last_step == 19
    nan = f"{NOT_FINITE}, as at step 12 already"
    got = of_command(first, last.model_copy(update={"loss": None, "not_finite": nan}))
    assert (got.loss_final, got.caveats, got.notes) == (None, [nan], [nan])
    shown = {figure.name: (figure.value, figure.note) for figure in figures_of(got)}
    assert shown["Loss"] == ("not finite", "as at step 12 already")
    got = of_command(last.model_copy(update={"not_finite": nan}), status=State.FAILED)
    assert (got.caveats, got.notes) == ([], [nan])


def test_a_loss_of_muster_step_that_is_not_finite_at_the_end() -> None:
    losses = {1: 2.0, 20: math.nan, 40: 1.0, 60: math.inf, 80: math.nan}
    logs = [events.Log(time=float(step), step=step, loss=loss) for step, loss in losses.items()]
    got = of_command(window(80), *logs)
    assert (got.loss_final, got.caveats) == (None, [f"{NOT_FINITE}, as at step 60 already"])
    got = of_command(window(80), *logs[:3])
    assert (got.loss_final, got.caveats) == (1.0, [])


def test_pauses_between_the_steps_of_a_command() -> None:
    """80 steps of 0.05 s, and a second before each twentieth, in windows of a second or more: 12 samples a
    step, and the first ten are its warm-up."""
    course: list[events.Event] = []
    for step in range(20, 81, 20):
        usual, pause = [0.05] * 19, [1.05]
        for each, at in ((usual, step - 1), (pause, step)):
            of = {"steps": len(each), "step_seconds": each, "seconds": sum(each), "samples": 4 * len(each)}
            course += [window(at, rank, **of) for rank in range(3)]
    got = of_command(*course)
    assert got.command is not None and got.command.rests_on == 70
    assert got.command.rate == pytest.approx(12 * 70 / (70 * 0.05 + 4))
    assert (got.command.step_seconds, got.command.variation) == (0.05, None)
    assert any(note.startswith("a usual step takes 50.0 ms, and 107 ms passed") for note in got.notes)
    even = of_command(*(window(step) for step in range(10, 81, 10)))
    assert even.command is not None and (even.command.rate, even.command.variation) == (40.0, 0.0)
    assert not even.notes


def test_the_halves_are_in_the_order_of_the_steps() -> None:
    """What `variation` cannot tell: the second half takes twice as long."""
    course = [[0.1] * 10, [0.1] * 8 + [0.3, 0.2], [0.2] * 10, [0.2] * 9 + [0.1]]
    got = throughput([[window(10, 0, step_seconds=each)] for each in course], warmup=0, world_size=1)
    assert got is not None and got.halves == (0.1, 0.2)


def test_without_step_times_the_mean_stands_in() -> None:
    got = throughput([both(10, step_seconds=[])], warmup=0, world_size=2)
    assert got is not None
    assert (got.step_seconds_median, got.step_seconds_p95) == (0.2, 0.2)


@pytest.mark.parametrize(
    ("sizes", "warmup", "steps"),
    [
        ([10, 10, 10, 10], 0, 40),
        ([10, 10, 10, 10], 10, 30),
        ([10, 10, 10, 10], 11, 20),
        ([10, 10, 10], 1000, 20),  # no more than a third
        ([10], 10, 10),  # a single window is all there is
        ([2, 10], 10, 10),  # the last one is never warm-up
        ([10, 2], 10, 2),
    ],
)
def test_the_warm_up(sizes: list[int], warmup: int, steps: int) -> None:
    windows, step = [], 0
    for size in sizes:
        step += size
        windows.append(both(step, steps=size))
    got = throughput(windows, warmup, world_size=2)
    assert got is not None
    assert got.measured_steps == steps
    shaded = warm_ups(windows, warmup, world_size=2)
    assert shaded == ([(0, sum(sizes) - steps)] if steps < sum(sizes) else [])


def test_every_attempt_has_its_warm_up() -> None:
    """Each begins its devices and compiles anew: the first window takes 20 s, not 2."""
    slow = {"seconds": 20.0, "step_seconds": [2.0] * 10}
    first = [both(step, **(slow if step == 10 else {})) for step in (10, 20, 30)]
    second = [both(step, attempt=2, **(slow if step == 40 else {})) for step in (40, 50, 60)]
    got = throughput([*first, *second], warmup=10, world_size=2)
    assert got is not None
    assert (got.samples_per_second, got.step_seconds_p95, got.measured_steps) == (80.0, 0.2, 40)
    assert warm_ups([*first, *second], 10, 2) == [(0, 10), (30, 40)]
    short = [*first, second[0]]  # it ended within its warm-up: the first attempt's windows are there
    assert [each[0].step for each in measured(short, 10, 2)] == [20, 30]
    assert warm_ups(short, 10, 2) == [(0, 10), (30, 40)]
    assert warm_ups([], 10, 2) == []


def test_a_shorter_last_window_does_not_count_as_variation() -> None:
    got = throughput([both(10), both(20), both(23, steps=3, seconds=3.0, samples=24)], warmup=0, world_size=2)
    assert got is not None
    assert got.variation == 0
    assert got.windows == 3


def test_a_window_without_a_duration_does_not_shift_the_others() -> None:
    windows = [both(3, steps=3, seconds=0.0), both(13), both(23), both(33, seconds=4.0)]
    got = throughput(windows, warmup=0, world_size=2)
    assert got is not None
    rates = [80.0, 80.0, 40.0]
    mean = sum(rates) / 3
    assert got.variation == pytest.approx((sum((rate - mean) ** 2 for rate in rates) / 2) ** 0.5 / mean)


def test_a_window_that_a_rank_is_missing_from_is_not_measured() -> None:
    got = throughput([both(10), [window(20, 0)], both(30)], warmup=0, world_size=2)
    assert got is not None
    assert got.measured_steps == 20
    assert got.samples_per_second == pytest.approx(80.0)


@pytest.mark.parametrize(
    "windows", [[], [[window(10, 0)]], [both(10, seconds=0.0)]], ids=["none", "half", "no time"]
)
def test_what_cannot_be_told_is_none(windows: list[list[events.Window]]) -> None:
    assert throughput(windows, warmup=0, world_size=2) is None
    folder = fold(event for each in windows for event in each)
    assert result(folder).throughput is None


def log(step: int, loss: float | None, attempt: int = 1) -> events.Log:
    return events.Log(time=step, attempt=attempt, step=step, loss=loss, epoch=step / 40)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ({"name": "ddp"}, "ddp"),
        ({"name": "fsdp", "offload": "optimizer+param"}, "fsdp + offload"),
        ({"name": "deepspeed", "zero": 1}, "deepspeed ZeRO-1"),
        ({"name": "deepspeed", "zero": 3, "offload": "optimizer"}, "deepspeed ZeRO-3 + offload optimizer"),
        ({"name": "deepspeed", "config": "/x/ds.json"}, "deepspeed with /x/ds.json"),
    ],
)
def test_the_engines_name(engine: dict[str, Any], name: str) -> None:
    section = recipe_from({"engine": engine}).engine
    assert spec_of(section.name).described(section) == name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"name": "t5-small"}, "t5-small"),
        ({"config": {"d_model": 8}}, "t5 from a configuration"),
        ({"config": {"model_type": "bart"}}, "bart from a configuration"),
    ],
)
def test_the_models_name(model: dict[str, Any], name: str) -> None:
    assert model_name(recipe_from({"model": model})) == name


@pytest.mark.parametrize(("late", "named"), [(True, True), (None, True), (False, False)])
def test_a_limit_of_time_is_named_where_it_ended_the_training(late: bool | None, named: bool) -> None:
    """None: of a run whose version did not say."""
    made = {"device": "cpu", "parameters": 1, "trainable": 1, "total_steps": 400}
    folder = fold([
        events.Started(time=0.0, rank=0, **made), events.Done(time=1.0, rank=0, step=160, out_of_time=late),
    ])  # fmt: skip
    said = caveats(folder, recipe_from({"train": {"max_minutes": 2}}), 160)
    assert said[0] == "cut at 160 of 400 steps" + (" by train.max_minutes=2" if named else "")


def test_samples_that_are_cut_name_keys_that_the_workload_has() -> None:
    for name in ("sft", "reward", "seq2seq", "text2sql"):
        kind = recipe_class(name)
        keys = kind.cut_by.split(" or ")
        assert all(key in field_paths(kind) for key in keys)


def test_a_model_that_is_the_one_of_the_start_is_no_success() -> None:
    """But where it was not meant to change, or is not to be kept, or one rank's part has changed."""

    def ended(
        changed: bool | None = False, *, rate: float = 1e-3, to: int = 20, lost: int = 0, **of: Any
    ) -> Any:
        log = events.Log(
            time=0.0, rank=0, step=to, learning_rate=rate, figures={"reward": 0.0, "reward_std": 0.0}
        )
        windows = [each.model_copy(update={"skipped": lost}) for each in both(to)]
        done = [
            events.Done(time=0.0, rank=rank, step=to, weights_changed=each)
            for rank, each in enumerate((changed, False))
        ]
        attempt = of.pop("resume_step", None)
        of_job = dataclasses.replace(job(**of), resume_step=attempt)
        return learned_nothing(fold([begin(), *windows, log, *done]), of_job)

    failure = ended()
    assert failure.what == "no answer was rewarded; the weights did not change in 20 steps" and failure.hint
    assert ended(True) is None and ended(None) is None
    assert ended(rate=0.0) is None and ended(to=1) is None and ended(resume_step=10) is None
    assert ended(checkpoint={"model": False}) is None
    skipped = ended(lost=20)
    assert skipped.id == "loss_scale_too_high" and skipped.hint == known_failures()[skipped.id].remedy
    assert ended(lost=19).id is None
