"""What the system lets a launched rank have. The probe comes the way a rank does, so it sees a rank's limits,
and not those of a login shell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, each, host_slots, world_size
from muster.core.units import format_bytes

CHECKS = (
    Check(
        "limits.open_files",
        "Open files that a rank may have (ulimit -n), against 512 + 4 per rank of the job.",
        "Rank 0's store, gloo's mesh and NCCL's bootstrap each hold sockets to every rank: with 1024, a "
        "job of 256 ranks has started and a larger one has not, which is 4 per rank; 512 are for "
        "libraries, devices, data files and loader pipes.",
        {"base": 512, "per_rank": 4},
    ),
    Check(
        "limits.processes",
        "Threads and processes of the user (ulimit -u), against 512 + 256 per rank of the host.",
        "A rank starts its OpenMP, autograd, NCCL and data loader threads; each counts.",
        {"base": 512, "per_rank": 256},
    ),
    Check(
        "limits.cgroup_processes",
        "Threads and processes that the control group still allows, against 128 + 256 per rank of the host.",
        "A container's or a session's pids limit ends a rank with 'Resource temporarily unavailable'.",
        {"base": 128, "per_rank": 256},
    ),
    Check(
        "limits.locked_memory",
        "Locked memory (ulimit -l), where there are GPUs and InfiniBand.",
        "InfiniBand locks the memory that it moves: NCCL fails with 'Cannot allocate memory'. A limit below "
        "fail_below bytes fails, any other finite one warns.",
        {"fail_below": 1 << 30},
    ),
    Check(
        "limits.map_count",
        "Memory maps per process (vm.max_map_count), against 32768 + 8 per rank of the job.",
        "NCCL maps buffers per peer, allocators and data files map segments: beyond it mmap fails "
        "though memory is free.",
        {"base": 32768, "per_rank": 8},
    ),
    Check(
        "limits.memory",
        "The lowest memory limit of the control groups, per rank of the host. Bytes.",
        "Beyond it the kernel kills a rank with signal 9; torch, its libraries and a CUDA context alone take "
        "most of 1 GiB.",
        {"per_rank": 1 << 30},
    ),
    Check(
        "limits.cores",
        "Cores that a rank may use (affinity and control group), against the ranks of the host.",
        "Ranks that share a core slow each other down, and the whole job with them.",
        {"per_rank": 1},
    ),
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Limits of this process, as [soft, hard], -1 for unlimited; the control group's; cores."""
    import os

    def levels(controller: str) -> list[str]:
        """The folders of this process's control group, and of those around it."""
        found = []
        for line in (text("/proc/self/cgroup") or "").splitlines():
            names, _, path = line.partition(":")[2].partition(":")
            if names and controller not in names.split(","):
                continue
            root = "/sys/fs/cgroup" + ("/" + names if names else "")
            while path not in ("", "/"):
                found.append(root + path)
                path = os.path.dirname(path)
            found.append(root)
        return found

    def tightest(controller: str, limit: str, use: str, left: bool) -> list[int] | None:
        """[limit, used] of the folder with the least left, or with the lowest limit: what others have used
        of memory is partly cache, which the kernel takes back. None: no limit."""
        least = None
        for folder in levels(controller):
            most, used = text(folder + "/" + limit) or "", text(folder + "/" + use) or ""
            if most.isdigit() and int(most) < 1 << 60:
                pair = [int(most), int(used) if used.isdigit() else 0]
                if least is None or pair[0] - left * pair[1] < least[0] - left * least[1]:
                    least = pair
        return least

    def quota() -> float | None:
        """Cores' worth of time that the control group grants; None: no limit."""
        shares = []
        for folder in levels("cpu"):
            words = (text(folder + "/cpu.max") or "").split()
            if not words:
                words = [text(folder + "/cpu.cfs_%s_us" % name) or "" for name in ("quota", "period")]
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                shares.append(int(words[0]) / int(words[1]))
        return min(shares) if shares else None

    answer: dict[str, Any] = {"root": hasattr(os, "geteuid") and os.geteuid() == 0}
    try:
        import resource

        for name, key in (("open_files", "NOFILE"), ("processes", "NPROC"), ("locked_memory", "MEMLOCK")):
            pair = resource.getrlimit(getattr(resource, "RLIMIT_" + key))
            answer[name] = [-1 if value == resource.RLIM_INFINITY else value for value in pair]
    except (ImportError, AttributeError, OSError, ValueError):
        pass  # not a Unix: the judge says that it is not known
    for line in (text("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            powers = int(line.split()[1], 16)
            answer["may_lock"] = bool(powers >> 14 & 1)  # CAP_IPC_LOCK
            answer["unbound"] = bool(powers >> 21 & 1 or powers >> 24 & 1)  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
    count = text("/proc/sys/vm/max_map_count") or ""
    answer["map_count"] = int(count) if count.isdigit() else None
    answer["pids"] = tightest("pids", "pids.max", "pids.current", True)
    answer["memory"] = tightest("memory", "memory.max", "memory.current", False) or tightest(
        "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", False
    )
    answer["cores"] = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        answer["affinity"] = len(os.sched_getaffinity(0))
    answer["quota"] = quota()
    for key, folder, start in (("infiniband", "/sys/class/infiniband", ""), ("gpus", "/dev", "nvidia")):
        names = os.listdir(folder) if os.path.isdir(folder) else []
        mine = [name[len(start) :] for name in names if name.startswith(start)]
        answer[key] = len([rest for rest in mine if not start or rest.isdigit()])
    return answer


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Each limit against the job's need."""
    ranks = world_size(context, answers)

    def slots(host: str, answer: Mapping[str, Any]) -> int:
        return host_slots(context, host, answer.get("gpus"))

    return [
        *each("limits.open_files", answers, lambda at, a: _open_files(at, a, context, ranks)),
        *each("limits.processes", answers, lambda at, a: _processes(at, a, context, slots(at.host, a))),
        *each("limits.cgroup_processes", answers, lambda at, a: _pids(at, a, context, slots(at.host, a))),
        *each("limits.locked_memory", answers, lambda at, a: _locked(at, a, context)),
        *each("limits.map_count", answers, lambda at, a: _maps(at, a, context, ranks)),
        *each("limits.memory", answers, lambda at, a: _memory(at, a, context, slots(at.host, a))),
        *each("limits.cores", answers, lambda at, a: _cores(at, a, context, slots(at.host, a))),
    ]


def _need(context: Context, check: str, ranks: int) -> int:
    return int(context.expect(check, "base") + context.expect(check, "per_rank") * ranks)


def _where(context: Context, key: str, value: str) -> str:
    """What to paste so that a launched process gets another limit."""
    if context.launcher == "slurm":
        unit = {"nofile": "LimitNOFILE", "nproc": "LimitNPROC", "memlock": "LimitMEMLOCK"}[key]
        value = "infinity" if value == "unlimited" else value
        return (
            "sudo mkdir -p /etc/systemd/system/slurmd.service.d; "
            f"printf '[Service]\\n{unit}={value}\\n' | "
            "sudo tee /etc/systemd/system/slurmd.service.d/muster.conf; "
            "sudo systemctl daemon-reload; sudo systemctl restart slurmd"
        )
    lines = f"* - {key} {value}\\nroot - {key} {value}\\n"
    return f"printf '{lines}' | sudo tee /etc/security/limits.d/muster.conf  # new logins have it"


def _open_files(about: About, answer: Mapping[str, Any], context: Context, ranks: int) -> Finding:
    pair = answer.get("open_files")
    if not pair:
        return about.unknown("the limit of open files could not be read")
    soft, hard = pair
    need = _need(context, about.check, ranks)
    if soft < 0 or soft >= need:
        return about.passed(f"{_count(soft)}, and {ranks} ranks need {need}")
    return about.fail(
        "the limit of open files is too low for this many ranks",
        f"{soft} (hard limit {_count(hard)}), and {ranks} ranks need {need}",
        _where(context, "nofile", "1048576"),
    )


def _processes(about: About, answer: Mapping[str, Any], context: Context, slots: int) -> Finding:
    pair = answer.get("processes")
    if not pair:
        return about.unknown("the limit of processes could not be read")
    need = _need(context, about.check, slots)
    if pair[0] < 0 or pair[0] >= need:
        return about.passed(f"{_count(pair[0])}, and {slots} ranks need {need}")
    if answer.get("root") and answer.get("unbound"):
        return about.passed(f"{pair[0]}, which does not apply to root")
    return about.fail(
        "the limit of processes and threads is too low for the host's ranks",
        f"{pair[0]}, and {slots} ranks need {need}",
        _where(context, "nproc", "unlimited"),
    )


def _pids(about: About, answer: Mapping[str, Any], context: Context, slots: int) -> Finding:
    pair = answer.get("pids")
    if not pair:
        return about.passed("no limit")
    need, left = _need(context, about.check, slots), pair[0] - pair[1]
    if left >= need:
        return about.passed(f"{left} of {pair[0]} left, and {slots} ranks need {need}")
    return about.fail(
        "the control group's limit of processes and threads is too low for the host's ranks",
        f"{left} of {pair[0]} left, and {slots} ranks need {need}",
        "docker run --pids-limit=-1 ...; systemd: sudo systemctl set-property user-.slice TasksMax=infinity",
    )


def _locked(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    env = context.recipe.get("env") or {}
    if not answer.get("infiniband"):
        return about.not_applicable("no InfiniBand, so no locked memory is needed")
    if str(env.get("NCCL_IB_DISABLE", "0")) == "1":
        return about.not_applicable("the recipe switches InfiniBand off")
    device = (context.recipe.get("launch") or {}).get("device")
    if not answer.get("gpus") or device == "cpu" or context.gpus_expected is False:
        return about.not_applicable("no GPUs, so NCCL and InfiniBand are not used")
    pair = answer.get("locked_memory")
    if not pair:
        return about.unknown("the limit of locked memory could not be read")
    if pair[0] < 0:
        return about.passed("unlimited")
    if answer.get("may_lock"):
        return about.passed(f"{format_bytes(pair[0])}, which does not apply to this user (CAP_IPC_LOCK)")
    evidence = f"{format_bytes(pair[0])}, and InfiniBand wants it unlimited"
    remedy = _where(context, "memlock", "unlimited")
    if pair[0] < context.expect(about.check, "fail_below"):
        return about.fail("the limit of locked memory is too low for InfiniBand", evidence, remedy)
    return about.warn("locked memory is limited, and InfiniBand may need more", evidence, remedy)


def _maps(about: About, answer: Mapping[str, Any], context: Context, ranks: int) -> Finding:
    count = answer.get("map_count")
    if count is None:
        return about.unknown("vm.max_map_count could not be read")
    need = _need(context, about.check, ranks)
    if count >= need:
        return about.passed(f"{count}, and {ranks} ranks need {need}")
    return about.warn(
        "the limit of memory maps is too low for this many ranks",
        f"{count}, and {ranks} ranks need {need}",
        "echo vm.max_map_count=1048576 | sudo tee /etc/sysctl.d/90-muster.conf; sudo sysctl --system",
    )


def _memory(about: About, answer: Mapping[str, Any], context: Context, slots: int) -> Finding:
    pair = answer.get("memory")
    if not pair:
        return about.passed("no limit")
    need = slots * int(context.expect(about.check, "per_rank"))
    evidence = f"{format_bytes(pair[0])}, and {slots} ranks need {format_bytes(need)}"
    if pair[0] >= need:
        return about.passed(evidence)
    return about.fail(
        "the control group's memory limit is too low for the host's ranks",
        evidence,
        "docker run without --memory ...; srun --mem=0 for a whole node",
    )


def _cores(about: About, answer: Mapping[str, Any], context: Context, slots: int) -> Finding:
    bounds = {"affinity": answer.get("affinity"), "control group": answer.get("quota")}
    known = {name: value for name, value in bounds.items() if value}
    if not known and not answer.get("cores"):
        return about.unknown("the number of cores could not be read")
    usable = min([float(value) for value in known.values()] or [float(answer["cores"])])
    shares = f"{usable:g} of {answer.get('cores')} cores for {slots} ranks"
    if usable >= slots * context.expect(about.check, "per_rank") or context.one_machine:
        return about.passed(shares)
    return about.warn(
        "ranks have to share cores",
        shares,
        f"slots={max(1, math.floor(usable))}, or more cores: srun --cpus-per-task, docker run --cpus",
    )


def _count(value: int) -> str:
    return "unlimited" if value < 0 else str(value)
