"""A host that is slower gets less to do: its ranks' share is measured there, over ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import refuse
from tests.cluster.scenarios import PAIR, all_gone, over_ssh
from tests.cluster.slow import quota_root, slowed
from tests.jobs import Job
from tests.support import needs_torch

pytestmark = [pytest.mark.cluster, pytest.mark.real_start, pytest.mark.timeout(280)]


def test_a_slow_host_gets_a_smaller_share(cluster: Cluster, tmp_path: Path) -> None:
    """Less than half a core against what the machine has: no time is asserted, only who does more."""
    needs_torch()
    if quota_root() is None:
        refuse("this needs control groups with a CPU quota")
    overrides = [
        "engine.name=ddp", "engine.zero=0", "batch.micro=8", "batch.split=measured",
        "train.max_steps=4", "measure.window=2", *over_ssh(cluster),
    ]  # fmt: skip
    with slowed(cluster, "node2", 0.4), Job(tmp_path / "mixed-run", PAIR, *overrides) as job:
        code, result = job.finish(250)
        assert code == 0, result
        fast, slow = result["hosts"]
        assert fast["share"] + slow["share"] == 16
        assert slow["share"] < fast["share"]
        assert slow["speed"] < fast["speed"]
        assert result["samples"] == 4 * 16
        assert {h["facts"]["network"]["interface"] for h in result["hosts"]} == {"eth0"}
        assert any(f"node1 {fast['share']} (" in note for note in result["notes"])
        assert all_gone(cluster, job)
