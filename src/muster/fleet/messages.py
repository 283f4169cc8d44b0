"""The messages that hosts may send, by name. A connection validates each line before it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from muster.core.job import Placement
from muster.core.section import Part
from muster.store import events

MOST_WORDS = 4000  # characters of what an agent says for people
Check = Callable[[Placement, Mapping[str, Any]], None]  # raises ValueError, in words
_Words = Annotated[str, Field(max_length=MOST_WORDS)]
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Message(Part):
    model_config = ConfigDict(strict=True, extra="allow")


class _Gpu(_Message):
    name: str | None = None
    memory_total: _Count | None = None
    capability: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None


class _Network(_Message):
    interface: str | None = None
    megabits: float | None = None
    infiniband_megabits: float | None = None


class _Facts(_Message):
    hostname: str
    system: str
    cores: Annotated[int, Field(ge=1)] | None
    processor: str | None = None
    memory_total: _Count | None
    memory_limit: _Count | None = None
    disk_free: _Count
    gpus: list[_Gpu]
    network: _Network | None = None
    address: str | None = None
    shared: bool
    base: str
    python: str
    versions: dict[str, str | None]
    checkpoints: list[_Count]
    damaged_checkpoints: dict[Annotated[str, Field(pattern="^[0-9]{1,18}$")], str] = Field(
        default_factory=dict
    )
    port: Annotated[int, Field(ge=1, le=65535)] | None = None


class _Hello(_Message):
    facts: _Facts


class _Error(_Message):
    what: str
    hint: str | None = None
    id: str | None = None


class Kernel(Part):
    """What a host's kernel reports of its out-of-memory killer while the job ran; None: it cannot be read."""

    model_config = ConfigDict(strict=True, extra="ignore")
    group: _Count | None = None  # processes of the job's control group that it ended
    machine: _Count | None = None  # processes of the whole host
    log: Annotated[list[_Words], Field(max_length=100)] | None = None  # what the kernel logged of them


class _Exit(_Message):
    code: int | None
    why: _Words | None
    kernel: Kernel | None = None
    rank: int | None = None  # that ended badly first
    pid: int | None = None


class _Beat(_Message):
    model_config = ConfigDict(strict=False, extra="allow")
    pulses: list[tuple[int, _Count, _Count, str]] = Field(default_factory=list)
    ungrouped: list[int] = Field(default_factory=list)


class StartedCollective(Part):
    """A collective operation that a rank began. `number`: its place in its group; `pending`: it has not
    ended; `started`: its GPU has reached it (gloo does not report that)."""

    number: int
    name: str
    sizes: Any = None
    pending: bool
    started: bool = False


class GroupProgress(Part):
    """A rank's progress in one process group: the number of its last collective, and the collectives that
    have not ended, or else that one. `p2p`: the same of sends and receives."""

    group: str
    last: int
    p2p: int = 0
    calls: list[StartedCollective]


Frame = tuple[str, str, int]  # function, file, line


class Thread(Part):
    """A thread's Python stack, the innermost frame first."""

    name: str
    frames: list[Frame]


class StoppedChild(Part):
    """A process below a rank that is stopped (T), traced (t) or in uninterruptible sleep (D)."""

    pid: int
    state: str
    name: str


class RankProbe(Part):
    """A rank as seen from outside, several times. `cpu`, `own_cpu`: cores used with its children and by
    itself; `io`: bytes that they read and wrote; `states`: of the main thread, as in /proc; `library`: the
    one that the main thread computes in, such as libtorch_cpu.so; "": in none; None: not known; `mains`: the
    main thread's stacks; `before` and `after`: its collectives at the begin and the end; None: it did not
    answer."""

    rank: int
    pid: int
    states: list[str | None]
    cpu: float
    own_cpu: float
    io: int
    wchan: str
    tracer: str | None
    library: str | None = None
    functions: int | None = None  # stacks of them that the main thread showed in two seconds of many looks
    mains: list[list[Frame]]
    others: list[Thread]
    stopped: list[StoppedChild]
    before: list[GroupProgress] | None
    after: list[GroupProgress] | None
    addresses: list[str] = Field(default_factory=list)  # its own, of its connections
    # Its end and the other one, where data are sent again and again without an answer.
    silent: list[tuple[str, str]] = Field(default_factory=list)
    wants: float = 0.0  # the share of the time in which its busiest thread had a processor or waited for one
    wants_below: float = 0.0  # the same of its children
    # Thread of theirs in the kernel's hands -> what its disk has done so far; and whether it does more.
    disk: dict[str, str] = Field(default_factory=dict)
    disk_moves: bool = False
    unread: str = ""


class ProbeAnswer(_Message):
    """An agent's answer to the question where its ranks are."""

    model_config = ConfigDict(strict=False, extra="allow")
    number: int
    ranks: list[RankProbe]
    xid: list[_Words]
    reached: list[str] = Field(default_factory=list)  # addresses that answer
    unreached: list[str] = Field(default_factory=list)
    trouble: _Words | None = None


class _Log(_Message):
    rank: int | None
    lines: list[str]


class _Event(_Log):
    rank: int


class _Hardware(_Message):
    sample: events.Hardware


class _Verified(_Message):
    step: int
    wrong: str | None


class _Lacks(_Message):
    digests: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


_JOB: dict[str, type[_Message]] = {
    "beat": _Beat,
    "looked": ProbeAnswer,
    "hello": _Hello,
    "verified": _Verified,
    "lacks": _Lacks,
    "brought": _Message,
    "error": _Error,
    "exit": _Exit,
    "event": _Event,
    "log": _Log,
    "hardware": _Hardware,
}


def of_job(place: Placement, message: Mapping[str, Any]) -> None:
    """Validate a message of a job's agent. Raises ValueError."""
    kind = _JOB.get(str(message["m"]))
    if kind is None:
        raise ValueError(f"{str(message['m'])[:40]!r} is the name of no message")
    try:
        kind.model_validate(message)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        raise ValueError(f"{message['m']}: {where}: {first['msg'].lower()}") from None
    ranks = [message.get("rank"), *(each[0] for each in message.get("pulses", ()))]
    ranks += message.get("ungrouped", ())
    if message["m"] == "looked":
        ranks += [each["rank"] for each in message["ranks"]]
    for rank in ranks:
        if rank is not None and rank not in place.ranks:
            raise ValueError(f"{message['m']}: rank {rank} is not on that host")
    if message["m"] == "hello" and place.first_rank == 0 and "port" not in message["facts"]:
        raise ValueError("hello: facts.port: field required")
