"""The fixture `cluster`: three hosts for all tests of a session that want them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .cluster import Cluster, unavailable


def refuse(reason: str) -> None:
    """Skip, or fail where the environment says that there has to be a cluster."""
    if os.environ.get("MUSTER_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"MUSTER_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
    pytest.skip(reason)


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
