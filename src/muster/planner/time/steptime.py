"""How long an optimizer step takes, in parts: computation, waiting for other ranks, the optimizer. Pure.

Computation: products of matrices and fused attention at a share of the device's stated peak, all else at a
share of its stated memory bandwidth, one after the other: eager PyTorch runs them in turn (the roofline of
Williams et al. 2009, summed over kinds of operations instead of its maximum). The shares are those of
reached.py, until a measured run shows how fast the device is (learning.py). Each operation has a small cost
of its own (KERNEL), and on a GPU none starts before Python has asked for it (LAUNCH): small models wait for
that.

Communication: the engine's calls, each a latency per hop and bytes over the slowest link (collective.py),
less what the engine hides behind the computation, which it slows (CONTENDED). All wait for the slowest rank
of each step (STRAGGLING).

Range: the same with shares and costs that are as good and as bad as they may be.

Optimizer: update.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from statistics import NormalDist

from pydantic import NonNegativeFloat, PositiveFloat, with_config

from muster.core import float8
from muster.core.errors import UsageError
from muster.core.hardware.devices import plain_name
from muster.core.hardware.links import LinkFigures, LinkSpec, SharedLink, calibrated
from muster.core.hardware.machines import Machines
from muster.core.section import Part
from muster.core.trace import Parameter, Pass
from muster.engines.base import spec_of
from muster.engines.spread import ModelSpread
from muster.engines.traffic import Call, Passes, Segment, Traffic
from muster.planner.time.collective import library_of, seconds
from muster.planner.time.reached import Utilization, reached
from muster.planner.time.update import HOST_BANDWIDTH, update

# ----------------------------------------------------------------------------------------------------
# How much of what ranks exchange they wait for: a pass played through, computation beside communication.
# Pure.
#
# One call at a time goes over the links, in the order in which they are asked for: NCCL and gloo share a link
# no better, and engines put their calls on one stream per direction. What an engine does not put beside the
# computation, the computation waits for. What is beside it slows it, and is slowed (SharedLink).

Cost = Callable[[Call], float]
UNDISTURBED = SharedLink()


def waited(
    segments: Sequence[Segment],
    computing: float,
    cost: Cost,
    *,
    gathers_hide: bool,
    reduces_hide: bool,
    pace: SharedLink = UNDISTURBED,
) -> float:
    """Return the seconds that a pass takes beyond its own `computing` seconds.

    A segment's gathers are asked for when the segment before it begins (the first one's at once), its reduces
    when it is done; without hiding, when the computation has come there, which then waits.
    """
    if not segments:
        return 0.0
    clock = _Clock(pace)
    whole = sum(segment.share for segment in segments) or 1.0
    ready = [0] * len(segments)  # how many calls must have ended before a segment begins
    if gathers_hide:
        ready[0] = clock.ask(map(cost, segments[0].gathers))
    for index, segment in enumerate(segments):
        if not gathers_hide:
            ready[index] = clock.ask(map(cost, segment.gathers))
        clock.wait(ready[index])
        if gathers_hide and index + 1 < len(segments):
            ready[index + 1] = clock.ask(map(cost, segments[index + 1].gathers))
        clock.compute(computing * segment.share / whole)
        asked = clock.ask(map(cost, segment.reduces))
        if asked and not reduces_hide:
            clock.wait(asked)
    clock.wait(clock.asked)
    return max(0.0, clock.now - computing)


class _Clock:
    """Computation and one queue of calls, each at its pace. Ranks meet where they wait for a call after they
    have computed."""

    def __init__(self, pace: SharedLink) -> None:
        self.pace = pace
        self.now = 0.0
        self.asked = 0
        self._left: list[float] = []  # of the calls that have not ended, in order, at full speed
        self._apart = False

    def ask(self, costs: Iterable[float]) -> int:
        """Queue calls. Return how many calls must have ended for all of these to have; 0: there are none."""
        asked = list(costs)
        self._left += asked
        self.asked += len(asked)
        return self.asked if asked else 0

    def wait(self, ended: int) -> None:
        """Wait until so many calls have ended; nothing is computed meanwhile."""
        pending = len(self._left) - (self.asked - ended)
        if pending <= 0:
            return
        self.now += sum(self._left[:pending])
        if self._apart:
            self.now += self.pace.meeting
            self._apart = False
        del self._left[:pending]

    def compute(self, seconds: float) -> None:
        """Compute for so many seconds at full speed, while queued calls go on."""
        if seconds <= 0:
            return
        self._apart = True
        while self._left and seconds > 0:
            # Until the first call or the computation ends, whichever is first.
            call = self._left[0] / self.pace.exchanging if self.pace.exchanging > 0 else math.inf
            own = seconds / self.pace.computing if self.pace.computing > 0 else math.inf
            step = min(call, own)
            if math.isinf(step):  # neither gets on beside the other: one after the other
                break
            self.now += step
            seconds = 0.0 if own <= call else seconds - step * self.pace.computing
            if call <= own:
                del self._left[0]
            else:
                self._left[0] -= step * self.pace.exchanging
        self.now += max(0.0, seconds)


def traffic_of(parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
    """Return what is exchanged per optimizer step. One rank alone exchanges nothing.

    Raises UsageError for an engine that is not known, or does not declare its traffic.
    """
    engine = spec_of(spread.engine)
    if spread.ranks == 1:
        return Traffic(Passes(), Passes(), (), spread.micro_steps)
    traffic = _exchanged(tuple(parameters), spread)
    if traffic is None:
        raise UsageError(f"what ranks exchange under {engine.name} is unknown")
    return traffic


@lru_cache(maxsize=64)
def _exchanged(parameters: tuple[Parameter, ...], spread: ModelSpread) -> Traffic | None:
    """Return what the engine declares. Cached, since a plan asks several times: usual, better, worse, in
    groups."""
    return spec_of(spread.engine).traffic(parameters, spread)


def lump(count: int) -> tuple[Parameter, ...]:
    """Return trained parameters where only their number is known: twelve layers of about the same size."""
    sizes = [count * (i + 1) // 12 - count * i // 12 for i in range(12)]
    return tuple(Parameter(f"layers.{i}.weight", (s,), True, f"layers.{i}") for i, s in enumerate(sizes))


# ----------------------------------------------------------------------------------------------------
# A step, in parts.

# Seconds that an operation takes beside its work: on a GPU between two kernels, on a CPU for PyTorch to find
# and call it. Usual figures; CPU: measured on a core of an EPYC.
KERNEL = {"cuda": 3e-6, "cpu": 5e-6}
# Seconds until Python has launched an operation, modules and autograd included, and times as many where
# layers are computed again (torch.utils.checkpoint handles each tensor that is kept): benchmarks/launches.py.
LAUNCH, AGAIN = 14e-6, 1.4
COMPILED_LAUNCH = 1 / 3  # of LAUNCH: what a graph's own code takes for a kernel (docs/steptime.md)
CONTENDED = 0.75  # of a GPU's speed while NCCL's kernels run beside, where it was not measured
# Standard deviation of a rank's step, of which all wait for the slowest: 512 H100 keep 97.2 % of one's speed
# on OPT-350m, and the exchange takes a third of what is lost (docs/steptime.md).
STRAGGLING = 0.006
STEPPING = 15e-6  # seconds per tensor that the optimizer takes per step, on a core of an EPYC
SEVERAL = ", several ranks"  # in an engine's key
ALONE = ", operations alone"  # in the key of a computation of which nobody knows what it moves


@dataclass(frozen=True)
class StepWork:
    """A rank's micro-step over `samples`: floating-point operations of the forward pass and of both passes
    (with what checkpointing computes again), and of both those in fused attention, those of them that are
    masked and skipped, those of thin products (core/trace.py), and those in fp8; bytes that thin products
    move, and all else; how many operations there are (0: not known), and what Python takes for them, in
    operations."""

    samples: int
    forward: float
    flops: float
    moved: float = 0.0
    operations: float = 0.0
    attention: float = 0.0
    masked: float = 0.0
    thin: float = 0.0
    thin_moved: float = 0.0
    launches: float = 0.0
    fp8: float = 0.0

    def times(self, share: float) -> StepWork:
        """Return so many times the work, over the same samples."""
        parts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "samples"}
        return replace(self, **{name: share * value for name, value in parts.items()})


@dataclass(frozen=True)
class StepCase:
    """A job whose step is to be predicted. `parameters`: of the model, in its order; `spread.ranks` is taken
    from `machines`. `share`: samples of a rank on average over those of the rank that has most, to which
    `work` belongs; `uncounted`: it computes more than `work` has, as where weights are kept in few bits;
    `compiled`: the model is."""

    machines: Machines
    precision: str
    work: StepWork
    parameters: tuple[Parameter, ...] = field(repr=False)
    spread: ModelSpread
    share: float = 1.0
    uncounted: bool = False
    compiled: bool = False

    @property
    def usual(self) -> Utilization:
        """The shares of its stated figures that the device is taken to reach."""
        return reached(self.machines.device, self.precision, compiled=self.compiled)

    @property
    def placed(self) -> ModelSpread:
        """The spread with as many ranks as there are devices."""
        return replace(self.spread, ranks=self.machines.ranks, device=self.machines.device.kind)

    @property
    def batch(self) -> int:
        """Samples of an optimizer step."""
        return round(self.work.samples * self.share * self.machines.ranks) * self.spread.micro_steps

    def over(self, machines: Machines) -> StepCase:
        """Return the same on other machines."""
        return replace(self, machines=machines)

    def accumulating(self, micro_steps: int) -> StepCase:
        """Return the same with another number of micro-steps."""
        return replace(self, spread=replace(self.spread, micro_steps=micro_steps))


@with_config(Part.model_config)
@dataclass(frozen=True)
class Calibration:
    """What was measured. `efficiency`, `fixed`: by `case_key`, the share of the stated peak that products
    reach (all else in proportion), and constant seconds per micro-step; `engines`: by `engine_key`, what an
    engine's own work takes beyond the prediction, in seconds per micro-step and per optimizer step, on one
    rank and among several (it packs and cuts what they exchange; DeepSpeed gathers nothing on one); `links`:
    by name; `hosts`: by their devices' name, bytes/s of a host's memory under an offloaded optimizer;
    `spreads`: likewise, the standard deviation of hosts' own time for a step, as a share of it."""

    efficiency: Mapping[str, PositiveFloat] = field(default_factory=dict)
    fixed: Mapping[str, NonNegativeFloat] = field(default_factory=dict)
    engines: Mapping[str, tuple[NonNegativeFloat, NonNegativeFloat]] = field(default_factory=dict)
    links: Mapping[str, LinkFigures] = field(default_factory=dict)
    hosts: Mapping[str, PositiveFloat] = field(default_factory=dict)
    spreads: Mapping[str, NonNegativeFloat] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """Seconds of an optimizer step, in parts that add up. `communication`: what ranks wait for; `assumed`:
    what was neither measured nor stated."""

    compute: float
    communication: float
    optimizer: float
    transfer: float
    overhead: float
    samples: int
    assumed: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.communication + self.optimizer + self.transfer + self.overhead

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all ranks together."""
        return self.samples / self.seconds


def key(device: str, precision: str) -> str:
    """Return the key of a device's computation in a Calibration."""
    return f"{device} {precision}"


def case_key(case: StepCase) -> str:
    """Return the key of a job's computation in a Calibration. A share of operations and bytes together does
    not apply to operations alone, which are a part of them."""
    device = case.machines.device
    counted = case.work.moved or not device.bandwidth
    return key(device.name, case.precision) + ("" if counted else ALONE)


def engine_key(case: StepCase, *, several: bool = False) -> str:
    """Return the key of an engine's own work in a Calibration: on one rank, or among `several`."""
    spread = case.spread
    stage = f"-{spread.stage}" if spec_of(spread.engine).stages else ""
    offload = "" if spread.offload == "none" else f" {spread.offload}"
    among = SEVERAL if several else ""
    return f"{key(case.machines.device.name, case.precision)} {spread.engine}{stage}{offload}{among}"


def own_work(case: StepCase, calibration: Calibration) -> float:
    """Return the seconds of an optimizer step that an engine's own work takes beyond the prediction: for
    several ranks from runs on several, or else from those on one."""
    several = case.machines.ranks > 1 and engine_key(case, several=True) in calibration.engines
    per_micro, per_step = calibration.engines.get(engine_key(case, several=several), (0.0, 0.0))
    return case.spread.micro_steps * per_micro + per_step


def work_of(passes: Pass, *, checkpointing: bool = False, compiled: bool = False) -> StepWork:
    """Return a traced pass as work. `compiled`: it was traced compiled."""
    asking = COMPILED_LAUNCH if compiled else AGAIN if checkpointing else 1.0
    return StepWork(
        passes.samples,
        passes.forward_flops,
        passes.flops,
        moved=passes.moved,
        operations=passes.operations,
        attention=passes.attention,
        masked=passes.masked,
        thin=passes.thin,
        thin_moved=passes.thin_moved,
        launches=asking * passes.operations,
    )


def ideal(case: StepCase) -> float:
    """Return the seconds of a micro-step's computation if products reached the stated peak, and all else as
    much more than usual. Raises UsageError where nothing is stated."""
    device, work = case.machines.device, case.work
    usual = case.usual
    peak, few = device.peak(float8.peak_of(case.precision)), device.peak(case.precision)
    if peak is None or few is None:
        can = ", ".join(device.peaks) or "nothing"
        raise UsageError(
            f"{device.name} has no stated peak in {case.precision}",
            where="precision",
            hint=f"it has one in {can}; or by hand: {plain_name(device.name)}{{{case.precision}=TFLOPS}}",
        )
    rest, thin = 0.0, work.thin / peak
    if device.bandwidth:
        moving = usual.products / usual.memory / device.bandwidth
        rest, thin = work.moved * moving, max(thin, work.thin_moved * moving)
    attention = (work.attention - work.masked) / peak * usual.products / usual.attention
    wide = max(0.0, work.flops - work.attention - work.thin - work.fp8) / peak + work.fp8 / (
        float8.REACHED * few
    )
    return wide + attention + thin + rest


@dataclass(frozen=True)
class Conditions:
    """How well things go, compared with what is usual: factors of the shares that devices reach, of what
    Python takes, of a GPU's speed during an exchange, of the links' and a host's memory's bandwidth; `hides`:
    what can hide behind the computation does."""

    reached: float = 1.0
    launching: float = 1.0
    contended: float = CONTENDED
    links: float = 1.0
    host: float = 1.0
    hides: bool = True


USUAL = Conditions()
SURE = 0.04  # what runs of the same job differ by, where the device was measured
UNTRACED = 0.9  # by what share more a step takes, where nobody knows what moves through memory
# Times the bandwidth of a host's memory under an optimizer, where that was not measured: DeepSpeed's CPU Adam
# moves 8.7 GB/s on a core of an EPYC, so that a host of few cores is this slow; of many cores, as fast.
HOST_LEAST, HOST_MOST = 0.2, 2.0
LINKS_OFF = 0.15  # by what share links are better or worse than stated


def computing(case: StepCase, calibration: Calibration, conditions: Conditions = USUAL) -> float:
    """Return the seconds of a micro-step's computation."""
    name, kind = case_key(case), case.machines.device.kind
    share = conditions.reached * calibration.efficiency.get(name, case.usual.products)
    done = ideal(case) / share + KERNEL[kind] * case.work.operations
    if kind == "cuda":
        engine = spec_of(case.spread.engine)
        asked = conditions.launching * (LAUNCH * case.work.launches + _per_tensor(case))
        done = max(done, asked + engine.in_turn(case.spread.stage) * done)
    return done + calibration.fixed.get(name, 0.0)


def waiting_for_slowest(ranks: int) -> float:
    """Return the standard deviations by which the slowest of so many alike ranks is expected to be slower
    than the mean: Blom's approximation (1958) of the largest of so many normal values."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def predict(
    case: StepCase,
    calibration: Calibration | None = None,
    *,
    micro: float | None = None,
    conditions: Conditions = USUAL,
) -> Step:
    """Predict an optimizer step. `micro`: seconds that a micro-step computes, where they are known otherwise.

    Raises UsageError where a figure that it rests on is neither stated nor measured.
    """
    figures = calibration or Calibration()
    machines = measured_links(case.machines, figures, conditions.links)
    traffic, library = traffic_of(case.parameters, case.placed), library_of(machines.device.kind)
    assumed: list[str] = []
    if micro is None and case_key(case) not in figures.efficiency:
        other = key(machines.device.name, case.precision) in figures.efficiency
        but = ", not calibrated for operations alone" if other else ""
        share = case.usual.products
        in_fp8 = f", in fp8 {float8.REACHED * share:.0%}" if case.work.fp8 else ""
        assumed.append(f"products reach {share:.0%} of {machines.device.name}'s stated peak{in_fp8}{but}")
    if micro is None:
        micro = computing(case, figures, conditions)
    straggling = STRAGGLING * waiting_for_slowest(machines.ranks) if library == "nccl" else 0.0
    spread = figures.spreads.get(machines.device.name, 0.0)  # of hosts, each as slow as its slowest rank
    straggling = max(straggling, spread * waiting_for_slowest(machines.hosts))
    costs: dict[Call, float] = {}

    def cost(call: Call) -> float:
        if call not in costs:
            costs[call] = seconds(call, machines, library)
        return costs[call]

    if not conditions.hides:
        traffic = replace(traffic, gathers_hide=False, reduces_hide=False)
    trained = sum(p.numel for p in case.parameters if p.trained)
    learned = figures.hosts.get(machines.device.name)
    optimizer, transfer = update(
        case.placed, machines, trained, traffic, learned, assumed, usual=conditions.host * HOST_BANDWIDTH
    )
    compute = case.spread.micro_steps * micro
    return Step(
        compute=compute,
        communication=_waited(case, traffic, micro, cost, _pace(machines, conditions)) + straggling * compute,
        optimizer=optimizer,
        transfer=transfer,
        overhead=_hooks(case) + own_work(case, figures),
        samples=case.batch,
        assumed=tuple(assumed),
    )


def between(case: StepCase, calibration: Calibration | None = None) -> tuple[float, float]:
    """Return the shortest and the longest seconds that a step may take, in 9 of 10 cases: as the device's
    shares, Python's costs and links may differ from what is usual, less so where they were measured. What
    gathers offloaded parameters may hide nothing, and a host's processors may be slow."""
    figures = calibration or Calibration()
    measured = case_key(case) in figures.efficiency
    off = SURE if measured else case.usual.off
    linked = 0.0 if case.machines.ranks == 1 else LINKS_OFF
    counted = not case.uncounted and case_key(case) == key(case.machines.device.name, case.precision)
    more = off if counted else UNTRACED
    good = Conditions(1 + off, 1 / (1 + 2 * off), (1 + CONTENDED) / 2, 1 + linked, HOST_MOST)
    hides = not case.spread.moves_parameters
    bad = Conditions(1 / (1 + more), 1 + 2 * off, CONTENDED**2, 1 / (1 + linked), HOST_LEAST, hides)
    return predict(case, figures, conditions=good).seconds, predict(case, figures, conditions=bad).seconds


def link_key(link: LinkSpec, device: str) -> str:
    """Return the key of a link in a Calibration: gloo gets less of it than NCCL. `device`: cpu or cuda."""
    return f"{link.name} gloo" if device == "cpu" else link.name


def measured_links(machines: Machines, calibration: Calibration, times: float = 1.0) -> Machines:
    """Return the machines with measured figures of their links. `times`: a factor for those that were not
    measured."""

    def as_measured(link: LinkSpec | None) -> LinkSpec | None:
        name = link_key(link, machines.device.kind) if link is not None else ""
        if link is None or name in calibration.links:
            return link if link is None else calibrated(link, calibration.links[name])
        return replace(link, bandwidth=times * link.bandwidth)

    return replace(machines, link=as_measured(machines.link), inner=as_measured(machines.inner))


def _per_tensor(case: StepCase) -> float:
    """Return the seconds per micro-step in which an engine's own Python handles tensors."""
    return spec_of(case.spread.engine).handling(case.parameters, case.spread.stage)


def _hooks(case: StepCase) -> float:
    """Return the same per optimizer step where nothing else runs meanwhile: on CPUs; and the optimizer's."""
    if case.machines.device.kind == "cuda":
        return 0.0
    stepping = STEPPING * sum(p.trained for p in case.parameters)
    return case.spread.micro_steps * _per_tensor(case) + stepping


def _pace(machines: Machines, conditions: Conditions = USUAL) -> SharedLink:
    """Return what computation and exchange lose to each other on the link that sets the pace."""
    link = machines.link if machines.hosts > 1 else machines.inner
    shared = link.beside if link is not None else UNDISTURBED
    if link is not None and shared == UNDISTURBED and machines.device.kind == "cuda":  # not measured
        return SharedLink(computing=conditions.contended)
    return shared


def _waited(case: StepCase, traffic: Traffic, micro: float, cost: Cost, pace: SharedLink) -> float:
    """Return the seconds that ranks wait for each other in an optimizer step."""
    forward = micro * (case.work.forward / case.work.flops if case.work.flops else 0.0)
    play = partial(
        waited,
        cost=cost, gathers_hide=traffic.gathers_hide, reduces_hide=traffic.reduces_hide, pace=pace,
    )  # fmt: skip
    total = sum(cost(call) for call in traffic.step)
    if traffic.step and case.machines.ranks > 1 and not traffic.last.backward:
        total += pace.meeting  # what follows the passes is where ranks meet
    for passes, times in ((traffic.early, traffic.micro_steps - 1), (traffic.last, 1)):
        if times:
            total += times * (play(passes.forward, forward) + play(passes.backward, micro - forward))
    return total
