"""What every engine answers, whichever it is; and engines of third parties, of one folder or one module."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import muster
from muster.core.batch import Batch
from muster.core.errors import BrokenPluginError, MusterError, RecipeError, UsageError
from muster.core.job import Job, Placement
from muster.core.recipe import Engine, Recipe, recipe_from
from muster.core.registry import ENGINES, own_plugins
from muster.engines.base import EngineSpec, own_specs, spec_of
from muster.engines.spread import ModelSpread
from muster.planner.document import Plan
from muster.planner.time.steptime import lump, traffic_of
from muster.schemas.documents import schema_of
from tests.pages import ROOT, install
from tests.unit.test_contracts import HEAVY

OWN = sorted(own_plugins(ENGINES))
TENSORS = lump(12_000_000)
BATCH = Batch(4, 2, 16)


@pytest.fixture(params=OWN)
def spec(request: pytest.FixtureRequest) -> EngineSpec:
    return spec_of(request.param)


def recipe(spec: EngineSpec, **engine: object) -> Recipe:
    return recipe_from({"engine": {"name": spec.name, **engine}})


def spreads(spec: EngineSpec) -> list[ModelSpread]:
    """Of 4 ranks, at every stage and with every offload that makes sense there."""
    made = []
    for stage, offload, element in itertools.product(spec.stages or (0,), spec.offloads, (2, 4)):
        if not ("param" in offload and not spec.shards_weights(stage)) and not (
            offload != "none" and spec.optimizer_parts(ModelSpread(spec.name, 4, stage=stage)) == 1
        ):
            sizes = spec.sizes(stage, 64)
            made.append(ModelSpread(spec.name, 4, element, stage=stage, offload=offload, **sizes))
    return made


def test_what_is_asked_before_the_start_needs_no_torch() -> None:
    code = "import sys; from muster.engines.base import own_specs; own_specs(); print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert {f"muster.engines.{name}.spec" for name in OWN} <= loaded
    assert not loaded & HEAVY


def test_no_engine_is_named_outside_of_its_folder() -> None:
    """But where others read the word: the recipe's default, a key of job.json, names of packages, a launcher
    before a script."""
    source = Path(next(iter(muster.__path__)))
    quoted = re.compile(rf"[\"']({'|'.join(OWN)})[\"']")
    files = [path for path in source.rglob("*.py") if quoted.search(path.read_text(encoding="utf-8"))]
    outside = {str(path.relative_to(source)) for path in files if source / "engines" not in path.parents}
    elsewhere = {"core/job.py", "core/recipe.py", "runs/requirements.py", "workloads/command/spec.py"}
    elsewhere |= {"core/recipes.py"}  # a key of other tools
    assert outside <= {"agent/host.py", *elsewhere}


def test_a_recipe_can_name_it(spec: EngineSpec) -> None:
    assert Engine(name=spec.name).name == spec.name
    assert spec.checked(recipe(spec)).engine.name == spec.name
    assert spec.name in schema_of("recipe")["$defs"]["Engine"]["properties"]["name"]["enum"]
    for stage in (0, 3):
        assert spec.words(stage) and spec.label(stage).startswith(spec.name)
        assert spec.described(Engine(name=spec.name, zero=stage)).startswith(spec.name)


def test_what_it_cannot_do_is_refused(spec: EngineSpec, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text("{}")
    asked = [{"offload": each} for each in ("optimizer", "optimizer+param") if each not in spec.offloads]
    if not spec.stages:
        asked += [{"zero": 1}, {"zero": "auto"}, {"config": str(tmp_path / "own.json")}]
    for engine in asked:
        with pytest.raises(RecipeError) as caught:
            spec.checked(recipe(spec, **engine))
        assert caught.value.where == f"engine.{next(iter(engine))}"
        assert "engine." in (caught.value.hint or "")


def test_a_rank_holds_its_part(spec: EngineSpec) -> None:
    """Of Adam's states as many as there are owners; with one rank there is nothing to share."""
    count = sum(each.numel for each in TENSORS)
    for spread in spreads(spec):
        found = spec.states(spread, TENSORS)
        assert found is not None
        everything = [found.held, found.host, found.passes, found.gradients, found.backward]
        assert all(size >= 0 for parts in (*everything, *found.after.values()) for size in parts.values())
        states = found.held.get("optimizer", 0) + found.host.get("optimizer", 0)
        assert states == pytest.approx(8 * count / spec.optimizer_parts(spread), rel=1e-3)
        assert ("optimizer" in found.host) == spread.moves_optimizer


def test_several_ranks_average_every_gradient(spec: EngineSpec) -> None:
    """Once per step at least, in the width that it says."""
    count = sum(each.numel for each in TENSORS)
    for spread in spreads(spec):
        calls = list(traffic_of(TENSORS, spread).calls())
        reduced = sum(call.size for call in calls if call.operation in ("all-reduce", "reduce-scatter"))
        assert reduced >= spec.exchanged(spread) * count
        gathered = sum(call.size for call in calls if call.operation == "all-gather")
        assert (gathered > count) == (spec.optimizer_parts(spread) > 1)
        assert spec.handling(TENSORS, spread.stage) >= 0
        assert spec.crossings(spread) >= 1


def test_its_configuration_is_json_with_the_batch_that_was_decided(spec: EngineSpec) -> None:
    for precision in ("fp32", "bf16", "fp16"):
        config = spec.config(recipe(spec), BATCH, precision)
        if config is not None:
            filled = spec.filled(json.loads(json.dumps(config)), recipe(spec), 64)
            assert spec.fixed(filled).batch == {"micro": 4, "accumulation": 2, "global": 16}
            assert spec.fixed(filled).precision == precision
    names = {each.name for each in fields(ModelSpread)}
    assert set(spec.spread_of(recipe(spec), "bf16", 64)) <= names
    assert all(set(spec.sizes(stage, 64)) <= names for stage in range(4))


def test_lighter_ways_are_recipes_that_hold_less(spec: EngineSpec) -> None:
    whole = spec.states(ModelSpread(spec.name, 4, 2, **spec.sizes(0, 64)), TENSORS)
    assert whole is not None
    for way in spec.lighter(0, "none"):
        section = {key.removeprefix("engine."): value for key, value in way.items()}
        asked = recipe(spec, **{**section, "zero": int(section.get("zero", 0))})
        spec.checked(asked)
        spread = ModelSpread(
            spec.name, 4, 2, **{**spec.sizes(asked.engine.stage, 64), **spec.spread_of(asked, "bf16", 64)}
        )
        if "offload" in section and not spec.stages:
            spread = ModelSpread(spec.name, 4, 2, offload=section["offload"])
        lighter = spec.states(spread, TENSORS)
        assert lighter is not None and sum(lighter.held.values()) < sum(whole.held.values())


def test_the_same_ranks_go_on(spec: EngineSpec) -> None:
    places = tuple(Placement(f"n{rank}", f"n{rank}", 1, rank) for rank in range(2))
    before = Job("run", "ssh", places, BATCH, "fp32", "cpu", {})
    for shared in (True, False):
        facts = {each.host: {"shared": shared} for each in places}
        assert spec.cannot_resume(recipe(spec), before, places, facts) is None


# --- third parties ---------------------------------------------------------------------------------------


@pytest.fixture
def from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """docs/own-engine.md, installed; and an engine of one module, which must not be imported here."""
    install(ROOT / "docs" / "own-engine.md", tmp_path, "bare = bare_engine\n")
    (tmp_path / "bare_engine.py").write_text("raise RuntimeError('a rank imports it, nobody else')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def foretold(engine: str) -> Plan:
    asked = [engine, "engine.zero=0", "precision=bf16"]
    return muster.plan("gpt2-small", on="h100:8", overrides=asked, traced=False)


def test_an_engine_from_outside_is_planned(from_outside: Path) -> None:
    planned, usual = (foretold(f"engine.name={name}") for name in ("small-buckets", "ddp"))
    assert (planned.engine, planned.memory) == ("small-buckets", usual.memory)
    assert planned.time and usual.time and planned.time.communication != usual.time.communication
    with pytest.raises(MusterError) as caught:
        foretold("engine.name=small-bucket")
    assert "engine.name" in str(caught.value) and "small-buckets" in str(caught.value.hint)


def test_an_engine_of_one_module_has_the_usual_answers(from_outside: Path) -> None:
    """Nothing is foretold of it, and it is not imported."""
    planned = foretold("engine.name=bare")
    assert (planned.engine, planned.memory, planned.time) == ("bare", None, None)
    assert any("bare" in note and "neither memory nor time" in note for note in planned.notes)
    assert type(spec_of("bare")) is EngineSpec and "bare_engine" not in sys.modules
    with pytest.raises(UsageError, match="bare is unknown"):
        traffic_of(TENSORS, ModelSpread("bare", 2))
    from muster.worker.engine import runtime_of

    with pytest.raises(BrokenPluginError, match="RuntimeError: a rank imports it"):
        runtime_of("bare")
    assert own_specs() == [spec_of(name) for name in OWN]


def test_fsdp_moves_gradients_to_the_host_as_often_as_it_reduces_them() -> None:
    spread = ModelSpread("fsdp", 4, micro_steps=3, offload="optimizer+param")
    each = replace(spread, sync_each_batch=True)
    assert [spec_of("fsdp").crossings(x) for x in (spread, each, replace(each, offload="none"))] == [2, 4, 1]


# --- groups of ranks -------------------------------------------------------------------------------------


def test_a_group_of_zero_needs_stage_3() -> None:
    engine = spec_of("deepspeed")
    assert engine.open_stages(recipe(engine, zero="auto", group=4)) == [3]


def test_deepspeed_is_told_of_groups() -> None:
    engine, key = spec_of("deepspeed"), "zero_hpz_partition_size"
    for group in (None, 4):
        config = engine.config(recipe(engine, zero=3, group=group), BATCH, "bf16")
        assert config is not None and config["zero_optimization"].get(key) == group
    options = {"zero_optimization": {key: 8}}
    assert engine.spread_of(recipe(engine, zero=3, options=options), "bf16", 64)["group"] == 8


def test_pytorch_is_told_of_groups() -> None:
    """Six ranks in groups of two are cut in two and kept three times."""
    from muster.worker.engine import runtime_of

    runtime = runtime_of("fsdp")
    for size, group, made in ((6, 2, (3, 2)), (6, 6, None), (6, None, None)):
        asked = recipe(spec_of("fsdp"), group=group)
        context: Any = SimpleNamespace(grouped=True, device="cpu", recipe=asked, world_size=size)
        mesh = runtime.arguments(context).get("parallelism_config")
        found = mesh and (mesh.dp_replicate_size, mesh.dp_shard_size)
        assert found == made
