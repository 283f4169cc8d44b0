"""Whether the processor may run at its speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Finding
from muster.checks.kinds import Case, host_check


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Governor -> number of frequency policies (of a core or of some that share one)."""
    import os

    root = "/sys/devices/system/cpu/cpufreq"
    counts: dict[str, int] = {}
    for name in os.listdir(root) if os.path.isdir(root) else []:
        if name.startswith("policy"):
            governor = text("%s/%s/scaling_governor" % (root, name)) or "unknown"
            counts[governor] = counts.get(governor, 0) + 1
    return {"governors": counts}


@host_check(
    "governor.policy",
    "The frequency governor of every core, where the kernel has one.",
    "With powersave, cores that launch kernels and load data speed up slowly: steps get longer and unsteady.",
    wanted="performance",
)
def policy(case: Case) -> Finding:
    """Anything but the wanted governor is a warning."""
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


CHECKS = (policy,)
