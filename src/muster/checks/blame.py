"""Who is to blame where ranks did not come to their end: the host that failed, not those it took along."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping

from muster.core.fabric import FabricFailure
from muster.failures.table import why_lost
from muster.fleet.cause import WATCHDOG, by_sigkill, watchdog_words
from muster.fleet.messages import Kernel
from muster.fleet.supervisor import Outcome
from muster.workloads.fabric.figures import RankEvents
from muster.workloads.fabric.request import TOGETHER

Logs = Mapping[str, Iterable[str]]  # host -> its last lines


def failures_of(read: RankEvents, outcome: Outcome, logs: Logs) -> list[FabricFailure]:
    """Every failure with its host; those that only echo another's are not blamed."""
    first = [*_lost(read, outcome), *_ended(read, outcome, logs)]
    hosts = {failure.host for failure in first}
    silent = [each for each in _silent(read, outcome, logs) if each.host not in hosts]
    guilty = hosts | {each.host for each in silent}
    accused = [
        FabricFailure(
            question=question,
            what=f"did not answer the other hosts' check at {question}",
            host=host,
            ranks=[rank],
        )
        for host, (rank, question) in read.accused().items()
        if host not in guilty
    ]
    reported = _reported(read, guilty | {each.host for each in accused})
    own = {(each.host, each.question) for each in reported}  # a host's own words say more
    return [*first, *silent, *(each for each in accused if (each.host, each.question) not in own), *reported]


def _last_question(read: RankEvents, rank: int) -> str:
    """What a rank was at when its last event came."""
    at = "starting"
    for _, event in read.of("ready", "begin"):
        if event["rank"] == rank:
            at = "rendezvous" if event["kind"] == "ready" else str(event["question"])
    return at


def _last_line(logs: Logs, host: str) -> str | None:
    lines = [line for line in logs.get(host, []) if line.strip()]
    return lines[-1][:300] if lines else None


def _lost(read: RankEvents, outcome: Outcome) -> list[FabricFailure]:
    failures = []
    for host, why in outcome.lost.items():
        ranks = next(list(each.ranks) for each in read.places if each.host == host)
        question = _last_question(read, ranks[0])
        what = f"the host was lost: {why}"
        failures.append(FabricFailure(question=question, what=what, host=host, ranks=ranks, id=why_lost(why)))
    for host, each in outcome.problems.items():
        failures.append(
            FabricFailure(question="starting", what=each.what, host=host, hint=each.hint, id=each.id)
        )
    return failures


def _ended(read: RankEvents, outcome: Outcome, logs: Logs) -> list[FabricFailure]:
    """Ranks that were killed or broke off. One that NCCL's watchdog ended had waited for another."""
    failures = []
    for host, event in read.of("ended"):
        rank, code = event["rank"], int(event["code"])
        watchdog = code == -signal.SIGABRT and watchdog_words(logs.get(host, []))
        by = _signal_name(-code) if code < 0 else f"exit code {code}"
        hint = _last_line(logs, host) if code > 0 else None
        what, failure = f"rank {rank} was ended by {by}", WATCHDOG if watchdog else None
        if code == -signal.SIGKILL:
            killed = by_sigkill(f"rank {rank}", host, outcome.kernel.get(host, Kernel()))
            what, hint, failure = killed.what, killed.hint, killed.id
        failures.append(
            FabricFailure(
                question=_last_question(read, rank),
                what=what,
                host=host,
                ranks=[rank],
                blamed=not watchdog,
                hint=hint,
                id=failure,
            )
        )
    return failures


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _silent(read: RankEvents, outcome: Outcome, logs: Logs) -> list[FabricFailure]:
    """Hosts whose ranks neither came to their end nor were seen to die: they hung, or never began."""
    if outcome.stopped and not outcome.stopped.startswith("timeout"):
        return []
    ended = {event["rank"] for _, event in read.of("done", "ended")}
    failures = []
    for each in read.places:
        ranks = [rank for rank in each.ranks if rank not in ended]
        if not ranks:
            continue
        question = _last_question(read, ranks[0])
        code, why = outcome.exits.get(each.host, (None, None))
        what = f"rank {', '.join(map(str, ranks))} did not finish, last at {question}"
        if code not in (None, 0):
            what += f" (exit code {code})"
        elif why:
            what += f" ({why})"
        hint = _last_line(logs, each.host) if question == "starting" else None
        failures.append(FabricFailure(question=question, what=what, host=each.host, ranks=ranks, hint=hint))
    accused = read.accused()
    if len(failures) == len(read.places) > 1 and accused:  # all hang because of a few
        return [each.model_copy(update={"blamed": each.host in accused}) for each in failures]
    return failures


def _reported(read: RankEvents, guilty: set[str]) -> list[FabricFailure]:
    """What ranks themselves reported, one per host and question. In a question that needs everyone, others'
    words are echoes where a guilty host is known."""
    failures: dict[tuple[str, str], FabricFailure] = {}
    for host, event in read.of("failed"):
        question, rank = str(event["question"]), int(event["rank"])
        key = (host, question)
        if key in failures:
            ranks = sorted({*failures[key].ranks, rank})
            failures[key] = failures[key].model_copy(update={"ranks": ranks})
            continue
        shared = question in (*TOGETHER, "rendezvous")
        failures[key] = FabricFailure(
            question=question,
            what=str(event["what"]),
            host=host,
            ranks=[rank],
            blamed=host in guilty or not (shared and guilty),
            hint=event.get("hint"),
            id=event.get("id"),
        )
    return list(failures.values())
