"""Processes that earlier jobs have left running. They are reported, never ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Finding
from muster.checks.kinds import Case, host_check


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return process ids by kind, and whether a process listens on the rendezvous port."""
    import errno
    import os
    import socket

    marks = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher", "muster.worker")
    processes = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        own = not name.isdigit() or int(name) == os.getpid()
        words = "" if own else text("/proc/%s/cmdline" % name, 1 << 16)
        if not words:
            continue  # the kernel's own
        # Ranks and their helpers are Python's; reading everybody's environment would cost more than all else.
        python = "python" in words[:200]
        marked = python and "\0MUSTER_TOKEN=" in "\0" + (text("/proc/%s/environ" % name, 1 << 16) or "")
        program = words.split("\0")[1:2]
        if marked or any(mark in words for mark in marks) or (program and program[0].endswith("/torchrun")):
            shown = words.replace("\0", " ").strip()[:80]
            processes.append({"pid": int(name), "job": marked, "args": shown})
    port, taken = int(ask.get("port") or 29500), False
    for kind, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:  # reading /proc/net/tcp would cost twenty times as much
            with socket.socket(kind, socket.SOCK_STREAM) as trial:
                # Then only a listener is in the way.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((any_address, port))
        except OSError as error:
            taken = taken or error.errno == errno.EADDRINUSE
    return {"processes": processes[:200], "port": port, "taken": taken, "proc": os.path.isdir("/proc")}


@host_check("leftovers.processes")
def processes(case: Case) -> Finding:
    """Processes of other jobs: those that Muster started, and launchers of torch and DeepSpeed.

    They hold GPUs, memory and ports, so that the job is slow or runs out of memory.
    """
    # A warning with process ids: somebody may still want them.
    if not case.answer.get("proc"):
        return case.unknown("the process table could not be read")
    left = sorted(case.answer.get("processes") or [], key=lambda one: int(one["pid"]))
    if not left:
        return case.passed("none")
    shown = ", ".join(str(one["pid"]) for one in left[:12]) + (" ..." if len(left) > 12 else "")
    return case.warn(
        "processes of other jobs run on the host",
        f"{len(left)}: pid {shown}, such as {left[0]['args'] or 'unnamed'!r}",
        "`muster stop RUN` where it is one of your runs (muster ls); else look first: ps -fp PID",
    )


@host_check("leftovers.port")
def port(case: Case) -> Finding:
    """The rendezvous port (launch.port, else torch's usual 29500) is free.

    A process that an earlier job left holds it: the job fails with 'address already in use', or joins the
    wrong store.
    """
    number = case.answer["port"]
    if not case.answer["taken"]:
        return case.passed(f"{number} is free")
    evidence, remedy = f"port {number}", f"sudo ss -ltnp 'sport = :{number}'"
    if (case.context.recipe.get("launch") or {}).get("port"):
        remedy += "; or leave launch.port out"
        return case.fail("the recipe's rendezvous port is in use", evidence, remedy)
    return case.warn("torch's usual rendezvous port is in use", evidence, remedy)


CHECKS = (processes, port)
