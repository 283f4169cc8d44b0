"""From findings to verdicts and to one entry per kind of trouble. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.checks.base import Finding, Level
from muster.core.hostlist import fold_hosts
from muster.core.inspection import Seen, Trouble, Verdict

_WORST = (Level.FAIL, Level.WARN, Level.UNKNOWN)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """A host's, from all that was found on it."""
    levels = {finding.level for finding in findings}
    return "unfit" if Level.FAIL in levels else "warning" if Level.WARN in levels else "fit"


def troubles(findings: Iterable[Finding], why: Mapping[str, str]) -> list[Trouble]:
    """One entry per check, level, problem and remedy, whatever the number of hosts; worst first, then by how
    many hosts have it. `why`: check -> what happens to a job otherwise."""
    groups: dict[tuple[Level, str, str, str | None], list[Finding]] = {}
    for each in findings:
        if each.level in _WORST:
            groups.setdefault((each.level, each.check, each.problem, each.remedy), []).append(each)
    ranked = sorted(groups.items(), key=lambda item: (_WORST.index(item[0][0]), -len(item[1]), item[0][1]))
    found = []
    for (level, check, problem, remedy), members in ranked:
        hosts = list(dict.fromkeys(each.host for each in members))
        found.append(
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
    return found


def _seen(members: Iterable[Finding]) -> list[Seen]:
    """Hosts that gave the same evidence, together."""
    groups: dict[str, list[str]] = {}
    for each in members:
        groups.setdefault(each.evidence, []).append(each.host)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [Seen(evidence=text, hosts=fold_hosts(hosts), count=len(hosts)) for text, hosts in ranked if text]
