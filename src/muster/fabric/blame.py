"""Who is to blame where ranks did not come to their end: the host that failed, not those it took along."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from muster.core.fabric.asked import TOGETHER
from muster.core.fabric.result import FabricFailure
from muster.core.job import Placement
from muster.failures.table import why_lost
from muster.fleet.cause import WATCHDOG, by_sigkill, watchdog_words
from muster.fleet.messages import Kernel
from muster.fleet.supervisor import Outcome


@dataclass(frozen=True)
class Endings:
    """What there is to judge from."""

    places: tuple[Placement, ...]
    events: list[tuple[str, Mapping[str, Any]]]
    logs: Mapping[str, Iterable[str]]  # host -> its last words

    def of(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The events of one kind, in the order of their arrival."""
        return [(host, event) for host, event in self.events if event["kind"] == kind]

    def host_of(self, rank: int) -> str:
        """The label of a rank's host."""
        return next(each.host for each in self.places if rank in each.ranks)

    def accused(self, question: str | None = None) -> set[str]:
        """Hosts that most others missed. A host that is cut off misses all others, and is one voice.

        Where no host has a majority against it (two hosts that miss each other): all but the first, which
        holds the meeting place.
        """
        voices: dict[str, set[str]] = defaultdict(set)
        for host, event in self.of("missing"):
            if question in (None, event["question"]):
                for rank in event["ranks"]:
                    if self.host_of(rank) != host:
                        voices[self.host_of(rank)].add(host)
        speakers = set().union(*voices.values()) if voices else set()
        missing = {host for host, against in voices.items() if 2 * len(against) > len(speakers)}
        return missing or set(voices) - {self.places[0].host}

    def last_question(self, rank: int) -> str:
        """What a rank was at when it was last heard."""
        at = "starting"
        for _, event in self.events:
            if event["rank"] == rank and event["kind"] == "ready":
                at = "rendezvous"
            if event["rank"] == rank and event["kind"] == "begin":
                at = str(event["question"])
        return at


def failures_of(endings: Endings, outcome: Outcome) -> list[FabricFailure]:
    """Every failure with its host; those that only echo another's are not blamed."""
    first = [*_lost(endings, outcome), *_ended(endings, outcome)]
    hosts = {failure.host for failure in first}
    silent = [each for each in _silent(endings, outcome) if each.host not in hosts]
    guilty = hosts | {each.host for each in silent}
    accused = [each for each in _accused(endings) if each.host not in guilty]
    guilty |= {each.host for each in accused}
    reported = _reported(endings, guilty)
    own = {(each.host, each.question) for each in reported}  # a host's own words say more
    return [*first, *silent, *(each for each in accused if (each.host, each.question) not in own), *reported]


def _lost(endings: Endings, outcome: Outcome) -> list[FabricFailure]:
    failures = []
    for host, why in outcome.lost.items():
        ranks = next(list(each.ranks) for each in endings.places if each.host == host)
        question = endings.last_question(ranks[0])
        what = f"the host was lost: {why}"
        failures.append(FabricFailure(question=question, what=what, host=host, ranks=ranks, id=why_lost(why)))
    for host, each in outcome.problems.items():
        failures.append(
            FabricFailure(question="starting", what=each.what, host=host, hint=each.hint, id=each.id)
        )
    return failures


def _ended(endings: Endings, outcome: Outcome) -> list[FabricFailure]:
    """Ranks that were killed or broke off. One that NCCL's watchdog ended had waited for another."""
    failures = []
    for host, event in endings.of("ended"):
        rank, code = event["rank"], int(event["code"])
        watchdog = code == -signal.SIGABRT and watchdog_words(endings.logs.get(host, []))
        words = [line for line in endings.logs.get(host, []) if line.strip()]
        by = _signal_name(-code) if code < 0 else f"exit code {code}"
        hint = words[-1][:300] if words and code > 0 else None
        what, failure = f"rank {rank} was ended by {by}", WATCHDOG if watchdog else None
        if code == -signal.SIGKILL:
            killed = by_sigkill(f"rank {rank}", host, outcome.kernel.get(host, Kernel()))
            what, hint, failure = killed.what, killed.hint, killed.id
        failures.append(
            FabricFailure(
                question=endings.last_question(rank),
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


def _silent(endings: Endings, outcome: Outcome) -> list[FabricFailure]:
    """Hosts whose ranks neither came to their end nor were seen to die: they hung, or never began."""
    ended = {event["rank"] for kind in ("done", "ended") for _, event in endings.of(kind)}
    ended |= {event["rank"] for _, event in endings.of("failed") if event["question"] == "device"}
    failures = []
    for each in endings.places:
        ranks = [rank for rank in each.ranks if rank not in ended]
        if not ranks or (outcome.stopped and not outcome.stopped.startswith("timeout")):
            continue
        question = endings.last_question(ranks[0])
        words = [line for line in endings.logs.get(each.host, []) if line.strip()]
        code, why = outcome.exits.get(each.host, (None, None))
        what = f"rank {', '.join(map(str, ranks))} did not finish, last at {question}"
        if code not in (None, 0):
            what += f" (exit code {code})"
        elif why:
            what += f" ({why})"
        hint = words[-1][:300] if words and question == "starting" else None
        failures.append(FabricFailure(question=question, what=what, host=each.host, ranks=ranks, hint=hint))
    everyone = len(failures) == len(endings.places) > 1
    accused = endings.accused()
    if everyone and accused:  # all hang because of a few
        return [each.model_copy(update={"blamed": each.host in accused}) for each in failures]
    return failures


def _accused(endings: Endings) -> list[FabricFailure]:
    failures: dict[str, FabricFailure] = {}
    accused = endings.accused()
    for _, event in endings.of("missing"):
        for rank in event["ranks"]:
            host = endings.host_of(rank)
            if host in accused and host not in failures:
                question = str(event["question"])
                what = f"did not answer the other hosts' check at {question}"
                failures[host] = FabricFailure(question=question, what=what, host=host, ranks=[rank])
    return list(failures.values())


def _reported(endings: Endings, guilty: set[str]) -> list[FabricFailure]:
    """What ranks themselves said, one per host and question. In a question that needs everyone, others' words
    are echoes where a guilty host is known."""
    failures: dict[tuple[str, str], FabricFailure] = {}
    for host, event in endings.of("failed"):
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
