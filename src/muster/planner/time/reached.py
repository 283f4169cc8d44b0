"""What share of their stated figures devices reach, where no run of the user's own has shown it. Pure.

Products of large matrices, fused attention, and what moves through memory are separate: a GPU reaches unlike
shares in them, and models have unlike parts of them. The figures of A100 and H100 in half precision are least
squares over published runs of MPT, Llama and Qwen, and of Hopper compiled by runs of our own
(docs/steptime.md#shares-that-devices-reach); all others are usual ones, and their range says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.hardware.devices import CPU, WIDE, Device


@dataclass(frozen=True)
class Utilization:
    """Shares of the stated peak (`products`, `attention`) and of the stated bandwidth (`memory`). `off`: by
    what share all of them may be higher or lower in 9 of 10 cases."""

    products: float
    attention: float
    memory: float
    off: float


NOMINAL = Utilization(0.6, 0.6, 0.6, 0.5)  # of CPUs, whose peak is none, and of devices given by hand
AMPERE = Utilization(0.66, 0.60, 0.75, 0.15)  # A100
HOPPER = Utilization(0.54, 0.33, 0.60, 0.15)  # H100, H200
# By compute capability, in half precision.
HALF = {
    (7, 0): Utilization(0.55, 0.40, 0.75, 0.3),
    (8, 0): AMPERE,
    (9, 0): HOPPER,
    (10, 0): Utilization(0.50, 0.30, 0.70, 0.3),
}
COMPILED = HALF | {(9, 0): Utilization(0.62, 0.33, 0.50, 0.15)}  # models, by torch.compile
OTHER_HALF = Utilization(0.60, 0.45, 0.75, 0.3)
AMD_HALF = Utilization(0.42, 0.25, 0.65, 0.3)
TF32 = Utilization(0.55, 0.40, 0.75, 0.25)
FP32 = Utilization(0.75, 0.50, 0.75, 0.25)  # without tensor cores
# Where half of the stated units compute integers as well (NVIDIA's GA102 white paper): RTX 30 and later.
FP32_SHARED = Utilization(0.55, 0.40, 0.75, 0.3)
CAPPED = 0.6  # times as much, at a power limit of 150 W or less


def reached(device: Device, precision: str, *, compiled: bool = False) -> Utilization:
    """Return what a device is taken to reach in a precision. `compiled`: the model is, by torch.compile."""
    if device.kind == CPU or device.capability is None:
        return NOMINAL
    if precision in WIDE:
        plain = FP32_SHARED if device.capability in ((8, 6), (8, 9), (12, 0)) else FP32
        shares = TF32 if precision == "tf32" else plain
    elif device.name.startswith("mi"):
        shares = AMD_HALF
    else:
        shares = (COMPILED if compiled else HALF).get(device.capability, OTHER_HALF)
    if not device.power_capped:
        return shares
    return Utilization(CAPPED * shares.products, CAPPED * shares.attention, shares.memory, 0.4)


def speed(device: Device, precision: str) -> float:
    """Return the operations per second that products reach; 0: not stated."""
    return (device.peak(precision) or 0.0) * reached(device, precision).products
