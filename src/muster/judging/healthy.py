"""What healthy jobs take, and how far they differ, once the hosts are judged. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from muster.core.robust import MAD
from muster.judging.baseline import FEWEST, Baseline, JobClass
from muster.judging.explain import blamed
from muster.judging.localise import Posterior

PASSED = 4.0  # deviations: a job so far from healthy ones was slowed by something that passed


def healthy_baselines(posterior: Posterior) -> dict[JobClass, Baseline]:
    """Return the baselines with the number and the standard deviation of the jobs that no fault explains and
    that ran on no accused host. Those that a baseline was made from were alike before any host was judged: of
    few jobs, their deviation is too small."""
    hosts, settings = posterior.topology.hosts, posterior.settings
    accused = {name for host, name in enumerate(hosts) if posterior.suspicion(host) >= settings.convict}
    slowed = {posterior.case.readings.source[row] for row in blamed(posterior.parts, settings)}
    times: dict[JobClass, list[float]] = {}
    for source, each in enumerate(posterior.observations):
        if each.seconds and source not in slowed and accused.isdisjoint(each.hosts):
            times.setdefault(JobClass(each.work, len(each.hosts)), []).append(math.log(each.seconds))
    return {key: _of_times(base, times.get(key, [])) for key, base in posterior.baselines.items()}


def _of_times(base: Baseline, values: list[float]) -> Baseline:
    """Return the baseline as it is where it is stored, or the logarithms of times are too few."""
    if base.stored or len(values) < FEWEST:
        return base
    middle = statistics.median(values)
    mad = MAD * statistics.median([abs(value - middle) for value in values])
    kept = [value for value in values if abs(value - middle) <= PASSED * max(mad, base.sigma)]
    if len(kept) < FEWEST:
        return base
    return replace(base, sigma=statistics.stdev(kept), count=len(kept))
