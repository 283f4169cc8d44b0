"""How a rank's process ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.worker.explain import from_checkpoint

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
    done = subprocess.run([sys.executable, "-c", RANK], env=env, timeout=60, capture_output=True, text=True)
    assert done.returncode == exits
    assert "the last word" in done.stdout


def _load_optimizer_and_scheduler(error: Exception) -> None:
    """As the function of Transformers that reads an optimizer's state."""
    raise error


@pytest.mark.parametrize(
    ("error", "its_fault"),
    [
        (RuntimeError("PytorchStreamReader failed reading zip archive"), True),
        (EOFError("Ran out of input"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RuntimeError("[gloo] Connection closed by peer [10.0.0.2]:4711"), False),
        (RuntimeError("NCCL error: unhandled system error"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
    ],
)
def test_a_checkpoint_is_given_up_for_what_its_files_are(error: Exception, its_fault: bool) -> None:
    """Not for a rank's lack of memory, nor for a peer that is gone."""
    with pytest.raises(type(error)) as raised:
        _load_optimizer_and_scheduler(error)
    assert from_checkpoint(raised.value) is its_fault
    try:
        raise type(error)(*error.args)
    except type(error) as elsewhere:
        assert not from_checkpoint(elsewhere)
