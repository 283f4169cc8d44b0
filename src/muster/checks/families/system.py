"""Whether the hosts are machines of one kind: operating system, kernel, processor, NUMA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Check
from muster.checks.kinds import Case, Differ, same_check


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernel tells about itself and the machine."""
    import os

    about = os.uname()
    answer: dict[str, Any] = {"kernel": about.release, "machine": about.machine, "os": about.sysname}
    words = {}
    for line in (text("/etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        words[key] = value.strip('"')
    if words.get("ID"):
        answer["os"] = (words["ID"] + " " + words.get("VERSION_ID", "")).strip()
    model = None
    for line in (text("/proc/cpuinfo", 8192) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "cpu", "Model"):
            model = " ".join(value.split())
            break
    answer["cpu"] = "%s x %s" % (os.cpu_count(), model or about.machine)
    nodes = text("/sys/devices/system/node/has_memory")
    if nodes is not None:
        spans = [part.partition("-") for part in nodes.split(",") if part]
        answer["numa"] = sum(int(last or first) - int(first) + 1 for first, _, last in spans)
    answer["smt"] = text("/sys/devices/system/cpu/smt/active")
    return answer


def _same(
    key: str, name: str, asks: str, why: str, problem: str, remedy: str, show: Callable[[Any], str] = str
) -> Check:
    """What the answer has by this key is the same on every host that tells it."""

    @same_check(name, f"{asks}, the same on every host.", why, Differ(problem, remedy=remedy, show=show))
    def check(case: Case) -> Any:
        value = case.answer.get(key)
        return case.not_applicable("the kernel does not report this") if value is None else value

    return check


def _on_or_off(value: Any) -> str:
    return "on" if str(value) == "1" else "off"


_SLOWEST = "The slowest host sets the speed of the job; one that is set up differently is often the slowest."

CHECKS = (
    _same(
        "os",
        "system.os",
        "The operating system's name and version",
        "Libraries, limits and defaults differ between systems.",
        "the operating system differs from most hosts",
        "install the same system on all hosts",
    ),
    _same(
        "kernel",
        "system.kernel",
        "The kernel's release",
        _SLOWEST,
        "the kernel differs from most hosts",
        "install the same updates everywhere, then reboot",
    ),
    _same(
        "cpu",
        "system.cpu",
        "The processor's model and the number of cores",
        _SLOWEST,
        "the processor differs from most hosts",
        "train on hosts of one kind",
    ),
    _same(
        "numa",
        "system.numa",
        "The number of NUMA nodes with memory",
        _SLOWEST,
        "the number of NUMA nodes differs from most hosts",
        "use the same BIOS settings (NPS, SNC)",
    ),
    _same(
        "smt",
        "system.hyperthreading",
        "Simultaneous multithreading, on or off",
        "Thread counts that suit one host are wrong for another.",
        "hyperthreading is not set as on most hosts",
        "echo on | sudo tee /sys/devices/system/cpu/smt/control",
        _on_or_off,
    ),
)
