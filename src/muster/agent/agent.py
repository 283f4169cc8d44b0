"""The agent: starts a host's ranks, watches them, samples the hardware, and never outlives its job.

The launchers send this package to a bare host: standard library alone, Python >= 3.8. It speaks JSON lines:
  in   spec, verify, tree, blob, start, ping, look, stop
  out  hello, verified, lacks, brought, beat, event (a rank's own line, unchanged), log, hardware, looked,
       exit, error
It ends the ranks' whole process tree when its input closes, when the controller is silent for longer than the
lease, when it is signalled, when its parent is gone, or when its deadline passes (ending.py).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
import time

from .ending import adopt_orphans
from .files import Brought, existing, free_bytes, full_disk
from .host import check_command, environment_after, facts, find_python, hold_port, versions
from .proc import KernelWatch
from .ranks import BEAT, Ranks
from .sampler import Sampler
from .talk import OUT_LIMIT, TICK, Channel, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

GATHER = (
    0.6  # where there is no more to be read: a ping comes between two looks, so that both wake the agent once
)
MANY = 1 << 16  # bytes of a look after which there is more
ORDERLY = ("stopped", "deadline")  # ends of a job whose controller is still there
LEAST_ROOM = 1 << 20  # free bytes below which a disk counts as full


class Agent:
    """One host's part of one job."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.spec = {}  # type: Dict[str, Any]
        self.base = ""  # the job's folder
        self.ranks = Ranks(self.channel, self.spec)
        self.brought = None  # type: Optional[Brought]
        self.sampler = None  # type: Optional[Sampler]
        self.usual_python = shutil.which("python3")
        self.parent = os.getppid()
        self.signalled = None  # type: Optional[int]
        self.due = 0.0  # when files of ranks are looked at again
        self.asked = False  # for a sign of life
        self.beaten = time.monotonic()
        self.deadline = None  # type: Optional[float]
        self.why = None  # type: Optional[str]
        self.handed_over = False  # everything that the ranks wrote was sent
        self.kernel = KernelWatch()
        self.keep = False  # the controller could not write it down
        self.sealed = {}  # type: Dict[str, Any]
        self.without_group: List[int] = []

    # --- before the start ----------------------------------------------------------------------------------

    def prepare(self, spec: Dict[str, Any]) -> None:
        """Take the job's description, inspect the host, and send the facts."""
        self.spec = spec
        if spec.get("timeout"):
            self.deadline = time.monotonic() + spec["timeout"]
        if spec.get("setup"):  # first: it may say which GPUs are to be seen
            made = environment_after(spec["setup"])
            os.environ.clear()
            os.environ.update(made)
        shared = os.path.join(spec["run_root"], spec["nonce"])
        about = facts(spec.get("device"))
        about["shared"] = spec["shared"] = os.path.exists(shared)
        base = spec["run_dir"] if about["shared"] else os.path.expanduser(spec["workdir"])
        about["base"] = self.base = os.path.abspath(base)
        self.ranks = Ranks(self.channel, spec, self.base)
        about["disk_free"] = free_bytes(existing(self.base))
        checkpoints = self.checkpoints()
        about["checkpoints"] = sorted(step for step, wrong in checkpoints.items() if wrong is None)
        about["damaged_checkpoints"] = {str(step): wrong for step, wrong in checkpoints.items() if wrong}
        about["python"] = self.python = find_python(spec, self.usual_python)
        check_command(spec, self.python)
        about["versions"] = versions(self.python, spec.get("packages", ()))
        if spec["node_rank"] == 0:
            self.ranks.port_holder = hold_port(spec.get("port") or 0)
            about["port"] = self.ranks.port_holder.getsockname()[1]
        self.channel.say("hello", facts=about)

    def checkpoints(self) -> Dict[int, Optional[str]]:
        """Return the steps of the checkpoints on this host; None: complete by its sizes, or what is wrong
        with one.

        Only a job that continues from one asks: it sends the code with which ranks seal them.
        """
        steps = {}  # type: Dict[int, Optional[str]]
        if not self.spec.get("sealed"):
            return steps
        exec(self.spec["sealed"], self.sealed)
        folder = os.path.join(self.base, "checkpoints")
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            step = name[len("checkpoint-") :]
            if step.isdecimal() and len(step) < 19 and name == "checkpoint-%d" % int(step):
                steps[int(step)] = self.sealed["what_is_missing"](os.path.join(folder, name))
        return steps

    def verify(self, order: Dict[str, Any]) -> None:
        """Read a checkpoint's files and compare them with its manifest, while signs of life go on."""
        folder = os.path.join(self.base, "checkpoints", "checkpoint-%d" % order["step"])

        def read() -> None:
            began = time.monotonic()
            try:
                wrong, size = self.sealed["what_is_wrong"](
                    folder, order["digests"], order["part"], order["parts"]
                )
            except Exception as error:  # whatever is wrong with a checkpoint is no reason to end the job
                wrong, size = "it cannot be checked: %s: %s" % (type(error).__name__, error), 0
            seconds = time.monotonic() - began
            self.channel.post("verified", step=order["step"], wrong=wrong, bytes=size, seconds=seconds)

        threading.Thread(target=read, daemon=True).start()

    def bring(self, order: Dict[str, Any]) -> None:
        """Take a list of files, and send which contents this host has not kept from before."""
        kept = os.path.join(os.path.dirname(os.path.expanduser(self.spec["workdir"])), "code")
        over = lambda: self.why is not None  # noqa: E731
        self.brought = Brought(self.channel, self.base, self.spec["token"], kept, over)
        self.brought.bring(order)

    # --- while they run ------------------------------------------------------------------------------------

    def start(self, order: Dict[str, Any]) -> None:
        """Start the ranks, and sample the host from now on."""
        self.ranks.start(order)
        gpus = self.spec.get("visible_gpus") or self.spec.get("used_gpus")
        self.sampler = Sampler(self.spec["hardware_seconds"], gpus, self.spec["ranks"])
        self.sampler.start()

    def look(self, order: Dict[str, Any]) -> None:
        """Find out where the ranks are, by the program that came with the question: look.py."""

        def do() -> None:
            answer = {"ranks": [], "xid": []}  # type: Dict[str, Any]
            try:
                program = {"__package__": __package__, "__name__": "look"}  # type: Dict[str, Any]
                exec(order["program"], program)
                answer = program["look"](
                    self.ranks.place, self.spec["token"], self.spec["ranks"], self.python
                )
            except Exception as error:  # what cannot be seen is no reason to end the job
                answer["trouble"] = "%s: %s" % (type(error).__name__, error)
            self.channel.post("looked", **dict(answer, number=order["number"]))

        threading.Thread(target=do, daemon=True).start()

    def obey(self, order: Dict[str, Any]) -> None:
        """Carry out an order of the controller."""
        op = order.get("op")
        self.asked = True
        if op == "spec":
            self.channel.say("beat")  # reached: a driver that is slow to load is another matter
            self.channel.flush()
            self.prepare(order)
            self.channel.heard = time.monotonic()  # looking took its time; messages lie unread, not unsent
        elif op == "verify":
            self.verify(order)
        elif op == "tree":
            self.bring(order)
        elif op == "blob" and self.brought:
            self.brought.blob(order)
        elif op == "start":
            self.start(order)
            self.channel.heard = time.monotonic()
        elif op == "look":
            self.look(order)
        elif op == "stop":
            self.why = self.why or self.channel.closed or "stopped"
            self.keep = bool(order.get("keep"))

    def turn(self) -> None:
        """Go once through everything that has to be watched."""
        # Muster's own ranks tell of each step, which is not to wait until lines of logs have gathered.
        tells = self.ranks.processes and "each" not in self.spec
        soon = max(0.0, min(self.due, self.beaten + 1.2 * BEAT) - time.monotonic())
        for order in self.channel.listen(min(soon, TICK) if tells else soon):
            self.obey(order)
        now = time.monotonic()
        if now - self.beaten >= (BEAT / 2 if self.asked else 1.2 * BEAT):
            self.beaten, self.asked = now, False
            self.beat()
        self.channel.say_posts()
        while self.sampler and self.sampler.samples:
            self.channel.say("hardware", sample=self.sampler.samples.popleft())
        if now > self.due - GATHER / 2:
            before = self.channel.out_bytes
            self.ranks.read_tails()
            self.due = now + (TICK if self.channel.out_bytes > min(before + MANY, OUT_LIMIT) else GATHER)
        elif tells:
            self.ranks.read_tails(logs=False)
        self.channel.flush()
        self.why = self.why or self.channel.closed
        if self.signalled is not None:
            self.why = self.why or "signal %d" % self.signalled
        elif os.getppid() != self.parent:
            self.why = self.why or "parent gone"
        elif self.spec and now - self.channel.heard > self.spec["lease"]:
            self.why = self.why or "controller silent"
        elif self.deadline is not None and now > self.deadline:
            self.why = self.why or "deadline"

    def beat(self) -> None:
        """Send a sign of life, and what the ranks have done."""
        pulses, ungrouped = self.ranks.pulses(), self.ranks.ungrouped()
        news = {"pulses": pulses} if pulses else {}  # type: Dict[str, Any]
        if ungrouped != self.without_group:
            self.without_group = news["ungrouped"] = ungrouped
        self.channel.say("beat", **news)

    def run(self) -> int:
        """Work until the ranks end or the job does. Return the exit code: 0 where they have ended well, else
        1."""
        self.channel.open()
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        code = None  # type: Optional[int]
        try:
            while self.why is None and code is None:
                self.turn()
                code = self.ranks.result()
            # Stopped: another host may have missed these ranks first.
            if code or (self.ranks.processes and self.why == "stopped"):
                self.look_at_disk()
        except Problem as problem:
            self.why = "error"
            self.channel.say("error", what=str(problem), hint=problem.hint, id=problem.failure)
        except Exception as error:  # the last line of defence: say it, and still clean up
            self.why = "error"
            what = "the agent failed: %s: %s" % (type(error).__name__, error)
            self.channel.say("error", what=what, hint=None, id=full_disk(error))
        self.ranks.end()
        self.drain()
        if self.brought:
            self.brought.forget_parts()
        if (self.ranks.place or self.brought) and self.spec.get("scratch"):  # not worth keeping
            shutil.rmtree(self.base, ignore_errors=True)
        self.part(code)
        return 0 if code == 0 else 1

    def part(self, code: Optional[int]) -> None:
        """Send how it ended, and remove what the controller has received."""
        bad = {rank: code for rank, code in self.ranks.ended.items() if code}
        first = self.ranks.first_of(bad) if code else None
        self.channel.say(
            "exit",
            code=code,
            why=self.why,
            kernel=self.kernel.look(),
            rank=None if self.spec.get("each") == "host" else first,
            pid=None if first is None else self.ranks.processes[first].pid,
        )
        self.channel.send_all(min(10.0, float(self.spec.get("lease", 5))))
        if self.handed_over and not self.channel.outbox and not self.keep and self.why in (None, *ORDERLY):
            self.ranks.forget_files()  # the controller has them, without secrets

    def look_at_disk(self) -> None:
        """Check the disk after a bad end: ranks on a full disk could not write their error either."""
        free = free_bytes(self.base)
        if free is not None and free < LEAST_ROOM:
            self.channel.say(
                "error",
                what="the disk is full: %d bytes are free for %s" % (free, self.base),
                hint=None,  # the controller has the remedy
                id="disk_full",
            )

    def drain(self) -> None:
        """Forward the rest of the files while the other side accepts it: all events, logs for 30 s at most.

        What is not forwarded of a log stays on the host, and the controller is notified.
        """
        limit = time.monotonic() + 30
        while self.ranks.read_tails(final=True) and not self.channel.mute:
            if time.monotonic() > limit:
                left = sum(tail.left() for tail in self.ranks.logs)
                words = "muster: the rest of the logs, %d bytes, is in %s" % (left, self.ranks.place)
                self.channel.say("log", rank=None, lines=[words])
                return
            self.channel.flush()
            if self.channel.out_bytes > OUT_LIMIT:
                select.select([], [1], [], TICK)
        self.handed_over = not self.channel.mute

    def on_signal(self, number: int, frame: Any) -> None:
        self.signalled = number


def main() -> None:
    os._exit(Agent().run())  # nothing is left to be done, and taking an interpreter apart takes time
