"""Where the time of a training step goes: what a trace of some steps shows, and its words for people."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from muster.core.section import Part
from muster.core.units import format_bytes, format_seconds

BUSY = 0.9  # from this share of the time on the GPU itself is what a step takes
CAUSE = 0.05  # of the time: what a sentence names as a cause of an idle GPU
NAMED = 3  # kernels and waits that a line names; the document has all of them
LONGEST = 60  # characters of a kernel's name on a line


class KernelTime(Part):
    """A kernel of a GPU; where no GPU was traced, an operator on the CPU without those that it calls."""

    name: str
    share: float = Field(description="of the steps' time; kernels that overlap count each")
    calls: float = Field(description="in a step")


class DeviceWait(Part):
    """Calls with which the host waits for the device."""

    call: str = Field(description="the outermost operator around it; none: the runtime's function")
    place: str | None = Field(description="FILE:LINE in Python, outside PyTorch; None: not known")
    calls: float = Field(description="in a step")
    seconds: float = Field(description="that the host waits in a step")
    idle: float = Field(
        description="share of the steps' time in which the GPU has nothing to do, having run dry in this wait"
    )


class StepProfile(Part):
    """A rank's profiled steps. Shares are of the time from the first step's begin, before its batch is
    fetched, to the end of the last one's work on the device."""

    rank: int = 0
    first_step: int
    last_step: int
    step_seconds: float = Field(description="of a profiled step; a profiler makes the host slower")
    usual_seconds: float | None = Field(
        None,
        description="of a step of this run that was not profiled, with as many tokens: the median; None: not "
        "measured",
    )
    busy: float | None = Field(
        description="share in which the GPU runs a kernel or a copy, on any stream; None: none was traced"
    )
    exchanging: float = Field(0.0, description="of that, alone with exchanges with other ranks (NCCL)")
    copying: float = Field(0.0, description="of busy, alone with copies")
    batches: float = Field(
        description="share in which the GPU has nothing to do and the host fetches a batch; without a GPU: "
        "share of fetching"
    )
    launching: float = Field(
        0.0, description="share in which the GPU has nothing to do since the host has not launched it yet"
    )
    between: float = Field(
        0.0, description="share in which no kernel runs although the next one is launched: gaps on the device"
    )
    profiling: float = Field(
        0.0, description="share in which the GPU has nothing to do and the profiler itself keeps the host"
    )
    kernels: list[KernelTime] = Field(description="the ten that take longest")
    launches: float | None = Field(None, description="of kernels or graphs, in a step; None: no GPU")
    waits: list[DeviceWait] = Field(
        default_factory=list, description="each place where the host waits for the device, the longest first"
    )
    copied: dict[str, float] = Field(default_factory=dict, description="bytes of a step by direction")

    @property
    def usually_busy(self) -> float | None:
        """The GPU's share of a step without the profiler, which makes the host slower and no kernel."""
        if self.busy is None or not self.usual_seconds:
            return self.busy
        return min(1.0, max(self.busy, self.busy * self.step_seconds / self.usual_seconds))

    @property
    def verdict(self) -> str:
        """What the profile means, in a sentence that the figures support."""
        longest = self.kernels[0] if self.kernels else None
        if self.busy is None or self.usually_busy is None:
            fetching = f", and {_percent(self.batches)} go into batches" if self.batches >= CAUSE else ""
            first = f": the longest operator is {_short(longest)}" if longest else ""
            return f"no GPU was traced{first}{fetching}"
        busy = f"GPU busy {_percent(self.busy)}"
        if self.usually_busy >= BUSY:
            if self.busy < BUSY:
                busy += f", {_percent(self.usually_busy)} of a step without the profiler"
            why = self._alone() or (f"the longest kernel is {_short(longest)}" if longest else "")
            return f"{busy}: {why}" if why else busy
        if alone := self._alone():
            busy += f" ({alone})"
        causes = [each for each in self._causes() if each[0] >= CAUSE][:2]
        why = " and ".join(f"{what} ({_percent(share)})" for share, what in causes)
        return f"{busy}: {why}" if why else busy

    def _alone(self) -> str:
        """Return what a busy GPU does without computing; "": nothing of note."""
        kinds = [(self.exchanging, "exchanges with other ranks"), (self.copying, "copies")]
        named = [each for each in sorted(kinds, reverse=True) if each[0] >= CAUSE]
        return " and ".join(f"{_percent(share)} are {what} alone" for share, what in named)

    def _causes(self) -> list[tuple[float, str]]:
        """Return why the GPU is idle, with the share of the time: the largest first."""
        causes = [
            (self.batches, "it waits for batches"),
            (self.launching, "the host launches too slowly"),
            (self.profiling, "the profiler itself keeps the host"),
            (self.between, "there are gaps between kernels that are launched already"),
        ]
        for each in self.waits:
            causes.append((each.idle, f"the host waits for the device at {each.place or each.call}"))
        return sorted(causes, key=lambda each: -each[0])

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Name and text of each line for people."""
        last = f" to {self.last_step}" if self.last_step > self.first_step else ""
        usual = f", {format_seconds(self.usual_seconds)} without it" if self.usual_seconds else ""
        took = f"{format_seconds(self.step_seconds)} a step under the profiler{usual}"
        first = f"{self.verdict}; rank {self.rank}, step {self.first_step}{last}, {took}"
        kind = "longest operators" if self.busy is None else "longest kernels"
        kernels = "; ".join(
            f"{_stem(each.name)} {_percent(each.share)}, {_count(each.calls)} a step"
            for each in self.kernels[:NAMED]
        )
        copied = ", ".join(f"{where} {format_bytes(count)}" for where, count in self.copied.items())
        return [
            ("a step", first),
            *([(kind, kernels)] if self.kernels else []),
            *([("launches", f"{_count(self.launches)} a step")] if self.launches is not None else []),
            *([("waits for the device", _waits(self.waits))] if self.busy is not None else []),
            *([("copied", f"{copied} a step")] if self.copied else []),
        ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.2g}"


def _stem(name: str) -> str:
    """Return a kernel's name without its result and arguments, shortened."""
    name = name.removeprefix("void ").partition("(")[0] or name
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _short(kernel: KernelTime) -> str:
    return f"{_stem(kernel.name)} ({_percent(kernel.share)})"


def _waits(waits: Sequence[DeviceWait]) -> str:
    if not waits:
        return "none"
    shown = [
        f"{each.place or 'a line that is not known'} ({each.call}) {_count(each.calls)} a step, "
        f"{format_seconds(each.seconds)}"
        for each in waits[:NAMED]
    ]
    more = f"; {len(waits) - NAMED} more" if len(waits) > NAMED else ""
    return "; ".join(shown) + more
