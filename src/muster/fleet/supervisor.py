"""Holds a job: connects to every agent, starts all ranks at once, forwards their events, and ends all
together.

There are two phases, so that nothing starts unless everything can: `greet` connects and asks each host for
its facts; `run` gives the start order and stays until every agent has left.
"""

from __future__ import annotations

import base64
import inspect
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from muster.agent import look
from muster.core.errors import HostError, InventoryError, JobError, RecipeError, UsageError, refused
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.core.result import Failure
from muster.failures.table import known_failures, why_lost
from muster.fleet import shell
from muster.fleet.agents import Fleet
from muster.fleet.connection import Connection
from muster.fleet.launchers.base import agent_source
from muster.fleet.messages import MOST_WORDS, Kernel, ProbeAnswer, of_job
from muster.fleet.shell import Process
from muster.store.tree import Tree

T = TypeVar("T")

_PIECE, _QUEUED = 1 << 18, 4 << 20  # bytes of a file in a message; bytes that wait for a host to take them

_LOOKING = 100.0  # seconds that an agent gets to find out what its host has: a driver may take a minute
_AT_MOST = 64  # hosts that are asked whether they can be reached, where one process did not say
# Seconds that agents get to clean up and say so, after they were told to stop: in all, and more for each of
# them, since one process reads what all of them say at their end.
_PARTING, _PARTING_EACH = 8.0, 0.03


@dataclass
class Listener:
    """Callbacks for what the hosts send. Each gets the host's label first."""

    event: Callable[[str, str], None]  # a rank's own line
    log: Callable[[str, int | None, list[str]], None]
    hardware: Callable[[str, dict[str, Any]], None]
    tick: Callable[[], str | None] = lambda: None  # called a few times a second; a text stops the job
    # Each: rank, steps, signs of life, phase.
    pulses: Callable[[Sequence[Sequence[Any]]], None] = lambda pulses: None
    looked: Callable[[str, ProbeAnswer], None] = lambda host, found: None  # the answer to Supervisor.look
    # Ranks of the host that could have formed a process group, and have not.
    ungrouped: Callable[[str, Sequence[int]], None] = lambda host, ranks: None


@dataclass
class Outcome:
    """How a job ended. `exits`: per host, the exit code of its ranks (that of the first one that failed;
    None: they were ended) and why the agent left."""

    exits: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None  # the text that stopped it
    culprits: dict[str, tuple[int, int]] = field(default_factory=dict)  # per host: that rank, its process id
    kernel: dict[str, Kernel] = field(default_factory=dict)  # per host: whom the out-of-memory killer ended
    first_failed: str | None = None  # the first host whose ranks ended badly
    problems: dict[str, Failure] = field(default_factory=dict)  # what agents themselves could not do

    @property
    def clean(self) -> bool:
        """Whether every host's ranks ended by themselves with exit code 0."""
        return not self.lost and not self.stopped and all(code == 0 for code, _ in self.exits.values())


class Supervisor:
    """A context manager: when it is left, every agent was told to stop and has left, or was given up."""

    def __init__(
        self,
        places: tuple[Placement, ...],
        launcher: ModuleType,
        launch: Launch,
        job_id: str,
        stop: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Prepare the connections. `stop`: returns a reason to end what precedes the start; after it,
        `Listener.tick` is asked."""
        self.launch, self.launcher, self.stop = launch, launcher, stop
        self.fleet = Fleet(places, launcher, launch, job_id, agent_source(), of_job)
        self.links = self.fleet.links
        self.left = False

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(keep=error is not None)

    def leave(self, *, keep: bool) -> None:
        """Stop every agent and wait until it has left, or give it up. Later calls do nothing.

        `keep`: what could not be written here stays on the hosts.
        """
        if self.left:
            return
        self.left = True
        self.fleet.hold()
        try:
            for link in self.links:
                link.tell("stop", keep=keep)
            limit = time.monotonic() + self._parting
            while any(link.wire and not link.ended for link in self.links) and time.monotonic() < limit:
                self.fleet.turn(self._note)
        finally:
            self.fleet.close()

    @property
    def _parting(self) -> float:
        return _PARTING + _PARTING_EACH * len(self.links)

    def greet(self, specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Connect to every host. Return its facts by label.

        Every host is tried before an error is raised. Raises InventoryError (hosts that cannot be reached,
        with those that can) and UsageError (what an agent refuses, such as a port that is taken).
        """
        for link in self.links:
            link.tell("spec", **specs[link.place.host])
        patience = self.launch.connect_timeout
        while True:
            waiting = [link for link in self.links if not (link.facts or link.problem or link.ended)]
            if not waiting:
                break
            for link in waiting:
                if link.greeted_at is not None and time.monotonic() > link.greeted_at + _LOOKING:
                    self.fleet.give_up(link, f"reached, and did not say what it has within {_LOOKING:g} s")
                elif not link.greeted and self.fleet.overdue(link, patience):
                    self.fleet.give_up(link, f"no answer within {patience:g} s")
            self._turn()
        self._raise_refusals()
        return {link.place.host: dict(link.facts or {}) for link in self.links}

    def _turn(self) -> None:
        """Poll the connections once. Raises JobError where the job was stopped."""
        self.fleet.turn(self._note)
        if why := self.stop():
            raise JobError(why)

    def _expire(self, link: Connection) -> None:
        """Give up a host that has been silent for longer than its lease."""
        silent = time.monotonic() - link.heard
        if silent > self.launch.lease:
            self.fleet.give_up(link, f"silent for {silent:.0f} s")

    def meanwhile(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, and keep the connections alive meanwhile: an
        agent that hears nothing for as long as its lease ends the job."""
        made: Future[T] = Future()

        def do() -> None:
            try:
                made.set_result(work())
            except BaseException as error:
                made.set_exception(error)

        # Ctrl-C does not wait for it.
        threading.Thread(target=do, name="muster-meanwhile", daemon=True).start()
        while not made.done():
            self.fleet.turn(self._note)
        return made.result()

    def verify(self, orders: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
        """Have connected hosts read a checkpoint. Return what is wrong with it by label; None: nothing.

        Raises HostError where a host is lost meanwhile.
        """
        for link in self.links:
            link.verified = None
            link.heard = time.monotonic()
            link.tell("verify", **orders[link.place.host])
        while any(link.verified is None for link in self.links):
            self.fleet.turn(self._note)
            for link in self.links:
                if link.verified is not None:
                    continue
                self._expire(link)
                if link.ended or link.exit is not None:
                    words = link.problem.what if link.problem else link.why_unreachable()
                    raise HostError(f"was lost while it read a checkpoint: {words}", host=link.place.host)
        return {link.place.host: (link.verified or {})["wrong"] for link in self.links}

    def bring(self, tree: Tree, hosts: Collection[str]) -> int:
        """Send connected hosts what each lacks of a folder of code. Return the bytes sent. Raises HostError
        where one is lost meanwhile or cannot take it."""
        links = [link for link in self.links if link.place.host in hosts]
        files = [[each.path, each.mode, each.digest, each.size] for each in tree.files]
        paths = {each.digest: tree.folder / each.path for each in tree.files}
        sent, parts = 0, dict[Connection, Iterator[dict[str, Any]]]()
        for link in links:
            link.heard = time.monotonic()
            link.tell("tree", files=files)
        while not all(link.brought for link in links):
            self._turn()
            for link in links:
                if not link.brought and not link.sending:
                    self._expire(link)
                if link.problem or link.ended or link.exit is not None:
                    problem = link.problem
                    words = problem.what if problem else f"was lost: {link.why_unreachable()}"
                    raise HostError(
                        f"while files were brought: {words}",
                        host=link.place.host,
                        hint=problem.hint if problem else None,
                        failure=problem.id if problem else None,
                    )
                if link.lacks is not None and link not in parts:
                    if not paths.keys() >= set(link.lacks):
                        self.fleet.give_up(link, "it asked for a file that is not among the code")
                        continue
                    parts[link] = _parts(paths, link.lacks)
                while link in parts and len(link.outgoing) < _QUEUED and (part := next(parts[link], None)):
                    link.tell("blob", **part)
                    sent += len(part["data"]) * 3 // 4
        return sent

    def _raise_refusals(self) -> None:
        unreached = [link for link in self.links if not (link.facts or link.problem)]
        if unreached:
            self._find_the_guilty(unreached)
            unreached = [link for link in unreached if link.accused] or unreached
            reached = [link.place.host for link in self.links if link not in unreached]
            first, *others = unreached
            verb = "answered, and cannot be used" if first.greeted else "cannot be reached"
            why = first.why_unreachable()
            more = f" (and {', '.join(link.place.host for link in others)})" if others else ""
            raise InventoryError(
                f"{verb}: {why}{more}",
                host=first.place.host,
                hint=f"reachable: {', '.join(reached) or 'none'}; nothing was started",
                failure=None if first.greeted else why_lost(why),
            )
        for link in self.links:
            if link.problem:
                what, hint, failure = link.problem.what, link.problem.hint, link.problem.id
                raise UsageError(what, host=link.place.host, hint=hint, failure=failure)

    def _find_the_guilty(self, unreached: list[Connection]) -> None:
        """Find the host that keeps mpirun from starting any: one that cannot be reached."""
        if not self.fleet.dials or any(link.accused for link in unreached):
            return
        places = [link.place for link in unreached]
        silent = self._silent(places)
        for link in unreached:
            if link.place.host in silent and len(silent) < len(unreached):
                link.accused, link.lost = True, silent[link.place.host]

    def remote(self, place: Placement, argv: list[str]) -> list[str]:
        """Return the command that runs `argv` on a host."""
        command: list[str] = self.launcher.remote(place, self.launch, argv)
        return command

    def _silent(self, places: Sequence[Placement]) -> dict[str, str]:
        """Return, by label, the last line that ssh printed for each host on which `true` does not run."""
        asked = [(place, shell.start(self.remote(place, ["true"]))) for place in places[:_AT_MOST]]
        limit = time.monotonic() + self.launch.connect_timeout + 2
        answers = {}
        for place, process in asked:
            words = _failure(process, max(0.1, limit - time.monotonic()))
            if words is not None:
                answers[place.host] = words
        return answers

    def run(self, orders: Mapping[str, Mapping[str, Any]], listener: Listener) -> Outcome:
        """Start the ranks on all hosts and stay until all agents have left.

        The first host that fails or is lost, or a request to stop, ends the job on all hosts.
        """
        outcome = Outcome()
        for link in self.links:
            link.heard = time.monotonic()
            link.tell("start", **orders[link.place.host])
        parting: float | None = None
        while not all(link.ended for link in self.links):
            self.fleet.turn(lambda link, message: self._hear(link, message, listener))
            outcome.stopped = outcome.stopped or listener.tick()
            if parting is None:  # what ends later ends because of what ended it
                self._notice(outcome)
            over = outcome.stopped or outcome.lost or outcome.first_failed
            if over and parting is None:
                parting = time.monotonic() + self._parting
                for link in self.links:
                    link.tell("stop")
            if parting is not None and time.monotonic() > parting:
                for link in self.links:
                    if not link.ended:
                        self.fleet.give_up(link, "did not end in time")
        for link in self.links:
            if link.exit is not None:
                outcome.exits[link.place.host] = link.exit
                outcome.kernel[link.place.host] = link.kernel
                if link.culprit:
                    outcome.culprits[link.place.host] = link.culprit
            if link.problem is not None:
                outcome.problems[link.place.host] = link.problem
            if link.exit is None:
                base = (link.facts or {}).get("base", "")
                words = f"muster: {link.why_unreachable()}: the end of what ranks printed may be missing here"
                listener.log(link.place.host, None, [f"{words}, and is then in {base}/hosts on that host"])
        if parting is None:
            self._notice(outcome)
        return outcome

    def look(self, number: int) -> list[str]:
        """Ask every connected host where its ranks are. Return these hosts; each answer is passed to
        `Listener.looked` with this number."""
        asked = [link for link in self.links if not link.ended and link.exit is None]
        for link in asked:
            link.tell("look", number=number, program=inspect.getsource(look))
        return [link.place.host for link in asked]

    def quiet(self, host: str) -> float:
        """Return the seconds since the last message of a host."""
        return time.monotonic() - next(link.heard for link in self.links if link.place.host == host)

    def _notice(self, outcome: Outcome) -> None:
        """Record hosts that were lost, and the first one that failed."""
        for link in self.links:
            host = link.place.host
            if link.exit is None and not link.ended:
                self._expire(link)
            if link.ended and link.exit is None and host not in outcome.lost:
                outcome.lost[host] = link.why_unreachable()
            failed = link.exit is not None and link.exit != (0, None) and link.exit[1] != "stopped"
            if failed and outcome.first_failed is None:
                outcome.first_failed = host

    def _note(self, link: Connection, message: dict[str, Any]) -> None:
        """Handle messages that matter in every phase."""
        if message["m"] == "hello":
            link.facts = message["facts"]
        elif message["m"] == "verified":
            link.verified = message
        elif message["m"] == "lacks":
            link.lacks = message["digests"]
        elif message["m"] == "brought":
            link.brought = True
        elif message["m"] == "error":
            what, entry = message["what"][:MOST_WORDS], known_failures().get(message.get("id") or "")
            hint = message.get("hint") or (entry.remedy_on(link.place.host) if entry else None)
            link.problem = Failure(what=what, host=link.place.host, hint=hint, id=entry.id if entry else None)
        elif message["m"] == "exit":
            link.exit = (message["code"], message["why"])
            link.culprit = None if message.get("rank") is None else (message["rank"], message["pid"] or 0)
            link.kernel = Kernel.model_validate(message.get("kernel") or {})

    def _hear(self, link: Connection, message: dict[str, Any], listener: Listener) -> None:
        host = link.place.host
        kind = message["m"]
        if kind == "event":
            for line in message["lines"]:
                listener.event(host, line)
        elif kind == "log":
            listener.log(host, message["rank"], message["lines"])
        elif kind == "hardware":
            listener.hardware(host, message["sample"])
        elif kind == "beat":
            if pulses := message.get("pulses"):
                listener.pulses(pulses)
            if "ungrouped" in message:
                listener.ungrouped(host, message["ungrouped"])
        elif kind == "looked":
            listener.looked(host, ProbeAnswer.model_validate(message))
        else:
            self._note(link, message)


def _parts(paths: Mapping[str, Path], digests: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the contents of files, in pieces of a message each."""
    for digest in digests:
        with refused(RecipeError, "read", paths[digest], "start again"), paths[digest].open("rb") as file:
            last = False
            block = file.read(_PIECE)
            while not last:
                more = file.read(_PIECE)
                last = not more
                yield {"digest": digest, "data": base64.b64encode(block).decode(), "last": last}
                block = more


def _failure(process: Process, seconds: float) -> str | None:
    assert process.stdin and process.stdout and process.stderr
    process.stdin.close()
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "does not answer"
    finally:
        process.stdout.close()
    lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    process.stderr.close()
    return None if code == 0 else (lines[-1] if lines else f"exit code {code}")
