"""GPUs: documents of several driver generations through a real process, and what is made of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit import gpu_documents as smi
from tests.unit.judging import FAIL, NA, PASS, UNKNOWN, WARN, judged, probed

GIB = 1 << 30


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Probe a host whose nvidia-smi prints these."""

    def probe(xml: str, links: str = "", abilities: str = "", before: str = "", **ask: Any) -> dict[str, Any]:
        monkeypatch.setenv("PATH", str(smi.install(tmp_path, xml, links, abilities, before)))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        answer: dict[str, Any] = probed("gpu", **ask)
        # This machine's own: its PCI bus and its kernel's log.
        return {**answer, "pci": len(answer["gpus"]), "xids": [], "log_from": 0.0}

    return probe


def host(look: Any, *gpus: str, links: int | None = 18, **changes: Any) -> dict[str, Any]:
    count = len(gpus)
    shown = smi.nvlink(*[links] * count) if links is not None else ""
    return {**look(smi.document(*gpus), shown, "9.0\n" * count), **changes}


def levels(answer: dict[str, Any], **context: Any) -> dict[str, Any]:
    return {check: each.level for (check, _), each in judged("gpu", {"n1": answer}, **context).items()}


def test_a_healthy_server_passes_everything(look: Any) -> None:
    answer = host(look, *(smi.hopper(index) for index in range(8)))
    assert set(levels(answer).values()) == {PASS}
    assert set(levels(answer, profile="h100-8", slots={"n1": 8}, recipe={"precision": "bf16"}).values()) == {
        PASS
    }
    first = answer["gpus"][0]
    assert (first["memory"], first["capability"], first["uncorrected"]) == (81559 << 20, [9, 0], 0)
    assert (first["gen"], first["width"], first["reasons"]) == (5, 16, ["gpu_idle"])
    assert first["links"] == [26.562] * 18 and first["bus"] == "00000000:18:00.0"


def test_a_document_that_a_driver_really_printed(look: Any) -> None:
    answer = look(smi.recorded(), "", "9.0\n")
    assert answer["gpus"] == [
        {
            "bus": "00000000:00:06.0", "broken": None, "name": "NVIDIA H100 80GB HBM3", "family": "Hopper",
            "capability": [9, 0], "memory": 81559 << 20, "used": 4 << 20, "processes": [], "mig": "Disabled",
            "persistence": "Enabled", "ecc": "Enabled", "uncorrected": 0, "pending": "No",
            "remap_failure": "No", "reset": "No", "reasons": ["gpu_idle"], "max_sm": 1980.0,
            "set_sm": 1980.0, "default_sm": 1980.0, "gen": 5.0, "width": 16.0, "max_width": 16.0,
            "celsius": 32.0, "slow_at": None, "left": 55.0, "power_limit": 700.0,
            "fabric": None, "links": None,
        }
    ]  # fmt: skip
    assert answer["driver"] == "580.159.04"
    found = levels(answer, slots={"n1": 1}, gpus_expected=1, recipe={"precision": "bf16"})
    # The only GPU of its host has nothing to be linked to.
    assert {check: level for check, level in found.items() if level is not PASS} == {"nvlink": NA}


@pytest.mark.parametrize(
    ("field", "before", "after", "check"),
    [
        ("gpu_recovery_action", "None", "GPU Reset", "memory_repair"),
        ("gpu_recovery_action", "None", "Drain and Reset", "memory_repair"),
        ("gpu_recovery_action", "None", "Reboot", "memory_repair"),
        ("gpu_recovery_action", "None", "Drain P2P", "memory_repair"),  # neither a reset, nor for memory
        ("unrepairable_memory", "No", "Yes", "memory_repair"),
        ("sram_uncorrectable_secded", "0", "3", "ecc"),
        ("clocks_event_reason_hw_thermal_slowdown", "Not Active", "Active", "throttling"),
    ],
)
def test_what_new_drivers_say_of_a_sick_gpu(
    look: Any, field: str, before: str, after: str, check: str
) -> None:
    document = smi.recorded()
    assert f"<{field}>{before}</{field}>" in document
    sick = document.replace(f"<{field}>{before}</{field}>", f"<{field}>{after}</{field}>", 1)
    found = judged("gpu", {"n1": look(sick, "", "9.0\n")})
    assert {name for (name, _), each in found.items() if each.level is FAIL} == {check}
    if field == "gpu_recovery_action":
        repair = found["memory_repair", "n1"]
        assert after in repair.evidence and "memory" not in repair.problem


@pytest.mark.parametrize(
    ("check", "changes", "level"),
    [
        ("ecc", {"dram": 2}, FAIL),
        ("ecc", {"sram": 1}, FAIL),
        ("memory_repair", {"pending": "Yes"}, FAIL),
        ("memory_repair", {"failure": "Yes"}, FAIL),
        ("memory_repair", {"reset": "Yes"}, FAIL),
        ("throttling", {"active": ("hw_thermal_slowdown",)}, FAIL),
        ("throttling", {"active": ("hw_power_brake_slowdown", "hw_slowdown")}, FAIL),
        ("throttling", {"active": ("sw_thermal_slowdown",)}, WARN),
        ("throttling", {"active": ("sw_power_cap",)}, PASS),
        ("temperature", {"celsius": 86}, WARN),
        ("temperature", {"left": 2}, WARN),
        ("pcie", {"width": 8}, WARN),
        ("processes", {"pids": (4711, 4712)}, WARN),
        ("processes", {"used": 40000}, WARN),
        ("mig", {"mig": "Enabled"}, WARN),
        ("persistence", {"persistence": "Disabled"}, WARN),
        ("nvlink", {"fabric": "In Progress"}, FAIL),
        ("clocks", {"clock": 1200}, WARN),
        ("clocks", {"power": 400.0}, WARN),
        ("model", {"name": "NVIDIA H100 NVL"}, WARN),
    ],
)
def test_one_sick_gpu_of_four_is_found(look: Any, check: str, changes: dict[str, Any], level: object) -> None:
    gpus = [smi.hopper(index) for index in range(4)]
    gpus[2] = smi.hopper(2, **changes)
    found = judged("gpu", {"n1": host(look, *gpus)})
    bad = {name: each.level for (name, _), each in found.items() if each.level != PASS}
    assert bad == ({} if level == PASS else {check: level})
    if bad:
        assert found[check, "n1"].remedy
    if bad and check not in ("processes", "mig", "persistence", "model"):
        assert "00000000:1A:00.0" in found[check, "n1"].evidence


def test_old_drivers_say_the_same_in_other_words(look: Any) -> None:
    fine = look(smi.document(smi.volta(), smi.volta(1), driver="470.103.01"), smi.nvlink(6, 6, most=6), "")
    assert fine["driver"] == "470.103.01"

    def with_all(**changes: Any) -> dict[str, Any]:
        return {**fine, "gpus": [{**gpu, **changes} for gpu in fine["gpus"]]}

    assert set(levels(with_all(capability=[7, 0])).values()) == {PASS, NA}
    assert levels(fine)["precision"] == PASS  # no capability is told, but a V100's is known
    assert levels(with_all(name="Graphics Device"))["precision"] == UNKNOWN  # nor the architecture
    broken = look(smi.document(smi.volta(double=3), smi.volta(1, retire="Yes")), smi.nvlink(6, 5, most=6))
    found = levels(broken)
    assert (found["ecc"], found["memory_repair"], found["nvlink"]) == (FAIL, FAIL, FAIL)
    assert levels(look(smi.document(smi.volta(application=900))))["clocks"] == WARN


def test_what_a_consumer_gpu_does_not_have_is_not_passed(look: Any) -> None:
    answer = look(smi.document(smi.geforce()))
    found = levels(answer, profile="workstation")
    assert [found[name] for name in ("ecc", "memory_repair", "mig", "nvlink")] == [NA] * 4
    assert found["temperature"] == found["persistence"] == found["clocks"] == PASS
    assert levels(answer)["pcie"] == WARN  # x8 of x16


H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0]}


@pytest.mark.parametrize(
    ("changes", "precision", "level"),
    [
        *(({}, precision, PASS) for precision in ("fp32", "auto")),
        *(({}, precision, FAIL) for precision in ("fp16", "bf16", "fp8")),
        ({"capability": None}, "fp32", PASS),  # Pascal
        (H100, "fp8", PASS),
        ({**H100, "name": "AMD Instinct MI250X"}, "fp8", FAIL),
    ],
)
def test_precision_against_what_the_gpus_can_do(
    look: Any, changes: dict[str, Any], precision: str, level: object
) -> None:
    answer = look(smi.document(smi.geforce()), abilities="6.1\n")
    gpus = [{**answer["gpus"][0], **changes}]
    assert levels({**answer, "gpus": gpus}, recipe={"precision": precision})["precision"] == level


@pytest.mark.parametrize(
    ("changes", "context", "level"),
    [
        ({}, {"slots": {"n1": 8}}, FAIL),
        ({}, {"slots": {"n1": 2}}, PASS),
        ({"mask": 1}, {"slots": {"n1": 2}}, FAIL),
        ({}, {"expects": {"gpu.count": {"count": 8}}}, FAIL),
        ({"pci": 5, "bare": True}, {}, FAIL),
        ({"pci": 8, "bare": False}, {}, PASS),  # a container was given some of them
    ],
)
def test_how_many_gpus(look: Any, changes: dict[str, Any], context: dict[str, Any], level: object) -> None:
    four = host(look, *(smi.hopper(index) for index in range(4)))
    assert levels({**four, **changes}, **context)["count"] == level


def test_smaller_gpus_and_fewer_links_than_elsewhere(look: Any) -> None:
    usual = host(look, smi.hopper())
    small = {**usual, "gpus": [{**usual["gpus"][0], "memory": 40 * GIB}]}
    unlinked = {**usual, "gpus": [{**usual["gpus"][0], "links": [0.0] * 18}]}
    found = judged("gpu", {"n1": usual, "n2": small, "n3": unlinked})
    assert (found["memory", "n2"].level, found["memory", "n3"].level) == (WARN, PASS)
    assert "42.9 GB here" in found["memory", "n2"].evidence
    assert [found["nvlink", name].level for name in ("n1", "n2", "n3")] == [PASS, PASS, FAIL]
    assert levels(usual, profile="h200-8")["model"] == FAIL
    assert levels(usual, profile="h200-8")["memory"] == FAIL


@pytest.mark.parametrize(
    "word", ["Unknown Error", "[Unknown Error]", "GPU is lost", "ERR!", "[GPU requires reset]"]
)
def test_a_gpu_that_does_not_answer(look: Any, word: str) -> None:
    gpus = [smi.hopper(index) for index in range(4)]
    healthy = host(look, *gpus)
    gpus[2] = smi.lost(gpus[2], word)
    answer = look(smi.document(*gpus), smi.nvlink(18, 18), f"9.0\n9.0\n{word}\n9.0\n")
    assert [gpu["capability"] for gpu in answer["gpus"]] == [[9, 0], [9, 0], None, [9, 0]]
    for gpu in (answer["gpus"][3], answer["gpus"][1]):
        gpu["links"] = [26.562] * 18
    found = judged("gpu", {"n1": answer, "n2": healthy})
    evidence = f"00000000:1A:00.0: {word.strip('[]')}"
    driver = found["driver", "n1"]
    assert (driver.level, driver.evidence) == (FAIL, evidence) and "reset" in (driver.remedy or "")
    rest = {check: each for (check, name), each in found.items() if name == "n1" and check != "driver"}
    assert {check for check, each in rest.items() if each.level == PASS} == {"count", "xid"}
    assert {each.level for each in rest.values()} == {PASS, UNKNOWN}
    for check in ("ecc", "memory_repair", "throttling", "clocks", "pcie", "temperature", "nvlink", "memory"):
        assert rest[check].evidence == evidence
    assert {each.level for (_, name), each in found.items() if name == "n2"} == {PASS}
    alone = levels(look(smi.document(gpus[2])))
    assert alone.pop("driver") == FAIL
    assert {check for check, level in alone.items() if level != UNKNOWN} == {"count", "xid"}


def test_a_field_that_one_gpu_of_a_model_does_not_tell_is_unknown(look: Any) -> None:
    """A driver's error in a field that healthy GPUs may lack is no failure of the GPU."""
    silent = smi.hopper(1).replace("<current_ecc>Enabled", "<current_ecc>Unknown Error")
    silent = silent.replace("<max_link_width>", "<x>").replace(
        "<current_link_width>16x", "<current_link_width>N/A"
    )
    found = judged("gpu", {"n1": host(look, smi.hopper(), silent.replace("</max_link_width>", "</x>"))})
    odd = {check: each for (check, _), each in found.items() if each.level != PASS}
    assert {check: each.level for check, each in odd.items()} == {"ecc": UNKNOWN, "pcie": UNKNOWN}
    assert odd["ecc"].evidence == "00000000:19:00.0: not reported"


def test_a_card_that_cannot_tell_what_other_models_do_is_no_trouble(look: Any) -> None:
    """A display card beside GPUs that compute."""
    answer = look(smi.document(smi.hopper(), smi.geforce(9)), smi.nvlink(18), "9.0\n6.1\n")
    found = levels(answer, profile="workstation")
    assert UNKNOWN not in found.values()
    assert [found[check] for check in ("ecc", "memory_repair", "mig", "temperature")] == [PASS] * 4


@pytest.mark.parametrize("states", ["N/A", "", None])
def test_reasons_that_are_not_told_are_not_none(look: Any, states: str | None) -> None:
    gpu = smi.hopper()
    before, _, rest = gpu.partition("<clocks_event_reasons>")
    rest = rest.partition("</clocks_event_reasons>")[2]
    told = "" if states is None else f"<clocks_event_reasons>{states}</clocks_event_reasons>"
    answer = host(look, before + told + rest)
    assert answer["gpus"][0]["reasons"] is None
    assert levels(answer)["throttling"] == UNKNOWN
    assert levels(host(look, before + told + rest, smi.hopper(1)))["throttling"] == UNKNOWN


@pytest.mark.parametrize(("xid", "level"), [(79, FAIL), (48, FAIL), (13, PASS), (31, PASS)])
def test_xids(look: Any, xid: int, level: object) -> None:
    event = {"bus": "0000:3b:00", "xid": xid, "count": 2, "text": "pid=1, GPU has fallen off the bus."}
    answer = host(look, smi.hopper(), xids=[event])
    assert levels(answer)["xid"] == level
    assert levels({**answer, "xids": None})["xid"] == UNKNOWN


class Kernel:
    """A C library whose kernel's log is this; None: it may not be read."""

    def __init__(self, log: str | None) -> None:
        self.log = log

    def __call__(self, *_: Any) -> Kernel:
        return self

    def klogctl(self, _: int, held: Any, size: int) -> int:
        if self.log is None:
            return -1
        held.raw = self.log.encode().ljust(size, b"\0")
        return len(self.log)


BOOT = "<5>[    0.000000] Linux version 6.1\n"
FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


AFTER = "<6>[90000.1] eth0: up\n"  # the kernel's buffer has wrapped: the journal knows, or nobody does


@pytest.mark.parametrize(
    ("ring", "journal", "level", "words"),
    [
        (BOOT, "", PASS, "none"),
        (f"{BOOT}<3>[ 7200.500000] {FALLEN}", "", FAIL, "has fallen off the bus. (last 2 h 0 min"),
        (AFTER, f"[ 3.1] n1 kernel: Linux version 6\n[ 70.5] n1 kernel: {FALLEN}", FAIL, "last 1 min 10 s"),
        (AFTER, "[    3.1] n1 kernel: Linux version 6.1\n", PASS, "none"),
        (AFTER, "", UNKNOWN, "none, but it begins 25 h 0 min after"),
        (AFTER, "[80000.0] n1 kernel: eth0: up\n", UNKNOWN, "it begins 22 h 13 min after"),
        (f"<6>[90000.1] {FALLEN}", "", FAIL, "Xid 79"),
        ("", "", UNKNOWN, "none, but the beginning is missing"),  # dmesg -C
        (None, "[    0.0] n1 kernel: Linux version 6.1\n", PASS, "none"),
        (None, "", UNKNOWN, ""),
        (None, f"[  99.0] n1 kernel: {FALLEN}", FAIL, "(1x)"),
        # Both have it: the one that has seen more counts, and the later time.
        (
            f"{BOOT}<3>[   80.0] {FALLEN}<3>[   81.0] {FALLEN}",
            f"[  99.0] n1 kernel: {FALLEN}",
            FAIL,
            "(2x): pid=1, GPU has fallen off the bus. (last 1 min 39 s",
        ),
    ],
)
def test_xids_are_looked_for_since_boot(
    ring: str | None, journal: str, level: object, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(smi.install(tmp_path, smi.document(smi.hopper()))))
    (tmp_path / "journal").write_text(journal)
    script = tmp_path / "journalctl"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/journal\n")
    script.chmod(0o755)
    monkeypatch.setattr("ctypes.CDLL", Kernel(ring))
    monkeypatch.setattr("time.monotonic", lambda: 100_000.0)
    found = judged("gpu", {"n1": probed("gpu")})["xid", "n1"]
    assert found.level == level and words in found.evidence
    assert (" ago)" in found.evidence) == (level == FAIL)
    assert bool(found.remedy) == (level in (FAIL, UNKNOWN))


NONE = {"gpus": [], "pci": 0, "smi": False, "trouble": None, "xids": None, "driver": None, "mask": None}


def test_gpus_that_are_not_expected_are_not_judged(look: Any) -> None:
    levels_ = levels(host(look, smi.hopper(dram=1)), recipe={"launch": {"device": "cpu"}})
    assert set(levels_.values()) == {NA}  # as with gpus_expected=False: rooms/findings.json


def test_a_host_without_what_others_have_fails_once(look: Any) -> None:
    four = host(look, *(smi.hopper(index) for index in range(4)))
    found = judged("gpu", {"n1": four, "n2": four, "n3": NONE, "n4": {**four, "gpus": four["gpus"][:3]}})
    bad = {check for (check, name), each in found.items() if name == "n3" and each.level == FAIL}
    assert bad == {"driver", "count"}
    assert {each.level for (_, name), each in found.items() if name == "n3"} == {FAIL, NA}
    assert [found["count", name].level for name in ("n1", "n2", "n4")] == [PASS, PASS, FAIL]
    assert found["count", "n4"].evidence == "3 GPUs, 4 on most hosts"
    alone = judged("gpu", {"n1": NONE}, gpus_expected=True)
    assert alone["driver", "n1"].level == FAIL


NO_DRIVER = "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9"
NO_HANDLE = "echo 'Unable to determine the device handle for GPU0000:3B:00.0' >&2; exit 255"


@pytest.mark.parametrize(
    ("xml", "before", "words"),
    [
        ("", NO_DRIVER, "has failed"),
        ("<nvidia_smi_log><gpu", "", "XML cannot be read"),
        ("", NO_HANDLE, "device handle"),
    ],
)
def test_a_driver_that_fails_is_said_to(look: Any, xml: str, before: str, words: str) -> None:
    found = judged("gpu", {"n1": look(xml, before=before)})
    assert found["driver", "n1"].level == FAIL and words in found["driver", "n1"].evidence
    assert {each.level for (check, _), each in found.items() if check != "driver"} == {UNKNOWN}


def test_a_driver_that_hangs_does_not_hang_the_probe(look: Any, tmp_path: Path) -> None:
    """Its process, which is not ours to wait for, is ended with what it started."""
    answer = look("", before=f"echo $$ >> {tmp_path}/pids; sleep 1000", timeout=1.0)
    driver = judged("gpu", {"n1": answer})["driver", "n1"]
    assert driver.level == FAIL and "hangs, or is loaded again" in driver.problem and driver.remedy
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("mask", "count"), [("0,GPU-1 , ", 2), ("", 0), ("-1", 0), ("0,-1,0", 1), ("7", 0), ("none", 0)]
)
def test_the_mask_is_counted(mask: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As CUDA and the agent have it, the list ends at the first entry that names no GPU."""
    monkeypatch.setenv("PATH", str(smi.install(tmp_path, smi.document(smi.hopper()))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert probed("gpu")["mask"] == count
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,-1")
    assert probed("gpu")["mask"] == 2  # also where the driver has told nothing
