"""What a published size brings along: the nearest batch, the micro-batch that fits, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.errors import RecipeError
from muster.core.inventory import parse_hosts
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.engines.base import merged
from muster.inputs.model import whole_config
from muster.planner.decide import Decided
from muster.planner.memory.fit import Setting
from muster.planner.setting import setting_of
from muster.planner.ways import _nearest
from tests.support import on_hosts

TABLE = {  # size: (learning rate, tokens per update in units of 2^20)
    "opt-8m": (1e-3, 0.125), "opt-125m": (6e-4, 0.5), "opt-350m": (3e-4, 0.5), "opt-760m": (2.5e-4, 0.5),
    "opt-1.3b": (2e-4, 1), "opt-2.7b": (1.6e-4, 1), "opt-6.7b": (1.2e-4, 2), "opt-13b": (1e-4, 4),
    "opt-30b": (1e-4, 4), "opt-66b": (8e-5, 2), "opt-175b": (3e-5, 2),
}  # fmt: skip
GB = 10**9


def gpus(count: int, memory: float = 85.9, *, host: float = 2000, name: str = "A100") -> dict[str, Any]:
    """A host with so many GPUs of so many GB."""
    gpu = {"name": name, "capability": [8, 0], "memory_total": int(memory * GB)}
    return {"cores": 64, "memory_total": int(host * GB), "gpus": [gpu] * count}


def benchmark(hosts: dict[str, Any], *overrides: str, one_machine: bool = False) -> Decided:
    """The shipped recipe on these hosts, with logits: they make micro-batches matter."""
    recipe = load_recipe("opt-benchmark", ["train.fused_loss=false", *overrides])
    return on_hosts(merged(recipe), parse_hosts(",".join(hosts)), hosts, one_machine=one_machine)


def why(decided: Decided, field: str) -> str:
    return next(d.why for d in decided.job.decisions if d.field == field)


@pytest.mark.parametrize("size", TABLE)
def test_the_benchmark_takes_learning_rate_and_batch_from_the_table(size: str) -> None:
    rate, millions = TABLE[size]
    hosts = {f"n{i}": gpus(8) for i in range(16)}
    decided = benchmark(
        hosts, f"model.name={size}", *(["engine.zero=3"] if size[-3:] in ("30b", "66b", "75b") else [])
    )
    assert decided.recipe.train.rate == rate
    batch = decided.job.batch
    wanted = millions * 2**20 / 2048
    assert batch.global_ == (wanted if wanted >= 128 else 128)  # no rank can have less than one sequence
    assert batch.micro * batch.accumulation * 128 == batch.global_
    assert f"{size} was trained with it" in why(decided, "train.learning_rate")
    assert f"{int(millions * 2**20):,} tokens, as {size} was trained" in why(decided, "batch.global")


def test_hub_names_share_the_table() -> None:
    assert families.published("facebook/opt-1.3b") == families.published("opt-1.3b")
    assert families.published("someone/opt-1.3b") is None
    assert families.published("gpt2") is None
    assert families.published(None) is None


def test_tokens_and_samples_are_not_given_together(tmp_path: Path) -> None:
    assert load_recipe("opt-benchmark", ["batch.global=64"]).batch.tokens is None  # the later one wins
    (tmp_path / "both.yaml").write_text("batch: {global: 8, tokens: 4096}\n")
    with pytest.raises(RecipeError, match="at most one of global, tokens"):
        load_recipe(str(tmp_path / "both.yaml"))
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 64}))
    with pytest.raises(RecipeError, match=r"batch.tokens: is given, and .* fixes the global batch"):
        benchmark({"a": gpus(2)}, f"engine.config={file}")


def test_on_cpus_the_micro_batch_stays_small_and_shrinks_where_memory_is_short() -> None:
    def host(memory: float) -> dict[str, Any]:
        return {"a": {"cores": 8, "gpus": [], "memory_total": int(memory * GB)}}

    assert benchmark(host(1000), "model.name=opt-8m").job.batch.micro == 8
    assert benchmark(host(8), "model.name=opt-8m").job.batch.micro == 2
    limited = {"a": {**host(1000)["a"], "memory_limit": 8 * GB}}
    assert benchmark(limited, "model.name=opt-8m").job.batch.micro == 2
    plain = {"workload": "causal-lm", "model": {"name": "opt-8m", "init": "random"}}
    plain["train"] = {"fused_loss": False}
    assert on_hosts(recipe_from(plain), parse_hosts("a"), host(1000)).job.batch.micro == 8
    short = on_hosts(recipe_from(plain), parse_hosts("a:4"), host(32)).job.batch
    assert (short.micro, short.accumulation, short.global_) == (2, 4, 32)  # the same samples a step
    pretend = {f"local{i}": host(32)["a"] for i in range(4)}  # one machine's memory, shared by all of them
    decided = on_hosts(recipe_from(plain), parse_hosts("local:4x1"), pretend, one_machine=True)
    assert decided.job.batch.micro == 2


def test_a_model_that_is_much_of_a_hosts_memory_is_made_in_shards() -> None:
    hosts = {f"n{i}": gpus(8, host=1000) for i in range(16)}
    large = benchmark(hosts, "model.name=opt-175b", "engine.zero=3")
    assert large.recipe.model.create == "sharded"
    assert "would take 698.5 GB of n0's memory for each rank" in why(large, "model.create")
    assert benchmark(hosts, "model.name=opt-1.3b", "engine.zero=3").recipe.model.create == "whole"
    assert benchmark(hosts, "model.name=opt-13b").recipe.model.create == "whole"  # ZeRO-2 has no other way
    fsdp = ["engine.name=fsdp", "engine.zero=0"]
    assert benchmark(hosts, "model.name=opt-13b", *fsdp).recipe.model.create == "sharded"
    asked = benchmark(hosts, "engine.zero=3", "model.create=sharded")
    assert asked.recipe.model.create == "sharded"
    with pytest.raises(RecipeError, match=r"model.create: is sharded, and every rank of this engine"):
        benchmark(hosts, "model.create=sharded")


def offloading(zero: dict[str, Any], stage: int = 3) -> Setting:
    """t5-3b in fp32 on four ranks, with a user's own words on offloading."""
    recipe = load_recipe("text2sql-t5-large", ["model.name=t5-3b", "engine.name=deepspeed"])
    options = {"zero_optimization": zero}
    engine = recipe.engine.model_copy(update={"zero": stage, "options": options})
    recipe = recipe.model_copy(update={"engine": engine})
    found = setting_of(recipe, whole_config(recipe), "fp32", "cuda", [4])
    assert found is not None
    return found


CPU, DISK = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/local"}


@pytest.mark.parametrize(
    ("zero", "stage", "offload", "gone"),
    [
        ({"offload_param": CPU}, 3, "param", "none"),
        ({"offload_optimizer": CPU}, 3, "optimizer", "none"),
        ({"offload_optimizer": CPU, "offload_param": CPU}, 3, "optimizer+param", "none"),
        ({"offload_optimizer": DISK, "offload_param": CPU}, 3, "optimizer+param", "optimizer"),
        ({"offload_optimizer": DISK, "offload_param": DISK}, 3, "optimizer+param", "optimizer+param"),
        ({"offload_param": CPU}, 2, "none", "none"),  # which stage 3 alone can do
        ({"offload_optimizer": DISK}, 2, "optimizer", "none"),  # to the host's memory
        ({"offload_optimizer": {"device": "none"}}, 3, "none", "none"),
        ({"offload_optimizer": None}, 3, "none", "none"),
    ],
)
def test_what_deepspeed_offloads_is_each_part_by_itself(
    zero: dict[str, Any], stage: int, offload: str, gone: str
) -> None:
    found = offloading(zero, stage)
    assert (found.spread.offload, found.spread.disk.holds) == (offload, gone)


@pytest.mark.parametrize(
    ("wanted", "batch"),
    [(12, (4, 12)), (16, (8, 16)), (13, (8, 16)), (3, (1, 3))],  # of one rank that holds 8
)
def test_half_a_power_where_it_makes_the_batch_exactly(wanted: int, batch: tuple[int, int]) -> None:
    assert _nearest(wanted, None, None, 1, 8) == batch
