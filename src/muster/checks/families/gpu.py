"""The NVIDIA GPUs of a host: what they are, and whether they are well. One look serves all questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import run, text
from muster.checks.base import Answers, Check, Context, Finding
from muster.checks.families import _gpu_health, _gpu_kind
from muster.checks.families._gpu_kind import expected
from muster.checks.families._gpu_told import RESET, those
from muster.checks.families._judging import About, each

# Without persistence mode nvidia-smi starts the driver anew: 1 to 3 s for each GPU.
SECONDS = 50.0

CHECKS = (
    Check(
        "gpu.driver",
        "nvidia-smi answers in time and without an error, and so does every GPU.",
        "A driver that hangs or has lost a GPU hangs the host's ranks, and all other ranks wait.",
    ),
    *_gpu_kind.CHECKS,
    *_gpu_health.CHECKS,
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
    for check, one in {**_gpu_kind.judges(answers, context), **_gpu_health.judges(answers, context)}.items():
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
