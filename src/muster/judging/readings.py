"""From observations to readings: by how much a step was slower than a healthy one, in columns. Pure.

A job gives a reading of its step. Where it reports what each host computed by itself, it gives one more per
host: the host that others wait for waits least inside collectives, and does most outside. Such a reading is
as if the host had run alone, and costs no run; but a hiccup of the run is in both, so it counts for less.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.core.robust import MAD
from muster.judging.baseline import FEWEST, FLOOR, KEPT, Baseline, JobClass, fleet_baselines
from muster.judging.clusters import Clusters, by_baseline
from muster.judging.course import slow_halves
from muster.judging.detrend import Detrended
from muster.judging.noise import PRIOR, RARE, Hiccups, NoiseTail, learn, learn_hiccups
from muster.judging.observation import Link, Observation, Settings, Topology, ring_links

CRASH = 9.2  # a job dies by chance: 1 in 10,000, until more are seen
# The assumption, in jobs: it counts for the fewer the more are seen.
CRASHES, ASSUMED = 0.1, 1000.0
# A job that names a hardware error of its host did not die by chance: one is enough.
HARDWARE = 30.0
STOPS = 4.6  # a job whose log just stops hung, or the log was cut: 1 log in 100
# What a host does by itself can mislead: a hint costs so much less than a hiccup, and weighs no more than
# MISLEADS where it is too fast.
HINT, MISLEADS = 5.2, 4.0
# What a job that runs faster than a fault allows weighs at most: nothing makes jobs faster. Except where each
# host was measured by itself, beside others, and held against what they took: while all of them are slowed
# by the same (a machine that has too little processor time for its virtual ones), a fault hardly shows.
FASTER, BESIDE = 30.0, 9.2
VARIES = 0.1  # a fault's slowdown differs that much, relative to itself, from job to job (partners, load)
FAILED = 100.0  # the reading of a failed job, and what is expected of one: longer than any time
STANDS_OUT = 2.5  # deviations of a normal distribution: what costs as much asks for an explanation
DOUBTFUL = 0.5 * STANDS_OUT**2
A_FEW = 2  # jobs, of which each is to be that slow
CLEARLY = 2.0  # deviations, of the mean of jobs that are slow by the same but for noise
TOGETHER = 3.2  # deviations: jobs of a host that stand out only taken together
FAR = 4.0  # deviations of a normal distribution: no noise, or hardly ever
CLIP = 3.0  # deviations: readings further off tell nothing of how healthy hosts differ
GAP = 5.0  # deviations: hosts behind such a gap are slow, or other hardware
MUCH = 2.0  # times DIFFER: hosts that differ by less are taken to differ as usual
PRIOR_HOSTS = 4  # DIFFER makes what hosts differ by as sure as so many hosts more
TAIL = 2  # hosts that DIFFER counts for in how much it is: few, since others may differ by much more
EFFICIENCY = 0.5  # of a median of variances, as a share of the degrees of freedom of their mean
DIFFER = 0.002  # what hosts usually differ by (64 healthy 8-GPU hosts: 0.0018, with the noise of their jobs)
_DIFFERENCES = tuple(DIFFER * 1.25**i for i in range(-4, 26))  # 0.08 to 53 %
_NOISES = tuple(1.25**i for i in range(-6, 7))  # times what the jobs of hosts show
MOST_HICCUPS = 0.1  # of jobs; what is more frequent is no hiccup
MOST = 12  # readings of a host that are compared with each other
APART = 4.0  # standard deviations of hosts: that far from its peers a healthy one hardly is (1 in 30,000)


@dataclass
class Readings:
    """One row per reading, in columns. `value`: log(time / healthy time), FAILED of a job that failed;
    `sigma`: its deviation; `most`: of a failure, what it weighs at most; of a time, what is taken off a
    hiccup's cost; `least`: what a reading below the expected one can weigh at most; `alone`: of one host,
    without the network; `hint`: of what a host did within a job; `source`: which observation; `kind`: which
    class. `half`: those of jobs that were slow in one half. `hiccups`: what slows jobs and does not last;
    `only`: the one reading that they were learned from, to which they do not apply. `slow`, `fast`: the noise
    on either side. `spread`: by work, the standard deviation of what healthy hosts differ by; `freedom`: its
    degrees of freedom, where a few hosts show it. `clusters`: of classes of which some jobs are faster."""

    value: list[float] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    hint: list[bool] = field(default_factory=list)
    hosts: list[tuple[int, ...]] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    kind: list[JobClass] = field(default_factory=list)
    of_host: dict[int, list[int]] = field(default_factory=dict)
    hiccups: Hiccups = RARE
    only: int | None = None
    half: set[int] = field(default_factory=set)
    slow: NoiseTail = PRIOR
    fast: NoiseTail = PRIOR
    spread: dict[str, float] = field(default_factory=dict)
    freedom: dict[str, float] = field(default_factory=dict)
    clusters: Mapping[JobClass, Clusters] = field(default_factory=dict)

    def add(
        self,
        hosts: tuple[int, ...],
        value: float,
        sigma: float,
        source: int,
        kind: JobClass,
        most: float = 0.0,
        least: float = FASTER,
        hint: bool = False,
    ) -> None:
        """Add a reading; `alone` follows from the number of hosts."""
        row = len(self.value)
        self.value.append(value)
        self.sigma.append(sigma)
        self.most.append(most)
        self.least.append(least)
        self.alone.append(len(hosts) == 1)
        self.hint.append(hint)
        self.hosts.append(hosts)
        self.source.append(source)
        self.kind.append(kind)
        for host in hosts:
            rows = self.of_host.get(host)
            if rows is None:
                self.of_host[host] = [row]
            else:
                rows.append(row)

    def links(self, row: int) -> tuple[Link, ...]:
        """Return the links of the job's ring."""
        return ring_links(self.hosts[row])

    def failed(self, row: int) -> bool:
        """Return whether it is of a job that failed."""
        return self.value[row] >= FAILED

    def broken(self, row: int) -> bool:
        """Return whether it is of a job that named broken hardware of its hosts."""
        return self.failed(row) and self.most[row] >= HARDWARE

    def deviations(self, row: int) -> float:
        """Return how far it is from healthy, in deviations."""
        return self.value[row] / self.sigma[row]

    def loss(self, row: int, expected: float) -> float:
        """Return minus the log likelihood, up to a constant, where a slowdown (or FAILED) is expected."""
        value, sigma = self.value[row], self.sigma[row]
        if value >= FAILED:
            return 0.0 if expected >= FAILED else self.most[row]
        if expected >= FAILED:
            return self.least[row]
        off = value - expected
        cost = 0.0
        wide = sigma
        if expected:
            wide = math.sqrt(sigma * sigma + (VARIES * expected) ** 2)
            cost = math.log(wide / sigma)
        if off <= 0.0:
            return min(cost + self.fast.cost(-off / wide), self.least[row])
        hiccups = RARE if row == self.only else self.hiccups
        hiccup = hiccups.cost(off, sigma) - self.most[row]
        return min(cost + self.slow.cost(off / wide), hiccup)


def _times(
    observations: Sequence[Observation], without: Mapping[JobClass, frozenset[str]]
) -> tuple[dict[JobClass, list[float]], dict[JobClass, int]]:
    """Return seconds by class, of steps and of what hosts did outside collectives; and from how many hosts.
    `without`: hosts whose jobs are left out."""
    times: dict[JobClass, list[float]] = {}
    hosts: dict[JobClass, set[str]] = {}
    for each in observations:
        if each.seconds is None or not each.outcome.good:
            continue
        size = len(each.hosts)
        key = JobClass(each.work, size)
        if not without or without.get(key, frozenset()).isdisjoint(each.hosts):
            times.setdefault(key, []).append(each.seconds)
            hosts.setdefault(key, set()).update(each.hosts)
        if each.computing and size > 1:
            key = JobClass(each.work, size, "busy")
            times.setdefault(key, []).extend(busy for busy in each.computing if busy > 0)
            hosts.setdefault(key, set()).update(each.hosts)
    for key in without:
        times.setdefault(key, [])
        hosts.setdefault(key, set())
    return times, {key: len(names) for key, names in hosts.items()}


def _baselines(
    observations: Sequence[Observation], topology: Topology, stored: Mapping[JobClass, Baseline] | None
) -> tuple[dict[JobClass, Baseline], dict[JobClass, Clusters]]:
    """Return the baseline of every class. Where all jobs that look normal have a host in common, and others
    are faster or there are none, it may be this host that is not normal: then from the jobs without it.
    The classes of which some jobs are faster, and few hosts tell which, are returned too."""
    steps: dict[JobClass, list[tuple[float, frozenset[str]]]] = {}
    for each in observations:
        if each.seconds is not None and each.outcome.good:
            key = JobClass(each.work, len(each.hosts))
            steps.setdefault(key, []).append((each.seconds, frozenset(each.hosts)))
    without: dict[JobClass, frozenset[str]] = {}
    while True:
        times, counts = _times(observations, without)
        baselines = fleet_baselines(times, stored, counts)
        left = len(without)
        for key, base in baselines.items():
            if base.stored or key not in steps or key in without:
                continue
            reach = math.exp(KEPT * base.sigma)
            kept = [hosts for seconds, hosts in steps[key] if 1 / reach <= seconds / base.seconds <= reach]
            common = frozenset.intersection(*kept) if kept else frozenset[str]()
            others = [seconds for seconds, hosts in steps[key] if not common & hosts]
            if common and (not others or min(others) * reach < base.seconds):
                without[key] = common
        if len(without) == left:
            break
    clusters: dict[JobClass, Clusters] = {}
    for key, jobs in steps.items():
        usual = baselines.get(key)
        if usual is None or usual.stored or key.size == 1 or key in without:
            continue
        seconds = [each for each, _ in jobs]
        made = by_baseline(seconds, [hosts for _, hosts in jobs], usual, topology)
        if made is not None:
            clusters[key] = made
            baselines[key] = made.baseline(seconds, usual) if made.sure else usual
    return baselines, clusters


def read(
    detrended: Detrended,
    topology: Topology,
    stored: Mapping[JobClass, Baseline] | None = None,
) -> tuple[Readings, dict[JobClass, Baseline]]:
    """Return readings of all observations that can be compared with something, and the baselines used. Jobs
    with a host that is not in the topology help to make the baselines, no more."""
    fleet, clusters = _baselines(detrended.observations, topology, stored)
    baselines = {
        key: replace(base, seconds=base.seconds * math.exp(detrended.usual.get(key, 0.0)))
        for key, base in fleet.items()
    }
    halves = slow_halves(detrended.observations, baselines)
    index = topology.index
    rows = Readings(clusters=clusters)
    for number, (each, doubt) in enumerate(zip(detrended.observations, detrended.doubts, strict=True)):
        if any(host not in index for host in each.hosts):
            continue
        hosts = tuple([index[host] for host in each.hosts])
        kind = JobClass(each.work, len(hosts))
        if not each.outcome.good or each.seconds is None:
            weight = HARDWARE if each.hardware else STOPS if each.stops else CRASH
            culprits: list[tuple[int, ...]] = [(index[host],) for host in each.culprits if host in index]
            for of in culprits or [hosts]:
                rows.add(of, FAILED, 1.0, number, kind, weight)
            continue
        base = baselines.get(kind)
        if base is not None:
            value = math.log(each.seconds / base.seconds)
            sigma = max(base.sigma, each.spread or 0.0)  # no better known than its own steps are
            if number in halves:
                rows.half.add(len(rows.value))
                value, sigma = halves[number]
            sigma = math.sqrt(sigma * sigma + doubt) if doubt else sigma
            least = BESIDE if each.moment and len(hosts) == 1 else FASTER
            rows.add(hosts, value, sigma, number, kind, 0.0, least)
        if each.computing and len(hosts) > 1:
            kind = JobClass(each.work, len(hosts), "busy")
            base = baselines.get(kind)
            for host, busy in zip(hosts, each.computing, strict=True):
                if base is not None and busy > 0:
                    sigma = math.sqrt(base.sigma * base.sigma + doubt) if doubt else base.sigma
                    value = math.log(busy / base.seconds)
                    rows.add((host,), value, sigma, number, kind, HINT, MISLEADS, hint=True)
    _learn_noise(rows, topology)
    _learn_crashes(rows)
    rows.spread = _spreads(rows)
    for work, levels in _levels(rows).items():
        middle, differ, freedom = _differ(*levels)
        if differ > max(MUCH * DIFFER, rows.spread.get(work, 0.0)):
            rows.spread[work], rows.freedom[work] = differ, freedom
            # Of hosts that differ, the baseline is that of a few which happen to be alike.
            kind = JobClass(work, 1)
            baselines[kind] = replace(baselines[kind], seconds=baselines[kind].seconds * math.exp(middle))
            for row, alone in enumerate(rows.alone):
                if alone and rows.kind[row] == kind and not rows.failed(row):
                    rows.value[row] -= middle
    return rows, baselines


def _learn_crashes(rows: Readings) -> None:
    """Learn how often jobs die by chance: from those whose hosts have others, none of which did. A single one
    does not count, since it would be learned from itself."""
    chance = [row for row, most in enumerate(rows.most) if rows.failed(row) and most < HARDWARE]
    died = Counter((host, rows.source[row]) for row in chance for host in rows.hosts[row])
    times = Counter(host for host, _ in died)
    seen = {
        rows.source[row]
        for row in chance
        if all(times[host] == 1 and len(rows.of_host[host]) > 1 for host in rows.hosts[row])
    }
    more = len(seen) - 1
    if more > 0:
        rate = (CRASHES + more) / (ASSUMED / (1 + more) + len(set(rows.source)))
        for row in chance:
            rows.most[row] = min(rows.most[row], -math.log(rate))


def _learn_noise(rows: Readings, topology: Topology) -> None:
    """Learn the tails, from jobs in groups. On the slow side, only what no host, link or switch of the job
    explains counts: a host whose jobs are all slow is no noise."""
    groups = [row for row, hosts in enumerate(rows.hosts) if len(hosts) > 1 and not rows.failed(row)]
    shared: dict[tuple[str, int, int], list[int]] = {}
    of_row = {row: _shared(rows, row, topology) for row in groups}
    for row in groups:
        for one in of_row[row]:
            shared.setdefault(one, []).append(row)
    usual: dict[tuple[str, int, int], float] = {}
    for one, own in shared.items():
        deviations = [rows.deviations(row) for row in own]
        mean = sum(deviations) / len(deviations)
        # By the same, give or take what noise makes: at a high noise, one of six jobs may look normal. More
        # than that is a host whose jobs scatter.
        apart = max(max(deviations) - mean, mean - min(deviations))
        alike = min(deviations) > 0.5 * mean or (mean > CLEARLY and apart < STANDS_OUT)
        if len(deviations) > 1 and mean * math.sqrt(len(deviations)) > TOGETHER and alike:
            usual[one] = mean
    off = {row: rows.deviations(row) - max([usual.get(one, 0.0) for one in of_row[row]]) for row in groups}
    again = [row for row in groups if all(len(shared["host", host, 0]) > 1 for host in rows.hosts[row])]
    rows.slow = learn([off[row] for row in again if off[row] > 0])
    rows.fast = learn([-rows.deviations(row) for row in groups if rows.deviations(row) <= 0])
    alone = [row for row, one in enumerate(rows.alone) if one and not (rows.failed(row) or rows.hint[row])]
    off |= {row: rows.deviations(row) for row in alone}
    _learn_hiccups(rows, off, again)


def _learn_hiccups(rows: Readings, off: Mapping[int, float], again: Collection[int]) -> None:
    """Learn from jobs, in groups or alone, that were far `off` though no other one of their hosts was.
    `again`: groups whose hosts have others; alone, others of the same work. Those whose hosts met a second
    one by chance are not seen: of a share r of hiccups, a job with n others of its hosts is seen with a
    probability of r (1 - r)^n."""
    beyond = {row for row, by in off.items() if by > FAR and rows.slow.cost(by) > 0.5 * FAR**2}
    far: dict[int, int] = {}
    jobs: dict[int, int] = {}
    for row in off:
        for host in rows.hosts[row]:
            jobs[host] = jobs.get(host, 0) + 1
            far[host] = far.get(host, 0) + (row in beyond)
    alike = Counter((rows.hosts[row], rows.kind[row].work) for row in off if rows.alone[row])
    lone = {
        *again,
        *(row for row in off if rows.alone[row] and alike[rows.hosts[row], rows.kind[row].work] > 1),
    }
    seen = [row for row in sorted(lone) if row in beyond and all(far[h] == 1 for h in rows.hosts[row])]
    others = Counter(sum(jobs[host] - 1 for host in rows.hosts[row]) for row in lone)
    share = 0.0
    for _ in range(8 if seen else 0):
        share = min(MOST_HICCUPS, len(seen) / sum(count * (1.0 - share) ** n for n, count in others.items()))
    rows.only = seen[0] if len(seen) == 1 else None
    rows.hiccups = learn_hiccups(
        [(rows.value[row], rows.sigma[row]) for row in seen], len(off), share * len(off)
    )


def _shared(rows: Readings, row: int, topology: Topology) -> list[tuple[str, int, int]]:
    """Return what a job shares with others, that may slow all of them: hosts, links, switches and their
    uplinks."""
    hosts = rows.hosts[row]
    shared = [("host", host, 0) for host in hosts]
    shared += [("link", a, b) for a, b in rows.links(row)]
    behind = {topology.behind[host] for host in hosts}
    shared += [("switch", switch, 0) for switch in behind if switch >= 0]
    if len(behind) > 1:
        shared += [("uplink", switch, 0) for switch in behind if switch >= 0]
    return shared


def _spreads(rows: Readings) -> dict[str, float]:
    """Return, by work, what healthy hosts differ by for good: two jobs of one host are slow together by it.
    From the products of their readings, drawn towards what is usual where these are few."""
    sums: dict[str, tuple[float, float]] = {}
    for own in rows.of_host.values():
        if len(own) < 2:
            continue
        good = [row for row in own if not rows.hint[row] and abs(rows.deviations(row)) < CLIP][:MOST]
        for place, row in enumerate(good):
            for other in good[:place]:
                work = rows.kind[row].work
                if rows.kind[other].work != work:
                    continue
                common = _in_common(len(rows.hosts[row]), len(rows.hosts[other]))
                both = rows.sigma[row] * rows.sigma[other]
                product, weight = sums.get(work, (0.0, 0.0))
                weight_here = common / (both * both)
                product += weight_here * rows.value[row] * rows.value[other]
                sums[work] = (product, weight + weight_here * common)
    prior = DIFFER**-4
    spreads = {}
    for work, (product, weight) in sums.items():
        square = (product + prior * DIFFER**2) / (weight + prior)
        spreads[work] = math.sqrt(max(square, FLOOR**2))
    return spreads


def _levels(rows: Readings) -> dict[str, tuple[list[float], float, float]]:
    """Return, by work, the sorted usual readings of hosts that ran it alone twice or more, where there are
    FEWEST of them, the standard error of one, and the degrees of freedom of that."""
    of_work: dict[str, list[list[float]]] = {}
    for own in rows.of_host.values():
        works: dict[str, list[float]] = {}
        for row in own:
            if rows.alone[row] and not (rows.hint[row] or rows.failed(row)):
                works.setdefault(rows.kind[row].work, []).append(rows.value[row])
        for work, values in works.items():
            if len(values) > 1:
                of_work.setdefault(work, []).append(values)
    levels = {}
    for work, hosts in of_work.items():
        if len(hosts) >= FEWEST:
            noise = statistics.median([statistics.variance(values) for values in hosts])
            few = statistics.median([len(values) for values in hosts])
            # The median variance of so few is low (chi-squared, Wilson and Hilferty), a median's is high.
            noise *= (1.0 - 2.0 / (9.0 * (few - 1))) ** -3 * (math.pi / 2 if few > 2 else 1.0) / few
            usual = sorted([statistics.median(values) for values in hosts])
            levels[work] = usual, math.sqrt(noise), EFFICIENCY * len(hosts) * (few - 1)
    return levels


def _differ(levels: Sequence[float], noise: float, freedom: float) -> tuple[float, float, float]:
    """Return the median host, what hosts differ by for good (a standard deviation), and its degrees of
    freedom: by the median of how far they are from their median, so that less than half of them may be slow.
    Those behind a gap are left out, where some are before it and close together. `noise`: the standard error
    of a host's level; `freedom`: its degrees of freedom."""
    for count in range(max(FEWEST, len(levels) // 6), len(levels)):
        gap = levels[count] - levels[count - 1]
        # Few gaps are wide enough to ask for a deviation, which takes all hosts before it.
        if gap > GAP * max(noise, FLOOR) and gap > GAP * statistics.pstdev(levels[:count]):
            levels = levels[:count]
            break
    middle = statistics.median(levels)
    scale = MAD * statistics.median([abs(level - middle) for level in levels])
    weight = len(levels) - 1
    return middle, _beyond_noise(scale, weight, max(noise, FLOOR / 10), freedom), weight + PRIOR_HOSTS


def _beyond_noise(scale: float, weight: float, noise: float, freedom: float) -> float:
    """Return the deviation of hosts whose levels have this one, with the noise of their jobs in it: the mean
    of the variance, over all that the two estimates leave possible (each scaled chi-squared, with `weight`
    and `freedom` degrees of freedom), where TAIL hosts that differ as usual are assumed beforehand."""
    weights: list[float] = []
    for own in _DIFFERENCES:
        assumed = -TAIL * math.log(own / DIFFER) - 0.5 * TAIL * (DIFFER / own) ** 2
        for times in _NOISES:
            square = own * own + (times * noise) ** 2
            fits = -0.5 * weight * (math.log(square) + scale * scale / square)
            weights.append(assumed + fits - freedom * math.log(times) - 0.5 * freedom / times**2)
    most = max(weights)
    likely = [math.exp(each - most) for each in weights]
    squares = [own * own for own in _DIFFERENCES for _ in _NOISES]
    return math.sqrt(sum([a * b for a, b in zip(likely, squares, strict=True)]) / sum(likely))


def reach(rows: Readings, work: str) -> float:
    """Return the distance from its peers that a healthy host hardly ever has: as rare as APART deviations of
    a normal distribution; of Student's, where a few hosts show the deviation (Abramowitz and Stegun,
    26.7.5)."""
    z, freedom = APART, rows.freedom.get(work, math.inf)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return rows.spread.get(work, 0.0) * (z + sum(term / freedom**n for n, term in enumerate(terms, 1)))


def _in_common(size: int, other: int) -> float:
    """Return the covariance of the slowest of two groups of hosts that share one, in variances of a host.
    Exact for a host alone with a group (1/n); else the mean of its bounds."""
    return 0.5 * (1.0 / (size * other) + 1.0 / (size + other - 1))


# The mean of the largest of n standard normal numbers.
_LARGEST = (0.0, 0.0, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424)


def own_share(rows: Readings, row: int) -> tuple[float, float]:
    """Return what healthy hosts of the reading's work differ by, and how much slower than a typical host the
    slowest of a group is for it."""
    spread = rows.spread.get(rows.kind[row].work, 0.0)
    size = len(rows.hosts[row])
    largest = _LARGEST[size] if size < len(_LARGEST) else math.sqrt(2.0 * math.log(size)) - 0.4
    return spread, spread * largest


def smallest(readings: Readings, rows: Sequence[int], settings: Settings) -> float:
    """Return the smallest slowdown (log) that these readings may be called slow for: what was asked for, but
    never less than noise makes of a few jobs (of more, the less: by the root of their number), or than
    healthy hosts differ by."""
    noise = min([readings.sigma[row] for row in rows], default=0.0)
    noise *= math.sqrt(A_FEW / max(A_FEW, len(rows)))
    works = {readings.kind[row].work for row in rows} if readings.spread else ()
    differ = max([reach(readings, work) for work in works], default=0.0)
    return max(math.log1p(settings.slow), STANDS_OUT * noise, differ)
