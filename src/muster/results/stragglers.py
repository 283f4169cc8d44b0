"""Find the host that holds a job up while it runs. Pure: events in, findings out.

Ranks that train together take the same time for a step. They differ in what each does itself and in how long
it waits for the others: the host that the others wait for waits least. There are three sources, each
compared in moments for which all hosts have values:
  - windows of steps: their seconds without those in which the rank waited for others. Of programs that report
    phases alone: getting batches and forward passes, which exchange nothing; of GPUs: forward passes;
  - on CPUs the kernel: in how much of the time a rank ran or wanted to;
  - of links, the seconds that each byte was on its way, wherever TCP carries them.

In a moment a host is compared with the median of the other hosts. It is named where the median over the
moments is large, and significantly so: by its own scatter and by that of all hosts, each estimated robustly
(MAD). What disturbs a host lasts longer than a moment, so moments count for fewer independent ones.
"""

from __future__ import annotations

import math
import operator
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.core.job import Job
from muster.core.result import KERNEL, LEAST, Pace, Straggler
from muster.core.robust import deviation
from muster.store import events
from muster.store.windows import seconds_of

KEPT = 24  # moments that are looked back at
FEWEST = 5  # of them, before anybody is named
LEAST_OF_MANY = 0.02  # of a step, among four hosts and more, which show what healthy ones differ by
APART = 4.0  # deviations of what hosts differ by
ENOUGH = 0.9  # of the hosts: a moment of which so many told counts
OFTEN = 0.8  # of the moments in which it is slower than the others
CHANCE = 0.001  # that a healthy host of a job is named, were noise normal
GONE = 8  # moments in which it was not found, until a host is slow no more
ALIKE = 0.5, 4  # what moments are taken to have in common with the ones before, and the moments that count so
MOST_SHARE = 0.999  # of a step that a host can cost
LINK = 0.15  # longer for each byte: links differ by less
LIKE = 1.5  # times the bytes of others: what carries more or less of them is no like, and not compared
MOMENTS = 8  # in which a link was used, before it is named
USED = 0.05  # of the time: a link that carries less tells nothing
MANY = 100  # hosts: of more, links are not compared in each moment, since that takes a second
TOLD_BYTES = 1 << 18  # of a link in a moment
WINDOWS = "windows of steps"

Shares = dict[str, float]  # host -> its own time in a moment, as a share of the moment


@dataclass
class _Moments:
    """The hosts' values in the last moments; a moment is complete when all have one."""

    hosts: int
    shares: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, moment: int, host: str, share: float) -> None:
        self.shares.setdefault(moment, defaultdict(list))[host].append(share)
        while len(self.shares) > KEPT + 2:
            self.shares.pop(min(self.shares))

    def complete(self) -> list[Shares]:
        """Return the moments for which nearly all hosts have values, the oldest first."""
        return [
            {host: max(shares) for host, shares in by_host.items()}
            for _, by_host in sorted(self.shares.items())
            if len(by_host) >= max(2, ENOUGH * self.hosts)
        ][-KEPT:]


def lasting(series: Iterable[Sequence[float]]) -> float:
    """Return the factor for errors: few moments estimate their own scatter badly, and each is like the one
    before it, as far as all series together show and one deviation of that."""
    count, shown, alike = 0, 0, []
    for each in series:
        middle, scale = statistics.median(each), 3 * deviation(each)
        clipped = [min(max(value - middle, -scale), scale) for value in each]
        squares = math.fsum(value * value for value in clipped)
        alike.append(math.fsum(map(operator.mul, clipped, clipped[1:])) / squares if squares else 0.0)
        count, shown = max(count, len(each)), shown + len(each)
    usual, weight = ALIKE
    likeness = (count * statistics.median(alike) + weight * usual) / (count + weight)
    likeness = min(max(0.0, likeness + 1 / math.sqrt(max(count, shown - count))), 0.9)
    return math.sqrt((1 + likeness) / (1 - likeness)) * count / max(1, count - 3)


@dataclass(frozen=True)
class Excess:
    """A host's own time above the others', as a share of the step."""

    host: str
    share: float
    error: float
    often: float  # of the moments in which it is above
    slower: float  # relative to the others' own time


def excesses(moments: Sequence[Shares]) -> list[Excess]:
    """Compare each host with the median of the others."""
    over: dict[str, list[float]] = defaultdict(list)
    ratio: dict[str, list[float]] = defaultdict(list)
    for shares in moments:
        ordered = sorted(shares.values())
        for host, share in shares.items():
            others = _median_without(ordered, share)
            over[host].append(share - others)
            ratio[host].append(share / max(others, 1 - MOST_SHARE) - 1)
    noise = statistics.median(deviation(each) for each in over.values())
    times = 1.2533 * lasting(over.values())  # of a median of normal values
    return [
        Excess(
            host,
            statistics.median(each),
            times * max(noise, deviation(each)) / math.sqrt(len(each)),
            sum(value > 0 for value in each) / len(each),
            statistics.median(ratio[host]),
        )
        for host, each in over.items()
        if 2 * len(each) > len(moments)  # that tells of most
    ]


def _median_without(ordered: Sequence[float], value: float) -> float:
    place = bisect_left(ordered, value)
    count = len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return 0.5 * sum(ordered[each + (each >= place)] for each in (low, high))


def slow_hosts(moments: Sequence[Shares]) -> list[Excess]:
    """Return the hosts that significantly hold the others up, the worst first."""
    if len(moments) < FEWEST or len(moments[0]) < 2:
        return []
    excess = excesses(moments)
    many = len(excess) > 3
    usual = deviation([each.share for each in excess]) if many else 0.0
    least = max(LEAST_OF_MANY if many else LEAST, APART * usual)
    sure = statistics.NormalDist().inv_cdf(1 - CHANCE / len(excess))
    slow = [
        each
        for each in excess
        if longer(each.share) >= least and each.share - sure * each.error > least / 2 and each.often >= OFTEN
    ]
    return sorted(slow, key=lambda each: -each.share)


def longer(share: float) -> float:
    """Return by how much a step is longer for this share of it."""
    share = min(share, MOST_SHARE)
    return share / (1 - share)


# --- links -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkSpeed:
    """A link over the moments: log of seconds a byte, its error, and the share of the time it was busy."""

    ends: tuple[str, str]
    slowness: float
    error: float
    busy: float

    @property
    def carried(self) -> float:
        """Its bytes, as a share of the time."""
        return self.busy * math.exp(-self.slowness)


def link_speeds(moments: Iterable[Mapping[tuple[str, str], tuple[float, float]]]) -> list[LinkSpeed]:
    """Return the speeds of the links that carry most of a moment's bytes. `moments`: ends -> (seconds a byte,
    busy share)."""
    values: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each in moments:
        for ends, speeds in each.items():
            values[ends].append(speeds)
    logs = {
        ends: [math.log(slow) for slow, _ in speeds]
        for ends, speeds in values.items()
        if len(speeds) >= MOMENTS and statistics.median(busy for _, busy in speeds) >= USED
    }
    times = 1.2533 * lasting(logs.values()) if logs else 0.0
    return [
        LinkSpeed(
            ends,
            statistics.median(each),
            times * deviation(each) / math.sqrt(len(each)),
            statistics.median(busy for _, busy in values[ends]),
        )
        for ends, each in logs.items()
    ]


def slow_link(links: Sequence[LinkSpeed]) -> Straggler | None:
    """Return the host whose links are all slower than the rest, or the two hosts whose link alone is: the
    slowest link has it at one end, or both. None: there is no such host, or nothing to compare with."""
    if not links:
        return None
    slowest = sorted(max(links, key=lambda link: link.slowness).ends)
    suspects = [_slower(ends, links) for ends in ([slowest[0]], [slowest[1]], slowest)]
    return max((each for each in suspects if each), key=lambda each: each.cost, default=None)


def _slower(ends: list[str], links: Sequence[LinkSpeed]) -> Straggler | None:
    """Return what these ends' links cost, where all are slower than all others."""
    mine = [link for link in links if set(ends) <= set(link.ends)]
    rest = [link for link in links if not set(ends) <= set(link.ends)]
    pairs, others = ({frozenset(link.ends) for link in which} for which in (mine, rest))
    if len(pairs if len(ends) == 1 else others) < 2 or not others:
        return None
    carried: dict[tuple[str, ...], float] = defaultdict(float)
    for link in links:
        for who in [(end,) for end in link.ends] if len(ends) == 1 else [tuple(sorted(link.ends))]:
            carried[who] += link.carried
    own = carried.pop(tuple(ends))
    if not 1 / LIKE < own / statistics.median(carried.values()) < LIKE:
        return None
    fastest = min(mine, key=lambda link: link.slowness)
    last = max(rest, key=lambda link: link.slowness)
    excess = statistics.median(link.slowness for link in mine) - statistics.median(
        link.slowness for link in rest
    )
    scatter = last.slowness - min(link.slowness for link in rest)
    gap, error = fastest.slowness - last.slowness, math.hypot(fastest.error, last.error)
    busiest = max(link.busy for link in mine)
    cost = longer(busiest * -math.expm1(-excess)) if excess > 0 else 0.0
    sure = gap > 4 * error and gap > math.log1p(LINK) / 2 and excess > math.log1p(LINK) + scatter
    if not sure or cost < LEAST:
        return None
    return Straggler(
        host=ends[0],
        to=ends[1] if len(ends) == 2 else None,
        kind="link",
        cost=cost,
        slower=math.expm1(excess),
        within=busiest * math.exp(-excess) * error,
    )


# --- as it runs --------------------------------------------------------------------------------------------


class Stragglers:
    """Takes the events of a run's attempt; `add` returns a finding when who holds the job up has changed."""

    def __init__(self, job: Job) -> None:
        recipe = job.recipe
        self.hosts = {rank: place.host for place in job.placements for rank in place.ranks}
        self.names = [place.host for place in job.placements]
        self.period = float((recipe.get("measure") or {}).get("hardware_seconds") or 5)
        self.on_cpu = job.device == "cpu"
        self.windows: dict[int, dict[int, events.Window]] = {}
        self.own = {source: _Moments(len(self.names)) for source in (WINDOWS, KERNEL)}
        self.parts: dict[int, dict[str, Mapping[str, float]]] = {}
        self.links: dict[int, dict[tuple[str, str], tuple[float, float]]] = {}
        self.addresses: dict[str, str] = {}
        self.sampled = self.looked = 0  # moments: the last that is told of; when links were compared
        self.link: Straggler | None = None
        self.steps = 0
        self.warm = False  # a first step was done
        self.named: dict[tuple[str, str, str | None], Straggler] = {}
        self.missed = Counter[tuple[str, str, str | None]]()  # of those: moments since it was found last
        self.over: list[Straggler] = []  # that are slow no more
        self.waits = False  # windows say what was waited for

    def add(self, event: events.Event) -> Pace | None:
        """Take an event. Return the finding where it has changed."""
        if len(self.names) < 2:
            return None
        if isinstance(event, events.Window):
            return self._changed() if self._window(event) else None
        if isinstance(event, events.Progress):
            self.steps, self.warm = max(self.steps, event.step), True
        elif isinstance(event, events.HostFacts):
            if address := event.facts.get("address"):
                self.addresses[address] = event.host or ""
        elif isinstance(event, events.Hardware) and event.host in self.names:
            return self._changed() if self._sample(event) else None
        return None

    def _window(self, window: events.Window) -> bool:
        """Return whether this window completes a moment."""
        rank = window.rank if window.rank is not None else -1
        if self.hosts.get(rank, "") != window.host or not math.isfinite(window.seconds):
            return False
        ranks = self.windows.setdefault(window.step, {})
        ranks[rank] = window
        self.steps = max(self.steps, window.step)
        if len(ranks) < len(self.hosts):
            if len(self.windows) > KEPT:
                self.windows.pop(min(self.windows))
            return False
        del self.windows[window.step]
        if not self.warm:  # devices start, and models are compiled
            self.warm = True
            return False
        whole = seconds_of(ranks.values())
        if whole <= 0 or any(each.profiled for each in ranks.values()):
            return False
        by_host = self.parts.setdefault(window.step, {})
        most: dict[str, float] = {}
        for rank, each in ranks.items():
            own = _own(each, on_cpu=self.on_cpu)
            if own is None or not math.isfinite(own):
                return False
            host = self.hosts[rank]
            self.waits = self.waits or "waiting" in each.parts
            self.own[WINDOWS].add(window.step, host, own / whole)
            if own > most.get(host, -1.0):  # of a host, the rank that the others wait for
                most[host] = own
                by_host[host] = {name: spent / whole for name, spent in parts_of(each).items()}
        while len(self.parts) > KEPT:
            self.parts.pop(min(self.parts))
        return True

    def _sample(self, sample: events.Hardware) -> bool:
        if not self.warm or not sample.seconds:
            return False
        moment, host = int(sample.arrived / self.period), sample.host or ""
        if self.on_cpu and sample.own:
            share = min(1.0, max(sample.own.values()) / sample.seconds)
            self.own[KERNEL].add(moment, host, share)
        links = self.links.setdefault(moment, {})
        for link in sample.links:
            self.addresses.setdefault(link.at, host)
            to = self.addresses.get(link.to)
            if to and to != host and link.bytes >= TOLD_BYTES and link.busy > 0:
                links[host, to] = (link.busy / link.bytes, min(1.0, link.busy / sample.seconds))
        while len(self.links) > KEPT + 1:
            self.links.pop(min(self.links))
        if moment <= self.sampled:
            return False
        self.sampled = moment  # of those before it all have told that will
        if moment >= self.looked + 1 + len(self.names) // MANY:
            self.looked = moment
            self.link = slow_link(link_speeds(list(self.links.values())[:-1]))
        return True

    def pace(self) -> Pace | None:
        """Return the present finding. None: nothing could be compared."""
        source = next((each for each in self._sources() if self.own[each].complete()), WINDOWS)
        moments = self.own[source].complete()
        if not moments and not self.links:
            return None
        within = None
        if len(moments) >= FEWEST and len(self.names) > 1:
            shares = [each.share for each in excesses(moments)]
            within = max(0.0, max(shares))
        return Pace(
            hosts=len(self.names),
            within=within,
            moments=len(moments),
            source=source,
            stragglers=[*sorted(self.named.values(), key=lambda each: -each.cost), *self.over],
        )

    def _now(self) -> list[Straggler]:
        by_host: dict[str, Straggler] = {}
        for source in self._sources():
            for each in slow_hosts(self.own[source].complete()):
                by_host.setdefault(
                    each.host,
                    Straggler(
                        host=each.host,
                        kind="computation",
                        cost=longer(each.share),
                        slower=each.slower,
                        within=each.error,
                        part=self._part(each.host),
                    ),
                )
        # A host that has no time to compute acknowledges late as well.
        slow = by_host.keys() | {host for host, kind, _ in self.named if kind == "computation"}
        if self.link and not slow & {self.link.host, self.link.to}:
            return [*by_host.values(), self.link]
        return list(by_host.values())

    def _above(self, least: float) -> set[str]:
        """Return the hosts that make a step longer by so much, significantly or not."""
        complete = [self.own[source].complete() for source in self._sources()]
        return {
            each.host
            for moments in complete
            if moments
            for each in excesses(moments)
            if longer(each.share) >= least
        }

    def _sources(self) -> list[str]:
        """Return the sources in use. Windows that state what was waited for need no other source, once they
        are enough."""
        enough = len(self.own[WINDOWS].complete()) >= FEWEST
        return [WINDOWS] if self.waits and enough else [KERNEL, WINDOWS]

    def _part(self, host: str) -> str | None:
        """Return the part of a host's steps that makes most of the difference."""
        names = {name for by_host in self.parts.values() for parts in by_host.values() for name in parts}
        over = {}
        for name in names - {"waiting"}:
            gaps = []
            for by_host in self.parts.values():
                others = [parts.get(name, 0.0) for other, parts in by_host.items() if other != host]
                if host in by_host and others:
                    gaps.append(by_host[host].get(name, 0.0) - statistics.median(others))
            over[name] = statistics.median(gaps) if gaps else 0.0
        worst = max(over, key=lambda name: over[name], default=None)
        whole = sum(max(0.0, each) for each in over.values())
        return worst if worst not in (None, "rest") and over[worst] > 0.5 * whole > 0 else None

    def _changed(self) -> Pace | None:
        now = {(each.host, each.kind, each.to): each for each in self._now()}
        step = self.steps or None
        changed = not now.keys() <= self.named.keys()
        missing = self.named.keys() - now.keys()
        held = self._above(LEAST / 2) if missing else set()
        for key in missing:
            if key[1] == "computation" and key[0] in held:
                continue  # less sure than it was, and no better
            self.missed[key] += 1
            if self.missed[key] >= GONE:
                self.over.append(self.named.pop(key).model_copy(update={"last_step": step}))
                changed = True
        for key, each in now.items():
            self.missed[key] = 0
            first = self.named[key].first_step if key in self.named else step
            self.named[key] = each.model_copy(update={"first_step": first})
        return self.pace() if changed else None


def parts_of(window: events.Window) -> dict[str, float]:
    """Return the seconds of a window's steps by what the rank did: data, forward, backward, optimizer,
    waiting for others, and the rest; of some windows less is known."""
    data = {} if window.data_seconds is None else {"data": window.data_seconds}
    named = {name: spent for name, spent in window.phases.items() if name in ("forward", "optimizer")}
    seconds = {**data, **named, **window.parts}
    if "waiting" in window.parts:  # and what no part tells of: generating, for example
        seconds["rest"] = max(0.0, window.seconds - sum(seconds.values()))
    return seconds


def _own(window: events.Window, *, on_cpu: bool) -> float | None:
    """Return the seconds in which the rank did not wait for others; of some windows, those of the parts that
    contain no waiting. What a program does while its GPU computes delays no one: of a GPU its own time
    counts."""
    if "waiting" in window.parts:
        return max(0.0, window.seconds - window.parts["waiting"])
    parts = parts_of(window) if on_cpu else window.parts
    spans = [parts[name] for name in ("data", "forward") if name in parts]
    return sum(spans) if spans else None
