"""Why a job did not succeed: from how the hosts left and what the ranks said. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.core.result import Failure, Status
from muster.store import events

if TYPE_CHECKING:
    from muster.supervise.supervisor import Outcome

# torchrun's own table: "exitcode  : -9 (pid: 4711)" below "rank      : 1 (local_rank: 0)"
_DEATH = re.compile(r"rank\s*:\s*(?P<rank>\d+) \(local_rank.*?exitcode\s*:\s*(?P<code>-?\d+)", re.DOTALL)

_PEER_GONE = re.compile(
    r"connection (?:reset|closed|refused)|broken pipe|socket timeout|peer|timed out waiting|ncclRemoteError|"
    r"ncclSystemError|recvValue failed|no route to host",
    re.IGNORECASE,
)


def judge_outcome(
    outcome: Outcome,
    failed: Iterable[events.Failed],
    done: Mapping[int, events.Done],
    world_size: int,
    host_logs: Mapping[str, str],
) -> tuple[Status, Failure | None]:
    """Succeeded only where every host left cleanly and every rank said that it was done.

    The host that failed first is looked at first: the others were only stopped because of it.
    """
    exits = dict(sorted(outcome.exits.items(), key=lambda item: item[0] != outcome.first_failed))
    # In the order of arrival: hosts' clocks differ. What only says that a peer is gone comes last.
    reports = sorted(failed, key=lambda event: bool(_PEER_GONE.search(event.what)))
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
        if found and found[1] != signal.SIGTERM:  # the agents and torchrun end ranks by SIGTERM themselves
            return "failed", _killed(host, *found)
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
    for host, found in deaths.items():
        if found:
            return "failed", _killed(host, *found)
    bad = {host: left for host, left in exits.items() if left != (0, None)}
    if bad:
        host, (code, reason) = next(iter(bad.items()))
        what = reason or f"torchrun ended with exit code {code}"
        return "failed", Failure(
            what=what, host=host, hint="the host's log in the run folder has its last words"
        )
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


def _from(event: events.Failed) -> Failure:
    return Failure(
        what=event.what,
        where=event.where or (f"rank {event.rank}" if not event.usage else None),
        host=event.host,
        hint=event.hint,
        usage=event.usage,
    )


def _signalled(torchrun_log: str) -> tuple[int, int] | None:
    """(rank, signal) of the rank that torchrun's last table names as the root cause, if a signal ended it."""
    match = _DEATH.search(torchrun_log.rpartition("Root Cause")[2])
    if match and int(match["code"]) < 0:
        return int(match["rank"]), -int(match["code"])
    return None


def _killed(host: str, rank: int, number: int) -> Failure:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = None
    if number == signal.SIGKILL:
        hint = f"the kernel's out-of-memory killer? `dmesg -T | grep -i oom` on {host}"
    return Failure(what=f"rank {rank} was ended by {name}", where=f"rank {rank}", host=host, hint=hint)
