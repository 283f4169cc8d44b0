"""Asks all hosts at once. A sample of them stays connected for a second round, in which they look at each
other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from muster.checks.questions import HostAnswers, Patience, Questions
from muster.checks.sessions import Inquiry
from muster.checks.unreachable import Unreached
from muster.core.errors import JobError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.interrupts import interrupts
from muster.fleet.launchers.base import BOOTSTRAP
from muster.fleet.shell import Process, Shell

_EITHER = 'other=$1; shift; test -x "$0" && exec "$0" "$@"; exec "$other" "$@"'
STAY = 32  # hosts that stay for the second round

Progress = Callable[[int, int, int], None]  # hosts done, all hosts, those of the done that gave no answer


def sample(labels: Sequence[str], most: int = STAY) -> list[str]:
    """At most so many hosts, spread evenly over all."""
    count = min(most, len(labels))
    return [labels[index * len(labels) // count] for index in range(count)]


def survey(
    places: Sequence[Placement],
    start: Callable[[Placement], Process],
    questions: Questions,
    patience: Patience,
    progress: Progress = lambda done, total, unreached: None,
) -> dict[str, HostAnswers | Unreached]:
    """Ask every host. Label -> what it said, or why it did not, in the order of `places`.

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
    launcher: ModuleType, launch: Launch, shell: Shell, interpreter: str
) -> Callable[[Placement], Process]:
    """How a probe's interpreter is started on a host: the way that the launcher has for plain commands.

    -I -S: nothing in PYTHONPATH, in site-packages or in the folder where a login begins takes the place of a
    module, or takes time. Where the recipe names no interpreter, it is the controller's where that is there
    too, as for ranks: a `python3` may be a script that looks for one, and takes longer than the probe.
    """
    words = [interpreter]
    if not launcher.ONE_MACHINE and not launch.python:
        words = ["sh", "-c", _EITHER, sys.executable, interpreter]

    def start(place: Placement) -> Process:
        argv = [*words, "-I", "-S", "-c", BOOTSTRAP, "muster-probe"]
        return shell.start(launcher.remote(place, launch, argv))

    return start
