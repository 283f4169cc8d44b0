"""The machine of a host: its clock, login, system, processor and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Finding, Level
from muster.checks.kinds import Case, Differ, alike, host_check, same_check
from muster.core.units import counted, format_bytes, format_seconds


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel's facts, in bytes and seconds: system, processor, memory, /dev/shm."""
    import os
    import re

    def word(pattern: str, path: str) -> str | None:
        match = re.search(pattern, text(path) or "", re.M)
        return match.group(1) if match else None

    about = os.uname()
    answer: dict[str, Any] = {"kernel": about.release, "os": about.sysname, "shm": None, "stale": 0}
    release = "/etc/os-release"
    system = word(r'^ID="?([^"\n]+)', release)
    if system:
        answer["os"] = (system + " " + (word(r'^VERSION_ID="?([^"\n]+)', release) or "")).strip()
    model = re.search(r"^(?:model name|cpu|Model)\s*:(.*)", text("/proc/cpuinfo", 8192) or "", re.M)
    answer["cpu"] = "%s x %s" % (os.cpu_count(), " ".join(model.group(1).split()) if model else about.machine)
    nodes = text("/sys/devices/system/node/has_memory")
    if nodes is not None:
        spans = [part.partition("-") for part in nodes.split(",") if part]
        answer["numa"] = sum(int(last or first) - int(first) + 1 for first, _, last in spans)
    answer["smt"] = text("/sys/devices/system/cpu/smt/active")
    # Of each a number of frequency policies: of a core, or of some that share one.
    governors: dict[str, int] = {}
    root = "/sys/devices/system/cpu/cpufreq"
    for name in os.listdir(root) if os.path.isdir(root) else []:
        if name.startswith("policy"):
            governor = text("%s/%s/scaling_governor" % (root, name)) or "unknown"
            governors[governor] = governors.get(governor, 0) + 1
    answer["governors"] = governors
    seconds = (text("/proc/uptime") or "").split()
    answer["uptime"] = float(seconds[0]) if seconds else None
    for key in ("MemTotal", "MemAvailable"):
        kilobytes = word(r"^%s: *(\d+)" % key, "/proc/meminfo")
        answer[key] = int(kilobytes) * 1024 if kilobytes else None
    try:
        stat = os.statvfs("/dev/shm")
        answer["shm"] = [stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize]
        answer["stale"] = len([name for name in os.listdir("/dev/shm") if name.startswith("nccl-")])
    except (OSError, AttributeError):
        pass
    kills = word(r"^oom_kill (\d+)", "/proc/vmstat")
    answer["oom_kills"] = int(kills) if kills else None
    answer["huge_pages"] = word(r"\[(\w+)\]", "/sys/kernel/mm/transparent_hugepage/enabled")
    devices = os.listdir("/dev") if os.path.isdir("/dev") else []
    answer["gpus"] = len([name for name in devices if re.match(r"nvidia\d+$", name)])
    return answer


@host_check("clock.skew", warn=0.5, fail=5.0)
def skew(case: Case) -> Finding:
    """The host's clock against this machine's, in seconds, less what the connection's delay can explain.

    Builds on a shared disk start over, munge and tokens expire, and events of ranks are out of order.
    """
    # |offset| - error is certain, and is what counts.
    transport = case.context.transport.get(case.host)
    offset = transport.clock_offset if transport else None
    if transport is None or offset is None:
        return case.unknown("the host's clock could not be read")
    error = transport.clock_error or 0.0
    certain = max(0.0, abs(offset) - error)
    evidence = f"{abs(offset):.2f} s {'ahead' if offset > 0 else 'behind'}, within {error:.2f} s"
    if certain < case.expect("warn"):
        return case.passed(evidence)
    remedy = "sudo timedatectl set-ntp true; chronyc tracking"
    if certain >= case.expect("fail"):
        return case.fail("the clock is far off", evidence, remedy)
    return case.warn("the clock is off", evidence, remedy)


@host_check("governor.policy", wanted="performance")
def policy(case: Case) -> Finding:
    """The frequency governor of every core, where the kernel has one.

    With powersave, cores that launch kernels and load data speed up slowly: steps get longer and unsteady.
    """
    counts, wanted = case.answer.get("governors") or {}, case.expect("wanted")
    if not counts:
        return case.not_applicable("the kernel does not control the frequency")
    evidence = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    if set(counts) <= {wanted}:
        return case.passed(evidence)
    if set(counts) == {"unknown"}:
        return case.unknown("the governor could not be read")
    remedy = f"echo {wanted} | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
    return case.warn("the frequency governor saves power", evidence, remedy)


@host_check("login.noise", allowed=0)
def noise(case: Case) -> Finding:
    """Lines that the login shell prints when a command runs over the connection.

    scp, rsync, sftp and launchers that read a command's output take these lines for part of it.
    """
    transport = case.context.transport.get(case.host)
    if transport is None:
        return case.unknown("what the login printed could not be read")
    lines = transport.noise
    if len(lines) <= case.expect("allowed"):
        return case.passed("silent" if not lines else counted(len(lines), "line"))
    return case.warn(
        "the login shell prints lines of its own",
        f"{counted(len(lines), 'line')}, such as {lines[0].strip()[:120]!r}",
        "put this at the top of ~/.bashrc or of the file that prints: case $- in *i*) ;; *) return ;; esac",
    )


_UNREADABLE = "/proc/meminfo could not be read"


@same_check(
    "memory.total",
    Differ(
        "main memory differs from most hosts",
        remedy="sudo dmidecode -t memory  # modules that are missing or not recognised",
        show=format_bytes,
    ),
    at_least=0,
    tolerance=0.03,
)
def total(case: Case) -> Finding | int:
    """Main memory in bytes: at_least, and within 3 % of most hosts'.

    A host with a dead memory module is slower, and runs out first where states are offloaded.
    """
    value, least = case.answer.get("MemTotal"), case.expect("at_least")
    if not value:
        return case.unknown(_UNREADABLE)
    if value < least:
        evidence = f"{format_bytes(value)}, and {format_bytes(least)} are expected"
        return case.fail("main memory is less than expected", evidence, "sudo dmidecode -t memory")
    return int(value)


@host_check("memory.available", at_least=0.2)
def available(case: Case) -> Finding:
    """The part of main memory that is free or can be freed.

    Without free memory, loading and offloading fail: the kernel kills ranks.
    """
    total, free = case.answer.get("MemTotal"), case.answer.get("MemAvailable")
    if not total or free is None:
        return case.unknown(_UNREADABLE)
    evidence = f"{format_bytes(free)} of {format_bytes(total)}"
    if free >= total * case.expect("at_least"):
        return case.passed(evidence)
    remedy = "ps -eo rss,pid,user,args --sort -rss | head"
    return case.warn("other programs use most of the memory", evidence, remedy)


@host_check("memory.shm", per_gpu_rank=1 << 30, per_cpu_rank=16 << 20, per_worker=256 << 20)
def shm(case: Case) -> Finding:
    """Free bytes of /dev/shm per rank of the host: per_gpu_rank where there are GPUs, per_cpu_rank where not,
    and per_worker for each data loader process.

    NCCL's transport within a host and data loader workers use it; Docker's 64 MiB are too little, and ranks
    die with a bus error.
    """
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


@host_check("memory.oom_kills", at_most=100)
def oom_kills(case: Case) -> Finding:
    """Processes that the kernel killed since boot because memory ran out.

    A host where that happens often has less memory than its jobs need.
    """
    count = case.answer.get("oom_kills")
    if count is None:
        return case.unknown("the kernel does not count them")
    if count <= case.expect("at_most"):
        return case.passed(f"{count}")
    problem = "the kernel often kills processes because memory runs out"
    return case.note(problem, f"{count} since boot", "sudo dmesg -T | grep -i oom")


@same_check(
    "memory.huge_pages",
    Differ(
        "transparent huge pages are not set as on most hosts",
        Level.NOTE,
        remedy="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
)
def huge_pages(case: Case) -> Finding | str:
    """Transparent huge pages, set the same way on every host.

    Steps with offloading differ by several per cent.
    """
    return case.answer.get("huge_pages") or case.not_applicable("the kernel has none")


@host_check("uptime.since_boot", at_least=0, at_most=0)
def since_boot(case: Case) -> Finding:
    """Seconds since the host was started: at_least and at_most (0: not asked).

    A host that restarted by itself may do so again; one that has been up for a year lacks updates.
    """
    seconds = case.answer.get("uptime")
    if seconds is None:
        return case.unknown("the time since boot could not be read")
    least, most = case.expect("at_least"), case.expect("at_most")
    evidence = f"up for {format_seconds(seconds)}"
    if seconds < least:
        remedy = "last -x reboot | head; journalctl -b -1 -e"
        return case.note("the host was restarted recently", evidence, remedy)
    if most and seconds > most:
        remedy = "sudo reboot, when no job runs"
        return case.note("the host has not been restarted for a long time", evidence, remedy)
    return case.passed(evidence)


_SLOWEST = "The slowest host sets the speed of the job; one that is set up differently is often the slowest."

# Facts that must be alike on all hosts.
_ALIKE = (
    alike(
        "system.os",
        "The operating system's name and version, the same on every host.",
        "Libraries, limits and defaults differ between systems.",
        Differ("the operating system differs from most hosts", remedy="install the same system on all hosts"),
        "os",
    ),
    alike(
        "system.kernel",
        "The kernel's release, the same on every host.",
        _SLOWEST,
        Differ(
            "the kernel differs from most hosts", remedy="install the same updates everywhere, then reboot"
        ),
        "kernel",
    ),
    alike(
        "system.cpu",
        "The processor's model and the number of cores, the same on every host.",
        _SLOWEST,
        Differ("the processor differs from most hosts", remedy="train on hosts of one kind"),
        "cpu",
    ),
    alike(
        "system.numa",
        "The number of NUMA nodes with memory, the same on every host.",
        _SLOWEST,
        Differ(
            "the number of NUMA nodes differs from most hosts", remedy="use the same BIOS settings (NPS, SNC)"
        ),
        "numa",
    ),
    alike(
        "system.hyperthreading",
        "Simultaneous multithreading, on or off, the same on every host.",
        "Thread counts that suit one host are wrong for another.",
        Differ(
            "hyperthreading is not set as on most hosts",
            remedy="echo on | sudo tee /sys/devices/system/cpu/smt/control",
            show=lambda value: "on" if str(value) == "1" else "off",
        ),
        "smt",
    ),
)

CHECKS = (skew, policy, noise, total, available, shm, oom_kills, huge_pages, *_ALIKE, since_boot)
