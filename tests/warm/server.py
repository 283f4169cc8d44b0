"""Imports what ranks import, then forks on request: `python3 server.py DESCRIPTOR ROOM` (see __init__.py).

A request becomes two processes: a keeper, which belongs to the server and watches, and the fork that was
asked for, in the namespaces of whoever asked. A fork has its own environment and arguments in /proc, as
agents look for the job's token there. It ends when its keeper does, and the keeper ends it when the shadow is
gone.
"""

from __future__ import annotations

import _imp
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import zipfile
import zipimport
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMPORTED = (
    "torch.utils.data", "transformers.trainer", "transformers.trainer_seq2seq", "transformers.modeling_utils",
    "transformers.integrations", "transformers.integrations.deepspeed", "accelerate", "deepspeed",
    "transformers.models.t5.modeling_t5", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.vit.modeling_vit", "transformers.models.opt.modeling_opt",
    "safetensors.torch", "peft", "datasets",
    # What jobs import on their way.
    "transformers.training_args_seq2seq", "torch.utils.flop_counter", "torch.utils.cpp_extension",
    "torch.utils._runtime_estimation", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "deepspeed.ops.op_builder.all_ops", "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.engine", "torch._inductor.compile_fx", "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3", "deepspeed.comm.mori", "distutils.ccompiler",
    "torch.distributed.algorithms.ddp_comm_hooks", "torch.distributed.checkpoint.state_dict", "sqlite3",
    "torch._inductor.compiler_bisector", "torch._dynamo.repro.after_dynamo", "multiprocessing.forkserver",
    "torch._subclasses.schema_check_mode", "torch.profiler._cupti_monitor", "pydantic.dataclasses",
)  # fmt: skip
# What ranks import of Muster: a third of a second each. A fork whose code is another imports it itself.
MUSTERS = (
    "muster.worker.main", "muster.engines.ddp.runtime", "muster.engines.fsdp.runtime",
    "muster.engines.deepspeed.runtime", "muster.workloads.text2sql.train", "muster.workloads.causal_lm.train",
    "muster.workloads.image_classification.train", "muster.workloads.sft.train",
)  # fmt: skip
# Variables that are read at an import: a request in which they are not as here is refused.
READ_ONCE = (
    "HF_", "HUGGINGFACE", "TRANSFORMERS_", "DATASETS_", "TORCH_", "LD_PRELOAD", "MKL_", "KMP_",
    "OPENBLAS_", "PYTHONHASHSEED", "PYTHONHOME",
)  # fmt: skip
READ_LATER = ("TORCH_EXTENSIONS_DIR", "TORCH_FR_BUFFER_SIZE", "OPENBLAS_NUM_THREADS")
NAMESPACES = ("ipc", "uts", "net", "mnt")  # which a process can enter by itself; "pid" is for its children
MUSTER = Path(__file__).resolve().parents[2] / "src" / "muster"
LIBC = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The request is not for a fork."""


class Room:
    """The memory in which /proc finds this process's arguments and environment."""

    def __init__(self) -> None:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        self.arguments = int(fields[45]), int(fields[46])  # arg_start, arg_end
        self.environment = int(fields[47]), int(fields[48])

    def write(self, argv: list[str], env: dict[str, str]) -> None:
        """What is longer than the room is cut; a job's own variables come first."""
        pairs = sorted(env.items(), key=lambda pair: not pair[0].startswith("MUSTER_"))
        _fill(self.arguments, [os.fsencode(word) for word in argv])
        _fill(self.environment, [os.fsencode(f"{name}={value}") for name, value in pairs])


def _fill(place: tuple[int, int], words: list[bytes]) -> None:
    begin, end = place
    text = b"".join(word + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG."""
    LIBC.prctl(1, signal.SIGKILL)


# ---- a request ---------------------------------------------------------------------------------------------


class Request:
    """What was asked for, by whom, with the files 0, 1 and 2 of the one who asked."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        head, self.files, _, _ = socket.recv_fds(connection, 4, 4)
        (size,) = struct.unpack("!I", head)
        text = b""
        while len(text) < size:
            part = connection.recv(size - len(text))
            if not part:
                raise OSError("half a request")
            text += part
        asked = json.loads(text)
        self.argv: list[str] = asked["argv"]  # PROGRAM -m MODULE ARGUMENTS
        self.module = self.argv[2]
        self.env: dict[str, str] = asked["env"]
        self.cwd, self.umask, self.affinity = asked["cwd"], asked["umask"], asked["affinity"]
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", peer)[0]

    def check(self, here: dict[str, str]) -> None:
        """Raises Refused where the imports of a new process would be others than ours, `here` the
        environment that these were made in."""
        for name in {*here, *self.env}:
            if name.startswith(READ_ONCE) and name not in READ_LATER and here.get(name) != self.env.get(name):
                raise Refused(f"{name} is another one")
        if Path("/dev/nvidiactl").exists() and self.env.get("DS_ACCELERATOR") != "cpu":
            raise Refused("it may be for a GPU")
        apart = [kind for kind in ("user", "pid", *NAMESPACES) if self.elsewhere(kind)]
        if "user" in apart or (apart and os.geteuid() != 0):
            raise Refused(f"it has namespaces of its own that we may not enter: {apart}")

    def elsewhere(self, kind: str) -> bool:
        """Whether it has another namespace of a kind than we."""
        return os.readlink(f"/proc/{self.pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")

    def namespaces(self) -> dict[str, int]:
        """Open files of those that are not ours."""
        kinds = [kind for kind in ("pid", *NAMESPACES) if self.elsewhere(kind)]
        return {kind: os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY) for kind in kinds}

    def settle(self, spaces: dict[str, int]) -> None:
        """Make this process the one that was asked for."""
        os.setsid()
        for kind in NAMESPACES:
            if kind in spaces:
                _enter(spaces[kind])
        os.chdir(self.cwd)
        os.umask(self.umask)
        os.sched_setaffinity(0, self.affinity)
        for number, file in enumerate(self.files[:3]):
            os.dup2(file, number)
        for file in (*self.files[:3], *spaces.values(), self.connection.detach()):
            os.close(file)
        if self.files[3:]:  # the port of the rendezvous
            self.env["MUSTER_RENDEZVOUS"] = str(self.files[3])


def _enter(namespace: int) -> None:
    if LIBC.setns(namespace, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


# ---- what a fork runs --------------------------------------------------------------------------------------


class Made:
    """What a new process would have, given here to a fork."""

    def __init__(self, before: dict[str, str]) -> None:
        """After all imports; `before`: the environment before them."""
        own = str(Path(__file__).resolve().parent)
        self.path = [entry for entry in sys.path if entry not in ("", own)]
        self.room = Room()
        self.before = before
        self.set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}

    def process(self, argv: list[str], env: dict[str, str]) -> None:
        """Arguments, environment, threads, random numbers and the folders to import from."""
        import numpy
        import torch

        os.environ.clear()  # C's pointers into the room are gone before it is written over
        os.environ.update({**self.set_by_imports, **env})
        self.room.write(argv, env)
        sys.orig_argv = list(argv)
        sys.executable = argv[0]  # what it starts itself comes as forks as well
        sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
        torch.set_num_threads(int(env.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
        numpy.random.seed(None)
        given = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        if not all(same_code(Path(entry)) for entry in given):
            for name in [name for name in sys.modules if name.partition(".")[0] == "muster"]:
                del sys.modules[name]
        sys.path[:] = [os.getcwd(), *given, *self.path]
        importlib.invalidate_caches()

    def module(self, name: str, arguments: list[str]) -> None:
        """As `python -m NAME ARGUMENTS`."""
        sys.argv[:] = [name, *arguments]
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def run(made: Made, request: Request) -> None:
    """What was asked for."""
    made.process(request.argv, request.env)
    made.module(request.module, request.argv[3:])


def same_code(path: Path) -> bool:
    """Whether a zip of code has all of Muster that is imported here, as it is here; or a folder none."""
    if not zipfile.is_zipfile(path):
        return not (path / "muster").exists()
    files = [each for each in zipfile.ZipFile(path).infolist() if each.filename.startswith("muster/")]
    zipped = {MUSTER.parent / each.filename: each.CRC for each in files}
    modules = [each for name, each in sys.modules.items() if name.partition(".")[0] == "muster"]
    same = all(each.exists() and zlib.crc32(each.read_bytes()) == crc for each, crc in zipped.items())
    return same and all(Path(each.__file__ or "") in zipped for each in modules)


def ask_once() -> None:
    """Keep what DeepSpeed asks programs about the processor, which each of its ranks does."""
    with contextlib.suppress(ModuleNotFoundError):
        for module, name in (("cpuinfo", "get_cpu_info"), ("deepspeed.utils.numa", "get_numa_cores")):
            asked = importlib.import_module(module)
            setattr(asked, name, functools.cache(getattr(asked, name)))
            getattr(asked, name)()


def compile_once() -> None:
    """Take from here what ranks import of Muster: each would compile its code.zip, half of its start."""
    compiled, compile_source = {}, zipimport._compile_source  # type: ignore[attr-defined]
    for path in MUSTER.rglob("*.py"):
        compiled[path.read_bytes()] = importlib.machinery.SourceFileLoader("", str(path)).get_code("")

    def from_here(path: str, source: bytes) -> Any:
        code = compiled.get(source)
        if code is None:
            return compile_source(path, source)
        _imp._fix_co_filename(code, path)  # type: ignore[attr-defined]
        return code

    zipimport._compile_source = from_here  # type: ignore[attr-defined]


# ---- the server --------------------------------------------------------------------------------------------


def keep(request: Request) -> Request:
    """Fork, and watch the fork to its end; the fork itself returns with the request."""
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    try:
        spaces = request.namespaces()
        if "pid" in spaces:
            _enter(spaces["pid"])  # for the children of this process
    except OSError:  # whoever asked has gone
        os._exit(1)
    fork = os.fork()
    if fork == 0:
        die_with_parent()
        request.settle(spaces)
        return request
    for file in (*request.files, *spaces.values()):
        os.close(file)
    watched = os.pidfd_open(fork)
    with contextlib.suppress(OSError):
        request.connection.sendall(b"+")
    ready = select.select([request.connection, watched], [], [])[0]
    if watched not in ready:  # the shadow is gone
        os.kill(fork, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    with contextlib.suppress(OSError):
        request.connection.sendall(f"exit {status}".encode() if status >= 0 else f"signal {-status}".encode())
    os._exit(0)


def serve(door: socket.socket, here: dict[str, str]) -> Request:
    """For ever; a fork returns with what it is to do."""
    while True:
        connection, _ = door.accept()
        request = None
        try:
            request = Request(connection)
            request.check(here)
        except (Refused, OSError, ValueError, SystemExit) as why:
            print("refused:", why, *(request.argv[2:] if request else ()), flush=True)
        else:
            print("forked:", *request.argv[2:], flush=True)
            if os.fork() == 0:
                door.close()
                return keep(request)
        for file in request.files if request else ():
            os.close(file)
        connection.close()


def main() -> Callable[[], None]:
    """-> what this process, a fork, is to run."""
    os.environ.pop("ROOM")
    die_with_parent()
    door = socket.socket(fileno=int(sys.argv[1]))
    door.set_inheritable(False)
    before = dict(os.environ)
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # not every machine has DeepSpeed
            importlib.import_module(name)
    sys.path.insert(0, str(MUSTER.parent))
    for name in MUSTERS:
        importlib.import_module(name)
    sys.path.remove(str(MUSTER.parent))
    compile_once()
    ask_once()
    # A table of a thousand regular expressions, which each rank that saves a model would make.
    importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
    threads = len(os.listdir("/proc/self/task"))
    print(f"imported; {threads} thread(s)", flush=True)
    made = Made(before)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # its keepers need no burying
    request = serve(door, before)
    return lambda: run(made, request)


if __name__ == "__main__":
    main()()
