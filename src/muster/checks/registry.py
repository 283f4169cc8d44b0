"""The families of checks that there are, and the text of their probes as it is sent to hosts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.kinds import judge_each
from muster.core.registry import load_plugin, loading, plugin_names

PACKAGE = "muster.checks"


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
    """All families, by name: Muster's and those of third parties. Raises BrokenPluginError."""
    found = []
    for name in sorted(plugin_names(PACKAGE)):
        with loading(PACKAGE, name):
            found.append(family_of(name, load_plugin(PACKAGE, name)))
    return tuple(found)


def family_of(name: str, module: ModuleType) -> Family:
    """A module as a family. Raises AttributeError where it is none."""
    probes = [getattr(module, probe, None) for probe in ("probe", "probe_peers")]
    texts = [inspect.getsource(probe) for probe in probes if probe is not None]
    own = all(check.judge for check in module.CHECKS)
    source = "\n".join(["from __future__ import annotations\n", *texts]) if texts else ""
    return Family(
        name=name,
        checks=module.CHECKS,
        judge=module.judge if hasattr(module, "judge") or not own else partial(judge_each, module.CHECKS),
        source=source,
        asks=probes[0] is not None,
        meets=probes[1] is not None,
        judge_group=getattr(module, "judge_group", None),
        seconds=getattr(module, "SECONDS", None),
    )


def checks_of(families: Iterable[Family]) -> tuple[Check, ...]:
    """Every check, in the order of the families."""
    return tuple(check for family in families for check in family.checks)
