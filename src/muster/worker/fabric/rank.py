"""A rank's work, question by question. What is known is said at once: whatever comes later cannot lose it."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.errors import MusterError
from muster.core.fabric.asked import BESIDE, PRODUCT, TOGETHER
from muster.worker.fabric.place import FileVoice, Place, Voice

if TYPE_CHECKING:
    from muster.worker.fabric.rendezvous import Meeting

_GRACE = 5.0  # seconds beyond an operation's patience


def run(place: Place) -> int:
    """Exit code 0 where this rank came to its end, whatever it met; 1 where it could not begin."""
    say = FileVoice(place)
    try:
        import torch

        device = open_device(place)
    except Exception as error:
        traceback.print_exc()
        say("failed", question="device", **_told(error))
        return 0
    threads = None if place.device == "cuda" else torch.get_num_threads()
    say("ready", device=device, torch=str(torch.__version__), threads=threads)
    from muster.worker.fabric.rendezvous import Meeting

    Round(place, say, Meeting(place)).run()
    say("done")
    return 0


def open_device(place: Place) -> str:
    """Choose the device, and do something on it. -> its name."""
    import torch

    if place.device == "cuda":
        torch.cuda.set_device(place.local_rank)
        torch.zeros(1, device="cuda").item()
        return str(torch.cuda.get_device_name(place.local_rank))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return _cpu_name()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"


def _told(error: Exception) -> dict[str, Any]:
    from muster.worker.explain import known_error
    from muster.worker.rendezvous import first_line

    if isinstance(error, MusterError):
        return {"what": str(error), "hint": error.hint, "id": error.failure}
    match = known_error(error)
    hint, failure = (match.remedy, match.failure.id) if match else (None, None)
    return {"what": first_line(error), "hint": hint, "id": failure}


class Round:
    """All questions, in order. A question that fails costs itself; a rank that is gone costs those that need
    everyone."""

    def __init__(self, place: Place, say: Voice, meeting: Meeting) -> None:
        from muster.worker.fabric.rendezvous import Team

        self.place = place
        self.say = say
        self.meeting = meeting
        self.team = Team(place)
        self.together = False  # whether there is a group of all ranks

    def run(self) -> None:
        asked = self.place.asked
        if self.place.world_size > 1:
            self._meet()
        for question in asked.questions:
            work = self._work(question, asked.share(question))
            if work is not None:
                self._ask(question, work)
        self.meeting.leave()

    def _work(self, question: str, budget: float) -> Callable[[], None] | None:
        """What to call for a question; None for one that is not a rank's."""
        from muster.worker.fabric.collectives import (
            OPERATIONS,
            check_beside,
            check_points,
            check_product,
            check_values,
            latency,
            sweep,
        )
        from muster.worker.fabric.device_bench import check_copy, check_disk, check_matmul

        team, say = self.team, self.say
        if question in OPERATIONS:
            return lambda: sweep(team, say, question, budget)
        return {
            "values": lambda: check_values(team, say),
            "latency": lambda: latency(team, say, budget),
            "points": lambda: check_points(team, say, budget),
            "matmul": lambda: check_matmul(team, say, budget),
            "copy": lambda: check_copy(team, say, budget),
            "disk": lambda: check_disk(self.place, say, budget),
            PRODUCT: lambda: check_product(team, say, budget),
            BESIDE: lambda: check_beside(team, say, budget),
        }.get(question)

    def _meet(self) -> None:
        """Connect to the store, see who came, and form the group."""
        self.say("begin", question="rendezvous")
        began = time.perf_counter()
        if self._try("rendezvous", self.meeting.connect):
            connected = time.perf_counter() - began
            called = self.meeting.roll_call("rendezvous", patience=self.place.asked.arrival)
            self.say("met", connect=connected, waited=time.perf_counter() - began - connected)
            if called.missing:
                self.say("missing", question="rendezvous", ranks=called.missing)
            else:
                self._regroup("rendezvous")
        self.say("end", question="rendezvous")

    def _ask(self, question: str, work: Callable[[], None]) -> None:
        shared = question in TOGETHER
        if shared and not self.together:
            return
        self.say("begin", question=question)
        if self.meeting.complete:  # all begin at the same time
            called = self.meeting.roll_call(question)
            if called.missing:
                self._part(question, called.missing)
                if shared:
                    return
        well = self._try(question, work)
        if shared:
            self._settle(question, well)
        self.say("end", question=question)

    def _try(self, question: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self.say("failed", question=question, **_told(error))
            return False
        return True

    def _settle(self, question: str, well: bool) -> None:
        """After something common: did it go well for all? Where it did not and all are there, a new group.

        Others may need the whole of an operation's patience to notice that it failed.
        """
        if not well:
            self.meeting.close_group()  # which lets those who still wait for this rank fail at once
        called = self.meeting.roll_call(
            f"after {question}", well=well, patience=self.meeting.patience + _GRACE
        )
        if called.missing:
            self._part(question, called.missing)
        elif called.unwell:
            self._regroup(question)

    def _regroup(self, question: str) -> None:
        """A fresh group; all ranks have it, or none."""

        def form() -> None:
            self.meeting.open_group()
            self.team.barrier()

        well = self._try(question, form)
        called = self.meeting.roll_call(
            f"group for {question}", well=well, patience=self.meeting.patience + _GRACE
        )
        self.together = not called.missing and not called.unwell
        if called.missing:
            self._part(question, called.missing)
        elif called.unwell:
            self.meeting.close_group()

    def _part(self, question: str, missing: list[int]) -> None:
        """Somebody is gone: name them, and do without what needs everyone."""
        self.together = False
        self.say("missing", question=question, ranks=missing)
        self.meeting.close_group()
