"""What the plan chooses where a recipe says auto: the fastest way that fits, and why the others lost."""

from __future__ import annotations

import re
from typing import Any

import pytest

from muster.core.errors import UsageError
from muster.core.inventory import parse_hosts
from muster.core.recipe import Recipe, recipe_from
from muster.core.recipes import load_recipe
from muster.core.trace import Parameter, Pass, Trace
from muster.planner.decide import Decided
from muster.planner.machines import MachineModel, hypothetical
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


def test_undecided_values_are_never_used() -> None:
    recipe: Recipe = load_recipe("opt-benchmark", OPEN)
    with pytest.raises(ValueError, match="not decided"):
        _ = recipe.engine.stage
    with pytest.raises(ValueError, match="not decided"):
        _ = recipe.train.checkpointing


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
