"""Fixtures of every tier, and what runs beside what (pytest-xdist)."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from muster.fleet import shell
from tests import warm
from tests.cluster.fixtures import able, cluster, slurm, whole, whole_slurm
from tests.shell import REAL

__all__ = ["able", "cluster", "slurm", "whole", "whole_slurm"]

settings.register_profile(
    "muster", deadline=None, max_examples=200, derandomize=True
)  # a busy machine is no failure
settings.load_profile("muster")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background: children would, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What runs keep for their user goes to a folder of the tests, and nothing is read of the developer's.
HOME = Path(tempfile.mkdtemp(prefix="muster-tests-home-"))
OWNER = os.getpid()
for name in ("STATE", "DATA"):
    os.environ[f"XDG_{name}_HOME"] = str(HOME / name.lower())


WARM = ("tests/real/", "tests/cluster/")  # their jobs would cost imports above all


# What a later test in the same process would read.
GUARDED = ("HF_", "TRANSFORMERS_", "XDG_", "MUSTER_", "CUDA_VISIBLE_DEVICES", "HOME", "PATH")


@pytest.fixture(autouse=True)
def processes_start_again() -> Iterator[None]:
    """End what a `FakeShell` stands for."""
    yield
    shell.start, shell.run = REAL


@pytest.fixture(autouse=True)
def environment_is_kept() -> Iterator[None]:
    """Fail the test that leaves another environment: a later one on its worker would fail for it."""
    before = dict(os.environ)
    yield
    changed = {
        name: os.environ.get(name)
        for name in {*before, *os.environ}
        if name.startswith(GUARDED) and os.environ.get(name) != before.get(name)
    }
    for name in changed:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    assert not changed, f"the test leaves variables of the environment: {changed}"


@pytest.fixture
def nothing_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No calibration of this user or of another test counts."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Which Python a test's processes are: before its fixtures, which may start some.

    MUSTER_TESTS_COLD=1: the real one everywhere.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # several wait for each other in spin loops where cores are busy
    forks = any(folder in item.path.as_posix() for folder in WARM) and "MUSTER_TESTS_COLD" not in os.environ
    if forks and item.get_closest_marker("real_start") is None:
        warm.use()
    else:
        warm.leave()


def pytest_unconfigure() -> None:
    """Nothing of the tests is left, however they end."""
    warm.end()
    if os.getpid() == OWNER:
        shutil.rmtree(HOME, ignore_errors=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What thousands of tests are made of is no garbage: it need not be looked through again and again."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


# Files whose tests share nothing that takes long to make: each test may go to another worker.
APART = ("real/test_resume", "real/test_fabric.py")
# These share what only one of the workers shall have.
TOGETHER = ("cluster/test_cluster_slurm", "cluster/test_slurm_jobs")
# What takes longest goes first, so that no worker is left alone with it at the end.
LONGEST = (
    "real/test_deepspeed_files", "real/test_gpu_kit", "real/test_states", "real/test_engines",
    "real/test_run.py", "real/test_traffic",
    "cluster/test_slurm_jobs", "cluster/test_jobs", "cluster/test_launchers", "cluster/test_check",
    "cluster/test_prepare", "real/test_flops", "real/test_bench", "real/test_endings", "real/test_readme",
    "cluster/test_fabric", "real/test_instruments", "real/test_wheel", "real/test_resume",
    "real/test_contracts_worker", "real/test_image_classification", "real/test_causal_lm",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files come first, where several workers share them."""
    if not hasattr(config, "workerinput"):
        return

    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(LONGEST) if name in item.path.as_posix()), len(LONGEST))

    items.sort(key=place)  # a stable sort: the order inside a file is kept


class ByFile(LoadScopeScheduling):
    """The tests of a file go to one worker, for what they share; but for those of APART and TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if any(name in file for name in TOGETHER):
            return "together"
        return nodeid if any(name in file for name in APART) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)
