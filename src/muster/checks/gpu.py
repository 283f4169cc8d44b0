"""The NVIDIA GPUs of a host: what they are, and whether they are well. One look serves all questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import run, text
from muster.checks import _gpu_health, _gpu_kind
from muster.checks._gpu_kind import expected
from muster.checks._judging import About, each
from muster.checks.base import Answers, Check, Context, Finding

# Without persistence mode nvidia-smi starts the driver anew: 1 to 3 s for each GPU.
SECONDS = 50.0

CHECKS = (
    Check(
        "gpu.driver",
        "nvidia-smi answers in time and without an error.",
        "A driver that hangs or has lost a GPU hangs every rank of the host, and all others wait.",
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
    answer["mask"] = None if mask is None else len([word for word in mask.split(",") if word.strip()])
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
        """The kernel's log in one piece, or from the journal where the user may not read it."""
        import ctypes

        size = 1 << 22
        held = ctypes.create_string_buffer(size)
        try:
            count = ctypes.CDLL(None).klogctl(3, held, size)  # SYSLOG_ACTION_READ_ALL
        except (OSError, AttributeError):
            count = -1
        log = held.raw[:count].decode("utf-8", "replace") if count > 0 else ""
        if count < 0:
            code, log, _ = run(
                ["journalctl", "-k", "-b", "-q", "-o", "cat", "--no-pager", "-n", "20000"], min(limit, 10.0)
            )
            if code != 0 or not log.strip():
                return
        events: dict[str, Any] = {}
        for bus, number, words in re.findall(r"NVRM: Xid \(PCI:([^)]*)\): (\d+),? *([^\n]*)", log):
            event = events.setdefault(bus + " " + number, {"bus": bus, "xid": int(number), "count": 0})
            event["count"] += 1
            event["text"] = words[:120]
        said["xids"] = list(events.values())[:50]

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
    answer["xids"] = said.get("xids")
    code, out, err = said.get("xml") or (None, "", "nvidia-smi did not end")
    try:
        log = tree.fromstring(out) if code == 0 else None
    except tree.ParseError as error:
        log, err = None, "nvidia-smi's XML cannot be read: %s" % error
    if log is None:
        answer["trouble"] = ((err.strip() or out.strip()).splitlines() or ["exit code %s" % code])[0][:200]
        answer["hangs"] = code is None
        return answer

    def word(gpu: Any, path: str) -> str | None:
        found = (gpu.findtext(path) or "").strip()
        vague = ("", "n/a", "[n/a]", "not supported", "unknown error", "unknown", "requested functionality")
        return None if found.lower().startswith(vague[1:]) or not found else found

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
    abilities = (said.get("ability") or (None, "", ""))[1].split()
    for index, gpu in enumerate(log.findall("gpu")):
        clocks = gpu.find("clocks_event_reasons")
        clocks = gpu.find("clocks_throttle_reasons") if clocks is None else clocks
        reasons = (
            [] if clocks is None else [part.tag for part in clocks if (part.text or "").strip() == "Active"]
        )
        ability = abilities[index] if index < len(abilities) else ""
        memory = figure(gpu, "fb_memory_usage/total")
        used = figure(gpu, "fb_memory_usage/used")
        slow = figure(gpu, "temperature/gpu_temp_slow_threshold")
        answer["gpus"].append(
            {
                "bus": gpu.get("id"),
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
                "reasons": [re.sub(r"^clocks_(?:event|throttle)_reasons?_", "", tag) for tag in reasons],
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
                findings.append(about.unknown("the GPU driver does not answer"))
            elif not answer.get("gpus") and check != "gpu.count":
                findings.append(about.not_applicable("the host has no GPU that can be seen"))
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
            "nvidia-smi does not answer in time: the GPU driver hangs, or is loaded anew for each call (no "
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
    return about.passed(f"driver {answer.get('driver')}")
