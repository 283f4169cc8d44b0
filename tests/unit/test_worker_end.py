"""How a rank's process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# A rank whose libraries abort while the interpreter ends, as threads do that nobody joined.
RANK = """
import atexit, os, sys, types
work = types.ModuleType("muster.worker.main")
work.run = lambda spec: print("the last word") or spec["code"]
sys.modules["muster.worker.main"] = work
atexit.register(os.abort)
from muster.worker.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(("code", "exits"), [(0, 0), (2, -6)])
def test_what_ended_well_stays_well(tmp_path: Path, code: int, exits: int) -> None:
    (spec := tmp_path / "spec.json").write_text(json.dumps({"place": str(tmp_path), "code": code}))
    env = {**os.environ, "MUSTER_SPEC": str(spec), "RANK": "0"}
    done = subprocess.run([sys.executable, "-c", RANK], env=env, timeout=60)
    assert done.returncode == exits
    assert "the last word" in (tmp_path / "rank0.log").read_text()
