"""How long the update of an optimizer step takes: the bytes that it reads and writes over the memory
bandwidth: the device's, or the host's where it is offloaded; then gradients and weights cross the bus as
well. Pure.
"""

from __future__ import annotations

from muster.core.errors import UsageError
from muster.core.hardware.machines import Machines
from muster.engines.base import spec_of
from muster.engines.spread import ModelSpread
from muster.engines.traffic import Traffic

HOST_BANDWIDTH = 50e9  # bytes/s of a host's memory, all its ranks together, where it was not learned
MEMORY = 0.8  # of its stated bandwidth that long sequential reads and writes get
# Bytes per parameter of a rank's part: an optimizer reads gradient, weight and moments (Adam: two) and writes
# all but the gradient back, the norm reads the gradient (4), clipping reads and writes it (8).
GRADIENT, MOMENT = 4 + 4 + 4 + 4 + 8, 8


def update(
    spread: ModelSpread,
    machines: Machines,
    trained: int,
    traffic: Traffic,
    learned: float | None,
    assumed: list[str],
    usual: float = HOST_BANDWIDTH,
) -> tuple[float, float]:
    """Return the seconds of the optimizer, and of what crosses the bus to the host's memory. `trained`:
    parameters; `learned`: bytes/s of a host's memory, all its ranks together, `usual` where it was not
    learned; assumptions are added to `assumed`.

    Raises UsageError where it offloads over a bus that is not known, or to a disk.
    """
    host_bandwidth = usual if learned is None else learned
    engine = spec_of(spread.engine)
    exchanged = engine.exchanged(spread)
    part = trained / engine.optimizer_parts(spread)
    changed = (GRADIENT + spread.moments * MOMENT) * part * (spread.kept / 4)
    device = machines.device
    rate = MEMORY * device.bandwidth if device.bandwidth else None
    copies = engine.copies * exchanged * trained if spread.ranks > 1 else 0.0
    if spread.disk.holds != "none":
        raise UsageError(
            "the speed of the disks that states are offloaded to is unknown",
            where="engine",
            hint="zero_optimization with device: cpu, where hosts have the memory",
        )
    if device.kind == "cpu" and rate is None:
        rate = host_bandwidth / machines.per_host
    if rate is None:
        assumed.append(f"no time for traffic through {device.name}'s memory: its bandwidth is not known")
    done = (changed + copies) / rate if rate else 0.0
    if spread.offload == "none" or device.kind == "cpu":
        return done, 0.0
    if spread.moves_optimizer:
        if learned is None:
            assumed.append(f"a host's memory moves {HOST_BANDWIDTH / 1e9:.0f} GB/s")
        done = (copies / rate if rate else 0.0) + changed * machines.per_host / host_bandwidth
    if machines.bus is None:
        raise UsageError(
            "offloads, and how the device reaches its host's memory is not known",
            where=f"device {device.name}",
            hint="a device of the table, with figures by hand over it: h100{memory=80GB}",
        )
    crossing = exchanged * part * engine.crossings(spread)
    if spread.moves_parameters:
        crossing += sum(
            call.size / (call.group or spread.ranks)
            for call in traffic.calls()
            if call.operation == "all-gather"
        )
    return done, crossing / machines.bus.bandwidth
