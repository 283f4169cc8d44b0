"""An engine from outside: installed as one folder or one module, planned, trained, resumed and reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster
from muster.core.errors import RecipeError, UsageError
from muster.inputs.read import read_inputs
from muster.runs.dry_run import dry_run
from muster.runs.resume import resume
from muster.store.runfolder import RunFolder
from tests.pages import ROOT, install
from tests.support import TINY, losses, needs_torch, run

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

BARE = """\
from muster.worker.engine import EngineRuntime
from muster.worker.together import backend, join_group

class RUNTIME(EngineRuntime):
    def join(self, context):
        join_group(context, backend(context))
        print("joined by an engine of one module")

    def arguments(self, context):
        return {"ddp_find_unused_parameters": False, "ddp_backend": backend(context)}
"""
SETTINGS = ["engine.zero=0", "batch.micro=4", "checkpoint.every=2", "measure.window=1"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """docs/own-engine.md on the path of the controller and its ranks, and an engine of one module."""
    needs_torch()
    folder = tmp_path_factory.mktemp("installed")
    install(ROOT / "docs" / "own-engine.md", folder, "bare = bare_engine\n")
    (folder / "bare_engine.py").write_text(BARE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))  # ranks on this machine have it from their agents
        yield folder


def failed(done: RunFolder) -> None:
    """A finished run as one that ended before its time."""
    document = json.loads(done.result.read_text())
    done.result.write_text(json.dumps({**document, "status": "failed"}))


def test_one_folder_is_a_whole_engine(installed: Path, tmp_path: Path) -> None:
    mine = [*SETTINGS, "engine.name=small-buckets"]
    planned = muster.plan("demo", hosts="local:2x1", overrides=[*TINY, *mine], traced=False)
    assert planned.engine == "small-buckets" and planned.memory is not None
    told = dry_run(read_inputs("demo", "local:2x1", [*TINY, *mine]), RunFolder(tmp_path / "tried"))
    assert told["plan"]["engine"] == "small-buckets" and told["world_size"] == 2
    with pytest.raises(RecipeError, match="offloads nothing"):
        read_inputs("demo", "local:2x1", [*mine, "engine.offload=optimizer"])
    done, result = run(tmp_path / "run", "local:2x1", "train.max_steps=4", *mine)
    assert result.status == "succeeded", result.failure
    assert result.engine == "small-buckets"
    assert json.loads(done.plan.read_text())["memory"]["device"]["buckets"] > 0
    before = losses(done)
    (done.checkpoints / "checkpoint-4" / "complete.json").unlink()
    failed(done)
    again = resume(done, leave=["local1"])  # its spec is DDP's: any ranks go on
    assert (again.status, again.attempt, again.world_size) == ("succeeded", 2, 1), again.failure
    assert losses(done) == pytest.approx(before, rel=1e-4)
    assert "small-buckets" in muster.report(str(done.path)).read_text()


def test_one_module_is_trained_as_it_is_and_nothing_is_foretold(installed: Path, tmp_path: Path) -> None:
    mine = [*SETTINGS, "engine.name=bare"]
    done, result = run(tmp_path / "run", "local:2x1", "train.max_steps=2", *mine)
    assert result.status == "succeeded", result.failure
    assert (result.engine, json.loads(done.plan.read_text())["memory"]) == ("bare", None)
    logs = [path.read_text() for path in done.logs.glob("*.rank*.log")]
    assert len(logs) == 2 and all("joined by an engine of one module" in text for text in logs)
    failed(done)
    with pytest.raises(UsageError, match="begun on 2 ranks"):
        resume(done, leave=["local1"])
