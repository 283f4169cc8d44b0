"""What `muster check` asks, and what it says of hosts by their answers (host.json: a healthy one's)."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from muster.checks import check as inspecting
from muster.checks.base import Transport
from muster.checks.questions import HostAnswers
from muster.checks.unreachable import ConnectionEnd, UnreachableHost, explain
from tests.golden.documents import Documents, muster

HEALTHY: dict[str, Any] = json.loads((Path(__file__).parent / "host.json").read_text(encoding="utf-8"))
PROFILES = Path(inspecting.__file__).parents[1] / "profiles"
LISTS = {"none": (), **{name.stem: ("--profile", name.stem) for name in sorted(PROFILES.glob("*.yaml"))}}

# Host -> what differs there: places in its answers, and the values.
FAULTS: dict[str, dict[str, Any]] = {
    "healthy": {},
    "open-files": {"answers.limits.open_files": [64, 64]},
    "processes": {"answers.limits.processes": [40, 40]},
    "map-count": {"answers.limits.map_count": 1000},
    "cores": {"answers.limits.cores": 8, "answers.limits.affinity": 1},
    "quota": {"answers.limits.quota": 0.5},
    "little-shm": {"answers.machine.shm": [1 << 20, 64 << 20]},
    "little-memory": {"answers.machine.MemAvailable": 1 << 30},
    "less-memory": {"answers.machine.MemTotal": 1 << 37},
    "swapping": {"answers.machine.SwapTotal": 1 << 33, "answers.machine.SwapFree": 0},
    "out-of-memory": {"answers.machine.oom_kills": 3},
    "late-clock": {"transport.clock_offset": 7.0},
    "slow-login": {"transport.seconds": 31.0, "transport.noise": ["Welcome to n1"]},
    "full-disk": {"answers.disk.folders.0.free": 1 << 20},
    "no-inodes": {"answers.disk.folders.3.inodes": 0},
    "read-only": {"answers.disk.folders.0.read_only": True, "answers.disk.folders.0.writable": False},
    "old-torch": {"answers.versions.packages.torch": "2.8.0"},
    "no-deepspeed": {"answers.versions.packages.deepspeed": None},
    "other-python": {"answers.versions.python": "3.10.4"},
    "old-driver": {"answers.versions.driver": "535.54.03", "answers.gpu.driver": "535.54.03"},
    "other-kernel": {"answers.machine.kernel": "5.15.0"},
    "other-processor": {"answers.machine.cpu": "64 x EPYC"},
    "rebooted": {"answers.machine.uptime": 30.0},
    "left-over": {"answers.leftovers.processes": [{"pid": 7, "job": True, "args": "python -m x"}]},
    "port-taken": {"answers.leftovers.taken": True},
    "slow-link": {"answers.network.route.speed": 1000},
    "small-mtu": {"answers.network.route.mtu": 1500},
    "half-duplex": {"answers.network.route.duplex": "half"},
    "link-errors": {"answers.network.route.rx_errors": 100_000},
    "loopback": {"answers.names.addresses": ["127.0.1.1"], "answers.names.own": ["127.0.1.1"]},
    "powersave": {"answers.machine.governors": {"powersave": 2}},
    "one-gpu": {"answers.gpu.gpus": HEALTHY["answers"]["gpu"]["gpus"][:1]},
    "ecc": {"answers.gpu.gpus.1.uncorrected": 3},
    "hot": {"answers.gpu.gpus.0.reasons": ["hw_thermal_slowdown"]},
    "half-width": {"answers.gpu.gpus.0.width": 8},
    "low-power": {"answers.gpu.gpus.1.power_limit": 350.0},
    "other-gpu": {"answers.gpu.gpus.0.name": "NVIDIA A10", "answers.gpu.gpus.0.capability": [8, 6]},
    "gpu-in-use": {"answers.gpu.gpus.0.used": 40 << 30},
    "no-links": {"answers.gpu.gpus.0.links": []},
    "probe-died": {"answers.disk": {"error": "not done in 15 s"}},
    "nonsense": {"answers.limits.open_files": "many"},
}  # fmt: skip
# Host -> how its connection ended.
UNREACHED = {
    "nowhere": ConnectionEnd(255, ["ssh: Could not resolve hostname nowhere: Name or service not known"]),
    "refused": ConnectionEnd(255, ["ssh: connect to host refused port 22: Connection refused"]),
    "no-route": ConnectionEnd(255, ["ssh: connect to host no-route port 22: No route to host"]),
    "silent": ConnectionEnd(None, seconds=20.0),
    "new-key": ConnectionEnd(255, ["Host key verification failed."]),
    "denied": ConnectionEnd(255, ["ada@denied: Permission denied (publickey,password)."]),
    "no-python": ConnectionEnd(127, ["bash: line 1: python3: command not found"]),
    "old-python": ConnectionEnd(3, python="3.6.8"),
}
WELL = ("pass", "not applicable")
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "healthy hosts": (["n1", "n2", "n3"], ()),
    "the last one meets no other": (["n1", "n2", "n3", "n4"], ()),
    "each with a fault": (list(FAULTS), ()),
    "each with a fault, for a recipe and a profile": (
        list(FAULTS), ("--recipe", "s1-opt-1.3b", "--profile", "h100-8", "--expect-gpus", "2"),
    ),
    "unreached": (["n1", *UNREACHED], ()),
}  # fmt: skip


def planted(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The answers with other values in these places."""
    data = copy.deepcopy(data)
    for place, value in changes.items():
        *path, last = place.split(".")
        at: Any = data
        for key in path:
            at = at[int(key)] if isinstance(at, list) else at[key]
        at[last] = value
    return data


def heard(hosts: Sequence[str]) -> dict[str, HostAnswers | UnreachableHost]:
    """What a survey of these hosts would bring."""
    found: dict[str, HostAnswers | UnreachableHost] = {}
    for host in hosts:
        if host in UNREACHED:
            found[host] = explain(UNREACHED[host])
        else:
            said = planted(HEALTHY, FAULTS.get(host, {}))
            peers = met(host, hosts) if len(hosts) < len(FAULTS) else None
            found[host] = HostAnswers(Transport(**said["transport"]), said["answers"], peers)
    return found


def met(host: str, hosts: Sequence[str]) -> dict[str, Any]:
    """What a host says of the others in the second round; the last of several is not as the others."""
    odd = host == hosts[-1] and len(hosts) > 3
    others = [each for each in hosts if each != host and each not in UNREACHED]
    places = HEALTHY["peers"]["shared"]["sees"]
    return {
        "firewall": {"reached": dict.fromkeys(others, "timed out" if odd else None)},
        "names": {
            "views": {each: [f"10.0.{int(odd)}.{number}"] for number, each in enumerate(hosts)},
            "slow": odd,
        },
        "shared": {"sees": {place: [host, 1] if odd else [hosts[0], len(hosts)] for place in places}},
    }


def checked(case: str) -> str:
    """What is printed, and of --json what did not pass on each host."""
    hosts, words = CASES[case]
    told = []
    for more in ((), ("--json",)):
        with mock.patch.object(inspecting, "survey", lambda *_, **__: heard(hosts)):
            told.append(muster("check", ",".join(hosts), "--no-group", *words, *more))
    found = json.loads(told[1].out)
    rows = [
        f"{host['host']}: {host['verdict']}; "
        + ", ".join(
            f"{each['check']} {each['level']}" for each in host["checks"] if each["level"] not in WELL
        )
        for host in found.pop("hosts")
    ]
    found["troubles"] = len(found["troubles"])
    rest = {key: value for key, value in found.items() if key not in ("started", "ended", "seconds")}
    printed = re.sub(r" \([\d.]+ m?s\)$", " ({seconds})", str(told[0]), flags=re.MULTILINE)
    return "\n".join([printed, *rows, json.dumps(rest), ""])


def listed(case: str) -> str:
    """Every check with its questions and expectations; with a profile what is expected then."""
    told = muster("check", "--list", "--json", *LISTS[case])
    if case == "none":
        return str(told)
    return "".join(
        f"{each['name']}: {'skipped' if each['skipped'] else json.dumps(each['expects'])}\n"
        for each in json.loads(told.out)
    )


DOCUMENTS = [Documents("checks", tuple(LISTS), listed), Documents("checked", tuple(CASES), checked)]


@pytest.mark.parametrize("profile", LISTS)
def test_the_list_of_checks(profile: str) -> None:
    DOCUMENTS[0].check(profile)


@pytest.mark.parametrize("case", CASES)
def test_hosts_that_are_checked(case: str) -> None:
    DOCUMENTS[1].check(case)
