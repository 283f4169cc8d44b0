"""A verdict per host, link and switch, with its evidence. Pure and deterministic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from muster.core.units import counted, format_slower
from muster.judging.alike import SlowerGroup
from muster.judging.ask import next_wave
from muster.judging.baseline import FLOOR, Baseline, JobClass
from muster.judging.chance import part_by_chance
from muster.judging.clusters import Clusters
from muster.judging.document import Condition, Evidence, Subject, Verdict, looked_at
from muster.judging.explain import Component, FaultExplanation, blamed, shown_by
from muster.judging.faults import COST, OF_HOSTS, OF_SWITCHES, Fault, Fit, Kind
from muster.judging.healthy import beside_healthy, healthy_baselines
from muster.judging.localise import Posterior, localise
from muster.judging.observation import Group, Link, Observation, Settings, Topology
from muster.judging.readings import FAILED, FAR, STANDS_OUT, VARIES, Readings, own_share, reach, smallest

SHOWN = 6  # readings given as evidence
WHICH_HARDWARE = "which hardware each host has: jobs of unlike hardware are not compared"
UNSTEADY = 4.0  # times the deviation of most hosts' jobs of a kind that a fit host's own may have
PROBABLY = 0.25  # of a host that is bad with no more than this probability: probably fit


@dataclass(frozen=True)
class Judgement:
    """One verdict per host, in the topology's order; links and switches that are accused; the baselines, of
    jobs that are healthy by these verdicts.

    `one_of`: hosts and switches of which at least one is surely bad, or a link between them, where none of
    them is accused by itself; `alike`: hosts that are slower than others by the same factor.
    """

    hosts: tuple[Verdict, ...]
    links: tuple[Verdict, ...]
    switches: tuple[Verdict, ...]
    baselines: Mapping[JobClass, Baseline]
    one_of: tuple[tuple[str, ...], ...] = ()
    alike: tuple[SlowerGroup, ...] = ()

    @property
    def accused(self) -> tuple[Verdict, ...]:
        """Everything that is slow or failing."""
        return tuple(each for each in (*self.hosts, *self.links, *self.switches) if each.bad)


def judge(
    observations: Sequence[Observation],
    topology: Topology,
    settings: Settings | None = None,
    stored: Mapping[JobClass, Baseline] | None = None,
) -> Judgement:
    """Judge whatever jobs there were. `judge_posterior` takes an existing Posterior."""
    return judge_posterior(localise(observations, topology, settings, stored))


def judge_posterior(posterior: Posterior) -> Judgement:
    """Return the verdicts of a Posterior."""
    healthy = healthy_baselines(posterior, posterior.observations)
    judges = _Hosts(posterior, healthy)
    every = range(len(posterior.topology.hosts))
    hosts = tuple(_of_its_kind(posterior, judges.verdict(host)) for host in every)
    links: list[Verdict] = []
    switches: list[Verdict] = []
    for part in posterior.parts:
        for fault in part.faults():
            if fault.kind in OF_HOSTS or fault.kind == "rack":  # a rack is its hosts
                continue
            verdict = _shared(judges, part, fault)
            if verdict is not None:
                (links if fault.kind == "link" else switches).append(verdict)
    accused = {each.subject for each in (*hosts, *links, *switches) if each.bad}
    return Judgement(
        hosts,
        tuple(links),
        tuple(switches),
        healthy,
        _one_of(posterior, accused),
        posterior.alike,
    )


def _changed(verdict: Verdict, **fields: Any) -> Verdict:
    return verdict.model_copy(update=fields)


def _of_its_kind(posterior: Posterior, verdict: Verdict) -> Verdict:
    """Return the verdict of a host that is good among those that are as slow, with a note that they are not
    compared with the others."""
    group = next((each for each in posterior.alike if verdict.subject[0] in each.hosts), None)
    if group is None or verdict.condition not in ("fit", "differs"):
        return verdict
    reason = f"{group.words}; compared with them: {verdict.reason}"
    return _changed(
        verdict,
        condition="probably fit",
        confidence=1.0 - verdict.confidence,
        reason=reason,
        settle=WHICH_HARDWARE,
    )


def _one_of(posterior: Posterior, accused: set[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return suspects of which one must be bad: no explanation of their slow jobs does without a fault. A
    single one has its own verdict. A job that names broken hardware, and no host, has one among all of its
    hosts."""
    readings, hosts = posterior.case.readings, posterior.topology.hosts
    broken = [row for row, alone in enumerate(readings.alone) if not alone and readings.broken(row)]
    there = [tuple(hosts[host] for host in sorted(readings.hosts[row])) for row in broken]
    other = {hosts[host] for host in posterior.akin}
    other.update(host for group in posterior.alike for host in group.hosts)
    groups = [names for names in dict.fromkeys(there) if not any(set(each) & set(names) for each in accused)]
    for part in posterior.parts:
        if not set(broken).isdisjoint(part.rows):
            continue
        none = sum(each.probability for each in part.explanations if not each.faults)
        subjects: list[str] = []
        for fault in part.faults():
            if part.probability(fault) > 1.0 - posterior.settings.named:
                if fault.kind in OF_SWITCHES:
                    subjects.append(posterior.topology.switches[fault.where[0]][0])
                else:
                    subjects += [posterior.topology.hosts[host] for host in fault.where]
        names = tuple(sorted(set(subjects), key=lambda name: posterior.topology.index.get(name, -1)))
        if not other.isdisjoint(names):
            continue  # one may be of other hardware, and nothing be bad
        if 1.0 - none < posterior.settings.convict or len(names) < 2 or _one_job(posterior, part):
            continue
        if not any(set(each) & set(names) for each in accused) and not part_by_chance(posterior.case, part):
            groups.append(names)
    return tuple(groups)


def _one_job(posterior: Posterior, part: Component) -> bool:
    """Return whether a single job was slow, whose hosts all have good ones of the same work."""
    readings = posterior.case.readings
    slowest = max([readings.value[row] for row in part.rows])
    mine = {row for row in part.rows if readings.value[row] >= slowest / 2}
    if len({readings.source[row] for row in mine}) > 1:
        return False
    works = {readings.kind[row].work for row in mine}
    return all(
        any(
            row not in mine and readings.kind[row].work in works and readings.deviations(row) <= STANDS_OUT
            for row in readings.of_host[host]
        )
        for row in mine
        for host in readings.hosts[row]
    )


def _unread(posterior: Posterior) -> dict[str, list[Observation]]:
    """Return the jobs of each host without a reading."""
    names = enumerate(posterior.topology.hosts)
    unread: dict[str, list[Observation]] = {
        name: [] for index, name in names if not posterior.case.readings.of_host.get(index)
    }
    for each in posterior.observations if unread else ():
        for host in each.hosts:
            if host in unread:
                unread[host].append(each)
    return unread


def _nothing_known(jobs: Sequence[Observation]) -> str:
    """Return why a host that was in these jobs has no reading."""
    if not jobs:
        return "it was in no job"
    if all(each.culprits and not each.outcome.good for each in jobs):
        guilty = list(dict.fromkeys(host for each in jobs for host in each.culprits))
        return f"its jobs failed because of {', '.join(guilty[:4])}, so they do not show how it is"
    return "its jobs cannot be compared: too few similar jobs, and no stored baseline"


def _evidence(
    posterior: Posterior, readings: Readings, rows: Sequence[int], but: tuple[int, ...]
) -> list[Evidence]:
    """Return the readings with most weight, the slowest first; `but`: the hosts that the verdict is about.
    Peers are those of the job, also where it is a reading of one host alone."""
    about = {posterior.topology.hosts[host] for host in but}
    slow = sorted(
        (r for r in rows if readings.deviations(r) > STANDS_OUT), key=lambda r: (-readings.value[r], r)
    )
    fine = sorted(
        (r for r in rows if readings.deviations(r) <= STANDS_OUT), key=lambda r: (readings.value[r], r)
    )
    room = max(SHOWN // 2, SHOWN - len(slow))
    chosen = [*slow[: SHOWN - min(room, len(fine))], *fine[:room]]
    return [_one(posterior, readings, row, about) for row in chosen]


def _one(posterior: Posterior, readings: Readings, row: int, about: set[str]) -> Evidence:
    job = posterior.observations[readings.source[row]]
    peers = tuple(host for host in job.hosts if host not in about)
    if readings.failed(row):
        return Evidence(job=job.job, peers=peers, slower=None, what="failed", work=job.work)
    slower = round(math.expm1(readings.value[row]), 5)
    what: Literal["computing", "step"] = "computing" if readings.hint[row] else "step"
    return Evidence(job=job.job, peers=peers, slower=slower, what=what, work=job.work)


class _Hosts:
    """The hosts' verdicts, with what they have in common."""

    def __init__(self, posterior: Posterior, healthy: Mapping[JobClass, Baseline]) -> None:
        self.posterior, self.unread, self.healthy = posterior, _unread(posterior), healthy
        self.readings = beside_healthy(posterior, healthy)
        self.blamed = blamed(posterior.parts, posterior.settings)
        self.usual = _usual_deviations(posterior)
        self.doubted = _doubted_links(posterior)
        least = math.log1p(posterior.settings.slow)
        self.unsure = {
            kind: clusters
            for kind, clusters in self.readings.clusters.items()
            if not clusters.sure and clusters.faster > least
        }
        self._next: tuple[Group, ...] | None = None

    def size(self, fit: Fit) -> tuple[Condition, float | None, float | None]:
        """Return slow or failing; by what share of the time; and its standard error: that of the mean of the
        jobs that show it, by what healthy ones differ by or they themselves, and of what is healthy."""
        readings = self.posterior.case.readings
        mine = [row for row, by in fit.expects if by > 0]
        failures = [row for row in mine if readings.failed(row)]
        if 2 * len(failures) >= len(mine) or fit.by >= FAILED:
            return "failing", None, None
        near = [
            row
            for row, _ in fit.expects
            if not readings.failed(row)
            and abs(readings.value[row] - fit.by)
            <= STANDS_OUT * math.hypot(readings.sigma[row], VARIES * fit.by)
        ] or [row for row in mine if row not in failures]
        bases = {
            kind: self.healthy[kind] for kind in {readings.kind[row] for row in near} if kind in self.healthy
        }
        spread = max([readings.sigma[row] for row in near] + [base.sigma for base in bases.values()])
        values = [self.readings.value[row] for row in near]
        by = statistics.mean(values)
        spread = max(spread, statistics.stdev(values)) if len(values) > 1 else spread
        jobs = sum(base.count for base in bases.values())
        return "slow", math.expm1(by), math.exp(by) * spread * math.sqrt(1 / len(values) + 1 / max(1, jobs))

    def verdict(self, host: int) -> Verdict:
        """Return whether something is wrong with the host itself."""
        posterior, rows = self.posterior, self.readings.of_host.get(host, [])
        name = posterior.topology.hosts[host]
        if not rows:
            reason = _nothing_known(self.unread[name])
            return Verdict(hosts=[name], condition="unknown", confidence=0.0, reason=reason)
        evidence = _evidence(posterior, self.readings, rows, (host,))
        part, chance = posterior.part_of.get(host), posterior.suspicion(host)
        if part is not None and chance >= posterior.settings.convict:
            return _bad_host(self, part, host, evidence)
        subjects = self._subjects(host, rows)
        bounds = [each.at_most for each in subjects if each.at_most is not None]
        bounded = all(each.at_most is not None or not each.jobs for each in subjects)
        base = Verdict(
            hosts=[name],
            condition="unknown",
            confidence=chance,
            reason="",
            at_most=max(bounds, default=None) if bounded else None,
            evidence=evidence,
            subjects=list(subjects),
        )
        unclear = not bounds or any(each.condition == "unknown" for each in subjects)
        # Good in some way, and its other jobs are another's fault: less suspected than one in doubt.
        shown = bool(bounds) and all(each.condition == "fit" or not each.jobs for each in subjects)
        good = shown or not unclear or self._good_but_once(host, rows)
        base = _changed(base, condition="probably fit" if good and chance <= PROBABLY else "unknown")
        if chance > 1.0 - posterior.settings.named:
            return self._in_doubt(base, host, chance)
        if host in self.doubted:
            return self._of_doubted_link(base, host)
        if unclear:
            return _changed(base, reason=self._never_good(host, rows), settle=self._settle(name))
        low = math.expm1(smallest(self.readings, rows, posterior.settings))
        confidence = 1.0 - max(chance, _unseen(posterior, rows, low))
        differs = self._differs(rows)
        if differs is not None:
            slower, within, why = differs
            reason = f"{slower:.1%} slower than its peers; {why}"
            return _changed(
                base, condition="differs", confidence=confidence, slower=slower, within=within, reason=reason
            )
        return _changed(
            base, condition="fit", confidence=confidence, reason="; ".join(looked_at({base.host: subjects}))
        )

    def _in_doubt(self, base: Verdict, host: int, chance: float) -> Verdict:
        """Return the verdict of a host that is suspected, and not convicted."""
        settle = self._settle(base.subject[0])
        if host in self.posterior.akin:
            reason = (
                f"suspected, with a probability of {below(chance)}: as slow as hosts alike; other hardware?"
            )
            return _changed(base, reason=reason, settle=WHICH_HARDWARE)
        if host in self.posterior.once:
            return _changed(base, reason=self._once(host, chance), settle=settle)
        if any(fault.where == (host,) for fault in self.posterior.chance):
            reason = "suspected, but it may be chance: as few hosts often explain slow jobs that are random"
            return _changed(base, reason=reason, settle=settle)
        suspected = "" if chance <= PROBABLY else "suspected: "
        return _changed(base, reason=f"{suspected}bad with a probability of {below(chance)}", settle=settle)

    def _of_doubted_link(self, base: Verdict, host: int) -> Verdict:
        """Return the verdict of a host of which a link is suspected."""
        chance, fault, fit = self.doubted[host]
        names = [self.posterior.topology.hosts[each] for each in fault.where]
        other = names[fault.where[0] == host]
        what = self._what(max(shown_by(self.posterior.case, fit), key=lambda row: self.readings.value[row]))
        return _changed(
            base,
            reason=f"its link to {other} is suspected, with a probability of {below(chance)}: {what}",
            settle=f"a job of {names[0]} with {names[1]}",
        )

    def _what(self, row: int) -> str:
        """Return how slow the job of a reading was, or that it failed."""
        readings = self.readings
        job = self.posterior.observations[readings.source[row]].job
        if readings.failed(row):
            return f"{job} failed"
        half = "one half of " if row in readings.half else ""
        return f"{half}{job} was {format_slower(math.expm1(readings.value[row]), 'its peers', digits=1)}"

    def _once(self, host: int, chance: float) -> str:
        """Return the evidence of a single job."""
        posterior, readings = self.posterior, self.readings
        fit = posterior.part_of[host].likeliest(host)
        assert fit is not None  # it is in `once` for it
        what = self._what(shown_by(posterior.case, fit)[0])
        others = len({readings.source[each] for each in readings.of_host[host]}) - 1
        others_words = f"its {counted(others, 'other job')} {'was' if others == 1 else 'were'} not"
        others_words = others_words if others else "it has no other"
        return f"suspected, with a probability of {below(chance)}, for one job alone: {what}, {others_words}"

    def _settle(self, name: str) -> str:
        """Return which job would tell more of a host."""
        if self._next is None:
            self._next = next_wave(self.posterior)
        for group in self._next:
            if name in group:
                others = [host for host in group if host != name]
                return f"a job of {name} with {', '.join(others)}" if others else f"a job of {name} alone"
        return f"more jobs of {name}, with other hosts" if len(self.posterior.topology.hosts) > 2 else ""

    def _subjects(self, host: int, rows: Sequence[int]) -> tuple[Subject, ...]:
        """Return the subjects of the host's readings, each by its own. A job that another's fault explains
        does not count for this host."""
        readings = self.readings
        mine = [row for row in rows if row not in self.blamed or readings.alone[row]]
        alone = [row for row in mine if readings.alone[row]]
        groups = [row for row in mine if not readings.alone[row]]
        training = [row for row in groups if not self.posterior.observations[readings.source[row]].exchanges]
        met = any(not readings.alone[row] for row in rows)
        subjects = [self._subject(host, "compute", alone or training, len(alone) + len(training))]
        if met:
            card = self._subject(host, "card", groups, len(groups))
            subjects.append(card)
            subjects.append(self._links(host, groups, card))
        return tuple(subjects)

    def _links(self, host: int, groups: Sequence[int], card: Subject) -> Subject:
        """Return the subject of a host's links, as its card is judged. Their bound is that of the slowest: a
        job over one link does not show how another is. `groups`: its readings."""
        readings = self.readings
        doubted = [row for row, _ in self.doubted[host][2].expects] if host in self.doubted else []
        links: dict[Link, list[int]] = {}
        for row in sorted({*groups, *doubted}):
            for link in readings.links(row) if not readings.failed(row) else ():
                if host in link:
                    links.setdefault(link, []).append(row)
        bounds = [self._at_most(own) for rows in links.values() for own in _by_kind(readings, rows)]
        return Subject(
            name="links",
            condition="unknown" if doubted else card.condition,
            jobs=len(links),
            at_most=None if card.at_most is None else max([card.at_most, *bounds]),
        )

    def _never_fast(self, host: int, rows: Sequence[int]) -> Clusters | None:
        """Return the clusters of jobs where the host may be what slows these: some others were faster, and
        it was in none of them. `rows`: of one kind."""
        clusters, name = self.unsure.get(self.readings.kind[rows[0]]), self.posterior.topology.hosts[host]
        return clusters if clusters is not None and name not in clusters.good else None

    def _subject(
        self, host: int, name: Literal["compute", "card"], rows: Sequence[int], jobs: int
    ) -> Subject:
        readings = self.readings
        if not rows:
            return Subject(name=name, condition="unknown")
        bound, good = 0.0, True
        for own in _by_kind(readings, rows):
            here = self._at_most(own)
            clusters = self._never_fast(host, own)
            if clusters is not None:
                here = (1.0 + here) * math.exp(clusters.faster) - 1.0
            bound = max(bound, here, self._plain_mean(own))
            good = good and here <= self._limit(own) and self._slow_by_chance(own) is None
            good = good and clusters is None
        at_most = bound if bound < math.inf else None
        return Subject(name=name, condition="fit" if good else "unknown", jobs=jobs, at_most=at_most)

    def _at_most(self, rows: Sequence[int]) -> float:
        """Return what a host is no slower than, by its readings of one kind; infinite where failed jobs leave
        it open. Alone: their mean, in which each counts by how well it is known (inverse variances), and two
        standard errors. In groups, which run at the pace of their slowest host: the fastest and two
        deviations."""
        readings = self.readings
        timed = [row for row in rows if not readings.failed(row)]
        if not readings.alone[rows[0]]:
            fastest = min([readings.value[row] + 2 * readings.sigma[row] for row in timed], default=math.inf)
            return max(0.0, math.expm1(fastest))
        if len(timed) < len(rows):
            return math.inf
        values = [readings.value[row] for row in rows]
        mean, error = self._mean(rows)
        if max(readings.sigma[row] for row in rows) > UNSTEADY * self.usual[readings.kind[rows[0]]]:
            # Where others' are steady, its noise does not excuse a job that was slow.
            mean = max(mean, sum(values) / len(values))
        return max(0.0, math.expm1(mean + 2 * error))

    def _mean(self, rows: Sequence[int]) -> tuple[float, float]:
        """Return the mean of readings (log), each counting by how well it is known, and its error."""
        readings = self.readings
        weights = [readings.sigma[row] ** -2 for row in rows]
        total = sum(weights)
        return sum([w * readings.value[r] for w, r in zip(weights, rows, strict=True)]) / total, total**-0.5

    def _slow_by_chance(self, rows: Sequence[int]) -> tuple[float, float] | None:
        """Return how much slower a host's jobs alone are on average, and what counts as slow, where the host
        reaches that: it is no fit one, though chance may be why. None: it does not. It takes two jobs."""
        if len(rows) < 2 or not self.readings.alone[rows[0]]:
            return None
        counts, (mean, _) = smallest(self.readings, rows, self.posterior.settings), self._mean(rows)
        return (math.expm1(mean), math.expm1(counts)) if mean >= counts else None

    def _plain_mean(self, rows: Sequence[int]) -> float:
        """Return how much slower a host's jobs alone were, each counting alike; 0 in groups. A host's bound
        is no less: weights are estimated too, and a job that they nearly drop was as slow as it was (Cochran,
        Problems arising in the analysis of a series of similar experiments, 1937)."""
        values = [self.readings.value[row] for row in rows if not self.readings.failed(row)]
        alone = self.readings.alone[rows[0]]
        return math.expm1(sum(values) / len(values)) if alone and values else 0.0

    def _limit(self, rows: Sequence[int]) -> float:
        """Return how slow a good host may be at most. Drift whose moments are unknown is no reason to accuse,
        nor to call a host fit; neither is the noise of its own jobs, where others of the kind are much
        steadier."""
        settings, kind = self.posterior.settings, self.readings.kind[rows[0]]
        if kind.work in self.posterior.drifts:
            return 2 * settings.slow
        least = smallest(self.readings, rows, settings)
        if kind in self.usual:
            usual = STANDS_OUT * UNSTEADY * self.usual[kind]
            least = min(least, max(math.log1p(settings.slow), usual, reach(self.readings, kind.work)))
        return 2 * math.expm1(least)

    def _good_but_once(self, host: int, rows: Sequence[int]) -> bool:
        """Return whether all but one of its jobs were good: that one failed, or is the only evidence against
        it."""
        fit = self.posterior.part_of[host].likeliest(host) if host in self.posterior.once else None
        bad = {row for row in rows if self.readings.failed(row)}
        bad |= set(shown_by(self.posterior.case, fit) if fit else ())
        once = len({self.readings.source[row] for row in bad}) == 1
        return once and self._good([row for row in rows if row not in bad])

    def _good(self, rows: Sequence[int]) -> bool:
        """Return whether the host of these readings is no slower than it may be, in each kind of them."""
        return bool(rows) and all(
            self._at_most(own) <= self._limit(own) for own in _by_kind(self.readings, rows)
        )

    def _never_good(self, host: int, rows: Sequence[int]) -> str:
        """Return what is not known of a host whose jobs were slow, or differ too much, alone or in groups or
        in some work."""
        readings, settings = self.readings, self.posterior.settings
        alone = [row for row in rows if readings.alone[row]]
        groups = [row for row in rows if not readings.alone[row]]
        for own in _by_kind(readings, groups):
            clusters = self._never_fast(host, own)
            if clusters is not None:
                fast, by = len(clusters.fast), -math.expm1(-clusters.faster)
                faster = f"{fast} of {fast + len(clusters.slow)} jobs were {by:.1%} faster"
                return f"{faster} than its own in groups, and it was in none of them"
        by_chance = next(filter(None, map(self._slow_by_chance, _by_kind(readings, alone))), None)
        if by_chance is not None and self._good(alone):
            return "its jobs alone are {:.1%} slower, where {:.1%} counts: that may be chance".format(
                *by_chance
            )

        def slow_rows(own: Sequence[int]) -> list[int]:
            least = smallest(readings, own, settings)
            return [row for row in own if readings.value[row] - 2 * readings.sigma[row] > least]

        def slow(own: Sequence[int]) -> bool:
            return any(slow_rows(each) == list(each) for each in _by_kind(readings, own))

        ways = {"alone": alone, "in groups": groups}
        unclear = [name for name, own in ways.items() if own and not self._good(own) and not slow(own)]
        if unclear:
            bound = max(self._at_most(each) for name in unclear for each in _by_kind(readings, ways[name]))
            if bound == math.inf:
                return "some of its jobs alone failed, and others did not"
            return f"its jobs {' and '.join(unclear)} differ too much: at most {bound:.0%} slower"
        others = "other hosts explain that" if self.blamed.issuperset(groups) else "no fault explains that"
        if self._good(alone) and groups:
            return f"fast alone, but slow in every group, and {others}"
        if self._good(groups):
            return "fast in groups, but slow alone"
        if not groups:
            count = "its only job was" if len(alone) == 1 else f"its {len(alone)} jobs were"
            bad = [row for each in _by_kind(readings, alone) for row in slow_rows(each)]
            if len(bad) < len(alone):
                count = f"{len(bad)} of {count if len(bad) > 1 else f'its {len(alone)} jobs was'}"
            failed = sum(readings.failed(row) for row in bad)
            how = f"{count} slow{' or failed' if failed else ''}"
            if failed == len(bad):
                how = f"{count.rpartition(' ')[0]} failed"
            return f"{how}, alone: that may have been something else on the machine, or chance"
        return f"all its jobs were slow, and {others}"

    def _differs(self, rows: Sequence[int]) -> tuple[float, float, str] | None:
        """Return by how much it is slower than its peers, the standard error, and why that is not slow: where
        it is slower by more than noise and by more than most of them. It takes two jobs."""
        readings = self.readings
        for own in _by_kind(
            readings, [row for row in rows if readings.alone[row] and not readings.hint[row]]
        ):
            spread, _ = own_share(readings, own[0])
            most = reach(readings, readings.kind[own[0]].work)
            usual = sorted([readings.value[row] for row in own])[(len(own) - 1) // 2]
            if len(own) > 1 and 2 * spread < usual <= most:
                noise = math.sqrt(max(readings.sigma[own[0]] ** 2 - spread**2, FLOOR**2) / len(own))
                if usual > 3 * noise:
                    counts = math.expm1(smallest(readings, own, self.posterior.settings))
                    few = (
                        f", {most / spread:.0f} of these since few hosts show them,"
                        if most > 5 * spread
                        else ""
                    )
                    why = (
                        f"healthy hosts of this fleet differ by {spread:.2%} (standard deviation), so only "
                        f"{counts:.1%} or more{few} is slow"
                    )
                    return math.expm1(usual), noise, why
        return None


def _doubted_links(posterior: Posterior) -> dict[int, tuple[float, Fault, Fit]]:
    """Return hosts of which a link is suspected, and not accused: with which probability, which link, and how
    it fits."""
    doubted: dict[int, tuple[float, Fault, Fit]] = {}
    for part in posterior.parts:
        for fault in part.faults():
            chance = part.probability(fault)
            if fault.kind == "link" and chance > 1.0 - posterior.settings.named:
                fit = part.fit_of(fault)
                if not _accuses(posterior, fault, fit, chance):
                    for host in fault.where:
                        doubted[host] = max(doubted.get(host, (0.0, fault, fit)), (chance, fault, fit))
    return doubted


def _usual_deviations(posterior: Posterior) -> dict[JobClass, float]:
    """Return, by kind of job, the deviation that two of three hosts do not exceed, by their own steps too: a
    host's median alone, its steadiest in groups, which are as unsteady as any of their hosts. Where a stored
    baseline stands in for too few jobs: its own."""
    deviations: dict[JobClass, list[float]] = {}
    readings, bases = posterior.case.readings, posterior.baselines
    for rows in readings.of_host.values():
        for own in _by_kind(readings, [row for row in rows if not readings.failed(row)]):
            sigmas = [readings.sigma[row] for row in own]
            usual = statistics.median_high(sigmas) if readings.alone[own[0]] else min(sigmas)
            deviations.setdefault(readings.kind[own[0]], []).append(usual)
    return {
        kind: bases[kind].sigma if bases[kind].stored else sorted(own)[(2 * len(own) - 1) // 3]
        for kind, own in deviations.items()
    }


def below(chance: float) -> str:
    """Return a probability, rounded down: one below a threshold must not look as if it reached it."""
    return f"{math.floor(100 * chance) / 100:.2f}"


def _by_kind(readings: Readings, rows: Sequence[int]) -> list[list[int]]:
    """Return the readings of each work and size."""
    kinds: dict[JobClass, list[int]] = {}
    for row in rows:
        kinds.setdefault(readings.kind[row], []).append(row)
    return list(kinds.values())


def _unseen(posterior: Posterior, rows: Sequence[int], by: float) -> float:
    """Return the probability that a slowdown of `by` exists all the same."""
    readings = posterior.case.readings
    gain = -COST["host"]
    for row in rows:
        if not readings.alone[row]:
            gain += readings.loss(row, 0.0) - readings.loss(row, math.log1p(by))
    return 1.0 / (1.0 + math.exp(min(50.0, -gain)))


def _bad_host(judges: _Hosts, part: Component, host: int, evidence: list[Evidence]) -> Verdict:
    """Return the verdict of a slow or failing host, and in what."""
    posterior = judges.posterior
    kinds: dict[Kind, float] = {}
    best: tuple[FaultExplanation, Fit] | None = None
    for each in part.explanations:
        for fault, fit in zip(each.faults, each.fits, strict=True):
            if (fault.kind in OF_HOSTS and fault.where[0] == host) or (
                fault.kind == "rack" and fault.where[0] == posterior.topology.behind[host]
            ):
                kinds[fault.kind] = kinds.get(fault.kind, 0.0) + each.probability
                best = best or (each, fit)
    assert best is not None  # the suspicion is the sum over these
    total = sum(kinds.values())
    likeliest = max(sorted(kinds), key=lambda kind: kinds[kind])
    kind: Kind = likeliest if kinds[likeliest] / total >= posterior.settings.named else "host"
    if kind == "card" and _as_slow_alone(posterior, host, best[1]):
        kind = "host"
    condition, slower, within = judges.size(best[1])
    name = posterior.topology.hosts[host]
    whom = _whom(posterior, best[1])
    what = "its jobs fail" if slower is None else format_slower(slower, whom, digits=1, within=within)
    shown = shown_by(posterior.case, best[1])
    if 2 * sum(row in posterior.case.readings.half for row in shown) > len(shown):
        what += ", in one half of each job"
    # Jobs end for other reasons than a slow card or processor.
    suspect = WORDS[kind] if slower is not None or kind not in ("card", "compute") else ""
    reason = f"{what}, {_where(posterior, host, best[1])}{suspect}"
    if kind == "rack":
        switch, _ = posterior.topology.switches[posterior.topology.behind[host]]
        kind, reason = "compute", f"{what}, as all hosts behind {switch}, alone too{WORDS['rack']}"
    if slower is None and any(map(posterior.case.readings.broken, shown)):
        kind, reason = "host", "its jobs fail with errors of broken hardware"
    if slower is None and _told(posterior, name, best[1]):
        kind, reason = "host", "its jobs fail with errors that name this host"
    chance = posterior.suspicion(host)
    return Verdict(
        hosts=[name],
        condition=condition,
        kind=kind,
        slower=slower,
        within=within,
        confidence=chance,
        reason=reason,
        evidence=evidence,
    )


def _whom(posterior: Posterior, fit: Fit) -> str:
    """Return what its jobs were compared with."""
    kinds = {posterior.case.readings.kind[row] for row, _ in fit.expects}
    return (
        "the baseline"
        if all(k in posterior.baselines and posterior.baselines[k].stored for k in kinds)
        else "its peers"
    )


def _where(posterior: Posterior, host: int, fit: Fit) -> str:
    """Return in which of its jobs it shows."""
    readings = posterior.case.readings
    shown = {readings.alone[row] for row, by in fit.expects if by > 0}
    shown |= {readings.alone[row] for row in _as_slow_alone(posterior, host, fit)}
    seen = {readings.alone[row] for row in readings.of_host[host]}
    if shown == {True, False}:
        return "alone and in groups"
    if shown == {True}:
        return "alone but not in groups" if False in seen else "alone"
    return "in groups but not alone" if True in seen else "in groups of hosts"


def _as_slow_alone(posterior: Posterior, host: int, fit: Fit) -> list[int]:
    """Return the host's readings alone that are slow too, though less so than the fault would make them."""
    readings = posterior.case.readings
    return [
        row
        for row in readings.of_host[host]
        if readings.alone[row] and not (readings.hint[row] or readings.failed(row))
        and readings.deviations(row) > FAR and fit.by / 2 <= readings.value[row]
    ]  # fmt: skip


def _told(posterior: Posterior, name: str, fit: Fit) -> bool:
    """Return whether the jobs that failed, or half of them, named this host."""
    readings = posterior.case.readings
    failed = [row for row, by in fit.expects if by > 0 and readings.failed(row)]
    accusing = sum(name in posterior.observations[readings.source[row]].culprits for row in failed)
    return accusing > 0 and 2 * accusing >= len(failed)


WORDS: dict[Kind, str] = {
    "host": "",
    "compute": ": suspect its processor, its memory or another program on it",
    "card": ": suspect its network card or cable",
    "intermittent": ", in only some of its jobs",
    "rack": ": suspect what they share, such as power or cooling",
    "link": "between the two; both are fast with other hosts",
    "switch": "for all traffic through it",
    "uplink": "only for traffic that leaves it",
}


def _accuses(posterior: Posterior, fault: Fault, fit: Fit, chance: float) -> bool:
    """Return whether a link or a switch is accused: of a link one job, however slow, is a suspicion."""
    sources = {posterior.case.readings.source[row] for row in shown_by(posterior.case, fit)}
    if chance < posterior.settings.named or fault in posterior.chance:
        return False
    return fault.kind != "link" or len(sources) > 1


def _shared(judges: _Hosts, part: Component, fault: Fault) -> Verdict | None:
    """Return the verdict of a link or a switch that is accused; None where it is not."""
    posterior = judges.posterior
    chance, fit = part.probability(fault), part.fit_of(fault)
    if not _accuses(posterior, fault, fit, chance):
        return None
    condition, slower, within = judges.size(fit)
    switch, hosts, but = None, [posterior.topology.hosts[host] for host in fault.where], fault.where
    if fault.kind != "link":
        switch, members = posterior.topology.switches[fault.where[0]]
        hosts, but = list(members), ()
    what = "jobs fail" if slower is None else format_slower(slower, digits=1, within=within)
    return Verdict(
        hosts=hosts,
        switch=switch,
        condition=condition,
        kind=fault.kind,
        slower=slower,
        within=within,
        confidence=chance,
        reason=f"{what} {WORDS[fault.kind]}",
        evidence=_evidence(posterior, judges.readings, posterior.case.slowed(fault), but),
    )
