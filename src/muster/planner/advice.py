"""Which hosts make a job slower, from what they say of themselves before it starts. Pure.

Where a host does not say what is needed (a CPU's speed, a link's), there is no prediction rather than a wrong
one. Between the published runs that are known to us, models reach 12 to 56 % of their GPUs' stated peaks, so
a host is named only where it makes an epoch slower all over that range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.core import families
from muster.core.batch import Batch
from muster.core.data import Digits, Generated, ImageData, Synthetic
from muster.core.flops import Shape, training
from muster.core.inventory import Inventory
from muster.core.job import SLOWER, Decision, Job
from muster.core.peaks import stated_peak
from muster.core.recipe import Recipe
from muster.core.units import format_seconds
from muster.core.zero import deepspeed_config, given_config, user_batch
from muster.planner.decide import Decided
from muster.planner.mixed import Load, Machine, best, predict, rounds_of, worths
from muster.planner.model import parameters, whole_config
from muster.planner.setting import lengths_of

# Shares of the stated peak: the lowest, a middle one, and the highest of the published runs (docs/mixed.md).
EFFICIENCY = (0.12, 0.35, 0.56)
LINK = 0.78  # of a network card's stated speed: fitted on two hosts of the published mixed cluster
FASTEST = "fastest hosts"  # the field of a decision that names them
NAMED = 8  # hosts that a text names one by one
ROUND = 10_000  # samples, where nobody here knows how many an epoch has
DIGITS = 1797


def advise(
    recipe: Recipe,
    inventory: Inventory,
    facts: Mapping[str, Mapping[str, Any]],
    decided: Decided,
    env: Mapping[str, str | None],
) -> list[Decision]:
    """Before the start: a decision for each host that makes an epoch slower, and one that names the fastest
    hosts. `env`: the ranks' variables."""
    count, flops = parameters(recipe), sample_flops(recipe, whole_config(recipe))
    if len(inventory.hosts) < 2 or decided.device != "cuda" or count is None or flops is None:
        return []
    if recipe.lora is not None or isinstance(recipe.batch.split, list):
        return []  # what is exchanged, or who computes what, is not what is assumed below
    known = []
    for host, slots in zip(inventory.hosts, decided.slots, strict=True):
        peak = gpu_peak(facts[host.label], slots, decided.precision)
        link = link_speed(facts[host.label], env)
        if peak is None or link is None:
            return []
        known.append((host.label, peak / flops, link, slots))
    guesses = [
        [Machine(host, share * speed, link, slots) for host, speed, link, slots in known]
        for share in EFFICIENCY
    ]
    whole = epoch_samples(recipe)
    load = load_for(recipe, decided.batch, count, decided.precision, samples=whole or ROUND)
    basis = (
        f"at {EFFICIENCY[1]:.0%} of GPUs' stated peaks and {LINK:.0%} of the links' speed (and slower as "
        f"well at {EFFICIENCY[0]:.0%} and {EFFICIENCY[2]:.0%} of the peaks)"
    )
    return words(guesses, load, _of(whole), basis, measured=recipe.batch.split == "measured")


def review(
    recipe: Recipe,
    job: Job,
    facts: Mapping[str, Mapping[str, Any]],
    speeds: Sequence[float],
    trained: int,
    samples: int | None,
) -> list[Decision]:
    """The same from speeds that the ranks measured (samples/s per rank), for CPUs as well; `trained`:
    parameters."""
    env: Mapping[str, str | None] = recipe.env if job.device == "cuda" else {"NCCL_IB_DISABLE": "1"}
    machines = []
    for place in job.placements:
        link = link_speed(facts.get(place.host, {}), env)
        if link is None:
            return []
        machines.append(Machine(place.host, sum(speeds[rank] for rank in place.ranks), link, place.slots))
    load = load_for(recipe, job.batch, trained, job.precision, samples=samples or ROUND)
    basis = f"at the measured speeds and {LINK:.0%} of the links' speed"
    return words([machines], load, _of(samples), basis, measured=True) if len(machines) > 1 else []


def _of(samples: int | None) -> str:
    return "per epoch" if samples else f"per {ROUND:,} samples"


def words(
    guesses: Sequence[Sequence[Machine]], load: Load, what: str, basis: str, *, measured: bool
) -> list[Decision]:
    """The decisions for several guesses at the same hosts' speeds; predictions are those of the middle one.

    Nothing is said where some guess has no choice of hosts that is faster than all of them. A host is named
    where every guess has an epoch slower with it, and the fastest choice is without it.
    """
    now = [predict(guess, load, measured=measured).epoch for guess in guesses]
    fastest = [best(guess, load, measured=measured) for guess in guesses]
    if any(chosen.epoch >= epoch for chosen, epoch in zip(fastest, now, strict=True)):
        return []
    middle = len(guesses) // 2
    machines, chosen = guesses[middle], fastest[middle]
    tables = [worths(guess, load, measured=measured) for guess in guesses]
    made = [
        Decision(
            f"host {each.host}",
            SLOWER,
            f"predicted {format_seconds(each.with_it)} {what} with it, {format_seconds(each.without_it)} "
            f"without it, {basis}",
        )
        for index, each in enumerate(tables[middle])
        if each.host not in chosen.hosts
        and all(table[index].without_it < table[index].with_it for table in tables)
    ]
    names = ", ".join(chosen.hosts[:NAMED])
    if len(chosen.hosts) > NAMED:
        names += f" and {len(chosen.hosts) - NAMED} more"
    text = f"predicted {format_seconds(chosen.epoch)} {what}, {format_seconds(now[middle])} with all, {basis}"
    other = best(machines, load, measured=True)
    if other.epoch < chosen.epoch:
        text += f"; {format_seconds(other.epoch)} on {len(other.hosts)} hosts with batch.split=measured"
    return [*made, Decision(FASTEST, names, text)]


def load_for(recipe: Recipe, batch: Batch, parameters: int, precision: str, *, samples: int) -> Load:
    """What the recipe's job does per step, on any hosts; a user's own DeepSpeed file is read as it will
    be."""
    engine = recipe.engine
    fixed, stage, hidden = recipe.batch.global_ or recipe.batch.tokens, 0, engine.name != "deepspeed"
    if engine.name == "deepspeed":
        fixed = fixed or user_batch(given_config(recipe)).get("global")
        zero = deepspeed_config(recipe, batch, precision).get("zero_optimization") or {}
        stage = int(zero.get("stage", 0))
        hidden = stage > 0 and bool(zero.get("overlap_comm", stage == 3))
    half = engine.name != "ddp" and precision != "fp32"  # DDP exchanges what it keeps: fp32
    return Load(
        samples=samples,
        per_rank=batch.micro * batch.accumulation,
        batch=batch.global_ if fixed else None,
        volume=parameters * (2 if half else 4),
        rounds=rounds_of(engine.name, stage, batch.accumulation, parameters),
        hidden=hidden,
    )


def gpu_peak(facts: Mapping[str, Any], count: int, precision: str) -> float | None:
    """Stated FLOP/s of a host's first `count` GPUs together; None where one's is not known.

    All take equal parts, so the slowest counts for each.
    """
    gpus = list(facts.get("gpus") or [])[:count]
    peaks = [stated_peak(str(gpu.get("name") or ""), precision) for gpu in gpus]
    known = [peak.flops for peak in peaks if peak is not None]
    return count * min(known) if known and len(known) == count else None


def link_speed(facts: Mapping[str, Any], env: Mapping[str, str | None]) -> float | None:
    """Bytes/s that a host's ranks can send to another: InfiniBand where it is and may be used, else the
    network card; None where it does not say."""
    network = facts.get("network") or {}
    megabits = network.get("megabits")
    if env.get("NCCL_IB_DISABLE", "0") == "0" and network.get("infiniband_megabits"):
        megabits = network["infiniband_megabits"]
    return LINK * megabits * 1e6 / 8 if megabits else None


def sample_flops(recipe: Recipe, config: Mapping[str, Any] | None) -> int | None:
    """Floating-point operations that a sample's gradient needs, at full length; None where not known."""
    if config is None:
        return None
    if isinstance(recipe.data, ImageData):
        shape = Shape(1)  # the tokens follow from the configuration
    else:
        lengths = lengths_of(recipe, config)
        if lengths is None or not lengths.tokens:
            return None
        shape = Shape(1, lengths.tokens, lengths.target)
    products = families.products(config, shape)
    if products is None:
        return None
    return training(products, checkpointing=recipe.train.checkpointing).hardware


def epoch_samples(recipe: Recipe) -> int | None:
    """Training samples of an epoch where the recipe says so."""
    source = getattr(recipe.data, recipe.data.source or "", None)
    if isinstance(source, Generated):
        count: int | None = source.train
    elif isinstance(source, Digits):
        count = DIGITS - source.validation
    elif isinstance(source, Synthetic):
        count = source.samples
    else:
        count = None
    limit = recipe.data.limit
    return min(count, limit) if count is not None and limit else count
