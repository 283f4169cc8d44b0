"""Whether the hosts are machines of one kind: operating system, kernel, processor, NUMA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import About, Differ, differing

_SLOWEST = "The slowest host sets the speed of the job; one that is set up differently is often the slowest."

CHECKS = (
    Check(
        "system.os",
        "The operating system's name and version, the same on every host.",
        "Libraries, limits and defaults differ between systems.",
    ),
    Check("system.kernel", "The kernel's release, the same on every host.", _SLOWEST),
    Check("system.cpu", "The processor's model and the number of cores, the same on every host.", _SLOWEST),
    Check("system.numa", "The number of NUMA nodes with memory, the same on every host.", _SLOWEST),
    Check(
        "system.hyperthreading",
        "Simultaneous multithreading, on or off, the same on every host.",
        "Thread counts that suit one host are wrong for another.",
    ),
)

_QUESTIONS = (
    (
        "system.os",
        "os",
        "the operating system differs from most hosts",
        "install the same system on all hosts",
    ),
    (
        "system.kernel",
        "kernel",
        "the kernel differs from most hosts",
        "install the same updates everywhere, then reboot",
    ),
    ("system.cpu", "cpu", "the processor differs from most hosts", "train on hosts of one kind"),
    (
        "system.numa",
        "numa",
        "the number of NUMA nodes differs from most hosts",
        "use the same BIOS settings (NPS, SNC)",
    ),
    (
        "system.hyperthreading",
        "smt",
        "hyperthreading is not set as on most hosts",
        "echo on | sudo tee /sys/devices/system/cpu/smt/control",
    ),
)


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


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Differences between hosts: warnings, with the majority."""
    findings = []
    for check, key, problem, remedy in _QUESTIONS:
        known = {host: answer[key] for host, answer in answers.items() if answer.get(key) is not None}
        differ = Differ(problem, Level.WARN, remedy, show=_smt if key == "smt" else str)
        findings += differing(check, known, differ)
        findings += [
            About(check, host).not_applicable("the kernel does not report this")
            for host in answers
            if host not in known
        ]
    return findings


def _smt(value: Any) -> str:
    return "on" if str(value) == "1" else "off"
