"""Ranks among each other: hosts whose data differ do not train, and are named; how a group is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs_torch, ranks

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
EXPECTED = {
    "causal-lm": r"the text is not .* all hosts: node0 has \d+ tokens, .*; node1 has \d+ tokens, .*",
    "text2sql": r"the questions are not .* all hosts: node0 has \d+ to train .*; node1 has \d+ to .*",
    "image-classification": r"the images are not .* all hosts: node0 has 19 to .*; node1 has 20 to .*",
}


def test_two_ranks_with_unlike_data_do_not_train(tmp_path: Path) -> None:
    """One word is another on the second host, or there is one more image."""
    needs_torch()
    pytest.importorskip("PIL")
    done = subprocess.run(
        ranks(2, "tests.real.unlike_ranks", str(tmp_path)),
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found.keys() == EXPECTED.keys()
    for workload, words in EXPECTED.items():
        first, second = found[workload]
        assert first == second
        assert re.fullmatch(f"data: {words}", first), first


def test_a_group_that_was_left_is_not_torn_down(tmp_path: Path) -> None:
    """Its threads stay: PyTorch waits for them with the interpreter's lock held, which they may want."""
    needs_torch()
    code = f"""
import gc, os
import torch, torch.distributed as dist
from muster.worker.together import initialised, leave
dist.init_process_group("gloo", store=dist.FileStore({str(tmp_path / "store")!r}, 1), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
more = dist.new_group([0])
model(torch.ones(1, 2)).sum().backward()
before = len(os.listdir("/proc/self/task"))
leave()
del model, more
gc.collect()
assert not initialised()
assert before > 3 and len(os.listdir("/proc/self/task")) == before
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
