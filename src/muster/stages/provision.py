"""Provision: the same environment, the recipe's model and data, and warm kernel caches on every host.

Hosts go their ways at the same time. One that fails is named and left behind; the others get ready.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from muster.shell import RealShell, Shell
from muster.stages.inputs import Inputs
from muster.stages.provision_environment import compare_environments, settle_environment
from muster.stages.provision_files import copy_hub, copy_local
from muster.stages.provision_hosts import Hosts
from muster.stages.provision_plan import Options, make_plan
from muster.stages.provision_result import Provisioned
from muster.stages.warm import Warmer, kernel_folders
from muster.supervise.interrupts import interrupts
from muster.supervise.provisioning import Progress, Remote, Steps


def provision(
    inputs: Inputs,
    options: Options,
    *,
    progress: Progress = lambda host, text, done, total: None,
    shell: Shell | None = None,
) -> Provisioned:
    """Make every host ready -> what became of each. Raises UsageError before anything was begun."""
    plan = make_plan(inputs, options)
    with (
        interrupts() as wish,
        Hosts(inputs, options, plan, progress, shell or RealShell(), lambda: wish.stop) as hosts,
    ):
        hosts.each(lambda remote: settle_environment(hosts, remote))
        differences = compare_environments(hosts)
        for path in plan.local:
            copy_local(hosts, path)
        for kind, name in plan.hub:
            copy_hub(hosts, kind, name)
        fresh, use = _kernels(hosts)
        if options.warm:
            _warm(hosts, use, fresh)
        for report in hosts.reports.values():
            progress(report.host, report.status, 0, 0)
    requirements = plan.pinned.requirements if plan.pinned else ()
    reports = list(hosts.reports.values())
    return Provisioned(reports, plan.key, requirements, differences, use, list(plan.notes))


def _kernels(hosts: Hosts) -> tuple[set[str], list[str]]:
    """Make folders for kernels -> the hosts that had none, and the overrides by which a run uses it all."""
    good = [r for r in hosts.reports.values() if r.failure is None and r.environment]
    if not good:
        return set(), []
    plan, use = hosts.plan, []
    pythons = {str(r.environment["python"]) for r in good if r.environment}
    if plan.venv:
        shown = pythons.pop() if len(pythons) == 1 else f"{plan.venv}/bin/python"
        use.append(f"launch.python={shown}")
    digest = str((good[0].environment or {})["digest"])
    folders = kernel_folders(hosts.facts, hosts.inputs.env, hosts.options.kernel_cache, digest)
    made = hosts.each(lambda remote: _scratch(remote, folders)) if folders else {}
    use += [f"env.{name}={'/'.join(parts)}" for name, parts in folders.items()]
    if plan.hub:
        use.append("env.HF_HUB_OFFLINE=1")
    return {host for host, new in made.items() if new}, use


def _scratch(remote: Remote, folders: Mapping[str, tuple[str, ...]]) -> Steps[bool]:
    """Make them on a host -> whether any is new."""
    new = False
    for base, *parts in folders.values():
        reply = yield from remote.ask("scratch", base=base, parts=parts)
        new = new or bool(reply["new"])
    return new


def _warm(hosts: Hosts, use: list[str], fresh: set[str]) -> None:
    """One short job on each host alone, before many start. Pretend hosts share one machine's caches."""
    folder = Path(tempfile.mkdtemp(prefix="muster-warm-"))
    names = {host.label: host for host in hosts.inputs.inventory.hosts}
    first = next(iter(hosts.alive()), None)

    def work(remote: Remote) -> Steps[None]:
        report = hosts.reports[remote.host]
        if hosts.inputs.launcher.ONE_MACHINE and remote.host != first:
            report.warm = {"status": "shared", "seconds": 0.0}
            return
        digest = str((report.environment or {})["digest"])
        again = remote.host in fresh
        report.warm = yield from warmer.warm(remote, names[remote.host], digest, again=again)

    try:
        warmer = Warmer(
            hosts.inputs,
            use,
            hosts.plan.cache,
            hosts.options.timeout,
            folder,
            hosts.token,
            hosts.shell,
            hosts.progress,
        )
        hosts.each(work)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
