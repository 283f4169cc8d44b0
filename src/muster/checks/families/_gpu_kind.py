"""Judging what the GPUs of hosts are: how many, of which kind, what they can do, who uses them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._gpu_told import Judge, untold
from muster.checks.families._judging import About, Differ, differing, majority
from muster.core.hardware.devices import driver_device
from muster.core.units import counted, format_bytes

# The lowest compute capability of an architecture, for drivers that do not tell it (CUDA programming guide).
_ARCHITECTURES = {
    "Kepler": (3, 5),
    "Maxwell": (5, 0),
    "Pascal": (6, 0),
    "Volta": (7, 0),
    "Turing": (7, 5),
    "Ampere": (8, 0),
    "Ada Lovelace": (8, 9),
    "Hopper": (9, 0),
    "Blackwell": (10, 0),
}
_NEEDS = {"fp16": (7, 0), "bf16": (8, 0)}  # as the planner has it: native bf16, and fp16 that is of use

CHECKS = (
    Check(
        "gpu.count",
        "Number of GPUs, against the slots, the PCI bus, the profile (count; 0: not asked) and, "
        "where no slots are given, the other hosts.",
        "A rank without a GPU fails at its first tensor; two ranks on one GPU run out of memory.",
        {"count": 0},
    ),
    Check(
        "gpu.model",
        "The GPU model is the same within a host and on all hosts. contains: a part of its name.",
        "The slowest GPU sets the speed of all, and the smallest one the batch size.",
        {"contains": ""},
    ),
    Check(
        "gpu.memory",
        "Memory of the smallest GPU in bytes: at_least, and within 2 % of most hosts'.",
        "The smallest GPU sets the batch size of all.",
        {"at_least": 0, "tolerance": 0.02},
    ),
    Check(
        "gpu.precision",
        "Compute capability against the recipe's precision: 8.0 for bf16, 7.0 for fp16.",
        "Below it the precision is emulated or refused.",
        {"at_least": 0},
    ),
    Check(
        "gpu.processes",
        "Processes that already use the GPUs, or more than at_most bytes in use on a GPU.",
        "The job runs out of memory or shares the GPU's time.",
        {"at_most": 2 << 30},
    ),
    Check(
        "gpu.mig",
        "Multi-instance mode (MIG), which should be off.",
        "A process sees one instance only, and collectives between instances are not supported.",
        {"enabled": False},
    ),
    Check(
        "gpu.persistence",
        "Persistence mode: the driver stays loaded while no program uses the GPU.",
        "Without it every start takes seconds longer, and settings such as clocks are lost between jobs.",
        {"enabled": True},
    ),
)


def expected(answers: Answers, context: Context) -> bool:
    """Whether hosts ought to have GPUs: as asked, else where any of them has one, be it on the PCI bus
    alone."""
    if context.gpus_expected is not None:
        return context.gpus_expected
    if (context.recipe.get("launch") or {}).get("device") == "cpu":
        return False
    return any(
        answer.get("gpus") or answer.get("pci") or (answer.get("smi") and answer.get("trouble"))
        for answer in answers.values()
    )


def judges(answers: Answers, context: Context) -> dict[str, Judge]:
    """Check -> what judges a host that has GPUs. The comparison between hosts is made once, here."""
    able = {host: answer for host, answer in answers.items() if answer.get("gpus")}
    counts = {host: len(answer["gpus"]) for host, answer in able.items()}
    models = {host: _models(answer) for host, answer in able.items() if _named(answer)}
    memory = {
        host: min(sizes)
        for host, answer in able.items()
        if (sizes := [gpu["memory"] for gpu in answer["gpus"] if gpu.get("memory")])
    }
    usual = majority(counts.values())
    compared = {
        "gpu.model": differing(
            "gpu.model", models, Differ("not the GPU model of most hosts", Level.WARN, _ALIKE)
        ),
        "gpu.memory": differing(
            "gpu.memory",
            memory,
            Differ(
                "not the amount of GPU memory of most hosts",
                Level.WARN,
                _ALIKE,
                float(context.expect("gpu.memory", "tolerance")),
                format_bytes,
            ),
        ),
    }
    others = {(check, each.host): each for check, found in compared.items() for each in found}
    return {
        "gpu.count": lambda at, a: _count(at, a, context, usual),
        "gpu.model": lambda at, a: _model(at, a, context, others.get((at.check, at.host))),
        "gpu.memory": lambda at, a: _memory(
            at, a, context, memory.get(at.host), others.get((at.check, at.host))
        ),
        "gpu.precision": lambda at, a: _precision(at, a, context),
        "gpu.processes": lambda at, a: _processes(at, a, context),
        "gpu.mig": lambda at, a: _mig(at, a, context),
        "gpu.persistence": lambda at, a: _persistence(at, a, context),
    }


_ALIKE = (
    "train on hosts of one kind, or let the plan choose for the smallest: batch.micro=auto precision=auto"
)


def _models(answer: Mapping[str, Any]) -> str:
    return " + ".join(sorted({str(gpu.get("name")) for gpu in answer["gpus"]}))


def _named(answer: Mapping[str, Any]) -> bool:
    return all(gpu.get("name") for gpu in answer["gpus"])


def _count(about: About, answer: Mapping[str, Any], context: Context, usual: int | None) -> Finding:
    have, pci, mask = len(answer["gpus"]), answer.get("pci") or 0, answer.get("mask")
    usable = have if mask is None else min(have, int(mask))
    slots = context.slots.get(about.host)
    wanted = int(context.expect(about.check, "count"))
    seen = counted(have, "GPU") + (f", {mask} of them in CUDA_VISIBLE_DEVICES" if mask is not None else "")
    if not have:
        return about.fail("no GPUs found", f"{pci} on the PCI bus", "nvidia-smi; lspci | grep NVIDIA")
    if pci > have and answer.get("bare"):
        return about.fail(
            "the driver does not see a GPU that is on the PCI bus",
            f"{seen}, {pci} on the bus",
            "sudo dmesg | grep -i -e xid -e 'fallen off'; sudo reboot",
        )
    if wanted and have != wanted:
        return about.fail(
            "the number of GPUs is not the expected one", f"{seen}, {wanted} expected", "nvidia-smi -L"
        )
    if slots and slots > usable:
        return about.fail(
            "fewer GPUs than slots", f"{seen}, {counted(slots, 'slot')}", f"slots={usable}, or nvidia-smi -L"
        )
    if usual is not None and have < usual and not wanted and not slots:
        return about.fail(
            "fewer GPUs than most hosts",
            f"{seen}, {usual} on most hosts",
            "nvidia-smi -L; sudo dmesg | grep NVRM",
        )
    return about.passed(seen)


def _model(about: About, answer: Mapping[str, Any], context: Context, compared: Finding | None) -> Finding:
    part = str(context.expect(about.check, "contains"))
    names = {str(gpu["name"]) for gpu in answer["gpus"] if gpu.get("name")}
    if part and not all(part.lower() in name.lower() for name in names):
        return about.fail(
            "the GPUs are not the expected model",
            f"{', '.join(sorted(names))}; {part} expected",
            "another profile",
        )
    if len(names) > 1:
        return about.warn("the host has several GPU models", ", ".join(sorted(names)), _ALIKE)
    return compared or untold(about, answer, "name") or about.unknown("the GPUs do not report their model")


def _memory(
    about: About, answer: Mapping[str, Any], context: Context, least: int | None, compared: Finding | None
) -> Finding:
    if least is None or compared is None:
        return about.unknown("the GPUs do not report their memory")
    wanted = float(context.expect(about.check, "at_least"))
    if least < wanted:
        return about.fail(
            "GPU memory is less than expected", f"{format_bytes(least)}, {format_bytes(wanted)} expected"
        )
    if compared.level != Level.PASS:
        return compared
    return untold(about, answer, "memory") or compared


def capability(gpu: Mapping[str, Any]) -> tuple[int, int] | None:
    """A GPU's compute capability: as told, else by its name, else the lowest of its architecture."""
    told = gpu.get("capability")
    if told:
        return int(told[0]), int(told[1])
    known = driver_device(str(gpu.get("name") or ""))
    if known is not None and known.capability is not None:
        return known.capability
    return _ARCHITECTURES.get(str(gpu.get("family")))


def _precision(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    known = [found for gpu in answer["gpus"] if (found := capability(gpu)) is not None]
    if len(known) < len(answer["gpus"]):
        return about.unknown("the GPUs do not report their compute capability")
    lowest = min(known)
    words = f"compute capability {lowest[0]}.{lowest[1]}"
    precision = str(context.recipe.get("precision") or "auto")
    need = _NEEDS.get(precision)
    if need and lowest < need:
        return about.fail(
            f"the GPUs cannot do the recipe's {precision}",
            f"{words}, {need[0]}.{need[1]} needed",
            "precision=auto",
        )
    least = float(context.expect(about.check, "at_least"))
    if lowest[0] + lowest[1] / 10 < least:
        return about.fail("compute capability is lower than expected", f"{words}, {least:g} expected")
    able = [name for name, bound in _NEEDS.items() if lowest >= bound]
    return about.passed(f"{words}: fp32{''.join(', ' + name for name in able)}")


def _processes(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    pids = sorted({pid for gpu in answer["gpus"] for pid in gpu.get("processes") or []})
    most = float(context.expect(about.check, "at_most"))
    full = [gpu for gpu in answer["gpus"] if (gpu.get("used") or 0) > most]
    if pids:
        shown = ", ".join(map(str, pids[:12])) + (" ..." if len(pids) > 12 else "")
        return about.warn("other processes are using the GPUs", f"pid {shown}", "nvidia-smi; ps -fp PID")
    if full:
        evidence = ", ".join(f"{gpu['bus']}: {format_bytes(gpu['used'])}" for gpu in full)
        return about.warn(
            "GPU memory is in use by processes that are not visible here",
            evidence,
            "nvidia-smi, outside the container",
        )
    return untold(about, answer, "used") or about.passed("none")


def _mig(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    modes = {str(gpu["mig"]).lower() == "enabled" for gpu in answer["gpus"] if gpu.get("mig")}
    if not modes:
        return untold(about, answer, "mig") or about.not_applicable(
            "the GPUs have no multi-instance mode (MIG)"
        )
    wanted = bool(context.expect(about.check, "enabled"))
    words = "on" if modes == {True} else "off" if modes == {False} else "on for some GPUs"
    if modes == {wanted}:
        return untold(about, answer, "mig") or about.passed(words)
    return about.warn(
        "multi-instance mode (MIG) is not as expected",
        words,
        f"sudo nvidia-smi -mig {int(wanted)}  # when no job runs",
    )


def _persistence(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    modes = [str(gpu["persistence"]).lower() for gpu in answer["gpus"] if gpu.get("persistence")]
    if not modes:
        return about.unknown("the GPUs do not report this")
    off = modes.count("disabled")
    if not off or not context.expect(about.check, "enabled"):
        return untold(about, answer, "persistence") or about.passed("on" if not off else "off")
    return about.warn(
        "persistence mode is off", f"off on {off} of {len(modes)} GPUs", "sudo nvidia-smi -pm 1"
    )
