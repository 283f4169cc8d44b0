"""Devices, links and machines as data: every figure sourced, names as people type them, errors that help."""

from __future__ import annotations

import pytest

from muster.core.errors import UsageError
from muster.core.hardware.devices import (
    BY_HAND,
    Device,
    capability_for,
    driver_device,
    entries,
    find_device,
    named,
    names,
    plain_name,
)
from muster.core.hardware.links import between_hosts, ethernet, find_link
from muster.core.hardware.links import names as link_names
from muster.core.hardware.peaks import stated_peak
from tests.support import parse_machines


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "h200"), ("H200", "h200"), ("a100-80gb", "a100-sxm4-80gb"), ("A100 80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("a100", "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"), ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"), ("v100", "v100-sxm2-16gb"),
        ("v100_32gb", "v100-sxm2-32gb"), ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"), ("h100", "h100-sxm5"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5"),
        ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 80GB HBM2e", "h100-pcie"),
        ("NVIDIA B300 SXM6 AC", "b300"), ("NVIDIA GB200", "gb200"), ("NVIDIA GB300", "gb300"),
        ("rtx3070", "rtx-3070"), ("NVIDIA GeForce RTX 3070", "rtx-3070"),
        ("Tesla P4", "p4"), ("gtx 1070", "gtx-1070"), ("A10", "a10"), ("B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("A100 80 GB", "a100-sxm4-80gb"), ("a100 40GB PCIe", "a100-pcie-40gb"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"), ("RTX 4070 Ti", "rtx-4070-ti"),
        ("NVIDIA GeForce RTX 2080 SUPER", "rtx-2080-super"), ("GeForce GTX 1060 6GB", "gtx-1060-6gb"),
        ("NVIDIA A10G", "a10g"), ("NVIDIA TITAN RTX", "titan-rtx"), ("TITAN V", "titan-v"),
        ("AMD Instinct MI250X/MI250", "mi250"), ("AMD Instinct MI250X", "mi250x"), ("rtx5090", "rtx-5090"),
        ("RTX 4060 Ti 16GB", "rtx-4060-ti-16gb"), ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA GH200 480GB", "gh200"), ("rtx 3070 8gb", "rtx-3070"), ("V100 32 gb", "v100-sxm2-32gb"),
    ],
)  # fmt: skip
def test_names_as_people_and_drivers_write_them(text: str, name: str) -> None:
    assert find_device(text).name == name


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


CAPABILITIES = {
    "v100": (7, 0), "v100s": (7, 0), "p4": (6, 1), "gtx-1070": (6, 1), "rtx-3070": (8, 6), "a10": (8, 6),
    "a100": (8, 0), "a30": (8, 0), "h100": (9, 0), "h200": (9, 0), "b200": (10, 0), "t4": (7, 5),
    "p100": (6, 0), "p100-12gb": (6, 0), "l4": (8, 9), "rtx-4090": (8, 9), "a40": (8, 6), "gh200": (9, 0),
    "gb200": (10, 0), "b300": (10, 3), "gb300": (10, 3), "rtx-5090": (12, 0), "rtx-2080-ti": (7, 5),
    "titan-v": (7, 0), "titan-rtx": (7, 5), "gtx-1080-ti": (6, 1), "a10g": (8, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CAPABILITIES)
def test_compute_capabilities_are_the_makers(name: str) -> None:
    assert find_device(name).capability == CAPABILITIES[name]


def test_compute_capability_by_hand() -> None:
    """As given, else the table's, else the lowest that has the precisions whose figures are given."""
    assert find_device("mydev{tflops=9,capability=8.6}").able == (8, 6)
    assert find_device("r300{fp32=75,capability=10.3}").able == (10, 3)
    assert find_device("t4{fp16=60}").able == (7, 5)
    assert find_device("t4{capability=8}").able == (8, 0)
    assert find_device("mydev{tflops=9}").able == (8, 0)
    assert find_device("mydev{tflops=9,fp8=18}").able == (8, 9)
    assert "fp8" not in find_device("mydev{tflops=9}").peaks
    assert find_device("mydev{fp32=9,fp16=20}").able == (7, 0)
    assert find_device("mydev{fp32=9}").able == (6, 0)
    assert find_device("mydev{tflops=9}").capability is None


@pytest.mark.parametrize("text", ["a100-90gb", "A100 64 GB", "NVIDIA V100 24GB", "t4 8gb"])
def test_a_device_of_another_size_is_not_taken_for_one_of_the_table(text: str) -> None:
    with pytest.raises(UsageError, match="there are no figures") as caught:
        find_device(text)
    assert "tflops=" in (caught.value.hint or "")


def test_no_name_means_two_devices() -> None:
    seen: dict[str, str] = {}
    for entry in entries():
        for name in (entry["name"], *entry.get("also", ())):
            assert name not in seen, (name, seen)
            seen[name] = entry["name"]
            assert find_device(name).name == entry["name"]


def test_unknown_devices_name_the_nearest_and_the_way_by_hand() -> None:
    with pytest.raises(UsageError, match="there are no figures for a device 'h20'") as caught:
        find_device("h20")
    assert "h200" in (caught.value.hint or "") and "tflops=" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="'nothing-like-it'") as caught:
        find_device("nothing-like-it")
    assert "known: " in (caught.value.hint or "")
    for part in ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "GRID A100-10C", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        assert driver_device(part) is None


def test_a_device_by_hand() -> None:
    found = find_device("mydev{tflops=100,memory=48e9,bandwidth=900e9}")
    peaks = dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), 100e12)
    name = "mydev{bandwidth=9e+11,memory=4.8e+10,tflops=100}"
    assert found == Device(name, peaks, 48 * 10**9, 900e9)
    assert find_device("mydev{fp32=20, bf16=80, memory=48GiB}").peaks == {"fp32": 20e12, "bf16": 80e12}
    assert find_device("mydev{fp32=20,memory=48GiB}").memory == 48 * 2**30
    over = find_device("rtx-3070{bf16=81,bandwidth=448GB/s}")  # figures laid over those of the table
    assert over.peaks["fp32"] == 20.3e12 and over.peaks["bf16"] == 81e12 and over.bus == "pcie4"
    assert over.memory == 7842 * 2**20 and over.bandwidth == 448e9
    assert find_device("cpu{tflops=0.1}").kind == "cpu"
    assert Device("cpu AMD EPYC 7763", {}).kind == Device("cpu", {}).kind == "cpu"
    assert Device("cpux", {}).kind == find_device("cpu-like{tflops=1}").kind == "cuda"


def test_figures_by_hand_are_part_of_a_name() -> None:
    """In one spelling, which finds the same again; what is the table's alone keeps its name."""
    for text in ("h200{bf16=700}", "H200{ bf16 = 7e2 }", "h200{bf16=700.0,}"):
        assert find_device(text).name == "h200{bf16=700}"
    over = find_device("rtx-3070{memory=8GB,bandwidth=448e9}")
    assert find_device(over.name) == over
    assert find_device("h200{}").name == "h200" == plain_name("h200{bf16=700}")
    for text in ("10Gbit{usable=0.5}", "10gbe{ usable=.5 }"):
        assert find_link(text).name == "10Gbit{usable=0.5}"
    assert len({find_link(f"{{bandwidth={size}e9}}").name for size in (1, 2)}) == 2
    for text in ("hdr{latency=1e-5,bandwidth=2e10}", "{bandwidth=1.1e9,latency=20e-6}"):
        link = find_link(text)
        assert find_link(link.name).seconds(1e6) == link.seconds(1e6)
    assert find_link("{bandwidth=1234567.8}").name != find_link("{bandwidth=1234567.9}").name
    assert find_link("10Gbit{}") == find_link("10Gbit")
    assert find_link("{bandwidth=2e9,usable=0.5}").bandwidth == 1e9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mydev{tflop=100}", "'tflop=100' is not understood"), ("mydev{memory=8GB}", "its computing speed"),
        ("mydev{tflops=-1}", "must be a number above 0"), ("mydev{tflops=nan}", "must be a number above 0"),
        ("mydev{tflops=much}", "must be a number above 0"), ("mydev{tflops=100", "is not a device"),
        ("{tflops=100}", "is not a device"), ("mydev{tflops}", "'tflops' is not understood"),
        ("mydev{tflops=1e400}", "must be a number above 0"),
    ],
)  # fmt: skip
def test_bad_figures_by_hand(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find_device(text)


def test_peaks_are_those_of_the_table() -> None:
    found = stated_peak("NVIDIA A100-SXM4-80GB", "bf16")
    assert found is not None and found.flops == find_device("a100-80gb").peak("bf16") == 312e12


# Links:


@pytest.mark.parametrize(
    ("text", "stated", "name"),
    [
        ("10Gbit", 1.25e9, "10Gbit"), ("10 gbit", 1.25e9, "10Gbit"), ("10GbE", 1.25e9, "10Gbit"),
        ("50mbit", 6.25e6, "50Mbit"), ("2.5Gbit/s", 3.125e8, "2.5Gbit"), ("400Gbps", 5e10, "400Gbit"),
        ("200Gbit-ib", 2.5e10, "200Gbit-ib"), ("hdr", 2.5e10, "ib-hdr"), ("ib-ndr", 5e10, "ib-ndr"),
        ("nvlink4", 4.5e11, "nvlink4"), ("pcie4", 31.508e9, "pcie4"), ("1Tbit", 1.25e11, "1000Gbit"),
    ],
)  # fmt: skip
def test_links_as_people_write_them(text: str, stated: float, name: str) -> None:
    found = find_link(text)
    assert found.stated == pytest.approx(stated)
    assert found.name == name
    assert 0.5 < found.bandwidth / found.stated <= 1 and 0 < found.latency < 1e-3 and found.source


def test_links_by_hand() -> None:
    assert find_link("10Gbit{usable=0.8}").bandwidth == pytest.approx(1e9)
    assert find_link("10Gbit{latency=1e-3}").latency == 1e-3
    own = find_link("{bandwidth=1.1e9,latency=20e-6}")
    assert (own.bandwidth, own.latency) == (1.1e9, 20e-6)
    assert own.seconds(1.1e9, 2) == pytest.approx(1 + 40e-6)
    assert [link.name for link in between_hosts()][:3] == ["1Gbit", "2.5Gbit", "10Gbit"]
    assert ethernet(10) == find_link("10Gbit")


@pytest.mark.parametrize(
    "text",
    ["10", "fast", "10Gbit{", "10Gbit{speed=3}", "10Gbit{usable=2}", "0Gbit", "{latency=1}", "nvlink9", ""],
)
def test_bad_links(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_link(text)
    assert caught.value.hint


# Machines:


def test_machines() -> None:
    found = parse_machines("h200:8x4,10Gbit")
    assert (found.device.name, found.per_host, found.hosts, found.ranks) == ("h200", 8, 4, 32)
    assert found.link == find_link("10Gbit") and found.inner == find_link("nvlink4")
    assert found.bus == find_link("pcie5")
    one = parse_machines("h200")
    assert (one.per_host, one.hosts, one.link) == (1, 1, None)
    assert parse_machines("a10:4").inner == find_link("pcie4")  # no NVLink: over the bus
    assert parse_machines("a100:8x2,hdr,pcie4").inner == find_link("pcie4")
    assert parse_machines("cpu{tflops=0.1}:2x3,50Mbit").inner == find_link("loopback")
    own = parse_machines("mydev{tflops=100,memory=48e9,bandwidth=900e9}:8x4,10Gbit{usable=0.8,latency=1e-4}")
    assert own.ranks == 32 and own.device.bandwidth == 900e9
    assert own.link is not None and own.link.latency == 1e-4 and own.inner is None
    inner = parse_machines("a100:8x2,hdr,pcie4{usable=0.5}")
    assert inner.inner == find_link("pcie4{usable=0.5}") and inner.link == find_link("hdr")
    assert found.on(2).ranks == 16 and found.over(find_link("hdr")).link == find_link("ib-hdr")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h200:", "not a number of devices"), ("h200:8x", "'8x' is not a number"), ("h200:0x4", "from 1 to"),
        ("h200:8x4,", "there is no link named"), ("h200:8x4,10Gbit,25Gbit", "between hosts is given twice"),
        ("h200:8x4,nvlink4,pcie4", "a host's devices is given twice"), ("", "not a device"),
        (":8x4", "not a number of devices"), ("h200:8x4,{", "not a device with its numbers"),
        ("h200:8x4x2", "is not a number of devices"), ("nope:8x4", "there are no figures"),
        ("h200:999999x999999", "from 1 to"),
    ],
)  # fmt: skip
def test_bad_machines(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_machines(text)
