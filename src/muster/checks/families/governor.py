"""Whether the processor may run at its speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._judging import About, each

CHECKS = (
    Check(
        "governor.policy",
        "The frequency governor of every core, where the kernel has one.",
        "With powersave, cores that launch kernels and load data speed up slowly: steps get "
        "longer and unsteady.",
        {"wanted": "performance"},
    ),
)


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


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Anything but the wanted governor is a warning."""
    return each("governor.policy", answers, lambda at, a: _policy(at, a, context))


def _policy(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    counts = answer.get("governors") or {}
    wanted = str(context.expect(about.check, "wanted"))
    if not counts:
        return about.not_applicable("the kernel does not control the frequency")
    evidence = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    if set(counts) <= {wanted}:
        return about.passed(evidence)
    if set(counts) == {"unknown"}:
        return about.unknown("the governor could not be read")
    return about.warn(
        "the frequency governor saves power",
        evidence,
        f"echo {wanted} | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
    )
