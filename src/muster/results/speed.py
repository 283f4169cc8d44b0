"""From windows to a run's speed, and to its share of its devices' peaks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from muster.core import float8
from muster.core.hardware.peaks import Peak, stated_peak
from muster.core.hostlist import fold_hosts
from muster.core.job import Job
from muster.core.measure import Measure
from muster.core.result import Flops, Throughput
from muster.core.robust import halves_of, variation
from muster.store import events
from muster.store.windows import Windows, measured, seconds_of

_BY_HAND = "measure.peak_tflops"


def throughput(windows: Windows, warmup: int, world_size: int) -> Throughput | None:
    """Return samples, tokens and steps per second over the measured windows.

    A window's time is that of the slowest rank. Skipped steps are in none of its figures but `skipped`: the
    meter leaves their seconds out. None where no window is left.
    """
    chosen = measured(windows, warmup, world_size)
    seconds = [seconds_of(each) for each in chosen]
    duration = sum(seconds)
    if duration <= 0:
        return None
    longest = max(each[0].steps for each in chosen)
    even = [
        sum(w.samples for w in each) / s
        for each, s in zip(chosen, seconds, strict=True)
        if s > 0 and each[0].steps == longest
    ]
    course = [s for each in chosen for s in max(each, key=lambda w: w.seconds).step_seconds]
    steps = sorted(course)
    mean = duration / max(1, sum(each[0].steps for each in chosen))
    return Throughput(
        samples_per_second=sum(w.samples for each in chosen for w in each) / duration,
        tokens_per_second=sum(w.tokens for each in chosen for w in each) / duration,
        padded_tokens_per_second=sum(w.padded_tokens for each in chosen for w in each) / duration,
        step_seconds_median=statistics.median(steps) if steps else mean,
        step_seconds_p95=percentile(steps, 0.95) if steps else mean,
        variation=variation(even),
        data_share=_data_share(chosen, duration),
        windows=len(chosen),
        measured_steps=sum(each[0].steps - max(w.skipped for w in each) for each in chosen),
        halves=halves_of(course),
    )


def usual_seconds(windows: Windows, warmup: int, world_size: int, rank: int) -> float | None:
    """Return the seconds of a step that no profiler slowed down: the median, times the tokens of the rank's
    profiled steps over those of its others, padding included: where lengths vary, ten steps may be longer
    than most. None: not measured."""
    chosen = measured(windows, warmup, world_size)
    speed = throughput(windows, warmup, world_size)
    if speed is None:
        return None
    steps = [
        _tokens_of_step([w for each in those for w in each if w.rank == rank and w.profiled == profiled])
        for those, profiled in ((windows, True), (chosen, False))
    ]
    return speed.step_seconds_median * (steps[0] / steps[1] if all(steps) else 1.0)


def _tokens_of_step(windows: Sequence[events.Window]) -> float:
    """Return the mean tokens of a step, padding included; 0 where they are not known."""
    return sum(w.padded_tokens for w in windows) / max(1, sum(w.steps - w.skipped for w in windows))


def flops(
    windows: Windows,
    started: Mapping[int, events.Started],
    counted: Mapping[int, events.FlopsCounted],
    job: Job,
    measure: Measure,
) -> Flops | None:
    """Return model and hardware FLOP/s per device, and both as a share of the devices' peaks.

    Over the windows and the seconds of the throughput. None where a window was not counted; no share where
    the peak of a device is not known: devices of different kinds count against the sum of their peaks.
    """
    over = measured(windows, measure.warmup, job.world_size)
    chosen = [w for each in over for w in each]
    duration = sum(seconds_of(each) for each in over)
    model = [w.model_flops for w in chosen if w.model_flops is not None]
    hardware = [w.hardware_flops for w in chosen if w.hardware_flops is not None]
    if duration <= 0 or not len(model) == len(hardware) == len(chosen):
        return None
    needed, done = (sum(each) / duration / job.world_size for each in (model, hardware))
    peaks = _peaks(started, job, measure)
    peak = statistics.mean(each.flops for _, each in peaks) if peaks else None
    arithmetic = started[0].arithmetic if 0 in started else None
    counted_in = float8.peak_of(arithmetic) if arithmetic else None
    return Flops(
        model_per_second=needed,
        hardware_per_second=done,
        peak=peak,
        peak_source=_source(peaks, job, None if counted_in == arithmetic else counted_in),
        arithmetic=counted_in,
        mfu=needed / peak if peak else None,
        hfu=done / peak if peak else None,
        counting_seconds=max((each.seconds for each in counted.values()), default=None),
    )


def _peaks(started: Mapping[int, events.Started], job: Job, measure: Measure) -> list[tuple[str, Peak]]:
    """Return every rank's host and peak: that of the recipe, else a measured one, else the maker's. Empty
    where one is not known."""
    peaks: list[tuple[str, Peak]] = []
    for place in job.placements:
        for rank in place.ranks:
            peak = _given(measure, place.host) or _known(started.get(rank), place.host, job)
            if peak is None:
                return []
            peaks.append((place.host, peak))
    return peaks


def _given(measure: Measure, host: str) -> Peak | None:
    given = measure.peak_tflops
    tflops = given.get(host) if isinstance(given, Mapping) else given
    return Peak(tflops * 1e12, _BY_HAND) if tflops else None


def _known(started: events.Started | None, host: str, job: Job) -> Peak | None:
    if started is None:
        return None
    arithmetic = float8.peak_of(started.arithmetic or job.precision)
    own = job.peaks.peak(host, started.device, arithmetic) if job.peaks else None
    return own or stated_peak(started.device, arithmetic)


def _source(peaks: Sequence[tuple[str, Peak]], job: Job, other: str | None) -> str | None:
    """Return where the peaks are from; with a document of measured ones, the hosts that it lacks. `other`:
    the precision of the peaks, where the run has another."""
    words = sorted({peak.source for _, peak in peaks})
    if other and any(source != _BY_HAND for source in words):
        words.append(f"the peak in {other}, as MFU of {job.precision} is counted")
    if job.peaks:
        missing = {host for host, peak in peaks if peak.source not in (job.peaks.source, _BY_HAND)}
        words += [f"not measured on {fold_hosts(missing)}"] if missing else []
    return "; ".join(words) or None


def _data_share(chosen: Windows, duration: float) -> float | None:
    """Return the seconds that ranks spend getting batches, of each window the most of a rank, as a share of
    its time.

    None where a window does not state it.
    """
    waits = [[w.data_seconds for w in each if w.data_seconds is not None] for each in chosen]
    if not all(waits):
        return None
    return min(1.0, sum(map(max, waits)) / duration)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` of the ordered values do not exceed (nearest rank)."""
    index = max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))
    return ordered[index]
