"""Find out where the ranks of a job without progress are, and which of them the others wait for. Pure.

There are three sources. The kernel: is a process stopped, in a debugger, asleep or waiting for a disk, and is
what it sends acknowledged? PyTorch's flight recorder: which rank has begun fewer collectives than the others
wait in, and do all wait in the same one? The Python stacks: which rank is not in a collective while others
are?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from muster.fleet.messages import Frame, GroupProgress, ProbeAnswer, RankProbe, StartedCollective

BUSY = 0.05  # of a core: less is a process that only keeps its threads alive
WANTS = 0.5  # of the time: who wants a processor for so long computes, though others may have them all
FLOWING = 1 << 16  # bytes within the time of a look
FEW = 2  # Python stacks that a loop without an end may show
# The code that ranks wait for each other in: files of it, which are innermost then (FSDP's own code, in the
# same folder, is on the stack while a model computes), and what runs under autograd's C++.
_COLLECTIVES = (
    *(f"torch/distributed/{name}.py" for name in ("distributed_c10d", "c10d_logger", "utils", "rendezvous")),
    "torch/distributed/_functional_collectives.py",
    "deepspeed/comm/",
    "mpi4py/",
    "horovod/",
)
_ENGINE = ("_engine_run_backward", "synchronize", "_sync_params_and_buffers")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "code.zip/", "<")
_LOADER = "torch/utils/data/"
# What the kernel calls the place where a thread sleeps -> what it does there.
_SLEEPS = {
    "nanosleep": "it sleeps",
    "pipe": "it waits for a pipe",
    "wait_for_partner": "it waits for a pipe that no process opens at its other end",
    "futex": "it waits for a lock or another thread",
    "sk_wait": "it waits for the network",
    "tcp": "it waits for the network",
    "inet": "it waits for the network",
    "unix": "it waits for another program's answer",
    "do_wait": "it waits for a child process",
    "nfs": "it waits for a network file system",
    "rpc": "it waits for a network file system",
    "fuse": "it waits for a file system",
    "request_wait": "it waits for a file system",
    "poll": "it waits for input",
    "select": "it waits for input",
}
_APART = (
    "the program takes different ways on different ranks: all must come to the same collectives in the same "
    "order, and what one receives another one must send"
)
Kind = Literal["stopped", "traced", "disk", "idle", "busy", "computing", "absent", "waiting"]


def _function(frame: Frame) -> str:
    return f"{frame[0]} ({'/'.join(frame[1].split('/')[-2:])})"


def _pending(groups: Iterable[GroupProgress]) -> dict[str, list[StartedCollective]]:
    pending = {each.group: [call for call in each.calls if call.pending] for each in groups}
    return {name: calls for name, calls in pending.items() if calls}


def _for_pending(frame: Frame) -> bool:
    """Return whether a rank in this innermost frame waits for a collective that it began before."""
    return frame[0] in _ENGINE or "torch/distributed/" in frame[1]


def in_collective(frames: Sequence[Frame]) -> bool:
    """Return whether a Python stack is in code in which ranks wait for each other."""
    return any(part in frame[1] for frame in frames[:3] for part in _COLLECTIVES)


def line_of(frames: Sequence[Frame]) -> str | None:
    """Return the innermost line that is not a library's, for people; where all are, the innermost one."""
    own = next((each for each in frames if not any(part in each[1] for part in _LIBRARIES)), None)
    frame = own or next((each for each in frames if not in_collective([each])), None)
    return f"{frame[0]} ({frame[1].rsplit('/', 1)[-1]}:{frame[2]})" if frame else None


@dataclass(frozen=True)
class RankState:
    """A rank as its probe shows it. `look` is None where it has no process."""

    rank: int
    host: str
    look: RankProbe | None

    @property
    def line(self) -> str | None:
        """Where its main thread is."""
        mains = [each for each in self.look.mains if each] if self.look else []
        return line_of(mains[-1]) if mains else None

    @cached_property
    def pending(self) -> dict[str, list[StartedCollective]]:
        """Per process group, the collectives that it began and that have not ended."""
        return _pending((self.look.after or self.look.before or []) if self.look else [])

    @cached_property
    def last(self) -> dict[str, int] | None:
        """Per process group, the number of the last collective that it began; None: it did not answer."""
        if self.look is None:
            return None
        answer = self.look.after if self.look.after is not None else self.look.before
        return None if answer is None else {each.group: each.last for each in answer}

    @property
    def goes_on(self) -> bool:
        """Whether it began or ended a collective, sent or received something during the probe."""
        if self.look is None or self.look.before is None or self.look.after is None:
            return False
        before = {each.group: (each.last, each.p2p) for each in self.look.before}
        if any((each.last, each.p2p) > before.get(each.group, (0, 0)) for each in self.look.after):
            return True
        return any(
            calls[0] not in self.pending.get(group, ()) for group, calls in _pending(self.look.before).items()
        )

    @property
    def on_the_device(self) -> bool:
        """Whether it waits for its GPU, in a collective of NCCL's that does not end: such a thread is busy,
        inside the driver."""
        look = self.look
        if look is None or look.after is None or look.library == "" or self.goes_on:
            return False
        begun = [call.name for calls in self.pending.values() for call in calls]
        return any(name.startswith("nccl:") for name in begun) and len(set(map(tuple, look.mains))) == 1

    @property
    def on_the_network(self) -> bool:
        """Whether it sleeps where programs wait for the network."""
        wchan = self.look.wchan if self.look else ""
        return self.kind == "idle" and any(each in wchan for each in ("sk_", "tcp", "inet", "poll", "select"))

    @cached_property
    def kind(self) -> Kind:
        """What it does."""
        look = self.look
        if look is None:
            return "absent"
        if not look.states or None in look.states:  # it ends, or an earlier look still reads it
            return "computing"
        states = set(look.states)
        if states == {"T"}:
            return "stopped"
        if states == {"t"}:  # who is only watched, as by strace, runs on
            return "traced"
        mains = [each for each in look.mains if each]
        if mains and all(in_collective(each) for each in mains):
            return "waiting"
        children = look.cpu - look.own_cpu > BUSY or look.wants_below > WANTS
        if look.io > FLOWING or look.disk_moves or children:  # their work is work
            return "computing"
        resting = look.own_cpu < BUSY and look.wants < WANTS
        if self.pending and resting and (not mains or _for_pending(mains[-1][0])):
            return "waiting"
        if not resting and self.on_the_device:
            return "waiting"
        if states == {"D"}:
            return "disk"
        if "D" in states:  # what it waits for there comes
            return "computing"
        if resting:
            return "idle"
        if look.library != "":  # in a library, or unknown: to wait for a GPU looks the same
            return "computing"
        # Without a Python stack it may be at its start or its end.
        seen = max(look.functions or 0, len({tuple(map(_function, each)) for each in mains}))
        return "busy" if len(mains) == len(look.mains) and seen <= FEW else "computing"

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def does(self) -> str:
        """Return what it does, as a sentence without its subject."""
        at = f" at {self.line}" if self.line else ""
        if self.look is None:
            return "has no process any more"
        if self.kind == "stopped":
            return f"is stopped by a signal (SIGSTOP, or Ctrl-Z){at}"
        if self.kind == "traced":
            return f"is held by {self.look.tracer or 'a debugger'}{at}"
        if self.kind == "disk":
            return f"waits for a disk or a network file system{at} ({self.look.wchan or 'state D'})"
        if self.kind in ("busy", "computing"):
            return f"computes{at}" + (" and comes to no end" if self.kind == "busy" else "")
        if self.kind == "waiting":
            return f"waits for others{at}"
        if held := next((each for each in self.look.stopped), None):
            how = "is stopped" if held.state == "T" else "is in a debugger" if held.state == "t" else "waits"
            return f"waits{at}; its child process {held.pid} ({held.name}) {how} (state {held.state})"
        mains = [each for each in self.look.mains if each]
        if mains and any(_LOADER in each[1] for each in mains[-1]):
            return f"waits for its data loader{at}"
        why = next((words for part, words in _SLEEPS.items() if part in self.look.wchan), None)
        return f"does nothing{at}" + (f": {why}" if why else "")


@dataclass(frozen=True)
class HangFinding:
    """What a probe of all ranks shows. `hangs`: false where something still makes progress, so that they are
    probed again later. `culprits`: the ranks that the others wait for; `hosts`: those concerned where no rank
    is to blame; `certain`: the sources agree."""

    hangs: bool
    what: str
    culprits: tuple[RankState, ...] = ()
    hosts: tuple[str, ...] = ()
    certain: bool = False
    waiting: tuple[int, ...] = ()
    witnesses: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def of_one(self) -> str:
        """The finding in words that fit a rank which is named already."""
        if not self.certain or len(self.culprits) != 1:
            return f"the job hangs: {self.what}"
        return f"it hangs: {self.what.removeprefix(f'{self.culprits[0]} ')}"


@dataclass
class _Case:
    """The evidence, sorted."""

    stands: Sequence[RankState]
    probes: Mapping[str, ProbeAnswer]  # per host, whom it reaches
    missed: dict[int, str] = field(default_factory=dict)  # rank -> the collective that others wait for it in
    late: dict[int, str] = field(default_factory=dict)  # the same, where its GPU has not come to it

    @property
    def waiting(self) -> list[RankState]:
        return [each for each in self.stands if each.kind == "waiting"]

    def hear_the_recorder(self) -> None:
        """Sort out which ranks have begun fewer collectives of a group than the others wait in."""
        begun: dict[str, dict[int, StartedCollective]] = {}
        started: dict[str, set[int]] = {}
        for each in self.stands:
            for group, calls in each.pending.items():
                begun.setdefault(group, {}).update((call.number, call) for call in calls)
                started.setdefault(group, set()).update(call.number for call in calls if call.started)
        for each in self.stands:
            last_begun = each.last or {}
            for group in begun:
                last = last_begun.get(group, last_begun.get(f"* {group.partition(' ')[2]}"))
                if last is None:
                    continue
                first = min((number for number in begun[group] if number > last), default=None)
                if first is not None:
                    collective = f"{begun[group][first].name} number {first}; it has begun {last}"
                    self.missed.setdefault(each.rank, collective)
            for group, calls in each.pending.items():
                for call in calls:
                    if not call.started and call.number in started.get(group, ()):
                        collective = f"{call.name} number {call.number}, which its GPU has not come to"
                        self.late.setdefault(each.rank, collective)

    def parted(self) -> list[tuple[str, str]]:
        """Return pairs of hosts, or of a host and an address that no host has, where one end gets no answer
        to what it sends; and other pairs of these hosts where one end does not reach the other."""
        homes: dict[str, set[str]] = {}
        looks = [(each.host, each.look) for each in self.stands if each.look]
        for host, look in looks:
            for address in look.addresses:
                homes.setdefault(address, set()).add(host)

        def pair(host: str, there: str) -> tuple[str, str]:
            owners = homes.get(there, set())
            ends = host, next(iter(owners)) if len(owners) == 1 else there
            return min(ends), max(ends)

        cut = {pair(host, there) for host, look in looks for _, there in look.silent}
        ends = {end for each in cut for end in each}
        if any(each.reached for each in self.probes.values()):  # else probes are let through nowhere
            tried = {pair(host, there) for host, each in self.probes.items() for there in each.unreached}
            cut |= {each for each in tried if not ends.isdisjoint(each)}
        return sorted(each for each in cut if each[0] != each[1])

    def disagreement(self) -> dict[str, list[RankState]] | None:
        """Return ranks that wait in the same collective of a group, by the operation that each takes it for,
        where those differ; None: they do not, or it is not known."""
        if self.missed:
            return None
        for group in {name: None for each in self.waiting for name in each.pending}:
            calls: dict[str, list[RankState]] = {}
            lines: dict[str, list[RankState]] = {}
            for each in self.waiting:
                for first in each.pending.get(group, [])[:1]:
                    sizes = first.sizes if "reduce" in first.name or "broadcast" in first.name else None
                    what = f"{first.name} of {sizes}" if sizes else first.name
                    calls.setdefault(what, []).append(each)
                    lines.setdefault(f"{what} at {each.line}", []).append(each)
            if len(calls) > 1:  # the same operation at two lines is how a program may be written: both match
                return lines
        return None


def judge(
    stands: Sequence[RankState], *, stepping: bool, looks: Mapping[str, ProbeAnswer] | None = None
) -> HangFinding:
    """Return what keeps the ranks. `stands`: all of them; `stepping`: they have done steps before, so that a
    long computation is no start-up; `looks`: what else their hosts have reported."""
    looks = looks or {}
    xid = [f"{host}: {each}" for host, one in looks.items() for each in one.xid]
    case = _Case(stands, looks)
    case.hear_the_recorder()
    if any(each.goes_on for each in stands):
        return HangFinding(False, "collectives go on")
    held = [each for each in stands if each.kind in ("stopped", "traced")]
    if held:
        return _named(case, held, {"the kernel": held}, xid)
    others = [each for each in stands if each.kind != "waiting"]
    if (parted := case.parted()) and not any(_alive(each, stepping=stepping) for each in others):
        return _parted(parted, case, others, xid)
    if case.late and not case.missed:
        late = [each for each in stands if each.rank in case.late]
        case.missed = case.late
        return _named(case, late, {"the flight recorder": late}, xid)
    if apart := case.disagreement():
        return _apart(apart, case)
    behind = [each for each in stands if each.rank in case.missed and each.kind != "waiting"]
    outside = [each for each in stands if each.kind != "waiting"] if case.waiting else []
    by_witness = {"the flight recorder": behind, "the Python stacks": outside}
    suspects = [each for each in behind if each in outside] or behind or outside
    if not case.waiting and not behind:
        return _without_others(stands, stepping)
    if not suspects:
        return _all_wait(case, xid)
    # The others, and the suspects with them, may wait for a rank that did not answer.
    unheard = [each for each in outside if each.last is None]
    if any(_alive(each, stepping=stepping) for each in (*suspects, *unheard)):
        return HangFinding(False, "; ".join(f"{each} {each.does()}" for each in suspects[:3]))
    return _named(case, suspects, {name: accused for name, accused in by_witness.items() if accused}, xid)


def _alive(stand: RankState, *, stepping: bool) -> bool:
    """Return whether what a rank does may come to an end. Before the first step, compiling a model may take
    long."""
    return stand.kind == "computing" or (stand.kind == "busy" and not stepping)


def _named(
    case: _Case,
    culprits: Sequence[RankState],
    by_witness: Mapping[str, Sequence[RankState]],
    xid: Iterable[str],
) -> HangFinding:
    """Return the finding that the others wait for these ranks."""
    sets = [frozenset(each.rank for each in accused) for accused in by_witness.values()]
    # Who is missed and waits in nothing is a cause, whatever its stack looks like.
    if missed := frozenset(
        each.rank for each in case.stands if each.rank in case.missed and not each.pending
    ):
        sets.append(missed)
    agree = all(not one.isdisjoint(other) for one in sets for other in sets)
    waiting = [each for each in case.stands if each.kind == "waiting"]
    witnesses = [
        f"{who}: {', '.join(f'rank {each.rank}' for each in accused[:8])}"
        for who, accused in by_witness.items()
    ]
    witnesses += [f"rank {rank} is missed in {where}" for rank, where in list(case.missed.items())[:8]]
    witnesses += [f"the NVIDIA driver: {each}" for each in xid]
    words = "; ".join(f"{each} {each.does()}" for each in culprits[:3])
    more = f"; {len(culprits) - 3} more ranks as well" if len(culprits) > 3 else ""
    others = _waits(waiting)
    if not agree:
        words = (
            f"witnesses disagree on who keeps the others: {'; '.join(witnesses[: len(by_witness)])}; {words}"
        )
    return HangFinding(
        True,
        f"{words}{more}{others}",
        tuple(culprits),
        certain=agree and len(culprits) < len(case.stands),
        waiting=tuple(each.rank for each in waiting),
        witnesses=tuple(witnesses),
        hint=_hint(culprits[0]),
    )


def _parted(
    pairs: Sequence[tuple[str, str]], case: _Case, others: Sequence[RankState], xid: Iterable[str]
) -> HangFinding:
    """Return the finding that what hosts send is not answered: one host where all pairs share one, else
    links."""
    common = set.intersection(*map(set, pairs)) if len(pairs) > 1 else set()
    seen = [f"the kernel: between {one} and {other} data are sent again and again" for one, other in pairs]
    named: tuple[str, ...]
    if len(common) == 1:
        (host,) = common
        ends = [end for pair in pairs for end in pair if end != host]
        words = f"nothing arrives between {host} and {', '.join(ends[:3])}{', ...' if len(ends) > 3 else ''}"
        named = (host,)
    else:
        words = "nothing arrives between " + "; ".join(f"{one} and {other}" for one, other in pairs[:3])
        named = pairs[0] if len(pairs) == 1 else ()
    # Who waits for no network has another reason.
    apart = [each for each in others if not each.on_the_network]
    if apart:
        words = f"witnesses disagree: {words}; but {'; '.join(f'{each} {each.does()}' for each in apart[:3])}"
    return HangFinding(
        True,
        f"{words}{_waits(case.waiting, '')}",
        hosts=named,
        certain=len(named) == 1 and not apart,
        waiting=tuple(each.rank for each in case.waiting),
        witnesses=(*seen[:8], *(f"the NVIDIA driver: {each}" for each in xid)),
        hint="the network between the hosts: `muster check HOSTS --group` measures each pair",
    )


def _waits(waiting: Sequence[RankState], whom: str = " for it") -> str:
    if not waiting:
        return ""
    places = Counter(each.line for each in waiting if each.line)
    at = f" at {places.most_common(1)[0][0]}" if places else ""
    ranks = f"{'other ' if whom else ''}rank{'s wait' if len(waiting) > 1 else ' waits'}"
    return f"; {len(waiting)} {ranks}{whom}{at}"


def _hint(culprit: RankState) -> str | None:
    host = culprit.host
    return {
        "stopped": f"on {host}: who stopped it? `kill -CONT PID` lets it go on",
        "traced": f"leave the debugger on {host}",
        "disk": f"look at the disks and mounts of {host}: `cat /proc/mounts`, `dmesg -T`",
        "absent": f"the log of rank {culprit.rank} has its last words",
    }.get(culprit.kind, "hang.json in the run folder has every rank's stacks")


def _apart(apart: Mapping[str, Sequence[RankState]], case: _Case) -> HangFinding:
    """Return the finding that ranks came to different collectives, a bug of the program. Few against many are
    named."""
    ordered = sorted(apart.items(), key=lambda each: len(each[1]))
    few, many = ordered[0][1], ordered[-1][1]
    words = "; ".join(f"{_ranks(ranks)}: {what}" for what, ranks in ordered[:4])
    named = tuple(few) if len(few) < len(many) else ()
    return HangFinding(
        True,
        f"ranks wait for each other in different collectives: {words}",
        named,
        certain=bool(named),
        waiting=tuple(each.rank for each in case.waiting),
        witnesses=(f"the flight recorder and the Python stacks: {words}",),
        hint=_APART,
    )


def _ranks(stands: Sequence[RankState]) -> str:
    numbers = ", ".join(str(each.rank) for each in stands[:8])
    return f"rank{'s' if len(stands) > 1 else ''} {numbers}{', ...' if len(stands) > 8 else ''}"


def _all_wait(case: _Case, xid: Iterable[str]) -> HangFinding:
    waiting = tuple(each.rank for each in case.waiting)
    driver = tuple(f"the NVIDIA driver: {each}" for each in xid)
    begun: dict[frozenset[tuple[str, int]], list[RankState]] = {}
    lines: dict[str, list[RankState]] = {}
    for each in case.waiting:
        first = frozenset((group, calls[0].number) for group, calls in each.pending.items())
        begun.setdefault(first, []).append(each)
        lines.setdefault(each.line or "?", []).append(each)
    if not frozenset.intersection(*begun) and len(lines) > 1:
        words = "; ".join(f"{_ranks(ranks)} at {line}" for line, ranks in list(lines.items())[:4])
        missed = [f"rank {rank} is missed in {where}" for rank, where in list(case.missed.items())[:8]]
        # Where two kinds of ranks miss each other, the fewer are named.
        few, *_, many = sorted(begun.values(), key=len) if len(begun) == 2 else ([], [])
        circle = len(few) < len(many) and all(each.rank in case.missed for each in case.waiting)
        return HangFinding(
            True,
            f"ranks wait for each other at different places: {words}",
            tuple(few) if circle else (),
            certain=circle,
            waiting=waiting,
            witnesses=(*missed, *driver),
            hint=_APART,
        )
    at = next((each.line for each in case.waiting if each.line), None)
    return HangFinding(
        True,
        f"all ranks wait in the same collective{f' at {at}' if at else ''}: nothing arrives between them",
        waiting=waiting,
        witnesses=driver,
        hint="the network between the hosts: `muster check HOSTS --group` measures each pair",
    )


def _without_others(stands: Sequence[RankState], stepping: bool) -> HangFinding:
    """Judge ranks where none is seen to wait for another."""
    stuck = [each for each in stands if each.kind in ("idle", "disk", "absent", "busy")]
    if not stepping or len(stuck) < len(stands) or not any(each.look for each in stands):
        return HangFinding(False, "nothing shows that a rank waits for another one")
    there = [each for each in stuck if each.look]  # no rank waits for one that has ended
    words = "; ".join(f"{each} {each.does()}" for each in there[:3])
    return HangFinding(True, words, tuple(there), certain=len(there) == 1, hint=_hint(there[0]))
