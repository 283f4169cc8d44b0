"""What was found of hosts, links and switches, for people: the answer, then why, then everybody else."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.core.bench import Bench, HostVerdict
from muster.core.hostlist import fold_hosts
from muster.core.judged import Drift, Evidence, JobEntry, Judged, Peers, Verdict, not_judged
from muster.core.units import counted, format_number, format_seconds

SHOWN = 100  # hosts that are not fit, one by one
NAMED = 4  # in a sentence
SUSPECTED = 0.2  # probability of being bad from which on the answer names a host in doubt
COLOURS = {
    "fit": "green", "differs": "green", "probably fit": "yellow", "unknown": "yellow",
    "unfit": "red", "slow": "red", "failing": "red", "below": "red",
}  # fmt: skip
BAD, DOUBT, SOUND = ("unfit", "failing", "slow", "below"), ("unknown", "probably fit"), ("differs", "fit")
_WHERE = {
    "compute": "alone and in groups", "card": "in groups, not alone", "host": "in groups",
    "intermittent": "in some of its jobs",
}  # fmt: skip
_NETWORK = "the network was not judged: no job on more than one host could be compared"
_COMPUTE = "computing was not judged: no job on one host could be compared"
_Found = Judged | Bench


def rows_of(found: _Found) -> list[HostVerdict]:
    """A row per host, the worst first; among equals the slowest, then as they stand."""
    rows = [
        each
        if isinstance(each, HostVerdict)
        else HostVerdict(
            host=each.hosts[0],
            verdict=each.condition,
            reason=each.reason,
            evidence=each.evidence,
            beside_others=each,
        )
        for each in found.hosts
    ]
    order = (*BAD, *DOUBT, *SOUND)
    return sorted(rows, key=lambda row: (order.index(row.verdict), -(_beside(row, "slower") or 0.0)))


def print_answer(console: Console, found: _Found) -> None:
    """What whoever ran this wants to know, in a line or a few."""
    lines = [("red", _drift(each)) for each in found.drifted if each.slower > 0]
    if lines:
        shared = "software, settings, clocks, storage, or a part of the network"
        lines.append(("", f"All hosts are slower alike: look at what they share, such as {shared}."))
    lines += _accused(found) or _nobody(found, beside=bool(lines))
    for style, text in lines:
        say(console, text[:1].upper() + text[1:], style=style)


def _accused(found: _Found) -> list[tuple[str, str]]:
    """Who is bad; nothing, where nobody is."""
    bad = [row for row in rows_of(found) if row.verdict in BAD]
    lines = []
    if bad:
        below = f"below {getattr(found, 'at_least', '') or 'a threshold'}"
        how = " or ".join(dict.fromkeys(below if row.verdict == "below" else row.verdict for row in bad))
        whom = _some([f"{row.host}{_short(row)}" for row in bad])
        verb = "is" if len(bad) == 1 else "are"
        lines.append(f"{len(bad)} of {counted(len(found.hosts), 'host')} {verb} {how}: {whom}")
    for each in (*found.links, *found.switches):
        lines.append(f"{_name(each)} is {each.condition}: {each.reason}")
    missed = [job.job for job in found.jobs if job.misses]
    if missed and not any(row.verdict == "below" for row in bad):
        count = counted(len(missed), "job")
        lines.append(f"no host alone is to blame, but {count} missed what was asked: {_some(missed)}")
    suspects = [("yellow", f"suspected as well: {_some(_suspects(found))}")] if _suspects(found) else []
    return [*(("red", line) for line in lines), *(suspects if lines else ())]


def _suspects(found: _Found) -> list[str]:
    """Who may well be bad, and what speaks against them most."""
    told = []
    for row in rows_of(found):
        if _suspected(row):
            slowest = max((one.slower for one in row.evidence if one.slower is not None), default=None)
            failed = any(one.slower is None for one in row.evidence)
            how = "a job failed" if failed else by_words(slowest) if slowest is not None else "no job tells"
            told.append(f"{row.host} ({how})")
    return told


def _nobody(found: _Found, *, beside: bool) -> list[tuple[str, str]]:
    """Where nobody is bad: how far that is known."""
    rows, total = rows_of(found), len(found.hosts)
    but = "beside each other, " if beside else ""
    if not rows:
        return [("yellow", "no host is known from these jobs, so none was judged")]
    grouped = {host for job in found.jobs if len(job.hosts) > 1 for host in job.hosts}
    left: dict[str, list[str]] = {}
    suspects = _suspects(found)
    verb = "is" if len(suspects) == 1 else "are"
    parts = [f"{len(suspects)} of {total} {verb} suspected: {_some(suspects)}"] if suspects else []
    for row in rows:
        subjects = row.beside_others.subjects if row.beside_others else ()
        why = not_judged(row.verdict, subjects, exchanged=row.host in grouped)
        if why and not _suspected(row):
            left.setdefault(why, []).append(row.host)
    parts += [_left(why, hosts, total) for why, hosts in left.items()]
    if parts:
        return [("yellow", f"{but}no host is known to be slow or failing, but {'; '.join(parts)}")]
    who = f"{_all(total)} {'is' if total == 1 else 'are'} fit"
    differ = sum(row.verdict == "differs" for row in rows)
    more = f"; {differ} of them slower by no more than this fleet's hosts differ" if differ else ""
    return [("green", "; ".join([f"{but}{who}{more}", *_unjudged(rows)]))]


def _left(why: str, hosts: Sequence[str], total: int) -> str:
    """What is not known, and of whom."""
    who = f"{f'{len(hosts)} of {total}' if len(hosts) < total else _all(total)} ({fold_hosts(hosts)})"
    if why.startswith("network"):
        return f"the network of {who} was not judged"
    return f"{who} {'is' if len(hosts) == 1 else 'are'} {'not known to be fit' if why == 'unknown' else why}"


def _all(total: int) -> str:
    return {1: "the host", 2: "both hosts"}.get(total, f"all {total} hosts")


def print_hosts(console: Console, found: _Found, *, every: bool) -> None:
    """The bad ones with the jobs that say so; those in doubt; the others in a line, or all in a table."""
    rows = rows_of(found)
    told = _Told(found)
    for row in [row for row in rows if row.verdict in BAD][: None if every else SHOWN]:
        block(
            console,
            COLOURS[row.verdict],
            row.verdict,
            row.host + told.guess([row.host]),
            [row.reason, *told.evidence(row)],
        )
    for verdict in (*found.links, *found.switches):
        lines = [verdict.reason, *map(told.line, verdict.evidence)]
        block(console, COLOURS[verdict.condition], verdict.condition, _name(verdict), lines)
    alike: dict[tuple[str, str, str], list[HostVerdict]] = {}
    for row in rows:
        if row.verdict in DOUBT:
            alike.setdefault((row.verdict, row.reason, _settle(row)), []).append(row)
    for (verdict_, reason, settle), some in list(alike.items())[: None if every else SHOWN]:
        lines = [reason, *([f"what would settle it: {settle}"] if settle else [])]
        lines += told.evidence(some[0]) if len(some) == 1 else []
        hosts = [row.host for row in some]
        block(console, COLOURS[verdict_], verdict_, _folded(hosts) + told.guess(hosts), lines)
    for verdict_ in SOUND:
        some = [row for row in rows if row.verdict == verdict_]
        if some:
            hosts = [row.host for row in some]
            lines = told.fit(some) if verdict_ == "fit" else told.differs(some)
            block(console, COLOURS[verdict_], verdict_, _folded(hosts) + told.guess(hosts), lines)
    for line in _unjudged(rows):
        say(console, line, style="yellow")
    if every and rows:
        console.print()
        print_table(console, _table(found, rows))


def print_normal(console: Console, peers: Sequence[Peers]) -> None:
    """What healthy jobs of each work take."""
    for each in peers:
        origin = ", from the baseline" if each.stored else ""
        speed = _speed(each.samples_per_second) or f"{format_seconds(each.step_seconds)} a step"
        say(
            console,
            f"normal on {counted(each.hosts, 'host')}: {speed}; healthy jobs differ by {each.deviation:.2%} "
            f"({counted(each.jobs, 'job')}{origin})  {each.work}",
            style="dim",
        )


def print_table(console: Console, table: Table) -> None:
    """A pipe has no width to fit into."""
    if not console.is_terminal:
        console.width = 1000
    if table.row_count:
        console.print(table)


class _Told:
    """What the jobs of a document say, by their names."""

    def __init__(self, found: _Found) -> None:
        self.jobs = {job.job: job for job in found.jobs}
        self.peers = {(each.work, each.hosts): each for each in found.peers}
        works = {each.work for each in found.peers}
        self.several = len({work.partition(",")[0] for work in works}) > 1
        known = {host for job in found.jobs if not job.hosts_from.startswith("guess") for host in job.hosts}
        self.guessed = {host for job in found.jobs for host in job.hosts} - known
        self.means = means_of(found.jobs)

    def guess(self, hosts: Sequence[str]) -> str:
        """Where the names of hosts are no more than that."""
        guessed = [host for host in hosts if host in self.guessed]
        if not guessed:
            return ""
        which = "" if len(guessed) == len(hosts) else f"{fold_hosts(guessed)}: "
        return f"  ({which}a guess from names of files, as no log says on which hosts it ran)"

    def evidence(self, row: HostVerdict) -> list[str]:
        """The jobs that decided, one a line."""
        return [self.line(each) for each in row.evidence]

    def line(self, one: Evidence) -> str:
        """How much slower than what, with whom, in which work, and which job."""
        entry = self.jobs.get(one.job)
        whom = f"with {_some(one.peers)}" if one.peers else "alone"
        work = f", {entry.work.partition(',')[0]}" if entry and self.several and entry.work else ""
        if one.slower is None:
            return f"failed {whom}{work}  {one.job}"
        by = by_words(one.slower)
        if one.what == "computing" or entry is None:
            what = "forward passes" if one.what == "computing" else "matrix products"
            return f"{by} in what it computes by itself ({what}){work}  {one.job}"
        return f"{by} {whom}{self._than(entry, one.slower)}{work}  {one.job}"

    def _than(self, entry: JobEntry, slower: float) -> str:
        """Its speed beside its peers'. Where that is another slowdown, it was compared with jobs of its own
        moment."""
        peers = self.peers.get((entry.work, len(set(entry.hosts))))
        if peers is None:
            return ""
        spread = f"(which differ by {peers.deviation:.2%})"
        own, theirs = entry.samples_per_second, peers.samples_per_second
        if own and theirs and abs(theirs / own - 1 - slower) > 0.001 * (1 + abs(slower)):
            return f": {_speed(own)}, beside jobs at the same time {spread}"
        if own and theirs:
            return f": {_speed(own)}, peers {format_number(theirs)} {spread}"
        mine = format_seconds(peers.step_seconds * (1 + slower))
        return f": {mine}, peers {format_seconds(peers.step_seconds)} {spread}"

    def fit(self, rows: Sequence[HostVerdict]) -> list[str]:
        """What was looked at, and who differs most."""
        parts = [text for name in ("compute", "card", "links") if (text := _looked(rows, name))]
        most = max((bound for row in rows if (bound := _beside(row, "at_most")) is not None), default=None)
        if not parts and most is not None:
            parts = [f"at most {most:.1%} slower than {'its' if len(rows) == 1 else 'their'} peers"]
        lines = [", ".join(parts)] if parts else list(dict.fromkeys(row.reason for row in rows))[:NAMED]
        own = {row.host for row in rows}
        means = [(mean, host, size) for (host, size), mean in self.means.items() if host in own]
        if len(rows) > 1 and means:
            mean, host, size = max(means, key=lambda each: each[0])
            group = "alone" if size == 1 else f"in groups of {size}"
            lines.append(f"differs most: {host}, {by_words(mean)} {group}")
        return lines

    def differs(self, rows: Sequence[HostVerdict]) -> list[str]:
        """By how much each, where they are few."""
        if len(rows) == 1:
            return [rows[0].reason]
        more = [f"and {len(rows) - NAMED} more; --all shows them"] if len(rows) > NAMED else []
        return [f"{row.host}: {row.reason}" for row in rows[:NAMED]] + more


def means_of(jobs: Sequence[JobEntry]) -> dict[tuple[str, int], float]:
    """(host, hosts of the job) -> its mean slowdown."""
    times: dict[tuple[str, int], list[float]] = {}
    for job in jobs:
        if job.slower is not None:
            for host in job.hosts:
                times.setdefault((host, len(job.hosts)), []).append(job.slower)
    return {key: sum(values) / len(values) for key, values in times.items()}


def by_words(slower: float) -> str:
    """0.05 -> '5.00% slower'."""
    if abs(slower) < 5e-5:
        return "as fast"
    if slower >= 1:
        return f"{1 + slower:.1f} times as long"
    return f"{abs(slower):.2%} {'faster' if slower < 0 else 'slower'}"


def _drift(each: Drift) -> str:
    """About the whole fleet."""
    than = "slower" if each.slower > 0 else "faster"
    now, before = each.now.samples_per_second, each.baseline.samples_per_second
    told = f"{_speed(now)}, where it had {format_number(before)}" if now and before else ""
    told = (
        told or f"{format_seconds(each.now.step_seconds)}, not {format_seconds(each.baseline.step_seconds)}"
    )
    return (
        f"the whole fleet is {abs(each.slower):.1%} (± {each.within:.1%}) {than} than the baseline: {told} "
        f"({counted(each.now.hosts, 'host')} a job, {each.now.work.partition(',')[0]})"
    )


def drift_notes(found: _Found) -> list[str]:
    """What is no fault: it became faster."""
    return [_drift(each) for each in found.drifted if each.slower <= 0]


def _short(row: HostVerdict) -> str:
    """In brackets behind a host's name."""
    verdict = row.beside_others
    if row.verdict == "below":
        return ""
    if row.verdict == "slow" and verdict is not None and verdict.slower is not None:
        where = _WHERE.get(verdict.kind or "")
        return f" ({verdict.slower:.1%} slower{f', {where}' if where else ''})"
    return " (its jobs fail)" if row.verdict == "failing" else f" ({row.reason})"


def _looked(rows: Sequence[HostVerdict], name: str) -> str:
    """What is known of one subject of these hosts: compute at most 0.4% slower."""
    all_ = [each for row in rows if row.beside_others for each in row.beside_others.subjects]
    known = [each for each in all_ if each.name == name and each.condition != "unknown"]
    if not known:
        return ""
    bounds = [each.at_most for each in known if each.at_most is not None]
    bound = f" at most {max(bounds):.1%} slower" if bounds else " fit"
    return f"{name}{bound}" + (f" ({len(known)} of {len(rows)})" if len(known) < len(rows) else "")


def _unjudged(rows: Sequence[HostVerdict]) -> list[str]:
    """What no reading told of, of any host."""
    subjects = [each for row in rows if row.beside_others for each in row.beside_others.subjects]
    seen = {each.name for each in subjects if each.condition != "unknown"}
    if not seen:
        return []
    return [*([] if "compute" in seen else [_COMPUTE]), *([] if seen & {"card", "links"} else [_NETWORK])]


def _table(found: _Found, rows: Sequence[HostVerdict]) -> Table:
    """A row per host: its mean time beside healthy ones', by the size of the group."""
    means = means_of(found.jobs)
    sizes = sorted({size for _, size in means})[:6]
    table = Table(box=None)
    for name in ("host", "verdict", *(counted(size, "host") for size in sizes), "why"):
        right = name[0].isdigit()
        table.add_column(name, no_wrap=right, overflow="fold", justify="right" if right else "left")
    for row in rows:
        own = [means.get((row.host, size)) for size in sizes]
        looked = [text for name in ("compute", "card", "links") if (text := _looked([row], name))]
        why = ", ".join(looked) if row.verdict == "fit" and looked else row.reason
        table.add_row(
            escape(row.host),
            f"[{COLOURS[row.verdict]}]{row.verdict}[/{COLOURS[row.verdict]}]",
            *("" if mean is None else f"{mean:+.2%}" for mean in own),
            escape(why),
        )
    return table


def _beside(row: HostVerdict, name: str) -> float | None:
    value: float | None = getattr(row.beside_others, name, None)
    return value


def _suspected(row: HostVerdict) -> bool:
    return row.verdict in DOUBT and (_beside(row, "confidence") or 0.0) >= SUSPECTED


def _settle(row: HostVerdict) -> str:
    return row.beside_others.settle if row.beside_others else ""


def _name(verdict: Verdict) -> str:
    if verdict.switch is not None:
        return f"switch {verdict.switch} ({fold_hosts(verdict.hosts)})"
    return f"link {' - '.join(verdict.hosts)}"


def _folded(hosts: Sequence[str]) -> str:
    return fold_hosts(hosts) + (f" ({len(hosts)} hosts)" if len(hosts) > 1 else "")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def speed_words(job: JobEntry) -> str:
    """In the units that are known."""
    tokens = f", {format_number(job.tokens_per_second)} tokens/s" if job.tokens_per_second else ""
    return f"{_speed(job.samples_per_second)}{tokens}"


def _speed(samples_per_second: float | None) -> str:
    return f"{format_number(samples_per_second)} samples/s" if samples_per_second else ""


def block(console: Console, colour: str, what: str, name: str, lines: Sequence[str]) -> None:
    """A heading, and what belongs to it."""
    console.print(f"[{colour}]{what}[/{colour}]: [bold]{escape(name)}[/bold]")
    for line in lines:
        say(console, line, indent=2)


def say(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """A paragraph; a terminal breaks it at spaces, below its begin."""
    begin, lines = " " * indent, [text]
    if console.is_terminal:
        room = max(20, console.width - indent)
        lines = textwrap.wrap(
            text, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    for line in lines:
        console.print(f"{begin}{escape(line)}", style=style or None)
