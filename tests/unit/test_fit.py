"""Bytes per rank against sums done by hand, published peaks, and the changes that a refusal offers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.core import families
from muster.core.batch import resolve_batch
from muster.core.trace import Pass, Trace
from muster.core.workload import Drawing, HeldModel
from muster.planner.forecast import memory_plan
from muster.planner.memory.activations import (
    KeptValues,
    Lengths,
    activation_bytes,
    logit_bytes,
)
from muster.planner.memory.fit import (
    MARGIN,
    MemoryLimit,
    Need,
    Setting,
    Shortage,
    fits,
    lacking,
    largest_micro,
    may_run,
    need,
)
from muster.planner.memory.states import likely_tensors
from muster.planner.remedies import ANY_CHANGE, OpenChoices, apply, changes, refusal, remedies
from tests.support import setting_with, with_fields

GIB = 2**30
OPT = {
    "model_type": "opt", "hidden_size": 4, "ffn_dim": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "vocab_size": 10, "dropout": 0.0,
}  # fmt: skip


def tiny(**fields: Any) -> Setting:
    """1000 parameters on 4 GPUs of one host, in bf16."""
    known: dict[str, Any] = {
        "config": OPT, "parameters": 1000, "trainable": 1000, "lengths": Lengths(8), "engine": "deepspeed",
        "precision": "bf16", "device": "cuda", "ranks": 4, "ranks_per_host": 4, "bucket": 100, "saves": False,
    }  # fmt: skip
    return setting_with(**{**known, **fields})


def needed(setting: Setting) -> Need:
    found = need(setting)
    assert found is not None
    return found


def test_a_model_that_is_made_in_shards_needs_no_room_for_the_whole() -> None:
    whole, shards = (needed(tiny(stage=3, create=create)) for create in ("whole", "sharded"))
    assert whole.host["the model while it is made"] == 4000
    assert shards.host["the model while it is made"] == 4 * 928  # the table of positions is the largest
    made, saved = needed(tiny(engine="fsdp", create="sharded")), needed(tiny(stage=3, saves=True))
    assert made.host["the whole model, made by the first rank"] == 4000 // 4  # a part of each rank's host
    assert saved.host["the whole model, saved by the first rank"] == 2000 // 4
    other = needed(tiny(engine="fsdp", create="sharded", ranks=16))  # of other hosts, ranks take nothing off
    assert other.host["the whole model, made by the first rank"] == 1000


@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_the_first_host_needs_besides_is_named_by_its_cause(engine: str, device: str) -> None:
    """FSDP's first rank makes the model whatever is saved; ZeRO 3 gathers it only to save it."""
    setting = tiny(engine=engine, stage=3 * (engine == "deepspeed"), create="sharded", device=device)
    for saves in (True, False):
        there = replace(setting, saves=saves)
        made = memory_plan(there, MemoryLimit(10**12, 10**12), needed(there))
        words = [name for name in (*made.device, *made.host) if "first rank" in name]
        expected = {"fsdp": "made by the first rank", "deepspeed": "saved by the first rank"}[engine]
        assert [expected in each for each in words] == ([True] if saves or engine == "fsdp" else [])


@pytest.mark.parametrize(
    ("device", "room", "short"),
    [
        ("cuda", MemoryLimit(64, 1000), None),
        ("cuda", MemoryLimit(50, 1000), Shortage("device", 50, 50)),
        ("cuda", MemoryLimit(64, 36), Shortage("host", 35, 36)),
        ("cuda", MemoryLimit(64, None), None),
        ("cpu", MemoryLimit(50, None), Shortage("device", 50, 50, cpu=True)),
        ("cpu", MemoryLimit(90, 1), None),  # whose memory is the device's
    ],
)
def test_which_memory_is_too_small_and_by_how_much(
    device: str, room: MemoryLimit, short: Shortage | None
) -> None:
    needs = Need(device={"weights": 50}, host={} if device == "cpu" else {"process": 35})
    setting = tiny(device=device)
    assert lacking(setting, room, needs) == short
    told = memory_plan(setting, room, needs)
    assert told.lacking == (short.place if short and short.refused else None)
    assert (told.device_bytes, told.host_bytes) == (50, sum(needs.host.values()))


def test_what_is_asked_for_may_be_tight() -> None:
    """A GPU may do without the margin, which a plan's own choices keep; a host may not, nor a CPU."""
    assert not Shortage("device", 50, 50).refused
    assert Shortage("device", 51, 50).refused
    assert Shortage("host", 49, 50).refused
    assert Shortage("device", 49, 50, cpu=True).refused
    setting = big("opt-1.3b", micro=4)
    found = need(setting)
    assert found is not None
    needed = sum(found.device.values())
    for room, run, chosen in ((needed, True, False), (needed - 1, False, False), (2 * needed, True, True)):
        assert (may_run(setting, MemoryLimit(room, None)), fits(setting, MemoryLimit(room, None))) == (
            run,
            chosen,
        )


def test_opt_350m_as_it_was_measured_on_h100s() -> None:
    """64 nodes logged 33.78 GiB at most: fp16, ZeRO-0, 24 sequences of 512, no dropout; the transformers of
    the time had no fused attention. 16 bytes per parameter stay."""
    config = {**(families.size("facebook/opt-350m") or {}), "dropout": 0.0}
    count = families.parameters(config) or 0
    kept = KeptValues(2, fused=False)
    activations = activation_bytes(config, Lengths(512), kept, checkpointing=False) or 0
    peak = 16 * count + 24 * (activations + logit_bytes(config, Lengths(512), kept))
    assert peak / (33.78 * GIB) == pytest.approx(1, abs=0.05)


def of_a_billion(engine: str, stage: int = 0) -> int:
    """Bytes of a rank alone with a billion parameters in fp32, one sample of 96 tokens, in all: a decoder
    with opt-1.3b's widths and 18 layers. ZeRO's bucket as in those authors' runs: 5e8 elements."""
    config = {**(families.size("opt-1.3b") or {}), "num_hidden_layers": 18}
    planned = tiny(
        config=config, parameters=10**9, trainable=10**9, lengths=Lengths(96), precision="fp32", ranks=1,
        ranks_per_host=1, engine=engine, stage=stage, bucket=5 * 10**8 if stage else 0,
    )  # fmt: skip
    return sum(needed(planned).device.values())


def test_the_published_sum_for_a_billion_parameters_lies_between_two_plans() -> None:
    """22 GB, a sum of 20 bytes per parameter and activations: more than a plain run needs, which has no
    second copy of the weights; less than ZeRO-1 with such a bucket, and all that a process has besides."""
    assert 17 * 10**9 < of_a_billion("ddp") < 22 * 10**9 < of_a_billion("deepspeed", 1) < 27 * 10**9


def test_the_largest_micro_batch() -> None:
    setting = tiny(stage=2)
    sizes = {micro: sum(needed(replace(setting, micro=micro)).device.values()) for micro in (1, 5, 6)}
    assert largest_micro(setting, MemoryLimit(int(sizes[5] / (1 - MARGIN)) + 1, None), 64) == 5
    assert largest_micro(setting, MemoryLimit(int(sizes[6] / (1 - MARGIN)) + 1, None), 64) == 6
    assert largest_micro(setting, MemoryLimit(int(sizes[6] / (1 - MARGIN)) + 1, None), 4) == 4
    assert largest_micro(setting, MemoryLimit(sizes[1], None), 64) == 0  # the margin is kept free
    assert largest_micro(setting, MemoryLimit(None, None), 64) == 64  # not known


def big(size: str, ranks: int = 8, **fields: Any) -> Setting:
    config = families.size(size) or {}
    count = families.parameters(config) or 0
    known: dict[str, Any] = {
        "config": config, "parameters": count, "trainable": count, "lengths": Lengths(2048), "ranks": ranks,
        "ranks_per_host": 8, "stage": 2, "checkpointing": True, "bucket": 500_000_000,
    }  # fmt: skip
    return tiny(**{**known, **fields})


A100, ROOMY = MemoryLimit(85_899_345_920, 250_000_000_000, "A100 of a", "a"), 1 << 50


@pytest.mark.parametrize(
    ("setting", "room", "ways"),
    [
        (big("opt-30b"), A100, ["engine.zero=3", "model.name=opt-13b"]),
        (big("opt-2.7b", 2), MemoryLimit(16 * GIB, ROOMY),
         ["engine.offload=optimizer", "model.name=opt-760m"]),
        (big("opt-1.3b", micro=64), A100, ["batch.micro=32"]),
        (big("opt-1.3b", checkpointing=False, micro=8), MemoryLimit(40 * 10**9, ROOMY), ["batch.micro=4"]),
        (big("opt-1.3b", 1, engine="ddp", stage=0), MemoryLimit(24 * 10**9, ROOMY),
         ["engine.name=deepspeed engine.zero=1 engine.offload=optimizer", "model.name=opt-760m"]),
        (big("opt-30b", engine="fsdp"), MemoryLimit(70 * 10**9, ROOMY), ["engine.offload=optimizer+param"]),
    ],
)  # fmt: skip
def test_what_would_fit_is_the_smallest_change(setting: Setting, room: MemoryLimit, ways: list[str]) -> None:
    assert not fits(setting, room)
    found = remedies(setting, room, next(n for n, c in families.opt.SIZES.items() if c == setting.config))
    assert found[0] == ways[0]
    assert set(ways) <= set(found)


def test_every_change_that_is_offered_was_tried() -> None:
    """The first that fits is offered, and none with fewer changes fits."""
    setting, room = big("opt-66b", 16), MemoryLimit(85_899_345_920, ROOMY)
    fitting = [(way, each) for way, each in changes(setting) if fits(each, room)]
    assert "batch.micro" not in fitting[0][0]
    assert remedies(setting, room, "opt-66b")[0] == " ".join(f"{k}={v}" for k, v in fitting[0][0].items())
    assert all(len(way) >= len(fitting[0][0]) for way, _ in fitting)
    assert all(not fits(each, room) for way, each in changes(setting) if len(way) < len(fitting[0][0]))


def test_what_is_no_decoder_is_traced_in_each_way_that_is_offered() -> None:
    """Its other ways have no closed form: without a trace of their own they are not offered."""
    config = families.size("t5-large") or {}
    count = families.parameters(config) or 0
    parameters = likely_tensors(config, count, count)
    asked = []

    def trace(setting: Setting) -> Trace:
        asked.append((setting.spread.engine, setting.checkpointing))
        kept = 10**9 * (1 if setting.checkpointing else 100)
        passes = Pass(2, 2 * kept, 0, 0, 0, 0, 1, 3, 0), Pass(4, 4 * kept, 0, 0, 0, 0, 2, 6, 0)
        arithmetic, again = setting.arithmetic, setting.checkpointing
        return Trace(parameters, passes, 0, arithmetic, setting.spread.device, again, (2,), {}, 0.0)

    bare = big("t5-large", 1, engine="ddp", stage=0, bucket=0, checkpointing=False)
    setting = replace(bare, trace=trace(bare))
    room = MemoryLimit(40 * 10**9, ROOMY)
    assert not fits(setting, room)
    assert not any("=" in way for way in remedies(setting, room, "t5-large"))
    offered = remedies(setting, room, "t5-large", OpenChoices(trace=trace))
    assert offered[0] == "train.gradient_checkpointing=true" and ("ddp", True) in asked


def between(*settings: Setting) -> MemoryLimit:
    """Room for the last setting and for none of the others."""
    *more, least = (sum(needed(each).device.values()) for each in settings)
    assert min(more) > least
    return MemoryLimit(int((min(more) + least) / 2 / (1 - MARGIN)), ROOMY, "a GPU of a", "a")


def fsdp(**fields: Any) -> Setting:
    return big("opt-30b", engine="fsdp", stage=0, bucket=0, **fields)


def test_fsdp_that_accumulates_is_offered_shards_first() -> None:
    setting = fsdp(micro_steps=4)
    room = between(setting, with_fields(setting, sync_each_batch=True))
    assert remedies(setting, room, "opt-30b")[0] == "engine.sync_each_batch=true"
    assert not any("sync" in key for way, _ in changes(with_fields(setting, micro_steps=1)) for key in way)
    assert not any("sync" in key for way, _ in changes(big("opt-30b", micro_steps=4)) for key in way)


@pytest.mark.parametrize(
    ("said", "offered"),
    [
        (OpenChoices(accumulation=8), True),
        (OpenChoices(accumulation=8, global_=256), False),
        (OpenChoices(accumulation=8, samples=256), False),
        (OpenChoices(accumulation=8, fixed=frozenset({"accumulation"})), False),
    ],
)
def test_fewer_micro_batches_are_offered_where_the_step_may_be_smaller(
    said: OpenChoices, offered: bool
) -> None:
    """grpo draws the answers of a step at once: of eight micro-batches they are too many."""
    drawing = Drawing(prompt=1024, answer=1024, at_once=True)
    setting = big("opt-1.3b", micro_steps=8, micro=4, drawing=drawing)
    room = between(setting, with_fields(setting, micro_steps=4))
    said = replace(said, fixed=said.fixed | {"micro", "engine"})
    found = remedies(setting, room, "opt-1.3b", said)
    assert ("batch.accumulation=4" in found) is offered


def test_another_engine_that_cuts_weights_is_offered_both_ways() -> None:
    """ZeRO 3 gathers by modules and keeps what comes again, FSDP gathers blocks; ZeRO 3 takes a checkpoint in
    parts, FSDP's first rank has all of the optimizer."""
    zero3 = big("opt-1.3b", stage=3, bucket=2048**2)
    room = between(zero3, apply(zero3, {"engine.name": "fsdp", "engine.zero": "0"}))
    assert remedies(zero3, room, "opt-1.3b")[:2] == [
        "engine.offload=optimizer",
        "engine.name=fsdp engine.zero=0",
    ]
    large = fsdp(checkpoints=True, create="sharded")
    short = lacking(large, MemoryLimit(88 * 10**9, 25 * 10**9))
    assert short is not None and short.place == "host"
    first = remedies(large, MemoryLimit(88 * 10**9, 25 * 10**9), "opt-30b")[0]
    assert first == "engine.name=deepspeed engine.zero=3"


@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
def test_groups_of_ranks_that_hold_too_much_are_offered_to_be_left_out(engine: str) -> None:
    setting = fsdp(group=2) if engine == "fsdp" else big("opt-30b", stage=3, group=2)
    whole = with_fields(setting, group=0)
    assert setting.spread.grouped
    first = remedies(setting, between(setting, whole), "opt-30b", OpenChoices(fixed=frozenset({"micro"})))[0]
    assert "engine.group=null" in first
    for way, there in changes(setting):
        changed = {key for key in way if key.startswith("engine.")}
        # Another engine has other groups: none of this one's is left behind.
        assert (there.spread.group == 0) == bool(changed), way
        if "engine.name" not in way:
            assert ("engine.group" in way) == bool(changed), way


def test_what_is_offloaded_stays_so_under_another_engine() -> None:
    def ways(setting: Setting) -> list[dict[str, str]]:
        found = (way for way, _ in changes(setting) if "engine.name" in way)
        return [way for way in found if len(way) == 2 + ("engine.offload" in way)]

    to = {"engine.name": "fsdp", "engine.zero": "0"}
    assert ways(big("opt-30b", stage=3)) == [to, {**to, "engine.offload": "optimizer+param"}]
    offloads = [{**to, "engine.offload": "optimizer+param"}]
    assert ways(big("opt-30b", stage=3, offload="optimizer")) == offloads
    assert ways(big("opt-30b", stage=3, offload="optimizer+param")) == [to]
    back = {"engine.name": "deepspeed", "engine.zero": "3"}
    assert ways(fsdp(offload="optimizer+param")) == [back]


def test_two_models_that_are_trained_as_one_are_not_cut_block_by_block() -> None:
    critic = (HeldModel("critic", output="numbers", trained=True),)
    assert not any(
        way.get("engine.name") == "fsdp" for way, _ in changes(big("opt-1.3b", stage=3, others=critic))
    )


def overridden(way: str, setting: Setting) -> tuple[dict[str, str], int]:
    """The overrides of an offered change, and the ranks that it is for."""
    words = way.removesuffix(" such ranks").split()
    ranks = int(words.pop()) if way.endswith("such ranks") else setting.spread.ranks
    return dict(word.split("=") for word in words if word != "on"), ranks


@pytest.mark.parametrize(
    ("micro", "accumulation", "said"),
    [
        (24, 1, OpenChoices(accumulation=1, global_=24 * 4)),
        (36, 1, OpenChoices(global_=36 * 4)),
        (35, 2, OpenChoices(accumulation=2, global_=35 * 2 * 4)),
        (97, 1, OpenChoices(global_=97 * 4)),  # a prime: one sample at a time
        (64, 1, OpenChoices(samples=300)),
        (64, 1, OpenChoices(accumulation=1)),
        (64, 1, ANY_CHANGE),
        (24, 1, OpenChoices(accumulation=1, global_=24 * 4, fixed=frozenset({"accumulation"}))),
        (24, 1, OpenChoices(global_=24 * 4, fixed=frozenset({"micro", "ranks"}))),
        (24, 1, OpenChoices(global_=24 * 4, fixed=frozenset({"engine"}))),
    ],
)
def test_every_change_that_is_offered_makes_the_batch_and_fits(
    micro: int, accumulation: int, said: OpenChoices
) -> None:
    setting = big("opt-1.3b", 4, checkpointing=False, micro=micro, micro_steps=accumulation)
    room = MemoryLimit(40 * 10**9, ROOMY)
    assert not fits(setting, room)
    offered = remedies(setting, room, "opt-1.3b", said)
    ways = [way for way in offered if "model.name" not in way and not way.startswith("GPUs of")]
    assert ways
    for way in ways:
        changed, ranks = overridden(way, setting)
        names = {key.removeprefix("batch.").partition(".")[0] for key in changed}
        assert not names & said.fixed and not (ranks != setting.spread.ranks and "ranks" in said.fixed)
        batch = resolve_batch(
            int(changed.get("batch.micro", micro)),
            int(changed["batch.accumulation"]) if "batch.accumulation" in changed else said.accumulation,
            said.global_,
            world_size=ranks,
        )
        assert "batch.micro" not in changed or batch.micro < micro
        there = with_fields(
            apply(setting, changed),
            ranks=ranks,
            micro_steps=batch.accumulation,
            lengths=Lengths(int(changed.get("data.sequence", 2048))),
        )
        assert fits(there, room), way


def test_the_largest_micro_batch_that_divides_the_share_is_offered() -> None:
    setting = big("opt-1.3b", 4, checkpointing=False, micro=36)
    said = OpenChoices(accumulation=1, global_=36 * 4)
    room = MemoryLimit(40 * 10**9, ROOMY)
    (first, *_) = remedies(setting, room, "opt-1.3b", said)
    changed, _ = overridden(first, setting)
    small = int(changed["batch.micro"])
    assert int(changed["batch.accumulation"]) * small == 36
    larger = min(size for size in (2, 3, 4, 6, 9, 12, 18, 36) if size > small)
    assert not fits(with_fields(setting, micro=larger, micro_steps=36 // larger), room)


def test_host_memory_is_too_little_for_eight_ranks_that_make_the_model_whole() -> None:
    setting, room = big("opt-13b"), MemoryLimit(85_899_345_920, 32_000_000_000, "A100 of a", "a")
    short = lacking(setting, room)
    assert short is not None and short.place == "host"
    error = refusal(setting, room, "opt-13b", remedies(setting, room, "opt-13b"))
    assert "of host memory per rank" in error.what and "a has 32.0 GB" in error.what
    assert (error.hint or "").startswith("would fit: engine.zero=3;")  # which is made in shards
