"""Peaks of devices: what the maker states for a dense matrix product, each with its source, and what hosts
were measured to sustain."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pydantic import TypeAdapter, ValidationError

from muster.core.fabric import Matmul
from muster.core.hardware.devices import driver_device

_MATMULS = TypeAdapter(list[Matmul])


@dataclass(frozen=True)
class Peak:
    """`flops`: operations per second, dense. `source`: the document that states it.

    `power_capped`: its power limit (at most 150 W) lets a sound device sustain far less.
    """

    flops: float
    source: str
    power_capped: bool = False


def stated_peak(device: str, precision: str) -> Peak | None:
    """Return the peak of a device by its driver's name for it, such as "NVIDIA H100 80GB HBM3"; None: not
    known.

    precision: fp32 (no tensor cores), tf32, bf16 or fp16.
    """
    figures = driver_device(device)
    flops = figures.peak(precision) if figures else None
    if figures is None or flops is None:
        return None
    return Peak(flops, figures.source, figures.power_capped)


@dataclass(frozen=True)
class PeakFigure:
    """What a host's devices of one kind sustain in one precision: FLOP/s of a device, their mean."""

    host: str
    device: str  # as the driver names it; of CPUs: the processor
    precision: str
    flops: float
    threads: int | None = None  # of a CPU's rank; None: a GPU

    def is_of(self, device: str) -> bool:
        """Return whether it applies to a device as a rank names it, which is "cpu" on CPUs."""
        return device == self.device if self.threads is None else device == "cpu"


@dataclass(frozen=True)
class MeasuredPeaks:
    """Measured figures of hosts. `source`: what measured them, and when."""

    source: str
    figures: tuple[PeakFigure, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts with a figure."""
        return tuple(dict.fromkeys(each.host for each in self.figures))

    def peak(self, host: str, device: str, precision: str) -> Peak | None:
        """Return the peak of a rank's device, as the rank names it; None: it was not measured."""
        for each in self.figures:
            if (each.host, each.precision) == (host, precision) and each.is_of(device):
                return Peak(each.flops, self.source)
        return None


_MEASURED = TypeAdapter(MeasuredPeaks)


def peaks_in(document: Mapping[str, Any]) -> MeasuredPeaks:
    """Return the figures of a check's document, of a fabric run's result, or of a run that froze them.

    A device whose exact product came out wrong has none. Raises ValueError, worded for users, for any other
    document and for one without figures.
    """
    if "source" in document and "figures" in document:
        try:
            return _MEASURED.validate_python(document)
        except ValidationError:
            raise ValueError("has figures that this version of muster cannot read") from None
    if "summary" in document and "group" in document:
        part, who = document["group"], "muster check"
    elif "status" in document and "fabric" in document:
        part, who = document["fabric"], "muster train fabric"
    else:
        raise ValueError("is neither what `muster check HOSTS --json` prints nor a result.json of a run")
    try:
        matmuls = _MATMULS.validate_python(part["matmul"] if isinstance(part, Mapping) else [])
    except (KeyError, ValidationError):
        raise ValueError("has matrix products that this version of muster cannot read") from None
    figures = _figures(matmuls)
    if not figures:
        raise ValueError("has no measured matrix product")
    return MeasuredPeaks(f"measured by {who}{_on(document.get('ended'))}", figures)


def _figures(matmuls: Sequence[Matmul]) -> tuple[PeakFigure, ...]:
    by_device: dict[tuple[str, str, str, int | None], list[float]] = defaultdict(list)
    for each in matmuls:
        if each.right and 0 < each.sustained < math.inf:
            by_device[each.host, each.device, each.precision, each.threads].append(each.sustained)
    return tuple(
        PeakFigure(host, device, precision, statistics.fmean(rates), threads)
        for (host, device, precision, threads), rates in by_device.items()
    )


def _on(ended: object) -> str:
    """Return the day, in UTC; empty where it is not known."""
    try:
        return f" on {datetime.fromtimestamp(float(str(ended)), timezone.utc):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return ""
