"""Main memory and what is carved out of it: /dev/shm, swap, huge pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import About, Differ, differing, each, host_slots
from muster.core.units import format_bytes

CHECKS = (
    Check(
        "memory.total",
        "Main memory in bytes: at_least, and within 3 % of most hosts'.",
        "A host with a dead memory module is slower, and runs out first where states are offloaded.",
        {"at_least": 0, "tolerance": 0.03},
    ),
    Check(
        "memory.available",
        "The part of main memory that is free or can be freed.",
        "Without free memory, loading and offloading fail: the kernel kills ranks.",
        {"at_least": 0.2},
    ),
    Check(
        "memory.shm",
        "Free bytes of /dev/shm per rank of the host: per_gpu_rank where there are GPUs, per_cpu_rank where "
        "not, and per_worker for each data loader process.",
        "NCCL's transport within a host and data loader workers use it; Docker's 64 MiB are too little, "
        "and ranks die with a bus error.",
        {"per_gpu_rank": 1 << 30, "per_cpu_rank": 16 << 20, "per_worker": 256 << 20},
    ),
    Check(
        "memory.oom_kills",
        "Processes that the kernel killed since boot because memory ran out.",
        "A host where that happens often has less memory than its jobs need.",
        {"at_most": 100},
    ),
    Check(
        "memory.huge_pages",
        "Transparent huge pages, set the same way on every host.",
        "Steps with offloading differ by several per cent.",
    ),
)


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
    found = re.search(r"^oom_kill (\d+)", text("/proc/vmstat") or "", re.M)
    answer["oom_kills"] = int(found.group(1)) if found else None
    chosen = re.search(r"\[(\w+)\]", text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    answer["huge_pages"] = chosen.group(1) if chosen else None
    if os.path.isdir("/dev"):
        answer["gpus"] = len([name for name in os.listdir("/dev") if re.match(r"nvidia\d+$", name)])
    return answer


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Sizes against the need, and against the other hosts."""
    pages = {h: a["huge_pages"] for h, a in answers.items() if a.get("huge_pages")}
    differ = Differ(
        "transparent huge pages are not set as on most hosts",
        Level.WARN,
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )
    return [
        *_total(answers, context),
        *each("memory.available", answers, lambda at, a: _available(at, a, context)),
        *each("memory.shm", answers, lambda at, a: _shm(at, a, context)),
        *each("memory.oom_kills", answers, lambda at, a: _kills(at, a, context)),
        *differing("memory.huge_pages", pages, differ),
        *[
            About("memory.huge_pages", host).not_applicable("the kernel has none")
            for host in answers
            if host not in pages
        ],
    ]


def _total(answers: Answers, context: Context) -> list[Finding]:
    check = "memory.total"
    least = float(context.expect(check, "at_least"))
    known = {host: answer["MemTotal"] for host, answer in answers.items() if answer.get("MemTotal")}
    findings = [
        About(check, host).unknown("/proc/meminfo could not be read") for host in answers if host not in known
    ]
    for host, value in known.items():
        if value < least:
            evidence = f"{format_bytes(value)}, and {format_bytes(least)} are expected"
            findings.append(
                About(check, host).fail(
                    "main memory is less than expected", evidence, "sudo dmidecode -t memory"
                )
            )
    enough = {host: value for host, value in known.items() if value >= least}
    differ = Differ(
        "main memory differs from most hosts",
        Level.WARN,
        "sudo dmidecode -t memory  # modules that are missing or not recognised",
        float(context.expect(check, "tolerance")),
        format_bytes,
    )
    return findings + differing(check, enough, differ)


def _available(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    total, free = answer.get("MemTotal"), answer.get("MemAvailable")
    if not total or free is None:
        return about.unknown("/proc/meminfo could not be read")
    evidence = f"{format_bytes(free)} of {format_bytes(total)}"
    if free >= total * float(context.expect(about.check, "at_least")):
        return about.passed(evidence)
    return about.warn(
        "other programs use most of the memory", evidence, "ps -eo rss,pid,user,args --sort -rss | head"
    )


def _shm(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    if not answer.get("shm"):
        return about.unknown("/dev/shm could not be read")
    free, size = answer["shm"]
    gpus = answer.get("gpus") or 0
    slots = host_slots(context, about.host, gpus)
    workers = int((context.recipe.get("train") or {}).get("workers") or 0)
    kind = "per_gpu_rank" if gpus and context.gpus_expected is not False else "per_cpu_rank"
    need = slots * (
        int(context.expect(about.check, kind)) + workers * int(context.expect(about.check, "per_worker"))
    )
    evidence = (
        f"{format_bytes(free)} free of {format_bytes(size)}, and {slots} ranks need {format_bytes(need)}"
    )
    if free >= need:
        return about.passed(evidence)
    if answer.get("stale"):
        return about.warn(
            "files of earlier NCCL jobs fill /dev/shm",
            f"{evidence}; {answer['stale']} files nccl-*",
            "rm /dev/shm/nccl-*  # when no job runs",
        )
    remedy = f"sudo mount -o remount,size={-(-2 * need >> 30) or 1}G /dev/shm, or docker run --ipc=host"
    return about.warn("/dev/shm is too small for the ranks of the host", evidence, remedy)


def _kills(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    count = answer.get("oom_kills")
    if count is None:
        return about.unknown("the kernel does not count them")
    if count <= float(context.expect(about.check, "at_most")):
        return about.passed(f"{count}")
    return about.warn(
        "the kernel often kills processes because memory runs out",
        f"{count} since boot",
        "sudo dmesg -T | grep -i oom",
    )
