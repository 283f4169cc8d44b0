"""Devices, links and machines as data: every figure sourced, names as people type them, errors that help."""

from __future__ import annotations

import pytest

from muster.core.hardware.devices import (
    BY_HAND,
    Device,
    capability_for,
    entries,
    find_device,
    named,
    names,
)
from muster.core.hardware.links import between_hosts, ethernet, find_link
from muster.core.hardware.links import names as link_names


def test_every_device_has_all_figures_and_sources() -> None:
    for name in names():
        device = find_device(name)
        assert named(name) == device
        assert device.source != BY_HAND != device.memory_source
        assert device.memory and 6e9 < device.memory < 300e9, name
        assert device.watts and 70 <= device.watts <= 1400, name
        assert device.bandwidth and 1e11 < device.bandwidth < 1e13, name
        assert device.capability and (6, 0) <= device.capability <= (12, 0), name
        assert device.capability_source != BY_HAND
        # bf16 in tensor cores from 8.0 on, and a figure for it wherever a maker's document was seen.
        assert device.capability >= (8, 0) or "bf16" not in device.peaks, name
        assert device.able == device.capability
        assert device.bus in link_names()
        assert device.inner is None or device.inner in link_names()
        # fp8 at twice bf16, by those that have it: Ada, Hopper and later, of AMD's from gfx942 on.
        able = device.capability >= (capability_for("fp8", name) or (0, 0))
        assert ("fp8" in device.peaks) == able, name
        if able:
            assert device.peaks["fp8"] == pytest.approx(2 * device.peaks["bf16"], rel=0.015), name
        fastest = max(each for precision, each in device.peaks.items() if precision != "fp8")
        assert 20 < fastest / device.bandwidth < 450, name  # operations per byte: a unit that slipped shows
    known = {"p4", "gtx-1070", "rtx-3070", "a10", "h200", "b200", "v100-sxm2-16gb", "v100-sxm2-32gb"}
    assert known | {"a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5"} <= set(names())


def test_totals_of_memory_are_the_drivers_and_near_the_makers() -> None:
    """A total has its source, and is what a rank may use."""
    for entry in entries():
        device = find_device(entry["name"])
        assert device.memory is not None and abs(entry["memory_gb"] * 1e9 / device.memory - 1) < 0.1
        assert ("total_mib" in entry) == ("total_source" in entry), entry["name"]
    totals = {"a100-40gb": 42.4, "a100-80gb": 85.1, "h100": 85.0, "h200": 150.1, "v100-32gb": 34.1}
    for name, gigabytes in totals.items():
        assert round((find_device(name).memory or 0) / 1e9, 1) == gigabytes


def test_tensor_cores_of_geforces_accumulate_at_half_speed() -> None:
    """fp16 into fp32, as training computes: twice the other cores from Ampere on, four times Turing's."""
    assert find_device("rtx-4090").peak("bf16") == 165.2e12
    for name in names():
        peaks = find_device(name).peaks
        if name.startswith("rtx-") and name != "rtx-a6000":
            more = 4 if name.startswith("rtx-20") else 2
            assert peaks["fp16"] == pytest.approx(more * peaks["fp32"], rel=0.02), name


def test_no_name_means_two_devices() -> None:
    seen: dict[str, str] = {}
    for entry in entries():
        for name in (entry["name"], *entry.get("also", ())):
            assert name not in seen, (name, seen)
            seen[name] = entry["name"]
            assert find_device(name).name == entry["name"]


def test_names_with_figures_find_the_same_again() -> None:
    over = find_device("rtx-3070{memory=8GB,bandwidth=448e9}")
    assert find_device(over.name) == over
    for text in ("hdr{latency=1e-5,bandwidth=2e10}", "{bandwidth=1.1e9,latency=20e-6}"):
        link = find_link(text)
        assert find_link(link.name).seconds(1e6) == link.seconds(1e6)
    assert find_link("{bandwidth=1.1e9,latency=20e-6}").seconds(1.1e9, 2) == pytest.approx(1 + 40e-6)
    assert find_link("10Gbit{}") == ethernet(10) == find_link("10Gbit")
    assert [link.name for link in between_hosts()][:3] == ["1Gbit", "2.5Gbit", "10Gbit"]
    assert Device("cpu AMD EPYC 7763", {}).kind == Device("cpu", {}).kind == "cpu"
    assert Device("cpux", {}).kind == "cuda" and find_device("mydev{tflops=9}").capability is None
