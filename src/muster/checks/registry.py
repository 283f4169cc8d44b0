"""The families of checks, and the text of their probes as it is sent to hosts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.kinds import judge_each
from muster.core.errors import BrokenPluginError
from muster.core.registry import (
    broken,
    fits,
    guarded,
    held_function,
    load_plugin,
    package_of,
    plugin_names,
    warn,
)

Judge = Callable[..., list[Finding]]
PACKAGE = "muster.checks"
OWN = "one of Muster's own"
FRAME = "host."  # questions that no family asks: whether a host is reached, answers, takes part


@dataclass(frozen=True)
class Family:
    """One module of checks."""

    name: str
    checks: tuple[Check, ...]
    judge: Callable[[Answers, Answers, Context], list[Finding]]
    source: str  # of its probes; empty: it has none
    asks: bool  # has a probe for the first round
    meets: bool  # has one for the second
    judge_group: Callable[[Mapping[str, Any], Context], list[Finding]] | None = None
    seconds: float | None = None  # for its first probe; None: as long as any


def families() -> tuple[Family, ...]:
    """Return all families, by name: Muster's, then those of third parties. Of these, what cannot be used, and
    checks whose names are taken, are left out with a warning."""
    kept: list[Family] = []
    taken: dict[str, str] = {}
    for name in sorted(plugin_names(PACKAGE), key=lambda each: (package_of(PACKAGE, each) is not None, each)):
        try:
            with guarded(PACKAGE, name):
                family = family_of(name, load_plugin(PACKAGE, name))
        except BrokenPluginError as error:
            warn(str(error))
            continue
        package = package_of(PACKAGE, name)
        owner = f"one of the package {package}" if package else OWN
        family = _without(family, taken, package) if package else family
        taken.update({check.name: owner for check in family.checks})
        kept += [family] if family.checks else []
    return tuple(kept)


def _without(family: Family, taken: Mapping[str, str], package: str) -> Family:
    """Return a third party's family without the checks whose names are taken."""
    checks: dict[str, Check] = {}
    for check in family.checks:
        owner = OWN if check.name.startswith(FRAME) else taken.get(check.name)
        if owner := owner or ("another of its own" if check.name in checks else None):
            warn(f"check {check.name} of the package {package} has the name of {owner}")
        else:
            checks[check.name] = check

    def kept(findings: list[Finding]) -> list[Finding]:
        return [each for each in findings if each.check in checks]

    judge, group = family.judge, family.judge_group
    return replace(
        family,
        checks=tuple(checks.values()),
        judge=lambda *given: kept(judge(*given)),
        judge_group=None if group is None else lambda *given: kept(group(*given)),
    )


def family_of(name: str, module: ModuleType) -> Family:
    """Return a module as a family. Raises AttributeError where it is none."""
    probes = [getattr(module, probe, None) for probe in ("probe", "probe_peers")]
    texts = [inspect.getsource(probe) for probe in probes if probe is not None]
    if not fits(module.CHECKS, tuple[Check, ...]):
        raise broken(PACKAGE, name, "its CHECKS are no tuple of Check", module.__file__)
    names = {check.name for check in module.CHECKS}
    own = all(check.judge for check in module.CHECKS)
    source = "\n".join(["from __future__ import annotations\n", *texts]) if texts else ""
    if hasattr(module, "judge") or not own:
        judge = _held(name, module.judge, names)
    else:
        held = [replace(each, judge=_held(name, each.judge, {each.name})) for each in module.CHECKS]
        judge = partial(judge_each, held)
    return Family(
        name=name,
        checks=module.CHECKS,
        judge=judge,
        source=source,
        asks=probes[0] is not None,
        meets=probes[1] is not None,
        judge_group=_held(name, module.judge_group, names) if hasattr(module, "judge_group") else None,
        seconds=getattr(module, "SECONDS", None),
    )


def _held(name: str, judge: Judge, names: Collection[str]) -> Judge:
    """Return a third party's judge, guarded: what it raises, and a Finding that is not of one of its checks
    and of a host that was asked, is its own fault."""
    if package_of(PACKAGE, name) is None:
        return judge
    inner = held_function(PACKAGE, name, judge, list[Finding])

    def held(*given: Any) -> list[Finding]:
        findings, context = inner(*given), given[-1]
        for each in findings:
            if each.check not in names:
                wrong = f"judges {each.check!r}, which is not in its CHECKS"
            elif each.host not in context.slots:
                wrong = f"judges {each.host!r}, which is no host that was asked"
            elif not isinstance(each.level, Level):
                wrong = f"gives {each.check} {each.level!r}, which is no Level"
            else:
                continue
            raise broken(PACKAGE, name, f"judge {wrong}", inspect.getsourcefile(judge))
        return findings

    return held


def checks_of(families: Iterable[Family]) -> tuple[Check, ...]:
    """Return every check, by topic."""
    return tuple(sorted((check for family in families for check in family.checks), key=lambda one: one.topic))
