"""Find what would make a job fit that does not: the smallest changes, each tried by the same arithmetic.
Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.core import families
from muster.core.batch import resolve_batch
from muster.core.errors import RecipeError, UsageError
from muster.core.hardware.devices import find_device, names
from muster.core.trace import Trace
from muster.core.units import counted, format_bytes
from muster.engines.base import EngineSpec, own_specs, spec_of
from muster.planner.memory.activations import activations_missing
from muster.planner.memory.fit import MemoryLimit, Setting, lacking, need

MOST_RANKS = 65536
SYNC = "engine.sync_each_batch"
GROUP = "engine.group"
Change = tuple[dict[str, str], Setting]  # overrides of the recipe, and what they come to
Neighbour = tuple[str, Setting]


@dataclass(frozen=True)
class OpenChoices:
    """What a recipe leaves open to changes. `accumulation`, `global_`: of its batch, None: open; `samples`:
    about the samples of a global batch, where tokens were asked for; `fixed`: what no override changes:
    micro, accumulation, engine, ranks; `trace`: returns the trace of a changed setting, None: not traced;
    `takes`: returns whether the recipe works with another model."""

    accumulation: int | None = None
    global_: int | None = None
    samples: int | None = None
    fixed: frozenset[str] = frozenset()
    trace: Callable[[Setting], Trace | None] | None = None
    takes: Callable[[str], bool] = lambda model: True

    def fits(self, setting: Setting, room: MemoryLimit) -> bool:
        """Return whether it is known to fit: a model that is no decoder is traced in each way."""
        counted = need(setting)
        if counted is not None and not counted.whole and self.trace is not None:
            setting = replace(setting, trace=self.trace(setting))
            counted = need(setting)
        return counted is not None and counted.whole and lacking(setting, room, counted) is None


ANY_CHANGE = OpenChoices()


def refusal(setting: Setting, room: MemoryLimit, model: str, ways: Sequence[str]) -> UsageError:
    """Return the error for a job that does not fit: what it needs, what there is, and what would fit
    (`ways`)."""
    short, needed = lacking(setting, room), need(setting)
    assert short is not None and needed is not None
    parts = needed.device if short.place == "device" else needed.host
    name = room.device_name if parts is needed.device and not short.cpu else room.host_name
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    words = ", ".join(f"{part} {format_bytes(value)}" for part, value in largest)
    kind = "of memory" if parts is needed.device else "of host memory"
    amount = f"{'about' if needed.whole else 'at least'} {format_bytes(short.needed)}"
    what = (
        f"{model} needs {amount} {kind} per rank with {engine_words(setting)} on "
        f"{counted(setting.spread.ranks, 'rank')} at micro-batch {setting.micro} ({words}), and {name} has "
        f"{format_bytes(short.has)} for each"
    )
    hint = f"would fit: {'; or '.join(ways)}; " if ways else "no change that was tried would fit; "
    if not needed.whole and not ways:
        hint = f"{activations_missing(setting.config)} Without it no change is known to fit; "
    return UsageError(what, where="memory", hint=f"{hint}force=true starts anyway")


def engine_words(setting: Setting) -> str:
    """Return the engine and its options, in words."""
    words = setting.engine.words(setting.spread.stage)
    if setting.spread.sync_each_batch and setting.spread.micro_steps > 1:
        words += " and sync_each_batch"
    if setting.spread.grouped:
        words += f" in groups of {setting.spread.group}"
    if setting.spread.offload != "none":
        words += f" and offload of {setting.spread.offload.replace('+', ' and ')}"
    return words + (" and gradient checkpointing" if setting.checkpointing else "")


def remedies(setting: Setting, room: MemoryLimit, model: str, choices: OpenChoices = ANY_CHANGE) -> list[str]:
    """Return what would fit: the fewest overrides on these hosts, a smaller batch beside checkpointing, and
    where those offload, the fewest that do not; then more ranks, then another size; where not even one sample
    fits so, shorter ones. Where these GPUs hold nothing of it, larger ones as well."""
    fitting = (each for each in changes(setting, choices) if choices.fits(each[1], room))
    here = next(fitting, None)
    nearest = [here] if here else []
    if here and "engine.offload" in here[0]:
        nearest += itertools.islice((each for each in fitting if "engine.offload" not in each[0]), 1)
    elif here and here[0].keys() == {"train.gradient_checkpointing"}:  # a smaller batch is faster
        smaller = (each for each in changes(setting, choices) if each[0].keys() == {"batch.micro"})
        nearest += itertools.islice((each for each in smaller if choices.fits(each[1], room)), 1)
    ways = [_words(_enlarged(*each, setting, room, choices)) for each in nearest]
    if "ranks" not in choices.fixed:
        shards = "engine" not in choices.fixed and (here is None or "engine.offload" in here[0])
        more = _more_ranks(setting, room, choices, shards=shards)
        ways += [more] if more else []
    larger = [] if ways else _larger(setting, room, choices)
    untraced = replace(choices, trace=None)  # of what follows the model or its arithmetic is another one
    for neighbours in (_half_kept(setting), _smaller(setting, model, choices)):
        fits = (words for words, each in neighbours if untraced.fits(each, room))
        ways += itertools.islice(fits, 1)
    return [*(ways or _shorter(setting, room, untraced)), *larger]


def _step(setting: Setting) -> int:
    """Return the samples of a rank's optimizer step."""
    return setting.micro * setting.spread.micro_steps


def _enlarged(
    way: dict[str, str], fitting: Setting, before: Setting, room: MemoryLimit, choices: OpenChoices
) -> dict[str, str]:
    """Where the batch has to shrink, return the largest that fits in place of the smallest."""
    if "batch.micro" not in way:
        powers = (1 << bit for bit in reversed(range((before.spread.micro_steps - 1).bit_length())))
        steps = (each for each in powers if choices.fits(fitting.spreading(micro_steps=each), room))
        return {**way, "batch.accumulation": str(next(steps))} if "batch.accumulation" in way else way
    others = {key: value for key, value in way.items() if not key.startswith("batch.")}
    largest = _largest(replace(fitting, micro=before.micro), room, choices)
    return {**others, **largest[0]} if largest else way


def changes(setting: Setting, choices: OpenChoices = ANY_CHANGE) -> Iterator[Change]:
    """Yield every other way to train the same model on the same ranks, those with fewest and mildest changes
    first: the smallest micro-batch, checkpointing, what `_spreads` has; of as many, those that make smaller
    steps of fewer micro-batches last."""
    smallest = itertools.islice(_batches(setting, list(reversed(_below(setting, choices))), choices), 1)
    batches = [(0, False, {}, setting), *((1, _step(at) < _step(setting), way, at) for way, at in smallest)]
    smaller = choices.global_ is None and choices.samples is None and "accumulation" not in choices.fixed
    if setting.spread.micro_steps > 1 and smaller:  # a step may have fewer samples
        one = {"batch.accumulation": "1"}
        batches += [(n + 1, True, {**way, **one}, at.spreading(micro_steps=1)) for n, _, way, at in batches]
    checkpointing = [{}] if setting.checkpointing else [{}, {"train.gradient_checkpointing": "true"}]
    spread = [{}] if "engine" in choices.fixed else list(_spreads(setting))
    ways = []
    for (number, fewer, way, base), again, engine in itertools.product(batches, checkpointing, spread):
        cost = (number + len(again) + len(engine), fewer, spread.index(engine), len(again))
        ways.append((cost, {**way, **again, **engine}, base))
    for _, way, base in sorted(ways, key=lambda each: each[0])[1:]:  # without that of no change
        yield way, apply(base, way)


def _below(setting: Setting, choices: OpenChoices) -> list[int]:
    """Return smaller micro-batches, largest first: those that divide a rank's share of a given global batch,
    else powers of two."""
    if "micro" in choices.fixed:
        return []
    if choices.global_ is None:
        powers = (1 << bit for bit in reversed(range(setting.micro.bit_length())))
        return [power for power in powers if power < setting.micro]
    share = choices.global_ // setting.spread.ranks
    return [size for size in range(min(setting.micro - 1, share), 0, -1) if share % size == 0]


def _batches(setting: Setting, micros: list[int], choices: OpenChoices) -> Iterator[Change]:
    """Yield the setting at each of these micro-batches that makes the recipe's batch, and the overrides for
    it."""
    for micro in micros:
        unit = micro * setting.spread.ranks
        accumulation, whole = setting.spread.micro_steps, choices.global_
        if whole is not None:
            accumulation = max(1, whole // unit)
        elif choices.samples is not None:
            accumulation = choices.accumulation or max(1, round(choices.samples / unit))
        try:
            batch = resolve_batch(micro, accumulation, whole, world_size=setting.spread.ranks)
        except RecipeError:
            continue
        way = {"batch.micro": str(micro)} if micro != setting.micro else {}
        if choices.accumulation not in (None, batch.accumulation):
            if "accumulation" in choices.fixed:
                continue
            way["batch.accumulation"] = str(batch.accumulation)
        yield way, replace(setting, micro=micro).spreading(micro_steps=batch.accumulation)


def _largest(setting: Setting, room: MemoryLimit, choices: OpenChoices) -> Change | None:
    """Return the change to the largest smaller micro-batch that fits."""
    batches = _batches(setting, _below(setting, choices), choices)
    return next((each for each in batches if choices.fits(each[1], room)), None)


def _spreads(setting: Setting) -> Iterator[dict[str, str]]:
    """Yield no change; then other ways of the engine, and other engines: where it can shard weights, those
    that do so as well. What offloads comes last."""
    engine = setting.engine
    ways = [{}, *engine.lighter(setting.spread.stage, setting.spread.offload)]
    if engine.defers_reduction and setting.spread.ranks > 1 and setting.spread.sums_whole:
        ways = [{**way, **more} for more in ({}, {SYNC: "true"}) for way in ways]
    if setting.spread.group:  # all ranks together hold less, and another way has other groups
        ways = [{}, *({**way, GROUP: "null"} for way in ways)]
    for other in own_specs():
        if other.name != engine.name and engine.cutting is not None:
            ways += _cutting(setting, other)
        elif other.name != engine.name and other.relief:
            ways += [{"engine.name": other.name, **way} for way in other.lighter(0, setting.spread.offload)]
    yield from sorted(ways, key=lambda way: "engine.offload" in way)


def _cutting(setting: Setting, other: EngineSpec) -> Iterator[dict[str, str]]:
    """Yield another engine that shards weights, offloading at least as much. One that shards module by module
    is not for two models that are trained as one."""
    if other.cutting is None or (other.shards_weights(0) and any(each.trained for each in setting.others)):
        return
    for offload in other.offloads:
        if _moved(offload) >= _moved(setting.spread.offload):
            more = {} if offload == setting.spread.offload else {"engine.offload": offload}
            yield {"engine.name": other.name, **other.cutting, **more}


def _moved(offload: str) -> set[str]:
    return set(offload.split("+")) - {"none"}


def apply(setting: Setting, way: dict[str, str]) -> Setting:
    """Return the setting with overrides laid over it."""
    spread = setting.spread
    name = way.get("engine.name", spread.engine)
    same, engine = name == spread.engine, spec_of(name)
    stage = int(way.get("engine.zero", spread.stage))
    changed = replace(
        setting,
        micro=int(way.get("batch.micro", setting.micro)),
        checkpointing=setting.checkpointing or "train.gradient_checkpointing" in way,
        create="sharded" if engine.shards_weights(stage) else setting.create,
    ).spreading(
        engine=name,
        stage=stage,
        micro_steps=int(way.get("batch.accumulation", spread.micro_steps)),
        offload=way.get("engine.offload", spread.offload),
        group=spread.group if same and GROUP not in way else 0,
        # What auto would come to.
        sync_each_batch=SYNC in way or (spread.sync_each_batch if same else engine.defers_reduction),
    )
    return with_buckets(changed) if "engine.zero" in way else changed


def with_buckets(setting: Setting) -> Setting:
    """Return the setting with the sizes of Muster's configuration for the engine."""
    sizes = setting.engine.sizes(setting.spread.stage, hidden_size(setting.config))
    return setting.spreading(**sizes)


def hidden_size(config: Mapping[str, Any]) -> int:
    """Return the values per token between layers, by each family's name for them, the most where layers
    differ; 0 where they are not known."""
    for name in ("hidden_size", "d_model", "n_embd", "hidden_sizes", "text_config"):
        width = config.get(name)
        if isinstance(width, Mapping):
            return hidden_size(width)
        if width:
            return int(max(width) if isinstance(width, list | tuple) else width)
    return 0


def _more_ranks(setting: Setting, room: MemoryLimit, choices: OpenChoices, *, shards: bool) -> str | None:
    """Return the fewest ranks, by doubling, on which the engine as it is fits, or one that shards weights
    where asked to try it."""
    ways: list[dict[str, str]] = [{}]
    if shards and not setting.engine.shards_weights(setting.spread.stage):
        others = (way for way in _spreads(setting) if "engine.offload" not in way)
        ways += [way for way in others if apply(setting, way).create == "sharded"]
    doubled = (setting.spread.ranks << bits for bits in itertools.count(1))
    numbers = itertools.takewhile(lambda ranks: ranks <= MOST_RANKS, doubled)
    for ranks, smaller, way in itertools.product(numbers, (False, True), ways):
        there = apply(setting, way).spreading(ranks=ranks)
        same = next(_batches(there, [there.micro], choices), None)
        fitting = _largest(there, room, choices) if smaller else same
        if fitting and choices.fits(fitting[1], room):
            return f"{_words({**way, **fitting[0]})} on {ranks} such ranks".removeprefix(" on ")
    return None


def _half_kept(setting: Setting) -> Iterator[Neighbour]:
    """Yield the setting with frozen weights in bf16 alone, next to adapters."""
    adapted = setting.trainable < setting.parameters and setting.quantized is None
    able = setting.engine.keeps_half and setting.precision == "bf16" and not setting.spread.keeps_half
    if adapted and able and not setting.others and not setting.drawing:
        yield "train.optimizer=adamw-bf16", replace(setting, trace=None).spreading(keeps_half=True)


def _smaller(setting: Setting, model: str, choices: OpenChoices) -> Iterator[Neighbour]:
    """Yield smaller sizes of the same family that the recipe takes, the largest first."""
    owner, _, _ = model.rpartition("/")
    family = families.family_of(setting.config)
    if family is None or model not in family.SIZES:
        return
    sizes = {
        name: families.parameters(config) or 0
        for name, config in family.SIZES.items()
        if name.rpartition("/")[0] == owner
    }
    share = setting.trainable / setting.parameters
    for name, count in sorted(sizes.items(), key=lambda size: -size[1]):
        if count < sizes[model] and choices.takes(name):  # not of its parameters: adapters are among them
            shape = {**setting.config, **family.SIZES[name]}
            trained = round(count * share)
            yield (
                f"model.name={name}",
                replace(setting, config=shape, parameters=count, trainable=trained, trace=None),
            )


def _larger(setting: Setting, room: MemoryLimit, choices: OpenChoices) -> list[str]:
    """Return the smallest known GPUs on which it fits as it is, where it lacks device memory."""
    if setting.spread.device != "cuda" or room.device is None:
        return []
    for memory, name in sorted((each.memory or 0, each.name) for each in map(find_device, names())):
        if memory > room.device and choices.fits(setting, replace(room, device=memory)):
            return [f"GPUs of {format_bytes(memory)}, such as {name}"]
    return []


def _shorter(setting: Setting, room: MemoryLimit, choices: OpenChoices) -> list[str]:
    """Return the longest sequences of which one fits as everything else is: a language model's, in closed
    form."""
    if setting.lengths.target or "vocab_size" not in setting.config:
        return []
    micros = [*reversed(_below(setting, choices)), setting.micro]
    way, smallest = next(_batches(setting, micros, choices), ({}, setting))
    one = replace(smallest, trace=None)

    def too_long(tokens: int) -> bool:
        return not choices.fits(replace(one, lengths=replace(one.lengths, tokens=tokens)), room)

    # What is needed grows with the tokens.
    longest = bisect_left(range(1, setting.lengths.tokens + 1), True, key=too_long)
    whole = longest // 64 * 64 or longest
    return [_words({"data.sequence": str(whole), **way})] if whole > 1 else []


def _words(way: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in way.items())
