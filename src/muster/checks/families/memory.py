"""Main memory and what is carved out of it: /dev/shm, swap, huge pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Finding, Level
from muster.checks.kinds import Case, Differ, host_check, same_check
from muster.core.units import format_bytes


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes from /proc/meminfo and of /dev/shm; stale NCCL files there."""
    import os
    import re

    answer: dict[str, Any] = {"shm": None, "stale": 0, "gpus": 0}
    for line in (text("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree"):
            answer[key] = int(value.split()[0]) * 1024
    try:
        stat = os.statvfs("/dev/shm")
        answer["shm"] = [stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize]
        answer["stale"] = len([name for name in os.listdir("/dev/shm") if name.startswith("nccl-")])
    except (OSError, AttributeError):
        pass
    match = re.search(r"^oom_kill (\d+)", text("/proc/vmstat") or "", re.M)
    answer["oom_kills"] = int(match.group(1)) if match else None
    chosen = re.search(r"\[(\w+)\]", text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    answer["huge_pages"] = chosen.group(1) if chosen else None
    if os.path.isdir("/dev"):
        answer["gpus"] = len([name for name in os.listdir("/dev") if re.match(r"nvidia\d+$", name)])
    return answer


_UNREADABLE = "/proc/meminfo could not be read"


@same_check(
    "memory.total",
    "Main memory in bytes: at_least, and within 3 % of most hosts'.",
    "A host with a dead memory module is slower, and runs out first where states are offloaded.",
    Differ(
        "main memory differs from most hosts",
        remedy="sudo dmidecode -t memory  # modules that are missing or not recognised",
        show=format_bytes,
    ),
    at_least=0,
    tolerance=0.03,
)
def total(case: Case) -> Finding | int:
    """Bytes."""
    value, least = case.answer.get("MemTotal"), case.expect("at_least")
    if not value:
        return case.unknown(_UNREADABLE)
    if value < least:
        evidence = f"{format_bytes(value)}, and {format_bytes(least)} are expected"
        return case.fail("main memory is less than expected", evidence, "sudo dmidecode -t memory")
    return int(value)


@host_check(
    "memory.available",
    "The part of main memory that is free or can be freed.",
    "Without free memory, loading and offloading fail: the kernel kills ranks.",
    at_least=0.2,
)
def available(case: Case) -> Finding:
    """As a share of the whole."""
    total, free = case.answer.get("MemTotal"), case.answer.get("MemAvailable")
    if not total or free is None:
        return case.unknown(_UNREADABLE)
    evidence = f"{format_bytes(free)} of {format_bytes(total)}"
    if free >= total * case.expect("at_least"):
        return case.passed(evidence)
    remedy = "ps -eo rss,pid,user,args --sort -rss | head"
    return case.warn("other programs use most of the memory", evidence, remedy)


@host_check(
    "memory.shm",
    "Free bytes of /dev/shm per rank of the host: per_gpu_rank where there are GPUs, per_cpu_rank where not, "
    "and per_worker for each data loader process.",
    "NCCL's transport within a host and data loader workers use it; Docker's 64 MiB are too little, and "
    "ranks die with a bus error.",
    per_gpu_rank=1 << 30,
    per_cpu_rank=16 << 20,
    per_worker=256 << 20,
)
def shm(case: Case) -> Finding:
    """Files that NCCL has left there are named where they are in the way."""
    answer, context = case.answer, case.context
    if not answer.get("shm"):
        return case.unknown("/dev/shm could not be read")
    free, size = answer["shm"]
    asked = (context.recipe.get("train") or {}).get("workers") or 0
    workers = 0 if asked == "auto" else int(asked)
    kind = "per_gpu_rank" if answer.get("gpus") and context.gpus_expected is not False else "per_cpu_rank"
    need = case.slots * (int(case.expect(kind)) + workers * int(case.expect("per_worker")))
    evidence = (
        f"{format_bytes(free)} free of {format_bytes(size)}, and {case.slots} ranks need {format_bytes(need)}"
    )
    if free >= need:
        return case.passed(evidence)
    if answer.get("stale"):
        evidence += f"; {answer['stale']} files nccl-*"
        remedy = "rm /dev/shm/nccl-*  # when no job runs"
        return case.warn("files of earlier NCCL jobs fill /dev/shm", evidence, remedy)
    remedy = f"sudo mount -o remount,size={-(-2 * need >> 30) or 1}G /dev/shm, or docker run --ipc=host"
    return case.warn("/dev/shm is too small for the ranks of the host", evidence, remedy)


@host_check(
    "memory.oom_kills",
    "Processes that the kernel killed since boot because memory ran out.",
    "A host where that happens often has less memory than its jobs need.",
    at_most=100,
)
def oom_kills(case: Case) -> Finding:
    """Whose memory that was does not matter."""
    count = case.answer.get("oom_kills")
    if count is None:
        return case.unknown("the kernel does not count them")
    if count <= case.expect("at_most"):
        return case.passed(f"{count}")
    problem = "the kernel often kills processes because memory runs out"
    return case.note(problem, f"{count} since boot", "sudo dmesg -T | grep -i oom")


@same_check(
    "memory.huge_pages",
    "Transparent huge pages, set the same way on every host.",
    "Steps with offloading differ by several per cent.",
    Differ(
        "transparent huge pages are not set as on most hosts",
        Level.NOTE,
        remedy="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
)
def huge_pages(case: Case) -> Finding | str:
    """The setting."""
    return case.answer.get("huge_pages") or case.not_applicable("the kernel has none")


CHECKS = (total, available, shm, oom_kills, huge_pages)
