"""What every family of checks and every profile keeps, whichever they are: those of tomorrow too."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import re
import symtable
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.checks.base import Context, Finding, Level, Transport
from muster.checks.check import all_checks
from muster.checks.profiles import load_profile, shipped_profiles
from muster.checks.questions import HostAnswers, Patience, Questions, failed
from muster.checks.registry import Family, checks_of, families, family_of
from muster.checks.survey import starter, survey
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.core.recipe import Recipe
from muster.core.registry import load_plugin, plugin_names
from muster.fleet.launchers import local
from tests.pages import distribution
from tests.unit.judging import ASK
from tests.unit.judging import context as context_of

FAMILIES = families()
EACH = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
HELPERS = {"text", "run", "at_end"}
HOSTS = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def heard() -> dict[str, HostAnswers]:
    """Every family's answers, from three pretend hosts of this machine."""
    about = {**ASK, "launcher": "local", "one_machine": True, "slots": None, "world_size": None}
    about |= {"hosts": {name: name for name in HOSTS}, "controller_python": sys.executable, "timeout": 20.0}
    about |= {"folders": {"work": "~/.cache/muster"}}
    asking = Questions(
        sources={family.name: family.source for family in FAMILIES if family.source},
        first=tuple(family.name for family in FAMILIES if family.asks),
        second=tuple(family.name for family in FAMILIES if family.meets),
        ask=lambda place: {**about, "host": place.host, "address": place.host},
    )
    places = [Placement(name, name, 1, 0) for name in HOSTS]
    start = starter(local, Launch(), sys.executable)
    found = survey(places, start, asking, Patience(connect=30, probe=30, fanout=3))
    assert all(isinstance(one, HostAnswers) for one in found.values())
    return {host: one for host, one in found.items() if isinstance(one, HostAnswers)}


def context(**changes: Any) -> Context:
    transport = {host: Transport(0.1, (), 0.0, 0.01, "3.11.2") for host in HOSTS}
    return context_of(**{"slots": dict.fromkeys(HOSTS), "transport": transport, **changes})


def test_a_family_is_in_by_being_there() -> None:
    names = plugin_names("muster.checks")
    assert [family.name for family in FAMILIES] == sorted(names)
    assert not [name for name in names if name.startswith("_") or name == "base"]


@EACH
def test_a_family_explains_its_checks(family: Family) -> None:
    assert family.checks
    for check in family.checks:
        assert re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", check.name), check.name
        for words in (check.asks, check.why):
            assert words[:1].strip() and words.endswith("."), (check.name, words)
        json.dumps(dict(check.expects))
    assert list(inspect.signature(family.judge).parameters) == ["answers", "peers", "context"]


def test_every_check_has_a_name_of_its_own() -> None:
    names = [check.name for check in all_checks()]
    assert len(set(names)) == len(names)
    assert {check.name for check in checks_of(FAMILIES)} < set(names)


@EACH
def test_a_probe_is_python_3_8_and_needs_nothing_but_what_goes_with_it(family: Family) -> None:
    """Every name that it uses is its own, imported inside, built in, or a helper; imports are of the standard
    library."""
    if not family.source:
        return
    tree = ast.parse(family.source, feature_version=(3, 8))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions <= {"probe", "probe_peers"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name.partition(".")[0] in sys.stdlib_module_names for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] in sys.stdlib_module_names
    # Annotations are never looked at, so that names in them are free to be ours.
    bare = ast.unparse(_Bare().visit(tree))
    missing = globals_of(symtable.symtable(bare, family.name, "exec")) - functions
    assert missing <= HELPERS | set(dir(builtins)), missing


class _Bare(ast.NodeTransformer):
    """Takes annotations away."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        value = node.value or ast.Constant(None)
        return ast.copy_location(ast.Assign([node.target], self.visit(value)), node)


def globals_of(table: symtable.SymbolTable) -> set[str]:
    found = {name.get_name() for name in table.get_symbols() if name.is_global() and name.is_referenced()}
    return found.union(*(globals_of(child) for child in table.get_children()))


@EACH
def test_a_probe_answers_on_this_machine(family: Family, heard: dict[str, HostAnswers]) -> None:
    for one in heard.values():
        if family.asks:
            assert not failed(one.answers[family.name]), one.answers[family.name]
        if family.meets:
            assert one.peers is not None
            assert not failed(one.peers[family.name]), one.peers[family.name]


CONTEXTS: list[dict[str, Any]] = [
    {"one_machine": True, "launcher": "local"},
    {"recipe": Recipe().as_dict()},
    {"gpus_expected": True, "slots": dict.fromkeys(HOSTS, 8), "world_size": 24},
    {"gpus_expected": False, "launcher": "slurm"},
    {"transport": {}},
]


def judged(family: Family, heard: dict[str, HostAnswers], told: Context) -> list[Finding]:
    answers = {host: one.answers.get(family.name, {}) for host, one in heard.items()}
    peers = {host: (one.peers or {})[family.name] for host, one in heard.items() if family.meets}
    return family.judge(answers, peers, told)


@EACH
@pytest.mark.parametrize("changes", CONTEXTS, ids=["local", "recipe", "gpus", "no gpus", "no transport"])
def test_every_check_has_one_finding_per_host(
    family: Family, changes: dict[str, Any], heard: dict[str, HostAnswers]
) -> None:
    """And judging changes nothing, is the same twice, and has no finding about nobody."""
    told = context(**changes)
    before = json.dumps([one.answers.get(family.name) for one in heard.values()])
    found = judged(family, heard, told)
    assert found == judged(family, heard, told)
    assert before == json.dumps([one.answers.get(family.name) for one in heard.values()])
    assert family.judge({}, {}, told) == []
    if family.judge_group is not None:
        assert found == []  # real ranks answer it
        return
    assert sorted((each.check, each.host) for each in found) == sorted(
        (check.name, host) for check in family.checks for host in HOSTS
    )
    for each in found:
        assert isinstance(each.level, Level)
        assert family.name != "gpu" or told.gpus_expected is not False or each.level != Level.PASS
        if each.level in (Level.WARN, Level.FAIL):
            assert each.problem and each.evidence and each.remedy, each
        if each.level in (Level.UNKNOWN, Level.NOT_APPLICABLE):
            assert each.problem, each
        assert all(host not in each.problem for host in HOSTS), each  # hosts would not fold


# ---- profiles ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_shipped_profile_is_valid(name: str) -> None:
    chosen = load_profile(name, all_checks())
    assert set(chosen.expects) == {check.name for check in all_checks()}
    assert re.search(r"^about: \S.*$", shipped_profiles()[name].read_text(encoding="utf-8"), re.MULTILINE)


def test_a_profile_inherits_one_beside_it_by_its_name(tmp_path: Path) -> None:
    """As a recipe does; what is nearer wins over what is shipped."""
    (tmp_path / "cpu.yaml").write_text("expect: {disk.inodes: {at_least: 7}, login.noise: skip}\n")
    (tmp_path / "mine.yaml").write_text("inherit: cpu\nexpect: {disk.space: {at_least: 5}}\n")
    chosen = load_profile(str(tmp_path / "mine"), all_checks())
    assert chosen.expects["disk.inodes"]["at_least"] == 7
    assert chosen.expects["disk.space"]["at_least"] == 5
    assert chosen.skipped == {"login.noise"}


def test_a_number_in_quotes_keeps_its_fraction(tmp_path: Path) -> None:
    """It was read as a size in whole bytes: 0."""
    file = tmp_path / "mine.yaml"
    file.write_text('expect: {fabric.bandwidth: {at_least_gbit: "0.5"}, disk.space: {at_least: "1.5GiB"}}\n')
    chosen = load_profile(str(file), all_checks())
    assert chosen.expects["fabric.bandwidth"]["at_least_gbit"] == 0.5
    assert chosen.expects["disk.space"]["at_least"] == 1.5 * 2**30


# ---- third parties -----------------------------------------------------------------------------------------

THEIRS = """\
from muster.checks.base import Check, Finding, Level

CHECKS = (Check("theirs.answer", "Whether it is 42.", "Nothing follows.", {"answer": 42}),)


def probe(ask):
    return {"answer": 41}


def judge(answers, peers, context):
    expected = context.expect("theirs.answer", "answer")
    return [
        Finding("theirs.answer", host, Level.PASS if answer["answer"] == expected else Level.FAIL, "not it")
        for host, answer in answers.items()
    ]
"""


def test_third_parties_bring_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point; it is listed, asked and judged like ours, and replaces none of ours."""
    (tmp_path / "theirs_checks.py").write_text(THEIRS)
    distribution(tmp_path, "theirs", "[muster.checks]\ntheirs = theirs_checks\ngpu = theirs_checks\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert plugin_names("muster.checks")["gpu"] == "muster.checks.families.gpu"
        family = family_of("theirs", load_plugin("muster.checks", "theirs"))
        assert "theirs.answer" in {check.name for check in all_checks()}
        space: dict[str, Any] = {}
        exec(family.source, space)
        answers = {"n1": space["probe"](ASK)}
        told = replace(context(), expects={"theirs.answer": {"answer": 42}})
        assert [each.level for each in family.judge(answers, {}, told)] == [Level.FAIL]
    finally:
        sys.modules.pop("theirs_checks", None)


# ---- profiles of users -------------------------------------------------------------------------------------


NUMBERS = [
    (check, key)
    for check in all_checks()
    for key, value in check.expects.items()
    if isinstance(value, int | float) and not isinstance(value, bool)
]


@settings(max_examples=100)
@given(st.sampled_from(NUMBERS), st.integers(0, 10**12))
def test_numbers_of_a_profile_stay_numbers(tmp_path_factory: Any, place: Any, value: int) -> None:
    check, key = place
    file = tmp_path_factory.mktemp("profile") / "p.yaml"
    file.write_text(f"expect:\n  {check.name}: {{{key}: {value}}}\n")
    assert load_profile(str(file), all_checks()).expects[check.name] == {**check.expects, key: value}
