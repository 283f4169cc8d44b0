"""Inside a rank's own process: shows the agent from outside where the rank is when there is no progress.

One file, standard library alone, Python >= 3.8. It is `sitecustomize.py` in the archive that ranks have first
in PYTHONPATH, so the interpreter runs it in every Python program of a job. It does three things:
  - what torchrun would have a rank print into two files goes into one, in its order;
  - a signal that programs do not use writes the Python stacks of all threads to a file, whatever the main
    thread does (faulthandler, in C);
  - once the program has formed a process group, a thread waits at a named pipe; a reader of that gets
    PyTorch's flight recorder (which collectives this rank began and ended) as a file.
The agent uses the last two where py-spy is not installed or does not work.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # so that no program of a job loads `typing` at its start
if TYPE_CHECKING:
    from typing import Any, Callable

NUMBER = 62  # SIGRTMAX - 2: glibc leaves it to programs, and these leave it alone
DISTRIBUTED = "torch.distributed.distributed_c10d"


def begin() -> None:
    """Get ready to answer. A failure to do so must not break the program."""
    join_outputs()
    folder, rank = os.environ.get("MUSTER_WITNESS"), os.environ.get("RANK", "")
    if not folder or not rank.isdigit():
        return
    try:
        import faulthandler

        path = os.path.join(folder, "rank%s.stacks" % rank)
        # Opened for as long as the process lives: faulthandler has the descriptor alone.
        sys._muster_stacks = file = open(path, "a")  # type: ignore[attr-defined]  # noqa: SIM115
        faulthandler.register(NUMBER, file=file, all_threads=True, chain=False)
        sys.meta_path.insert(0, _Finder(os.path.join(folder, "rank%s" % rank)))
    except Exception:
        pass


def join_outputs() -> None:
    """Print errors into the file of all other output, where torchrun has made two below the job's folder: two
    files that are read by turns do not show whether a step came before an exception."""
    try:
        made = os.path.realpath(os.environ["PET_LOG_DIR"])
        out, err = (os.readlink("/proc/self/fd/%d" % number) for number in (1, 2))
        if out.startswith(made) and err == out[: -len("stdout.log")] + "stderr.log":
            os.dup2(1, 2)
    except (OSError, KeyError):
        pass


class _Finder:
    """Finds no modules; it makes sure that `serve` is called after a program has formed a group."""

    def __init__(self, base: str) -> None:
        self.base = base

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != DISTRIBUTED:
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        loader = getattr(spec, "loader", None)  # type: Any
        if loader is None:
            return None
        load = loader.exec_module

        def load_and_wrap(module: Any) -> None:
            load(module)
            mark_import(self.base)
            join = getattr(module, "init_process_group", None)
            if join is not None:
                module.init_process_group = _wrapped(join, self.base)

        loader.exec_module = load_and_wrap
        return spec


def mark_import(base: str) -> None:
    """Leave the file BASE.dist: the program could form a group. Without a BASE.ask, it has not."""
    try:
        open(base + ".dist", "w").close()
    except OSError:
        pass


def _wrapped(join: Callable[..., Any], base: str) -> Callable[..., Any]:
    import functools

    @functools.wraps(join)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        # On CPUs Accelerate forms a group that it does not use: its ranks train by themselves.
        state = sys._getframe(1).f_locals.get("self")
        if getattr(state, "distributed_type", None) != "NO":
            serve(base)  # first: a rank may wait there for another one for ever
        return join(*args, **kwargs)

    return init_process_group


def serve(base: str) -> None:
    """Answer every reader of the named pipe BASE.ask, for as long as the process lives."""
    if getattr(sys, "_muster_serves", None) == os.getpid():
        return
    sys._muster_serves = os.getpid()  # type: ignore[attr-defined]
    import threading

    threading.Thread(target=_answer, args=(base,), name="muster-witness", daemon=True).start()


def _answer(base: str) -> None:
    ask = base + ".ask"
    try:
        if not os.path.exists(ask):
            os.mkfifo(ask, 0o600)
        while True:
            with open(ask, "rb") as pipe:  # waits for somebody who writes
                pipe.read()
            from torch._C import _distributed_c10d as c10d

            # NCCL has a recorder of its own, which is not in the other one's answer.
            names = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
            dumps = [getattr(c10d, name) for name in names if hasattr(c10d, name)]
            with open(base + ".flight.part", "wb") as file:
                for dump in dumps:
                    dumped = dump()
                    file.write((dumped if isinstance(dumped, bytes) else dumped.encode()) + b"\n")
                file.write(_groups())
            os.replace(base + ".flight.part", base + ".flight")
    except Exception:  # an older PyTorch, a full disk
        pass


def _groups() -> bytes:
    """Return the groups that this rank is in: the recorder has none in which it has begun nothing yet."""
    names = getattr(getattr(sys.modules.get(DISTRIBUTED), "_world", None), "pg_names", {})
    return b'{"entries": [], "groups": [%s]}\n' % ", ".join('"%s"' % each for each in names.values()).encode()


def _next() -> None:
    """Run the `sitecustomize` that this one hides."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    begin()
    _next()
