"""Provision's first part: the environment of every host, and the proof that all are the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from muster.core.errors import HostError
from muster.stages.pinned import Pinned
from muster.stages.provision_hosts import Hosts
from muster.stages.provision_plan import own_pip
from muster.stages.provision_result import Difference, differences
from muster.supervise.provisioning import Remote, Steps, Tree

LEAST_PYTHON = (3, 10)  # of the ranks


def settle_environment(hosts: Hosts, remote: Remote) -> Steps[None]:
    report, plan, launch = hosts.reports[remote.host], hosts.plan, hosts.inputs.recipe.launch
    facts = yield from remote.ask("hello", **hosts.greeting(), python=hosts.options.python)
    hosts.facts[remote.host] = facts
    if plan.pinned is None:
        pythons = [launch.python] if launch.python else [sys.executable, facts["python"]]
        found = yield from remote.ask("packages", pythons=pythons)
    else:
        _check_python(facts["version"], remote.host)
        found = yield from _build(hosts, remote, facts, plan.pinned)
    about = found["about"]
    _check_python(about["python"], remote.host)
    report.environment = {
        "status": found["status"],
        "python": found["python"],
        "digest": found["digest"],
        "packages": len(about["packages"]),
        "seconds": found.get("seconds", 0),
        "about": about,
    }
    changed = found.get("changed") or {}
    if changed:
        name, (was, now) = next(iter(changed.items()))
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise HostError(
            f"the environment was changed since it was built: {name} was {was or 'absent'} "
            f"and is {now or 'absent'}{more}",
            host=remote.host,
            hint=f"remove {found['path']} there, then run prepare again",
        )


def _build(hosts: Hosts, remote: Remote, facts: Mapping[str, Any], pinned: Pinned) -> Steps[dict[str, Any]]:
    """Carry the wheels, then build the environment or find it whole."""
    plan = hosts.plan
    wheels = plan.wheels
    if facts["lacks"] == "ensurepip" and not any("/pip-" in wheel.path for wheel in wheels):
        wheels += own_pip()
    if wheels:
        tree = Tree(("wheels", ""), f"wheels-{plan.key}-{len(wheels)}", wheels)
        copied = yield from remote.send(tree, "wheels")
        hosts.note_copy(remote.host, "wheels", tree.size, copied)
    return (
        yield from remote.ask(
            "environment",
            path=plan.venv,
            key=plan.key,
            requirements="".join(f"{line}\n" for line in pinned.requirements),
            constraints=pinned.constraints,
            wheels=[wheel.path for wheel in wheels],
            offline=bool(plan.wheels),
            index=hosts.options.index,
            **{name: facts[name] for name in ("python", "version", "lacks")},
        )
    )


def compare_environments(hosts: Hosts) -> list[Difference]:
    """Prove that the environments are the same; hosts outside the majority fail."""
    about = {h: r.environment["about"] for h, r in hosts.reports.items() if r.environment}
    found = differences(about)
    blamed = dict.fromkeys(host for each in found for host in each.blamed)
    for host in blamed:
        own = [each for each in found if host in each.blamed]
        more = f", and {len(own) - 1} more differences" if len(own) > 1 else ""
        hint = "install one set everywhere: remove the environment there, then run prepare again"
        hosts.fail(host, HostError(f"its environment differs: {own[0]}{more}", host=host, hint=hint))
    patches = {str(one["python"]) for one in about.values()}
    if len(patches) > 1 and not any(each.name == "python" for each in found):
        for host, one in about.items():
            hosts.reports[host].notes.append(f"Python {one['python']}; the hosts' third number differs")
    for report in hosts.reports.values():
        if report.environment:
            del report.environment["about"]
    return found


def _check_python(version: str, host: str) -> None:
    """Raises HostError where ranks cannot run."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        raise HostError(
            f"has Python {version}, and ranks need {least} or later",
            host=host,
            hint="--python of a later one",
        )
