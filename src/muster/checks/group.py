"""The group checks: real ranks on the hosts that are fit so far measure together. One agent per host starts
one rank per slot; their reports become one typed result, with the host to blame where ranks did not end; the
families' judges make findings of it."""

from __future__ import annotations

import json
import re
import secrets
import signal
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from muster.checks.base import Check, Context, Finding, Level
from muster.checks.questions import HostAnswers
from muster.checks.registry import Family
from muster.checks.unreachable import UnreachableHost
from muster.core.errors import BrokenPluginError, JobError, MusterError, UsageError
from muster.core.fabric import (
    Copy,
    Disk,
    FabricFailure,
    FabricHost,
    GroupFabric,
    MpiHello,
    Rendezvous,
    spread,
)
from muster.core.inventory import Host
from muster.core.job import Facts, Placement, place
from muster.core.launch import Launch
from muster.core.recipe import Recipe
from muster.core.registry import warn
from muster.failures.table import why_lost
from muster.fleet import shell
from muster.fleet.cause import WATCHDOG, by_sigkill, signal_name, watchdog_words
from muster.fleet.interrupts import interrupts
from muster.fleet.launchers.openmpi import mpirun
from muster.fleet.messages import Kernel
from muster.fleet.supervisor import Listener, Outcome, Supervisor
from muster.inputs.read import Inputs
from muster.planner.decide import decide
from muster.planner.orders import greeting, start_orders, with_code
from muster.workloads.fabric.fold import Event, RankEvents
from muster.workloads.fabric.request import TOGETHER, FabricRequest, algbw
from muster.workloads.fabric.spec import FabricRecipe

GROUPED = Check(
    "host.grouped",
    "The host can take part in the group checks: its agent starts, and its ranks can be placed.",
    "A job would not start on it.",
)
NO_TORCH = "torch is not installed for the ranks"
_TRIES = 4  # a host that cannot take part is left out, and the others try again
WORKER = "muster.workloads.fabric"  # the ranks' module
_MOST_SLOTS = 16  # GPUs of one host
_GRACE = 5.0  # seconds of silence that mean nothing
_LINES = 20  # of a host's log, that explain an end without a word

Watch = Callable[[str, Event], None]  # host, one event of a rank as it comes
Logs = Mapping[str, Iterable[str]]  # host -> its last lines


def together(
    job: Inputs,
    kinds: Sequence[Family],
    answers: Mapping[str, HostAnswers | UnreachableHost],
    context: Context,
    announce: Callable[[str], None],
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Let ranks on the job's hosts measure, and judge. Return the measurements and the findings.

    Hosts without torch are left out. Raises JobError after Ctrl-C; then nothing is left on the hosts.
    """
    hosts = [host for host in job.inventory.hosts if _has_torch(answers.get(host.label))]
    findings = [
        Finding(GROUPED.name, host.label, Level.NOT_APPLICABLE, NO_TORCH)
        for host in job.inventory.hosts
        if host not in hosts
    ]
    tries = 0
    while hosts and tries < _TRIES:
        tries += 1
        many = "s" if len(hosts) > 1 else ""
        announce(f"ranks on {len(hosts)} host{many} load torch and measure together (about a minute)")
        try:
            inventory = replace(job.inventory, hosts=tuple(hosts))
            with interrupts() as wish:
                fabric = measure(replace(job, inventory=inventory), stop=lambda: wish.stop)
            data = fabric.model_dump(mode="json")
        except MusterError as error:
            blamed = [host for host in hosts if host.label == error.host]
            findings += _refused(error, blamed, hosts)
            hosts = [host for host in hosts if host not in blamed] if blamed else []
            continue
        if wish.stop:
            raise JobError(wish.stop, hint="the check left nothing on the hosts")
        findings += [Finding(GROUPED.name, host.label, Level.PASS) for host in hosts]
        for family in kinds:
            if family.judge_group is not None:
                try:
                    findings += family.judge_group(data, context)
                except BrokenPluginError as error:
                    warn(str(error))
        return data, findings
    problem = "the group checks were stopped"
    evidence = f"{_TRIES} hosts could not take part"
    left = [Finding(GROUPED.name, host.label, Level.UNKNOWN, problem, evidence) for host in hosts]
    return None, findings + left


def _refused(error: MusterError, blamed: Sequence[Host], hosts: Sequence[Host]) -> list[Finding]:
    """Make findings of an error: of the hosts that it names, or unknown on all."""
    level, problem, evidence = Level.UNKNOWN, "the group checks could not be started", str(error)
    if blamed:
        level, problem, evidence = Level.FAIL, "it cannot take part in the group checks", error.what
    return [
        Finding(GROUPED.name, host.label, level, problem, evidence, error.hint) for host in blamed or hosts
    ]


def _has_torch(one: HostAnswers | UnreachableHost | None) -> bool:
    """Return whether the ranks' interpreter has it, by the answer of the family `versions`."""
    if not isinstance(one, HostAnswers):
        return False
    packages = one.answers.get("versions", {}).get("packages")
    return isinstance(packages, dict) and bool(packages.get("torch"))


# ----------------------------------------------------------------------------------------------------
# Measuring: one process per host through the agent, one rank per slot.


def measure(
    inputs: Inputs,
    *,
    asked: FabricRequest | None = None,
    watch: Watch = lambda host, event: None,
    stop: Callable[[], str | None] = lambda: None,
) -> GroupFabric:
    """Ask all questions of all hosts at once. Of the recipe only `launch` counts.

    What fails on the way is in the result's `failures`, with everything that was measured until then. `stop`
    is asked a few times a second; a text ends it early. Nothing is left on the hosts. Raises InventoryError
    where a host cannot be reached, and UsageError where one lacks torch.
    """
    asked = asked or FabricRequest()
    hosts = inputs.inventory.hosts
    most = sum(host.slots or _MOST_SLOTS for host in hosts)  # how many it will be is not known yet
    launch = inputs.recipe.launch.model_copy(update={"timeout": asked.grown(most).limit})
    inputs = replace(inputs, recipe=FabricRecipe(launch=launch))
    job_id = f"fabric-{secrets.token_hex(4)}"
    places = place([(host, host.slots or 1) for host in hosts])
    began = time.monotonic()
    with Supervisor(places, inputs.launcher, launch, job_id) as supervisor:
        facts = supervisor.greet(_greeting(inputs.recipe, places, job_id))
        _check_torch(facts)
        decided = decide(inputs, facts)
        job = decided.job
        patient = asked.grown(job.world_size) if job.device == "cuda" else asked
        ranks_by_host = [[each.host, each.first_rank, each.slots] for each in job.placements]
        common = {"asked": asdict(patient), "hosts": ranks_by_host, "device": job.device}

        def one(index: int, where: Placement, address: str, port: int) -> tuple[dict[str, Any], list[str]]:
            order = {**common, "host": index, "address": address, "port": port}
            return order, [facts[where.host]["python"], "-m", WORKER]

        orders = start_orders(inputs, decided, facts, one, seconds=60, apart=True)
        collector = Collector(job.placements, patient, job.device, watch)

        def tick() -> str | None:
            if time.monotonic() - began > patient.limit + launch.connect_timeout:
                return f"timeout: the group checks took longer than {patient.limit:g} s"
            return collector.in_vain() or stop()

        listener = Listener(collector.event, collector.log, lambda host, sample: None, tick)
        outcome = supervisor.run(with_code(orders), listener)
    hello = None
    if inputs.launcher_name == "openmpi" and "mpi" in asked.questions and not outcome.stopped:
        python = str(facts[hosts[0].label]["python"])
        hello = mpi_hello(hosts, launch, python, asked.patience)
    first = orders[job.placements[0].host]
    return collector.result(
        outcome,
        address=first["address"],
        port=first["port"],
        launcher=inputs.launcher_name,
        seconds=time.monotonic() - began,
        mpi=hello,
    )


def _greeting(recipe: Recipe, places: tuple[Placement, ...], job_id: str) -> dict[str, dict[str, Any]]:
    """Greet as for a training, but each host works in its own folder, which its agent removes at the end."""
    folder = Path(tempfile.gettempdir()) / job_id  # never made: no host shares it
    orders = greeting(
        recipe, places, run_dir=folder, nonce=f".{job_id}-{secrets.token_hex(8)}", job_id=job_id, attempt=1
    )
    return {
        host: {**spec, "workdir": f"{spec['workdir']}-{host}", "scratch": True}
        for host, spec in orders.items()
    }


def _check_torch(facts: Facts) -> None:
    for host, about in facts.items():
        if not about["versions"].get("torch"):
            raise UsageError(
                f"torch is not installed for {about['python']}",
                host=host,
                hint="pip install torch there, or launch.python=PATH of one that has it",
                failure="remote_module_missing",
            )


# ----------------------------------------------------------------------------------------------------
# What ranks reported during the group checks -> one typed result.


class Collector:
    """Takes every event, and makes the result at the end."""

    def __init__(
        self, places: tuple[Placement, ...], asked: FabricRequest, device: str, watch: Watch
    ) -> None:
        self.logs: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_LINES))
        self.read = RankEvents(places, device)
        self.asked = asked
        self.watch = watch
        self.last = time.monotonic()  # when an event came

    def event(self, host: str, line: str) -> None:
        """Take a rank's line. One that a dying rank left unfinished is noted, not believed."""
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not (
            isinstance(event, dict)
            and isinstance(event.get("kind"), str)
            and isinstance(event.get("rank"), int)
        ):
            self.read.notes.append(f"{host}: unreadable line: {line[:200]}")
            return
        self.last = time.monotonic()
        self.read.add(host, event)
        self.watch(host, event)

    def log(self, host: str, rank: int | None, lines: list[str]) -> None:
        """Take what a host's processes printed: the last lines are kept."""
        self.logs[host].extend(lines)

    def in_vain(self) -> str | None:
        """Return why to wait no longer: some ranks have ended, and the others have long been silent.

        Sooner where some rank has reported that it lost them.
        """
        over = {event["rank"] for _, event in self.read.of("done", "ended")}
        left = set(range(self.read.world_size)) - over
        missed = {rank for _, event in self.read.of("missing") for rank in event["ranks"]}
        patience = 0.0 if left <= missed else max(self.asked.arrival, self.asked.patience, self.asked.seconds)
        if not over or not left or time.monotonic() - self.last < patience + _GRACE:
            return None
        hosts = sorted({self.read.host_of(rank) for rank in left})
        return f"timeout: no more messages from {', '.join(hosts)}"

    def result(self, outcome: Outcome, *, address: str, port: int, **about: Any) -> GroupFabric:
        """Return the result. An event of an unexpected shape is noted and left out. `about`: the other fields
        of GroupFabric."""
        read = self.read
        return GroupFabric(
            hosts=[self._host(each) for each in read.places],
            world_size=read.world_size,
            asked=list(self.asked.questions),
            rendezvous=self._rendezvous(address, port),
            **read.figures(),
            pairs=read.pairs(),
            copies=read.each("copy", _copy),
            disks=read.each("disk", _disk),
            failures=failures_of(read, outcome, self.logs),
            notes=[*read.notes, *read.curtailed()],
            stopped=outcome.stopped,
            **about,
        )

    def _host(self, where: Placement) -> FabricHost:
        first = next((event for host, event in self.read.of("ready") if host == where.host), {})
        return FabricHost(
            host=where.host,
            ranks=list(where.ranks),
            devices=self.read.devices(where.host),
            threads=first.get("threads"),
            torch=first.get("torch"),
        )

    def _rendezvous(self, address: str, port: int) -> Rendezvous:
        connect: dict[str, float] = {}
        for host, event in self.read.of("met"):
            connect[host] = max(connect.get(host, 0.0), float(event["connect"]))
        hosts = [each.host for each in self.read.places]
        absent = set() if self.read.world_size == 1 else set(hosts) - set(connect)
        missing = absent | set(self.read.accused("rendezvous"))
        return Rendezvous(
            address=address, port=port, connect=connect, missing=[host for host in hosts if host in missing]
        )


def _copy(host: str, event: Event) -> Copy:
    return Copy(
        host=host,
        rank=event["rank"],
        bytes=event["bytes"],
        to_device=spread(event["to_device"]),
        to_host=spread(event["to_host"]),
    )


def _disk(host: str, event: Event) -> Disk:
    size = int(event["bytes"])
    return Disk(
        host=host,
        folder=re.sub(r"/[^/]*fabric-[0-9a-f]{8}-[^/]*$", "", event["folder"]),  # our own is gone by now
        bytes=size,
        write=algbw(size, event["write_seconds"]),
        read=algbw(size, event["read_seconds"]),
        method=event["method"],
        cached=event["cached"],
        right=event["right"],
    )


# ----------------------------------------------------------------------------------------------------
# Who is to blame where ranks did not come to their end: the host that failed, not those it took along.


def failures_of(read: RankEvents, outcome: Outcome, logs: Logs) -> list[FabricFailure]:
    """Return every failure with its host; those that only follow from another's are not blamed."""
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
    """Return what a rank worked on when its last event arrived."""
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
    """Return ranks that were killed or broke off. One that NCCL's watchdog ended had waited for another."""
    failures = []
    for host, event in read.of("ended"):
        rank, code = event["rank"], int(event["code"])
        watchdog = code == -signal.SIGABRT and watchdog_words(logs.get(host, []))
        by = signal_name(-code) if code < 0 else f"exit code {code}"
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


def _silent(read: RankEvents, outcome: Outcome, logs: Logs) -> list[FabricFailure]:
    """Return hosts whose ranks neither ended nor were seen to die: they hung, or never began."""
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
    """Return what ranks themselves reported, one per host and question. In a question that needs every host,
    others' reports follow from that of a guilty host, where one is known."""
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


# ----------------------------------------------------------------------------------------------------
# MPI hello: one MPI program over all hosts, by mpirun. Each rank says who it is and takes part in a sum.

# Plain python with the MPI library itself by ctypes: nothing needs compiling, and mpi4py need not be there.
# Open MPI's handles are addresses of its global objects.
_PROGRAM = """
import ctypes, json, os, socket
rank = {"rank": int(os.environ.get("OMPI_COMM_WORLD_RANK", "-1")),
        "size": int(os.environ.get("OMPI_COMM_WORLD_SIZE", "-1")), "host": socket.gethostname(), "sum": None}
mpi = None
for name in ("libmpi.so.40", "libmpi.so"):
    try:
        mpi = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        break
    except OSError:
        pass
if mpi is not None:
    at = lambda name: ctypes.byref(ctypes.c_char.in_dll(mpi, name))
    mpi.MPI_Init(None, None)
    mine, total = ctypes.c_int(rank["rank"] + 1), ctypes.c_int(0)
    failed = mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, at("ompi_mpi_int"),
                               at("ompi_mpi_op_sum"), at("ompi_mpi_comm_world"))
    mpi.MPI_Finalize()
    rank["sum"] = None if failed else total.value
print("muster-mpi " + json.dumps(rank), flush=True)
"""
_MARK = "muster-mpi "


def mpi_hello_argv(hosts: Sequence[Host], launch: Launch, python: str) -> list[str]:
    """Return the mpirun command: one rank per host, reached as the launcher `openmpi` reaches it. Pure."""
    return [
        *mpirun(launch),
        "-np", str(len(hosts)),
        "--host", ",".join(f"{host.address}:1" for host in hosts),
        "--map-by", "node",
        python, "-c", _PROGRAM,
    ]  # fmt: skip


def mpi_hello(hosts: Sequence[Host], launch: Launch, python: str, patience: float) -> MpiHello:
    """Run it. What fails is in the result's `problem`."""
    argv = mpi_hello_argv(hosts, launch, python)
    began = time.monotonic()
    ranks: list[dict[str, Any]] = []
    problem = None
    try:
        code, out, err = shell.run(argv, timeout=patience)
    except JobError as error:
        problem = str(error)
    else:
        ranks = read_hello(out.decode("utf-8", "replace"))
        if code != 0:
            words = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip(" -*")]
            problem = f"mpirun ended with exit code {code}: {' '.join(words[:3])[:400]}"
        elif len(ranks) != len(hosts):
            problem = f"{len(ranks)} of {len(hosts)} ranks answered"
    sums = [each["sum"] for each in ranks]
    right = len(hosts) * (len(hosts) + 1) // 2
    return MpiHello(
        command=[word if word != _PROGRAM else "PROGRAM" for word in argv],
        hosts=[str(each["host"]) for each in ranks],
        asked=len(hosts),
        summed=None if not sums or None in sums else all(each == right for each in sums),
        seconds=time.monotonic() - began,
        problem=problem,
    )


def read_hello(text: str) -> list[dict[str, Any]]:
    """Return the ranks' lines among whatever else was printed, in the order of the ranks."""
    ranks = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            try:
                ranks.append(dict(json.loads(line[len(_MARK) :])))
            except ValueError:
                continue
    return sorted(ranks, key=lambda each: each["rank"])
