"""Ask all hosts at once. A sample of them stays connected for a second round, in which they probe each other.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from types import ModuleType
from typing import Any

from muster.checks.base import Transport
from muster.checks.questions import OPENING, HostAnswers, Patience, Questions, clock, failed, well_formed
from muster.checks.unreachable import ConnectionEnd, UnreachableHost, explain
from muster.core.errors import JobError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet import shell
from muster.fleet.agents import Loop
from muster.fleet.connection import Connection
from muster.fleet.interrupts import interrupts
from muster.fleet.launchers.base import BOOTSTRAP
from muster.fleet.shell import Process
from muster.fleet.transport import PipeWire

# ----------------------------------------------------------------------------------------------------
# How many sessions are made at once: as many as bring more answers per second, and no more.

_FIRST = 16  # before anything is known of their speed
_FEWEST = 8
_WORTH = 1.15  # twice as many sessions at once must bring so much more, or they only wait for each other


class ConnectionWindow:
    """A window over sessions that are being opened.

    It doubles for as long as that brings more answers per second, and then stays: where this machine or its
    network is the bottleneck, more sessions only take longer, and cost more. By Little's law a session takes
    window / rate; the window also stays so small that this is well below the time for a connection.
    """

    def __init__(self, most: int, connect: float, now: float) -> None:
        """Start the window. `most`: its largest size. `connect`: seconds for a connection. `now`:
        time.monotonic()."""
        self._most = most
        self._connect = connect
        self._size = _FIRST
        self._grows = True
        self._best: float | None = None  # answers per second with half the window
        self._count = 0  # answers since the window changed
        self._mark: tuple[int, float] | None = None  # count and time, once sessions of this window answer
        self._all = 0
        self._begun = now

    def answered(self, now: float) -> None:
        """Record that a host has answered."""
        self._all += 1
        self._count += 1
        if not self._grows:
            return
        if self._mark is None:
            if self._count >= self._size:  # those begun with the smaller window are through
                self._mark = (self._count, now)
            return
        since, then = self._mark
        if self._count < since + self._size or now <= then:
            return
        rate = (self._count - since) / (now - then)
        if self._best is not None and rate < _WORTH * self._best:
            self._size //= 2
            self._grows = False
        else:
            self._best = rate
            self._grows = self._size < self._most
            self._size *= 2
        self._count, self._mark = 0, None

    def window(self, now: float) -> int:
        """Return how many sessions may be opened at once."""
        size = self._size
        if self._all and now > self._begun:
            size = min(size, int(self._all / (now - self._begun) * self._connect / 3))
            size = max(size, _FEWEST)
        return min(size, self._most)


# ----------------------------------------------------------------------------------------------------
# All sessions of a survey in one loop.

_TICK = 0.2
_SLACK = 3.0  # seconds beyond ssh's own patience, so that it is ssh that says what is wrong
_GRACE = 5.0  # seconds beyond the probes' time for what they found to arrive
_PARTING = 3.0  # seconds for a host that was let go to leave by itself
_BRISK = 3.0  # seconds that a session may take at least before it counts as slow


class _State(Enum):
    CONNECTING = 1
    PROBING = 2
    WAITING = 3  # for the second round
    MEETING = 4
    MET = 5  # it stays until all have: others may still look at it
    LEAVING = 6


class _Session(Connection):
    """A host's connection, and its progress."""

    def __init__(self, place: Placement, stays: bool, process: Process, limit: float) -> None:
        super().__init__(place)
        self.stays = stays
        self.process = process
        self.limit = limit  # when it is given up, by time.monotonic
        self.since = time.monotonic()
        self.state = _State.CONNECTING
        self.python: str | None = None
        self.stamp = 0.0  # the host's clock in its first words, ours when they came, ours when we answered
        self.spoke = 0.0
        self.sent = 0.0
        self.seconds = 0.0  # until the first words came
        self.impatient = False  # it was ended here

    def order(self, op: str, limit: float, **content: Any) -> None:
        """Send a message, and give the host so many seconds from now."""
        self.tell(op, **content)
        self.limit = time.monotonic() + limit
        self.flush()


class Inquiry(Loop[_Session]):
    """Call `turn` until it is False, and `close` in any case. `results`: label -> the outcome."""

    def __init__(
        self,
        places: Sequence[Placement],
        stay: frozenset[str],
        start: Callable[[Placement], Process],
        questions: Questions,
        patience: Patience,
    ) -> None:
        super().__init__()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = max(4, (soft - 64) // 3) if soft > 0 else 1 << 20  # each session has three descriptors
        self.pace = ConnectionWindow(min(patience.fanout, room // 2), patience.connect, time.monotonic())
        self.most = min(4 * patience.fanout + len(stay), room)
        # Those that stay come first: their second round then runs beside the others' first.
        self.queue = deque(sorted(places, key=lambda place: place.host not in stay))
        kept = [place.host for place in self.queue if place.host in stay][: room // 2]
        self.stay = frozenset(kept if questions.second else ())
        self.start = start
        self.questions = questions
        self.patience = patience
        self.results: dict[str, HostAnswers | UnreachableHost] = {}
        self.unreached = 0
        self.sessions: list[_Session] = []
        self.met = False
        self.typical: float | None = None  # seconds of a session, a running mean

    def turn(self) -> bool:
        """Go once through everything, for `_TICK` at most. Return False when all is done."""
        self._open()
        ending = any(session.output_closed for session in self.sessions)
        self.look(self.sessions, _TICK / 10 if ending else _TICK if self.sessions else 0, self._handle)
        now = time.monotonic()
        for session in list(self.sessions):
            self._end(session, now)
        self._meet()
        return bool(self.queue or self.sessions)

    def close(self) -> None:
        """End what is left, by its own process id. Running probes are first dismissed, so that they remove
        what they have left on their hosts."""
        running = [session for session in self.sessions if session.python is not None]
        for session in running:
            session.close_input()
        limit = time.monotonic() + _PARTING
        while any(each.process.poll() is None for each in running) and time.monotonic() < limit:
            time.sleep(_TICK / 10)
        for session in list(self.sessions):
            self._drop(session)
        super().close()

    def _open(self) -> None:
        """Open sessions, as many as the window has room for. One that takes much longer than others cedes its
        place to the next."""
        now = time.monotonic()
        busy = (_State.CONNECTING, _State.PROBING)
        slow = max(_BRISK, 3 * (self.typical or 0))  # until one has answered, dead ones delay no other
        making = sum(each.state in busy and now - each.since < slow for each in self.sessions)
        window = self.pace.window(now)
        while self.queue and making < window and len(self.sessions) < self.most:
            place = self.queue.popleft()
            process = self.start(place)
            limit = time.monotonic() + self.patience.connect + _SLACK
            session = _Session(place, place.host in self.stay, process, limit)
            self.attach(session, PipeWire(process))
            session.send(OPENING)
            self.sessions.append(session)
            making += 1

    def _handle(self, session: _Session, message: dict[str, Any]) -> None:
        if message["m"] == "hello" and session.state is _State.CONNECTING:
            self._greet(session, message)
        elif message["m"] == "answers" and session.state in (_State.PROBING, _State.MEETING):
            self._hear(session, message)

    def give_up(self, link: _Session, why: str) -> None:
        """Drop a host at once that sent what no probe sends."""
        link.complaints.append(why)
        link.limit, link.state = 0.0, _State.LEAVING

    def _greet(self, session: _Session, hello: dict[str, Any]) -> None:
        """Send the probe and the questions: Python has started."""
        session.spoke = time.time()
        session.seconds = time.monotonic() - session.since
        session.python = str(hello.get("python"))
        session.stamp = _number(hello.get("time"), session.spoke)
        session.state = _State.PROBING
        session.send(self.questions.program(str(hello.get("magic"))))
        session.sent = time.time()
        budget = self.patience.probe
        session.order(
            "probe",
            max([budget, *self.questions.longer.values()]) + _GRACE,
            families=self.questions.first,
            longer=dict(self.questions.longer),
            ask=self.questions.ask(session.place),
            seconds=budget,
            stay=session.stays,
        )

    def _hear(self, session: _Session, message: dict[str, Any]) -> None:
        """Take a round's answers."""
        host = session.place.host
        if session.state is _State.MEETING:
            before = self.results[host]
            assert isinstance(before, HostAnswers)
            peers = well_formed(message.get("answers"), self.questions.second)
            self.results[host] = HostAnswers(before.transport, before.answers, peers)
            session.state = _State.MET
            return
        arrival = _number(message.get("heard"), session.sent)
        offset, error = clock(session.stamp, session.spoke, session.sent, arrival)
        noise = tuple(session.noise)
        transport = Transport(session.seconds, noise, offset, error, session.python)
        answers = well_formed(message.get("answers"), self.questions.first)
        self.results[host] = HostAnswers(transport, answers)
        took = time.monotonic() - session.since
        self.typical = 0.8 * self.typical + 0.2 * took if self.typical else took
        self.pace.answered(time.monotonic())
        if session.stays and not self.met:
            session.state = _State.WAITING
        else:
            self._let_go(session)

    def _end(self, session: _Session, now: float) -> None:
        """Drop a session that has ended, or has to."""
        ended = session.output_closed and session.process.poll() is not None
        if not ended and (now < session.limit or session.state in (_State.WAITING, _State.MET)):
            return
        if not ended and session.python is not None and session.state is not _State.LEAVING:
            session.close_input()  # its probe may still remove what it has left there
            session.state, session.limit, session.impatient = _State.LEAVING, now + _PARTING, True
            return
        session.impatient = session.impatient or not ended
        self._drop(session)

    def _meet(self) -> None:
        """Start the second round, as soon as no host that stays is still in the first. All are dismissed
        together."""
        if self.met:
            if not any(each.state is _State.MEETING for each in self.sessions):
                for session in self.sessions:
                    if session.state is _State.MET:
                        self._let_go(session)
            return
        if any(place.host in self.stay for place in self.queue):
            return
        staying = [each for each in self.sessions if each.stays]
        if any(each.state in (_State.CONNECTING, _State.PROBING) for each in staying):
            return
        self.met = True
        waiting = [each for each in staying if each.state is _State.WAITING]
        answers = {each.place.host: self.results[each.place.host] for each in waiting}
        peers = {
            family: {
                host: one.answers[family]
                for host, one in answers.items()
                if isinstance(one, HostAnswers) and family in one.answers and not failed(one.answers[family])
            }
            for family in self.questions.second
        }
        budget = self.patience.probe
        for session in waiting:
            session.state = _State.MEETING
            ask = self.questions.ask(session.place)
            families = self.questions.second
            session.order("peers", budget + _GRACE, families=families, ask=ask, peers=peers, seconds=budget)

    def _let_go(self, session: _Session) -> None:
        """Dismiss a session that has answered everything: its probe leaves by itself."""
        session.state = _State.LEAVING
        session.order("bye", _PARTING)
        if not session.sending:
            session.close_input()

    def _drop(self, session: _Session) -> None:
        """Close the connection, and record the outcome where there is none."""
        assert session.wire is not None and session.wire.errors is not None
        key = self.selector.get_map().get(session.wire.errors)
        if key is not None and key.data is session:  # its last words
            session.read(key.fd)
        self.detach(session)
        session.wire.hang_up()
        self.sessions.remove(session)
        if session.place.host not in self.results:
            self.unreached += 1
            self.results[session.place.host] = explain(
                ConnectionEnd(
                    code=None if session.impatient else session.process.poll(),
                    errors=tuple(session.complaints),
                    printed=tuple(session.noise),
                    python=session.python,
                    seconds=time.monotonic() - session.since,
                    interpreter=self.questions.interpreter,
                )
            )


def _number(value: Any, instead: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else instead


_EITHER = 'other=$1; shift; test -x "$0" && exec "$0" "$@"; exec "$other" "$@"'
STAY = 32  # hosts that stay for the second round

Progress = Callable[[int, int, int], None]  # hosts done, all hosts, those of the done that gave no answer


def sample(labels: Sequence[str], most: int = STAY) -> list[str]:
    """Return at most so many hosts, spread evenly over all."""
    count = min(most, len(labels))
    return [labels[index * len(labels) // count] for index in range(count)]


def survey(
    places: Sequence[Placement],
    start: Callable[[Placement], Process],
    questions: Questions,
    patience: Patience,
    progress: Progress = lambda done, total, unreached: None,
) -> dict[str, HostAnswers | UnreachableHost]:
    """Ask every host. Return by label its answers, or why there are none, in the order of `places`.

    Raises JobError where nothing can be started here, and after Ctrl-C; then, as always, no session is left.
    """
    stay = sample([place.host for place in places])
    inquiry = Inquiry(places, frozenset(stay), start, questions, patience)
    done = 0
    with interrupts() as wish:
        try:
            going = True
            while going:
                going = inquiry.turn()
                if len(inquiry.results) > done:
                    done = len(inquiry.results)
                    progress(done, len(places), inquiry.unreached)
                if wish.stop:
                    raise JobError(wish.stop, hint="the check left nothing on the hosts")
        finally:
            inquiry.close()
    return {place.host: inquiry.results[place.host] for place in places}


def starter(
    launcher: ModuleType, launch: Launch, interpreter: str
) -> Callable[[Placement], Process]:
    """Return a function that starts a probe's interpreter on a host: as the launcher runs plain commands.

    -I -S: nothing in PYTHONPATH, in site-packages or in the folder where a login begins replaces a module, or
    takes time. Where the recipe names no interpreter, it is the controller's where that exists there too, as
    for ranks: a `python3` may be a script that looks for one, and takes longer than the probe.
    """
    words = [interpreter]
    if not launcher.ONE_MACHINE and not launch.python:
        words = ["sh", "-c", _EITHER, sys.executable, interpreter]

    def start(place: Placement) -> Process:
        argv = [*words, "-I", "-S", "-c", BOOTSTRAP, "muster-probe"]
        return shell.start(launcher.remote(place, launch, argv))

    return start
