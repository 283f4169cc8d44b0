"""Third parties' plug-ins that break their contract: the package and the file are named, and a verb that
can do without the plug-in goes on."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.checks.base import Level
from muster.checks.check import all_checks, check
from muster.checks.registry import families
from muster.core import registry
from muster.core.errors import BrokenPluginError, DataError, PluginWarning, UsageError
from muster.core.inventory import read_inventory
from muster.core.recipe import Recipe, recipe_class
from muster.core.recipes import load_recipe
from muster.core.registry import ENGINES, WORKLOADS, blamed, fits, plugin_names
from muster.engines.base import spec_of
from muster.inputs.read import check as prepare_job
from muster.readers import _feed, _read
from muster.readers._live import Live
from muster.runs.requirements import check_hosts, needed
from muster.schemas.documents import recipe_schema
from tests.pages import distribution

Offer = Callable[..., None]
TRL = "{'loss': 2.0, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}"


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Install a distribution with one plug-in, whose files are given."""
    made = []

    def install(group: str, files: dict[str, str], name: str = "theirs", package: str = "their-pack") -> None:
        folder = f"{package.replace('-', '_')}_{name.replace('-', '_')}"
        for file, text in {"__init__.py": "", **files}.items():
            (tmp_path / folder / file).parent.mkdir(exist_ok=True)
            (tmp_path / folder / file).write_text(text)
        distribution(tmp_path, package, f"[{group}]\n{name} = {folder}\n")
        made.append(folder)
        _forget()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield install
    for module in [each for each in sys.modules if each.partition(".")[0] in made]:
        del sys.modules[module]
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for cached in (registry._offers, registry._warn_once, _feed._readers, _feed._sieve, spec_of):
        cached.cache_clear()


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call answers, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = call()
    return answer, [str(each.message) for each in caught if each.category is PluginWarning]


# --- checks ----------------------------------------------------------------------------------------------

CHECK = """
from muster.checks.base import Check, Finding, Level
CHECKS = ({checks})
def judge(answers, peers, context):
    {judge}
"""
PASSES = "return [Finding(each.name, host, Level.PASS) for each in CHECKS for host in answers]"


def test_what_a_plug_in_prints_while_it_loads_is_no_document(
    offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("muster.checks", {"__init__.py": "print('noise')\nCHECKS = ()"})
    warned(families)
    printed = capsys.readouterr()
    assert not printed.out and "noise" in printed.err


def test_a_check_of_a_built_in_ones_name_is_left_out(offer: Offer) -> None:
    """And the built-in one is asked as before, with its own expectations."""
    own = {each.name: each for each in all_checks()}
    checks = "Check('disk.space', 'a', 'b'), Check('host.reached', 'a', 'b'), Check('their.one', 'a', 'b'),"
    offer("muster.checks", {"__init__.py": CHECK.format(checks=checks, judge=PASSES)})
    after, said = warned(all_checks)
    new = [each.name for each in after if own.get(each.name) != each]
    assert new == ["their.one"] and len(after) == len(own) + 1
    assert len(said) == 2 and all("their-pack" in line for line in said)
    results = check(read_inventory("local:1"), Recipe(), group=False).hosts[0].checks
    assert [each.level for each in results if each.check == "their.one"] == ["pass"]
    assert len([each for each in results if each.check == "disk.space"]) == 1
    assert not [each for each in results if "KeyError" in each.evidence]


@pytest.mark.parametrize(
    "judge",
    [
        "return 3",
        "return ['their.one']",
        "return [Finding('disk.space', host, Level.FAIL) for host in answers]",
        "return [Finding('their.one', 'elsewhere', Level.PASS)]",
        "return [Finding('their.one', host, 'pass') for host in answers]",
        "raise KeyError('x')",
        "raise SystemExit('x')",
    ],
)
def test_a_judge_that_breaks_its_contract_judges_nobody(judge: str, offer: Offer) -> None:
    offer("muster.checks", {"__init__.py": CHECK.format(checks="Check('their.one', 'a', 'b'),", judge=judge)})
    found = check(read_inventory("local:1"), Recipe(), group=False)
    theirs = [each for each in found.hosts[0].checks if each.check == "their.one"]
    assert [each.level for each in theirs] == [Level.UNKNOWN.value]
    assert "their-pack" in theirs[0].evidence and "__init__.py" in theirs[0].evidence


@pytest.mark.parametrize(
    "text",
    [
        "CHECKS = 3",
        "CHECKS = ('a.b',)",
        "NAME = 1",
        "import nothing_like_this",
        "def (",
        "raise SystemExit(3)",
    ],
)
def test_a_family_that_is_none_is_left_out(text: str, offer: Offer) -> None:
    before = [each.name for each in families()]
    offer("muster.checks", {"__init__.py": text})
    after, said = warned(families)
    assert [each.name for each in after] == before
    assert len(said) == 1 and "their-pack" in said[0] and "__init__.py" in said[0]


def test_names_that_clash_are_said(offer: Offer) -> None:
    offer("muster.checks", {"__init__.py": ""}, name="disk")
    offer("muster.readers", {"__init__.py": ""}, name="mine", package="one-pack")
    offer("muster.readers", {"__init__.py": ""}, name="mine", package="two-pack")
    _, said = warned(lambda: plugin_names("muster.checks"))
    assert len(said) == 1 and "their-pack" in said[0] and "disk" in said[0]
    _, said = warned(lambda: plugin_names("muster.readers"))
    assert len(said) == 1 and "mine" in said[0]


# --- readers ---------------------------------------------------------------------------------------------

READER = """
from muster.readers.base import Reading
HINTS = {hints}
FORMAT = "theirs"
class Reader:
    def __init__(self, frame):
        {init}
    def line(self, text):
        {line}
    def readings(self):
        {readings}
"""
READER_OF_NO_FRAME = "HINTS = ('',)\nclass Reader:\n    def line(self, text): pass\n"
SOUND = {"hints": "('',)", "init": "pass", "line": "pass", "readings": "return []"}


@pytest.mark.parametrize(
    "fault",
    [
        {"init": "raise RuntimeError('x')"},
        {"all": READER_OF_NO_FRAME},
        {"line": "raise RuntimeError('x')"},
        {"readings": "return 3"},
        {"readings": "return ['x']"},
        {"readings": "return None.x"},
        {"line": "raise SystemExit(3)"},
        {"readings": "return [Reading('theirs', steps='7')]"},
        {"readings": "return [Reading('theirs', reported=float('nan'))]"},
        {"hints": "3"},
        {"all": "HINTS = ('',)"},
    ],
)
def test_a_reader_that_fails_leaves_the_others(fault: dict[str, str], offer: Offer) -> None:
    lines = [f"step {step} {TRL}" for step in range(20)]
    before = _read.read_blocks("node1.log", [lines])
    text = fault.get("all") or READER.format(**{**SOUND, **fault})
    offer("muster.readers", {"__init__.py": text})
    after, said = warned(lambda: _read.read_blocks("node1.log", [lines]))
    assert [replace(each, notes=before[0].notes) for each in after] == before
    assert len(said) == 1 and "their-pack" in said[0] and "__init__.py" in said[0]
    assert said[0] in after[0].notes or "cannot" in said[0] or "HINTS" in said[0] or "it has no" in said[0]


def test_a_sound_reader_needs_no_closed(offer: Offer) -> None:
    readings = "return [Reading('theirs', steps=7, reported=3.0)]"
    offer("muster.readers", {"__init__.py": READER.format(**{**SOUND, "readings": readings})})
    found, said = warned(lambda: _read.read_blocks("node1.log", [["a line"]]))
    assert [(each.format, each.steps, each.rate) for each in found] == [("theirs", 7, 3.0)] and not said
    live = Live()
    live.lines(["a line"])
    assert live.seen(0.0) is None


# --- workloads and engines -------------------------------------------------------------------------------

SPEC = """
from muster.core.data import Data
from muster.core.recipe import Recipe
from muster.core.workload import Lengths
from muster.core.errors import DataError
from pydantic import Field
class TheirData(Data):
    label: str = Field("x", description="Which label to learn.")
class Theirs(Recipe):
    workload: str = "theirs"
    data: TheirData = Field(default_factory=TheirData)
    def lengths(self, config):
        {lengths}
    def check_data(self, path, config):
        raise DataError("is empty", where="theirs")
    @property
    def loaders(self):
        {loaders}
RECIPE = Theirs
"""


def workload(offer: Offer, lengths: str = "return Lengths(8)", loaders: str = "return 2") -> Recipe:
    offer(WORKLOADS, {"spec.py": SPEC.format(lengths=lengths, loaders=loaders)})
    return recipe_class("theirs")()


def test_a_workloads_answers_are_held_to_its_contract(offer: Offer) -> None:
    sound = workload(offer)
    lengths = sound.lengths(None)
    assert lengths is not None and lengths.tokens == 8 and sound.loaders == 2
    with pytest.raises(DataError):  # a user's error stays one
        sound.check_data(None, {})


@pytest.mark.parametrize("lengths", ["return 5", "return Lengths(1, 2, 3, 4, 5)", "raise KeyError('x')"])
def test_a_workload_that_answers_wrongly_is_named(lengths: str, offer: Offer) -> None:
    with pytest.raises(BrokenPluginError) as caught:
        workload(offer, lengths, "return 'two'").lengths(None)
    assert caught.value.package == "their-pack" and caught.value.where == "workload theirs"
    assert caught.value.place and "spec.py:" in caught.value.place
    with pytest.raises(BrokenPluginError):
        assert recipe_class("theirs")().loaders


def test_an_engine_that_answers_wrongly_is_named(offer: Offer) -> None:
    text = """
from muster.engines.base import EngineSpec
class Theirs(EngineSpec):
    def optimizer_parts(self, spread):
        return "all"
    def lighter(self, stage, offload):
        yield {"engine.zero": "3"}
SPEC = Theirs
"""
    offer(ENGINES, {"spec.py": text})
    with pytest.raises(BrokenPluginError) as caught:
        spec_of("theirs").optimizer_parts(None)  # type: ignore[arg-type]
    assert caught.value.package == "their-pack"
    assert list(spec_of("theirs").lighter(0, "none")) == [{"engine.zero": "3"}]


def test_its_keys_stand_in_the_schema(offer: Offer) -> None:
    workload(offer)
    assert recipe_schema()["$defs"]["TheirData"]["properties"]["label"]["default"] == "x"


def test_a_host_without_its_package_is_refused(offer: Offer) -> None:
    workload(offer)
    recipe = load_recipe("demo", []).model_copy(update={"workload": "theirs"})
    assert "their-pack" in needed(recipe)
    versions: dict[str, str | None] = dict.fromkeys(needed(recipe), "1")
    check_hosts({"n1": {"python": "python3", "versions": versions}}, recipe)
    lacking = {**versions, "their-pack": None}
    with pytest.raises(UsageError) as caught:
        check_hosts({"n1": {"python": "python3", "versions": lacking}}, recipe)
    assert caught.value.host == "n1" and "pip install their-pack" in (caught.value.hint or "")


def test_an_error_within_a_plug_in_is_never_musters_own(offer: Offer) -> None:
    text = "def fail():\n    return inner()\ndef inner():\n    return {}['x']\n"
    offer("muster.launchers", {"__init__.py": text})
    module = __import__("their_pack_theirs")
    with pytest.raises(KeyError) as caught:
        module.fail()
    error = blamed(caught.value)
    assert error and error.package == "their-pack" and (error.place or "").endswith("__init__.py:4")
    assert blamed(KeyError("x")) is None


# --- launchers -------------------------------------------------------------------------------------------

LAUNCHER = """
ONE_MACHINE, DIALS = False, False
def remote(place, launch, argv):
    return argv
def requests(places, launch, job_id, home):
    return ["ssh"]
"""


@pytest.mark.parametrize("text", [LAUNCHER, "ONE_MACHINE = DIALS = False"], ids=["wrong", "lacks something"])
def test_a_launcher_is_held_to_its_contract(text: str, offer: Offer) -> None:
    offer("muster.launchers", {"__init__.py": text})
    with pytest.raises(BrokenPluginError) as caught:
        inputs = prepare_job(load_recipe("demo", ["launch.launcher=theirs"]), read_inventory("n1,n2"))
        assert inputs.launcher.remote(None, None, ["a"]) == ["a"]
        inputs.launcher.requests((), None, "", None)
    assert caught.value.package == "their-pack" and (text == LAUNCHER or caught.value.place)


@pytest.mark.parametrize(
    ("value", "kind", "answer"),
    [
        (None, int | None, True),
        (1, float, True),
        ("a", list[str], False),
        (["a"], tuple[str, ...], True),
        ([1], list[str], False),
        (["a", 1], list[str], False),
        (("a", "b"), tuple[str, str] | None, True),
        ({}, dict[str, Any], True),
        (3, dict[str, Any], False),
        (3, None, True),
        (None, None, True),
        (3, type(None), False),
        (3, Any, True),
        ([3], list[Any], True),
        (3, list[Any], False),
        (3, "forward", True),
    ],
)
def test_what_fits_a_type(value: object, kind: Any, answer: bool) -> None:
    assert fits(value, kind) is answer
