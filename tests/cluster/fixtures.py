"""The fixtures `cluster` and `slurm`: three hosts for all tests of a session that want them, with Slurm or
without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from . import slurm as slurm_module
from .cluster import Cluster, unavailable
from .namespaces import TOOL_PATH
from .slurm import Slurm


def refuse(reason: str) -> None:
    """Skip, or fail where the environment says that there has to be a cluster."""
    if os.environ.get("MUSTER_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"MUSTER_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def need(*programs: str) -> None:
    """Skip, or fail, where one of these programs is missing."""
    missing = [name for name in programs if shutil.which(name, path=TOOL_PATH) is None]
    if missing:
        refuse(f"this needs {', '.join(missing)}")


@pytest.fixture(scope="session")
def able() -> None:
    """For a test that makes clusters of its own."""
    reason = unavailable()
    if reason is not None:
        refuse(reason)


@pytest.fixture(scope="session")
def cluster(able: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared, so a test that cuts, shapes or kills a host takes `whole` instead."""
    with Cluster(size=3, base=tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster for a test that damages it: made whole again afterwards."""
    yield cluster
    cluster.heal()


@pytest.fixture(scope="session")
def slurm(cluster: Cluster) -> Iterator[Slurm]:
    """Slurm on the shared hosts, so a test that leaves jobs or harms a host takes `whole_slurm` instead."""
    reason = slurm_module.unavailable()
    if reason is not None:
        refuse(reason)
    with Slurm(cluster) as running:
        yield running


@pytest.fixture
def whole_slurm(cluster: Cluster, slurm: Slurm) -> Iterator[Slurm]:
    """The shared Slurm for a test that damages it: no job is left and every host idle afterwards."""
    yield slurm
    cluster.heal()
    slurm.heal()
