"""The group checks of an inspection: real ranks on the hosts that are fit so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.checks.base import Check, Context, Finding, Level
from muster.checks.measure import measure
from muster.checks.questions import HostAnswers
from muster.checks.registry import Family
from muster.checks.unreachable import Unreached
from muster.core.errors import BrokenPluginError, JobError, MusterError
from muster.core.inventory import Host
from muster.core.registry import warn
from muster.fleet.interrupts import interrupts
from muster.fleet.shell import Shell
from muster.inputs.read import Inputs

GROUPED = Check(
    "host.grouped",
    "The host can take part in the group checks: its agent starts, and its ranks can be placed.",
    "A job would not start on it.",
)
NO_TORCH = "torch is not installed for the ranks"
_TRIES = 4  # a host that cannot take part is left out, and the others try again


def together(
    job: Inputs,
    kinds: Sequence[Family],
    answers: Mapping[str, HostAnswers | Unreached],
    context: Context,
    announce: Callable[[str], None],
    shell: Shell,
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Let ranks on the job's hosts measure, and judge. -> (what was measured, findings).

    Hosts without torch are left out. Raises JobError after Ctrl-C; then nothing is left on the hosts.
    """
    hosts = [host for host in job.inventory.hosts if _has_torch(answers.get(host.label))]
    findings = [
        Finding(GROUPED.name, host.label, Level.NOT_APPLICABLE, NO_TORCH)
        for host in job.inventory.hosts
        if host not in hosts
    ]
    tries = 0
    while hosts and tries < _TRIES:
        tries += 1
        many = "s" if len(hosts) > 1 else ""
        announce(f"ranks on {len(hosts)} host{many} load torch and measure together (about a minute)")
        try:
            inventory = replace(job.inventory, hosts=tuple(hosts))
            with interrupts() as wish:
                fabric = measure(replace(job, inventory=inventory), stop=lambda: wish.stop, shell=shell)
            data = fabric.model_dump(mode="json")
        except MusterError as error:
            blamed = [host for host in hosts if host.label == error.host]
            findings += _refused(error, blamed, hosts)
            hosts = [host for host in hosts if host not in blamed] if blamed else []
            continue
        if wish.stop:
            raise JobError(wish.stop, hint="the check left nothing on the hosts")
        findings += [Finding(GROUPED.name, host.label, Level.PASS) for host in hosts]
        for family in kinds:
            if family.judge_group is not None:
                try:
                    findings += family.judge_group(data, context)
                except BrokenPluginError as error:
                    warn(str(error))
        return data, findings
    problem = "the group checks were stopped"
    evidence = f"{_TRIES} hosts could not take part"
    left = [Finding(GROUPED.name, host.label, Level.UNKNOWN, problem, evidence) for host in hosts]
    return None, findings + left


def _refused(error: MusterError, blamed: Sequence[Host], hosts: Sequence[Host]) -> list[Finding]:
    """What stands in the way, on the host that it names; or that nobody knows, on all."""
    level, problem, evidence = Level.UNKNOWN, "the group checks could not be started", str(error)
    if blamed:
        level, problem, evidence = Level.FAIL, "it cannot take part in the group checks", error.what
    return [
        Finding(GROUPED.name, host.label, level, problem, evidence, error.hint) for host in blamed or hosts
    ]


def _has_torch(one: HostAnswers | Unreached | None) -> bool:
    """Whether the ranks' interpreter has it, as the family `versions` was told."""
    if not isinstance(one, HostAnswers):
        return False
    packages = one.answers.get("versions", {}).get("packages")
    return isinstance(packages, dict) and bool(packages.get("torch"))
