"""What the system allows a launched rank. The probe arrives the way a rank does, so it sees a rank's limits,
and not those of a login shell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Context, Finding
from muster.checks.kinds import Case, Judge, group_check, host_check, world_size
from muster.core.units import format_bytes


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return limits of this process, as [soft, hard], -1 for unlimited; the control group's; cores."""
    import os

    def levels(controller: str) -> list[str]:
        """Return the folders of this process's control group, and of those around it."""
        paths = []
        for line in (text("/proc/self/cgroup") or "").splitlines():
            names, _, path = line.partition(":")[2].partition(":")
            if names and controller not in names.split(","):
                continue
            root = "/sys/fs/cgroup" + ("/" + names if names else "")
            while path not in ("", "/"):
                paths.append(root + path)
                path = os.path.dirname(path)
            paths.append(root)
        return paths

    def tightest(controller: str, limit: str, use: str, left: bool) -> list[int] | None:
        """Return [limit, used] of the folder with the least left, or with the lowest limit: used memory is
        partly cache, which the kernel takes back. None: no limit."""
        least = None
        for folder in levels(controller):
            most, used = text(folder + "/" + limit) or "", text(folder + "/" + use) or ""
            if most.isdigit() and int(most) < 1 << 60:
                pair = [int(most), int(used) if used.isdigit() else 0]
                if least is None or pair[0] - left * pair[1] < least[0] - left * least[1]:
                    least = pair
        return least

    def quota() -> float | None:
        """Return the cores' worth of time that the control group grants; None: no limit."""
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


def _need(case: Case, ranks: int) -> int:
    return int(case.expect("base") + case.expect("per_rank") * ranks)


def _where(context: Context, key: str, value: str) -> str:
    """Return what to paste so that a launched process gets another limit."""
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


def _count(value: int) -> str:
    return "unlimited" if value < 0 else str(value)


@group_check("limits.open_files", base=512, per_rank=4)
def open_files(answers: Answers, peers: Answers, context: Context) -> Judge:
    """Open files that a rank may have (ulimit -n), against 512 + 4 per rank of the job.

    Rank 0's store, gloo's mesh and NCCL's bootstrap each hold sockets to every rank: with 1024, a job of 256
    ranks has started and a larger one has not, which is 4 per rank; 512 are for libraries, devices, data
    files and loader pipes.
    """
    ranks = world_size(context, answers)

    def judge(case: Case) -> Finding:
        if not case.answer.get("open_files"):
            return case.unknown("the limit of open files could not be read")
        soft, hard = case.answer["open_files"]
        need = _need(case, ranks)
        if soft < 0 or soft >= need:
            return case.passed(f"{_count(soft)}, and {ranks} ranks need {need}")
        return case.fail(
            "the limit of open files is too low for this many ranks",
            f"{soft} (hard limit {_count(hard)}), and {ranks} ranks need {need}",
            _where(context, "nofile", "1048576"),
        )

    return judge


@host_check("limits.processes", base=512, per_rank=256)
def processes(case: Case) -> Finding:
    """Threads and processes of the user (ulimit -u), against 512 + 256 per rank of the host.

    A rank starts its OpenMP, autograd, NCCL and data loader threads; each counts.
    """
    # The soft limit, which root does not have where it has the powers of root.
    if not case.answer.get("processes"):
        return case.unknown("the limit of processes could not be read")
    soft, need = case.answer["processes"][0], _need(case, case.slots)
    evidence = f"{_count(soft)}, and {case.slots} ranks need {need}"
    if soft < 0 or soft >= need:
        return case.passed(evidence)
    if case.answer.get("root") and case.answer.get("unbound"):
        return case.passed(f"{soft}, which does not apply to root")
    problem = "the limit of processes and threads is too low for the host's ranks"
    return case.fail(problem, evidence, _where(case.context, "nproc", "unlimited"))


@host_check("limits.cgroup_processes", base=128, per_rank=256)
def cgroup_processes(case: Case) -> Finding:
    """Threads and processes that the control group still allows, against 128 + 256 per rank of the host.

    A container's or a session's pids limit ends a rank with 'Resource temporarily unavailable'.
    """
    if not case.answer.get("pids"):
        return case.passed("no limit")
    most, used = case.answer["pids"]
    need = _need(case, case.slots)
    evidence = f"{most - used} of {most} left, and {case.slots} ranks need {need}"
    if most - used >= need:
        return case.passed(evidence)
    return case.fail(
        "the control group's limit of processes and threads is too low for the host's ranks",
        evidence,
        "docker run --pids-limit=-1 ...; systemd: sudo systemctl set-property user-.slice TasksMax=infinity",
    )


@host_check("limits.locked_memory", fail_below=1 << 30)
def locked_memory(case: Case) -> Finding:
    """Locked memory (ulimit -l), where there are GPUs and InfiniBand.

    InfiniBand locks the memory that it moves: NCCL fails with 'Cannot allocate memory'. A limit below
    fail_below bytes fails, any other finite one warns.
    """
    answer, recipe = case.answer, case.context.recipe
    if not answer.get("infiniband"):
        return case.not_applicable("no InfiniBand, so no locked memory is needed")
    if str((recipe.get("env") or {}).get("NCCL_IB_DISABLE", "0")) == "1":
        return case.not_applicable("the recipe switches InfiniBand off")
    on_cpu = (recipe.get("launch") or {}).get("device") == "cpu" or case.context.gpus_expected is False
    if on_cpu or not answer.get("gpus"):
        return case.not_applicable("no GPUs, so NCCL and InfiniBand are not used")
    if not answer.get("locked_memory"):
        return case.unknown("the limit of locked memory could not be read")
    soft = answer["locked_memory"][0]
    if soft < 0:
        return case.passed("unlimited")
    if answer.get("may_lock"):
        return case.passed(f"{format_bytes(soft)}, which does not apply to this user (CAP_IPC_LOCK)")
    evidence = f"{format_bytes(soft)}, and InfiniBand wants it unlimited"
    remedy = _where(case.context, "memlock", "unlimited")
    if soft < case.expect("fail_below"):
        return case.fail("the limit of locked memory is too low for InfiniBand", evidence, remedy)
    return case.warn("locked memory is limited, and InfiniBand may need more", evidence, remedy)


@group_check("limits.map_count", base=32768, per_rank=8)
def map_count(answers: Answers, peers: Answers, context: Context) -> Judge:
    """Memory maps per process (vm.max_map_count), against 32768 + 8 per rank of the job.

    NCCL maps buffers per peer, allocators and data files map segments: beyond it mmap fails though memory is
    free.
    """
    ranks = world_size(context, answers)

    def judge(case: Case) -> Finding:
        count = case.answer.get("map_count")
        if count is None:
            return case.unknown("vm.max_map_count could not be read")
        need = _need(case, ranks)
        evidence = f"{count}, and {ranks} ranks need {need}"
        if count >= need:
            return case.passed(evidence)
        remedy = "echo vm.max_map_count=1048576 | sudo tee /etc/sysctl.d/90-muster.conf; sudo sysctl --system"
        return case.warn("the limit of memory maps is too low for this many ranks", evidence, remedy)

    return judge


@host_check("limits.memory", per_rank=1 << 30)
def memory(case: Case) -> Finding:
    """The lowest memory limit of the control groups, per rank of the host. Bytes.

    Beyond it the kernel kills a rank with signal 9; torch, its libraries and a CUDA context alone take most
    of 1 GiB.
    """
    # What is used counts for nothing: it is partly cache.
    if not case.answer.get("memory"):
        return case.passed("no limit")
    limit, need = case.answer["memory"][0], case.slots * int(case.expect("per_rank"))
    evidence = f"{format_bytes(limit)}, and {case.slots} ranks need {format_bytes(need)}"
    if limit >= need:
        return case.passed(evidence)
    return case.fail(
        "the control group's memory limit is too low for the host's ranks",
        evidence,
        "docker run without --memory ...; srun --mem=0 for a whole node",
    )


@host_check("limits.cores", per_rank=1)
def cores(case: Case) -> Finding:
    """Cores that a rank may use (affinity and control group), against the ranks of the host.

    Ranks that share a core slow each other down, and the whole job with them.
    """
    # Pretend hosts of one machine share its cores: that is no finding.
    bounds = [float(value) for key in ("affinity", "quota") if (value := case.answer.get(key))]
    if not bounds and not case.answer.get("cores"):
        return case.unknown("the number of cores could not be read")
    usable = min(bounds or [float(case.answer["cores"])])
    shares = f"{usable:g} of {case.answer.get('cores')} cores for {case.slots} ranks"
    if usable >= case.slots * case.expect("per_rank") or case.context.one_machine:
        return case.passed(shares)
    remedy = f"slots={max(1, math.floor(usable))}, or more cores: srun --cpus-per-task, docker run --cpus"
    return case.warn("ranks have to share cores", shares, remedy)


CHECKS = (open_files, processes, cgroup_processes, locked_memory, map_count, memory, cores)
