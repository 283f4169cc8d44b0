"""Provision's result: what became of each host, and where their environments differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from muster.core.hostlist import fold_hosts


@dataclass
class PreparedHost:
    """What became of one host."""

    host: str
    failure: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    copied: list[dict[str, Any]] = field(default_factory=list)
    warm: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """prepared, or failed."""
        return "failed" if self.failure else "prepared"


@dataclass(frozen=True)
class Difference:
    """A difference between the hosts' environments. `majority` is None in a tie."""

    name: str
    values: dict[str, list[str]]  # value -> hosts
    majority: str | None

    @property
    def blamed(self) -> list[str]:
        """The hosts outside the majority; all of them in a tie."""
        return [host for value, hosts in self.values.items() if value != self.majority for host in hosts]

    def __str__(self) -> str:
        parts = [f"{value} on {fold_hosts(hosts)}" for value, hosts in self.values.items()]
        return f"{self.name}: {'; '.join(parts)}"


@dataclass
class Provisioned:
    """Everything that was done, and the settings with which a run uses it."""

    hosts: list[PreparedHost]
    key: str
    requirements: tuple[str, ...]
    differences: list[Difference] = field(default_factory=list)
    use: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every host is prepared."""
        return all(report.failure is None for report in self.hosts)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        hosts = [{"host": report.host, "status": report.status, **asdict(report)} for report in self.hosts]
        return {**asdict(self), "ok": self.ok, "hosts": hosts}


def differences(about: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Return what differs between the environments of all hosts. Pure.

    Python's third number does not count: packages are installed for the first two.
    """
    flat = {}
    for host, one in about.items():
        minor = ".".join(str(one["python"]).split(".")[:2])
        flat[host] = {
            "python": minor,
            "interpreter": str(one["tag"]),
            "platform": str(one["platform"]),
            **{str(name): str(version) for name, version in one["packages"].items()},
        }
    names = dict.fromkeys(name for values in flat.values() for name in values)
    listed = []
    for name in names:
        values: dict[str, list[str]] = {}
        for host, held in flat.items():
            values.setdefault(held.get(name, "absent"), []).append(host)
        if len(values) > 1:
            first, second = sorted(map(len, values.values()), reverse=True)[:2]
            most = next(value for value, hosts in values.items() if len(hosts) == first)
            listed.append(Difference(name, values, most if first > second else None))
    return listed
