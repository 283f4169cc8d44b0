"""Inspects hosts: all at once, over the connection that a job would use, with nothing installed on them."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.checks.base import Check, Context, Finding, Level
from muster.checks.families.versions import PACKAGES
from muster.checks.group import GROUPED, together
from muster.checks.inspection import Inspection
from muster.checks.profiles import Profile, load_profile
from muster.checks.questions import HostAnswers, Patience, Questions
from muster.checks.registry import Family, checks_of, families
from muster.checks.survey import Progress, sample, starter, survey
from muster.checks.unreachable import Unreached
from muster.checks.verdicts import ANSWERED, REACHED, inspection, judge, without
from muster.core.errors import JobError
from muster.core.inventory import Host, Inventory, inventory_document
from muster.core.job import Placement
from muster.core.recipe import Recipe
from muster.core.recipes import lay_over, load_recipe, parse_override, validate
from muster.fleet.launchers.base import interpreter as starter_of
from muster.fleet.shell import RealShell, Shell
from muster.inputs.read import Inputs, absolute
from muster.inputs.read import check as prepare_job
from muster.store.atomic import write_json

PROBING = 15.0  # seconds that all probes of a round have together


@dataclass(frozen=True)
class WantedChecks:
    """What a user asks of an inspection, besides hosts and settings."""

    recipe: str | None = None  # the name of the one that was given; without one, judges look at none
    profile: str | None = None
    gpus: int | None = None  # expected on each host; 0: none; None: found out
    group: bool = True  # also let ranks on the fit hosts work together


def settings_of(recipe: str, overrides: list[str]) -> Recipe:
    """The recipe, or what a recipe is without a file. Raises RecipeError."""
    if recipe:
        return absolute(load_recipe(recipe, overrides))
    return validate(lay_over({}, [parse_override(override) for override in overrides]), where="settings")


def all_checks() -> tuple[Check, ...]:
    """Everything that is asked, the frame's own questions first."""
    return (REACHED, ANSWERED, GROUPED, *checks_of(families()))


def check(
    inventory: Inventory,
    recipe: Recipe,
    wanted: WantedChecks | None = None,
    *,
    progress: Progress = lambda done, total, unreached: None,
    announce: Callable[[str], None] = lambda text: None,
    shell: Shell | None = None,
) -> Inspection:
    """Ask every host, judge what they say, and fold it.

    Raises UsageError for bad input, and JobError where nothing can be started here, or after Ctrl-C.
    """
    begun = time.monotonic()
    wanted = wanted or WantedChecks()
    job = _with_slots(prepare_job(recipe, inventory), wanted.gpus)
    known = families()
    profile = load_profile(wanted.profile, all_checks())
    shell = shell or RealShell()
    heard = _ask(job, known, shell, progress)
    context = _context(job, profile, wanted, heard)
    findings = without(judge(known, heard, context), profile.skipped)
    measured: dict[str, Any] | None = None
    if wanted.group:
        fit = replace(job, inventory=_fit(job.inventory, findings, heard))
        measured, more = together(fit, known, heard, context, announce, shell)
        findings += without(more, profile.skipped)
    found = inspection(job.inventory, heard, findings, {each.name: each.why for each in all_checks()})
    return found.model_copy(
        update={
            "launcher": job.launcher_name,
            "ssh_config": inventory.ssh_config,
            "profile": profile.name,
            "recipe": wanted.recipe,
            "ended": time.time(),
            "seconds": time.monotonic() - begun,
            "group": measured,
        }
    )


def save_inventory(found: Inspection, path: Path) -> int:
    """Write the hosts that a job can run on, for `--hosts`. -> their number; 0: nothing was written.

    Raises JobError where the file cannot be written.
    """
    hosts = [Host(host.name, host.slots) for host in found.usable]
    if hosts:
        try:
            write_json(path, inventory_document(hosts, found.launcher, found.ssh_config))
        except OSError as error:
            raise JobError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return len(hosts)


def _with_slots(job: Inputs, gpus: int | None) -> Inputs:
    """Hosts without slots have one per expected GPU."""
    if not gpus:
        return job
    hosts = tuple(replace(host, slots=host.slots or gpus) for host in job.inventory.hosts)
    return replace(job, inventory=replace(job.inventory, hosts=hosts))


def _fit(
    inventory: Inventory, findings: Sequence[Finding], heard: Mapping[str, HostAnswers | Unreached]
) -> Inventory:
    """The hosts on which nothing has failed."""
    bad = {each.host for each in findings if each.level is Level.FAIL}
    bad |= {host for host, one in heard.items() if isinstance(one, Unreached)}
    return replace(inventory, hosts=tuple(host for host in inventory.hosts if host.label not in bad))


def _ask(
    job: Inputs, known: Sequence[Family], shell: Shell, progress: Progress
) -> dict[str, HostAnswers | Unreached]:
    """Both rounds, on every host."""
    launch = job.recipe.launch
    places = [Placement(host.label, host.address, host.slots or 1, 0) for host in job.inventory.hosts]
    interpreter = sys.executable if job.launcher.ONE_MACHINE else starter_of(launch)
    questions = Questions(
        sources={family.name: family.source for family in known if family.source},
        first=tuple(family.name for family in known if family.asks),
        second=tuple(family.name for family in known if family.meets),
        ask=_asker(job),
        interpreter=interpreter,
        longer={family.name: family.seconds for family in known if family.seconds is not None},
    )
    patience = Patience(connect=launch.connect_timeout, probe=PROBING, fanout=launch.fanout)
    start = starter(job.launcher, launch, shell, interpreter)
    return survey(places, start, questions, patience, progress)


def _asker(job: Inputs) -> Callable[[Placement], dict[str, Any]]:
    """What every probe is told; see muster.checks.base."""
    hosts = {host.label: host for host in job.inventory.hosts}
    launch = job.recipe.launch
    common = {
        "hosts": {label: hosts[label].address for label in sample(list(hosts))},
        "world_size": _world_size(job.inventory.hosts),
        "token": secrets.token_hex(16),
        "launcher": job.launcher_name,
        "one_machine": job.launcher.ONE_MACHINE,
        "python": launch.python,
        "controller_python": sys.executable,
        "packages": list(PACKAGES),
        "folders": _folders(job),
        "timeout": PROBING,
        "port": launch.port,
    }

    def ask(place: Placement) -> dict[str, Any]:
        return {**common, "host": place.host, "address": place.address, "slots": hosts[place.host].slots}

    return ask


def _folders(job: Inputs) -> dict[str, str]:
    """What the ranks write to, by the variable that moves it where there is one. What is not set here, the
    host's own environment decides."""
    folders = {
        "work": job.recipe.launch.workdir or "~/.cache/muster",
        "HF_HOME": "~/.cache/huggingface",
    }
    if job.launcher.ONE_MACHINE:
        folders["here"] = str(Path.cwd())
    names = ("HF_HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
    return folders | {name: job.env[name] for name in names if job.env.get(name)}


def _context(
    job: Inputs, profile: Profile, wanted: WantedChecks, heard: Mapping[str, HostAnswers | Unreached]
) -> Context:
    return Context(
        expects=profile.expects,
        slots={host.label: host.slots for host in job.inventory.hosts},
        world_size=_world_size(job.inventory.hosts),
        gpus_expected=None if wanted.gpus is None else wanted.gpus > 0,
        transport={host: one.transport for host, one in heard.items() if isinstance(one, HostAnswers)},
        recipe=job.recipe.as_dict() if wanted.recipe else {},
        launcher=job.launcher_name,
        one_machine=job.launcher.ONE_MACHINE,
    )


def _world_size(hosts: Sequence[Host]) -> int | None:
    """The ranks of a job on these hosts, where all say how many they take."""
    slots = [host.slots for host in hosts]
    return None if None in slots else sum(count or 0 for count in slots)
