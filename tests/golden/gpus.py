"""What nvidia-smi prints on made-up hosts, and what the probe of GPUs makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden.documents import workplace
from tests.unit.judging import probed

HEAD = (
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
    "<timestamp>Mon Jul 15 13:41:56 2026</timestamp><driver_version>{}</driver_version>"
)
SCRIPT = """#!/bin/sh
{before}
case "$0 $1" in
*journalctl*) cat {place}/journal;;
*-q) cat {place}/xml;;
*nvlink) cat {place}/links;;
*) cat {place}/abilities;;
esac
"""
UPTIME = 100_000.0  # s


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


def element(name: str, changes: Mapping[str, str | None], number: int = 0) -> str:
    """A GPU as a generation of drivers describes it, or a document that one printed, with other texts of some
    elements, the first of that name each. None: no such element; `*`: all of them."""
    text = Path(__file__).with_name(f"nvidia_smi_{name}.xml").read_text(encoding="utf-8")
    text = text.replace("00000000:18:00.0", f"00000000:{0x18 + number:02X}:00.0")
    for tag, value in changes.items():
        if tag == "*":
            text = re.sub(r"(<(\w+)>)[^<>]+(</\2>)", rf"\g<1>{value}\3", text)
            continue
        new = "" if value is None else f"<{tag}>{value}</{tag}>"
        text, count = re.subn(f"<{tag}>.*?</{tag}>", new, text, count=1, flags=re.DOTALL)
        assert count, tag
    return text


def link_lines(counts: Iterable[int | None], most: int) -> str:
    """All of nvidia-smi nvlink --status: so many active links of each GPU; None: nothing of that one."""
    return "".join(
        f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-5a10e6e5-95f7-2785-ed63-6f6147f304f7)\n"
        + "".join(f"\t Link {n}: {'26.562 GB/s' if n < count else '<inactive>'}\n" for n in range(most))
        for index, count in enumerate(counts)
        if count is not None
    )


def answer(
    gpus: Sequence[Any] | str, *, links: Sequence[int | None] | None = None, most: int = 18,
    abilities: Sequence[str] | None = None, driver: str = "550.127.05", before: str = "",
    kernel: Sequence[str | None] | None = None, mask: str | None = None, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """The probe's answer on a host. `gpus`: the generation of each, and what differs in it, or the whole
    text; `before`: shell words that nvidia-smi runs first; `kernel`: its log, and the journal; `changes`: of
    the answer."""
    made = gpus if isinstance(gpus, str) else [[each] if isinstance(each, str) else each for each in gpus]
    elements = made if isinstance(made, str) else [
        element(name, dict(*more), number) for number, (name, *more) in enumerate(made)
    ]  # fmt: skip
    text = "".join(elements)
    new = not isinstance(made, str) and made[0][0] == "hopper"
    if not isinstance(made, str) and not text.startswith("<?xml"):
        text = f"{HEAD.format(driver)}{text}</nvidia_smi_log>\n"
    place = workplace() / "smi"
    place.mkdir(exist_ok=True)
    ring, journal = kernel or (None, "")
    told = {
        "xml": text, "journal": journal or "",
        "links": link_lines([18] * len(elements) if new and links is None else links or (), most),
        "abilities": "".join(f"{each}\n" for each in abilities or ["9.0"] * (len(elements) if new else 0)),
    }  # fmt: skip
    for name, content in told.items():
        (place / name).write_text(content, encoding="utf-8")
    for name in ("nvidia-smi", "journalctl"):
        (place / name).write_text(SCRIPT.format(before=before if name == "nvidia-smi" else "", place=place))
        (place / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{place}:/usr/bin:/bin")
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if mask is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", mask)
        patch.setattr("ctypes.CDLL", Kernel(ring))
        patch.setattr("time.monotonic", lambda: UPTIME)
        found: dict[str, Any] = probed("gpu")
    if kernel is None:
        found |= {"xids": [], "log_from": 0.0}
    return {**found, "pci": len(found["gpus"]), **changes}
