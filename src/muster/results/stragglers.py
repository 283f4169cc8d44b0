"""Which host holds a job up, found out while it runs. Pure: events in, findings out.

Ranks that train together take the same time for a step. What differs is what each does itself and what it
waits for the others: the host that the others wait for waits least. Three witnesses tell of it, each in
moments of which all hosts tell:
  - windows of steps: their seconds without those that the rank waited for others. Of programs that tell
    phases alone, getting batches and forward passes, which exchange nothing; of GPUs forward passes;
  - on CPUs the kernel: in how much of the time a rank ran or wanted to;
  - of links, the seconds that each byte was on its way, wherever TCP carries them.

In a moment a host is compared with the median of the other hosts. It is named where the median over the
moments is large, and surely so: by its own scatter and by that of all hosts, each taken robustly (MAD).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.core.job import Job
from muster.core.result import Pace, Straggler
from muster.store import events

KEPT = 24  # moments that are looked back at
FEWEST = 5  # of them, before anybody is named
LEAST = 0.05  # of a step: what less than this costs is named nowhere among two or three hosts,
LEAST_OF_MANY = 0.02  # nor this among more, which show what healthy ones differ by
APART = 4.0  # deviations of what hosts differ by
ENOUGH = 0.9  # of the hosts: a moment of which so many told counts
OFTEN = 0.8  # of the moments in which it is slower than the others
CHANCE = 0.001  # that a healthy host of a job is named, were noise normal
GONE = 8  # moments in which it was not found, until a host is slow no more
LINK = 0.15  # longer for each byte: links differ by less
MOMENTS = 8  # in which a link was used, before it is named
USED = 0.05  # of the time: a link that carries less tells nothing
TOLD_BYTES = 1 << 18  # of a link in a moment
WINDOWS, KERNEL = "windows of steps", "the processes' own time"

Shares = dict[str, float]  # host -> its own time in a moment, as a share of the moment


@dataclass
class _Moments:
    """What hosts told in the last moments; complete when all have."""

    hosts: int
    told: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, moment: int, host: str, share: float) -> None:
        self.told.setdefault(moment, defaultdict(list))[host].append(share)
        while len(self.told) > KEPT + 2:
            self.told.pop(min(self.told))

    def complete(self) -> list[Shares]:
        """Those of which nearly all hosts told, the oldest first."""
        return [
            {host: max(shares) for host, shares in by_host.items()}
            for _, by_host in sorted(self.told.items())
            if len(by_host) >= max(2, ENOUGH * self.hosts)
        ][-KEPT:]


def spread(values: Sequence[float]) -> float:
    """A standard deviation that a few outliers do not move: the MAD of normal values, scaled."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(each - middle) for each in values)


@dataclass(frozen=True)
class Excess:
    """What a host's own time is above the others', as a share of the step."""

    host: str
    share: float
    error: float
    often: float  # of the moments in which it is above
    slower: float  # relative to the others' own time


def excesses(moments: Sequence[Shares]) -> list[Excess]:
    """Each host beside the median of the others."""
    over: dict[str, list[float]] = defaultdict(list)
    ratio: dict[str, list[float]] = defaultdict(list)
    for shares in moments:
        ordered = sorted(shares.values())
        for host, share in shares.items():
            others = _median_without(ordered, share)
            over[host].append(share - others)
            ratio[host].append(share / others - 1 if others > 0 else 0.0)
    noise = statistics.median(spread(each) for each in over.values())
    count = math.sqrt(len(moments))
    return [
        Excess(
            host,
            statistics.median(each),
            1.2533 * max(noise, spread(each)) / count,  # of a median of normal values
            sum(value > 0 for value in each) / len(each),
            statistics.median(ratio[host]),
        )
        for host, each in over.items()
    ]


def _median_without(ordered: Sequence[float], value: float) -> float:
    place = bisect_left(ordered, value)
    count = len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return 0.5 * sum(ordered[each + (each >= place)] for each in (low, high))


def slow_hosts(moments: Sequence[Shares]) -> list[Excess]:
    """Those that surely hold the others up, the worst first."""
    if len(moments) < FEWEST or len(moments[0]) < 2:
        return []
    found = excesses(moments)
    many = len(found) > 3
    usual = spread([each.share for each in found]) if many else 0.0
    least = max(LEAST_OF_MANY if many else LEAST, APART * usual)
    sure = statistics.NormalDist().inv_cdf(1 - CHANCE / len(found))
    slow = [
        each
        for each in found
        if longer(each.share) >= least and each.share - sure * each.error > least / 2 and each.often >= OFTEN
    ]
    return sorted(slow, key=lambda each: -each.share)


def longer(share: float) -> float:
    """By how much a step is longer of which this share would not be."""
    return share / (1 - share) if share < 1 else math.inf


# --- links -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkSpeed:
    """A link over the moments: log of seconds a byte, its error, and the share of the time it was busy."""

    ends: tuple[str, str]
    slowness: float
    error: float
    busy: float


def link_speeds(moments: Iterable[Mapping[tuple[str, str], tuple[float, float]]]) -> list[LinkSpeed]:
    """Of the links that carry most of a moment's bytes. `moments`: ends -> (seconds a byte, busy share)."""
    values: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each in moments:
        for ends, told in each.items():
            values[ends].append(told)
    found = []
    for ends, told_of in values.items():
        busy = statistics.median(share for _, share in told_of)
        if len(told_of) >= MOMENTS and busy >= USED:
            logs = [math.log(slow) for slow, _ in told_of]
            error = 1.2533 * spread(logs) / math.sqrt(len(logs))
            found.append(LinkSpeed(ends, statistics.median(logs), error, busy))
    return found


def slow_link(links: Sequence[LinkSpeed]) -> Straggler | None:
    """The host whose links are all slower than the rest, or the two hosts whose link alone is. None: nothing
    is to be seen, or there is nothing to compare with."""
    hosts = sorted({end for link in links for end in link.ends})
    pairs = sorted({tuple(sorted(link.ends)) for link in links})
    blamed: list[tuple[str, ...]] = [(host,) for host in hosts] + [tuple(pair) for pair in pairs]
    best: Straggler | None = None
    for ends in blamed:
        mine = [link for link in links if set(ends) <= set(link.ends)]
        rest = [link for link in links if not set(ends) <= set(link.ends)]
        if not rest or (len(ends) == 1 and len({frozenset(link.ends) for link in mine}) < 2):
            continue
        if len(ends) == 2 and len({frozenset(link.ends) for link in rest}) < 2:
            continue
        fastest, slowest = (
            min(mine, key=lambda link: link.slowness),
            max(rest, key=lambda link: link.slowness),
        )
        gap = fastest.slowness - slowest.slowness
        usual = statistics.median(link.slowness for link in rest)
        excess = statistics.median(link.slowness for link in mine) - usual
        scatter = slowest.slowness - min(link.slowness for link in rest)
        error = math.hypot(fastest.error, slowest.error)
        busiest = max(link.busy for link in mine)
        cost = longer(busiest * (1 - math.exp(-excess)))
        sure = gap > 4 * error and gap > math.log1p(LINK) / 2 and excess > math.log1p(LINK) + scatter
        if sure and cost >= LEAST and (best is None or cost > best.cost):
            best = Straggler(
                host=ends[0],
                to=ends[1] if len(ends) == 2 else None,
                kind="link",
                cost=cost,
                slower=math.expm1(excess),
                within=busiest * math.exp(-excess) * error,
            )
    return best


# --- as it runs --------------------------------------------------------------------------------------------


class Stragglers:
    """Hears the events of a run's attempt; `add` says when who holds it up has changed."""

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
        self.steps = 0
        self.warm = False  # a first step was done
        self.named: dict[tuple[str, str, str | None], Straggler] = {}
        self.missed = Counter[tuple[str, str, str | None]]()  # of those: moments since it was found last
        self.over: list[Straggler] = []  # that are slow no more
        self.waits = False  # windows say what was waited for

    def add(self, event: events.Event) -> Pace | None:
        """Take an event. -> what is found, where it is another one than before."""
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
        """Whether a moment is complete with it."""
        rank = window.rank if window.rank is not None else -1
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
        whole = max(each.seconds for each in ranks.values())
        if whole <= 0 or any(each.profiled for each in ranks.values()):
            return False
        told = self.parts.setdefault(window.step, {})
        for rank, each in ranks.items():
            own = _own(each, on_cpu=self.on_cpu)
            if own is None:
                return False
            host = self.hosts[rank]
            self.waits = self.waits or "waiting" in each.parts
            self.own[WINDOWS].add(window.step, host, own / whole)
            told[host] = {name: spent / whole for name, spent in _parts(each).items()}
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
        return host == self.names[-1]  # the others told about as long ago

    def pace(self) -> Pace | None:
        """What is known now. None: nothing could be compared."""
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
        found: dict[str, Straggler] = {}
        for source in self._sources():
            for each in slow_hosts(self.own[source].complete()):
                found.setdefault(
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
        link = slow_link(link_speeds(list(self.links.values())[:-1]))
        # A host that has no time to compute acknowledges late as well.
        if link and not found.keys() & {link.host, link.to}:
            return [*found.values(), link]
        return list(found.values())

    def _sources(self) -> list[str]:
        """What is heard. Windows that say what was waited for need no other witness, once they are enough."""
        told = len(self.own[WINDOWS].complete()) >= FEWEST
        return [WINDOWS] if self.waits and told else [KERNEL, WINDOWS]

    def _part(self, host: str) -> str | None:
        """Of its steps, that makes most of the difference."""
        names = {name for told in self.parts.values() for parts in told.values() for name in parts}
        over = {}
        for name in names - {"waiting"}:
            gaps = []
            for told in self.parts.values():
                others = [parts.get(name, 0.0) for other, parts in told.items() if other != host]
                if host in told and others:
                    gaps.append(told[host].get(name, 0.0) - statistics.median(others))
            over[name] = statistics.median(gaps) if gaps else 0.0
        worst = max(over, key=lambda name: over[name], default=None)
        whole = sum(max(0.0, each) for each in over.values())
        return worst if worst is not None and over[worst] > 0.5 * whole > 0 else None

    def _changed(self) -> Pace | None:
        now = {(each.host, each.kind, each.to): each for each in self._now()}
        step = self.steps or None
        changed = not now.keys() <= self.named.keys()
        for key in self.named.keys() - now.keys():
            self.missed[key] += 1
            if self.missed[key] >= GONE:
                self.over.append(self.named.pop(key).model_copy(update={"last_step": step}))
                changed = True
        for key, each in now.items():
            self.missed[key] = 0
            first = self.named[key].first_step if key in self.named else step
            self.named[key] = each.model_copy(update={"first_step": first})
        return self.pace() if changed else None


def _parts(window: events.Window) -> dict[str, float]:
    data = {} if window.data_seconds is None else {"data": window.data_seconds}
    named = {name: spent for name, spent in window.phases.items() if name in ("forward", "optimizer")}
    return {**data, **named, **window.parts}


def _own(window: events.Window, *, on_cpu: bool) -> float | None:
    """Seconds that the rank did not wait for others; of some, those parts that have no waiting in them. What
    a program does while its GPU computes delays nobody: of a GPU its own time counts."""
    if "waiting" in window.parts:
        return max(0.0, window.seconds - window.parts["waiting"])
    parts = _parts(window) if on_cpu else window.parts
    told = [parts[name] for name in ("data", "forward") if name in parts]
    return sum(told) if told else None
