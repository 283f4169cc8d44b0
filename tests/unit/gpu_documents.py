"""What nvidia-smi prints, as NVIDIA's drivers of several generations do: `nvidia-smi -q -x` changed the names
of its elements over the years."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_REASONS = (
    "gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    "sync_boost", "sw_thermal_slowdown", "display_clocks_setting",
)  # fmt: skip


def tags(**values: object) -> str:
    """One element per name; None: N/A, as drivers say it."""
    return "".join(f"<{name}>{'N/A' if value is None else value}</{name}>" for name, value in values.items())


def _reasons(word: str, active: tuple[str, ...]) -> str:
    lines = {
        f"clocks_{word}_reason_{name}": "Active" if name in active else "Not Active" for name in _REASONS
    }
    return f"<clocks_{word}_reasons>{tags(**lines)}</clocks_{word}_reasons>"


def _processes(pids: tuple[int, ...]) -> str:
    one = "<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>{}</pid><type>C</type></process_info>"
    return f"<processes>{''.join(one.format(pid) for pid in pids)}</processes>"


def _pci(width: int, most: int, gen: int) -> str:
    inner = (
        f"<pcie_gen>{tags(max_link_gen=gen, current_link_gen=1)}</pcie_gen>"
        f"<link_widths><max_link_width>{most}x</max_link_width>"
        f"<current_link_width>{width}x</current_link_width></link_widths>"
    )
    return f"<pci><pci_bus>3B</pci_bus><pci_gpu_link_info>{inner}</pci_gpu_link_info></pci>"


def hopper(
    index: int = 0,
    *,
    name: str = "NVIDIA H100 80GB HBM3",
    dram: int = 0,
    sram: int = 0,
    pending: str = "No",
    failure: str = "No",
    active: tuple[str, ...] = ("gpu_idle",),
    celsius: int = 33,
    left: int = 53,
    width: int = 16,
    pids: tuple[int, ...] = (),
    used: int = 4,
    mig: str = "Disabled",
    persistence: str = "Enabled",
    fabric: str = "Completed",
    power: float = 700.0,
    clock: int = 1980,
    reset: str = "No",
) -> str:
    """A GPU as drivers from 550 on describe it."""
    counts = tags(
        sram_correctable=0,
        sram_uncorrectable_parity=sram,
        sram_uncorrectable_secded=0,
        dram_correctable=17,
        dram_uncorrectable=dram,
    )
    once = tags(dram_uncorrectable=9, sram_uncorrectable_parity=4, sram_threshold_exceeded="No")
    return (
        f'<gpu id="00000000:{index + 0x18:02X}:00.0">'
        + tags(product_name=name, product_brand="NVIDIA", product_architecture="Hopper")
        + tags(persistence_mode=persistence, addressing_mode="None")
        + f"<mig_mode>{tags(current_mig=mig, pending_mig=mig)}</mig_mode><mig_devices>None</mig_devices>"
        + f"<gpu_reset_status>{tags(reset_required=reset)}</gpu_reset_status>"
        + _pci(width, 16, 5)
        + tags(performance_state="P0")
        + _reasons("event", active)
        + f"<fb_memory_usage>{tags(total='81559 MiB', used=f'{used} MiB')}</fb_memory_usage>"
        + f"<ecc_mode>{tags(current_ecc='Enabled', pending_ecc='Enabled')}</ecc_mode>"
        + f"<ecc_errors><volatile>{counts}</volatile><aggregate>{once}</aggregate></ecc_errors>"
        + f"<retired_pages>{tags(pending_blacklist=None, pending_retirement=None)}</retired_pages>"
        + f"<remapped_rows>{tags(remapped_row_unc=0, remapped_row_pending=pending)}"
        + f"{tags(remapped_row_failure=failure)}</remapped_rows>"
        + f"<temperature>{tags(gpu_temp=f'{celsius} C', gpu_temp_tlimit=f'{left} C')}</temperature>"
        + f"<gpu_power_readings>{tags(power_draw='72.1 W', current_power_limit=f'{power:.2f} W')}"
        + f"{tags(default_power_limit='700.00 W')}</gpu_power_readings>"
        + f"<applications_clocks>{tags(graphics_clock='1980 MHz')}</applications_clocks>"
        + f"<default_applications_clocks>{tags(graphics_clock='1980 MHz')}</default_applications_clocks>"
        + f"<max_clocks>{tags(graphics_clock=f'{clock} MHz', sm_clock=f'{clock} MHz')}</max_clocks>"
        + f"<fabric>{tags(state=fabric, status='Success')}</fabric>"
        + f"<supported_clocks>{tags(value='2619 MHz')}</supported_clocks>"
        + _processes(pids)
        + "</gpu>"
    )


def recorded() -> str:
    """What the driver 580.159.04 printed of an H100 in a virtual machine that has it to itself: whole, but
    for what names this very GPU and the list of its clocks."""
    return (Path(__file__).parent / "nvidia_smi_h100.xml").read_text(encoding="utf-8")


def lost(gpu: str, word: str) -> str:
    """The same GPU when it no longer answers: the driver says so of every field."""
    return re.sub(r"(<(\w+)>)[^<>]+(</\2>)", rf"\1{word}\3", gpu)


def volta(index: int = 0, *, double: int | None = 0, retire: str = "No", application: int = 1312) -> str:
    """A GPU as drivers up to 470 describe it: double bit errors, throttle reasons, power_readings."""
    bits = f"<single_bit>{tags(device_memory=0, total=0)}</single_bit>"
    bits += f"<double_bit>{tags(device_memory=double, total=double)}</double_bit>"
    return (
        f'<gpu id="00000000:{index + 0x18:02X}:00.0">'
        + tags(product_name="Tesla V100-SXM2-32GB", product_brand="Tesla", persistence_mode="Enabled")
        + f"<mig_mode>{tags(current_mig=None, pending_mig=None)}</mig_mode>"
        + _pci(16, 16, 3)
        + _reasons("throttle", ("gpu_idle",))
        + f"<fb_memory_usage>{tags(total='32510 MiB', used='0 MiB', free='32510 MiB')}</fb_memory_usage>"
        + f"<ecc_mode>{tags(current_ecc='Enabled', pending_ecc='Enabled')}</ecc_mode>"
        + f"<ecc_errors><volatile>{bits}</volatile><aggregate>{bits}</aggregate></ecc_errors>"
        + f"<retired_pages><double_bit_retirement>{tags(retired_count=0)}</double_bit_retirement>"
        + f"{tags(pending_blacklist=retire, pending_retirement=retire)}</retired_pages>"
        + tags(remapped_rows=None)
        + f"<temperature>{tags(gpu_temp='36 C', gpu_temp_slow_threshold='87 C')}</temperature>"
        + f"<power_readings>{tags(power_limit='300.00 W', default_power_limit='300.00 W')}</power_readings>"
        + f"<applications_clocks>{tags(graphics_clock=f'{application} MHz')}</applications_clocks>"
        + f"<default_applications_clocks>{tags(graphics_clock='1312 MHz')}</default_applications_clocks>"
        + f"<max_clocks>{tags(graphics_clock='1530 MHz', sm_clock='1530 MHz')}</max_clocks>"
        + "<processes></processes></gpu>"
    )


def geforce(index: int = 0, *, celsius: int = 44) -> str:
    """A consumer GPU: nearly everything is N/A."""
    return (
        f'<gpu id="00000000:{index + 1:02X}:00.0">'
        + tags(
            product_name="NVIDIA GeForce GTX 1070", product_architecture="Pascal", persistence_mode="Disabled"
        )
        + f"<mig_mode>{tags(current_mig=None)}</mig_mode>"
        + _pci(8, 16, 3)
        + _reasons("throttle", ())
        + f"<fb_memory_usage>{tags(total='8192 MiB', used='65 MiB')}</fb_memory_usage>"
        + f"<ecc_mode>{tags(current_ecc=None)}</ecc_mode>"
        + f"<ecc_errors><volatile><single_bit>{tags(total=None)}</single_bit>"
        + f"<double_bit>{tags(total=None)}</double_bit></volatile></ecc_errors>"
        + f"<retired_pages>{tags(pending_retirement=None)}</retired_pages><remapped_rows>N/A</remapped_rows>"
        + f"<temperature>{tags(gpu_temp=f'{celsius} C', gpu_temp_slow_threshold='97 C')}</temperature>"
        + f"<power_readings>{tags(power_limit=None, default_power_limit=None)}</power_readings>"
        + f"<applications_clocks>{tags(graphics_clock='Requested functionality has been deprecated')}"
        + f"</applications_clocks><max_clocks>{tags(sm_clock='1911 MHz')}</max_clocks>"
        + "<processes></processes></gpu>"
    )


def document(*gpus: str, driver: str = "550.127.05") -> str:
    """All of nvidia-smi -q -x."""
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        + tags(timestamp="Mon Jul 15 13:41:56 2026", driver_version=driver, cuda_version="12.4")
        + tags(attached_gpus=len(gpus))
        + "".join(gpus)
        + "</nvidia_smi_log>\n"
    )


def nvlink(*counts: int, most: int = 18) -> str:
    """All of nvidia-smi nvlink --status: so many active links on each GPU."""
    lines = []
    for index, count in enumerate(counts):
        lines.append(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-5a10e6e5-95f7-2785-ed63-6f6147f304f7)")
        lines += [f"\t Link {n}: {'26.562 GB/s' if n < count else '<inactive>'}" for n in range(most)]
    return "\n".join(lines) + "\n"


def install(folder: Path, xml: str, links: str = "", abilities: str = "", before: str = "") -> Path:
    """An executable nvidia-smi in a folder for PATH. `before`: shell words that run first."""
    for name, text in (("xml", xml), ("links", links), ("abilities", abilities)):
        (folder / name).write_text(text, encoding="utf-8")
    script = folder / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\n{before}\ncase "$1" in\n-q) cat {folder}/xml;;\nnvlink) cat {folder}/links;;\n'
        f"*) cat {folder}/abilities;;\nesac\n",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return Path(f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
