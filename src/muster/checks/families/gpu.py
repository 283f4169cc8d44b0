"""The NVIDIA GPUs of a host: their models, and their health. One query serves all questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from muster.agent.probe import run, text
from muster.checks.base import Answers, Context, Finding
from muster.checks.kinds import (
    Case,
    Differ,
    Judge,
    group_check,
    host_check,
    judge_each,
    majority,
    same_check,
)
from muster.core.hardware.devices import LEAST, capability_for, driver_device
from muster.core.units import counted, format_bytes, format_seconds

# Without persistence mode nvidia-smi starts the driver anew: 1 to 3 s for each GPU.
SECONDS = 50.0


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return one nvidia-smi -q -x, with nvlink --status and the compute capabilities, each ended when it
    takes too long; Xid events of the kernel's log. Figures: bytes, MHz, W, Celsius; None: not reported."""
    import os
    import re

    root = "/sys/bus/pci/devices"
    answer: dict[str, Any] = {"gpus": [], "pci": 0, "trouble": None, "xids": None, "driver": None}
    for name in os.listdir(root) if os.path.isdir(root) else []:
        if text("%s/%s/vendor" % (root, name)) == "0x10de":
            answer["pci"] += (text("%s/%s/class" % (root, name)) or "")[:6] in ("0x0300", "0x0302")
    # Those that may show fewer GPUs than there are.
    shut = ("docker", "kubepods", "slurm", "lxc", "podman", "containerd")
    groups = text("/proc/self/cgroup") or ""
    answer["bare"] = not (os.path.exists("/.dockerenv") or any(word in groups for word in shut))
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/lib/wsl/lib"]
    tools = [folder + "/nvidia-smi" for folder in folders if folder]
    smi = next((tool for tool in tools if os.path.isfile(tool) and os.access(tool, os.X_OK)), None)
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")

    def visible(count: int) -> int | None:
        """Return the entries of the mask: CUDA ends its list at the first one that names no GPU, such as -1.
        """
        number = 0
        for entry in mask.split(",") if mask is not None else []:
            name = entry.strip()
            if int(name) >= count if name.isdigit() else name and not name.startswith(("GPU-", "MIG-")):
                break
            number += bool(name)
        return None if mask is None else number

    answer["mask"] = visible(1 << 30)
    answer["smi"] = bool(smi)
    if not smi:
        return answer
    import threading
    import xml.etree.ElementTree as tree

    limit = 0.8 * float(ask.get("timeout") or 12.0)
    answers: dict[str, Any] = {}

    def call(key: str, *words: str) -> None:
        answers[key] = run([smi or "", *words], limit)

    def kernel() -> None:
        """Read the kernel's log: its own buffer, which wraps and can be cleared, and the journal, which may
        be missing or not readable. Of an event that both have, the one with more occurrences counts."""
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
            answers["xids"], answers["log_from"] = list(events.values())[:50], min(begins, default=None)

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
    answer["xids"], answer["log_from"] = answers.get("xids"), answers.get("log_from")
    code, out, err = answers.get("xml") or (None, "", "nvidia-smi did not end")
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
        text = (gpu.findtext(path) or "").strip()
        plain = text.lower().lstrip("[")
        return None if not text or plain.startswith((*vague, *lost, *errors)) else text

    def broken(gpu: Any) -> str | None:
        """Return the word of a GPU that does not answer: that it is lost, in any field; an error, in one that
        every GPU reports (of others, drivers report errors for healthy GPUs)."""
        basic = [gpu.find(path) for path in ("product_name", "fb_memory_usage/total", "temperature/gpu_temp")]
        for signs, parts in ((lost, gpu.iter()), (errors, basic)):
            for part in parts:
                text = ("" if part is None else part.text or "").strip().strip("[]")
                if text.lower().startswith(signs):
                    return str(text[:40])
        return None

    def figure(gpu: Any, *paths: str) -> float | None:
        for path in paths:
            match = re.match(r"-?\d+(?:\.\d+)?", word(gpu, path) or "")
            if match:
                return float(match.group())
        return None

    def total(gpu: Any, place: str) -> int | None:
        """Return the uncorrectable errors, whatever the driver's generation calls them."""
        counts = [figure(gpu, place + "/double_bit/total")]
        for part in gpu.findall(place + "/*"):
            if "uncorrectable" in part.tag and not part.tag.endswith("threshold_exceeded"):
                counts.append(figure(part, "."))
        numbers = [int(count) for count in counts if count is not None]
        return sum(numbers) if numbers else None

    def waits(gpu: Any) -> str | None:
        """Return whether the GPU needs a reset: Yes or No. Drivers such as 580 name what is to be done: None,
        which is No here, or an action, such as Reset, Reboot or Drain P2P."""
        action = word(gpu, "gpu_recovery_action")
        named = "No" if action == "None" else action
        return word(gpu, "gpu_reset_status/reset_required") or named

    answer["driver"] = word(log, "driver_version")
    abilities = (answers.get("ability") or (None, "", ""))[1].splitlines()
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
                "remap_failure": "Yes"
                if word(gpu, "ecc_errors/unrepairable_memory") == "Yes"
                else word(gpu, "remapped_rows/remapped_row_failure"),
                "reset": waits(gpu),
                "reasons": reasons if {"Active", "Not Active"} & set(states.values()) else None,
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
                "fabric": word(gpu, "fabric/state"),
                "links": None,
            }
        )
    for part in re.split(r"^GPU ", (answers.get("nvlink") or (None, "", ""))[1], flags=re.M)[1:]:
        place = re.match(r"(\d+):", part)
        if place and int(place.group(1)) < len(answer["gpus"]):
            speeds = re.findall(r"Link \d+: *(?:(\d+(?:\.\d+)?) GB/s|<?inactive>?)", part)
            answer["gpus"][int(place.group(1))]["links"] = [float(speed or 0) for speed in speeds]
    return answer


# ----------------------------------------------------------------------------------------------------
# What the judges share. They see hosts that have GPUs and whose driver answers: `judge` does the others.

Gpu = Mapping[str, Any]

RESET = "sudo nvidia-smi --gpu-reset -i GPU when no job runs, or sudo reboot; leave the host out until then"
_ALIKE = (
    "train on hosts of one kind, or let the plan choose for the smallest: batch.micro=auto precision=auto"
)


def those(case: Case, words: Callable[[Gpu], str | None]) -> str:
    """Return the words about each GPU, with its place on the bus."""
    lines = ((gpu["bus"], words(gpu)) for gpu in case.answer["gpus"])
    return ", ".join(f"{bus}: {text}" for bus, text in lines if text)


def untold(case: Case, *keys: str) -> Finding | None:
    """Return an unknown where a GPU does not respond, or does not report what others of its model on the host
    do; else None. What no GPU of a model reports is what the model does not have."""
    gpus = case.answer["gpus"]
    reported = {(gpu.get("name"), key) for gpu in gpus for key in keys if gpu.get(key) is not None}

    def silent(gpu: Gpu) -> str | None:
        missing = [key for key in keys if gpu.get(key) is None]
        if missing and gpu.get("broken"):
            return str(gpu["broken"])
        return "not reported" if any((gpu.get("name"), key) in reported for key in missing) else None

    silent_ones = those(case, silent)
    return (
        case.unknown("some GPUs do not report this", silent_ones, "nvidia-smi -q -i GPU")
        if silent_ones
        else None
    )


def _told(case: Case, key: str) -> list[Any]:
    """Return the values that the host's GPUs report."""
    return [gpu[key] for gpu in case.answer["gpus"] if gpu.get(key)]


def _modes(case: Case, key: str) -> list[str]:
    """Return the same of a mode: enabled or disabled."""
    return [str(mode).lower() for mode in _told(case, key)]


def _usual(answers: Answers, figure: Callable[[Gpu], Any]) -> dict[str, Any]:
    """Return, by GPU model, the figure of most GPUs of it, on all hosts; None: not reported, or no majority.
    """
    values: dict[str, list[Any]] = {}
    for answer in answers.values():
        for gpu in answer.get("gpus") or []:
            value = figure(gpu)
            values.setdefault(str(gpu.get("name")), []).extend([] if value is None else [value])
    return {name: majority(figures) for name, figures in values.items()}


@host_check("gpu.driver")
def driver(case: Case) -> Finding:
    """nvidia-smi answers in time and without an error, and so does every GPU.

    A driver that hangs or has lost a GPU hangs the host's ranks, and all other ranks wait.
    """
    answer, trouble = case.answer, str(case.answer.get("trouble"))
    if not answer.get("smi"):
        seen = f"{answer.get('pci') or 'no'} NVIDIA GPUs on the PCI bus"
        remedy = "sudo apt-get install nvidia-driver-VERSION, docker run --gpus all, or --expect-gpus none"
        return case.fail("there is no NVIDIA driver (nvidia-smi)", seen, remedy)
    if answer.get("hangs"):
        return case.fail(
            "nvidia-smi times out: the GPU driver hangs, or is loaded again for each call (no persistence "
            "mode)",
            trouble,
            "sudo nvidia-smi -pm 1; if that hangs, too: sudo reboot, and leave the host out until then",
        )
    if answer.get("trouble"):
        remedy = "nvidia-smi; sudo dmesg | grep NVRM; sudo modprobe nvidia"
        return case.fail("nvidia-smi fails", trouble, remedy)
    lost = those(case, lambda gpu: gpu.get("broken"))
    if lost:
        return case.fail("a GPU does not respond to the driver", lost, RESET)
    return case.passed(f"driver {answer.get('driver')}")


# ----------------------------------------------------------------------------------------------------
# What the GPUs are: how many, of which kind, what they can do, who uses them.


@group_check("gpu.count", count=0)
def count(answers: Answers, peers: Answers, context: Context) -> Judge:
    """Number of GPUs, against the slots, the PCI bus, the profile (count; 0: not asked) and, where no slots
    are given, the other hosts.

    A rank without a GPU fails at its first tensor; two ranks on one GPU run out of memory.
    """
    usual = majority(len(answer["gpus"]) for answer in answers.values() if answer.get("gpus"))

    def judge(case: Case) -> Finding:
        answer, wanted, slots = case.answer, int(case.expect("count")), context.slots.get(case.host)
        have, pci, mask = len(answer["gpus"]), answer.get("pci") or 0, answer.get("mask")
        usable = have if mask is None else min(have, int(mask))
        seen = counted(have, "GPU") + ("" if mask is None else f", {mask} of them in CUDA_VISIBLE_DEVICES")
        if not have:
            return case.fail("no GPUs found", f"{pci} on the PCI bus", "nvidia-smi; lspci | grep NVIDIA")
        if pci > have and answer.get("bare"):
            problem = "the driver does not see a GPU that is on the PCI bus"
            remedy = "sudo dmesg | grep -i -e xid -e 'fallen off'; sudo reboot"
            return case.fail(problem, f"{seen}, {pci} on the bus", remedy)
        if wanted and have != wanted:
            problem = "the number of GPUs is not the expected one"
            return case.fail(problem, f"{seen}, {wanted} expected", "nvidia-smi -L")
        if slots and slots > usable:
            remedy = f"slots={usable}, or nvidia-smi -L"
            return case.fail("fewer GPUs than slots", f"{seen}, {counted(slots, 'slot')}", remedy)
        if usual is not None and have < usual and not wanted and not slots:
            remedy = "nvidia-smi -L; sudo dmesg | grep NVRM"
            return case.fail("fewer GPUs than most hosts", f"{seen}, {usual} on most hosts", remedy)
        return case.passed(seen)

    return judge


@same_check("gpu.model", Differ("not the GPU model of most hosts", remedy=_ALIKE), contains="")
def model(case: Case) -> Finding | str:
    """The GPU model is the same within a host and on all hosts. contains: a part of its name.

    The slowest GPU sets the speed of all, and the smallest one the batch size.
    """
    part, names = str(case.expect("contains")), sorted(set(_told(case, "name")))
    if not all(part.lower() in name.lower() for name in names):
        evidence = f"{', '.join(names)}; {part} expected"
        return case.fail("the GPUs are not the expected model", evidence, "another profile")
    if len(names) > 1:
        return case.warn("the host has several GPU models", ", ".join(names), _ALIKE)
    if not names:
        return case.unknown("the GPUs do not report their model")
    return untold(case, "name") or str(names[0])


@same_check(
    "gpu.memory",
    Differ("not the amount of GPU memory of most hosts", remedy=_ALIKE, show=format_bytes),
    at_least=0,
    tolerance=0.02,
)
def memory(case: Case) -> Finding | int:
    """Memory of the smallest GPU in bytes: at_least, and within 2 % of most hosts'.

    The smallest GPU sets the batch size of all.
    """
    size, wanted = min(_told(case, "memory"), default=None), case.expect("at_least")
    if size is None:
        return case.unknown("the GPUs do not report their memory")
    if size < wanted:
        evidence = f"{format_bytes(size)}, {format_bytes(wanted)} expected"
        return case.fail("GPU memory is less than expected", evidence)
    return untold(case, "memory") or int(size)


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


def capability(gpu: Gpu) -> tuple[int, int] | None:
    """Return a GPU's compute capability: as reported, else by its name, else the lowest of its architecture.
    """
    version = gpu.get("capability")
    if version:
        return int(version[0]), int(version[1])
    device = driver_device(str(gpu.get("name") or ""))
    if device is not None and device.capability is not None:
        return device.capability
    return _ARCHITECTURES.get(str(gpu.get("family")))


@host_check("gpu.precision", at_least=0)
def precision(case: Case) -> Finding:
    """Compute capability against the recipe's precision: 8.9 for fp8, 8.0 for bf16 and tf32, 7.0 for fp16.

    Below it the precision is emulated or refused.
    """
    capabilities = [version for gpu in case.answer["gpus"] if (version := capability(gpu)) is not None]
    if len(capabilities) < len(case.answer["gpus"]):
        return case.unknown("the GPUs do not report their compute capability")
    lowest, least = min(capabilities), case.expect("at_least")
    words = f"compute capability {lowest[0]}.{lowest[1]}"
    wanted = str(case.context.recipe.get("precision") or "auto")
    names = " ".join(str(gpu.get("name") or "") for gpu in case.answer["gpus"])
    need = capability_for(wanted, names)
    if need and lowest < need:
        evidence = f"{words}, {need[0]}.{need[1]} needed"
        return case.fail(f"the GPUs cannot do the recipe's {wanted}", evidence, "precision=auto")
    if lowest[0] + lowest[1] / 10 < least:
        return case.fail("compute capability is lower than expected", f"{words}, {least:g} expected")
    able = [name for name in LEAST if lowest >= (capability_for(name, names) or lowest)]
    return case.passed(f"{words}: {', '.join(['fp32', *able])}")


@host_check("gpu.processes", at_most=2 << 30)
def processes(case: Case) -> Finding:
    """Processes that already use the GPUs, or more than at_most bytes in use on a GPU.

    The job runs out of memory or shares the GPU's time.
    """
    # A container does not see the processes of others, but the memory that they use.
    pids = sorted({pid for pids_of_gpu in _told(case, "processes") for pid in pids_of_gpu})
    if pids:
        shown = ", ".join(map(str, pids[:12])) + (" ..." if len(pids) > 12 else "")
        return case.warn("other processes are using the GPUs", f"pid {shown}", "nvidia-smi; ps -fp PID")
    most = case.expect("at_most")
    full = those(case, lambda gpu: format_bytes(gpu["used"]) if (gpu.get("used") or 0) > most else None)
    if full:
        problem = "GPU memory is in use by processes that are not visible here"
        return case.warn(problem, full, "nvidia-smi, outside the container")
    return untold(case, "used") or case.passed("none")


@host_check("gpu.mig", enabled=False)
def mig(case: Case) -> Finding:
    """Multi-instance mode (MIG), which should be off.

    A process sees one instance only, and collectives between instances are not supported.
    """
    on, wanted = {mode == "enabled" for mode in _modes(case, "mig")}, bool(case.expect("enabled"))
    if not on:
        return untold(case, "mig") or case.not_applicable("the GPUs have no multi-instance mode (MIG)")
    words = "on for some GPUs" if len(on) > 1 else "on" if True in on else "off"
    if on == {wanted}:
        return untold(case, "mig") or case.passed(words)
    remedy = f"sudo nvidia-smi -mig {int(wanted)}  # when no job runs"
    return case.warn("multi-instance mode (MIG) is not as expected", words, remedy)


@host_check("gpu.persistence", enabled=True)
def persistence(case: Case) -> Finding:
    """Persistence mode: the driver stays loaded while no program uses the GPU.

    Without it every start takes seconds longer, and settings such as clocks are lost between jobs.
    """
    modes = _modes(case, "persistence")
    if not modes:
        return case.unknown("the GPUs do not report this")
    off = modes.count("disabled")
    if not off or not case.expect("enabled"):
        return untold(case, "persistence") or case.passed("on" if not off else "off")
    return case.warn("persistence mode is off", f"off on {off} of {len(modes)} GPUs", "sudo nvidia-smi -pm 1")


# ----------------------------------------------------------------------------------------------------
# Whether they are well: memory errors, Xid events, throttling, clocks, links, heat.


@host_check("gpu.ecc", at_most=0, mode="any")
def ecc(case: Case) -> Finding:
    """Uncorrected memory errors (ECC) since the driver was loaded. mode: any, enabled or disabled.

    The next one ends a rank, and so the job, with 'uncorrectable ECC error encountered'.
    """
    most, mode = case.expect("at_most"), case.expect("mode")
    bad = those(
        case, lambda gpu: f"{gpu['uncorrected']} errors" if (gpu.get("uncorrected") or 0) > most else None
    )
    if bad:
        return case.fail("GPU memory had uncorrectable errors", bad, RESET)
    modes = sorted(set(_modes(case, "ecc")))
    if mode != "any" and set(modes) - {mode}:
        remedy = f"sudo nvidia-smi -e {int(mode == 'enabled')}; sudo reboot"
        return case.warn("ECC is not as expected", ", ".join(modes), remedy)
    if len(modes) > 1:
        return case.warn(
            "ECC is on for some GPUs only", ", ".join(modes), "sudo nvidia-smi -e 1; sudo reboot"
        )
    well = case.passed(modes[0]) if modes else case.not_applicable("the GPUs have no ECC")
    return untold(case, "ecc", "uncorrected") or well


def _wanted(gpu: Gpu) -> str | None:
    """Return the action that its driver asks for."""
    named = gpu.get("reset")
    return None if named in (None, "No") else "a reset" if named == "Yes" else str(named)


@host_check("gpu.memory_repair")
def memory_repair(case: Case) -> Finding:
    """No retired page or remapped row is waiting for a reset, and no remapping failed.

    Broken memory stays in use until the GPU is reset; after a failed remapping it stays in use for good.
    """
    # Newer models remap rows, older ones retire pages, and small ones do neither.
    failed = those(case, lambda gpu: "remapping failed" if gpu.get("remap_failure") == "Yes" else None)
    if failed:
        return case.fail("a GPU's broken memory could not be replaced", failed, "have the GPU exchanged")
    waiting = those(case, lambda gpu: "waits for a reset" if gpu.get("pending") == "Yes" else None)
    if waiting:
        return case.fail("a GPU needs a reset to replace broken memory", waiting, RESET)
    wanted = those(case, _wanted)
    if wanted:
        return case.fail("a GPU had a fault, and the driver asks for what ends it", wanted, RESET)
    none = all(gpu.get("pending") is None and gpu.get("remap_failure") is None for gpu in case.answer["gpus"])
    well = case.not_applicable("these GPUs have no memory repair") if none else case.passed()
    return untold(case, "pending", "remap_failure") or well


# Events that mean broken hardware (NVIDIA's catalogue of Xid errors; the health gates of A100 clusters), with
# uncontained memory errors (95, 140) and a GPU system processor that does not answer (119, 120).
FATAL = [48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120, 140]

# Seconds since boot within which no driver has been loaded: a log that begins so early has every event.
_EARLY = 5.0


@host_check("gpu.xid", fatal=FATAL)
def xid(case: Case) -> Finding:
    """Xid errors of broken hardware since boot, in the kernel's log and journal. fatal: their numbers.

    A GPU that had such an error fails again under load.
    """
    events = case.answer.get("xids")
    if events is None:
        return case.unknown(
            "no permission to read the kernel's log",
            remedy="sudo sysctl kernel.dmesg_restrict=0, or sudo usermod -aG systemd-journal $USER",
        )
    bad = [event for event in events if event["xid"] in case.expect("fatal")]
    if bad:
        evidence = "; ".join(_event(event) for event in bad[:4])
        remedy = f"{RESET}; the kernel's log keeps the event until a reboot"
        return case.fail("the kernel has reported a GPU hardware fault (Xid)", evidence, remedy)
    seen = f"{len(events)} other Xid errors" if events else "none"
    begins = case.answer.get("log_from", 0.0)
    if begins is not None and begins <= _EARLY:
        return case.passed(seen)
    start = "the beginning is missing"
    if begins is not None:
        start = f"it begins {format_seconds(begins)} after the boot"
    remedy = "sudo usermod -aG systemd-journal $USER; without a journal, log_buf_len=16M for the kernel"
    return case.unknown("the kernel's log since boot is not complete", f"{seen}, but {start}", remedy)


def _event(event: Mapping[str, Any]) -> str:
    words = f"Xid {event['xid']} at {event['bus']} ({event['count']}x): {event['text']}"
    if event.get("last") is None:
        return words
    ago = f", {format_seconds(event['ago'])} ago" if event.get("ago") is not None else ""
    return f"{words} (last {format_seconds(event['last'])} after the boot{ago})"


@host_check("gpu.throttling")
def throttling(case: Case) -> Finding:
    """Whether the clocks are lowered now, and why: heat, a power brake, a hardware slowdown.

    One throttled GPU slows every step of every rank.
    """
    # A power limit that is reached is no trouble.
    remedy = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at fans, air and power supplies"

    def active(*names: str) -> str:
        return those(case, lambda gpu: " ".join(one for one in gpu.get("reasons") or () if one in names))

    failing = active("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    if failing:
        return case.fail("GPU clocks are lowered by the hardware", failing, remedy)
    warm = active("sw_thermal_slowdown")
    if warm:
        return case.warn("GPU clocks are lowered because of heat", warm, remedy)
    if all(gpu.get("reasons") is None for gpu in case.answer["gpus"]):
        return case.unknown("the GPUs do not report why their clocks are lowered")
    return untold(case, "reasons") or case.passed()


@group_check("gpu.clocks")
def clocks(answers: Answers, peers: Answers, context: Context) -> Judge:
    """Applications get the default clock; the highest clock and the power limit are those of the same GPUs
    elsewhere.

    A forgotten clock or power cap slows every step of every rank.
    """

    def lower(key: str, unit: str) -> Callable[[Gpu], str | None]:
        usual = _usual(answers, lambda gpu: gpu.get(key) or None)

        def words(gpu: Gpu) -> str | None:
            value, most = gpu.get(key), usual[str(gpu.get("name"))]
            return f"{value:g} {unit}, most have {most:g}" if most and value and value < most else None

        return words

    def capped(gpu: Gpu) -> str | None:
        own, default = gpu.get("set_sm"), gpu.get("default_sm")
        return f"{own:g} of {default:g} MHz" if own and default and own < default else None

    troubles = (
        ("GPU clocks are set below the default", capped, "sudo nvidia-smi -rac; sudo nvidia-smi -rgc"),
        ("a GPU's highest clock is lower than its peers'", lower("max_sm", "MHz"), "sudo nvidia-smi -rgc"),
        (
            "a GPU's power limit is lower than its peers'",
            lower("power_limit", "W"),
            "sudo nvidia-smi -pl WATTS",
        ),
    )

    def judge(case: Case) -> Finding:
        for problem, words, remedy in troubles:
            slow = those(case, words)
            if slow:
                return case.warn(problem, slow, remedy)
        highest = max(_told(case, "max_sm"), default=None)
        if highest is None:
            return case.unknown("the GPUs do not report their clocks")
        return untold(case, "max_sm") or case.passed(f"up to {highest:g} MHz")

    return judge


@host_check("gpu.pcie", width=0, gen=0)
def pcie(case: Case) -> Finding:
    """PCIe lanes in use against the most that GPU and slot can do. width, gen: at least (0: not asked).

    A badly seated GPU runs at x8 or x4: copies and all-reduce take several times as long.
    """
    width, gen = case.expect("width"), case.expect("gen")

    def short(gpu: Gpu) -> str | None:
        if gpu.get("width") and gpu["width"] < width:
            return f"x{gpu['width']:g}, x{width:g} expected"
        return f"gen {gpu['gen']:g}, {gen:g} expected" if gpu.get("gen") and gpu["gen"] < gen else None

    def half(gpu: Gpu) -> str | None:
        own, most = gpu.get("width"), gpu.get("max_width")
        return f"x{own:g} of x{most:g}" if own and most and own < most and not width else None

    remedy = "reseat the GPU or its riser; sudo lspci -vv -s BUS | grep LnkSta"
    bad = those(case, short)
    if bad:
        return case.fail("PCIe is narrower or slower than expected", bad, remedy)
    some = those(case, half)
    if some:
        return case.warn("a GPU uses only some of its PCIe lanes", some, remedy)
    gpus = [gpu for gpu in case.answer["gpus"] if gpu.get("gen") and gpu.get("width")]
    widths = sorted({f"gen {gpu['gen']:g} x{gpu['width']:g}" for gpu in gpus})
    well = case.passed(", ".join(widths)) if widths else case.unknown("the GPUs do not report this")
    return untold(case, "gen", "width") or well


@host_check("gpu.temperature", at_most=85, margin=5)
def temperature(case: Case) -> Finding:
    """Temperature in degrees Celsius, and its distance to the slowdown temperature (margin).

    A GPU that is hot before the job starts slows down during it.
    """
    # Drivers tell the slowdown temperature, or how far it is.
    most, margin = case.expect("at_most"), case.expect("margin")
    degrees = [gpu["celsius"] for gpu in case.answer["gpus"] if gpu.get("celsius") is not None]
    if not degrees:
        return case.unknown("the GPUs do not report their temperature")

    def hot(gpu: Gpu) -> str | None:
        value, slow, left = gpu.get("celsius"), gpu.get("slow_at"), gpu.get("left")
        if value is None:
            return None
        near = (slow is not None and value > slow - margin) or (left is not None and left < margin)
        return f"{value:g} C" if near or value > most else None

    bad = those(case, hot)
    if bad:
        return case.warn("a GPU is hot", bad, "nvidia-smi -q -d TEMPERATURE; look at fans and air")
    return untold(case, "celsius") or case.passed(f"up to {max(degrees):g} C")


# Cards that a bridge links in pairs, or not at all; the others are linked by their board.
_BRIDGED = re.compile(r"GeForce|RTX|Quadro|TITAN|PCIe|NVL\b|\bA[34]0\b", re.IGNORECASE)


def _active(gpu: Gpu) -> int:
    """Return the number of its active NVLinks; unknown ones do not count."""
    return len([speed for speed in gpu.get("links") or [] if speed > 0])


@group_check("gpu.nvlink", links=0)
def nvlink(answers: Answers, peers: Answers, context: Context) -> Judge:
    """Active NVLinks of every GPU: as many as those of the same model here and on most hosts; links: at least
    so many. Where bridges link cards, a difference only warns.

    NCCL falls back to PCIe on that host, or does not start.
    """
    usual = _usual(answers, lambda gpu: None if gpu.get("links") is None else _active(gpu))

    def judge(case: Case) -> Finding:
        gpus, wanted = case.answer["gpus"], int(case.expect("links"))
        stuck = those(
            case, lambda gpu: "in progress" if str(gpu.get("fabric")).lower() == "in progress" else None
        )
        if stuck and len(gpus) > 1:
            remedy = "sudo systemctl restart nvidia-fabricmanager"
            return case.fail("the NVLink fabric is not up", stuck, remedy)
        most: dict[str, int] = {}  # by model
        for gpu in gpus:
            name = str(gpu.get("name"))
            most[name] = max(most.get(name, 0), wanted, usual[name] or 0, _active(gpu))

        def low(gpu: Gpu, bridged: bool) -> str | None:
            """Return what is wrong with a GPU's links. `bridged`: bridges between cards count, too."""
            name, active = str(gpu.get("name")), _active(gpu)
            bound = most[name] if bridged or not _BRIDGED.search(name) else wanted
            if gpu.get("broken") and not gpu.get("links"):
                return None  # nothing is known of it
            return f"{active} active, {bound} expected" if active < bound else None

        silent = any(gpu.get("broken") and not gpu.get("links") for gpu in gpus) and untold(case, "links")
        if not any(most.values()):
            return silent or case.not_applicable("no NVLink")
        bad = those(case, lambda gpu: low(gpu, bridged=False))
        if bad:
            remedy = "nvidia-smi nvlink --status; sudo systemctl restart nvidia-fabricmanager; sudo reboot"
            return case.fail("a GPU has too few active NVLinks", bad, remedy)
        odd = those(case, lambda gpu: low(gpu, bridged=True))
        if odd:
            remedy = "nvidia-smi topo -m; nvidia-smi nvlink --status"
            return case.warn("not all GPUs have NVLink bridges", odd, remedy)
        return silent or case.passed(f"{max(most.values())} links each")

    return judge


CHECKS = (
    driver,
    count,
    model,
    memory,
    precision,
    processes,
    mig,
    persistence,
    ecc,
    memory_repair,
    xid,
    throttling,
    clocks,
    pcie,
    temperature,
    nvlink,
)


def expected(answers: Answers, context: Context) -> bool:
    """Return whether hosts should have GPUs: as asked, else where any of them has one, even if only on the
    PCI bus."""
    if context.gpus_expected is not None:
        return context.gpus_expected
    if (context.recipe.get("launch") or {}).get("device") == "cpu":
        return False
    return any(
        answer.get("gpus") or answer.get("pci") or (answer.get("smi") and answer.get("trouble"))
        for answer in answers.values()
    )


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Judge GPUs: not applicable where none is expected, unknown where the driver does not answer."""
    wanted = expected(answers, context)
    findings: list[Finding] = []
    for check in CHECKS:
        able: dict[str, Mapping[str, Any]] = {}
        for host, answer in answers.items():
            case = Case(check.name, host, context)
            if not wanted:
                findings.append(case.not_applicable("no GPU is expected"))
            elif answer.get("trouble") and check is not driver:
                findings.append(case.unknown("the GPU driver does not respond"))
            elif not answer.get("gpus") and check not in (driver, count):
                findings.append(case.not_applicable("no GPUs found"))
            else:
                able[host] = answer
        findings += judge_each([check], able, peers, context)
    return findings
