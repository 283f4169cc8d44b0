"""The result of `muster check`: one verdict per host, and each kind of trouble once, with all its hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from muster.core.section import Part
from muster.core.units import format_seconds
from muster.store.values import keep, kept

SCHEMA_VERSION = 1
Verdict = Literal["fit", "warning", "unfit", "unreachable"]
LevelName = Literal["pass", "not applicable", "note", "unknown", "warn", "fail"]


class CheckResult(Part):
    """One check on one host."""

    check: str
    level: LevelName = Field(
        description="note: it needs no action; unknown: it could not be found out, which is not a pass"
    )
    problem: str = ""
    evidence: str = Field("", description="what was seen on this host")
    remedy: str | None = Field(None, description="a command or setting that one can paste")


class InspectedHost(Part):
    """One host. Unreachable ones have no checks but `host.reached`."""

    host: str
    name: str = Field(description="as it was given, with a login part")
    slots: int | None = Field(description="as given, or the GPUs that were found; None: not known")
    verdict: Verdict
    stage: str | None = Field(None, description="unreachable: name, tcp, host key, login or python")
    failure: str | None = Field(None, description="unreachable: id in the table of failures; None: unknown")
    seconds: float | None = Field(None, description="until the host's first word")
    python: str | None = Field(None, description="version of the interpreter that ran the probe")
    clock_offset: float | None = Field(None, description="seconds that its clock is ahead of this machine's")
    clock_error: float | None = Field(None, description="the offset is known no better than this")
    checks: list[CheckResult]


class Sighting(Part):
    """Hosts on which the same was seen."""

    evidence: str
    hosts: str = Field(description="folded, such as node[01-12,17]")
    count: int


class Trouble(Part):
    """One kind of trouble: a check that ended the same way on some hosts."""

    check: str
    level: Literal["note", "unknown", "warn", "fail"]
    problem: str
    hosts: str = Field(description="folded, such as node[01-12,17]")
    count: int
    seen: list[Sighting] = Field(description="what was seen where, the most frequent first")
    remedy: str | None = None
    why: str = Field("", description="what happens to a job otherwise")


class Inspection(Part):
    """The document that `muster check --json` prints."""

    schema_version: int = SCHEMA_VERSION
    source: str = Field(description="the hosts as they were given")
    launcher: str = ""
    profile: str = "defaults"
    recipe: str | None = None
    ended: float | None = Field(None, description="Unix time; None: not written down")
    seconds: float = Field(0.0, description="that the inspection took")
    world_size: int | None = Field(description="ranks that the fit hosts have slots for; None: not known")
    summary: dict[Verdict, int]
    hosts: list[InspectedHost]
    troubles: list[Trouble] = Field(description="worst first")
    group: dict[str, Any] | None = Field(None, description="what ranks on the fit hosts measured together")

    @property
    def sound(self) -> bool:
        """Whether no host is unfit or unreachable."""
        return not self.summary["unfit"] and not self.summary["unreachable"]

    @property
    def left_out(self) -> dict[str, str]:
        """The hosts that no job can run on, with everything that failed on them."""
        failed = {
            host.host: [f"{each.check}: {each.problem}" for each in host.checks if each.level == "fail"]
            for host in self.hosts
        }
        left = [host for host in self.hosts if host.verdict not in ("fit", "warning")]
        return {host.host: "; ".join(failed[host.host]) or host.verdict for host in left}

    @property
    def usable(self) -> list[InspectedHost]:
        """The hosts that a job can run on: fit, or with a warning."""
        return [host for host in self.hosts if host.verdict in ("fit", "warning")]


LAST, RECENT = "last-inspection", 24 * 3600.0  # the key that it is kept under; seconds for which it counts


def remember(inspection: Inspection) -> None:
    """Keep which hosts the last inspection left out, for this user's benches."""
    keep({"ended": inspection.ended, "hosts": inspection.left_out}, LAST)


def lately_left_out(hosts: Iterable[str], now: float) -> list[str]:
    """Return a note on those of the hosts that the last inspection left out, where it was made in the last
    day. `now`: Unix time."""
    last = kept(LAST)
    age, reasons = now - (last.get("ended") or 0.0), last.get("hosts") or {}
    if not 0 <= age <= RECENT:
        return []
    ago = f"when `muster check` last looked, {format_seconds(age)} ago"
    return [f"{host} was not fit {ago}: {reasons[host]}" for host in hosts if host in reasons]
