"""What the probe of GPUs does beside reading: rooms/gpus.json has what it reads, and what is made of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.judging import FAIL, judged, probed


def test_a_driver_that_hangs_does_not_hang_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process, which is not ours to wait for, is ended with what it started."""
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids; sleep 1000\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    driver = judged("gpu", {"n1": probed("gpu", timeout=1.0)})["driver", "n1"]
    assert driver.level == FAIL and "hangs, or is loaded again" in driver.problem and driver.remedy
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_mask_counts_also_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,-1")
    assert probed("gpu")["mask"] == 2
