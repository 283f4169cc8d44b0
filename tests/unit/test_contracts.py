"""What every plug-in and every verb keeps, whichever they are: those of tomorrow too."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import muster
import muster.fleet.launchers
from muster.cli.app import FILES, VERBS, app
from muster.core.registry import CONTRACTS, FOLDERS, PACKAGES, load_plugin, plugin_names

LAUNCHERS = sorted(plugin_names("muster.launchers"))
HEAVY = {"torch", "transformers", "deepspeed", "accelerate", "datasets", "peft", "numpy"}
LAZY = {"rich.progress", "pyarrow", "pydantic", "jinja2", "yaml", "tensorboardX", "re2"}
GROUPS = [
    "muster.launchers",
    "muster.checks",
    "muster.readers",
    "muster.worker.engines",
    "muster.worker.workloads",
]


def promised(docstring: str) -> dict[str, list[str]]:
    """The functions that a package's docstring names, with their parameters."""
    found = re.findall(r"^(\w+)\(([^)]*)\)", docstring.replace("    ", ""), re.MULTILINE)
    return {name: [word.strip() for word in inside.split(",") if word.strip()] for name, inside in found}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_has_what_is_promised(name: str) -> None:
    """Each function takes its arguments by position, in the promised order."""
    functions = promised(muster.fleet.launchers.__doc__ or "")
    assert set(functions) == {"requests", "remote"}
    module = load_plugin("muster.launchers", name)
    assert isinstance(module.ONE_MACHINE, bool)
    assert isinstance(module.DIALS, bool)
    for function, parameters in functions.items():
        signature = inspect.signature(getattr(module, function))
        signature.bind(*parameters)  # TypeError: it takes other arguments
        assert inspect.getdoc(getattr(module, function))


@pytest.mark.parametrize("package", ["muster.worker.engines", "muster.worker.workloads"])
def test_the_workers_plug_ins_can_be_listed_without_torch(package: str) -> None:
    """Control-side checks may look at them; tests/real/test_contracts_worker.py imports them."""
    code = (
        "import json, sys; from muster.core.registry import plugin_names;"
        f"names = plugin_names({package!r}); print(json.dumps([sorted(names), sorted(sys.modules)]))"
    )
    names, modules = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert names
    assert not HEAVY & set(modules)


@pytest.mark.parametrize("package", GROUPS)
def test_a_module_is_in_the_registry_by_being_there(package: str) -> None:
    spec = importlib.util.find_spec(PACKAGES.get(package, package))
    assert spec is not None and spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations)))
    if package in FOLDERS:
        files = {path.parent.name for path in folder.glob("*/__init__.py")}
    else:
        files = {path.stem for path in folder.glob("*.py") if path.stem[0] != "_"} - {"base"}
    assert files
    assert files <= set(plugin_names(package))


# --- third parties ---------------------------------------------------------------------------------------


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that offers a plug-in of its own, and one under each name that ships."""
    wanted = [each if isinstance(each, str) else each[0] for needed in CONTRACTS.values() for each in needed]
    (tmp_path / "theirs.py").write_text(f"THEIRS = {' = '.join(wanted)} = True\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = []
    for package in GROUPS:
        lines.append(f"[{package}]")
        lines += [f"{name} = theirs" for name in ("their-own", *plugin_names(package))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("package", GROUPS)
def test_third_parties_append_and_never_replace(
    package: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = plugin_names(package)
    request.getfixturevalue("third_party")
    assert plugin_names(package) == {**before, "their_own": "theirs"}
    try:
        assert load_plugin(package, "their-own").THEIRS
    finally:
        sys.modules.pop("theirs", None)


# --- the command line ------------------------------------------------------------------------------------


def modules_after(*arguments: str, code: int = 0) -> set[str]:
    """What a fresh interpreter has imported after `python ARGUMENTS`."""
    program = (
        "import atexit, json, runpy, sys\n"
        "atexit.register(lambda: print('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "sys.argv = ['muster', *sys.argv[1:]]\n"
        "runpy.run_module('muster', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-2000:]
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_that_takes_time(arguments: list[str]) -> None:
    modules = modules_after(*arguments)
    assert "muster.cli.app" in modules
    assert not (HEAVY | LAZY) & modules


def test_a_verbs_help_imports_nothing_of_what_the_verb_needs() -> None:
    assert not (HEAVY | LAZY) & modules_after("train", "--help")


@pytest.mark.parametrize(("verb", "code"), [(["ls"], 0), (["stop", "last"], 2), (["show", "none"], 2)])
def test_verbs_that_look_into_run_folders_load_little(verb: list[str], code: int, tmp_path: Path) -> None:
    """benchmarks/start.py measures what that saves."""
    one = tmp_path / "runs" / "one"
    one.mkdir(parents=True)
    (one / "job.json").write_text("{}")
    (one / "result.json").write_text('{"status": "succeeded"}')
    modules = modules_after(*verb, "--runs", str(one.parent), code=code)
    assert not (HEAVY | LAZY | {"rich", "muster.core.recipe", "sqlite3", "secrets"}) & modules


def test_the_control_side_never_imports_torch(tmp_path: Path) -> None:
    """Every module of it in a fresh interpreter, and what a run makes: a TensorBoard writer."""
    root = Path(next(iter(muster.__path__)))
    # What runs on hosts, as an engine's runtime.py does; not what the control side reads of it.
    ranks, read = ("agent", "worker", "workloads", "dialogues"), ("spec", "rows", "rl")
    files = [
        path.relative_to(root)
        for path in root.rglob("*.py")
        if path.stem not in ("__init__", "__main__", "runtime")
    ]
    names = [
        ".".join(("muster", *path.with_suffix("").parts))
        for path in files
        if path.parts[0] not in ranks or (path.parts[0] in ranks[2:] and path.stem in read)
    ]
    assert "muster.runs.train" in names
    code = (
        "import importlib, json, sys\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
        "from pathlib import Path; from muster.runs.recorder import TensorBoardWriter\n"
        "TensorBoardWriter(Path(sys.argv[1])).close()\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path), "muster.cli.app", *names]
    modules = set(json.loads(subprocess.check_output(argv, text=True)))
    assert {"muster.cli.app", "tensorboardX", *names} <= modules
    assert not {name.partition(".")[0] for name in modules} & (HEAVY - {"numpy"})  # tensorboardX needs it


def test_the_verbs() -> None:
    assert {"demo", "train", "ask", "resume", "ls", "show", "stop", "report", "schema"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_examples_that_begin_with_it(verb: str) -> None:
    done = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert done.exit_code == 0
    _, found, examples = done.output.partition("Examples:")
    assert found
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines
    text = " ".join(lines)  # long ones are wrapped
    assert text.startswith(f"muster {verb}")
    assert re.findall(r"muster (\w+) ", text + " ") == [verb] * text.count("muster ")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_gives_json(verb: str) -> None:
    """--json everywhere, but where a document or a shell's script is printed anyway."""
    done = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert "--json" in done.output or verb in ("schema", "completion")


def test_no_verb_imports_at_the_top_what_it_needs_inside() -> None:
    """A verb's module imports little but its options, how to print, and the standard library when it is
    loaded."""
    light = {f"muster.cli.{name}" for name in ("parameters", "options", "output")}
    light |= {f"muster.core.{name}" for name in ("errors", "hostlist", "near", "units")}
    folder = Path(inspect.getfile(sys.modules["muster.cli.app"])).parent
    for verb in sorted({FILES.get(verb, verb) for verb in VERBS}):
        tree = ast.parse((folder / f"{verb}.py").read_text(encoding="utf-8"))
        for node in tree.body:  # `if TYPE_CHECKING:` and function bodies are not looked into
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                top = name.partition(".")[0]
                assert top in sys.stdlib_module_names or name in light, (verb, name)
