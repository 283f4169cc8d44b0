"""What the recipe leaves open, decided from what the hosts are; and what is refused, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.errors import InventoryError, RecipeError, UsageError
from muster.core.inventory import Inventory, parse_hosts
from muster.core.job import Decision
from muster.core.loss_parts import part_rows
from muster.core.recipe import recipe_from
from muster.inputs.model import parameters
from muster.planner.decide import Decided
from muster.runs.requirements import check_disk, disk_needed
from tests.support import on_hosts

H100, A100, T4, P100 = (9, 0), (8, 0), (7, 5), (6, 0)


def facts(**gpus: list[tuple[int, int] | None]) -> dict[str, dict[str, Any]]:
    """Per host its GPUs, by compute capability."""
    return {
        host: {
            "cores": 16,
            "gpus": [{"name": "GPU", "capability": list(c) if c else None} for c in capabilities],
        }
        for host, capabilities in gpus.items()
    }


def on(
    about: dict[str, dict[str, Any]], *, hosts: str | None = None, one_machine: bool = False, **recipe: Any
) -> Decided:
    inventory: Inventory = parse_hosts(hosts or ",".join(about))
    return on_hosts(recipe_from(recipe), inventory, about, one_machine=one_machine)


def why(decided: Decided, field: str) -> str:
    found = [d.why for d in decided.job.decisions if d.field == field]
    assert len(found) == 1
    return found[0]


OTHER = {"workload": "causal-lm", "model": {"name": "gpt2"}}  # not T5


@pytest.mark.parametrize(
    ("gpus", "recipe", "precision", "reason"),
    [
        ({"a": []}, {}, "fp32", "CPUs train in fp32"),
        ({"a": [H100]}, {}, "bf16", "every GPU supports it"),
        ({"a": [A100], "b": [H100]}, {}, "bf16", "every GPU supports it"),
        (
            {"a": [H100], "b": [T4]},
            {},
            "fp32",
            "GPU of b has compute capability 7.5: no bf16; T5 overflows in fp16",
        ),
        ({"a": [H100], "b": [T4]}, OTHER, "fp16", "GPU of b has compute capability 7.5: fp16, but no bf16"),
        ({"a": [A100, T4]}, OTHER, "fp16", "GPU of a has compute capability 7.5"),
        (
            {"a": [H100], "b": [P100]},
            OTHER,
            "fp32",
            "GPU of b has compute capability 6.0: no bf16; no useful fp16",
        ),
        (
            {"a": [(6, 1)], "b": [(8, 6)], "c": [(6, 1)]},
            OTHER,
            "fp32",
            "GPU of a has compute capability 6.1: no bf16; no useful fp16",
        ),
        ({"a": [H100], "b": [None]}, OTHER, "fp32", "GPU of b does not report its compute capability"),
        ({"a": [None]}, {}, "fp32", "no host reported its GPUs' compute capability"),
    ],
)
def test_auto_precision_is_what_every_host_can_do(
    gpus: dict[str, Any], recipe: dict[str, Any], precision: str, reason: str
) -> None:
    decided = on(facts(**gpus), **recipe)
    assert decided.job.precision == precision
    assert reason in why(decided, "precision")


@pytest.mark.parametrize(
    ("gpus", "recipe", "what"),
    [
        ({"a": [H100]}, {"precision": "fp16"}, "T5 overflows in fp16"),
        (
            {"a": []},
            {"precision": "fp16", "model": {"name": "google/flan-t5-base"}, "workload": "x"},
            "T5 overflows",
        ),
        ({"a": []}, {"precision": "fp16", **OTHER}, "fp16 needs a GPU"),
        ({"a": []}, {"precision": "tf32"}, "tf32 needs a GPU"),
        ({"a": [T4]}, {"precision": "tf32"}, "tf32 needs compute capability 8, and GPU of a has 7.5"),
        (
            {"a": [P100]},
            {"precision": "fp16", **OTHER},
            "fp16 needs compute capability 7, and GPU of a has 6.0",
        ),
        (
            {"a": [H100], "b": [T4]},
            {"precision": "bf16"},
            "bf16 needs compute capability 8, and GPU of b has 7.5",
        ),
        (
            {"a": [H100], "b": [A100]},
            {"precision": "fp8", **OTHER},
            "fp8 needs compute capability 8.9, and GPU of b has 8.0",
        ),
    ],
)
def test_a_precision_is_refused_unless_forced(
    gpus: dict[str, Any], recipe: dict[str, Any], what: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        on(facts(**gpus), **recipe)
    assert caught.value.where == "precision"
    assert what in caught.value.what
    assert caught.value.hint
    decided = on(facts(**gpus), **recipe, force=True)
    assert decided.job.precision == recipe["precision"]
    assert why(decided, "precision").startswith("forced, although: ")


@pytest.mark.parametrize(
    ("gpus", "precision"),
    [
        ({"a": []}, "bf16"),
        ({"a": [P100]}, "fp32"),
        ({"a": [T4]}, "fp32"),
        ({"a": [A100]}, "bf16"),
        ({"a": [A100]}, "tf32"),
    ],
)
def test_a_precision_that_was_asked_for_needs_no_reason(gpus: dict[str, Any], precision: str) -> None:
    decided = on(facts(**gpus), precision=precision)
    assert decided.job.precision == precision
    assert "precision" not in [d.field for d in decided.job.decisions]


@pytest.mark.parametrize(
    ("gpus", "recipe", "reason"),
    [
        ([H100], OTHER, None),
        ([], OTHER, "CPUs"),
        ([H100], {}, "each length would be compiled"),  # pairs of texts
        ([H100], {"data": {"padding": "fixed"}}, None),
        ([H100], {"data": {"padding": "buckets"}}, None),
        ([H100], {**OTHER, "train": {"max_steps": 100}}, "100 steps do not"),
        ([H100], {**OTHER, "train": {"max_steps": 5000}}, None),
        ([H100], {**OTHER, "measure": {"attention": True}}, "layers"),
        ([H100], {**OTHER, "measure": {"profile": "flops"}}, "layers"),
    ],
)
def test_a_model_is_compiled_where_that_pays(
    gpus: list[Any], recipe: dict[str, Any], reason: str | None
) -> None:
    train = {**recipe.get("train", {}), "compile": "auto"}
    decided = on(facts(a=gpus), **{**recipe, "train": train})
    assert decided.recipe.train.compiled is (reason is None)
    assert decided.job.recipe["train"]["compile"] is (reason is None)
    shapes = "few shapes" if recipe.get("data") == {"padding": "buckets"} else "one shape"
    assert (reason or shapes) in why(decided, "train.compile")


IMAGES = {"workload": "image-classification", "data": {"name": "cifar10"}, "model": {"name": "vit-micro"}}
GIB = 1 << 30


@pytest.mark.parametrize(
    ("gpus", "recipe", "about", "number", "reason"),
    [
        ([H100], IMAGES, {"cores": 16, "shm": 64 * GIB}, 8, "keep up"),
        ([H100, H100, H100, H100], IMAGES, {"cores": 16, "shm": 64 * GIB}, 3, "cores"),
        ([H100, H100], IMAGES, {"cores": 64, "shm": 3 * GIB}, 6, "/dev/shm"),
        ([H100], IMAGES, {"cores": 64, "shm": 64 << 20}, 0, "/dev/shm"),  # Docker's
        ([H100], IMAGES, {"cores": None}, 8, "keep up"),  # a plan for hosts that nobody has seen
        ([H100], IMAGES, {"cores": 1}, 0, "cores"),
        ([H100], {**IMAGES, "data": {}}, {"cores": 16}, 0, "faster"),  # the digits
        ([H100], OTHER, {"cores": 16}, 0, "faster"),
        ([], IMAGES, {"cores": 16}, 0, None),
        ([H100], {**IMAGES, "train": {"workers": 5}}, {"cores": 2}, 5, None),
    ],
)
def test_loader_processes_are_as_many_as_a_step_needs(
    gpus: list[Any], recipe: dict[str, Any], about: dict[str, Any], number: int, reason: str | None
) -> None:
    told = facts(a=gpus)
    told["a"] |= about
    decided = on(told, **recipe)
    assert decided.recipe.train.loaders == decided.job.recipe["train"]["workers"] == number
    if reason is None:
        assert all(decision.field != "train.workers" for decision in decided.job.decisions)
    else:
        assert reason in why(decided, "train.workers")


@pytest.mark.parametrize("given", [True, False])
def test_compiling_that_was_asked_for_needs_no_reason(given: bool) -> None:
    decided = on(facts(a=[]), **OTHER, train={"compile": given})
    assert decided.recipe.train.compiled is given
    assert all(decision.field != "train.compile" for decision in decided.job.decisions)


def own(tmp_path: Path, content: dict[str, Any]) -> dict[str, Any]:
    (tmp_path / "ds.json").write_text(json.dumps(content))
    return {"name": "deepspeed", "config": str(tmp_path / "ds.json")}


def test_a_users_file_decides_the_precision(tmp_path: Path) -> None:
    engine = own(tmp_path, {"bf16": {"enabled": True}})
    assert on(facts(a=[]), engine=engine).job.precision == "bf16"
    with pytest.raises(RecipeError, match=r"precision: is fp32, but .* switches bf16 on"):
        on(facts(a=[]), engine=engine, precision="fp32")


def test_a_users_fp16_is_refused_for_t5_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="T5 overflows"):
        on(facts(a=[H100]), engine=own(tmp_path, {"fp16": {"enabled": True}}))


def test_a_users_file_decides_the_batch(tmp_path: Path) -> None:
    engine = own(tmp_path, {"train_micro_batch_size_per_gpu": 4, "train_batch_size": "auto"})
    decided = on(facts(a=[], b=[]), engine=engine, batch={"global": 24})
    assert (decided.job.batch.micro, decided.job.batch.accumulation, decided.job.batch.global_) == (4, 3, 24)
    assert on(facts(a=[]), engine=engine, batch={"micro": 4}).job.batch.micro == 4
    with pytest.raises(RecipeError, match=r"batch\.micro: is 8, but .* says 4"):
        on(facts(a=[]), engine=engine, batch={"micro": 8})


def test_derived_batch_numbers_have_their_reason() -> None:
    decided = on(facts(a=[], b=[]), batch={"micro": 4, "global": 24})
    assert Decision("batch.accumulation", 3, "4 x 3 x 2 ranks = 24") in decided.job.decisions
    assert not {"batch.micro", "batch.global"} & {d.field for d in decided.job.decisions}


@pytest.mark.parametrize(
    ("hosts", "gpus", "device", "slots", "visible"),
    [
        ("a,b", {"a": [], "b": []}, "cpu", (1, 1), (None, None)),
        ("a:3,b", {"a": [], "b": []}, "cpu", (3, 1), (None, None)),
        ("a,b", {"a": [A100] * 2, "b": [A100] * 4}, "cuda", (2, 4), (None, None)),
        ("a:1,b:3", {"a": [A100] * 2, "b": [A100] * 4}, "cuda", (1, 3), (None, None)),
    ],
)
def test_device_and_slots(
    hosts: str,
    gpus: dict[str, Any],
    device: str,
    slots: tuple[int, ...],
    visible: tuple[tuple[int, ...] | None, ...],
) -> None:
    decided = on(facts(**gpus), hosts=hosts)
    assert (decided.job.device, decided.slots, decided.visible_gpus) == (device, slots, visible)


def test_gpus_that_no_rank_uses_decide_nothing() -> None:
    """Ranks take a host's first ones, pretend hosts theirs one after the other."""
    about = facts(a=[A100, P100, None])
    for index, memory in enumerate((48, 4, 2)):
        about["a"]["gpus"][index]["memory_total"] = memory * 10**9
    alone = on(about, hosts="a:1")
    assert (alone.job.precision, alone.room.device) == ("bf16", 48 * 10**9)
    assert on(about, hosts="a:1", precision="bf16", **OTHER).job.precision == "bf16"
    two = on(about, hosts="a:2")
    assert (two.job.precision, two.room.device) == ("fp32", 4 * 10**9)
    here = {"local0": about["a"], "local1": about["a"]}
    shared = on(here, hosts="local:2x1", one_machine=True)
    assert shared.visible_gpus == ((0,), (1,))
    assert (shared.job.precision, shared.room.device) == ("fp32", 4 * 10**9)
    assert "GPU of local1 has compute capability 6.0" in why(shared, "precision")
    separate = on({"a": about["a"], "b": about["a"]}, hosts="a:1,b:1")
    assert (separate.job.precision, separate.room.device) == ("bf16", 48 * 10**9)


def test_pretend_hosts_share_the_machines_gpus_and_cores() -> None:
    decided = on(facts(local0=[A100] * 4, local1=[A100] * 4), hosts="local:2x2", one_machine=True)
    assert decided.visible_gpus == ((0, 1), (2, 3))
    assert decided.threads == (4, 4)
    with pytest.raises(InventoryError, match="local0: 4 ranks need as many GPUs, and it has 3"):
        on(facts(local0=[A100] * 3, local1=[A100] * 3), hosts="local:2x2", one_machine=True)


def test_threads() -> None:
    about = facts(a=[], b=[])
    about["b"]["cores"] = None
    assert on(about, hosts="a:3,b:4").threads == (5, 1)
    assert on(about, hosts="a:99,b").threads == (1, 1)
    assert on(about, launch={"threads": 7}).threads == (7, 7)


@pytest.mark.parametrize(
    ("hosts", "gpus", "recipe", "host", "what"),
    [
        ("a,b", {"a": [A100] * 2, "b": []}, {}, "b", "has no visible GPU, while a has 2"),
        ("a:1,b:3", {"a": [A100] * 2, "b": [A100] * 2}, {}, "b", "3 ranks need as many GPUs, and it has 2"),
        ("a", {"a": []}, {"launch": {"device": "cuda"}}, "a", "has no visible GPU"),
        ("a,b:2", {"a": [A100], "b": []}, {"launch": {"device": "cuda"}}, "b", "has no visible GPU"),
    ],
)
def test_hosts_without_the_gpus_are_bad_input(
    hosts: str, gpus: dict[str, Any], recipe: dict[str, Any], host: str, what: str
) -> None:
    with pytest.raises(InventoryError) as caught:
        on(facts(**gpus), hosts=hosts, **recipe)
    assert (caught.value.host, caught.value.what) == (host, what)
    assert "launch.device=cpu" in (caught.value.hint or "")
    cpu = on(facts(**gpus), hosts=hosts, launch={"device": "cpu"})
    assert cpu.job.device == "cpu"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("t5-small", 60_506_624),
        ("google-t5/t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-3b", 2_851_598_336),
    ],
)
def test_parameters_of_the_published_sizes(name: str, count: int) -> None:
    assert parameters(recipe_from({"model": {"name": name}})) == count


def test_parameters_of_a_gated_decoder_of_another_depth() -> None:
    """Whatever it says of its embeddings: Transformers ties them."""
    config = {
        "model_type": "t5", "d_model": 4, "d_kv": 3, "d_ff": 5, "num_heads": 2, "num_layers": 1,
        "num_decoder_layers": 2, "vocab_size": 7, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False, "relative_attention_num_buckets": 8,
    }  # fmt: skip
    attention, feed_forward, norm = 4 * 4 * 6, 3 * 4 * 5, 4
    encoder = (attention + norm) + (feed_forward + norm) + norm
    decoder = 2 * (2 * (attention + norm) + (feed_forward + norm)) + norm
    assert families.parameters(config) == encoder + decoder + 2 * (8 * 2) + 7 * 4


def test_parameters_come_from_a_local_folder(tmp_path: Path) -> None:
    recipe = recipe_from({"model": {"name": str(tmp_path)}})
    assert parameters(recipe) is None
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "t5", "vocab_size": 32128, "d_model": 512})
    )
    assert parameters(recipe) == 60_506_624
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart"}))
    assert parameters(recipe) is None
    for text in ("{", "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecipeError) as caught:
            parameters(recipe)
        assert caught.value.where == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("checkpoint", "need"),
    [({}, 4), ({"every": 10, "keep": 1}, 4 + 2 * 16), ({"every": 10, "keep": 3}, 4 + 4 * 16)],
)
def test_the_disk_that_a_run_needs(checkpoint: dict[str, int], need: int) -> None:
    recipe = recipe_from({"model": {"name": "t5-small"}, "checkpoint": checkpoint})
    assert disk_needed(1, recipe) == need
    bytes_needed = need * 60_506_624
    about = {"a": {"disk_free": None, "base": "/x"}, "b": {"disk_free": bytes_needed, "base": "/y"}}
    check_disk(recipe, about)
    about["b"]["disk_free"] = bytes_needed - 1
    with pytest.raises(
        UsageError, match="free where the run is kept, and checkpoints and model need about"
    ) as caught:
        check_disk(recipe, about)
    assert (caught.value.host, caught.value.where) == ("b", "/y")
    assert "checkpoint.keep" in (caught.value.hint or "")
    check_disk(recipe.model_copy(update={"force": True}), about)


def with_memory(gigabytes: float) -> dict[str, dict[str, Any]]:
    """A host with an H100 of this memory."""
    gpu = {"name": "GPU", "capability": list(H100), "memory_total": int(gigabytes * 1e9)}
    return {"a": {"cores": 16, "gpus": [gpu], "memory_total": 256 * 10**9}}


GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
    "max_position_embeddings": 1024,
}  # fmt: skip
LOGITS = {
    "workload": "causal-lm",
    "model": {"name": "gpt2", "config": {"vocab_size": 50304}},
    "data": {"synthetic": {"samples": 4000}, "sequence": 1024},
    "batch": {"micro": 32},
}


@pytest.mark.parametrize(
    ("gigabytes", "recipe", "loss"),
    [
        (80, {}, False),
        (24, {}, "auto"),  # 3.3 GB of logits and as much of their gradient
        (24, {"batch": {"micro": 16}}, False),
        (80, {"precision": "fp32"}, False),
        (40, {"precision": "fp32"}, "auto"),
        (80, {"train": {"compile": False}}, "auto"),
        (80, {"train": {"compile": True, "fused_loss": True}}, True),
        (80, {"engine": {"name": "deepspeed", "zero": 2}}, False),
        (80, {"engine": {"name": "deepspeed", "zero": 3}}, "auto"),
        (80, {"batch": {"micro": "auto"}}, "auto"),
        (80, {"model": {"config": GEMMA2}}, "auto"),  # caps its logits after the output layer
    ],
)
def test_a_compiled_graph_has_the_loss_where_there_is_room(
    gigabytes: float, recipe: dict[str, Any], loss: Any
) -> None:
    decided = on(with_memory(gigabytes), **{"train": {"compile": True}, **LOGITS, **recipe})
    assert decided.recipe.train.fused_loss == loss
    assert decided.job.recipe["train"]["fused_loss"] == loss
    named = [each for each in decided.job.decisions if each.field == "train.fused_loss"]
    assert len(named) == (loss is False)


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ({"batch": {"micro": 4, "accumulation": 2}}, "accumulate"),
        ({"engine": {"name": "deepspeed", "zero": 1}}, "deepspeed"),
        ({"workload": "text2sql", "model": {}, "data": {}}, "length"),
        ({}, None),
        ({"batch": {"micro": 4, "accumulation": 2}, "train": {"compile": True}}, None),
    ],
)
def test_where_cuda_graphs_would_break_they_are_refused(recipe: dict[str, Any], why: str | None) -> None:
    given = {"train": {"compile": "cuda-graphs"}, **LOGITS, **recipe}
    if why is None:
        assert on(with_memory(80), **given).recipe.train.compiled
        return
    with pytest.raises(RecipeError) as error:
        on(with_memory(80), **given)
    assert error.value.where == "train.compile" and why in error.value.what


def test_rows_of_a_part_fill_the_device_and_spare_the_weights_gradient() -> None:
    """On a GPU 2^27 logits, and at least half of the width; on a CPU 2^24."""
    assert part_rows("cuda", 50257, 768) == 2**27 // 50257
    assert part_rows("cuda", 128256, 8192) == 4096
    assert part_rows("cpu", 50257, 768) == 384
