"""The document of `muster judge`: every job in the logs, and one verdict per host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, computed_field, model_validator

from muster.core.hostlist import fold_hosts
from muster.core.result import JobEntry
from muster.core.section import Part
from muster.core.state import LogEnd

SCHEMA_VERSION = 1
# unfit: by the inspection before a bench.
Condition = Literal["fit", "differs", "probably fit", "unfit", "slow", "failing", "below", "unknown"]
GOOD: tuple[Condition, ...] = ("fit", "differs")
BAD: tuple[Condition, ...] = ("unfit", "failing", "slow", "below")


class Gate(IntEnum):
    """Whether hosts may be handed over. The number is the exit code of `muster judge` and `muster bench`."""

    FIT = 0  # every host is fit, or differs from its peers by no more than this fleet's hosts do
    BAD = 1  # something is known against a host, a link, a switch, or a job
    OPEN = 3  # nothing is, but not everything was judged


class Evidence(Part):
    """A job that is evidence for or against."""

    job: str
    peers: tuple[str, ...]
    slower: float | None = Field(description="share of a healthy step's time; None: it failed")
    what: Literal["step", "computing", "failed"] = Field(
        "step", description="what was read: the job's step, or what this host did by itself, or its end"
    )
    work: str = Field("", description="of the healthy jobs that it was compared with, as in `peers`")


class Subject(Part):
    """A part of a host that was judged."""

    name: Literal["compute", "card", "links"]
    condition: Condition = Field(description="unknown: no reading told of it")
    jobs: int = Field(0, description="readings that told of it")
    at_most: float | None = Field(None, description="no slower than that, in any work that ran")


def not_judged(condition: str, subjects: Sequence[Subject], *, exchanged: bool) -> str:
    """Return what a host's jobs leave open, in words; empty where they show all that they could. `exchanged`:
    it was in a job of several hosts, which could have shown the network."""
    if condition not in GOOD:
        return condition
    network = any(each.name == "card" and each.condition in GOOD for each in subjects)
    return "network not judged" if exchanged and not network else ""


def looked_at(hosts: Mapping[str, Sequence[Subject]]) -> list[str]:
    """Return the bound of each subject of these hosts, in words: card and links at most 0.4% slower."""
    by_bound: dict[str, list[str]] = {}
    for name in ("compute", "card", "links"):
        of = {host: each for host, subjects in hosts.items() for each in subjects if each.name == name}
        judged = {host: each for host, each in of.items() if each.condition != "unknown"}
        bounds = [each.at_most for each in judged.values() if each.at_most is not None]
        bound = f"at most {max(bounds):.1%} slower" if bounds else "fit"
        left = fold_hosts([host for host in hosts if host not in judged])
        more = f" ({len(judged)} of {len(hosts)}; not judged: {left})" if left else ""
        if judged:
            by_bound.setdefault(f"{bound}{more}", []).append(name)
    return [
        f"{', '.join([*names[:-2], ' and '.join(names[-2:])])} {what}" for what, names in by_bound.items()
    ]


class Verdict(Part):
    """The verdict on a host; or on a link (its two hosts) between hosts that are good with others; or on a
    switch (those behind it).

    A host `differs` where it is slower than its peers by no more than this fleet's hosts differ among
    themselves. One that is slow in groups, and of which it is not known whether alone too, is of kind `host`.
    """

    hosts: list[str]
    switch: str | None = Field(None, description="its name; None: a host or a link")
    condition: Condition
    kind: str | None = None
    slower: float | None = Field(None, description="share of a healthy step's time")
    within: float | None = Field(None, description="standard error of it")
    at_most: float | None = Field(None, description="a slowdown above this is ruled out")
    confidence: float = Field(
        description="that the condition is right; of an unknown one: that it is bad. 1: by a threshold or an "
        "inspection"
    )
    reason: str
    evidence: list[Evidence] = Field(default_factory=list)
    subjects: list[Subject] = Field(
        default_factory=list, description="of a host: what was judged, against others or by thresholds"
    )
    settle: str = Field("", description="of what is not known: which jobs would tell")

    @model_validator(mode="before")
    @classmethod
    def _of_older_bench(cls, data: Any) -> Any:
        """Read a host's row of an older bench.json, which had the judge's verdict inside it."""
        if not isinstance(data, dict) or "beside_others" not in data:
            return data
        own = {"hosts": [data["host"]], "condition": data["verdict"], "reason": data["reason"]}
        judged = data["beside_others"] or {}
        if judged.get("condition") != data["verdict"]:  # a threshold or the inspection decided
            doubt = data["verdict"] == "unknown"
            judged = {**judged, "confidence": 1.0 - judged.get("confidence", 1.0) if doubt else 1.0}
        return {**judged, **own, "subjects": data["subjects"]}

    @property
    def host(self) -> str:
        """The host, or the first of the link's or the switch's."""
        return self.hosts[0]

    @property
    def subject(self) -> tuple[str, ...]:
        """The name of the switch, or those of the host or of the link's two."""
        return (self.switch,) if self.switch else tuple(self.hosts)

    @property
    def bad(self) -> bool:
        """Whether it is accused of something."""
        return self.condition in ("slow", "failing")


class Peers(Part):
    """What is normal for jobs of one work on so many hosts."""

    work: str
    hosts: int
    jobs: int = Field(description="that the figures are from; bad ones are not among them")
    step_seconds: float = Field(
        description="of a healthy step; of works without a known batch, per sample, or per token"
    )
    deviation: float = Field(description="relative standard deviation of healthy jobs")
    side_by_side: float | None = Field(
        None, description="the same, of jobs compared with those that ran at the same time"
    )
    samples_per_second: float | None = None
    tokens_per_second: float | None = Field(None, description="where steps are counted in tokens alone")
    stored: bool = Field(False, description="not from these logs")
    least: float | None = Field(
        None,
        description="the smallest slowdown that counts here: `slow`, or what noise and hosts differ by",
    )


class Drift(Part):
    """A work in which the fleet as a whole is slower, or faster, than its baseline: a fault that all hosts
    share shows nowhere else. Listed where the difference is larger than `slow`, and than three standard
    errors."""

    slower: float = Field(description="share of a healthy step's time in the baseline; below 0: faster")
    within: float = Field(description="standard error of it")
    now: Peers
    baseline: Peers


class Judged(Part):
    """The document that `muster judge --json` prints. That of a bench has its schedule and curves as well."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA_VERSION
    source: str = Field(description="the logs, or the hosts, as they were given")
    hosts: list[Verdict]
    links: list[Verdict] = Field(description="that are slow or failing; healthy ones are not listed")
    switches: list[Verdict] = Field(
        default_factory=list, description="that are slow or failing; none where none are known"
    )
    one_of: list[list[str]] = Field(
        default_factory=list, description="hosts and switches of which one is bad, or a link between them"
    )
    drifted: list[Drift] = Field(default_factory=list, description="against --baseline, the slowest first")
    peers: list[Peers]
    jobs: list[JobEntry]
    notes: list[str] = Field(default_factory=list)
    slow: float = Field(0.01, description="the smallest slowdown that counts, share of a step's time")
    at_least: str = Field("", description="the speed that each job must reach; empty: none")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def summary(self) -> dict[Condition, int]:
        """Hosts by their verdict."""
        counts = Counter(each.condition for each in self.hosts)
        return {name: counts[name] for name in get_args(Condition)}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def outcomes(self) -> dict[LogEnd, int]:
        """Jobs by how they ended."""
        counts = Counter(job.outcome for job in self.jobs)
        return {name: counts[name] for name in get_args(LogEnd)}

    @property
    def accused(self) -> bool:
        """Whether there is evidence against a host, a link, a switch, a job, or the fleet as a whole."""
        bad = any(self.summary.get(name) for name in BAD)
        drifted = any(each.slower > 0 for each in self.drifted)
        missed = any(job.misses for job in self.jobs)
        return bool(bad or drifted or missed or self.links or self.switches or self.one_of)

    @property
    def gate(self) -> Gate:
        """Whether all hosts are fit, one is bad, or something was not judged: without hosts, nothing was."""
        if self.accused:
            return Gate.BAD
        return Gate.OPEN if any(self.left.values()) or not self.hosts else Gate.FIT

    @property
    def left(self) -> dict[str, str]:
        """What is open of each host, in words; empty: nothing."""
        grouped = {host for job in self.jobs if job.size > 1 and not job.warm_up for host in job.hosts}
        return {
            each.host: not_judged(each.condition, each.subjects, exchanged=each.host in grouped)
            for each in self.hosts
        }
