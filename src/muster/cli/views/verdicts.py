"""Verdicts on hosts, links and switches, for people: the answer, then the reasons, then all other hosts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.benches.document import Bench
from muster.cli.output import print_table, table, tinted
from muster.core.hostlist import fold_hosts
from muster.core.state import State
from muster.core.units import counted, format_number, format_seconds, format_slower
from muster.failures.table import is_hardware
from muster.judging.document import (
    BAD,
    Drift,
    Evidence,
    JobEntry,
    Judged,
    Peers,
    Verdict,
    looked_at,
)
from muster.readers._lines import OF_A_DEVICE

SHOWN = 100  # hosts that are not fit, one by one
NAMED = 4  # in a sentence
SUSPECTS = 8  # of which one is bad, by their names; more are folded
SUSPECTED = 0.2  # probability of being bad from which on the answer names a host in doubt
COLOURS = {
    "fit": "green", "differs": "green", "probably fit": "yellow", "unknown": "yellow",
    "unfit": "red", "slow": "red", "failing": "red", "below": "red",
}  # fmt: skip
DOUBT, SOUND = ("unknown", "probably fit"), ("differs", "fit")
_NETWORK = "the network was not judged: no job on more than one host could be compared"
_COMPUTE = "computing was not judged: no job on one host could be compared"
_SPEEDS = (("samples_per_second", "samples/s"), ("tokens_per_second", "tokens/s"))
_MARK = re.compile(r", [0-9a-f]{8}(?:,|$)")


def rows_of(document: Judged) -> list[Verdict]:
    """Return a row per host, the worst first; among equals the slowest, then in the document's order."""
    order = (*BAD, *DOUBT, *SOUND)
    return sorted(document.hosts, key=lambda row: (order.index(row.condition), -(row.slower or 0.0)))


def print_answer(console: Console, document: Judged) -> None:
    """Print the answer in a line or a few."""
    lines = [("red", _drift(each)) for each in document.drifted if each.slower > 0]
    if lines:
        lines.append(("", "look at what its hosts share: software, settings, clocks, storage or network"))
    lines += _accused(document) or _nobody(document, after_others=bool(lines))
    for style, text in lines:
        say(console, text[:1].upper() + text[1:], style=style)


def count_words(document: Judged) -> str:
    """Return hosts by verdict, and jobs by how they ended, on one line."""
    ends = [f"{count} {end_words(outcome)}" for outcome, count in document.outcomes.items() if count]
    hosts = f"{counted(len(document.hosts), 'host')}: {tinted(document.summary, COLOURS) or 'none'}"
    return f"{hosts}; {counted(len(document.jobs), 'job')}: {', '.join(ends) or 'none'}"


def end_words(outcome: str) -> str:
    """Return how a job ended, in words."""
    return "timed out" if outcome == State.TIMEOUT else outcome


def print_notes(console: Console, document: Judged) -> None:
    """Print what became faster, which is no fault, and the document's notes."""
    faster = [_drift(each) for each in document.drifted if each.slower <= 0]
    for note in [*faster, *document.notes]:
        console.print(f"[yellow]note[/yellow] {escape(note)}")


def _accused(document: Judged) -> list[tuple[str, str]]:
    """Return the bad hosts in words; nothing where there are none."""
    bad = [row for row in rows_of(document) if row.condition in BAD]
    lines = []
    if bad:
        below = f"below {document.at_least or 'a threshold'}"
        how = " or ".join(dict.fromkeys(below if row.condition == "below" else row.condition for row in bad))
        named = [f"{row.host} ({_short(row)})" for row in bad if row.condition != "below"]
        low = fold_hosts([row.host for row in bad if row.condition == "below"])
        whom = ", ".join(part for part in (_some(named), low) if part)
        verb = "is" if len(bad) == 1 else "are"
        total = len(document.hosts)
        which = f"{len(bad)} of {total} hosts" if len(bad) < total else _all(total)
        lines.append(f"{which} {verb} {how}: {whom}")
    for each in (*document.links, *document.switches):
        lines.append(f"{_name(each)} is {each.condition}: {each.reason}")
    for names in document.one_of:
        rows = [row for row in rows_of(document) if row.host in names]
        ended = {one.job for row in rows for one in row.evidence if one.slower is None}
        broken = any(is_hardware(job.failure, job.reason) for job in document.jobs if job.job in ended)
        some = ", ".join(names) if len(names) <= SUSPECTS else fold_hosts(names)
        some = f"at least one of {some}" if len(names) > 1 else some
        if broken:
            lines.append(f"{some} is bad: a job failed with an error of broken hardware")
        else:
            link = " or the link between them" if len(names) > 1 else ""
            lines.append(f"{some}{link} is bad: {_against(rows, document)}")
    guilty = {row.host for row in bad}
    missed = [job.job for job in document.jobs if job.misses and guilty.isdisjoint(job.hosts)]
    if missed and not any(row.condition == "below" for row in bad):
        count = counted(len(missed), "job")
        lines.append(f"no host alone is to blame, but {count} missed what was asked: {_some(missed)}")
    failed = [job.job for job in document.jobs if job.outcome in (State.FAILED, State.TIMEOUT)]
    if failed and isinstance(document, Bench) and not lines:
        lines.append(f"no host is known to be bad, but {counted(len(failed), 'job')} failed: {_some(failed)}")
    suspects = [("yellow", f"suspected as well: {_some(_suspects(document))}")] if _suspects(document) else []
    return [*(("red", line) for line in lines), *(suspects if lines else ())]


def _suspects(document: Judged) -> list[str]:
    """Return the hosts that may well be bad, and the strongest evidence against them; not those of a pair in
    which one surely is bad."""
    named = {name for names in document.one_of for name in names}
    return [
        f"{row.host} ({_against([row], document)})"
        for row in rows_of(document)
        if _suspected(row) and row.host not in named
    ]


def _against(rows: Sequence[Verdict], document: Judged) -> str:
    """Return the strongest evidence against these hosts."""
    evidence = [one for row in rows for one in row.evidence]
    ended = {one.job for one in evidence if one.slower is None}
    if ended:
        timed_out = all(job.outcome is State.TIMEOUT for job in document.jobs if job.job in ended)
        return f"a job {'timed out' if timed_out else 'failed'}"
    slowest = max((one.slower for one in evidence if one.slower is not None), default=None)
    return "no job shows" if slowest is None else format_slower(slowest)


def _nobody(document: Judged, *, after_others: bool) -> list[tuple[str, str]]:
    """Return the answer where no host is bad: how far that is certain."""
    rows, total = rows_of(document), len(document.hosts)
    but = "with each other, " if after_others else ""
    if not rows:
        return [("yellow", "no host is known from these jobs, so none was judged")]
    left: dict[str, list[str]] = {}
    suspects = _suspects(document)
    verb = "is" if len(suspects) == 1 else "are"
    parts = [f"{len(suspects)} of {total} {verb} suspected: {_some(suspects)}"] if suspects else []
    for row in rows:
        why = document.left[row.host]
        if why and not _suspected(row):
            left.setdefault(why, []).append(row.host)
    parts += [_left(why, hosts, total) for why, hosts in left.items()]
    if parts:
        return [("yellow", f"{but}no host is known to be slow or failing, but {'; '.join(parts)}")]
    who = f"{_all(total)} {'is' if total == 1 else 'are'} fit"
    differ = sum(row.condition == "differs" for row in rows)
    more = f"; {differ} of them slower by no more than this fleet's hosts differ" if differ else ""
    return [("green", "; ".join([f"{but}{who}{more}", *_unjudged(rows)]))]


def _left(why: str, hosts: Sequence[str], total: int) -> str:
    """Return what is not known, and of which hosts."""
    if why == "unknown" and len(hosts) == total > 1:
        return (
            f"{'neither' if total == 2 else 'none'} of the {total} ({fold_hosts(hosts)}) is known to be fit"
        )
    who = f"{f'{len(hosts)} of {total}' if len(hosts) < total else _all(total)} ({fold_hosts(hosts)})"
    if why.startswith("network"):
        return f"the network of {who} was not judged"
    return f"{who} {'is' if len(hosts) == 1 else 'are'} {'not known to be fit' if why == 'unknown' else why}"


def _all(total: int) -> str:
    return {1: "the host", 2: "both hosts"}.get(total, f"all {total} hosts")


def print_hosts(console: Console, document: Judged, *, every: bool) -> None:
    """Print the bad hosts with the jobs that show it; those in doubt; the others in a line, or all in a
    table."""
    rows, evidence = rows_of(document), _JobRows(document, every=every)
    alike: dict[tuple[str, str], list[Verdict]] = {}
    for row in rows:
        by_itself = row.condition in BAD[:-1] or _suspected(row)
        alone = row.condition == "unknown" or _by_thresholds(row)
        why = row.host if by_itself else row.reason if alone else ""
        alike.setdefault((row.condition, why), []).append(row)
    bad, doubt, sound = (
        [some for (verdict, _), some in alike.items() if verdict in among] for among in (BAD, DOUBT, SOUND)
    )
    room = len(rows) if every else SHOWN
    for some in bad[:room]:
        evidence.show(console, some)
    for verdict in (*document.links, *document.switches):
        lines = [verdict.reason, *(evidence.line(each, verdict) for each in verdict.evidence)]
        block(console, COLOURS[verdict.condition], verdict.condition, _name(verdict), lines)
    for some in doubt[:room]:
        evidence.show(console, some)
    hidden = sum(map(len, (*bad[room:], *doubt[room:])))
    if hidden:
        say(console, f"and {counted(hidden, 'host')} more that are not fit; --all shows them")
    for some in sound:
        evidence.show(console, some)
    if evidence.guessed:
        say(console, "a guess: from the name of a file or folder, as the log does not say where it ran")
    for line in _unjudged(rows) if bad or doubt else ():  # else the answer has it
        say(console, line, style="yellow")
    if every and rows:
        console.print()
        print_table(console, _table(document, rows))


def print_normal(console: Console, peers: Sequence[Peers], slow: float) -> None:
    """Print what healthy jobs of each work take, and what counts as slow where that is more than `slow`."""
    for each in peers:
        origin = ", from the baseline" if each.stored else ""
        more = each.least is not None and each.least > slow * 1.001
        counts = f"; only {each.least:.1%} or more counts as slow" if more else ""
        say(
            console,
            f"normal on {counted(each.hosts, 'host')}: {speed_words(each)}; healthy jobs differ by "
            f"{each.deviation:.2%} ({counted(each.jobs, 'job')}{origin}){counts}  {each.work}",
            style="dim",
        )
    if peers:
        say(console, "slower: by so much more time for a step; 100% slower is half the speed", style="dim")


class _JobRows:
    """The jobs of a document, by name, in words."""

    def __init__(self, document: Judged, *, every: bool) -> None:
        self.room = len(document.hosts) if every else NAMED
        self.jobs = {job.job: job for job in document.jobs}
        self.peers = {(each.work, each.hosts): each for each in document.peers}
        self.several = len({_label(each.work) for each in document.peers}) > 1
        named = [job for job in document.jobs if not job.hosts_from.startswith("guess")]
        placed = {host for job in named for host in job.hosts}
        self.guessed = {host for job in document.jobs for host in job.hosts} - placed
        self.alone: dict[str, dict[str, float]] = {}  # host -> job -> how much slower
        for job in document.jobs:
            if job.slower is not None and len(job.hosts) == 1:
                self.alone.setdefault(job.hosts[0], {})[job.job] = job.slower

    def guess(self, hosts: Sequence[str]) -> str:
        """Return a note where the names of hosts are guesses."""
        guessed = [host for host in hosts if host in self.guessed]
        if not guessed:
            return ""
        which = "" if len(guessed) == len(hosts) else f"{fold_hosts(guessed)}: "
        return f" ({which}a guess)"

    def show(self, console: Console, rows: Sequence[Verdict]) -> None:
        """Print hosts with the same verdict together."""
        hosts, verdict = [row.host for row in rows], rows[0].condition
        lines = self.fit(rows) if verdict == "fit" else self.why(rows)
        name = fold_hosts(hosts) + (f" ({len(hosts)} hosts)" if len(hosts) > 1 else "")
        block(console, COLOURS[verdict], verdict, name + self.guess(hosts), lines)

    def line(self, one: Evidence, shared: Verdict | None = None) -> str:
        """Return how much slower than what, with which hosts, in which work, and which job. `shared`: the
        link or switch that it is about; else it is about a host."""
        entry = self.jobs.get(one.job)
        work = one.work or (entry.work if entry else "")
        where = f" in {_label(work)}" if work and (self.several or entry is None) else ""
        whom = f"with {_some(one.peers)}" if one.peers else "alone"
        if shared is not None:
            names = [*(shared.hosts if shared.switch is None else ()), *one.peers]
            whom = f"of {_some(names)}" if names else "among the hosts behind it"
        if one.slower is None:
            how = "timed out" if entry and entry.outcome is State.TIMEOUT else "failed"
            return f"{how} {whom}{where}  {one.job}"
        by = format_slower(one.slower)
        if one.what == "computing":
            return f"{by} in what it computes by itself (forward passes), {whom}{where}  {one.job}"
        size = len(set(entry.hosts)) if entry else 1 + len(one.peers)
        return f"{by} {whom}{where}{self._than(work, entry, size, one.slower)}  {one.job}"

    def _than(self, work: str, entry: JobEntry | None, size: int, slower: float) -> str:
        """Return its speed next to its peers'. Where the two differ by another slowdown, it was compared with
        jobs of its own moment."""
        peers = self.peers.get((work, size))
        if peers is None:
            return ""
        whose = "baseline" if peers.stored else "peers"
        spread = f"(which differ by {peers.deviation:.2%})"
        both = _speeds(entry, peers) if entry else None
        if both is None:
            mine = format_seconds(peers.step_seconds * (1 + slower))
            return f": {mine}, {whose} {format_seconds(peers.step_seconds)} {spread}"
        own, theirs, unit = both
        if abs(theirs / own - 1 - slower) > 0.001 * (1 + abs(slower)):
            spread = "" if peers.side_by_side is None else f" (which differ by {peers.side_by_side:.2%})"
            return f": {format_number(own)} {unit}, compared with jobs at the same time{spread}"
        return f": {format_number(own)} {unit}, {whose} {format_number(theirs)} {spread}"

    def fit(self, rows: Sequence[Verdict]) -> list[str]:
        """Return what was judged, and which host differs most."""
        parts = looked_at({row.host: row.subjects for row in rows})
        bounds = {row.host: row.at_most for row in rows if row.at_most is not None}
        every = ", in every work" if self.several else ""
        lines = [rows[0].reason] if _by_thresholds(rows[0]) else [", ".join(parts) + every]
        means = {
            row.host: mean
            for row in rows
            if (mean := self._alone(row)) is not None and abs(mean) <= bounds.get(row.host, 0.0)
        }
        if len(means) > 1:
            most = max(means, key=lambda host: means[host])
            lines.append(f"differs most: {most}, {format_slower(means[most])} alone")
        return lines

    def _alone(self, row: Verdict) -> float | None:
        """Return its mean alone: relative to jobs of the same moment, where the evidence has that."""
        slowdowns = {
            one.job: one.slower for one in row.evidence if one.slower is not None and one.what == "step"
        }
        times = [slowdowns.get(job, slower) for job, slower in self.alone.get(row.host, {}).items()]
        return sum(times) / len(times) if times else None

    def why(self, rows: Sequence[Verdict]) -> list[str]:
        """Return the reasons, and what would settle it; of one host also the jobs that decided."""
        lines = list(dict.fromkeys(row.reason for row in rows))
        if len(lines) > 1:
            more = [f"and {len(rows) - self.room} more; --all shows them"] if len(rows) > self.room else []
            lines = [*(f"{row.host}: {row.reason}" for row in rows[: self.room]), *more]
        settle = list(dict.fromkeys(row.settle for row in rows if row.settle))
        jobs = rows[0].evidence if len(rows) == 1 and rows[0].condition not in ("below", "differs") else []
        return [
            *lines,
            *([f"what would settle it: {_some(settle)}"] if settle else []),
            *(self.line(each) for each in jobs),
        ]


def means_of(jobs: Sequence[JobEntry]) -> dict[tuple[str, int], float]:
    """Return, by host and number of hosts of the job, its slowdown in the work where it is slowest. Alone:
    the mean of its jobs. In groups, which run at the pace of their slowest host: the fastest of them."""
    times: dict[tuple[str, int], dict[str, list[float]]] = {}
    for job in jobs:
        if job.slower is not None:
            for host in job.hosts:
                times.setdefault((host, len(job.hosts)), {}).setdefault(job.work, []).append(job.slower)
    return {
        (host, size): max(sum(each) / len(each) if size == 1 else min(each) for each in works.values())
        for (host, size), works in times.items()
    }


def signed(slower: float) -> str:
    """Return a share with its sign: 0.05 -> '+5.00%', -1e-9 -> '+0.00%'."""
    return f"{round(slower, 4) + 0.0:+.2%}"


def _drift(each: Drift) -> str:
    """Return a sentence about the whole fleet's drift."""
    than = "slower" if each.slower > 0 else "faster"
    both = _speeds(each.now, each.baseline)
    now, before = format_seconds(each.now.step_seconds), format_seconds(each.baseline.step_seconds)
    if both is not None:
        now, before = f"{format_number(both[0])} {both[2]}", format_number(both[1])
    return (
        f"the whole fleet is {abs(each.slower):.1%} (± {each.within:.2%}) {than} than the baseline: {now}, "
        f"where it had {before} ({counted(each.now.hosts, 'host')} a job, {_label(each.now.work)})"
    )


def _short(row: Verdict) -> str:
    """Return what follows a host's name in brackets."""
    if row.condition == "slow" and row.slower is not None:
        where = row.reason.partition(":")[0].partition(", ")[2]
        by = format_slower(row.slower, digits=1, within=row.within)
        return f"{by}{f', {where}' if where else ''}"
    return "its jobs fail" if row.condition == "failing" else row.reason


def _by_thresholds(row: Verdict) -> bool:
    """Return whether a host is fit by thresholds, without others to compare it with."""
    return row.condition == "fit" and row.at_most is None


def _unjudged(rows: Sequence[Verdict]) -> list[str]:
    """Return what no reading covers, of any host."""
    subjects = [each for row in rows for each in row.subjects]
    seen = {each.name for each in subjects if each.jobs or each.condition != "unknown"}
    if not seen:
        return []
    return [*([] if "compute" in seen else [_COMPUTE]), *([] if seen & {"card", "links"} else [_NETWORK])]


def _table(document: Judged, rows: Sequence[Verdict]) -> Table:
    """Return a row per host: how much slower it was in its slowest work, by the size of the group."""
    means = means_of(document.jobs)
    sizes = sorted({size for _, size in means})[:6]
    made = table("host", "verdict", *(f">{counted(size, 'host')}" for size in sizes), "why")
    for row in rows:
        own = [means.get((row.host, size)) for size in sizes]
        made.add_row(
            escape(row.host),
            f"[{COLOURS[row.condition]}]{row.condition}[/{COLOURS[row.condition]}]",
            *("" if mean is None else signed(mean) for mean in own),
            escape(row.reason),
        )
    return made


def _label(work: str) -> str:
    """Return the work without the mark of its settings and what follows."""
    return _MARK.split(work, maxsplit=1)[0]


def _suspected(row: Verdict) -> bool:
    return row.condition in DOUBT and row.confidence >= SUSPECTED


def _name(verdict: Verdict) -> str:
    if verdict.switch is not None:
        return f"switch {verdict.switch} ({fold_hosts(verdict.hosts)})"
    return f"link {' - '.join(verdict.hosts)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def speed_words(of: JobEntry | Peers) -> str:
    """Return a speed in the units that are known."""
    speeds = [(getattr(of, name), unit) for name, unit in _SPEEDS]
    whose = " of one device" if isinstance(of, JobEntry) and OF_A_DEVICE in of.notes else ""
    rates = ", ".join(
        f"{format_number(rate)} {unit}{whose if 'tokens' in unit else ''}" for rate, unit in speeds if rate
    )
    return rates or (f"{format_seconds(of.step_seconds)} a step" if of.step_seconds else "")


def _speeds(one: JobEntry | Peers, other: Peers) -> tuple[float, float, str] | None:
    """Return both speeds in the first unit that is known of both."""
    for name, unit in _SPEEDS:
        own, theirs = getattr(one, name), getattr(other, name)
        if own and theirs:
            return own, theirs, unit
    return None


def block(console: Console, colour: str, what: str, name: str, lines: Sequence[str]) -> None:
    """Print a heading, and its lines."""
    console.print(f"[{colour}]{what}[/{colour}]: [bold]{escape(name)}[/bold]")
    for line in lines:
        say(console, line, indent=2)


def say(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a paragraph; a terminal breaks it at spaces, indented like its begin."""
    begin, lines = " " * indent, [text]
    if console.is_terminal:
        room = max(20, console.width - indent)
        lines = textwrap.wrap(
            text, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    for line in lines:
        console.print(f"{begin}{escape(line)}", style=style or None)
