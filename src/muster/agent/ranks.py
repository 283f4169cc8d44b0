"""The ranks of a host: how they are started, what they print and write, and how they end."""

from __future__ import annotations

import binascii
import collections
import json
import os
import signal
import struct
import subprocess
import time

from .ending import Births, die_with_parent, end_all, family, guard
from .files import Tail, new_folder, remove
from .gpu import gpu_mask
from .host import check_address, check_command, interface_of, source_address
from .proc import descent, offspring, proc_table
from .talk import OUT_LIMIT, Channel, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Deque, Dict, List, Optional, Set, Tuple

BEAT = 1.0  # seconds between signs of life, which messages ask for
PULSE = struct.Struct("<QQ48s")  # a rank's file rankN.pulse: its steps, signs of life, phase
BACKLOG = 4096  # ranks that may wait at the port at a time
# Of ranks on the CPU, where the recipe does not say otherwise. If torch sees a GPU, it asks for the GPU's
# random state at every checkpoint, and takes memory there. An empty list hides all GPUs of CUDA, HIP, ROCm.
ON_CPU = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
}
# What mpirun and srun tell the one process that they started: its ranks are others.
NOT_THEIRS = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "SLURM_PROCID", "SLURM_LOCALID")
# What mpirun, srun, and the launchers of MPICH and Intel MPI call torchrun's variables.
NAMES = {
    "ompi": {
        "OMPI_COMM_WORLD_RANK": "RANK",
        "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
        "OMPI_COMM_WORLD_NODE_RANK": "LOCAL_RANK",  # among the host's, of all jobs there
        "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
        "OMPI_UNIVERSE_SIZE": "WORLD_SIZE",
    },
    "slurm": {
        "SLURM_PROCID": "RANK",
        "SLURM_NTASKS": "WORLD_SIZE",
        "SLURM_NPROCS": "WORLD_SIZE",
        "SLURM_LOCALID": "LOCAL_RANK",
        "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
        "SLURM_NODEID": "NODE_RANK",
        "SLURM_NNODES": "NNODES",
    },
    "pmi": {
        "PMI_RANK": "RANK",
        "PMI_SIZE": "WORLD_SIZE",
        "MPI_LOCALRANKID": "LOCAL_RANK",
        "MPI_LOCALNRANKS": "LOCAL_WORLD_SIZE",
    },
}


class Ranks:
    """The ranks of one host. `spec`: the job's, which the start order completes; `base`: the job's folder."""

    def __init__(self, channel: Channel, spec: Dict[str, Any], base: str = "") -> None:
        self.channel, self.spec, self.base = channel, spec, base
        self.place = ""  # the folder of this host's part of the attempt
        self.processes = {}  # type: Dict[int, subprocess.Popen[bytes]]  # of a command per host: its first rank
        self.ended = {}  # type: Dict[int, int]  # ranks that have ended by themselves: their exit codes
        self.births = None  # type: Optional[Births]
        self.guard = 0  # the process that ends the job's others should this one be killed
        self.port_holder: Optional[socket.socket] = None
        self.tails = []  # type: List[Tail]
        self.logs: Deque[Tail] = collections.deque()
        self.redirected = ""  # where torchrun puts what its ranks print
        self.looked = 0.0  # when new files there were looked for
        self.beats = {}  # type: Dict[int, int]  # of each rank, its signs of life as they were told last

    def start(self, order: Dict[str, Any]) -> None:
        """Write the ranks' files and start the ranks."""
        spec = self.spec
        spec.update(order["host"])
        check_command(spec)  # of code that was brought, which was not here before
        check_address(order["address"], order["port"])
        name = "%s.attempt%d" % (spec["folder"], spec["attempt"])
        self.place = place = os.path.join(self.base, "hosts", name)
        new_folder(place)
        os.chmod(place, 0o700)  # logs of ranks, as they were written
        code = os.path.join(place, "code.zip")
        with open(code, "wb") as file:
            file.write(binascii.a2b_base64(spec["code"]))
        rank_spec = dict(order["job"], base=self.base, place=place, shared=spec["shared"])
        secret = os.open(os.path.join(place, "spec.json"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(secret, "w") as file:  # it may hold tokens of the recipe's env
            json.dump(rank_spec, file)
        once = spec.get("each") == "host"  # a command that starts the host's ranks itself
        for rank in spec["ranks"]:
            self.tails.append(Tail(os.path.join(place, "rank%d.events.jsonl" % rank), "event", rank))
            if not once:
                self.tails.append(Tail(os.path.join(place, "rank%d.log" % rank), "log", rank))
        if once:
            self.tails.append(Tail(os.path.join(place, "host.log"), "log", None))
        self.logs.extend(tail for tail in self.tails if tail.kind == "log")
        env = self.environment(place, code, order)
        if self.port_holder and "each" in spec:
            self.port_holder.close()  # a command opens it by itself
            self.port_holder = None
        if self.port_holder:
            self.port_holder.listen(BACKLOG)  # others come before the first rank has imported
        self.births = Births()
        self.guard, self.unguard = guard(spec["token"], self.births)
        for local, rank in enumerate(spec["ranks"][:1] if once else spec["ranks"]):
            own, files = self.one_of(env, rank, local, order)
            with open(os.path.join(place, "host.log" if once else "rank%d.log" % rank), "ab") as log:
                try:
                    self.processes[rank] = subprocess.Popen(
                        spec["argv"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=spec.get("cwd") or place,
                        env=own,
                        pass_fds=files,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                except OSError as error:
                    raise Problem("%s cannot be started: %s" % (spec["argv"][0], error.strerror))
        if self.port_holder:
            self.port_holder.close()

    def one_of(
        self, env: Dict[str, str], rank: int, local: int, order: Dict[str, Any]
    ) -> Tuple[Dict[str, str], List[int]]:
        """Return a rank's environment, with torchrun's names, and the descriptors that it gets. Rank 0 gets
        the port of the rendezvous: MUSTER_RENDEZVOUS."""
        own = dict(
            env,
            WORLD_SIZE=str(self.spec["world_size"]),
            LOCAL_WORLD_SIZE=str(len(self.spec["ranks"])),
            NODE_RANK=str(self.spec["node_rank"]),
            MASTER_ADDR=order["address"],
            MASTER_PORT=str(order["port"]),
        )
        if "each" in self.spec:
            own["NNODES"] = str(order["nodes"])
        if self.spec.get("each") == "host":
            return own, []
        own.update(RANK=str(rank), LOCAL_RANK=str(local))
        for names in self.spec.get("names", ()):
            own.update((name, own[usual]) for name, usual in NAMES[names].items())
        if rank or not self.port_holder:
            return own, []
        return dict(own, MUSTER_RENDEZVOUS=str(self.port_holder.fileno())), [self.port_holder.fileno()]

    def result(self) -> Optional[int]:
        """Return None while they run, 0 where all have ended well, else the exit code of one that did not: of
        several, one that a signal ended, since the others may have ended only because they lost it.

        Where ranks end independently (`apart`), what they ended with is in their events, and all are waited
        for.
        """
        for rank, process in self.processes.items():
            code = process.poll()
            if code is None or rank in self.ended:
                continue
            self.ended[rank] = code
            if code and self.spec.get("apart"):
                note = {"kind": "ended", "rank": rank, "time": time.time(), "code": code}
                with open(os.path.join(self.place, "rank%d.events.jsonl" % rank), "a") as file:
                    file.write("\n%s\n" % json.dumps(note))  # after a line that it may not have finished
        bad = {} if self.spec.get("apart") else {rank: code for rank, code in self.ended.items() if code}
        if bad:
            return bad[self.first_of(bad)]
        return 0 if self.processes and len(self.ended) == len(self.processes) else None

    def first_of(self, bad: Dict[int, int]) -> int:
        """Return the rank that ended first, as far as that follows from how they ended."""
        return min(bad, key=lambda rank: (bad[rank] == -signal.SIGTERM, bad[rank] >= 0, rank))

    def environment(self, place: str, code: str, order: Dict[str, Any]) -> Dict[str, str]:
        """Return the ranks' environment: the host's, Muster's defaults where the host has none, then the
        recipe's."""
        spec = self.spec
        env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_THEIRS)}
        env["PYTHONUNBUFFERED"] = "1"
        if spec.get("each") != "host" or spec.get("torchrun"):
            env["OMP_NUM_THREADS"] = str(spec["threads"])
        env.setdefault("TOKENIZERS_PARALLELISM", "false")
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # NVML's numbers are CUDA's
        if spec.get("visible_gpus") is not None:
            mask = gpu_mask()
            picked = spec["visible_gpus"]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(mask[i] if mask else str(i) for i in picked)
        if spec["device"] == "cpu":
            env.update(ON_CPU)
        env.update(spec["env"])
        # Last, so that nobody's variables take the place of the job's own code and token.
        env.update({"MUSTER_TOKEN": spec["token"], "MUSTER_SPEC": os.path.join(place, "spec.json")})
        if spec.get("watched"):  # what a rank says when it is asked where it stands: agent/inside.py
            env["MUSTER_WITNESS"] = place
            env.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # entries of PyTorch's flight recorder
        if "each" in spec:  # a command, whose program may call muster.step
            first = spec["ranks"][0]  # of a program that knows no rank of its own
            env.update(MUSTER_EVENTS=place, MUSTER_RANK=str(first), MUSTER_ATTEMPT=str(spec["attempt"]))
        if spec.get("torchrun"):  # its option --log-dir, and all that ranks print into files there
            self.redirected = env["PET_LOG_DIR"] = os.path.join(place, "torchrun")
            env["PET_REDIRECTS"] = "3"
        env["PYTHONPATH"] = os.pathsep.join(p for p in (code, env.get("PYTHONPATH")) if p)
        if "GLOO_SOCKET_IFNAME" not in env:  # gloo looks up the host's own name, which often means loopback
            address = source_address(order["address"], order["port"])
            interface = interface_of(address) if address else None
            if interface:
                env["GLOO_SOCKET_IFNAME"] = interface
        return env

    def find_logs(self) -> None:
        """Follow what torchrun's ranks print: DIR/RUN/attempt_N/LOCAL_RANK/stdout.log and stderr.log."""
        followed = {tail.path for tail in self.logs}
        for folder, _, files in os.walk(self.redirected):
            local = os.path.basename(folder)
            for name in sorted(files):
                path = os.path.join(folder, name)
                if name.endswith(".log") and local.isdigit() and path not in followed:
                    rank = self.spec["ranks"][0] + int(local)
                    self.logs.append(Tail(path, "log", rank if rank in self.spec["ranks"] else None))

    def read_tails(self, final: bool = False, logs: bool = True) -> bool:
        """Forward what the ranks wrote, or only their events. Return False when everything was read."""
        more = False
        if self.redirected and (final or time.monotonic() - self.looked > BEAT):
            self.looked = time.monotonic()
            self.find_logs()
        for tail in self.tails:  # events first, whole: what a rank says must not wait for what it chatters
            if tail.kind == "event":
                lines = tail.read(final)
                if lines:
                    more = True
                    self.channel.say(tail.kind, rank=tail.rank, lines=lines)
        for _ in range(len(self.logs) if logs else 0):
            if self.channel.out_bytes > OUT_LIMIT:
                return True
            tail = self.logs[0]
            self.logs.rotate(-1)
            lines = tail.read(final)
            if lines:
                more = True
                self.channel.say(tail.kind, rank=tail.rank, lines=lines)
        return more

    def end(self) -> None:
        """End every process of this job on this host."""
        token = self.spec.get("token") or ""

        def wait(seconds: float) -> None:
            self.channel.wait(seconds)
            self.reap()
            self.channel.flush()

        def found() -> Set[int]:  # every process of the machine is looked at once ours are gone
            table = proc_table(offspring())
            return descent(table) - {os.getpid(), self.guard} or family(token, self.births) - {self.guard}

        if token and end_all(found, wait) and self.guard:
            os.write(self.unguard, b".")

    def pulses(self) -> List[List[Any]]:
        """Return [rank, steps, signs of life, phase] of ranks that have done something since the last call.
        """
        news = []
        for rank in self.spec.get("ranks", ()) if self.place else ():
            try:
                with open(os.path.join(self.place, "rank%d.pulse" % rank), "rb") as file:
                    steps, beats, phase = PULSE.unpack(file.read(PULSE.size))
            except (OSError, struct.error):
                continue
            if self.beats.get(rank) != beats:
                self.beats[rank] = beats
                news.append([rank, steps, beats, phase.rstrip(b"\0").decode("utf-8", "replace")])
        return news

    def ungrouped(self) -> List[int]:
        """Return ranks that have imported torch.distributed and called no init_process_group (inside.py)."""
        bases = {r: os.path.join(self.place, "rank%d" % r) for r in self.spec.get("ranks", ()) if self.place}
        return [r for r, b in bases.items() if os.path.exists(b + ".dist") and not os.path.exists(b + ".ask")]

    def reap(self) -> None:
        """Collect adopted orphans that have ended."""
        for process in self.processes.values():
            process.poll()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass

    def forget_files(self) -> None:
        """Remove what the controller has received, and the files of the ranks' stacks."""
        for tail in self.tails + list(self.logs):
            remove(tail.path)
        for rank in self.spec.get("ranks", ()):
            for kind in ("pulse", "ask", "dist", "flight", "stacks"):
                remove(os.path.join(self.place, "rank%d.%s" % (rank, kind)))
