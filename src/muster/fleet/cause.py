"""Why a job did not succeed: from how the hosts left and what the ranks said. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from muster.core.job import Placement
from muster.core.result import Failure, Status
from muster.fleet.messages import Kernel
from muster.store import events

if TYPE_CHECKING:
    from muster.fleet.supervisor import Outcome

# torchrun's own table: "exitcode  : -9 (pid: 4711)" below "rank      : 1 (local_rank: 0)"
_DEATH = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank.*?exitcode\s*:\s*(?P<code>-?\d+) \(pid: (?P<pid>\d+)", re.DOTALL
)

# A rank that says so has lost another one: it is a witness, and what it says tells nothing of its own host.
_PEER_GONE = re.compile(
    r"connection (?:reset|closed|refused)|broken pipe|socket timeout|\bpeer\b|timed out waiting|wait timeout|"
    r"ncclRemoteError|ncclSystemError|recvValue failed|no route to host|collective operation timeout",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    r"https?:|huggingface|urllib|HTTPS?Connection", re.IGNORECASE
)  # a download's peer is none


@dataclass(frozen=True)
class _Witness:
    """A rank that missed another one."""

    host: str
    rank: int | None
    what: str


def judge_outcome(
    outcome: Outcome,
    failed: Iterable[events.Failed],
    done: Mapping[int, events.Done],
    world_size: int,
    host_logs: Mapping[str, str],
    places: Sequence[Placement] = (),
    rank_log: Callable[[str, int], str] = lambda host, rank: "",
) -> tuple[Status, Failure | None]:
    """Succeeded only where every host left cleanly and every rank said that it was done.

    The host that failed first is looked at first: the others were only stopped because of it.
    """
    exits = dict(sorted(outcome.exits.items(), key=lambda item: item[0] != outcome.first_failed))
    reports, witnesses = [], []
    for event in failed:  # in the order of arrival: hosts' clocks differ
        if not event.usage and _is_witness(f"{event.what} {event.traceback or ''}", event.what):
            witnesses.append(_Witness(event.host or "", event.rank, event.what))
        else:
            reports.append(event)
    if outcome.stopped:
        status: Status = "timeout" if outcome.stopped.startswith("timeout") else "stopped"
        return status, Failure(what=outcome.stopped)
    for host, (what, hint) in outcome.problems.items():
        return "failed", Failure(what=what, host=host, hint=hint)
    for event in reports:  # bad input that ranks found explains everything that came after
        if event.usage:
            return "failed", _from(event)
    deaths = {host: _signalled(host_logs.get(host, "")) for host, left in exits.items() if left != (0, None)}
    for host, found in deaths.items():
        if found and found.signal == signal.SIGABRT:
            words = _last_watchdog(rank_log(host, found.rank))
            if words:  # NCCL's watchdog ends the rank that waited, and not the one that it waited for
                witnesses.append(_Witness(host, found.rank, words))
                continue
        if (
            found and found.signal != signal.SIGTERM
        ):  # the agents and torchrun end ranks by SIGTERM themselves
            return "failed", _killed(host, found, outcome.kernel.get(host, Kernel()))
    if outcome.lost:
        host, why = next(iter(outcome.lost.items()))
        return "failed", Failure(
            what=f"the host was lost: {why}",
            host=host,
            hint="its ranks end by themselves",
        )
    for host, (_, reason) in exits.items():
        if reason == "deadline":
            return "timeout", Failure(what="launch.timeout was reached", host=host)
    if reports:
        return "failed", _from(reports[0])
    missed = {witness.host for witness in witnesses}
    for host, found in deaths.items():
        if found and found.signal == signal.SIGTERM and host not in missed:
            return "failed", _killed(host, found, outcome.kernel.get(host, Kernel()))
    bad = {host: left for host, left in exits.items() if left != (0, None)}
    for host, (code, reason) in bad.items():
        if host not in missed and reason != "stopped":
            return "failed", _without_a_word(host, code, reason, outcome.kernel.get(host, Kernel()))
    if witnesses:
        return "failed", _missed(witnesses, set(done), places)
    if bad:
        host, (code, reason) = next(iter(bad.items()))
        return "failed", _without_a_word(host, code, reason, outcome.kernel.get(host, Kernel()))
    missing = sorted(set(range(world_size)) - set(done))
    if missing:
        ranks = ", ".join(str(rank) for rank in missing)
        return "failed", Failure(what=f"rank {ranks} left without saying that it was done")
    return "succeeded", None


def with_way_on(failure: Failure, run: str, saved: Sequence[events.Saved], lost: str | None) -> Failure:
    """With the command that goes on from the last checkpoint, where there is one. `lost`: a host that is
    gone, of more than one."""
    step = max((each.step for each in saved if each.step), default=None)
    if step is None or failure.usage:
        return failure
    words = f"`muster resume {run}` goes on from the checkpoint of step {step}"
    if lost is not None:
        words += f", with `--without {lost}` on the other hosts"
    hint = "; ".join(part for part in (failure.hint, words) if part)
    return failure.model_copy(update={"hint": hint})


def _is_witness(text: str, what: str) -> bool:
    return bool(_PEER_GONE.search(what)) and not _ELSEWHERE.search(text)


def _last_watchdog(log: str) -> str | None:
    lines = [
        line.strip() for line in log.splitlines() if "watchdog" in line.lower() and _PEER_GONE.search(line)
    ]
    return lines[0][:300] if lines else None


def _missed(witnesses: Sequence[_Witness], done: set[int], places: Sequence[Placement]) -> Failure:
    """What ranks that missed others tell of these: their host, where it can only be one."""
    said = {witness.rank for witness in witnesses} | done
    silent = {
        place.host: [rank for rank in place.ranks if rank not in said]
        for place in places
        if any(rank not in said for rank in place.ranks)
    }
    first = witnesses[0]
    words = " ".join(witness.what for witness in witnesses)
    named = [
        place.host
        for place in places
        if place.host in silent and any(_names(name, words) for name in (place.host, place.address))
    ]
    candidates = named if len(named) == 1 else list(silent)
    who = f"rank {first.rank} on {first.host}" if first.rank is not None else first.host
    if len(candidates) == 1:
        ranks = silent[candidates[0]]
        where = f"rank {', '.join(map(str, ranks))}"
        return Failure(
            what=f"{where} stopped answering; {who} says: {first.what}",
            where=where,
            host=candidates[0],
            hint=f"look at {candidates[0]} and its network",
        )
    others = f"one of {', '.join(candidates)}" if candidates else "one of the others"
    return Failure(
        what=f"{who} lost another rank: {first.what}",
        hint=f"that rank, on {others}, is the cause; which one is not known: see the hosts' logs",
    )


def _names(name: str, words: str) -> bool:
    return bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", words))


def _without_a_word(host: str, code: int | None, reason: str | None, kernel: Kernel) -> Failure:
    if code == -signal.SIGKILL and not reason:
        what, why = by_sigkill("torchrun", host, kernel)
        return Failure(what=what, host=host, hint=why)
    what = reason or f"torchrun ended with exit code {code}"
    return Failure(what=what, host=host, hint="the host's log in the run folder has its last words")


def _from(event: events.Failed) -> Failure:
    return Failure(
        what=event.what,
        where=event.where or (f"rank {event.rank}" if not event.usage else None),
        host=event.host,
        hint=event.hint,
        usage=event.usage,
    )


class _Death(NamedTuple):
    rank: int
    signal: int
    pid: int


def _signalled(torchrun_log: str) -> _Death | None:
    """The rank that torchrun's last table names as the root cause, if a signal ended it."""
    match = _DEATH.search(torchrun_log.rpartition("Root Cause")[2])
    if match and int(match["code"]) < 0:
        return _Death(int(match["rank"]), -int(match["code"]), int(match["pid"]))
    return None


def _killed(host: str, death: _Death, kernel: Kernel) -> Failure:
    who = f"rank {death.rank}"
    if death.signal == signal.SIGKILL:
        what, why = by_sigkill(who, host, kernel, death.pid)
        return Failure(what=what, where=who, host=host, hint=why)
    try:
        name = signal.Signals(death.signal).name
    except ValueError:
        name = f"signal {death.signal}"
    return Failure(what=f"{who} was ended by {name}", where=who, host=host)


def by_sigkill(who: str, host: str, kernel: Kernel, pid: int | None = None) -> tuple[str, str]:
    """-> (what ended it, a hint): by the kernel for want of memory or not, as far as is known."""
    killer = "the kernel's out-of-memory killer"
    logged = [line for line in kernel.log or [] if pid and re.search(rf"Killed process {pid}\b", line)]
    if logged or kernel.group:
        seen = logged[0] if logged else f"its control group counts {kernel.group} such kills"
        hint = f"{seen}; fewer ranks on {host}, a smaller batch.micro or less offload need less memory"
        return f"{who} was killed by {killer}", hint
    denied = {
        "its control group's counter": kernel.group is not None,
        "the host's counter": kernel.machine == 0,
        "the kernel's log": kernel.log == [],
    }
    if any(denied.values()):
        seen = " and ".join(name for name, good in denied.items() if good)
        hint = f"on {host}, {seen} tell of no such kill: a person, a scheduler or systemd-oomd sent it"
        return f"{who} was killed by SIGKILL, not by {killer}", hint
    seen = f"it ended {kernel.machine} processes meanwhile" if kernel.machine else "nothing of it can be read"
    hint = f"whether by {killer} is not known ({seen}): `dmesg -T | grep -i oom` on {host}"
    return f"{who} was killed by SIGKILL", hint
