"""Learn about a device and a link from measured runs. Pure.

In steps, since what a run on one rank takes has no communication in it: first the efficiency of each device
and precision, from DDP's runs where there are some, and from those that took less; then what engines take
beyond that. A run that offloads shows nothing of its device: what it takes beyond all that is known is its
host's memory. What runs on several ranks of one host take beyond all this is the engines' as well where the
link within a host was measured by itself (the fabric workload), else that link's bandwidth. Last, the
bandwidth of links between hosts. Each is the value at which the prediction equals the measurement; of several
runs, the median. Where runs on one rank differ in their work, seconds that do not depend on it are separated
by least squares.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import mul

from muster.core.errors import UsageError
from muster.core.fabric import FabricRun
from muster.core.hardware.devices import CPU
from muster.core.hardware.links import LinkFigures, SharedLink
from muster.core.recipe import Recipe
from muster.core.result import Result
from muster.core.robust import deviation
from muster.engines.base import spec_of
from muster.planner.time.collective import CALL, RINGS
from muster.planner.time.steptime import Calibration, StepCase, case_key, engine_key, ideal, link_key, predict
from muster.planner.time.update import HOST_BANDWIDTH

LEAST, MOST = 1e-4, 1e4  # times what is stated, within which a figure is looked for
SPAN = 1.2  # work of the largest over that of the smallest run, from where on a constant can be told apart
BESIDE = 0.1  # of a step: runs that exchange for no longer tell of the device as well
CLOSE = 0.005  # of a step: what differs by less is not told apart
WORTH = 0.02  # of a step: a link, or a host's memory, that matters less teaches nothing about itself
FLEET = 4  # hosts that show how much a fleet's hosts differ
HOST_LEAST, HOST_MOST = 5e8, 2e12  # bytes/s: beyond these something else than its memory was slow or fast


@dataclass(frozen=True)
class MeasuredRun:
    """A run: its case, and the seconds of an optimizer step."""

    case: StepCase
    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a step takes more than {self.seconds} seconds")


def learn(runs: Sequence[MeasuredRun], before: Calibration | None = None) -> Calibration:
    """Return a calibration that reproduces the times of these runs, as far as one exists.

    `before`: what was learned or measured before, which stays where these runs do not show it. Raises
    UsageError where a figure that a prediction rests on is neither stated nor given.
    """
    calibration = before or Calibration()
    alone = [run for run in runs if run.case.machines.ranks == 1]
    within = [run for run in runs if run.case.machines.hosts == 1 < run.case.machines.per_host]
    measured = [run for run in within if _was_measured(calibration, _link(run, "inner"))]
    for name in dict.fromkeys(case_key(run.case) for run in alone if shows_device(run.case)):
        here = [run for run in (*alone, *measured) if case_key(run.case) == name and not on_host(run.case)]
        calibration = _learn_computation(name, here, calibration)
    offloaded = [run for run in alone if on_host(run.case) and case_key(run.case) in calibration.efficiency]
    for name in dict.fromkeys(_device(run) for run in offloaded):
        calibration = _learn_host(name, [run for run in offloaded if _device(run) == name], calibration)

    def clear(several: Sequence[MeasuredRun]) -> list[MeasuredRun]:
        """Return runs without those that take an unknown time of a host's memory."""
        return [run for run in several if not on_host(run.case) or _device(run) in calibration.hosts]

    calibration = _learn_engines(clear(measured), calibration)
    within = clear([run for run in within if run not in measured])
    between = clear([run for run in runs if run.case.machines.hosts > 1])
    for chosen, which in ((within, "inner"), (between, "link")):
        for name in dict.fromkeys(_link(run, which) for run in chosen):
            if name:
                calibration = _learn_link(
                    name, [run for run in chosen if _link(run, which) == name], calibration
                )
    return calibration


def deviation_of_hosts(result: Result) -> float | None:
    """Return the standard deviation of hosts' own time for a step, as a share of it, by the forward passes of
    a run's hosts, in which none waits for others; None: too few hosts reported, or their GPUs differ."""
    times = [report.forward_seconds for report in result.hosts if report.forward_seconds]
    kinds = {str([gpu.get("name") for gpu in each.facts.get("gpus") or ()]) for each in result.hosts}
    if len(times) < FLEET or len(times) < len(result.hosts) or len(kinds) > 1:
        return None
    return deviation(times) / statistics.median(times)


def errors(runs: Sequence[MeasuredRun], calibration: Calibration) -> list[float]:
    """Return, for each run, the predicted seconds over the measured ones, less one."""
    return [predict(run.case, calibration).seconds / run.seconds - 1 for run in runs]


def shows_device(case: StepCase) -> bool:
    """Return whether a run of it shows how fast its device computes."""
    return case.machines.ranks == 1 and case.spread.offload == "none"


def on_host(case: StepCase) -> bool:
    """Return whether its optimizer runs in a host's memory, in part or whole."""
    return case.spread.moves_optimizer and case.machines.device.kind != CPU


def _device(run: MeasuredRun) -> str:
    return run.case.machines.device.name


def _engine(run: MeasuredRun) -> str:
    return engine_key(run.case, several=run.case.machines.ranks > 1)


def _was_measured(calibration: Calibration, link: str) -> bool:
    """Return whether a link was measured by itself, not learned from a training: that finds a bandwidth
    alone."""
    figures = calibration.links.get(link)
    return figures is not None and figures.bandwidth is not None and figures.latency is not None


def _link(run: MeasuredRun, which: str) -> str:
    machines = run.case.machines
    link = machines.link if which == "link" else machines.inner
    return link_key(link, machines.device.kind) if link else ""


def _learn_computation(name: str, runs: Sequence[MeasuredRun], calibration: Calibration) -> Calibration:
    """Learn efficiency, then what engines take beyond it on one rank.

    All compute the same, and no engine's own work is less than none. Where one takes less than DDP did, that
    is noise or DDP's own work: its runs count for the efficiency too, and DDP may take something beyond it.
    """
    alone = [run for run in runs if run.case.machines.ranks == 1]
    shown = [run for run in alone if shows_device(run.case)]
    plain = [run for run in shown if spec_of(run.case.spread.engine).plain]
    if not plain:
        return _learn_device(name, shown, calibration)
    engines = {key: each for key, each in calibration.engines.items() if key not in {*map(_engine, runs)}}
    bare = replace(calibration, engines=engines)
    pool, learned = plain, _learn_device(name, plain, bare)
    while below := _below([run for run in runs if run not in pool], learned):
        pool = [*pool, *below]
        learned = _learn_device(name, pool, bare)
    with_own_work = [run for run in alone if run not in plain] if pool == plain else alone
    return _learn_engines(with_own_work, learned)


def _below(runs: Sequence[MeasuredRun], calibration: Calibration) -> list[MeasuredRun]:
    """Return the runs of the engine that took least compared with the prediction, of those that do little but
    compute; none where all took more."""
    beyond: dict[str, list[tuple[MeasuredRun, float]]] = {}
    for run in runs:
        step = predict(run.case, calibration)
        if run.case.spread.offload == "none" and step.communication <= BESIDE * run.seconds:
            beyond.setdefault(_engine(run), []).append((run, run.seconds / step.seconds - 1))
    middles = {name: statistics.median(share for _, share in each) for name, each in beyond.items()}
    least = min(middles, key=middles.__getitem__, default=None)
    if least is None or middles[least] > -CLOSE:
        return []
    return [run for run, _ in beyond[least]]


def _learn_device(name: str, runs: Sequence[MeasuredRun], calibration: Calibration) -> Calibration:
    """Learn efficiency, and constant seconds per micro-step where the runs separate the two."""

    def with_efficiency(value: float) -> Calibration:
        return replace(calibration, efficiency={**calibration.efficiency, name: value})

    calibration = replace(calibration, fixed={k: v for k, v in calibration.fixed.items() if k != name})
    values = [_solve(run, with_efficiency) for run in runs]
    solved = [value for value in values if value is not None]
    if not solved:
        return calibration
    middle = statistics.median(solved)
    works = [ideal(run.case) for run in runs]
    if max(works) >= SPAN * min(works):
        # What is left of each run beside the work that grows is a line in that work.
        left = [_left(run, with_efficiency(middle), middle) for run in runs]
        slope, constant = statistics.linear_regression(works, left)
        if slope > 0 and constant > 0:
            learned = with_efficiency(1 / slope)
            return replace(learned, fixed={**learned.fixed, name: constant})
    return with_efficiency(middle)


def _learn_engines(runs: Sequence[MeasuredRun], calibration: Calibration) -> Calibration:
    """Learn what is left of runs on one host: per micro-step and per optimizer step where their numbers of
    micro-steps differ, else per micro-step alone. Never less than nothing."""
    learned = dict(calibration.engines)
    bare = replace(calibration, engines={})
    for name in dict.fromkeys(_engine(run) for run in runs):
        mine = [run for run in runs if _engine(run) == name]
        steps = [run.case.spread.micro_steps for run in mine]
        left = [run.seconds - predict(run.case, bare).seconds for run in mine]
        per_micro, per_step = statistics.median(x / a for x, a in zip(left, steps, strict=True)), 0.0
        if len(set(steps)) > 1:
            per_micro, per_step = statistics.linear_regression(steps, left)
            if per_micro < 0 or per_step < 0:  # noise: the larger of the two takes all
                over_steps, over_all = sum(map(mul, left, steps)), sum(map(mul, steps, steps))
                per_micro, per_step = (
                    (0.0, statistics.fmean(left)) if per_micro < 0 else (over_steps / over_all, 0.0)
                )
        learned[name] = (max(0.0, per_micro), max(0.0, per_step))
    return replace(calibration, engines=learned)


def _learn_host(name: str, runs: Sequence[MeasuredRun], calibration: Calibration) -> Calibration:
    """Learn how fast a host's memory moves under the optimizer, from runs on a device of known efficiency."""

    def with_share(share: float) -> Calibration:
        return replace(calibration, hosts={**calibration.hosts, name: share * HOST_BANDWIDTH})

    values = []
    for run in runs:
        share = _solve(run, with_share)
        if share is None or not HOST_LEAST <= share * HOST_BANDWIDTH <= HOST_MOST:
            continue
        if predict(run.case, with_share(share)).optimizer >= WORTH * run.seconds:
            values.append(share)
    return with_share(statistics.median(values)) if values else calibration


def _left(run: MeasuredRun, calibration: Calibration, efficiency: float) -> float:
    """Return measured seconds per micro-step without what does not depend on the efficiency."""
    steps = run.case.spread.micro_steps
    rest = predict(run.case, calibration).seconds - steps * ideal(run.case) / efficiency
    return (run.seconds - rest) / steps


def _learn_link(name: str, runs: Sequence[MeasuredRun], calibration: Calibration) -> Calibration:
    """Learn a bandwidth; the link's other measurements stay."""
    before, machines = calibration.links.get(name, LinkFigures()), runs[0].case.machines
    link = machines.link if _link(runs[0], "link") == name else machines.inner
    assert link is not None
    stated = link.stated

    def with_share(share: float) -> Calibration:
        figures = replace(before, bandwidth=share * stated)
        return replace(calibration, links={**calibration.links, name: figures})

    values = []
    for run in runs:
        step = predict(run.case, calibration)
        if step.communication < WORTH * step.seconds and run.seconds < (1 + WORTH) * step.seconds:
            continue
        share = _solve(run, with_share)
        if share is not None:
            values.append(share)
    return with_share(statistics.median(values)) if values else calibration


def _solve(run: MeasuredRun, known_at: Callable[[float], Calibration]) -> float | None:
    """Return the share at which the prediction equals the measurement, by bisection in its logarithm:
    predictions fall with it; None: there is none."""

    def excess(share: float) -> float:
        return predict(run.case, known_at(share)).seconds - run.seconds

    low, high = LEAST, MOST
    if excess(low) < 0 or excess(high) > 0:
        return None
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.sqrt(low * high)


# ----------------------------------------------------------------------------------------------------
# What a run with dynamic padding was about: its batches are as long as their longest sample, not as long as
# samples may be. Pure.
#
# A run tells how many tokens its batches had, and how many operations were counted over them. Its computation
# is taken at the mean lengths, source and target shortened alike, and then with the operations that were
# counted: attention grows with the square of a length, and source and target need not be shortened alike.
# Both together are a few percent; where they are more, the lengths are not known well enough to learn from.

EXACT = 0.1  # by which operations at the mean lengths may miss those that were counted


def at_mean_lengths(recipe: Recipe, result: Result) -> Recipe:
    """Return the recipe with fixed lengths: those that its measured batches had on average, padding included.
    """
    speed = result.throughput
    if speed is None or not recipe.padding_varies:
        return recipe
    longest = recipe.lengths(None)  # whatever it is: both are shortened by the same share
    if longest is None:
        return recipe
    share = speed.padded_tokens_per_second / speed.samples_per_second / longest.all
    tokens, target = (round(share * each) for each in (longest.tokens, longest.target))
    return recipe.with_lengths(replace(longest, tokens=tokens, target=target))


def as_counted(case: StepCase, result: Result) -> StepCase | None:
    """Return the case with the counted operations, and with what moves in proportion; None where none were
    counted, or they are further from those of the case than EXACT."""
    counted, speed = result.flops, result.throughput
    if counted is None or speed is None:
        return None
    a_sample = counted.hardware_per_second * result.world_size / speed.samples_per_second
    work = case.work
    times = a_sample * work.samples / work.flops
    if abs(times - 1) > EXACT:
        return None
    return replace(case, work=replace(work.times(times), operations=work.operations, launches=work.launches))


# ----------------------------------------------------------------------------------------------------
# What a run of the fabric workload teaches about the link between its hosts. Pure.

SHARE = 0.2  # of the largest all-reduce: what an all-gather's message has to have
ALIKE = 0.01  # difference of two messages that count as alike


def link_figures(run: FabricRun, ranks: int) -> LinkFigures:
    """Return the figures with which collective.py predicts what was measured.

    Bandwidth: of the largest all-reduce, by nccl-tests' bus bandwidth, which is a ring's bytes over its time.
    Latency: what a small all-reduce takes on average, less what starting it takes, over a ring's steps. The
    mean, since a step pays for all its calls: a host with a part of a core does most of them at once, and
    waits for its next part with some. What an all-gather gets of the bandwidth: at the largest message that
    both were measured with; gloo's of two ranks does not apply to more, nor the other way round
    (collective.py), while NCCL has a connection for each direction. Raises UsageError where the run has no
    all-reduce.
    """
    reduced = max(run.of("all-reduce"), key=lambda each: each.bytes, default=None)
    if reduced is None:
        raise UsageError("no all-reduce was measured", where="fabric", hint="with more than one rank")
    small = run.latencies[0].typical if run.latencies else None
    steps = RINGS["all-reduce"] * (ranks - 1)
    gather = _gather(run, reduced.bytes)
    shared = SharedLink(
        gather=gather if ranks > 2 or run.backend == "nccl" else None,
        pair_gather=gather if ranks == 2 or run.backend == "nccl" else None,
    )
    if run.beside:
        last = run.beside[-1]
        shared = replace(shared, computing=last.computing, exchanging=last.exchanging, meeting=last.meeting)
    return LinkFigures(
        bandwidth=reduced.busbw,
        latency=None if small is None else max(0.0, small - CALL[run.backend]) / steps,
        beside=shared,
    )


def _gather(run: FabricRun, largest: int) -> float | None:
    """Return the speed of an all-gather relative to an all-reduce of the same size (a rank's part is whole
    elements, so up to some bytes); None where time sufficed for small messages alone, which do not show the
    bandwidth."""
    alike = [
        (each.bytes, each.busbw / other.busbw)
        for each in run.of("all-gather")
        if each.bytes >= SHARE * largest
        for other in run.of("all-reduce")
        if abs(other.bytes - each.bytes) <= ALIKE * each.bytes
    ]
    return max(alike)[1] if alike else None
