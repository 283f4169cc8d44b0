"""What the plan chooses where a recipe says auto: the fastest way that fits, and why the others lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import RecipeError, UsageError
from muster.core.inventory import parse_hosts
from muster.core.recipe import Recipe, recipe_from
from muster.core.recipes import load_recipe
from muster.core.trace import Parameter, Pass, Trace
from muster.inputs.read import check
from muster.planner.decide import Decided
from muster.planner.machines import MachineModel, hypothetical
from muster.planner.memory.fit import lacking, need
from muster.planner.time.steptime import Calibration
from tests.support import on_hosts, parse_machines

OPEN = ("engine.zero=auto", "train.gradient_checkpointing=auto")


def decided_on(machines: str, *overrides: str, timed: bool = True, host_memory: int | None = None) -> Decided:
    """The OPT benchmark on machines that are not there."""
    recipe = load_recipe("opt-benchmark", [*OPEN, *overrides])
    found = parse_machines(machines)
    inventory, facts, by_host = hypothetical([found], machines, host_memory)
    ground = MachineModel(facts, inventory.hosts, Calibration(), by_host)
    return on_hosts(recipe, inventory, facts, model=ground if timed else None)


def test_the_fastest_that_fits_is_chosen_and_nothing_is_left_open() -> None:
    decided = decided_on("a100-80gb:8x2,100Gbit", "model.name=opt-1.3b")
    assert len(decided.candidates) == 8  # four stages, with and without recomputation
    chosen = [each for each in decided.candidates if each.chosen]
    assert len(chosen) == 1
    fitting = [each.samples_per_second or 0 for each in decided.candidates if each.fits]
    assert chosen[0].samples_per_second == max(fitting)
    recipe = decided.recipe
    assert str(recipe.engine.stage) == chosen[0].changes["engine.zero"]
    assert str(recipe.train.checkpointing).lower() == chosen[0].changes["train.gradient_checkpointing"]
    assert decided.setting is not None
    assert (decided.setting.spread.stage, decided.setting.checkpointing) == (
        recipe.engine.stage,
        recipe.train.checkpointing,
    )
    told = {each.field: each for each in decided.job.decisions}
    assert told["engine.zero"].value == recipe.engine.stage
    assert "the fastest of" in told["engine.zero"].why


def test_what_is_chosen_fits_and_what_does_not_says_so() -> None:
    decided = decided_on("v100-32gb:8x4,100Gbit", "model.name=opt-13b", "precision=fp16")
    found = need(decided.setting)
    assert found is not None
    assert lacking(decided.setting, decided.room) is None
    lost = [each for each in decided.candidates if not each.fits]
    assert lost  # 13 B parameters in 32 GB: only sharded
    assert {each.changes["engine.zero"] for each in lost} >= {"0"}
    assert all("does not fit" in each.why for each in lost)


def test_what_lacks_has_its_own_figures() -> None:
    """Where the host has too little, the device's figures would say that the job fits."""
    decided = decided_on(
        "a100-40gb:8x1", "model.name=opt-13b", "engine.offload=optimizer", host_memory=290 * 10**9
    )
    lost = [each for each in decided.candidates if not each.fits and "host memory" in each.why]
    assert lost
    for each in lost:
        needed, has = (float(found) for found in re.findall(r"([0-9.]+) GB", each.why))
        assert needed > 0.9 * has
        assert has == pytest.approx(290 / 8, abs=0.1)


def test_without_speeds_the_mildest_that_fits() -> None:
    decided = decided_on("a100-80gb:8x2,100Gbit", "model.name=opt-125m", timed=False)
    assert (decided.recipe.engine.stage, decided.recipe.train.checkpointing) == (0, False)
    assert "some speeds are unknown" in next(d.why for d in decided.job.decisions if d.field == "engine.zero")


def test_nothing_fits_is_refused_with_what_would() -> None:
    with pytest.raises(UsageError, match="opt-175b needs about") as refused:
        decided_on("v100-16gb:8x1", "model.name=opt-175b", "precision=fp16", host_memory=64 * 10**9)
    assert refused.value.where == "memory"


@pytest.mark.parametrize(
    ("offload", "stages"),
    [("none", {"0", "1", "2", "3"}), ("optimizer", {"1", "2", "3"}), ("optimizer+param", {"3"})],
)
def test_offloading_leaves_the_stages_that_can_do_it(offload: str, stages: set[str]) -> None:
    decided = decided_on("a100-80gb:8x1", "model.name=opt-1.3b", f"engine.offload={offload}")
    assert {each.changes["engine.zero"] for each in decided.candidates} == stages


def test_a_recipe_that_says_everything_has_no_other_ways() -> None:
    decided = decided_on("a100-80gb:8x1", "engine.zero=1", "train.gradient_checkpointing=false")
    assert len(decided.candidates) == 1
    assert decided.candidates[0].changes == {}


def test_undecided_values_are_never_used() -> None:
    recipe: Recipe = load_recipe("opt-benchmark", OPEN)
    with pytest.raises(ValueError, match="not decided"):
        _ = recipe.engine.stage
    with pytest.raises(ValueError, match="not decided"):
        _ = recipe.train.checkpointing


def test_auto_is_for_deepspeed() -> None:
    recipe = load_recipe("opt-benchmark", ["engine.name=ddp", "engine.zero=auto"])
    with pytest.raises(RecipeError, match="DeepSpeed's"):
        check(recipe, parse_hosts("node1"))


def test_gradient_checkpointing_alone_can_be_open() -> None:
    about: dict[str, Any] = {"cores": 8, "gpus": [], "memory_total": 64 * 10**9}
    recipe = load_recipe("digits", ["train.gradient_checkpointing=auto"])
    decided = on_hosts(recipe, parse_hosts("node1"), {"node1": about})
    assert decided.recipe.train.checkpointing is False
    assert [each.changes["train.gradient_checkpointing"] for each in decided.candidates] == ["false", "true"]


OLMO = {
    "model_type": "olmo2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


def of_no_known_family(memory: int, *, traces: bool) -> Decided:
    """A model without closed forms, whose recomputation cannot be traced; 1 GB of parameters in fp32."""

    def tracer(recipe: Recipe, precision: str, device: str, ranks: int) -> Trace | None:
        if recipe.train.checkpointing or not traces:
            return None
        passes = (Pass(2, 200, 0, 0, 0, 300, 10, 30, 0), Pass(4, 400, 0, 0, 0, 600, 20, 60, 0))
        tensors = (Parameter("a.weight", (250_000, 1000), True, "a"),)
        return Trace(tensors, passes, 0, "fp32", "cpu", False, (2,), {}, 0.0)

    recipe = recipe_from({
        "workload": "causal-lm", "model": {"config": OLMO, "init": "random"},
        "data": {"synthetic": {}, "sequence": 8}, "train": {"gradient_checkpointing": "auto"},
    })  # fmt: skip
    about = {"node1": {"cores": 8, "gpus": [], "memory_total": memory}}
    return on_hosts(recipe, parse_hosts("node1"), about, tracer=tracer)


def test_a_way_that_could_not_be_counted_does_not_fit() -> None:
    found = of_no_known_family(64 * 10**9, traces=True)
    assert found.setting is not None
    assert [each.fits for each in found.candidates] == [True, None]
    assert [each.chosen for each in found.candidates] == [True, False]
    assert "the mildest of 1 settings that fit (of 2)" in found.candidates[0].why
    assert "whether it fits is unknown" in found.candidates[1].why
    with pytest.raises(UsageError, match="needs about") as refused:
        of_no_known_family(3 * 10**9, traces=True)
    assert refused.value.hint is not None  # nor is it offered
    assert refused.value.hint.startswith("no change that was tried would fit")


def test_where_no_way_can_be_counted_that_is_said() -> None:
    found = of_no_known_family(64 * 10**9, traces=False)
    assert found.setting is None
    assert found.candidates[0].chosen
    assert found.candidates[0].fits is None
    assert "whether it fits is unknown" in found.candidates[0].why


def test_a_way_that_cannot_do_what_the_recipe_wants_is_left_out() -> None:
    decided = decided_on("a100-80gb:8x1", "model.name=opt-1.3b", "model.create=sharded")
    assert {each.changes["engine.zero"] for each in decided.candidates} == {"3"}


LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32_000,
}  # fmt: skip


def sharded_on(machines: str, *, timed: bool = True, config: Any = LLAMA_70B, **engine: Any) -> Decided:
    """FSDP with four micro-batches of two sequences a step."""
    recipe = recipe_from({
        "workload": "causal-lm", "model": {"config": config, "init": "random"},
        "data": {"synthetic": {}, "sequence": 2048}, "engine": {"name": "fsdp", **engine},
        "train": {"gradient_checkpointing": True}, "batch": {"micro": 2, "accumulation": 4},
    })  # fmt: skip
    found = parse_machines(machines)
    inventory, facts, by_host = hypothetical([found], machines, None)
    ground = MachineModel(facts, inventory.hosts, Calibration(), by_host)
    return on_hosts(recipe, inventory, facts, model=ground if timed else None)


@pytest.mark.parametrize("timed", [True, False])
def test_fsdp_reduces_in_each_micro_step_where_memory_needs_it(timed: bool) -> None:
    """70 B parameters with accumulation on 32 H100s: whole gradients would be 138 GB."""
    decided = sharded_on("h100:8x4,400Gbit-ib", timed=timed)
    assert decided.refused is None
    assert decided.recipe.engine.sync_each_batch is True
    assert decided.job.recipe["engine"]["sync_each_batch"] is True  # which ranks get
    assert decided.setting is not None and decided.setting.spread.sync_each_batch
    told = [each for each in decided.job.decisions if each.field == "engine.sync_each_batch"]
    assert [each.value for each in told] == [True]
    assert "settings that fit (of 2)" in told[0].why
    lost = next(each for each in decided.candidates if not each.chosen)
    assert lost.why.startswith("does not fit: ")
    with pytest.raises(UsageError) as refused:
        sharded_on("h100:8x4,400Gbit-ib", sync_each_batch=False)
    assert (refused.value.hint or "").startswith("would fit: engine.sync_each_batch=true; ")


@pytest.mark.parametrize("timed", [True, False])
def test_where_whole_gradients_fit_they_are_reduced_once(timed: bool) -> None:
    small = {**LLAMA_70B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    decided = sharded_on("h100:8x2,100Gbit", timed=timed, config=small)
    assert decided.recipe.engine.sync_each_batch is False
    assert [each.changes["engine.sync_each_batch"] for each in decided.candidates] == ["false", "true"]
    if timed:  # sends more
        slower = decided.candidates[1]
        assert (slower.samples_per_second or 0) < (decided.candidates[0].samples_per_second or 0)


@pytest.mark.parametrize(
    ("machines", "engine"),
    [("h100:1", {}), ("h100:8", {"name": "deepspeed", "zero": 3}), ("h100:8", {"name": "ddp"})],
)
def test_what_does_not_matter_is_not_decided(machines: str, engine: dict[str, Any]) -> None:
    small = {**LLAMA_70B, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    decided = sharded_on(machines, config=small, **engine)
    assert decided.recipe.engine.sync_each_batch == "auto"
    assert len(decided.candidates) == 1


@pytest.mark.parametrize("engine", [{"name": "ddp"}, {"name": "deepspeed", "zero": 3}])
def test_reducing_in_each_micro_step_is_for_fsdp(engine: dict[str, Any]) -> None:
    recipe = recipe_from({"workload": "causal-lm", "engine": {**engine, "sync_each_batch": True}})
    with pytest.raises(RecipeError, match="hold no less with it") as refused:
        check(recipe, parse_hosts("node1"))
    assert refused.value.hint == "leave it out, or engine.name=fsdp"


def test_the_largest_of_unequal_shares_counts() -> None:
    about: dict[str, Any] = {"cores": 8, "gpus": [], "memory_total": 64 * 10**9}
    hosts = {"node1": about, "node2": about}
    recipe = load_recipe("digits", ["batch.split=[24,40]", "batch.micro=32"])
    decided = on_hosts(recipe, parse_hosts("node1,node2"), hosts)
    assert decided.setting is not None
    assert decided.setting.micro == 40


@pytest.mark.parametrize(
    "overrides",
    [["engine.config=FILE"], ["engine.options={zero_optimization: {stage: 2}}"]],
)
def test_auto_beside_another_word_on_the_stage_is_refused(overrides: list[str], tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}}')
    words = [each.replace("FILE", str(file)) for each in overrides]
    recipe = load_recipe("opt-benchmark", ["engine.zero=auto", *words])
    with pytest.raises(RecipeError, match="gives a stage"):
        check(recipe, parse_hosts("node1"))


def sized_on(machines: str, *overrides: str) -> tuple[list[tuple[int, bool]], Decided]:
    """Stage and recomputation of each way that was traced, and what came of it."""
    asked: list[tuple[int, bool]] = []

    def tracer(recipe: Recipe, precision: str, device: str, ranks: int) -> None:
        asked.append((recipe.engine.stage, recipe.train.checkpointing))

    recipe = load_recipe("opt-benchmark", [*OPEN, *overrides])
    found = parse_machines(machines)
    inventory, facts, _ = hypothetical([found], machines, None)
    return asked, on_hosts(recipe, inventory, facts, tracer=tracer)


def test_each_way_is_sized_once() -> None:
    asked, decided = sized_on("a100-80gb:8x2,100Gbit", "model.name=opt-1.3b")
    assert len(asked) == len(set(asked)) == len(decided.candidates) == 8
    assert decided.recipe.force is False  # trying them did not force anything


def test_force_goes_on_with_the_smallest_and_says_so_once() -> None:
    asked, decided = sized_on("v100-16gb:8x1", "model.name=opt-66b", "precision=fp16", "force=true")
    assert len(asked) == 8
    assert decided.recipe.force is True
    chosen = next(each for each in decided.candidates if each.chosen)
    assert chosen.memory == min(each.memory for each in decided.candidates)
    forced = [each for each in decided.job.decisions if each.field == "force"]
    assert len(forced) == 1
    assert "opt-66b needs about" in forced[0].why
