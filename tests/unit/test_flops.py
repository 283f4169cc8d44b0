"""The arithmetic of floating-point operations: formulas by hand, the polynomial, and the result."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core import families
from muster.core.batch import Batch
from muster.core.errors import UsageError
from muster.core.flops import Shape, quadratic
from muster.core.inventory import Host
from muster.core.job import Job, place
from muster.core.profile import StepProfile
from muster.core.recipe import recipe_from
from muster.core.result import Flops
from muster.core.state import State
from muster.inputs.read import read_recipe
from muster.planner.orders import greeting
from muster.results.fold import fold, make_result
from muster.runs.requirements import check_hosts, check_profile, needed
from muster.store import events
from muster.store.windows import measured

H200 = 989.5e12  # its bf16 peak, without sparsity


def test_families_without_a_formula_have_none() -> None:
    assert families.products({"model_type": "bart"}, Shape(1, 2, 3)) is None


# --- the polynomial ------------------------------------------------------------------------------------

COEFFICIENT = st.integers(0, 10**12)


@given(
    st.lists(COEFFICIENT, min_size=6, max_size=6),
    st.tuples(st.integers(3, 512), st.integers(3, 512)),
    st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
)
def test_a_polynomial_of_two_lengths_is_found_from_six_values(
    c: list[int], top: tuple[int, int], at: tuple[int, int]
) -> None:
    asked = []

    def count(lengths: tuple[int, ...]) -> Fraction:
        x, y = lengths
        asked.append(lengths)
        return Fraction(c[0] + c[1] * x + c[2] * y + c[3] * x * x + c[4] * x * y + c[5] * y * y)

    found = quadratic(count, top)
    assert len(asked) == 6
    assert all(1 <= x <= top[0] and 1 <= y <= top[1] for x, y in asked)
    assert found(at) == count(at)


def test_polynomials_of_one_length_and_of_none() -> None:
    found = quadratic(lambda at: Fraction(7 + 3 * at[0] + 5 * at[0] ** 2), (30,))
    assert found((1000,)) == 7 + 3000 + 5_000_000
    assert quadratic(lambda at: Fraction(9), ())(()) == 9
    with pytest.raises(ValueError, match="too short"):
        quadratic(lambda at: Fraction(0), (9, 2))


# --- what is to be profiled ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measure", "max_steps"),
    [
        ({"profile": "none", "profile_step": 99, "profile_ranks": [9]}, 10),
        ({"profile": "flops", "profile_step": 10, "profile_ranks": [1]}, 10),
        ({"profile": "trace", "profile_step": 9, "profile_steps": 5}, 10),
        ({"profile": "trace", "profile_step": 99}, None),
    ],
)
def test_profiles_that_can_be(measure: dict[str, Any], max_steps: int | None) -> None:
    check_profile(recipe_from({"measure": measure, "train": {"max_steps": max_steps}}), 2)


def test_the_steps_of_a_profile() -> None:
    def steps(**measure: Any) -> list[int]:
        return list(recipe_from({"measure": measure}).measure.profiled)

    assert steps() == []
    assert steps(profile="flops", profile_step=3, profile_steps=4) == [3]
    assert steps(profile="trace", profile_step=3, profile_steps=4) == [3, 4, 5, 6, 7, 8]


def test_deepspeed_is_wanted_where_its_profiler_is() -> None:
    names = ("torch", "transformers", "accelerate", "pydantic")
    facts = {"node1": {"python": "/py", "versions": dict.fromkeys(names, "1")}}
    check_hosts(facts, recipe_from({"measure": {"profile": "trace"}}))
    with pytest.raises(UsageError, match="deepspeed not installed for /py"):
        check_hosts(facts, recipe_from({"measure": {"profile": "flops"}}))


# --- the result ----------------------------------------------------------------------------------------


def job(precision: str = "bf16", **measure: Any) -> Job:
    recipe = recipe_from({"measure": {"warmup": 0, **measure}})
    return Job(
        id="one",
        launcher="ssh",
        placements=place([(Host("a"), 1), (Host("b"), 1)]),
        batch=Batch(8, 1, 16),
        precision=precision,
        device="cuda",
        recipe=recipe.as_dict(),
    )


def started(rank: int, device: str, arithmetic: str | None = None) -> events.Started:
    return events.Started(
        time=0, rank=rank, device=device, parameters=1, trainable=1, total_steps=9, arithmetic=arithmetic
    )


def window(step: int, rank: int, **changes: Any) -> events.Window:
    """Ten steps in two seconds: 400 TFLOP needed, 500 done."""
    return events.Window(
        **{
            "time": step, "rank": rank, "step": step, "steps": 10, "seconds": 2.0, "samples": 80,
            "tokens": 800, "padded_tokens": 1000, "step_seconds": [0.2] * 10,
            "model_flops": 400 * 10**12, "hardware_flops": 500 * 10**12, **changes,
        }
    )  # fmt: skip


def flops(stream: list[Any], of: Job | None = None) -> Flops | None:
    begin = events.JobState(time=0, state="begin", detail={})
    return make_result(
        fold([begin, *stream]), of or job(), status=State.SUCCEEDED, failure=None, ended=9.0
    ).flops


def test_mixed_devices_count_against_the_sum_of_their_peaks() -> None:
    got = flops(
        [started(0, "NVIDIA H200"), started(1, "NVIDIA A100-SXM4-80GB"), window(10, 0), window(10, 1)]
    )
    assert got is not None
    assert got.mfu == pytest.approx(2 * 200e12 / (H200 + 312e12))
    assert got.peak_source is not None
    assert "H200" in got.peak_source
    assert "A100" in got.peak_source


def test_tf32_has_its_own_peak() -> None:
    both = [started(0, "NVIDIA H200", "tf32"), started(1, "NVIDIA H200", "tf32")]
    got = flops([*both, window(10, 0), window(10, 1)], job("fp32"))
    assert got is not None
    assert (got.peak, got.arithmetic) == (494.5e12, "tf32")


def test_fp8_counts_against_the_peak_in_bf16_and_says_so() -> None:
    """As torchtitan does: so that a run in fp8 compares with one in bf16."""
    both = [started(0, "NVIDIA H200", "fp8"), started(1, "NVIDIA H200", "fp8")]
    stream = [*both, window(10, 0), window(10, 1)]
    got = flops(stream, job("fp8"))
    assert got is not None and got.peak_source is not None
    assert (got.peak, got.arithmetic) == (H200, "bf16")
    assert "bf16" in got.peak_source and "fp8" in got.peak_source
    by_hand = flops(stream, job("fp8", peak_tflops=1500.0))
    assert by_hand is not None and (by_hand.peak, by_hand.peak_source) == (1500e12, "measure.peak_tflops")


@pytest.mark.parametrize(
    ("given", "peak"),
    [(800.0, 800e12), ({"a": 600.0, "b": 800.0}, 700e12), ({"b": 800.0}, (H200 + 800e12) / 2)],
    ids=["for all", "per host", "of one host"],
)
def test_a_given_peak_goes_before_the_stated_one(given: Any, peak: float) -> None:
    both = [started(0, "NVIDIA H200"), started(1, "NVIDIA H200")]
    got = flops([*both, window(10, 0), window(10, 1)], job(peak_tflops=given))
    assert got is not None
    assert got.peak == pytest.approx(peak)
    assert got.mfu == pytest.approx(200e12 / peak)
    assert got.peak_source is not None
    assert "measure.peak_tflops" in got.peak_source


@pytest.mark.parametrize("devices", [("cpu", "cpu"), ("NVIDIA H200", "cpu"), ("NVIDIA H200", "Toaster 3")])
def test_without_a_known_peak_there_is_no_share(devices: tuple[str, str]) -> None:
    got = flops([started(0, devices[0]), started(1, devices[1]), window(10, 0), window(10, 1)])
    assert got is not None
    assert got.model_per_second == 200e12
    assert (got.peak, got.peak_source, got.mfu, got.hfu) == (None, None, None, None)


def test_a_window_that_was_not_counted_leaves_nothing_to_tell() -> None:
    assert flops([window(10, 0), window(10, 1, model_flops=None, hardware_flops=None)]) is None
    assert flops([window(10, 0, seconds=0.0), window(10, 1, seconds=0.0)]) is None
    assert flops([]) is None


def test_profiled_windows_count_for_no_figure() -> None:
    slow = {"steps": 1, "seconds": 100.0, "samples": 8, "step_seconds": [100.0], "profiled": True}
    stream = [
        *(window(4, rank, steps=4, seconds=0.8, samples=32, step_seconds=[0.2] * 4) for rank in (0, 1)),
        *(window(5, rank, **slow) for rank in (0, 1)),
        *(window(15, rank) for rank in (0, 1)),
    ]
    whole = fold(stream)
    chosen = measured(whole.ordered_windows(), 0, 2)
    assert [each[0].step for each in chosen] == [4, 15]
    got = make_result(whole, job(), status=State.SUCCEEDED, failure=None, ended=9.0)
    assert got.throughput is not None
    assert got.flops is not None
    assert got.throughput.samples_per_second == pytest.approx(2 * 112 / 2.8)
    assert got.throughput.step_seconds_p95 == 0.2
    assert got.flops.model_per_second == pytest.approx(800e12 / 2.8)
    assert (got.samples, got.steps) == (2 * 120, 15)  # they were trained on all the same
    assert [each[0].step for each in measured(whole.ordered_windows(), 5, 2)] == [15]  # still warm-up
    assert measured(whole.ordered_windows()[1:2], 0, 2) == []


def test_a_usual_step_has_as_many_tokens_as_the_profiled_ones() -> None:
    """Lengths vary: rank 0's profiled steps have twice the tokens of the others, padding included."""
    summary = StepProfile(
        first_step=12, last_step=13, step_seconds=0.5, busy=0.5, batches=0.0, launching=0.5, kernels=[]
    )
    profiled = [
        events.Profiled(
            time=1, rank=rank, what="trace", first_step=11, last_step=14, path=f"/r/t{rank}", bytes=1,
            summary=summary.model_copy(update={"rank": rank}),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    slow = {"steps": 4, "seconds": 2.0, "step_seconds": [0.5] * 4, "profiled": True}
    stream = [
        *(window(10, rank) for rank in (0, 1)),  # 100 tokens a step, 0.2 s
        window(14, 0, padded_tokens=800, **slow),
        window(14, 1, padded_tokens=400, **slow),
        *profiled,
    ]
    got = make_result(fold(stream), job(), status=State.SUCCEEDED, failure=None, ended=9.0).profiles
    assert [each.usual_seconds for each in got] == [pytest.approx(0.4), pytest.approx(0.2)]
    assert got[0].usually_busy == pytest.approx(0.5 * 0.5 / 0.4)


def test_what_was_profiled_and_what_was_miscounted_is_told() -> None:
    counted = events.FlopsCounted(
        time=1, rank=0, seconds=1.5, runs=2, method="polynomial", samples=1, lengths=[8], model=150,
        hardware=150, formula=100,
    )  # fmt: skip
    profiled = [
        events.Profiled(
            time=1, rank=rank, what="trace", first_step=5, last_step=6, path=f"/r/t{rank}", bytes=1
        )
        for rank in (0, 1)
    ]
    got = make_result(
        fold([counted, *profiled]), job(), status=State.SUCCEEDED, failure=None, ended=9.0
    ).notes
    assert "the model's FLOPs, as counted, are 1.500 times what the formula of its family says" in got
    assert "steps 5 to 6 ran under a profiler, outside every throughput; trace: /r/t0, /r/t1" in got


def test_a_configurations_trackers_are_asked_of_the_first_host(tmp_path: Path) -> None:
    """Rank 0 alone reports; the hint names the package, which no extra of Muster's brings."""
    file = tmp_path / "own.json"
    file.write_text(
        json.dumps(
            {"tensorboard": {"enabled": True}, "comet": {"enabled": True}, "wandb": {"enabled": False}}
        )
    )
    recipe = read_recipe("demo", ["engine.name=deepspeed", f"engine.config={file}"])
    places = place([(Host("a"), 1), (Host("b"), 1)])
    hosts = greeting(recipe, places, run_dir=tmp_path, nonce="n", job_id="j", attempt=1)
    assert {"tensorboard", "comet-ml"} <= set(hosts["a"]["packages"]) and "wandb" not in hosts["a"][
        "packages"
    ]
    have = dict.fromkeys(needed(recipe), "1")
    facts = {
        name: {"versions": {**have, "tensorboard": "1"}, "python": "python", "shared": True} for name in "ab"
    }
    with pytest.raises(UsageError, match="comet-ml not installed") as refused:
        check_hosts(facts, recipe)
    assert refused.value.host == "a" and "pip install comet-ml there" in (refused.value.hint or "")
    facts["a"]["versions"]["comet-ml"] = "3"
    check_hosts(facts, recipe)
