"""Inspect hosts: all at once, over the connection that a job would use, with nothing installed on them."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families.versions import PACKAGES
from muster.checks.group import GROUPED, together
from muster.checks.inspection import CheckResult, InspectedHost, Inspection, Sighting, Trouble, Verdict
from muster.checks.profiles import Profile, load_profile
from muster.checks.questions import HostAnswers, Patience, Questions, failed
from muster.checks.registry import Family, checks_of, families
from muster.checks.survey import Progress, sample, starter, survey
from muster.checks.unreachable import UnreachableHost, remedy_for
from muster.core.errors import BrokenPluginError, JobError, refused
from muster.core.hostlist import fold_hosts
from muster.core.inventory import Host, Inventory, inventory_document
from muster.core.job import Placement
from muster.core.recipe import Recipe
from muster.core.recipes import lay_over, parse_override, validate
from muster.fleet.launchers.base import interpreter as starter_of
from muster.inputs.read import Inputs, read_recipe
from muster.inputs.read import check as prepare_job
from muster.store.atomic import write_json

PROBING = 15.0  # seconds that all probes of a round have together


def settings_of(recipe: str, overrides: list[str]) -> Recipe:
    """Return the recipe, or the defaults where there is no file. Raises RecipeError."""
    if recipe:
        return read_recipe(recipe, overrides)
    return validate(lay_over({}, [parse_override(override) for override in overrides]), where="settings")


def all_checks() -> tuple[Check, ...]:
    """Return every check, the frame's own first."""
    return (REACHED, ANSWERED, GROUPED, *checks_of(families()))


def check(
    inventory: Inventory,
    recipe: Recipe,
    *,
    named: str | None = None,
    profile: str | None = None,
    gpus: int | None = None,
    group: bool = True,
    progress: Progress = lambda done, total, unreached: None,
    announce: Callable[[str], None] = lambda text: None,
) -> Inspection:
    """Ask every host, judge the answers, and fold the findings.

    `named`: the recipe that was given, without which judges look at none; `gpus`: expected on each host,
    None: found out; `group`: let ranks on the fit hosts work together as well. Raises UsageError for bad
    input, and JobError where nothing can be started here, or after Ctrl-C.
    """
    begun = time.monotonic()
    job = prepare_job(recipe, inventory)
    if gpus:  # a host without slots has one per expected GPU
        hosts = tuple(replace(host, slots=host.slots or gpus) for host in job.inventory.hosts)
        job = replace(job, inventory=replace(job.inventory, hosts=hosts))
    kinds = families()
    chosen = load_profile(profile, all_checks())
    answers = _ask(job, kinds, progress)
    context = _context(job, chosen, answers, gpus=gpus, named=named is not None)
    findings = without(judge(kinds, answers, context), chosen.skipped)
    measured: dict[str, Any] | None = None
    if group:
        bad = {each.host for each in findings if each.level is Level.FAIL}
        bad |= {host for host, one in answers.items() if isinstance(one, UnreachableHost)}
        hosts = tuple(host for host in job.inventory.hosts if host.label not in bad)
        fit = replace(job, inventory=replace(job.inventory, hosts=hosts))
        measured, more = together(fit, kinds, answers, context, announce)
        findings += without(more, chosen.skipped)
    result = inspection(job.inventory, answers, findings, {each.name: each.why for each in all_checks()})
    return result.model_copy(
        update={
            "launcher": job.launcher_name,
            "profile": chosen.name,
            "recipe": named,
            "ended": time.time(),
            "seconds": time.monotonic() - begun,
            "group": measured,
        }
    )


def save_inventory(inspected: Inspection, path: Path) -> int:
    """Write the hosts that a job can run on, for `--hosts`. Return their number; 0: nothing was written.

    Raises JobError where the file cannot be written.
    """
    hosts = [Host(host.name, host.slots) for host in inspected.usable]
    if hosts:
        with refused(JobError, "written", path):
            write_json(path, inventory_document(hosts, inspected.launcher))
    return len(hosts)


def _ask(
    job: Inputs, kinds: Sequence[Family], progress: Progress
) -> dict[str, HostAnswers | UnreachableHost]:
    """Ask every host in both rounds. Return its answers, or why it is unreachable, by its label."""
    launch = job.recipe.launch
    places = [Placement(host.label, host.address, host.slots or 1, 0) for host in job.inventory.hosts]
    interpreter = sys.executable if job.launcher.ONE_MACHINE else starter_of(launch)
    questions = Questions(
        sources={family.name: family.source for family in kinds if family.source},
        first=tuple(family.name for family in kinds if family.asks),
        second=tuple(family.name for family in kinds if family.meets),
        ask=_asker(job),
        interpreter=interpreter,
        longer={family.name: family.seconds for family in kinds if family.seconds is not None},
    )
    patience = Patience(connect=launch.connect_timeout, probe=PROBING, fanout=launch.fanout)
    start = starter(job.launcher, launch, interpreter)
    return survey(places, start, questions, patience, progress)


def _asker(job: Inputs) -> Callable[[Placement], dict[str, Any]]:
    """Make the function that gives a host's `ask`; muster.checks.base describes it."""
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
    """Return the folders that the ranks write to, by the variable that moves each where there is one. The
    host's own environment decides what is not set here."""
    folders = {
        "work": job.recipe.launch.workdir or "~/.cache/muster",
        "HF_HOME": "~/.cache/huggingface",
    }
    if job.launcher.ONE_MACHINE:
        folders["here"] = str(Path.cwd())
    names = ("HF_HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
    return folders | {name: job.env[name] for name in names if job.env.get(name)}


def _context(
    job: Inputs,
    profile: Profile,
    answers: Mapping[str, HostAnswers | UnreachableHost],
    *,
    gpus: int | None,
    named: bool,
) -> Context:
    return Context(
        expects=profile.expects,
        slots={host.label: host.slots for host in job.inventory.hosts},
        world_size=_world_size(job.inventory.hosts),
        gpus_expected=None if gpus is None else gpus > 0,
        transport={host: one.transport for host, one in answers.items() if isinstance(one, HostAnswers)},
        recipe=job.recipe.as_dict() if named else {},
        launcher=job.launcher_name,
        one_machine=job.launcher.ONE_MACHINE,
    )


def _world_size(hosts: Sequence[Host]) -> int | None:
    """Return the ranks of a job on these hosts, where all state how many they take."""
    slots = [host.slots for host in hosts]
    return None if None in slots else sum(count or 0 for count in slots)


# ----------------------------------------------------------------------------------------------------
# From what hosts said to an Inspection. Pure.

REACHED = Check(
    "host.reached",
    "The host's name resolves, its ssh port answers with the right key, the login works, and there is a "
    "Python >= 3.8.",
    "A job starts on all its hosts or on none.",
)
ANSWERED = Check(
    "host.answered",
    "Every probe on the host finishes in time.",
    "A disk, driver or name server that hangs a probe also hangs a job.",
)
UNREAD = "the probe's answer could not be read"
UNJUDGED = "the check itself failed"
Replies = Mapping[str, HostAnswers | UnreachableHost]


def judge(kinds: Sequence[Family], given: Replies, context: Context) -> list[Finding]:
    """Return the findings of every check on every host, by topic."""
    findings: list[Finding] = []
    answered = {host: one for host, one in given.items() if isinstance(one, HostAnswers)}
    for family in kinds:
        # A family without a probe judges by the connection alone.
        answers = {host: one.answers.get(family.name, {}) for host, one in answered.items()}
        peers = {host: (one.peers or {}).get(family.name, {"error": ""}) for host, one in answered.items()}
        lost = {host: str(answer["error"]) for host, answer in answers.items() if failed(answer)}
        judged, nonsense = _judged(family, _whole(answers), _whole(peers), context)
        findings += judged
        findings += [
            Finding(check.name, host, Level.UNKNOWN, UNREAD if answers[host] else UNJUDGED, why)
            for host, why in {**lost, **nonsense}.items()
            for check in family.checks
        ]
    return [*_frame(given), *sorted(findings, key=lambda each: each.check.partition(".")[0])]


def without(findings: Sequence[Finding], skipped: frozenset[str]) -> list[Finding]:
    """Replace the findings of checks that the profile leaves out."""
    return [
        Finding(each.check, each.host, Level.NOT_APPLICABLE, "skipped by the profile")
        if each.check in skipped
        else each
        for each in findings
    ]


def inspection(
    inventory: Inventory, answers: Replies, findings: Sequence[Finding], why: Mapping[str, str]
) -> Inspection:
    """Return verdicts, and one entry per kind of trouble. What is not known here stays at its default."""
    by_host: dict[str, list[Finding]] = {host.label: [] for host in inventory.hosts}
    for each in findings:
        by_host[each.host].append(each)
    hosts = [_report(host, answers[host.label], by_host[host.label]) for host in inventory.hosts]
    names = ("fit", "warning", "unfit", "unreachable")
    usable = [host.slots for host in hosts if host.verdict in ("fit", "warning")]
    return Inspection(
        source=inventory.source,
        world_size=None if None in usable else sum(slots or 0 for slots in usable),
        summary={name: sum(host.verdict == name for host in hosts) for name in names},
        hosts=hosts,
        troubles=troubles(findings, why, {host.label: host.address for host in inventory.hosts}),
    )


def _judged(
    family: Family, answers: Answers, peers: Answers, context: Context
) -> tuple[list[Finding], dict[str, str]]:
    """Return the findings, and the hosts whose answers the judge cannot read, with the reason. Such a host
    does not spoil the others' verdicts, in either round."""
    nonsense: dict[str, str] = {}

    def judged(answers: Answers, peers: Answers, suspects: Sequence[str]) -> list[Finding]:
        try:
            return family.judge(answers, peers, context)
        except BrokenPluginError as error:
            nonsense.update(dict.fromkeys(suspects, str(error)))
            return []
        except Exception as error:
            nonsense.update(dict.fromkeys(suspects, f"{type(error).__name__}: {error}"))
            return []

    def sound(answers: Answers) -> Answers:
        return {host: answer for host, answer in answers.items() if host not in nonsense}

    findings = judged(answers, peers, list(answers))
    if not nonsense:
        return findings, {}
    nonsense.clear()
    for host, answer in answers.items():
        judged({host: answer}, {host: peers[host]} if host in peers else {}, [host])
    for host in sound(peers):  # judges look at second answers where there are several hosts
        judged(sound(answers), {host: peers[host]}, [host])
    left = list(sound(answers))
    return judged(sound(answers), sound(peers), left), nonsense


def _whole(answers: Answers) -> dict[str, Mapping[str, Any]]:
    """Leave out the hosts whose probe failed."""
    return {host: answer for host, answer in answers.items() if not failed(answer)}


def _frame(by_host: Replies) -> list[Finding]:
    """Return whether each host could be reached, and whether its probes ended."""
    findings = []
    for host, one in by_host.items():
        if isinstance(one, UnreachableHost):
            problem = f"unreachable ({one.stage.value}): {one.problem}"
            findings.append(Finding(REACHED.name, host, Level.FAIL, problem, one.evidence, one.remedy))
            continue
        seen = f"{one.transport.seconds:.2f} s until the first answer of Python {one.transport.python}"
        findings.append(Finding(REACHED.name, host, Level.PASS, evidence=seen))
        silent = [
            f"{name}: {answer['error']}"
            for answers in (one.answers, one.peers or {})
            for name, answer in answers.items()
            if failed(answer)
        ]
        if silent:
            problem = "probes did not finish"
            remedy = "timeout 5 df; timeout 5 nvidia-smi; sudo dmesg | tail -n 50"
            findings.append(Finding(ANSWERED.name, host, Level.WARN, problem, "; ".join(silent), remedy))
        else:
            findings.append(Finding(ANSWERED.name, host, Level.PASS))
    return findings


def _report(host: Host, answer: HostAnswers | UnreachableHost, findings: Sequence[Finding]) -> InspectedHost:
    results = [
        CheckResult(
            check=each.check,
            level=each.level.value,
            problem=each.problem,
            evidence=each.evidence,
            remedy=remedy_for(each.remedy, [host.address])
            if each.check == REACHED.name and each.remedy
            else each.remedy,
        )
        for each in findings
    ]
    if isinstance(answer, UnreachableHost):
        return InspectedHost(
            host=host.label,
            name=host.name,
            slots=host.slots,
            verdict="unreachable",
            stage=answer.stage.value,
            failure=answer.failure,
            checks=results,
        )
    transport = answer.transport
    return InspectedHost(
        host=host.label,
        name=host.name,
        slots=host.slots or _gpus(answer.answers.get("gpu", {})),
        verdict=verdict(findings),
        seconds=round(transport.seconds, 3),
        python=transport.python,
        clock_offset=transport.clock_offset,
        clock_error=transport.clock_error,
        checks=results,
    )


def _gpus(answer: Mapping[str, Any]) -> int | None:
    """Return the slots of a host for which none were given: its GPUs that CUDA_VISIBLE_DEVICES makes visible.
    None: it has none."""
    gpus, mask = answer.get("gpus"), answer.get("mask")
    if not isinstance(gpus, list):
        return None
    return (min(len(gpus), mask) if isinstance(mask, int) else len(gpus)) or None


# ----------------------------------------------------------------------------------------------------
# From findings to verdicts and to one entry per kind of trouble. Pure.

_WORST = (Level.FAIL, Level.WARN, Level.UNKNOWN, Level.NOTE)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Return a host's verdict, from all findings on it."""
    levels = {finding.level for finding in findings}
    return "unfit" if Level.FAIL in levels else "warning" if Level.WARN in levels else "fit"


def troubles(
    findings: Iterable[Finding], why: Mapping[str, str], addresses: Mapping[str, str]
) -> list[Trouble]:
    """Return one entry per check, level, problem and remedy, whatever the number of hosts; worst first, then
    by the number of hosts. `why`: check -> what happens to a job otherwise; `addresses`: host -> its own, for
    remedies."""
    groups: dict[tuple[Level, str, str, str | None], list[Finding]] = {}
    for each in findings:
        if each.level in _WORST:
            groups.setdefault((each.level, each.check, each.problem, each.remedy), []).append(each)
    ranked = sorted(groups.items(), key=lambda item: (_WORST.index(item[0][0]), -len(item[1]), item[0][1]))
    listed = []
    for (level, check, problem, remedy), members in ranked:
        hosts = list(dict.fromkeys(each.host for each in members))
        if check == REACHED.name and remedy:
            remedy = remedy_for(remedy, [addresses[host] for host in hosts])
        listed.append(
            Trouble(
                check=check,
                level=level.value,
                problem=problem,
                hosts=fold_hosts(hosts),
                count=len(hosts),
                seen=_seen(members),
                remedy=remedy,
                why=why.get(check, ""),
            )
        )
    return listed


def _seen(members: Iterable[Finding]) -> list[Sighting]:
    """Group the hosts that gave the same evidence."""
    groups: dict[str, list[str]] = {}
    for each in members:
        groups.setdefault(each.evidence, []).append(each.host)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        Sighting(evidence=text, hosts=fold_hosts(hosts), count=len(hosts)) for text, hosts in ranked if text
    ]
