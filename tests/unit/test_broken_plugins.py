"""Third parties' workloads and engines that are installed and broken: who asks for one gets one clear error,
who does not gets none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.core.errors import BrokenPluginError, RecipeError, UsageError
from muster.core.recipe import recipe_class, recipe_classes
from muster.core.recipes import load_recipe
from muster.core.registry import ENGINES, WORKLOADS, load_plugin
from muster.engines.base import spec_of
from tests.pages import distribution

SPECS = {
    "lacking": "import nothing_like_this",
    "misspelt": "def (",
    "raising": "raise RuntimeError",
    "empty": "",
    "number": "RECIPE = SPEC = 3",
    "another": "class RECIPE: pass\nclass SPEC: pass",
}
LAUNCHERS = "muster.launchers"
BROKEN = [*SPECS, "gone"]


def muster(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "muster", *words], capture_output=True, text=True, check=False
    )


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution that offers a folder for each way of being broken, as workload and as engine."""
    for name, text in SPECS.items():
        folder = tmp_path / f"broken_{name}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "spec.py").write_text(text)
        (folder / "train.py").write_text("import nothing_like_this")
    points = "\n".join(f"{name} = broken_{name}" for name in BROKEN)
    groups = (WORKLOADS, ENGINES, LAUNCHERS)
    distribution(tmp_path, "broken", "\n".join(f"[{group}]\n{points}" for group in groups))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    spec_of.cache_clear()


def test_other_workloads_go_on(broken: Path) -> None:
    assert not set(BROKEN) & set(recipe_classes())
    done = muster("plan", "demo", "local:1", "--quick")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_workload_or_engine_is_named(broken: Path, name: str) -> None:
    for kind, asked in (("workload", recipe_class), ("engine", spec_of)):
        with pytest.raises(BrokenPluginError) as caught:
            asked(name)
        assert caught.value.where == f"{kind} {name}" and "\n" not in str(caught.value)
    with pytest.raises(BrokenPluginError):
        load_recipe("demo", [f"workload={name}"])


def test_its_ranks_half_and_a_launcher_too(broken: Path) -> None:
    for group, name, part in ((WORKLOADS, "empty", "train"), (LAUNCHERS, "gone", None)):
        with pytest.raises(BrokenPluginError):
            load_plugin(group, name, part)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def join(context): ...", "it has no RUNTIME"),
        ("class RUNTIME: ...", "its RUNTIME is not derived from EngineRuntime"),
        ("RUNTIME = 3", "its RUNTIME is not derived from EngineRuntime"),
    ],
)
def test_what_ranks_run_of_an_engine_is_checked(broken: Path, text: str, what: str) -> None:
    from muster.worker.engine import runtime_of

    (broken / "broken_empty" / "runtime.py").write_text(text)
    for module in [name for name in sys.modules if name.startswith("broken_empty")]:
        del sys.modules[module]
    with pytest.raises(BrokenPluginError, match=what) as caught:
        runtime_of("empty")
    assert "runtime.py" in str(caught.value)


@pytest.mark.parametrize("text", ["import nothing_like_this", "NAME = 1"])
@pytest.mark.parametrize(
    ("group", "words"),
    [("muster.checks", ["check", "local:1", "--no-group"]), ("muster.readers", ["judge", "."])],
)
def test_a_broken_check_or_reader_is_named(
    group: str, words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_module.py").write_text(text)
    (tmp_path / "node1.log").write_text("step 1 loss 2.0\n")
    distribution(tmp_path, "theirs", f"[{group}]\ntheirs = their_module\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = muster(*words)
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1 and "theirs" in warned[0] and "their_module.py" in warned[0]
    assert "itself" not in done.stderr


@pytest.mark.parametrize("setting", ["workload=lacking", "engine.name=raising"])
def test_the_command_says_one_line_and_a_hint(broken: Path, setting: str) -> None:
    done = muster("plan", "demo", "local:1", "--quick", setting)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and lines[0].startswith("error: ") and "itself" not in lines[0]
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]


@pytest.mark.parametrize(
    "name", ["5", "../x", "'../x'", '""', "_x", "muster.core", "a b", "true", "[a]", "{a: 1}"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    for key in ("workload", "engine.name"):
        with pytest.raises(RecipeError, match=key):
            load_recipe("demo", [f"{key}={name}"])


def test_a_key_of_a_workload_that_is_not_here() -> None:
    with pytest.raises(UsageError, match=r"data\.generated") as caught:
        load_recipe("demo", ["workload=base"])
    assert "text2sql" in (caught.value.hint or "")
