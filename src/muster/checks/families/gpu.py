"""The NVIDIA GPUs of a host: what they are, and whether they are well. One look serves all questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from muster.agent.probe import run, text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import About, Differ, differing, each, majority
from muster.core.hardware.devices import driver_device
from muster.core.units import counted, format_bytes, format_seconds

# ----------------------------------------------------------------------------------------------------
# What the judges of GPUs share: texts about a GPU, and the finding where it reports no figure. Pure.

Judge = Callable[[About, Mapping[str, Any]], Finding]

RESET = "sudo nvidia-smi --gpu-reset -i GPU when no job runs, or sudo reboot; leave the host out until then"


def those(answer: Mapping[str, Any], words: Callable[[Mapping[str, Any]], str | None]) -> str:
    """What `words` says about GPUs, each with its place on the bus."""
    said = ((gpu["bus"], words(gpu)) for gpu in answer["gpus"])
    return ", ".join(f"{bus}: {text}" for bus, text in said if text)


def untold(about: About, answer: Mapping[str, Any], *keys: str) -> Finding | None:
    """Unknown where a GPU does not respond, or does not report what others of its model on the host do; else
    None. What no GPU of a model tells is what the model does not have."""
    told = {(gpu.get("name"), key) for gpu in answer["gpus"] for key in keys if gpu.get(key) is not None}

    def silent(gpu: Mapping[str, Any]) -> str | None:
        missing = [key for key in keys if gpu.get(key) is None]
        if missing and gpu.get("broken"):
            return str(gpu["broken"])
        return "not reported" if any((gpu.get("name"), key) in told for key in missing) else None

    found = those(answer, silent)
    return about.unknown("some GPUs do not report this", found, "nvidia-smi -q -i GPU") if found else None


# ----------------------------------------------------------------------------------------------------
# Judging what the GPUs of hosts are: how many, of which kind, what they can do, who uses them. Pure.

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

KIND = (
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


def judges_of_kind(answers: Answers, context: Context) -> dict[str, Judge]:
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


# ----------------------------------------------------------------------------------------------------
# Judging whether GPUs are well: memory errors, Xid events, throttling, clocks, links, heat. Pure.

# Cards that a bridge links in pairs, or not at all; the others are linked by their board.
_BRIDGED = re.compile(r"GeForce|RTX|Quadro|TITAN|PCIe|NVL\b|\bA[34]0\b", re.IGNORECASE)

# Events that mean broken hardware (NVIDIA's catalogue of Xid errors; the health gates of A100 clusters), with
# uncontained memory errors (95, 140) and a GPU system processor that does not answer (119, 120).
FATAL = [48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120, 140]

HEALTH = (
    Check(
        "gpu.ecc",
        "Uncorrected memory errors (ECC) since the driver was loaded. mode: any, enabled or disabled.",
        "The next one ends a rank, and so the job, with 'uncorrectable ECC error encountered'.",
        {"at_most": 0, "mode": "any"},
    ),
    Check(
        "gpu.memory_repair",
        "No retired page or remapped row is waiting for a reset, and no remapping failed.",
        "Broken memory stays in use until the GPU is reset; after a failed remapping it stays in use for "
        "good.",
    ),
    Check(
        "gpu.xid",
        "Xid errors of broken hardware since boot, in the kernel's log and journal. fatal: their numbers.",
        "A GPU that had such an error fails again under load.",
        {"fatal": FATAL},
    ),
    Check(
        "gpu.throttling",
        "Whether the clocks are lowered now, and why: heat, a power brake, a hardware slowdown.",
        "One throttled GPU slows every step of every rank.",
    ),
    Check(
        "gpu.clocks",
        "Applications get the default clock; the highest clock and the power limit are those of "
        "the same GPUs elsewhere.",
        "A forgotten clock or power cap slows every step of every rank.",
    ),
    Check(
        "gpu.pcie",
        "PCIe lanes in use against the most that GPU and slot can do. width, gen: at least (0: not asked).",
        "A badly seated GPU runs at x8 or x4: copies and all-reduce take several times as long.",
        {"width": 0, "gen": 0},
    ),
    Check(
        "gpu.temperature",
        "Temperature in degrees Celsius, and its distance to the slowdown temperature (margin).",
        "A GPU that is hot before the job starts slows down during it.",
        {"at_most": 85, "margin": 5},
    ),
    Check(
        "gpu.nvlink",
        "Active NVLinks of every GPU: as many as those of the same model here and on most hosts; links: at "
        "least so many. Where bridges link cards, a difference only warns.",
        "NCCL falls back to PCIe on that host, or does not start.",
        {"links": 0},
    ),
)


def judges_of_health(answers: Answers, context: Context) -> dict[str, Judge]:
    """Check -> what judges a host that has GPUs."""
    able = [answer for answer in answers.values() if answer.get("gpus")]
    gpus = [gpu for answer in able for gpu in answer["gpus"]]
    usual: dict[tuple[str, str], Any] = {}
    for name in {str(gpu.get("name")) for gpu in gpus}:
        for key in ("max_sm", "power_limit"):
            values = [gpu[key] for gpu in gpus if gpu.get("name") == name and gpu.get(key)]
            usual[name, key] = majority(values)
        linked = [gpu for gpu in gpus if gpu.get("name") == name and gpu.get("links") is not None]
        usual[name, "links"] = majority([_active(gpu) for gpu in linked])
    return {
        "gpu.ecc": lambda at, a: _ecc(at, a, context),
        "gpu.memory_repair": lambda at, a: _repair(at, a),
        "gpu.xid": lambda at, a: judge_xid(at, a, context),
        "gpu.throttling": lambda at, a: _throttling(at, a),
        "gpu.clocks": lambda at, a: _clocks(at, a, usual),
        "gpu.pcie": lambda at, a: _pcie(at, a, context),
        "gpu.temperature": lambda at, a: _temperature(at, a, context),
        "gpu.nvlink": lambda at, a: _nvlink(at, a, context, usual),
    }


def _ecc(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    most, mode = int(context.expect(about.check, "at_most")), str(context.expect(about.check, "mode"))
    bad = those(
        answer, lambda gpu: f"{gpu['uncorrected']} errors" if (gpu.get("uncorrected") or 0) > most else None
    )
    if bad:
        return about.fail("GPU memory had uncorrectable errors", bad, RESET)
    modes = {str(gpu["ecc"]).lower() for gpu in answer["gpus"] if gpu.get("ecc")}
    if mode != "any" and modes - {mode}:
        bit = int(mode == "enabled")
        return about.warn(
            "ECC is not as expected", ", ".join(sorted(modes)), f"sudo nvidia-smi -e {bit}; sudo reboot"
        )
    if len(modes) > 1:
        return about.warn(
            "ECC is on for some GPUs only", ", ".join(sorted(modes)), "sudo nvidia-smi -e 1; sudo reboot"
        )
    silent = untold(about, answer, "ecc", "uncorrected")
    if silent:
        return silent
    if not modes:
        return about.not_applicable("the GPUs have no ECC")
    return about.passed(modes.pop())


def _repair(about: About, answer: Mapping[str, Any]) -> Finding:
    failed = those(answer, lambda gpu: "remapping failed" if gpu.get("remap_failure") == "Yes" else None)
    if failed:
        return about.fail("a GPU's broken memory could not be replaced", failed, "have the GPU exchanged")
    waiting = those(
        answer, lambda gpu: "waits for a reset" if "Yes" in (gpu.get("pending"), gpu.get("reset")) else None
    )
    if waiting:
        return about.fail("a GPU needs a reset to replace broken memory", waiting, RESET)
    silent = untold(about, answer, "pending", "remap_failure")
    if silent:
        return silent
    if all(gpu.get("pending") is None and gpu.get("remap_failure") is None for gpu in answer["gpus"]):
        return about.not_applicable("these GPUs have no memory repair")
    return about.passed()


def _throttling(about: About, answer: Mapping[str, Any]) -> Finding:
    hard = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    remedy = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at fans, air and power supplies"

    def active(*names: str) -> str:
        return those(answer, lambda gpu: " ".join(one for one in gpu.get("reasons") or () if one in names))

    failing, warm = active(*hard), active("sw_thermal_slowdown")
    if failing:
        return about.fail("GPU clocks are lowered by the hardware", failing, remedy)
    if warm:
        return about.warn("GPU clocks are lowered because of heat", warm, remedy)
    if all(gpu.get("reasons") is None for gpu in answer["gpus"]):
        return about.unknown("the GPUs do not report why their clocks are lowered")
    return untold(about, answer, "reasons") or about.passed()


def _clocks(about: About, answer: Mapping[str, Any], usual: Mapping[tuple[str, str], Any]) -> Finding:
    capped = those(
        answer,
        lambda gpu: (
            f"{gpu['set_sm']:g} of {gpu['default_sm']:g} MHz"
            if (gpu.get("set_sm") or 0) < (gpu.get("default_sm") or 0) and gpu.get("set_sm")
            else None
        ),
    )
    if capped:
        return about.warn(
            "GPU clocks are set below the default", capped, "sudo nvidia-smi -rac; sudo nvidia-smi -rgc"
        )
    for key, unit, remedy in (
        ("max_sm", "MHz", "sudo nvidia-smi -rgc"),
        ("power_limit", "W", "sudo nvidia-smi -pl WATTS"),
    ):
        low = those(answer, lambda gpu, key=key, unit=unit: _below(gpu, key, unit, usual))  # type: ignore[misc]
        if low:
            words = "highest clock" if key == "max_sm" else "power limit"
            return about.warn(f"a GPU's {words} is lower than its peers'", low, remedy)
    if not any(gpu.get("max_sm") for gpu in answer["gpus"]):
        return about.unknown("the GPUs do not report their clocks")
    return untold(about, answer, "max_sm") or about.passed(
        f"up to {max(gpu.get('max_sm') or 0 for gpu in answer['gpus']):g} MHz"
    )


def _below(gpu: Mapping[str, Any], key: str, unit: str, usual: Mapping[tuple[str, str], Any]) -> str | None:
    most = usual.get((str(gpu.get("name")), key))
    value = gpu.get(key)
    return f"{value:g} {unit}, most have {most:g}" if most and value and value < most else None


def _pcie(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    width, gen = (float(context.expect(about.check, key)) for key in ("width", "gen"))
    remedy = "reseat the GPU or its riser; sudo lspci -vv -s BUS | grep LnkSta"
    narrow = those(
        answer,
        lambda gpu: (
            f"x{gpu['width']:g}, x{width:g} expected" if gpu.get("width") and gpu["width"] < width else None
        ),
    )
    slow = those(
        answer,
        lambda gpu: f"gen {gpu['gen']:g}, {gen:g} expected" if gpu.get("gen") and gpu["gen"] < gen else None,
    )
    if narrow or slow:
        return about.fail("PCIe is narrower or slower than expected", narrow or slow, remedy)
    half = those(
        answer,
        lambda gpu: (
            f"x{gpu['width']:g} of x{gpu['max_width']:g}"
            if gpu.get("width") and gpu.get("max_width") and gpu["width"] < gpu["max_width"] and not width
            else None
        ),
    )
    if half:
        return about.warn("a GPU uses only some of its PCIe lanes", half, remedy)
    silent = untold(about, answer, "gen", "width")
    if silent:
        return silent
    known = [
        f"gen {gpu['gen']:g} x{gpu['width']:g}"
        for gpu in answer["gpus"]
        if gpu.get("gen") and gpu.get("width")
    ]
    return (
        about.passed(", ".join(sorted(set(known)))) if known else about.unknown("the GPUs do not report this")
    )


def _temperature(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    most, margin = (float(context.expect(about.check, key)) for key in ("at_most", "margin"))
    known = [gpu["celsius"] for gpu in answer["gpus"] if gpu.get("celsius") is not None]
    if not known:
        return about.unknown("the GPUs do not report their temperature")

    def hot(gpu: Mapping[str, Any]) -> str | None:
        value, slow, left = gpu.get("celsius"), gpu.get("slow_at"), gpu.get("left")
        near = (slow is not None and value is not None and value > slow - margin) or (
            left is not None and left < margin
        )
        return f"{value:g} C" if value is not None and (near or value > most) else None

    bad = those(answer, hot)
    if bad:
        return about.warn("a GPU is hot", bad, "nvidia-smi -q -d TEMPERATURE; look at fans and air")
    return untold(about, answer, "celsius") or about.passed(f"up to {max(known):g} C")


def _lost(gpu: Mapping[str, Any]) -> str | None:
    """Why nothing is known of a GPU's links; None: it has those that are told, be it none."""
    return gpu.get("broken") if not gpu.get("links") else None


def _active(gpu: Mapping[str, Any]) -> int:
    return len([speed for speed in gpu["links"] if speed > 0])


def _nvlink(
    about: About, answer: Mapping[str, Any], context: Context, usual: Mapping[tuple[str, str], Any]
) -> Finding:
    wanted = int(context.expect(about.check, "links"))
    stuck = those(
        answer, lambda gpu: "in progress" if str(gpu.get("fabric")).lower() == "in progress" else None
    )
    if stuck and len(answer["gpus"]) > 1:
        return about.fail("the NVLink fabric is not up", stuck, "sudo systemctl restart nvidia-fabricmanager")
    most: dict[str, int] = {}
    for gpu in answer["gpus"]:
        name = str(gpu.get("name"))
        here = _active(gpu) if gpu.get("links") else 0
        most[name] = max(most.get(name, 0), wanted, usual.get((name, "links")) or 0, here)
    silent = those(answer, _lost) and untold(about, answer, "links")
    if not any(most.values()):
        return silent or about.not_applicable("no NVLink")

    def low(gpu: Mapping[str, Any], bound: int) -> str | None:
        if _lost(gpu):
            return None
        active = _active(gpu) if gpu.get("links") else 0
        return f"{active} active, {bound} expected" if active < bound else None

    def ought(gpu: Mapping[str, Any]) -> int:
        name = str(gpu.get("name"))
        return wanted if _BRIDGED.search(name) else most[name]

    remedy = "nvidia-smi nvlink --status; sudo systemctl restart nvidia-fabricmanager; sudo reboot"
    bad = those(answer, lambda gpu: low(gpu, ought(gpu)))
    if bad:
        return about.fail("a GPU has too few active NVLinks", bad, remedy)
    odd = those(answer, lambda gpu: low(gpu, most[str(gpu.get("name"))]))
    if odd:
        return about.warn(
            "not all GPUs have NVLink bridges", odd, "nvidia-smi topo -m; nvidia-smi nvlink --status"
        )
    return silent or about.passed(f"{max(most.values())} links each")


# ----------------------------------------------------------------------------------------------------
# Judging the Xid events that the kernel has logged since boot. Pure.

# Seconds since boot within which no driver has been loaded: a log that begins so early has every event.
_EARLY = 5.0


def judge_xid(about: About, answer: Mapping[str, Any], context: Context) -> Finding:
    """Fails for an event of broken hardware; passes only where the log reaches back to the boot."""
    events = answer.get("xids")
    if events is None:
        return about.unknown(
            "no permission to read the kernel's log",
            remedy="sudo sysctl kernel.dmesg_restrict=0, or sudo usermod -aG systemd-journal $USER",
        )
    fatal = {int(number) for number in context.expect(about.check, "fatal")}
    bad = [event for event in events if event["xid"] in fatal]
    if bad:
        return about.fail(
            "the kernel has reported a GPU hardware fault (Xid)",
            "; ".join(_words(event) for event in bad[:4]),
            f"{RESET}; the kernel's log keeps the event until a reboot",
        )
    seen = f"{len(events)} other Xid errors" if events else "none"
    begins = answer.get("log_from", 0.0)
    if begins is None or begins > _EARLY:
        start = "the beginning is missing"
        if begins is not None:
            start = f"it begins {format_seconds(begins)} after the boot"
        return about.unknown(
            "the kernel's log since boot is not complete",
            f"{seen}, but {start}",
            "sudo usermod -aG systemd-journal $USER; without a journal, log_buf_len=16M for the kernel",
        )
    return about.passed(seen)


def _words(event: Mapping[str, Any]) -> str:
    words = f"Xid {event['xid']} at {event['bus']} ({event['count']}x): {event['text']}"
    if event.get("last") is None:
        return words
    ago = f", {format_seconds(event['ago'])} ago" if event.get("ago") is not None else ""
    return f"{words} (last {format_seconds(event['last'])} after the boot{ago})"


# Without persistence mode nvidia-smi starts the driver anew: 1 to 3 s for each GPU.
SECONDS = 50.0

CHECKS = (
    Check(
        "gpu.driver",
        "nvidia-smi answers in time and without an error, and so does every GPU.",
        "A driver that hangs or has lost a GPU hangs the host's ranks, and all other ranks wait.",
    ),
    *KIND,
    *HEALTH,
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """One nvidia-smi -q -x, with nvlink --status and the compute capabilities beside it, each ended when it
    takes too long; Xid events of the kernel's log. Figures: bytes, MHz, W, Celsius; None: not told."""
    import os
    import re

    root = "/sys/bus/pci/devices"
    answer: dict[str, Any] = {"gpus": [], "pci": 0, "trouble": None, "xids": None, "driver": None}
    for name in os.listdir(root) if os.path.isdir(root) else []:
        if text("%s/%s/vendor" % (root, name)) == "0x10de":
            answer["pci"] += (text("%s/%s/class" % (root, name)) or "")[:6] in ("0x0300", "0x0302")
    shut = (
        "docker",
        "kubepods",
        "slurm",
        "lxc",
        "podman",
        "containerd",
    )  # who may show fewer GPUs than there are
    groups = text("/proc/self/cgroup") or ""
    answer["bare"] = not (os.path.exists("/.dockerenv") or any(word in groups for word in shut))
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/lib/wsl/lib"]
    tools = [folder + "/nvidia-smi" for folder in folders if folder]
    smi = next((tool for tool in tools if os.path.isfile(tool) and os.access(tool, os.X_OK)), None)
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")

    def visible(count: int) -> int | None:
        """Entries of the mask: CUDA ends its list at the first one that names no GPU, such as -1."""
        found = 0
        for entry in mask.split(",") if mask is not None else []:
            name = entry.strip()
            if int(name) >= count if name.isdigit() else name and not name.startswith(("GPU-", "MIG-")):
                break
            found += bool(name)
        return None if mask is None else found

    answer["mask"] = visible(1 << 30)
    answer["smi"] = bool(smi)
    if not smi:
        return answer
    import threading
    import xml.etree.ElementTree as tree

    limit = 0.8 * float(ask.get("timeout") or 12.0)
    said: dict[str, Any] = {}

    def call(key: str, *words: str) -> None:
        said[key] = run([smi or "", *words], limit)

    def kernel() -> None:
        """The kernel's log: its own buffer, which wraps and can be cleared, and the journal, which may be
        missing or shut. Of an event that both have, the one of them counts that has seen more."""
        import ctypes
        import time

        size = 1 << 22
        held = ctypes.create_string_buffer(size)
        try:
            count = ctypes.CDLL(None).klogctl(3, held, size)  # SYSLOG_ACTION_READ_ALL
        except (OSError, AttributeError):
            count = -1
        logs = [held.raw[:count].decode("utf-8", "replace")] if count >= 0 else []
        journal = "journalctl -k -b -q -o short-monotonic --no-pager -n 100000 2>/dev/null"
        pick = "sed -n -e 1p -e 1d -e '/NVRM: Xid/p'"  # where the log begins, and what is asked for
        kept = run(["sh", "-c", journal + " | " + pick], min(limit, 10.0))[1]
        logs += [kept] if kept.strip() else []
        events: dict[str, Any] = {}
        begins = []
        for log in logs:
            first = log.partition("\n")[0]
            stamp = re.search(r"\[ *(\d+\.\d+)\]", first)
            if "Linux version" in first or stamp:
                begins.append(float(stamp.group(1)) if stamp and "Linux version" not in first else 0.0)
            here: dict[str, Any] = {}
            for at, bus, number, words in re.findall(
                r"^(?:<\d+>)?(?:\[ *(\d+\.\d+)\])?.*NVRM: Xid \(PCI:([^)]*)\): (\d+),? *(.*)", log, re.M
            ):
                event = here.setdefault(bus + " " + number, {"bus": bus, "xid": int(number), "count": 0})
                last = float(at) if at else None
                ago = None if last is None else round(max(0.0, time.monotonic() - last), 1)
                event.update(count=event["count"] + 1, text=words[:120], last=last, ago=ago)
            for key, event in here.items():
                other = events.setdefault(key, event)
                if (event["last"] or 0.0) > (other["last"] or 0.0):
                    other.update(event, count=other["count"])
                other["count"] = max(other["count"], event["count"])
        if logs:
            said["xids"], said["log_from"] = list(events.values())[:50], min(begins, default=None)

    threads = [
        threading.Thread(target=kernel, daemon=True),
        threading.Thread(target=call, args=("xml", "-q", "-x"), daemon=True),
        threading.Thread(target=call, args=("nvlink", "nvlink", "--status"), daemon=True),
        threading.Thread(
            target=call, args=("ability", "--query-gpu=compute_cap", "--format=csv,noheader"), daemon=True
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit + 2.0)
    answer["xids"], answer["log_from"] = said.get("xids"), said.get("log_from")
    code, out, err = said.get("xml") or (None, "", "nvidia-smi did not end")
    try:
        log = tree.fromstring(out) if code == 0 else None
    except tree.ParseError as error:
        log, err = None, "nvidia-smi's XML cannot be read: %s" % error
    if log is None:
        answer["trouble"] = ((err.strip() or out.strip()).splitlines() or ["exit code %s" % code])[0][:200]
        answer["hangs"] = code is None
        return answer

    # What stands for a field that is not told, and for a GPU that does not answer.
    lost = ("gpu is lost", "gpu requires reset")
    errors = ("unknown error", "err!")
    vague = ("n/a", "not supported", "unknown", "requested functionality", "insufficient permissions")

    def word(gpu: Any, path: str) -> str | None:
        found = (gpu.findtext(path) or "").strip()
        plain = found.lower().lstrip("[")
        return None if not found or plain.startswith((*vague, *lost, *errors)) else found

    def broken(gpu: Any) -> str | None:
        """The word of a GPU that does not answer: that it is lost, in any field; an error, in one that every
        GPU tells (of others, drivers say so of healthy GPUs)."""
        basic = [gpu.find(path) for path in ("product_name", "fb_memory_usage/total", "temperature/gpu_temp")]
        for signs, parts in ((lost, gpu.iter()), (errors, basic)):
            for part in parts:
                found = ("" if part is None else part.text or "").strip().strip("[]")
                if found.lower().startswith(signs):
                    return str(found[:40])
        return None

    def figure(gpu: Any, *paths: str) -> float | None:
        for path in paths:
            found = re.match(r"-?\d+(?:\.\d+)?", word(gpu, path) or "")
            if found:
                return float(found.group())
        return None

    def total(gpu: Any, place: str) -> int | None:
        """Uncorrectable errors, whatever the driver's generation calls them."""
        found = [figure(gpu, place + "/double_bit/total")]
        for part in gpu.findall(place + "/*"):
            if "uncorrectable" in part.tag and not part.tag.endswith("threshold_exceeded"):
                found.append(figure(part, "."))
        known = [int(count) for count in found if count is not None]
        return sum(known) if known else None

    answer["driver"] = word(log, "driver_version")
    abilities = (said.get("ability") or (None, "", ""))[1].splitlines()
    answer["mask"] = visible(len(log.findall("gpu")))
    for index, gpu in enumerate(log.findall("gpu")):
        clocks = gpu.find("clocks_event_reasons")
        clocks = gpu.find("clocks_throttle_reasons") if clocks is None else clocks
        states = {part.tag: (part.text or "").strip() for part in (() if clocks is None else clocks)}
        reasons = [
            re.sub(r"^clocks_(?:event|throttle)_reasons?_", "", tag)
            for tag, state in states.items()
            if state == "Active"
        ]
        ability = abilities[index].strip() if index < len(abilities) else ""
        memory = figure(gpu, "fb_memory_usage/total")
        used = figure(gpu, "fb_memory_usage/used")
        slow = figure(gpu, "temperature/gpu_temp_slow_threshold")
        answer["gpus"].append(
            {
                "bus": gpu.get("id"),
                "broken": broken(gpu),
                "name": word(gpu, "product_name"),
                "family": word(gpu, "product_architecture"),
                "capability": [int(part) for part in ability.split(".")]
                if re.match(r"\d+\.\d+$", ability)
                else None,
                "memory": None if memory is None else int(memory) << 20,
                "used": None if used is None else int(used) << 20,
                "processes": [
                    int(figure(one, "pid") or 0)
                    for one in gpu.findall("processes/process_info")
                    if "C" in (word(one, "type") or "C")
                ],
                "mig": word(gpu, "mig_mode/current_mig"),
                "persistence": word(gpu, "persistence_mode"),
                "ecc": word(gpu, "ecc_mode/current_ecc"),
                "uncorrected": total(gpu, "ecc_errors/volatile"),
                "pending": word(gpu, "retired_pages/pending_retirement")
                or word(gpu, "retired_pages/pending_blacklist")
                or word(gpu, "remapped_rows/remapped_row_pending"),
                "remap_failure": word(gpu, "remapped_rows/remapped_row_failure"),
                "reset": word(gpu, "gpu_reset_status/reset_required"),
                "reasons": reasons if {"Active", "Not Active"} & set(states.values()) else None,
                "state": word(gpu, "performance_state"),
                "max_sm": figure(gpu, "max_clocks/sm_clock"),
                "set_sm": figure(gpu, "applications_clocks/graphics_clock"),
                "default_sm": figure(gpu, "default_applications_clocks/graphics_clock"),
                "gen": figure(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
                "width": figure(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
                "max_width": figure(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
                "celsius": figure(gpu, "temperature/gpu_temp"),
                "slow_at": slow,
                "left": figure(gpu, "temperature/gpu_temp_tlimit"),
                "power_limit": figure(
                    gpu,
                    "gpu_power_readings/current_power_limit",
                    "gpu_power_readings/power_limit",
                    "power_readings/power_limit",
                ),
                "default_power": figure(
                    gpu, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"
                ),
                "fabric": word(gpu, "fabric/state"),
                "links": None,
            }
        )
    for part in re.split(r"^GPU ", (said.get("nvlink") or (None, "", ""))[1], flags=re.M)[1:]:
        place = re.match(r"(\d+):", part)
        if place and int(place.group(1)) < len(answer["gpus"]):
            speeds = re.findall(r"Link \d+: *(?:(\d+(?:\.\d+)?) GB/s|<?inactive>?)", part)
            answer["gpus"][int(place.group(1))]["links"] = [float(speed or 0) for speed in speeds]
    return answer


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Not applicable where no GPU is expected; unknown where the driver does not answer."""
    findings = each("gpu.driver", answers, lambda at, a: _driver(at, a, answers, context))
    for check, one in {**judges_of_kind(answers, context), **judges_of_health(answers, context)}.items():
        for host, answer in answers.items():
            about = About(check, host)
            if not expected(answers, context):
                findings.append(about.not_applicable("no GPU is expected"))
            elif answer.get("trouble"):
                findings.append(about.unknown("the GPU driver does not respond"))
            elif not answer.get("gpus") and check != "gpu.count":
                findings.append(about.not_applicable("no GPUs found"))
            else:
                findings.append(one(about, answer))
    return findings


def _driver(about: About, answer: Mapping[str, Any], answers: Answers, context: Context) -> Finding:
    if not expected(answers, context):
        return about.not_applicable("no GPU is expected")
    if not answer.get("smi"):
        seen = f"{answer.get('pci') or 'no'} NVIDIA GPUs on the PCI bus"
        return about.fail(
            "there is no NVIDIA driver (nvidia-smi)",
            seen,
            "sudo apt-get install nvidia-driver-VERSION, docker run --gpus all, or --expect-gpus none",
        )
    if answer.get("hangs"):
        return about.fail(
            "nvidia-smi times out: the GPU driver hangs, or is loaded again for each call (no "
            "persistence mode)",
            str(answer["trouble"]),
            "sudo nvidia-smi -pm 1; if that hangs, too: sudo reboot, and leave the host out until then",
        )
    if answer.get("trouble"):
        return about.fail(
            "nvidia-smi fails",
            str(answer["trouble"]),
            "nvidia-smi; sudo dmesg | grep NVRM; sudo modprobe nvidia",
        )
    lost = those(answer, lambda gpu: gpu.get("broken"))
    if lost:
        return about.fail("a GPU does not respond to the driver", lost, RESET)
    return about.passed(f"driver {answer.get('driver')}")
