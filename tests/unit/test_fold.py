"""What a run came to, against figures worked out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.inventory import Host
from muster.core.job import PASSED_OVER, Decision, Job, place
from muster.core.recipe import recipe_class, recipe_from
from muster.core.recipes import field_paths
from muster.core.result import Extreme, Result
from muster.core.state import State
from muster.engines.base import spec_of
from muster.failures.table import known_failures
from muster.results.fold import EventFold, fold, learned_nothing, make_result, model_name
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


def test_the_share_of_getting_batches() -> None:
    """Of each window the rank that spends most, of its time on the slowest rank: 2.0 + 3.0 seconds."""
    windows = [
        *both(10, data_seconds=1.9),  # warm-up
        window(20, 0, data_seconds=0.1),
        window(20, 1, data_seconds=0.5),
        window(30, 0, data_seconds=0.4, seconds=3.0),
        window(30, 1),  # says nothing, as a plug-in's own meter may
    ]
    got = result(fold([begin(), *windows]), job(train={"workers": 1}))
    assert got.throughput is not None and got.throughput.data_share == pytest.approx(0.9 / 5)
    assert any("18 % of the time" in note and "train.workers=3" in note for note in got.notes)
    few = result(fold([begin(), *both(20, data_seconds=0.2)]))
    assert few.throughput is not None and few.throughput.data_share == pytest.approx(0.1)
    assert not any("train.workers" in note for note in few.notes)
    none = result(fold([begin(), *both(10, data_seconds=1.9), *both(20)]))
    assert none.throughput is not None and none.throughput.data_share is None


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


def test_resuming_replaces_the_steps_that_are_done_again() -> None:
    first = [
        begin(time=5.0),
        *both(10), log(10, 3.0), *both(20), log(20, 2.0), *both(30, samples=1), log(30, 9.0),
        events.Evaluated(time=1, step=20, loss=2.5), events.Evaluated(time=1, step=30, loss=9.5),
        events.Failed(time=31, rank=1, what="killed"),
        events.Done(time=31, rank=0, step=30, seconds={"training": 99.0}),
        events.Answered(time=31, rank=0, questions=5, exact=5, seconds=1.0),
    ]  # fmt: skip
    second = [begin(2, 20, 50.0), *both(30), log(30, 1.0, 2), *both(40), log(40, 0.5, 2)]
    folder = fold([*first, *second])
    assert folder.failed == []
    assert folder.done == {}
    got = result(folder, job(attempt=2))
    assert (got.steps, got.samples) == (40, 4 * 2 * 80)
    assert (got.loss_first, got.loss_final, got.evaluation_loss) == (3.0, 0.5, 2.5)
    assert got.quality is None
    assert (got.started, got.seconds.total) == (5.0, 26.0 + 50.0)  # not the time between
    assert got.seconds.training == pytest.approx(8.0)  # all four windows, over both attempts
    assert "this run was resumed: attempt 2" in got.notes


def test_after_a_resume_all_times_are_of_the_same_steps() -> None:
    """Both attempts' evaluations and checkpoints as their steps; of several disks, the slowest."""

    def saved(rank: int, step: int | None, seconds: float) -> events.Saved:
        return events.Saved(time=1, rank=rank, step=step, path="/c", bytes=1, seconds=seconds)

    first = [
        begin(), *both(10), events.Evaluated(time=1, step=10, loss=1, seconds=3.0), saved(0, 10, 1.0),
        saved(1, 10, 1.5), *both(20), events.Evaluated(time=1, step=20, loss=1, seconds=50.0),
        saved(0, 20, 50.0),
    ]  # fmt: skip
    second = [
        begin(2, 10, 50.0), *both(20), events.Evaluated(time=1, step=20, loss=1, seconds=4.0),
        saved(0, 20, 2.0), saved(0, None, 0.5),
        events.Done(time=60, rank=0, step=20, seconds={"training": 2.0, "evaluation": 4.0, "saving": 2.5}),
    ]  # fmt: skip
    spent = result(fold([*first, *second]), job(attempt=2)).seconds
    assert (spent.training, spent.evaluation, spent.saving) == (4.0, 7.0, 4.0)


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_hosts_clocks_do_not_matter(ahead: float) -> None:
    """20 s to the first step, 30 s to the end of an attempt, whatever the host thinks that it is."""

    def phase(heard: float | None, when: float) -> events.Phase:
        return events.Phase(time=when + ahead, heard=heard, rank=0, name="steps")

    stream = [begin(time=1000.0), phase(1020.0, 1020.0), *both(10, time=1030.0 + ahead, heard=1030.0)]
    assert make(stream, ended=1040.0) == (40.0, 20.0)
    again = [*stream, begin(2, 10, 2000.0), phase(2020.0, 2020.0)]
    assert make(again, ended=2040.0) == (30.0 + 40.0, 20.0)
    old = [begin(time=1000.0), phase(None, 1020.0)]  # of a file from before there was `heard`
    assert make(old, ended=1040.0) == (40.0, 320.0 if ahead > 0 else None)


def make(stream: list[events.Event], ended: float) -> tuple[float, float | None]:
    """The total and the set-up seconds."""
    made = make_result(fold(stream), job(), status=State.SUCCEEDED, failure=None, ended=ended).seconds
    return made.total, made.setup


def test_starting_again_from_nothing_forgets_everything() -> None:
    folder = fold([begin(), *both(10), log(10, 3.0), begin(2, None, 50.0), *both(5, steps=5)])
    got = result(folder, job(attempt=2))
    assert (got.steps, got.samples, got.loss_first) == (5, 160, None)


def test_nothing_happened() -> None:
    got = result(fold([]))
    assert (got.steps, got.samples, got.skipped_steps) == (0, 0, 0)
    assert (got.loss_first, got.loss_final, got.epochs, got.parameters, got.quality) == (None,) * 5
    assert got.memory.model_dump() == {"allocator_peak": None, "device_peak": None, "resident_peak": None}
    assert got.seconds.model_dump() == {
        "total": 0.0, "setup": None, "training": None, "evaluation": None, "saving": None,
    }  # fmt: skip
    assert [(h.host, h.ranks, h.facts, h.cpu_percent_mean) for h in got.hosts] == [
        ("node0", [0], {}, None),
        ("node1", [1], {}, None),
    ]


def test_questions_whose_expected_query_cannot_be_run_are_named_and_the_others_scored() -> None:
    def answer(index: int, executed: bool | None, unscored: str | None = None) -> events.Answer:
        return events.Answer(
            time=1, rank=index % 2, index=index, question="q", predicted="p", expected="e", exact=False,
            executed=executed, unscored=unscored,
        )  # fmt: skip

    stream = [
        answer(0, True), answer(2, None, "no such table: lake"), answer(1, False), answer(3, None),
        events.Answered(time=1, rank=0, questions=2, exact=0, executed=1, scored=1, seconds=1.0),
        events.Answered(time=1, rank=1, questions=2, exact=0, executed=0, scored=1, seconds=1.0),
    ]  # fmt: skip
    found = result(fold(stream))
    assert found.quality is not None
    assert (found.quality.execution_match, found.quality.scored) == (0.5, 2)
    assert [(each.index, each.why) for each in found.quality.unscored] == [(2, "no such table: lake")]
    told = [note for note in found.notes if "same rows" in note]
    assert told == [
        "2 held-out questions do not count in same rows: the expected query of 1 cannot be run (question 3: "
        "no such table: lake), and 1 have no database"
    ]
    again = events.JobState(time=2, attempt=2, state="begin")  # a resumed run is judged anew
    quality = result(fold([*stream, again, *stream])).quality
    assert quality is not None and [each.index for each in quality.unscored] == [2]


def test_without_a_database_nothing_is_scored_and_nothing_is_noted() -> None:
    done = events.Answered(time=1, rank=0, questions=2, exact=1, executed=None, scored=0, seconds=1.0)
    found = result(fold([done]))
    assert found.quality is not None
    assert (found.quality.execution_match, found.quality.scored) == (None, None)
    assert not [note for note in found.notes if "same rows" in note]


def test_execution_match_is_unknown_where_one_rank_has_no_database() -> None:
    parts = [
        events.Answered(time=1, rank=0, questions=1, exact=1, executed=1, seconds=1.0),
        events.Answered(time=1, rank=1, questions=1, exact=0, executed=None, seconds=1.0),
    ]
    quality = result(fold(parts)).quality
    assert quality is not None
    assert (quality.exact_match, quality.execution_match) == (0.5, None)


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


def seen(step: int, largest: list[float | None], smallest: list[float | None]) -> events.Attention:
    return events.Attention(
        time=1, step=step, layers=["layer0", "layer1"], largest=largest, smallest=smallest, seconds=0.5
    )


def test_the_extremes_of_the_attention_logits() -> None:
    """Over all windows, with what looking cost; a later attempt replaces what it does again."""
    parts = [
        begin(), *both(10), seen(10, [3.0, 4.0], [-1.0, -9.5]),
        *both(20), seen(20, [99.0, None], [-99.0, None]),
        begin(2, resume_step=10), *both(20), seen(20, [2.0, None], [-8.0, None]),
    ]  # fmt: skip
    made = result(fold(parts))
    assert made.attention and made.seconds.training
    assert (made.attention.largest, made.attention.smallest) == (
        Extreme(logit=4.0, layer="layer1", step=10), Extreme(logit=-9.5, layer="layer1", step=10),
    )  # fmt: skip
    assert (made.attention.windows, made.attention.seconds) == (2, 1.0)
    assert made.attention.share == pytest.approx(1.0 / made.seconds.training)
    broken_off = [*parts[:-3], begin(2, resume_step=10)]  # what the attempt before saw of step 20 is gone
    again = result(fold(broken_off)).attention
    assert again and again.largest and (again.windows, again.largest.logit) == (1, 4.0)
    assert result(fold([begin(), *both(10)])).attention is None
    blank = result(fold([begin(), *both(10), seen(10, [None, None], [None, None])])).attention
    assert blank and blank.largest is None and blank.smallest is None


def test_checkpoints_that_were_passed_over_are_noted() -> None:
    decision = Decision("checkpoint-40", PASSED_OVER, "model.safetensors has 9 of 10 bytes on a")
    of = dataclasses.replace(job(attempt=2), decisions=(decision, Decision("slots of a", 1, "one")))
    (note,) = [note for note in result(fold([begin(2), *both(10)]), of).notes if "passed over" in note]
    assert note.startswith("checkpoint-40 was passed over") and note.endswith("has 9 of 10 bytes on a")


def test_a_training_that_was_cut_says_where() -> None:
    started = events.Started(time=0.0, rank=0, device="cpu", parameters=9, trainable=9, total_steps=400)
    folder = fold([begin(), started, *both(10), *both(160)])
    assert result(folder, job(train={"max_minutes": 2})).notes[0] == (
        "cut at 160 of 400 steps by train.max_minutes=2"
    )
    assert result(folder).notes[0] == "cut at 160 of 400 steps"
    for warmup, caveats in ((159, 1), (0.4, 2), (160, 2)):  # step 161 is the first at the peak of 160 steps
        cut = result(folder, job(train={"warmup": warmup}))
        assert len(cut.caveats) == caveats and cut.notes[: len(cut.caveats)] == cut.caveats
    assert result(fold([begin(), started, *both(399)])).notes[0] == "cut at 399 of 400 steps"
    whole = fold([begin(), started, *both(400)])
    assert not any("cut at" in note for note in result(whole, job(train={"max_minutes": 2})).notes)
    broken = make_result(folder, job(), status=State.FAILED, failure=None, ended=9.0)
    assert not any("cut at" in note for note in broken.notes)  # the failure says why


def test_samples_that_are_cut_name_keys_that_the_workload_has() -> None:
    for name in ("sft", "reward", "seq2seq", "text2sql"):
        kind = recipe_class(name)
        keys = kind.cut_by.split(" or ")
        assert all(key in field_paths(kind) for key in keys)


def test_a_training_that_learned_nothing_is_no_plain_success() -> None:
    """Weights that are those of the start, on every rank; no answer that was rewarded."""

    def ended(figures: dict[str, float], *changed: bool | None) -> Result:
        logs = [events.Log(time=0.0, rank=0, step=step, loss=0.0, figures=figures) for step in (10, 20)]
        done = [
            events.Done(time=0.0, rank=rank, step=20, weights_changed=each)
            for rank, each in enumerate(changed)
        ]
        return result(fold([begin(), *both(10), *both(20), *logs, *done]))

    nothing = ended({"reward": 0.0, "reward_std": 0.0, "equal_groups": 1.0}, False, False)
    assert nothing.caveats == ["no answer was rewarded", "the weights did not change in 20 steps"]
    assert nothing.notes[:2] == nothing.caveats and nothing.status == "succeeded"
    assert all(each in nothing.outcome for each in nothing.caveats)
    alike = ended({"reward": 1.0, "reward_std": 0.0, "equal_groups": 1.0}, True, True)
    assert alike.caveats == ["all answers to each prompt were worth the same"]
    for figures in ({}, {"reward": 0.5, "equal_groups": 0.9}, {"reward": 0.0, "reward_std": 1.0}):
        for changed in ((True, False), (None, None), (True, True)):
            fine = ended(figures, *changed)
            assert fine.caveats == [] and fine.outcome == "succeeded"


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


@pytest.mark.parametrize(
    ("workload", "keys"), [("text2sql", "data.max_source or data.max_target"), ("sft", "data.sequence")]
)
def test_samples_are_cut_by_keys_that_their_workload_has(workload: str, keys: str) -> None:
    read = events.DataRead(time=1, rank=0, train=10, validation=2, cut=3)
    made = make_result(
        fold([read]), job(workload=workload), status=State.SUCCEEDED, failure=None, ended=9.0, planned=None
    )
    assert f"3 samples cut to {keys}" in made.notes
