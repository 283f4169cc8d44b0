"""Fixtures of every tier, and what runs beside what (pytest-xdist)."""

import os
import signal
import tempfile
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.cluster.fixtures import able, cluster, slurm, whole, whole_slurm

__all__ = ["able", "cluster", "slurm", "whole", "whole_slurm"]

settings.register_profile(
    "muster", deadline=None, max_examples=200, derandomize=True
)  # a busy machine is no failure
settings.load_profile("muster")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background: children would, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What runs keep for their user goes to a folder of the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="muster-tests-state-")

# Files whose tests share nothing that takes long to make: each test may go to another worker.
APART = ("real/test_resume", "real/test_fabric.py")
# What takes longest goes first, so that no worker is left alone with it at the end.
LONGEST = (
    "real/test_states", "real/test_engines", "real/test_bench", "cluster/test_jobs", "cluster/test_prepare",
    "cluster/test_slurm_jobs", "cluster/test_launchers", "real/test_traffic", "real/test_instruments",
    "real/test_wheel", "real/test_resume", "real/test_contracts_worker", "real/test_image_classification",
    "real/test_causal_lm", "real/test_flops",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files come first, where several workers share them."""
    if not hasattr(config, "workerinput"):
        return

    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(LONGEST) if name in item.path.as_posix()), len(LONGEST))

    items.sort(key=place)  # a stable sort: the order inside a file is kept


class ByFile(LoadScopeScheduling):
    """The tests of a file go to one worker, for what they share; but for those of APART."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if any(name in file for name in APART) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)
