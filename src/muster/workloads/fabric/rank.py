"""A rank's work, question by question. What is measured is reported at once: whatever comes later cannot lose
it."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from muster.core.errors import MusterError
from muster.worker.explain import explain
from muster.workloads.fabric import collectives, devices
from muster.workloads.fabric.group import GroupStore, RankGroup, Report
from muster.workloads.fabric.request import BESIDE, PRODUCT, TOGETHER

_GRACE = 5.0  # seconds beyond an operation's patience


class Round:
    """All questions, in order. A question that fails costs itself; a rank that is gone costs those that need
    everyone."""

    def __init__(self, group: RankGroup, report: Report) -> None:
        self.group = group
        self.report = report
        self.meeting = GroupStore(group)
        self.together = False  # whether there is a process group of all ranks

    def run(self) -> None:
        """Ask them. What fails is an event."""
        asked = self.group.asked
        if not self._try("device", self._open):
            return
        if self.group.world_size > 1:
            self._meet()
        for question in asked.questions:
            work = self._work(question, asked.share(question))
            if work is not None:
                self._ask(question, work)
        self.meeting.leave()

    def _open(self) -> None:
        device = _open_device(self.group)
        threads = None if self.group.on_gpu else torch.get_num_threads()
        self.report("ready", device=device, torch=str(torch.__version__), threads=threads)

    def _work(self, question: str, budget: float) -> Callable[[], None] | None:
        """Return what to call for a question; None for one that is not a rank's."""
        group, report = self.group, self.report
        if question in collectives.OPERATIONS:
            return lambda: collectives.sweep(group, report, question, budget)
        work = {
            "values": collectives.check_values,
            "latency": collectives.latency,
            "points": collectives.check_points,
            PRODUCT: collectives.check_product,
            BESIDE: collectives.check_beside,
            "matmul": devices.check_matmul,
            "copy": devices.check_copy,
            "disk": devices.check_disk,
        }.get(question)
        return None if work is None else lambda: work(group, report, budget)

    def _meet(self) -> None:
        """Connect to the store, see who came, and form the group."""
        self.report("begin", question="rendezvous")
        began = time.perf_counter()
        if self._try("rendezvous", self.meeting.connect):
            connected = time.perf_counter() - began
            missing, _ = self.meeting.roll_call("rendezvous", patience=self.group.asked.arrival)
            self.report("met", connect=connected, waited=time.perf_counter() - began - connected)
            if missing:
                self.report("missing", question="rendezvous", ranks=missing)
            else:
                self._regroup("rendezvous")
        self.report("end", question="rendezvous")

    def _ask(self, question: str, work: Callable[[], None]) -> None:
        shared = question in TOGETHER
        if shared and not self.together:
            return
        self.report("begin", question=question)
        if self.meeting.complete:  # all begin at the same time
            missing, _ = self.meeting.roll_call(question)
            if missing:
                self._part(question, missing)
                if shared:
                    return
        well = self._try(question, work)
        if shared:
            self._settle(question, well)
        self.report("end", question=question)

    def _try(self, question: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            reason = error if isinstance(error, MusterError) else explain(error)
            self.report("failed", question=question, what=str(reason), hint=reason.hint, id=reason.failure)
            return False
        return True

    def _settle(self, question: str, well: bool) -> None:
        """After something common: did it go well for all? Where it did not and all are there, a new group.

        Others may need the whole of an operation's patience to notice that it failed.
        """
        if not well:
            self.meeting.close_group()  # which lets those who still wait for this rank fail at once
        missing, unwell = self._called(f"after {question}", well)
        if missing:
            self._part(question, missing)
        elif unwell:
            self._regroup(question)

    def _regroup(self, question: str) -> None:
        """Open a fresh group; all ranks have it, or none."""
        well = self._try(question, self.meeting.open_group)
        missing, unwell = self._called(f"group for {question}", well)
        self.together = not missing and not unwell
        if missing:
            self._part(question, missing)
        elif unwell:
            self.meeting.close_group()

    def _called(self, name: str, well: bool) -> tuple[list[int], int]:
        return self.meeting.roll_call(name, well=well, patience=self.meeting.patience + _GRACE)

    def _part(self, question: str, missing: list[int]) -> None:
        """Somebody is gone: name them, and do without what needs everyone."""
        self.together = False
        self.report("missing", question=question, ranks=missing)
        self.meeting.close_group()


def _open_device(group: RankGroup) -> str:
    """Choose the device, and do something on it. -> its name."""
    if group.on_gpu:
        torch.cuda.set_device(group.device)
        torch.zeros(1, device="cuda").item()
        return str(torch.cuda.get_device_name(group.device))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"
