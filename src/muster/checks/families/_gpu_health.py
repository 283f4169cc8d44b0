"""Judging whether GPUs are well: memory errors, Xid events, throttling, clocks, links, heat. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families._gpu_told import RESET, Judge, those, untold
from muster.checks.families._judging import About, majority
from muster.core.units import format_seconds

# Cards that a bridge links in pairs, or not at all; the others are linked by their board.
_BRIDGED = re.compile(r"GeForce|RTX|Quadro|TITAN|PCIe|NVL\b|\bA[34]0\b", re.IGNORECASE)

# Events that mean broken hardware (NVIDIA's catalogue of Xid errors; the health gates of A100 clusters), with
# uncontained memory errors (95, 140) and a GPU system processor that does not answer (119, 120).
FATAL = [48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120, 140]

CHECKS = (
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


def judges(answers: Answers, context: Context) -> dict[str, Judge]:
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
