"""Bytes per rank against sums done by hand, published peaks, and the changes that a refusal offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.core import families
from muster.core.batch import resolve_batch
from muster.core.trace import Pass, Trace
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
from muster.planner.remedies import ANY_CHANGE, OpenChoices, apply, changes, remedies
from tests.golden.memories import setting_of
from tests.support import with_fields

GIB = 2**30
ROOMY = 1 << 50


def needed(setting: Setting) -> Need:
    found = need(setting)
    assert found is not None
    return found


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
    setting = setting_of(None, device=device)
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
    setting = setting_of("opt-1.3b", micro=4)
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
    planned = setting_of(
        None,
        config=config, parameters=10**9, trainable=10**9, lengths=96, precision="fp32", ranks=1,
        ranks_per_host=1, engine=engine, stage=stage, bucket=5 * 10**8 if stage else 0,
    )  # fmt: skip
    return sum(needed(planned).device.values())


def test_the_published_sum_for_a_billion_parameters_lies_between_two_plans() -> None:
    """22 GB, a sum of 20 bytes per parameter and activations: more than a plain run needs, which has no
    second copy of the weights; less than ZeRO-1 with such a bucket, and all that a process has besides."""
    assert 17 * 10**9 < of_a_billion("ddp") < 22 * 10**9 < of_a_billion("deepspeed", 1) < 27 * 10**9


@pytest.mark.parametrize(
    ("lengths", "mean", "tokens"),
    [
        (Lengths(64), None, 64), (Lengths(64), 20.0, 20), (Lengths(64, target=32), 97.0, 96),
        (Lengths(64, sequences=2), 97.0, 97), (Lengths(0), None, 0),
    ],
)  # fmt: skip
def test_a_sample_has_at_most_the_tokens_of_the_longest(
    lengths: Lengths, mean: float | None, tokens: float
) -> None:
    setting = replace(setting_of(None), lengths=lengths, mean_tokens=mean)
    assert setting.tokens == tokens and setting.padded == (tokens / lengths.all if lengths.all else 1)


def test_a_smaller_batch_stands_beside_checkpointing_by_itself() -> None:
    setting = setting_of("opt-1.3b", ranks=4, checkpointing=False, micro=2)
    for room, smaller in ((16_500, []), (17_000, ["batch.micro=1"])):  # MB; a sample alone needs 16,789
        ways = remedies(setting, MemoryLimit(room * 10**6, ROOMY), "opt-1.3b")
        here = [way for way in ways if "ranks" not in way and "model.name" not in way]
        assert here == ["train.gradient_checkpointing=true", *smaller]


def test_the_largest_micro_batch() -> None:
    setting = setting_of(None, stage=2)
    sizes = {micro: sum(needed(replace(setting, micro=micro)).device.values()) for micro in (1, 5, 6)}
    assert largest_micro(setting, MemoryLimit(int(sizes[5] / (1 - MARGIN)) + 1, None), 64) == 5
    assert largest_micro(setting, MemoryLimit(int(sizes[6] / (1 - MARGIN)) + 1, None), 64) == 6
    assert largest_micro(setting, MemoryLimit(int(sizes[6] / (1 - MARGIN)) + 1, None), 4) == 4
    assert largest_micro(setting, MemoryLimit(sizes[1], None), 64) == 0  # the margin is kept free
    assert largest_micro(setting, MemoryLimit(None, None), 64) == 64  # not known


def test_every_change_that_is_offered_was_tried() -> None:
    """The first that fits is offered, and none with fewer changes fits."""
    setting, room = setting_of("opt-66b", ranks=16), MemoryLimit(85_899_345_920, ROOMY)
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

    bare = setting_of("t5-large", ranks=1, engine="ddp", stage=0, bucket=0, checkpointing=False)
    setting = replace(bare, trace=trace(bare))
    room = MemoryLimit(40 * 10**9, ROOMY)
    assert not fits(setting, room)
    assert not any("=" in way for way in remedies(setting, room, "t5-large"))
    offered = remedies(setting, room, "t5-large", OpenChoices(trace=trace))
    assert offered[0] == "train.gradient_checkpointing=true" and ("ddp", True) in asked


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
    setting = setting_of("opt-1.3b", ranks=4, checkpointing=False, micro=micro, micro_steps=accumulation)
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
