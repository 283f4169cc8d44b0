"""What healthy jobs take, and how far they differ, once the hosts are judged. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.core.robust import MAD
from muster.judging.baseline import FEWEST, TYPICAL, Baseline, JobClass
from muster.judging.explain import blamed
from muster.judging.localise import Posterior
from muster.judging.observation import Observation
from muster.judging.readings import FAR, Readings

PASSED = 6.0  # deviations: a job so far from healthy ones was slowed by something that passed


def healthy_baselines(posterior: Posterior, observations: Sequence[Observation]) -> dict[JobClass, Baseline]:
    """Return the baselines with the median, the number and the standard deviation of the jobs that no fault
    explains and that ran on no accused host. Those that a baseline was made from were alike before any host
    was judged: where there are few jobs, they are the fastest ones, and differ too little. `observations`:
    the posterior's, or the same with the times that they took, where the posterior's are as if every moment
    had been alike."""
    hosts, settings = posterior.topology.hosts, posterior.settings
    accused = {name for host, name in enumerate(hosts) if posterior.suspicion(host) >= settings.convict}
    slowed = {posterior.case.readings.source[row] for row in blamed(posterior.parts, settings)}
    times: dict[JobClass, list[float]] = {}
    for source, each in enumerate(observations):
        if each.seconds and source not in slowed and accused.isdisjoint(each.hosts):
            times.setdefault(JobClass(each.work, len(each.hosts)), []).append(math.log(each.seconds))
    made = {key: _of_times(base, times.get(key, [])) for key, base in posterior.baselines.items()}
    return {
        key: replace(each, seconds=posterior.baselines[key].seconds)  # a usual moment's already
        if key.work in posterior.drifts
        else each
        for key, each in made.items()
    }


def beside_healthy(posterior: Posterior, healthy: Mapping[JobClass, Baseline]) -> Readings:
    """Return the readings of the posterior, with what healthy jobs take for their baselines."""
    readings, usual = posterior.case.readings, posterior.baselines
    off = {kind: math.log(base.seconds / usual[kind].seconds) for kind, base in healthy.items()}
    values = [
        value if readings.failed(row) else value - off.get(readings.kind[row], 0.0)
        for row, value in enumerate(readings.value)
    ]
    return replace(readings, value=values)


def _of_times(base: Baseline, values: list[float]) -> Baseline:
    """Return the baseline as it is where it is stored, or the logarithms of times are too few."""
    if base.stored or len(values) < FEWEST:
        return base
    middle = statistics.median(values)
    mad = MAD * statistics.median([abs(value - middle) for value in values])
    kept = [value for value in values if abs(value - middle) <= PASSED * max(mad, base.sigma)]
    if len(kept) < FEWEST:
        return base
    by = statistics.median(kept) - math.log(base.seconds)
    by = by if abs(by) <= FAR * max(base.sigma, TYPICAL) else 0.0  # most are not healthy
    return Baseline(base.seconds * math.exp(by), statistics.stdev(kept), len(kept))
