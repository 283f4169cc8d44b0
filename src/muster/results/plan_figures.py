"""The figures of a plan, each worded once: `muster plan` shows all, a dry run the chief ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muster.core.hostlist import fold_hosts
from muster.core.units import counted, format_bytes, format_count, format_number, format_seconds
from muster.inputs.read import INHERITED
from muster.planner.document import UNCOUNTED, MemoryPlan, Plan, TimePlan
from muster.results.figures import Figure, percent

SMALL = 0.005  # of the whole: parts below it are one figure, or none
CHIEF = (
    "Batch", "Steps", "Optimizer", "Decay", "Schedule", "Order", "Memory", "Device", "Host", "Throughput",
)  # fmt: skip


def plan_figures(plan: Plan) -> list[Figure]:
    """List what was decided and predicted, without the alternatives and the numbers of hosts that were
    compared."""
    listed = [*_job(plan), *_training(plan)]
    if plan.memory:
        listed += _memory(plan, plan.memory)
    if plan.time:
        listed += _time(plan.time)
    return listed


def _job(plan: Plan) -> Iterator[Figure]:
    group, batch, ranks = "Job", plan.batch, counted(plan.ranks, "rank")
    count = f"{format_count(plan.parameters)} parameters" if plan.parameters else ""
    yield Figure(group, "Model", plan.model or "from a configuration", note=count)
    where = f"{plan.engine}, {plan.precision}, {ranks} on {counted(plan.hosts, 'host')}"
    yield Figure(group, "Spread", where, note=plan.machines)
    product = f"{batch['micro']} x {batch['accumulation']} x {ranks}"
    yield Figure(group, "Batch", f"{batch['global']:,}", "samples a step", product)
    idle = f"; idle: {fold_hosts(plan.idle)}" if plan.idle else ""
    for each in plan.decisions:
        name, value, why = each["field"], each["value"], str(each["why"])
        if name == "launch.hosts":  # the table of ways says why other numbers lost
            given = plan.hosts + len(plan.idle)
            yield Figure(group, "Hosts", f"{plan.hosts:,} of {given:,}", note=why.partition("; ")[0] + idle)
        elif name == "train.compile":
            yield Figure(group, "Compiled", "yes" if value else "no", note=why)
        elif name == "train.workers" and value:
            yield Figure(group, "Loaders", str(value), "processes per rank", why)
        elif name == INHERITED:
            yield Figure(group, f"From {value}", why)
    yield from (Figure(group, "Data", note) for note in plan.data)


def _training(plan: Plan) -> Iterator[Figure]:
    group, training = "Training", plan.training
    if training is None:
        return
    steps = "not known before the data is read" if training.steps is None else f"{training.steps:,}"
    yield Figure(group, "Steps", steps, note=training.length)
    yield Figure(group, "Optimizer", training.optimizer)
    yield Figure(group, "Decay", training.decay)
    yield Figure(group, "Schedule", training.schedule)
    yield Figure(group, "Order", training.order)


def _memory(plan: Plan, memory: MemoryPlan) -> Iterator[Figure]:
    group, device = "Memory of a rank", "Host" if plan.device == "cpu" else "Device"
    basis = [f"activations: {memory.basis}", f"peak: {memory.moment}"]
    basis += [f"for samples of {memory.samples}"] if memory.samples else []
    yield Figure(group, "Memory", _verdict(plan, memory), note="; ".join(basis))
    places = [(device, memory.device, memory.device_bytes, memory.device_room)]
    if memory.host:
        places.append(("Host", memory.host, memory.host_bytes, memory.host_room))
    for place, parts, total, room in places:
        free = f", {memory.margin:.0%} kept free" if room and total <= (1 - memory.margin) * room else ""
        has = f"of {format_bytes(room)}{free}" if room else "how much there is is not known"
        yield Figure(group, place, format_bytes(total), note=has)
        yield from (Figure(group, name, format_bytes(value)) for name, value in _large(parts, total))
    yield Figure(group, "Speaks for", memory.speaks_for)


def _verdict(plan: Plan, memory: MemoryPlan) -> str:
    """Return whether it fits, and with which choices."""
    if memory.lacking:
        return f"too little {memory.lacking + ' ' if plan.device == 'cuda' else ''}memory"
    if memory.basis == UNCOUNTED:
        return "at least this, so whether it fits is unknown"
    words = "tight, may not fit" if memory.tight else "nearly full" if memory.nearly_full else "fits"
    return f"{words} with {', '.join(plan.choices)}" if plan.choices else words


def _large(parts: Mapping[str, int], total: int) -> list[tuple[str, int]]:
    """Return the parts, the largest first; small ones are summed up."""
    large = [(name, value) for name, value in parts.items() if value > SMALL * total]
    rest = total - sum(value for _, value in large)
    return sorted(large, key=lambda part: -part[1]) + ([("other", rest)] if rest else [])


def _time(time: TimePlan) -> Iterator[Figure]:
    group = "Time"
    yield Figure(group, "Step", format_seconds(time.step), note=_ranged(time, time.step))
    parts = {
        "computation": time.compute,
        "waiting for the network": time.communication,
        "optimizer": time.optimizer,
        "host transfer": time.transfer,
        "overhead": time.overhead,
    }
    for name, value in parts.items():
        if value > SMALL * time.step:
            yield Figure(group, name, format_seconds(value))
    basis = [*(["calibrated"] if time.calibrated else []), *time.assumed]
    yield Figure(group, "Rests on", "; ".join(basis) or "stated figures")
    yield Figure(group, "Throughput", format_number(time.samples_per_second), "samples/s")
    if time.tokens_per_second is not None and time.tokens_per_device is not None:
        each = f"{format_number(time.tokens_per_device)} per device"
        yield Figure(group, "Tokens", format_number(time.tokens_per_second), "tokens/s", each)
    if time.mfu is not None:
        yield Figure(group, "MFU", percent(time.mfu), "%")
    if time.total is not None:
        steps = [f"{time.steps:,} steps"] if time.steps else []
        note = ", ".join(filter(None, [*steps, _ranged(time, time.total)]))
        yield Figure(group, "In all", format_seconds(time.total), note=note)
    if time.cost is not None:
        yield Figure(group, "Cost", f"{time.cost:,.2f}")
    if time.kwh and time.kwh > 0.01:
        yield Figure(group, "Energy", format_number(time.kwh), "kWh", "at most; devices alone")
    if time.epoch is not None:
        yield Figure(group, "Epoch", format_seconds(time.epoch))


def _ranged(time: TimePlan, seconds: float) -> str:
    """Return the range of so many seconds of steps."""
    if time.step_range is None:
        return ""
    low, high = (format_seconds(seconds * each / time.step) for each in time.step_range)
    return f"{low} to {high}"
