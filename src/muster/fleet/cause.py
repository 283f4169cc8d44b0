"""Find out why a job did not succeed, from how the hosts left and what the ranks reported. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from muster.core.job import Placement
from muster.core.result import Failure
from muster.core.state import RunEnd, State
from muster.failures.launchers import RANK_MARK
from muster.failures.sign import Sign, order, shortened
from muster.failures.table import blame_of, find, known_failures, why_lost
from muster.failures.wording import echo_of
from muster.fleet.messages import Kernel
from muster.readers._feed import sign_of
from muster.readers._frame import uncoloured
from muster.store import events

UNRESOLVED = "dns_unresolved"
_ADDRESSES = re.compile(r"addresses of \((\S+), \d+\)")
# What a host's rank printed, some lines at a time; None: what its command itself printed.
Words = Callable[[str, int | None], Iterable[Sequence[str]]]
_Cause = tuple[Sign, str, int | None]  # with the host and the rank that print it
_LOST = "lost another rank, or waited for one in vain"
_ACCOUNT = re.compile(r"exitcode +: (-?\d+)")  # torchrun's, of a rank

if TYPE_CHECKING:
    from muster.fleet.supervisor import Outcome

WATCHDOG = "nccl_watchdog_timeout"
CRASHES = (signal.SIGILL, signal.SIGTRAP, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
_SIGNALS: dict[int, str] = {signal.SIGBUS: "bus_error", signal.SIGHUP: "hangup"}  # -> the table's entry
LAST_WORDS = "its log in the run folder has its last words"  # where nothing is known of why


def judge_outcome(
    outcome: Outcome,
    failed: Iterable[events.Failed],
    done: Mapping[int, events.Done],
    world_size: int,
    places: Sequence[Placement] = (),
    rank_log: Callable[[str, int], str] = lambda host, rank: "",
) -> tuple[RunEnd, Failure | None]:
    """Return how a training ended: succeeded only where every host left cleanly and every rank reported its
    end.

    The host that failed first is examined first: the others were stopped because of it.
    """
    exits = dict(sorted(outcome.exits.items(), key=lambda item: item[0] != outcome.first_failed))
    # Of ranks that lost their connection to another one, whose failure says nothing about their own hosts.
    witnesses: list[Sign] = []
    reports = []
    for event in failed:  # in the order of arrival: hosts' clocks differ
        if not event.usage and blame_of(event.id) == "peer":
            witnesses.append(Sign("symptom", event.id, event.what, event.host or "", event.rank))
        else:
            reports.append(event)
    if outcome.stopped:
        return State.STOPPED, Failure(what=outcome.stopped)
    for problem in outcome.problems.values():
        return State.FAILED, problem
    for event in reports:  # bad input that ranks found explains everything that came after
        if event.usage:
            return State.FAILED, _from(event)
    if any(reason == "deadline" for _, reason in exits.values()):  # of every host, so it is no host's fault
        return State.TIMEOUT, Failure(what="launch.timeout was reached")
    deaths = {
        host: _Death(outcome.culprits[host][0], -code, outcome.culprits[host][1])
        for host, (code, _) in exits.items()
        if code is not None and code < 0 and host in outcome.culprits
    }
    for host, death in deaths.items():
        if death.signal == signal.SIGABRT:
            words = watchdog_words(rank_log(host, death.rank).splitlines())
            if words:  # NCCL's watchdog ends the rank that waited, and not the one that it waited for
                witnesses.append(Sign("symptom", WATCHDOG, words, host, death.rank))
                continue
        if death.signal != signal.SIGTERM:  # schedulers and launchers end all ranks by SIGTERM
            return State.FAILED, _killed(host, death, outcome.kernel.get(host, Kernel()))
    if outcome.lost:
        host, why = next(iter(outcome.lost.items()))
        return State.FAILED, Failure(
            what=f"the host was lost: {why}",
            host=host,
            hint="its ranks end by themselves",
            id=why_lost(why),
        )
    if reports:
        return State.FAILED, _from(reports[0])
    missed = {witness.host for witness in witnesses}
    for host, death in deaths.items():
        if death.signal == signal.SIGTERM and host not in missed:
            return State.FAILED, _killed(host, death, outcome.kernel.get(host, Kernel()))
    bad = {host: left for host, left in exits.items() if left != (0, None)}
    for host, (code, reason) in bad.items():
        if host not in missed and reason != "stopped":
            return State.FAILED, _without_a_word(host, code, reason, outcome.culprits.get(host))
    if witnesses:
        return State.FAILED, _missed(witnesses, set(done), places)
    if bad:
        host, (code, reason) = next(iter(bad.items()))
        return State.FAILED, _without_a_word(host, code, reason, outcome.culprits.get(host))
    missing = sorted(set(range(world_size)) - set(done))
    if missing:
        ranks = ", ".join(str(rank) for rank in missing)
        return State.FAILED, Failure(what=f"rank {ranks} left without saying that it was done")
    return State.SUCCEEDED, None


def judge_command(
    outcome: Outcome, words: Words, places: Sequence[Placement]
) -> tuple[RunEnd, Failure | None]:
    """Return how a user's command ended: succeeded where it ended with exit code 0 on all hosts.

    The host that failed first is read first. What ranks print counts before what was seen from outside. A
    rank that was killed prints nothing, and then the others only report that they lost it.
    """
    status, failure = judge_outcome(outcome, (), {}, 0, places)
    failed = [host for host, left in outcome.exits.items() if left != (0, None) and left[1] != "stopped"]
    if failure is None or status != State.FAILED or outcome.problems or not failed:
        return status, failure
    ordered = sorted(failed, key=lambda host: host != outcome.first_failed)
    if _from_outside(outcome.exits[ordered[0]][1]):  # what its ranks printed is no cause of that
        return status, failure
    killed = outcome.exits[ordered[0]][0] == -signal.SIGKILL
    if killed and ordered[0] in outcome.culprits:  # a rank without last words: those of others are echoes
        return status, failure
    ordered = ordered[:1] if killed else ordered
    by_host = {place.host: place for place in places}
    cause: _Cause | None = None
    for host in ordered:
        account = sign_of(words(host, None))  # of torchrun, with the rank that failed first
        ranks = sorted(by_host[host].ranks, key=lambda rank: account is None or rank != account.rank)
        for rank in (*ranks, None):
            sign = account if rank is None else sign_of(words(host, rank))
            if sign and not sign.is_echo and (cause is None or order(sign.weight) < order(cause[0].weight)):
                cause = sign, host, rank
    # No line says why, or one does that follows from another.
    if cause is None or cause[0].weight in ("exit", "crash"):
        cause = _killed_before(outcome, words) or _raised_before(outcome, words, by_host) or cause
    if cause is None and killed:
        return status, failure
    if cause is None:
        return status, _with_last_words(failure, words, by_host[ordered[0]])
    sign, host, rank = cause
    rank = sign.rank if rank is None else rank
    if sign.weight == "exit":  # torchrun's account, or the like: no line says why
        code = _ACCOUNT.search(sign.text)
        if code and rank is not None:
            left = _Death(rank, -int(code[1]), 0)
            ended = f"rank {rank} ended with exit code {code[1]}"
            what = _killed(host, left, Kernel()).what if left.signal > 0 else ended
            failure = Failure(what=what, where=f"rank {rank}", host=host, hint=LAST_WORDS)
        return status, _with_last_words(failure, words, by_host[host], rank)
    entry = sign.entry
    if sign.weight == "killed":  # a launcher sees the signal; the kernel knows who sent it
        pid = re.search(r"\bpid:? (\d+)", sign.text)
        who = "a rank" if rank is None else f"rank {rank}"
        who = f"a data loader's worker of {who}" if "DataLoader" in sign.text else who
        kernel = outcome.kernel.get(host, Kernel())
        killed_by = by_sigkill(who, host, kernel, int(pid[1]) if pid else None)
        where = None if rank is None else f"rank {rank}"
        return status, killed_by.model_copy(update={"where": where})
    return status, Failure(
        what=shortened(sign.text),
        where=None if rank is None else f"rank {rank}",
        host=host,
        hint=entry.remedy_on(host) if entry else failure.hint,
        id=sign.failure,
    )


def unresolved(words: Words, places: Sequence[Placement]) -> Failure | None:
    """Return the failure of a rank that kept asking for a name that its host cannot resolve; None: there is
    none."""
    entry = known_failures()[UNRESOLVED]
    for place in places:
        for rank in (*place.ranks, None):
            sign = sign_of(words(place.host, rank))
            if sign is not None and sign.failure == UNRESOLVED:
                name = _ADDRESSES.search(sign.text)
                return Failure(
                    what=f"the name {name[1]} cannot be looked up" if name else shortened(sign.text),
                    where=None if rank is None else f"rank {rank}",
                    host=place.host,
                    hint=entry.remedy_on(name[1] if name else place.host),
                    id=entry.id,
                )
    return None


def _killed_before(outcome: Outcome, words: Words) -> _Cause | None:
    """Return what torchrun reports of a killed rank on a host that was stopped. torchrun is slow to report:
    the host of a rank that only lost the killed one may have failed first. A signal that stops a host ends
    torchrun with its ranks, so then there is no such report."""
    for host, (_, reason) in outcome.exits.items():
        sign = sign_of(words(host, None)) if reason == "stopped" else None
        if sign and sign.weight == "killed" and _ACCOUNT.search(sign.text):
            return sign, host, None
    return None


def _raised_before(outcome: Outcome, words: Words, places: Mapping[str, Placement]) -> _Cause | None:
    """Return the exception of a rank on a host that was stopped: gloo ends the rank that lost it by SIGABRT,
    and the torchrun of that rank may report first."""
    for host, (_, reason) in outcome.exits.items():
        for rank in places[host].ranks if reason == "stopped" and host in places else ():
            sign = sign_of(words(host, rank))
            if sign and sign.weight == "exception" and not sign.is_echo:
                return sign, host, rank
    return None


def _with_last_words(failure: Failure, words: Words, place: Placement, first: int | None = None) -> Failure:
    """Add the last line that a rank of the host printed, or else its command, where no cause is named."""
    for rank in (*((first,) if first is not None else place.ranks), None):
        last = ""
        for block in words(place.host, rank):
            last = next((line for line in reversed(block) if line.strip()), last)
        if last and not (rank is None and last.startswith("===")):
            how = f"it {_LOST}" if echo_of(last) else "its last line"
            what = f"{failure.what}; {how}: {shortened(RANK_MARK.sub('', uncoloured(last)))}"
            return failure.model_copy(update={"what": what})
    return failure


def with_way_on(failure: Failure, run: str, saved: Sequence[events.Saved], lost: str | None) -> Failure:
    """Add the command that continues from the last checkpoint, where there is one. `lost`: a host that was
    lost while others are left."""
    step = max((each.step for each in saved if each.step), default=None)
    if step is None:
        return failure
    words = f"`muster resume {run}` goes on from the checkpoint of step {step}"
    if failure.usage:  # such as a reward function's own file
        words = f"once that is mended, {words}"
    if lost is not None:
        words += f", with `--without {lost}` on the other hosts"
    hint = "; ".join(part for part in (failure.hint, words) if part)
    return failure.model_copy(update={"hint": hint})


def watchdog_words(log: Iterable[str]) -> str | None:
    """Return the first line of NCCL's watchdog when it ended a rank; None: there is none."""
    matching = (line.strip()[:300] for line in log if (match := find(line)) and match.failure.id == WATCHDOG)
    return next(matching, None)


def _missed(witnesses: Sequence[Sign], done: set[int], places: Sequence[Placement]) -> Failure:
    """Return the failure of a rank that others lost, with its host where only one is possible."""
    speaking = {witness.rank for witness in witnesses} | done
    silent = {
        place.host: [rank for rank in place.ranks if rank not in speaking]
        for place in places
        if any(rank not in speaking for rank in place.ranks)
    }
    first = witnesses[0]
    words = " ".join(witness.text for witness in witnesses)
    named = [
        place.host
        for place in places
        if place.host in silent and any(_names(name, words) for name in (place.host, place.address))
    ]
    candidates = named if len(named) == 1 else list(silent)
    who = f"rank {first.rank} on {first.host}" if first.rank is not None else str(first.host)
    if len(candidates) == 1:
        ranks = silent[candidates[0]]
        where = f"rank {', '.join(map(str, ranks))}"
        return Failure(
            what=f"{where} stopped answering; {who} says: {first.text}",
            where=where,
            host=candidates[0],
            hint=f"look at {candidates[0]} and its network",
            id=first.failure,
        )
    others = f"one of {', '.join(candidates)}" if candidates else "one of the others"
    return Failure(
        what=f"{who} {_LOST}: {first.text}",
        hint=f"that rank, on {others}, is the cause; which one is not known: see the hosts' logs",
        id=first.failure,
    )


def _names(name: str, words: str) -> bool:
    return bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", words))


def _without_a_word(
    host: str, code: int | None, reason: str | None, culprit: tuple[int, int] | None
) -> Failure:
    if _from_outside(reason):
        hint = "by a scheduler (scancel, a time limit) or a person, not by Muster and not because of a rank"
        return Failure(what=f"the agent of that host was ended by {reason}", host=host, hint=hint)
    who = f"rank {culprit[0]}" if culprit else "a rank"
    what = reason or f"{who} ended with exit code {code}"
    return Failure(what=what, host=host, hint=LAST_WORDS)


def _from_outside(reason: str | None) -> bool:
    """Return whether an agent left because of a signal, by the reason that it gave."""
    return (reason or "").startswith("signal ")


def _from(event: events.Failed) -> Failure:
    return Failure(
        what=event.what,
        where=event.where or (f"rank {event.rank}" if not event.usage else None),
        host=event.host,
        hint=event.hint,
        usage=event.usage,
        id=event.id,
    )


class _Death(NamedTuple):
    """The end of the rank that failed first on a host, by a signal."""

    rank: int
    signal: int
    pid: int


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGSEGV, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _killed(host: str, death: _Death, kernel: Kernel) -> Failure:
    who = f"rank {death.rank}"
    if death.signal == signal.SIGKILL:
        return by_sigkill(who, host, kernel, death.pid).model_copy(update={"where": who})
    id = _SIGNALS.get(death.signal, "crashed" if death.signal in CRASHES else "")
    entry = known_failures().get(id)
    what = f"{who} was ended by {signal_name(death.signal)}"
    hint, failure = (entry.remedy_on(host), entry.id) if entry else (None, None)
    return Failure(what=what, where=who, host=host, hint=hint, id=failure)


def by_sigkill(who: str, host: str, kernel: Kernel, pid: int | None = None) -> Failure:
    """Return the failure of a process that SIGKILL ended, and whether the out-of-memory killer sent it, as
    far as the kernel reports."""
    killer = "the kernel's out-of-memory killer"
    logged = [line for line in kernel.log or [] if pid and re.search(rf"Killed process {pid}\b", line)]
    if logged or kernel.group:
        seen = logged[0] if logged else f"its control group counts {kernel.group} such kills"
        own = bool(logged) and "cgroup" in logged[0]  # its group's limit, and not the host's memory
        entry = known_failures()["container_oom" if own else "host_oom_killed"]
        what, hint = f"{who} was killed by {killer}", f"{seen}; {entry.remedy}"
        return Failure(what=what, host=host, hint=hint, id=entry.id)
    denied = {
        "its control group's counter": kernel.group is not None,
        "the host's counter": kernel.machine == 0,
        "the kernel's log": kernel.log == [],
    }
    if any(denied.values()):
        seen = " and ".join(name for name, good in denied.items() if good)
        others = "a person, a scheduler, systemd-oomd or a program may have sent it"
        hint = f"on {host}, {seen} tell of no such kill: {others}"
        return Failure(what=f"{who} was killed by SIGKILL, not by {killer}", host=host, hint=hint)
    seen = f"it ended {kernel.machine} processes meanwhile" if kernel.machine else "nothing of it can be read"
    hint = f"whether by {killer} is not known ({seen}): `dmesg -T | grep -i oom` on {host}"
    return Failure(what=f"{who} was killed by SIGKILL", host=host, hint=hint)
